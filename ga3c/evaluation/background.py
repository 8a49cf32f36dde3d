"""Evaluations during a run: `ga3c-eval` on a checkpoint, in a background process.

Only one evaluation runs at a time, in one thread, without GPU. The controller learns nothing meanwhile, so an
evaluation should end soon. Its niceness is therefore between the main process's and the agents'.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

from ga3c.envs.child_process import ChildEnded, ChildProcess, ChildSilent
from ga3c.evaluation.episodes import Limits, Protocol

TIMEOUT = 3600.0  # seconds for one evaluation; its episodes are cut short long before
PLAY_MINUTES = 40.0  # an evaluation's length if all of its episodes are cut short

_FUNCTION = "ga3c.commands.evaluate:report_to"  # by name, so that this process imports nothing of the command


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
    child: ChildProcess
    output: IO[bytes]
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
        return self._now.child.pid if self._now else None

    @property
    def seconds_left(self) -> float:
        """Seconds until the current evaluation times out; 0 if there is none."""
        return max(0.0, self._now.began + TIMEOUT - time.monotonic()) if self._now else 0.0

    @property
    def sentinels(self) -> list[Any]:
        """Arguments of `multiprocessing.connection.wait`. One becomes ready when there may be an outcome to collect."""
        return self._now.child.sentinels if self._now else []

    def start(self, checkpoint: Path, episodes: int, seed: int, video: bool = False) -> None:
        """Starts an evaluation, with a GIF of it if `video`. No other evaluation may be running.

        Raises OSError if no process can be started.
        """
        assert self._now is None
        protocol = Protocol(episodes, seed)
        # A row starts its next episode when one ends. So all end within ceil(episodes / rows) times the longest one.
        minutes = min(Limits().minutes, PLAY_MINUTES / math.ceil(episodes / protocol.n_rows))
        arguments = [str(checkpoint), "--episodes", str(episodes), "--seed", str(seed), "--max-minutes", f"{minutes:g}"]
        output = tempfile.TemporaryFile()  # without a name, so it is gone when both processes have ended
        try:
            child = ChildProcess(_FUNCTION, arguments, self._nice, video, output=output.fileno(),
                                 environment={"CUDA_VISIBLE_DEVICES": "-1"}, directory=self._here)
        except BaseException:
            output.close()
            raise
        self._now = _Evaluation(checkpoint, child, output, time.monotonic())

    def collect(self) -> Outcome | None:
        """Returns the outcome, once, after the report has come, or the process has ended or timed out; else None."""
        now = self._now
        if now is None:
            return None
        try:
            report, video = now.child.receive(0.0)
            outcome = Outcome(now.checkpoint, json.loads(report), "", video)
        except ChildSilent:
            if time.monotonic() - now.began < TIMEOUT:
                return None
            outcome = Outcome(now.checkpoint, None, f"it did not end within {TIMEOUT / 60:.0f} minutes")
        except ChildEnded as error:
            outcome = Outcome(now.checkpoint, None, _cause(error, now.output))
        self.stop()
        return outcome

    def stop(self) -> None:
        """Ends the current evaluation, if there is one. It then has no outcome."""
        if self._now is not None:
            self._now.child.close()
            self._now.output.close()
            self._now = None


def _cause(error: ChildEnded, output: IO[bytes]) -> str:
    """Returns how an evaluation failed, with the last line that it wrote."""
    output.seek(0)
    lines = output.read().decode(errors="replace").splitlines()
    if error.code is None:
        return f"it {error}"
    if error.code == 0:
        lines.append("it wrote no report")
    ending = f"killed by signal {-error.code}" if error.code < 0 else f"exit code {error.code}"
    return ": ".join([ending, *lines[-1:]])
