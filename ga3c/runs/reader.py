"""The reader of runs: finds them and reads their files, during a run or later, for `ga3c-top`, `ga3c-plot` and tools.

It skips lines torn by a crash, a last line that is still being written, and lines that are neither a row of metrics nor
an event. A row gets None for the usual columns that it lacks.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ga3c.learner import checkpoint
from ga3c.settings.files import recorded_values
from ga3c.settings.messages import ConfigError

Entry = dict[str, Any]

_NUMBERS = ("time", "agent_steps", "frames", "episodes", "agents", "predictors", "trainers")
_NUMBERS_OR_NONE = ("trainings", "pps", "tps", "prediction_queue", "training_queue", "agent_deaths", "memory_mb",
                    "prediction_batch", "training_batch", "score", "score_mean", "lag_mean", "lag_p95", "policy_loss",
                    "value_loss", "entropy", "learning_rate")
_MOST = 1e15  # no run writes a larger number


def is_number(value: Any) -> bool:
    """Whether `value` is a number that a run may have written: no boolean, NaN or infinity, and less than 1e15."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST < value < _MOST


def _row(entry: Entry) -> Entry | None:
    if not all(is_number(entry.get(name)) for name in _NUMBERS):
        return None
    diagnosis = entry.get("bottleneck")
    # Interned: a run of a day has some 90,000 rows.
    numbers = {sys.intern(name): value for name, value in entry.items()
               if name != "bottleneck" and is_number(value)}
    return {**dict.fromkeys(_NUMBERS_OR_NONE), **numbers,
            **({"bottleneck": diagnosis} if isinstance(diagnosis, str) else {})}


def _event(entry: Entry) -> Entry | None:
    return entry if isinstance(entry.get("event"), str) and is_number(entry.get("time")) else None


class Follower:
    """A reader of the objects in a file of JSON lines, as they are appended.

    Args:
        checked: returns the part of an object to keep, or None to skip the object.
    """

    def __init__(self, path: Path, checked: Callable[[Entry], Entry | None] = lambda entry: entry) -> None:
        self._path = path
        self._at = 0
        self._checked = checked

    def new(self) -> list[Entry]:
        """Returns the objects appended since the last call; the first call returns all. Raises OSError."""
        with open(self._path, "rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[:data.rfind(b"\n") + 1]
        self._at += len(whole)
        entries = []
        for line in whole.splitlines():
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            kept = self._checked(entry) if isinstance(entry, dict) else None
            if kept is not None:
                entries.append(kept)
        return entries


def rows(run: Path) -> Follower:
    """Follows a run's metrics.jsonl. A row has numbers by column, and `bottleneck`; some columns may be None."""
    return Follower(run / "metrics.jsonl", _row)


def lasting(rows: Sequence[Entry]) -> list[Entry]:
    """Removes the rows that a resume cut off: rows with a later `time` or more `agent_steps` than a row after them.

    A resumed run continues from its checkpoint, so these two columns go back there.
    """
    return list(itertools.compress(rows, _lasts(column(rows, "time")) & _lasts(column(rows, "agent_steps"))))


def _lasts(values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Returns (n,) bool: whether no later entry of `values` (n,) is less. Within a run the values grow."""
    lasts: NDArray[np.bool_] = values <= np.fmin.accumulate(values[::-1])[::-1]
    return lasts


def events(run: Path) -> Follower:
    """Follows a run's events.jsonl. Each event has its kind as `event`, and a `time`; other values are not checked."""
    return Follower(run / "events.jsonl", _event)


def lasting_events(run: Path) -> list[Entry]:
    """Returns the events of a run without those that a resume cut off. Raises OSError.

    An evaluation stays if its checkpoint does: it may end later than the checkpoint that a resume begins from. Leaves
    out evaluations by `ga3c-eval`, because their `time` is that of the checkpoint.
    """
    of_training = [event for event in events(run).new() if event["event"] != "evaluation" or "best" in event]
    kept = []
    resumed_at = float("inf")  # the least agent steps that a later start began from
    for event, lasts in zip(
            reversed(of_training), reversed(_lasts(column(of_training, "time"))), strict=True):
        if event["event"] == "start" and is_number(event.get("resumed_at")):
            resumed_at = min(resumed_at, event["resumed_at"])
        if event["event"] == "evaluation" and is_number(event.get("agent_steps")):
            lasts = event["agent_steps"] <= resumed_at
        if lasts:
            kept.append(event)
    return kept[::-1]


def episodes(run: Path) -> dict[str, NDArray[np.float64]]:
    """Returns the columns of a run's episodes.csv by name, (n,) float64, without episodes that a resume cut off.

    The columns are time (seconds), agent_step, score (raw) and length (agent steps). Raises OSError.
    """
    names = ("time", "agent_step", "score", "length")
    lines = []
    for line in (run / "episodes.csv").read_bytes().splitlines(keepends=True):
        cells = line.decode(errors="replace").split(",")
        try:
            if len(cells) == len(names) and line.endswith(b"\n"):
                lines.append([float(cell) for cell in cells])
        except ValueError:  # the header, or a torn line
            continue
    table = np.array(lines, np.float64).reshape(-1, len(names))
    return dict(zip(names, table[_lasts(table[:, 0]) & _lasts(table[:, 1])].T, strict=True))


def column(rows: Iterable[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    """Returns one column of n rows, (n,) float64; NaN where it was not measured."""
    return np.array([row[name] if is_number(row.get(name)) else np.nan for row in rows], np.float64)


def settings(run: Path) -> dict[str, Any]:
    """Returns the settings in a run's config.yaml, by name; {} without a file. Raises ConfigError."""
    return recorded_values(run / "config.yaml")


def find_run(where: Path | None) -> Path:
    """Returns the run directory `where`; None: the run in runs/ written to last. Raises ConfigError if it is no run."""
    if where is None:
        runs = [path.parent for path in Path("runs").glob("*/metrics.jsonl")]
        if not runs:
            raise ConfigError("no run was given, and runs/ has none; give the directory of a run")
        return max(runs, key=lambda run: (run / "metrics.jsonl").stat().st_mtime)
    if not (where / "metrics.jsonl").is_file():
        raise ConfigError(f"{where} is no run: it has no metrics.jsonl")
    return where


def _is_run(path: Path) -> bool:
    return (path / "config.yaml").is_file() and ((path / "metrics.jsonl").exists() or (path / "checkpoints").is_dir())


def located(where: str | os.PathLike[str]) -> tuple[Path, Path | None] | None:
    """Returns the run directory and the checkpoint that `where` names; None if it names neither.

    `where` is RUN, whose checkpoint is None, or RUN/checkpoints/N, or RUN/checkpoints/best. Raises ConfigError if no
    evaluation has chosen a best checkpoint.
    """
    path = Path(where)
    if _is_run(path):
        return path, None
    checkpoints = Path(os.path.abspath(path)).parent
    run = checkpoints.parent if path.is_absolute() else Path(os.path.relpath(checkpoints.parent))
    if checkpoints.name != "checkpoints" or not _is_run(run):
        return None
    name = path.name
    if name == "best":
        chosen = checkpoint.best(checkpoints)
        if chosen is None:
            raise ConfigError(f"{path}: no evaluation during training has chosen a best checkpoint")
        name = chosen.checkpoint
    named = run / "checkpoints" / name
    return (run, named) if named.is_dir() else None
