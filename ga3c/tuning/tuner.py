"""The use of the controller in a run: its start, its limits, its measurement each second, and what is remembered.

The tuner has no thread: the supervisor calls `Tuner.second` after each row of metrics. `memory` keeps what a search
finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from ga3c.envs.base import EnvSpec
from ga3c.settings.machine import usable_cores
from ga3c.settings.schema import Settings, TuningSettings
from ga3c.tuning.bottleneck import external_load
from ga3c.tuning.controller import Controller
from ga3c.tuning.fast import Fast
from ga3c.tuning.measurement import Measurement, Setting, name
from ga3c.tuning.memory import recall, remember, shape
from ga3c.tuning.paper import Paper
from ga3c.tuning.trial import Reason, Trial

SETTLED = 2        # undisturbed rows in a row before one counts: the first may contain a part of the change
WARM_UP = 4        # first rows, which do not count: memory and TensorFlow's kernels are new, rollouts are under way
LONG_SECOND = 1.5  # seconds; a row that covers more does not count


class Run(Protocol):
    """The part of the run's recorder (`runs.recorder.Recorder`) that the tuner needs."""

    spec: EnvSpec
    disturbances: int
    controller: Controller[Any] | None
    tuning: str
    resumed_controller: dict[str, Any] | None
    resumed_settings: dict[str, Any]

    @property
    def evaluating(self) -> Path | None:
        """Returns the checkpoint under evaluation, or None."""

    def log(self, text: str) -> None:
        """Shows the user a message."""

    def event(self, kind: str, **facts: Any) -> None:
        """Appends a line to events.jsonl."""


def start(settings: Settings, run: Run) -> tuple[Setting, bool]:
    """Returns the first counts, and whether they were remembered.

    They are `start`, else the given counts, else the remembered ones, else the defaults for this machine.
    """
    schedule = settings.schedule
    counts = (schedule.agents, schedule.predictors, schedule.trainers)
    if settings.tuning.start is not None:
        return counts, False
    kinds = ("agents", "predictors", "trainers")
    unchanged = all(getattr(settings.tuning, kind) == getattr(TuningSettings(), kind) for kind in kinds)
    remembered = recall(settings, run.spec.name, run.log) if settings.tuning.remember and unchanged else None
    return remembered or counts, remembered is not None


class Tuner:
    """The link between controller and run: it passes on a measurement each second, and records the decisions.

    `on_cores`: whether the model has no device of its own.
    """

    def __init__(self, settings: Settings, run: Run, on_cores: bool) -> None:
        self._settings = settings
        self._run = run
        self._on_cores = on_cores
        first, remembered = start(settings, run)
        limits = settings.schedule.most
        ceiling = settings.tuning.max_lag
        self.controller: Controller[Any]
        if settings.tuning.controller == "paper":
            self.controller = Paper(first, limits, ceiling, settings.run.seed, settings.tuning.window)
        else:
            self.controller = Fast(first, limits, ceiling, settings.run.seed, fine=remembered)
        self._resume(first)
        run.controller = self.controller
        self._cores = usable_cores()
        self._undisturbed = 0  # undisturbed rows in a row
        self._warm_up_left = WARM_UP  # rows of the warm-up that are left
        self._before = (0.0, 0, run.disturbances)  # time, agent steps, disturbances at the last row

    def _resume(self, first: Setting) -> None:
        """Goes on from the controller of a checkpoint, if there is one, and measures the accepted setting again.

        If settings that shape the work have changed, the controller forgets what it found. If other counts are given,
        it begins again, at `first`.
        """
        run, before, tuning = self._run, self._run.resumed_settings, self._settings.tuning
        counts = {key: getattr(tuning, key) for key in ("start", "agents", "predictors", "trainers")}
        if any(before.get(key, count) != count for key, count in counts.items()):
            run.log(f"The controller starts again at {name(first)}, the counts that were given.")
        elif run.resumed_controller:
            try:
                self.controller.restore(run.resumed_controller)
                self.controller.remeasure()
                if changed := [key for key, now in shape(self._settings).items() if before.get(key, now) != now]:
                    run.log(f"The controller does not rely on what it found before: {', '.join(changed)} changed.")
                    self.controller.forget()
            except ValueError as error:
                run.log(f"The controller begins again: its state in the checkpoint does not fit, {error}.")

    @property
    def setting(self) -> Setting:
        """Returns the setting that is wanted now."""
        return self.controller.setting

    def second(self, row: dict[str, Any], settled: bool, agents: int, agent_start_seconds: float | None = None) -> None:
        """Takes the row of a second that has passed, and lets the controller decide.

        Args:
            row: a row of metrics.jsonl.
            settled: whether as many workers as wanted are at work, and no others.
            agents: the largest number there can be.
            agent_start_seconds: median seconds from starting an agent to its first step; None if not measured yet.
        """
        self._record(self.controller.restrict(max(1, agents)))
        evaluating = self._run.evaluating is not None
        if evaluating:
            self._record(self.controller.interrupt(Reason.EVALUATION))
        (time, steps, disturbances), self._before = self._before, (
            row["time"], row["agent_steps"], self._run.disturbances)
        seconds = row["time"] - time
        undisturbed = (settled and not evaluating and disturbances == self._run.disturbances
                       and 0 < seconds < LONG_SECOND)
        self._undisturbed = self._undisturbed + 1 if undisturbed and not self._warm_up_left else 0
        self._warm_up_left = max(0, self._warm_up_left - 1)
        searching, setting = self.controller.searching, self.controller.setting
        trial = self.controller.observe(self._measurement(
            row, (row["agent_steps"] - steps) / max(seconds, 1e-3), agent_start_seconds or 0.0))
        if self.controller.setting != setting:
            self._undisturbed = 0
        self._record(trial)
        if searching != self.controller.searching:
            self._searched()

    def _measurement(self, row: dict[str, Any], rate: float, agent_start_seconds: float) -> Measurement:
        lag = row["lag_mean"]
        return Measurement(
            time=row["time"], rate=rate, lag=lag or 0.0, prediction_queue=row["prediction_queue"],
            training_queue=row["training_queue"], void=self._undisturbed < SETTLED or lag is None,
            external_load=external_load(row) / self._cores,
            idle=max(0.0, 1 - row["cpu_machine"] / self._cores) if self._on_cores else 1.0,
            agent_start_seconds=agent_start_seconds)

    def _record(self, trial: Trial | None) -> None:
        if trial is None:
            return
        self._run.tuning = trial.brief()
        before, now = trial.baseline, trial.window
        self._run.event(
            "trial", **{"from": name(trial.before), "to": name(trial.after)},
            rate_from=round(before.mean.rate, 1), deviation_from=round(before.deviation(), 1),
            rate=round(now.mean.rate, 1), deviation=round(now.deviation(), 1), seconds=len(now),
            lag=round(now.mean.lag, 2), prediction_queue=round(now.mean.prediction_queue, 2),
            training_queue=round(now.mean.training_queue, 2), decision=trial.decision.word,
            reason=trial.explanation())

    def _searched(self) -> None:
        accepted, rate = self.controller.accepted, self.controller.baseline.mean.rate
        self._run.event("search", over=not self.controller.searching, setting=name(accepted), rate=round(rate, 1))
        if not self.controller.searching:
            self._run.tuning = f"{name(accepted)} found"
            if self._settings.tuning.remember and not self.controller.under_external_load:
                remember(self._settings, self._run.spec.name, accepted, rate, self._run.log)
