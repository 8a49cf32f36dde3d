"""The Python API behind `from ga3c import Config, train, evaluate, load_policy, load_run`.

`train` and `evaluate` run the commands, each in its own process. So the caller keeps its signal handlers and its
TensorFlow, may call them repeatedly, and needs no `__main__` guard. `load_policy` works in the caller's process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.child_process import ChildEnded, ChildProcess
from ga3c.runs import reader as record
from ga3c.runs.directory import new_directory
from ga3c.settings.files import configured, require, to_yaml
from ga3c.settings.imports import python_path
from ga3c.settings.messages import ConfigError, flag
from ga3c.settings.schema import Settings


class CommandFailed(Exception):
    """Training or evaluation failed. The message is one line with the exit code, see `entry`."""


class RunRecord:
    """The record of the run in `directory`, which may still be training. Functions accept it as the run's path."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __fspath__(self) -> str:
        return str(self.directory)

    def __repr__(self) -> str:
        return f"RunRecord({str(self.directory)!r})"

    def metrics(self) -> dict[str, NDArray[np.float64]]:
        """Returns the columns of metrics.jsonl, one float64 value per second; NaN where nothing was measured.

        Rows that a resume cut off, later than its checkpoint, are left out. `pandas.DataFrame(run.metrics())` makes a
        table. Raises OSError.
        """
        rows = record.lasting(record.rows(self.directory).new())
        names = dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, str))
        return {name: record.column(rows, name) for name in names}

    def episodes(self) -> dict[str, NDArray[np.float64]]:
        """Returns the columns of episodes.csv: time (s), agent_step, raw score, length (agent steps).

        Episodes that a resume cut off, later than its checkpoint, are left out. Raises OSError.
        """
        return record.episodes(self.directory)

    def events(self) -> list[dict[str, Any]]:
        """Returns the lines of events.jsonl: starts, evaluations, checkpoints, the end. Raises OSError."""
        return record.events(self.directory).new()


def load_run(where: str | os.PathLike[str]) -> RunRecord:
    """Finds the run in a directory and returns its record. Raises ConfigError if there is none."""
    return RunRecord(record.find_run(Path(where)))


def train(config: Settings | None = None, /, *, resume: str | os.PathLike[str] | None = None, quiet: bool = False,
          **settings: Any) -> RunRecord:
    """Trains as `ga3c-train` does, until a limit (`minutes`, `steps`, ...) or an interrupt, and returns the record.

    Call `train(Config(game="Boxing", minutes=10))` or `train(game="Boxing", minutes=10)`. `resume` continues a run;
    pass only new `settings` with it. The first interrupt ends training with a checkpoint, and this function returns.
    The second ends training at once. If the calling process is killed, training ends with a checkpoint. Lines are
    printed as they arrive unless `quiet`. Raises ConfigError, CommandFailed; KeyboardInterrupt after a second
    interrupt, or one before a new run began.
    """
    if config is not None and (settings or resume is not None):
        raise ConfigError("train: give a Config, or settings by name, or resume with settings by name")
    with tempfile.TemporaryDirectory() as aside:
        new = None  # the directory of a new run
        if resume is not None:
            require(settings)  # the rest depends on the run's own settings
            arguments = ["--resume", os.fspath(resume), *_flags(settings)]
            place = record.located(resume)
            directory = place[0] if place else Path(resume)  # the command rejects it
        else:
            config = config or configured(**settings)
            new = Path(config.run.run_dir) if config.run.run_dir else new_directory(config.env.game, config.run.seed)
            directory = new
        try:
            if config is not None:
                file = Path(aside) / "config.yaml"
                file.write_text(to_yaml(config.changed(run_dir=str(directory))), encoding="utf-8")
                arguments = ["--config", str(file)]
            _run(arguments, (lambda line: None) if quiet else _print)
        except BaseException:
            if new is not None:
                with contextlib.suppress(OSError):  # not ours if it is not empty
                    new.rmdir()
            raise
    if new is not None and not (new / "config.yaml").exists():
        with contextlib.suppress(OSError):
            new.rmdir()
        raise KeyboardInterrupt
    return RunRecord(directory)


def evaluate(where: str | os.PathLike[str], *, episodes: int = 30, seed: int = 0, greedy: bool = False,
             sticky_actions: float | None = None, envs: int = 16) -> dict[str, Any]:
    """Plays as `ga3c-eval` does and returns its report with all scores. where: run, checkpoint, policy file or name.

    The same arguments give the same scores. Raises ConfigError, CommandFailed.
    """
    arguments = [os.fspath(where), f"--episodes={episodes}", f"--seed={seed}",
                 f"--envs={envs}", *(["--greedy"] if greedy else []),
                 *([] if sticky_actions is None else [f"--sticky-actions={sticky_actions}"])]
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        with ChildProcess("ga3c.commands.evaluate:report_to", arguments, output=errors.fileno()) as child:
            try:
                written, _ = child.receive()
            except ChildEnded as error:
                raise _failure(error.code, errors) from None
    report: dict[str, Any] = json.loads(written)
    return report


def _print(line: str) -> None:
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding), end="", flush=True)


def _flags(settings: dict[str, Any]) -> list[str]:
    def spelled(name: str, value: Any) -> str:
        if isinstance(value, bool):
            return flag(name if value else f"no_{name}")
        text = ",".join(value) if isinstance(value, list | tuple) else "null" if value is None else value
        return f"{flag(name)}={text}"

    return [spelled(name, value) for name, value in settings.items()]


def _run(arguments: Sequence[str], show: Callable[[str], object]) -> None:
    """Runs `ga3c-train` in its own process, and passes its lines to `show`.

    It is no `ChildProcess`, because it stands in the foreground: signals of the terminal reach it, too, and if this
    process is killed, it gets SIGTERM and ends with a checkpoint. Raises ConfigError, CommandFailed; KeyboardInterrupt
    after two interrupts, or after one unless it then ends normally.
    """
    environment = {**os.environ, "PYTHONPATH": python_path(os.getcwd())}
    launch = "from ga3c.commands.launch import launch; launch('train', with_caller=True)"
    program = [sys.executable, "-P", "-c", launch, *arguments]
    with (tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
          subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                           errors="backslashreplace", env=environment) as process):
        assert process.stdout is not None
        interrupted = False
        try:
            while True:
                try:
                    for line in process.stdout:
                        with contextlib.suppress(OSError, ValueError):  # the output was closed; the command goes on
                            show(line)
                    code = process.wait()
                    break
                except KeyboardInterrupt:
                    if interrupted:
                        raise
                    interrupted = True
                    process.terminate()  # it may have got Ctrl-C, too; SIGTERM is not counted as a second
        except BaseException:
            process.kill()
            raise
        if interrupted and code < 0:
            raise KeyboardInterrupt
        if code not in (0, 130, 143):
            raise _failure(code, errors)


def _failure(code: int | None, errors: IO[str]) -> Exception:
    """Returns the exception for a command that ended with this exit code. Its message is the last line of `errors`."""
    errors.seek(0)
    lines = errors.read().strip().splitlines()
    message = lines[-1].partition(": ")[2] or lines[-1] if lines else ""
    return ConfigError(message) if code == 2 else CommandFailed(f"ended with exit code {code}: {message}")
