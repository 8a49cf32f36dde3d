"""Evaluations during a run: `ga3c-eval` on a checkpoint, in a background process.

Only one evaluation runs at a time, in one thread, without GPU. The controller learns nothing meanwhile, so an
evaluation should end soon. Its niceness is therefore between the main process's and the agents'.

The evaluation's standard input is a socket to this process. The socket shows when this process has ended, whatever the
cause. The evaluation has its own process group, so Ctrl-C reaches only the main process. Its report and its errors go
to two unnamed temporary files. So it never waits for this process to read them, and no file is left behind. The report
has its own file, because other code may print.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
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

from ga3c.evaluation.episodes import Limits, Protocol
from ga3c.settings.imports import python_path

TIMEOUT = 3600.0  # seconds for one evaluation; its episodes are cut short long before
PLAY_MINUTES = 40.0  # an evaluation's length if all of its episodes are cut short

_CLEANUP_SECONDS = 1.0  # for an evaluation that is stopped to remove its temporary files
# Runs the command in its own process, so that this process imports nothing of it.
_PROGRAM = "from ga3c.commands.launch import evaluate; evaluate()"


class Outcome(NamedTuple):
    """The outcome of the evaluation of `checkpoint`.

    `report` is what `ga3c-eval --json` prints. After a failure it is None, and `cause` gives the reason in one line.
    `video` is the beginning of the first episode as GIF, b"" if there is none.
    """

    checkpoint: Path
    report: dict[str, Any] | None
    cause: str
    video: bytes = b""


class _Evaluation(NamedTuple):
    checkpoint: Path
    process: subprocess.Popen[bytes]
    sentinels: list[socket.socket | int]
    report: IO[bytes]
    errors: IO[bytes]
    files: ExitStack
    began: float


class Evaluator:
    """The background evaluations of a run, one at a time, with niceness `nice`. Used by the main thread."""

    def __init__(self, nice: int) -> None:
        self._nice = nice
        self._here = os.getcwd()  # a game in this process may change it
        self._now: _Evaluation | None = None

    @property
    def checkpoint(self) -> Path | None:
        """The checkpoint under evaluation, or None. It must stay on disk until the evaluation ends."""
        return self._now.checkpoint if self._now else None

    @property
    def pid(self) -> int | None:
        """The process id of the evaluation, or None."""
        return self._now.process.pid if self._now else None

    @property
    def seconds_left(self) -> float:
        """Seconds until the current evaluation times out; 0 if there is none."""
        return max(0.0, self._now.began + TIMEOUT - time.monotonic()) if self._now else 0.0

    @property
    def sentinels(self) -> list[socket.socket | int]:
        """Arguments of `multiprocessing.connection.wait`. One becomes ready when there is an outcome to collect."""
        return self._now.sentinels if self._now else []

    def start(self, checkpoint: Path, episodes: int, seed: int, video: bool = False) -> None:
        """Starts an evaluation, with a GIF of it if `video`. No other evaluation may be running.

        Raises OSError if no process can be started.
        """
        assert self._now is None
        protocol, limits = Protocol(episodes, seed), Limits()
        # A row starts its next episode when one ends. So all end within ceil(episodes / rows) times the longest one.
        minutes = min(limits.minutes, PLAY_MINUTES / math.ceil(episodes / protocol.n_rows))
        arguments = [str(checkpoint), "--episodes", str(episodes), "--seed", str(seed), "--max-minutes", f"{minutes:g}",
                     "--no-record", "--background", str(self._nice), *(["--video"] if video else [])]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": python_path(self._here)}
        with ExitStack() as files:
            report, errors = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            ours, theirs = (files.enter_context(end) for end in socket.socketpair())
            command = [sys.executable, "-P", "-c", _PROGRAM, *arguments, "--report", str(report.fileno())]
            process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=errors,
                                       pass_fds=[report.fileno()], process_group=0, env=environment,
                                       cwd=self._here)
            theirs.close()
            sentinels: list[socket.socket | int] = [ours]
            # Processes that the game left behind may keep the socket's other end open after the evaluation has ended.
            with contextlib.suppress(AttributeError, OSError):  # some systems have no pidfd
                ended = os.pidfd_open(process.pid)
                files.callback(os.close, ended)
                sentinels.append(ended)
            self._now = _Evaluation(checkpoint, process, sentinels, report, errors, files.pop_all(), time.monotonic())

    def collect(self) -> Outcome | None:
        """Returns the outcome, once, after the process has ended or timed out; else None."""
        now = self._now
        if now is None:
            return None
        if not wait(now.sentinels, 0):
            if time.monotonic() - now.began < TIMEOUT:
                return None
            self.stop()
            return Outcome(now.checkpoint, None, f"it did not end within {TIMEOUT / 60:.0f} minutes")
        now.process.kill()  # it may have closed its socket without ending
        code = now.process.wait()
        now.report.seek(0)
        now.errors.seek(0)
        written, errors = now.report.read(), now.errors.read().decode(errors="replace").splitlines()
        self.stop()
        if code == 0 and written:
            report = json.loads(written)
            return Outcome(now.checkpoint, report, "", base64.b64decode(report.pop("video", "")))
        if code == 0:
            errors.append("it wrote no report")
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        return Outcome(now.checkpoint, None, ": ".join([how, *errors[-1:]]))

    def stop(self) -> None:
        """Ends the current evaluation, if there is one. It then has no outcome."""
        if self._now is not None:
            self._now.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._now.process.wait(_CLEANUP_SECONDS)
            self._now.process.kill()
            self._now.process.wait()
            self._now.files.close()
            self._now = None
