"""Evaluations while a run goes on: `ga3c-eval` on a checkpoint, in a process that the service goes before.

One at a time, in one thread, without GPU. The controller learns nothing meanwhile, so it shall soon be over: its
niceness is between the main process's and the agents'. Its standard input is a socket to this process: each sees by it
when the other has ended, whatever ended it. The process is in a group of its own, so that Ctrl-C is only the main
process's. What it says is held in nameless files until it has ended, so it never waits for us, and nothing is left
behind.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, NamedTuple

LONGEST = 3600.0  # seconds of an evaluation; there are worlds whose episodes never end

_PROGRAM = "from ga3c.commands.evaluate import main; main()"


class Outcome(NamedTuple):
    """What came of the evaluation of `checkpoint`: `report` as of `ga3c-eval --json`, or why there is none; `video`:
    the first seconds of its first episode as GIF, b"" where there are no pictures.
    """

    checkpoint: Path
    report: dict[str, Any] | None
    cause: str
    video: bytes = b""


class _Evaluation(NamedTuple):
    checkpoint: Path
    process: subprocess.Popen[bytes]
    sentinel: socket.socket
    output: IO[bytes]
    errors: IO[bytes]
    files: ExitStack
    began: float


class Evaluator:
    """Evaluates one checkpoint at a time, at a niceness. Used by the main thread."""

    def __init__(self, nice: int) -> None:
        self._nice = nice
        self._now: _Evaluation | None = None

    @property
    def checkpoint(self) -> Path | None:
        """What is being evaluated; None while nothing is. It must stay on disk so long."""
        return self._now.checkpoint if self._now else None

    @property
    def pid(self) -> int | None:
        """Of the evaluation's process, while there is one."""
        return self._now.process.pid if self._now else None

    @property
    def seconds_left(self) -> float:
        """Of the longest that one under way may take."""
        return max(0.0, self._now.began + LONGEST - time.monotonic()) if self._now else 0.0

    @property
    def sentinels(self) -> list[socket.socket]:
        """For `multiprocessing.connection.wait`: ready once there is an outcome to `collect`."""
        return [self._now.sentinel] if self._now else []

    def start(self, checkpoint: Path, episodes: int, seed: int, film: bool = False) -> None:
        """Begins to evaluate, and to `film` it; none may be under way. Raises OSError if no process can be started."""
        assert self._now is None
        command = [sys.executable, "-P", "-c", _PROGRAM, str(checkpoint), "--episodes", str(episodes), "--seed",
                   str(seed), "--json", "--no-record", "--background", str(self._nice), *(["--film"] if film else [])]
        # It shall import what this process imports, wherever it was started from.
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1",
                       "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        with ExitStack() as files:
            output, errors = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            ours, theirs = (files.enter_context(end) for end in socket.socketpair())
            process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=output, stderr=errors, process_group=0,
                                       env=environment)
            theirs.close()
            self._now = _Evaluation(checkpoint, process, ours, output, errors, files.pop_all(), time.monotonic())

    def collect(self) -> Outcome | None:
        """The outcome, once, after the process has ended or had its time; None before, and if there was none."""
        now = self._now
        if now is None:
            return None
        if not wait([now.sentinel], 0):
            if time.monotonic() - now.began < LONGEST:
                return None
            self.stop()
            return Outcome(now.checkpoint, None, f"it was not over after {LONGEST / 60:.0f} minutes")
        now.process.kill()  # what has ended minds it not; what has only hung up must not be waited for
        code = now.process.wait()
        now.output.seek(0)
        now.errors.seek(0)
        output, errors = (file.read().decode(errors="replace").splitlines() for file in (now.output, now.errors))
        self.stop()
        if code == 0:
            for line in reversed(output):  # an environment may have written before and after
                if line.startswith('{"checkpoint"'):
                    report = json.loads(line)
                    return Outcome(now.checkpoint, report, "", base64.b64decode(report.pop("video", "")))
            errors.append("it wrote no report")
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return Outcome(now.checkpoint, None, ": ".join([how, *errors[-1:]]))

    def stop(self) -> None:
        """Ends an evaluation that is under way, at once and without an outcome."""
        if self._now is not None:
            self._now.process.kill()
            self._now.process.wait()
            self._now.files.close()
            self._now = None
