"""Checkpoints: one directory each, written aside, checksummed, then renamed into place. No pickle anywhere.

    checkpoints/000001234560/: one checkpoint, named by its agent steps.
        arrays.npz: weights, optimizer, the algorithm's state. In serial mode it holds the agents' state, too.
        progress.json: counters, recent scores, the controller's state, settings, versions.
        manifest.json: sha256 of the other two.
    checkpoints/best.json: the checkpoint that scored best in its evaluation, see `set_best`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.settings.whole_files import sync, write_whole

_FILES = ("arrays.npz", "progress.json")
_INFLATION = 20  # times; trained weights shrink by a tenth, a zip bomb by a thousandfold


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message is one line that names it and says why."""


class Checkpoint(NamedTuple):
    """The state that a run continues from: `arrays` by name (see `Learner.state`), `progress` as plain JSON values."""

    arrays: dict[str, NDArray]
    progress: dict[str, Any]


def save(directory: Path, name: str, checkpoint: Checkpoint, keep: int, spared: Collection[str] = ()) -> Path:
    """Writes `directory`/`name` completely or not at all, then removes the oldest other checkpoints over `keep`.

    Checkpoints named in `spared` stay, however old. Raises OSError; checkpoints from before are then untouched.
    """
    directory.mkdir(parents=True, exist_ok=True)
    final, aside, replaced = directory / name, directory / f".{name}.{os.getpid()}", directory / f".{name}.replaced"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        with open(aside / _FILES[0], "xb") as file:
            np.savez(file, allow_pickle=False, **checkpoint.arrays)
        (aside / _FILES[1]).write_text(json.dumps(checkpoint.progress, indent=1), encoding="utf-8")
        manifest = {file: _sha256(aside / file) for file in _FILES}
        (aside / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
        for path in [*aside.iterdir(), aside]:
            sync(path)
        if final.exists():
            final.rename(replaced)
        aside.rename(final)
        sync(directory)
    except BaseException:
        if replaced.exists() and not final.exists():
            replaced.rename(final)
        shutil.rmtree(aside, ignore_errors=True)
        raise
    others = [path for path in saved(directory) if path != final]
    for old in (path for path in others[keep - 1:] if path.name not in spared):
        with contextlib.suppress(OSError):  # renamed first: half of a checkpoint must not look like one
            old.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    shutil.rmtree(replaced, ignore_errors=True)
    return final


def clean(directory: Path) -> list[str]:
    """Removes what a killed `save` left, and puts back what it was about to replace. Returns one line for each.

    Call it only while nobody else saves there: see `runs.directory.lock_directory`.
    """
    notes = []
    for path in sorted(directory.glob(".*.*")) if directory.is_dir() else []:
        _, name, rest = path.name.split(".", 2)
        if not name.isdigit() or not (rest.isdigit() or rest == "replaced") or path.is_symlink():
            continue
        if rest == "replaced" and not (directory / name).exists():
            path.rename(directory / name)
            notes.append(f"{directory / name} is back: its replacement was not finished")
        else:
            shutil.rmtree(path, ignore_errors=True)
            notes.append(f"{path} was removed: it was never finished")
    return notes


def saved(directory: Path) -> list[Path]:
    """Returns the checkpoints in `directory`, newest (most agent steps) first."""
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if path.is_dir() and path.name.isdigit()),
                  key=lambda path: int(path.name), reverse=True)


def load(path: Path) -> Checkpoint:
    """Reads and verifies one checkpoint. Raises CheckpointError."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        for file in _FILES:
            if _sha256(path / file) != manifest[file]:
                raise CheckpointError(f"{path / file} is damaged: its sha256 is not the one in manifest.json")
        return Checkpoint(read_arrays(path / _FILES[0]), json.loads((path / _FILES[1]).read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is not a whole checkpoint: {Path(error.filename).name} is missing") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def unusable(progress: Any) -> str:
    """Returns what is wrong with the counters of a checkpoint that a run resumes from; "" if nothing is."""
    if not isinstance(progress, dict):
        return "progress.json is no JSON object"
    for name in ("version", "agent_steps", "episodes", "predictions", "dropped_steps", "time"):
        value: Any = progress.get(name)
        if type(value) is not int and (type(value) is not float or name != "time") or not 0 <= value < 1e15:
            kind = "a number" if name == "time" else "an integer"
            return f"{name} is {str(value)[:40]!r}, but must be {kind} from 0 to 1e15"
    factor = progress.get("learning_rate_factor")
    if type(factor) is not float or not 0 < factor <= 1:
        return f"learning_rate_factor is {str(factor)[:40]!r}, but must be over 0 and at most 1"
    scores = progress.get("recent_scores")
    if not isinstance(scores, list) or not all(type(score) in (int, float) for score in scores):
        return "recent_scores must be a list of numbers"
    return ""


def read_arrays(path: Path) -> dict[str, NDArray]:
    """Returns the arrays of an .npz file by name. Rejects pickled arrays. Raises CheckpointError for every fault."""
    try:
        _check_sizes(path)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # zip, zlib, NumPy and the tokenizer behind it each raise their own kinds
        raise CheckpointError(f"{path} cannot be read: {' '.join(str(error).split())}") from None


def _check_sizes(path: Path) -> None:
    """Raises ValueError if an array claims another size than the file holds, before memory is taken for it."""
    with zipfile.ZipFile(path) as file:
        unpacked = sum(member.file_size for member in file.infolist())
        if unpacked > _INFLATION * path.stat().st_size + 2**20:
            raise ValueError(f"it is said to unpack to {unpacked:,} bytes")
        for member in file.infolist():
            with file.open(member) as array:
                version = np.lib.format.read_magic(array)
                header = np.lib.format.read_array_header_1_0 if version == (1, 0) else (
                    np.lib.format.read_array_header_2_0)
                shape, _, dtype = header(array)
                if dtype.hasobject or array.tell() + math.prod(shape) * dtype.itemsize != member.file_size:
                    raise ValueError(f"{member.filename} is not the {dtype} {shape} that it says it is")


def newest(directory: Path) -> tuple[Checkpoint, Path, list[str]]:
    """Returns the newest whole checkpoint, its path, and why newer ones were passed over. Raises CheckpointError."""
    passed_over: list[str] = []
    for path in saved(directory):
        try:
            return load(path), path, passed_over
        except CheckpointError as error:
            passed_over.append(str(error))
    raise CheckpointError("; ".join(passed_over) or f"{directory} has no checkpoint")


def hourly(directory: Path) -> list[str]:
    """Returns the names of the first checkpoint after each full hour of training. Unreadable ones are left out."""
    first: dict[int, str] = {}
    for path in saved(directory):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            hour = int(json.loads((path / _FILES[1]).read_text(encoding="utf-8"))["time"] // 3600)
            first[hour] = path.name  # newest first: the oldest of each hour remains
    first.pop(0, None)
    return list(first.values())


class Best(NamedTuple):
    """The `checkpoint` with the best score of all evaluated under one `protocol`."""

    checkpoint: str
    mean: float
    protocol: dict[str, Any]


def set_best(directory: Path, best: Best) -> None:
    """Writes best.json. At every moment the file holds the old note or the new one, whole."""
    write_whole(directory / "best.json", json.dumps(best._asdict()) + "\n")


def best(directory: Path) -> Best | None:
    """Returns the note of `set_best`. Returns None if there is none, or if its checkpoint is gone."""
    try:
        note = json.loads((directory / "best.json").read_text(encoding="utf-8"))
        noted = Best(str(note["checkpoint"]), float(note["mean"]), dict(note["protocol"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    return noted if noted.checkpoint in (path.name for path in saved(directory)) else None


def set_aside_after(path: Path) -> None:
    """Renames checkpoints newer than `path` to NAME.abandoned, for a run that continues from `path`.

    If best.json names one of them, it is removed. The best of this branch is unknown then, and a new checkpoint may get
    that name.
    """
    noted = best(path.parent)
    for newer in saved(path.parent):
        if int(newer.name) > int(path.name):
            if noted is not None and noted.checkpoint == newer.name:
                (path.parent / "best.json").unlink(missing_ok=True)
            target = newer.with_name(f"{newer.name}.abandoned")
            shutil.rmtree(target, ignore_errors=True)
            newer.rename(target)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
