"""Evaluates checkpoints during a run, and the last one after training; records the best one so far.

An evaluation begins with a new checkpoint. Once the checkpoint is on disk, a separate process plays with it
(`evaluation/background.py`). The supervisor calls `Evaluations.tick` whenever it is awake, before `Recorder.tick`.
"""

from __future__ import annotations

import math
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from ga3c.evaluation.background import Evaluator
from ga3c.learner import checkpoint
from ga3c.learner.learner import Model
from ga3c.runs.recorder import Recorder
from ga3c.service.signals import Signals


class Evaluations:
    """The evaluations of one run, one at a time. Each begins `evaluation_minutes` after the last one ended.

    The first one, also of a resumed run, begins at a multiple of `evaluation_minutes`, so that a run that is often
    interrupted is evaluated, too. Used by the main thread only. Without the setting nothing is evaluated.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._settings = recorder.settings
        self.evaluator = Evaluator(recorder.settings.agents.agent_nice // 2)
        recorder.evaluator = self.evaluator
        self._evaluated: Path | None = None  # the checkpoint of the last evaluation
        self._period = 60.0 * (self._settings.run.evaluation_minutes or math.inf)
        self._next = self._period * (recorder.time // self._period + 1.0)  # seconds of training
        self._saving = False                 # the checkpoint to evaluate is being written

    @property
    def sentinels(self) -> list[Any]:
        """For `multiprocessing.connection.wait`: ready once an evaluation may have ended; `tick` is then due."""
        return self.evaluator.sentinels

    def tick(self, model: Model) -> None:
        """Records an evaluation that has ended. Requests a checkpoint if the next one is due. Cheap otherwise."""
        self._record()
        if not self._saving and self.evaluator.checkpoint is None and self._recorder.time >= self._next:
            self._saving = True
            self._recorder.checkpoints.request(model, self._begin_when_saved)

    def _begin_when_saved(self, path: Path | None) -> None:
        self._saving = False
        if path is None:
            self._next = self._recorder.checkpoints.due_at
        elif not self._recorder.over:
            self._begin(path)

    def _begin(self, path: Path) -> None:
        self._evaluated = path
        self._await_next()
        run = self._settings.run
        # Other episodes than those of `ga3c-eval`, which must not test the checkpoint on the episodes that selected it.
        seed = (run.seed + 1 + int(path.name)) % 2**31
        try:
            self.evaluator.start(path, run.evaluation_episodes, seed, video=run.tensorboard)
        except OSError as error:
            self._failed(path, f"its process cannot be started: {error}")

    def _await_next(self) -> None:
        self._next = self._recorder.time + self._period

    def _record(self) -> None:
        outcome = self.evaluator.collect()
        if outcome is None:
            return
        self._await_next()  # from its end, as the controller needs time between evaluations
        path, report, cause, video = outcome
        if report is None:
            self._failed(path, cause)
            return
        recorder = self._recorder
        protocol = {name: value for name, value in report["protocol"].items() if name != "seed"}
        candidate = checkpoint.Best(path.name, report["mean"], protocol)
        best = self._is_best(candidate)
        if best:
            try:
                checkpoint.set_best(path.parent, candidate)
                recorder.checkpoints.best = candidate
            except OSError as error:
                best = False  # the best one is still the one in best.json
                recorder.log(f"best.json: {error.strerror or error}{recorder.goes_on('; ')}.")
        recorder.event("evaluation", **{**report, "checkpoint": str(path.relative_to(recorder.directory)),
                                        "best": best})
        recorder.show_evaluation(report, video)
        low, high = report["mean_interval"]
        cut = f", {len(report['cut'])} of them cut short" if report["cut"] else ""
        recorder.log(f"Evaluation at {report['agent_steps']:,} agent steps: mean {report['mean']:.2f} ({low:.2f} to "
                     f"{high:.2f}) of {len(report['scores'])} episodes{cut}{', the best so far' if best else ''}.")

    def _is_best(self, candidate: checkpoint.Best) -> bool:
        """Returns whether it beats the best so far, or that one comes from another protocol, before a resume."""
        so_far = self._recorder.checkpoints.best
        return math.isfinite(candidate.mean) and (
            so_far is None or candidate.mean > so_far.mean or so_far.protocol != candidate.protocol)

    def _failed(self, path: Path, cause: str) -> None:
        self._recorder.event("evaluation_failed", checkpoint=str(path.relative_to(self._recorder.directory)),
                             cause=cause)
        self._recorder.log(f"The evaluation of {path.name} failed{self._recorder.goes_on(', ')}: {cause}")

    def evaluate_last(self, model: Model, interruption: Signals) -> None:
        """Ends training. Evaluates the last checkpoint, if checkpoints are evaluated, and waits for the result.

        A signal ends the wait. Raises OSError or DeviceFailed if there is no checkpoint, Interrupted if a second
        Ctrl-C came while it was written.
        """
        recorder = self._recorder
        recorder.end_training()
        self._record()
        if self._settings.run.evaluation_minutes is None or interruption.signum:
            return
        with interruption.hurrying():
            last = recorder.checkpoints.save_last(model)
        if last is None:
            return
        if last != self._evaluated:
            self.stop()
            self._begin(last)
        if self.evaluator.checkpoint is not None:
            recorder.event("last_evaluation", checkpoint=str(last.relative_to(recorder.directory)))
            recorder.display.leave_panel()  # it shows a row a second, and no more rows follow
            recorder.log("Training is over. The last checkpoint is evaluated; Ctrl-C skips it.")
        while self.evaluator.checkpoint is not None and not interruption.signum:
            wait([interruption.fileno(), *self.sentinels], self.evaluator.seconds_left)
            interruption.clear()
            self._record()

    def stop(self) -> None:
        """Ends training. Records an evaluation that has just ended, and stops one that is under way."""
        self._recorder.end_training()
        self._record()
        if self.evaluator.checkpoint is not None:
            path = self.evaluator.checkpoint.relative_to(self._recorder.directory)
            self._recorder.event("evaluation_stopped", checkpoint=str(path))
            self.evaluator.stop()

    def close(self) -> None:
        """Stops an evaluation that is under way, and records nothing."""
        self.evaluator.stop()
