"""The directory of a run: creates it, describes the run in it, locks it, and appends to its logs.

    runs/Boxing-20260131-120000-s0/
        config.yaml     settings as resolved           metrics.jsonl   one row a second (columns: statistics.py)
        versions.json   packages, machine, commit      episodes.csv    time, agent step, score, length
        log.txt         messages, tracebacks           events.jsonl    starts, deaths, checkpoints, the end
        checkpoints/    see learner/checkpoint.py      tensorboard/    see tensorboard.py
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import importlib.metadata
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import psutil

from ga3c import __version__
from ga3c.envs.base import EnvSpec
from ga3c.settings.files import to_yaml
from ga3c.settings.machine import processor, usable_cores
from ga3c.settings.messages import ConfigError, for_shell
from ga3c.settings.schema import Settings
from ga3c.settings.whole_files import write_whole

_PACKAGES = ("tensorflow", "keras", "numpy", "gymnasium", "ale-py", "pydantic", "PyYAML", "rich")
_HERE = Path()


def check_unused(settings: Settings, here: Path = _HERE) -> None:
    """Raises ConfigError if `run_dir`, seen from the directory `here`, holds files or cannot be looked into."""
    if not settings.run.run_dir:
        return
    path = Path(settings.run.run_dir)
    try:
        exists, used = (here / path).exists(), (here / path).is_dir() and any((here / path).iterdir())
    except OSError as error:
        raise ConfigError(f"run_dir: {error.filename}: {error.strerror}") from None
    if exists and not (here / path).is_dir():
        raise ConfigError(f"run_dir: {path} is no directory")
    if used:
        raise ConfigError(f"run_dir: {path} is not empty; choose another directory, or resume its run: "
                          f"--resume {for_shell(path)}")


def create_directory(settings: Settings, spec: EnvSpec, here: Path = _HERE) -> Path:
    """Makes the directory of a new run, with config.yaml and versions.json in it; returns its path.

    The directory `run_dir` may exist if it is empty. The returned path is as the user gave it, relative to `here`.
    Raises ConfigError.
    """
    try:
        if settings.run.run_dir:
            path = Path(settings.run.run_dir)
            (here / path).mkdir(parents=True, exist_ok=True)
            check_unused(settings, here)
        else:
            path = new_directory(spec.name, settings.run.seed, here)
    except OSError as error:
        raise ConfigError(f"run_dir: {error.filename}: {error.strerror}") from None
    write_settings(here / path, settings)
    (here / path / "versions.json").write_text(json.dumps(versions(), indent=1) + "\n", encoding="utf-8")
    return path


def new_directory(game: str, seed: int, here: Path = _HERE) -> Path:
    """Makes runs/<game>-<date>-<time>-s<seed> in the directory `here`; appends a number if that exists.

    Returns the path, relative to `here`. Raises ConfigError.
    """
    path = stem = Path("runs") / f"{game.replace(':', '-').replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}-s{seed}"
    try:
        (here / stem.parent).mkdir(exist_ok=True)
        for number in itertools.count(2):
            try:
                (here / path).mkdir()
                break
            except FileExistsError:
                path = stem.with_name(f"{stem.name}-{number}")
    except OSError as error:
        raise ConfigError(f"run_dir: {error.filename}: {error.strerror}") from None
    return path


@contextlib.contextmanager
def plain_path(directory: Path) -> Iterator[str]:
    """Gives a path of the directory that is valid text, for the `with` block. TensorFlow takes no other path."""
    try:
        str(directory).encode()
        yield str(directory)
        return
    except UnicodeEncodeError:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def write_settings(directory: Path, settings: Settings) -> None:
    """Replaces the run's config.yaml in one step. `--resume` reads it. Raises OSError."""
    write_whole(directory / "config.yaml", to_yaml(settings))


def versions() -> dict[str, Any]:
    """Returns the facts that results depend on: package versions, machine, usable `cores`, command and commit."""
    return {"ga3c": __version__, "python": platform.python_version(), "platform": platform.platform(),
            "processor": processor(), "cores": usable_cores(),
            "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
            **{name: importlib.metadata.version(name) for name in _PACKAGES}, "opencv": cv2.__version__,
            "command": sys.argv, "commit": _commit()}


@functools.cache
def _commit() -> str | None:
    """Returns the commit of this file's checkout, with "+" after local changes; None outside of a checkout."""
    here = Path(__file__)

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "--no-optional-locks", "-C", str(here.parent), *arguments], check=True,
                              timeout=5.0, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL)
        return done.stdout.decode(errors="replace").strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("rev-parse", "--short=12", "HEAD") + "+" * bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None


def lock_directory(directory: Path) -> int:
    """Locks the run directory for this process, until the returned descriptor is closed or the process has ended.

    A file system without locks locks nothing. Raises ConfigError, with the number of the process that holds the lock.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        inode = f":{os.fstat(descriptor).st_ino}"
        os.close(descriptor)
        owners = [fields[4] for fields in map(str.split, Path("/proc/locks").read_text(encoding="ascii").splitlines())
                  if fields[1] == "FLOCK" and fields[5].endswith(inode)]
        raise ConfigError(f"run_dir: {directory} is in use by process {', '.join(owners) or 'unknown'}") from None
    except OSError:
        pass  # a file system without locks
    return descriptor


class Log:
    """A file to which whole lines are appended, unbuffered.

    On a full disk, lines are dropped and counted in `lost`; the run goes on. If a crash tore the last line, `write`
    ends that line first. The constructor raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self.last_error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # of a line cut short
        self._torn = False
        if path.is_file() and path.stat().st_size:
            with open(path, "rb") as file:
                file.seek(-1, os.SEEK_END)
                self._torn = file.read(1) != b"\n"
        self._file = open(path, "ab", buffering=0)
        self.empty = self._file.tell() == 0

    def write(self, text: str) -> None:
        """Appends `text`, which ends with a newline."""
        data = (b"\n" if self._torn else b"") + text.encode(errors="backslashreplace")
        try:
            self._torn = os.write(self._file.fileno(), data) < len(data)
            self.lost += self._torn
        except OSError as error:
            self.lost += 1
            self.last_error = error

    def fileno(self) -> int:
        """Returns the file descriptor, for faulthandler."""
        return self._file.fileno()

    def close(self) -> None:
        """Closes the file. This cannot fail, as nothing is buffered."""
        self._file.close()
