"""The base of the controllers: the accepted setting, its measurements, and the trial under way.

A controller only decides; it has no clock and no thread. Each second the tuner passes a `Measurement` to `observe`, and
records the `Trial` that `observe` returns when one is over. The supervisor then brings the workers to `setting`.

The objective is the number of *agent steps collected per second*: how fast `runs.statistics.Statistics.agent_steps`
grows. An agent step counts once, when a trainer collects its rollout, however many passes its update has. Trainers
collect no faster than they update. So neither smaller updates nor more passes raise it.

With a ceiling on the policy lag, any setting below the ceiling beats any setting above it. The lag is in updates. One
update makes one version of the weights, by all its passes and minibatches: `passes` x `minibatches` steps of the
optimizer. The lag is counted until the update begins, so the changes by its own passes are not in it.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from ga3c.tuning.measurement import CHECKED, Measurement, Setting, Window, name
from ga3c.tuning.trial import Decision, Reason, Trial, Verdict

TIMEOUT = 60.0         # seconds without one that counts, after which a trial ends
TIMEOUT_STARTS = 4.0   # ... plus so many times an agent's start time, as many start at once
LOWER = 0.95           # a policy lag over its ceiling is lower if it falls below this share: noise explains less
LOADED = 0.1           # share of the cores; a larger external load changes which setting is best


@dataclass
class State:
    """All that a controller knows, as plain data. It is checked when it comes from a checkpoint."""

    __pydantic_config__: ClassVar[ConfigDict] = CHECKED

    seed: Annotated[int, Field(ge=0)]
    accepted: Setting
    draws: Annotated[int, Field(ge=0)] = 0              # random decisions so far
    trial: Setting | None = None
    baseline: Window = field(default_factory=Window)    # of the accepted setting
    fresh: Window = field(default_factory=Window)       # of the accepted setting, measured again
    window: Window = field(default_factory=Window)      # of the trial
    counted_at: float = 0.0                             # time of the trial's start, or of its last second that counted


S = TypeVar("S", bound=State)


class Controller(ABC, Generic[S]):
    """The accepted setting and the trial under way. Subclasses decide what is tried, and what is accepted.

    Args:
        state: the state at the start. Its setting is brought into the limits.
        limits: the largest N_A, N_P and N_T. The smallest are 1.
        max_lag: ceiling of the mean policy lag in updates, whatever their passes; or None.
    """

    def __init__(self, state: S, limits: Setting, max_lag: float | None) -> None:
        self._state = state
        self._limits = limits
        self._max_lag = max_lag
        state.accepted = self._bounded(state.accepted)

    @property
    def accepted(self) -> Setting:
        """Returns the best setting so far."""
        return self._state.accepted

    @property
    def baseline(self) -> Window:
        """Returns the measurements of the accepted setting."""
        return self._state.baseline

    @property
    def setting(self) -> Setting:
        """Returns the setting wanted now: the trial's, or the accepted one."""
        return self._state.trial or self._state.accepted

    @property
    def searching(self) -> bool:
        """Returns whether a search for better settings is under way."""
        return True

    @property
    def under_external_load(self) -> bool:
        """Returns whether the accepted setting may be the best only under external load."""
        return self._state.baseline.mean.external_load > LOADED

    def observe(self, m: Measurement) -> Trial | None:
        """Takes one second into account. Returns the trial that it ended.

        A void second changes nothing. But a trial ends if no second counts for `TIMEOUT` plus `TIMEOUT_STARTS`
        agent starts.
        """
        s = self._state
        if m.void:
            if s.trial is None or m.time - s.counted_at <= TIMEOUT + TIMEOUT_STARTS * m.agent_start_seconds:
                return None
            return self._end(m, self._without_measurement(), Reason.NOT_MEASURED)
        if s.trial is None:
            self._watch(m)
            return None
        s.window.add(m)
        s.counted_at = m.time
        verdict = self._judge()
        return self._end(m, *verdict) if verdict else None

    def restrict(self, agents: int) -> Trial | None:
        """Limits the number of agents from now on. Returns the trial that this ends."""
        s = self._state
        self._limits = (agents, *self._limits[1:])
        accepted = self._bounded(s.accepted)
        if accepted == s.accepted and self._bounded(self.setting) == self.setting:
            return None
        ended = self.interrupt(Reason.FEWER_AGENTS)
        s.accepted = accepted
        self.remeasure()
        return ended

    def interrupt(self, reason: Reason) -> Trial | None:
        """Aborts the trial under way and goes back to the accepted setting. Returns that trial."""
        s = self._state
        if s.trial is None:
            return None
        ended = Trial(s.accepted, s.trial, s.baseline, s.window, Decision.ABORTED, reason)
        s.trial = None
        s.window = Window()
        s.fresh = Window()
        return ended

    def remeasure(self) -> None:
        """Forgets the trial and all measurements, as they are old. The accepted setting is measured again."""
        s = self._state
        s.trial = None
        s.window = Window()
        s.fresh = Window()
        s.baseline = Window()

    def forget(self) -> None:
        """Forgets what was found, as the work has changed. Keeps the accepted setting. By default does nothing."""

    def state(self) -> dict[str, Any]:
        """Returns the state as JSON values. After `restore` the same measurements lead to the same decisions."""
        plain: dict[str, Any] = TypeAdapter(type(self._state)).dump_python(self._state, mode="json")
        return plain

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`. Raises ValueError, and changes nothing, if it does not fit."""
        if not isinstance(state, dict) or state.keys() != self.state().keys():
            raise ValueError("it was saved by another controller or version")
        try:
            restored: S = TypeAdapter(type(self._state)).validate_json(json.dumps(state))
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        for setting in (restored.accepted, restored.trial or restored.accepted):
            if self._bounded(setting) != setting:
                raise ValueError(f"{name(setting)} is out of bounds")
        self._state = restored

    @abstractmethod
    def _watch(self, m: Measurement) -> None:
        """Takes a second of the accepted setting into account. May begin a trial."""

    @abstractmethod
    def _judge(self) -> Verdict | None:
        """Returns the verdict on the trial under way, or None if it needs more seconds."""

    @abstractmethod
    def _after(self, m: Measurement, trial: Trial) -> None:
        """Takes note of a trial that is over. May begin the next."""

    def _without_measurement(self) -> Decision:
        """Returns the decision on a trial that could not be measured."""
        return Decision.ABORTED

    def _begin(self, m: Measurement, setting: Setting) -> None:
        s = self._state
        s.trial = setting
        s.window = Window()
        s.counted_at = m.time

    def _end(self, m: Measurement, decision: Decision, reason: Reason) -> Trial:
        s = self._state
        assert s.trial is not None
        trial = Trial(s.accepted, s.trial, s.baseline, s.window, decision, reason)
        s.trial = None
        s.window = Window()
        if decision is Decision.ACCEPTED:
            s.accepted = trial.after
            s.baseline = trial.window
        self._after(m, trial)
        return trial

    def _random(self) -> np.random.Generator:
        """Returns a generator for one random decision, seeded by the seed and the number of decisions before."""
        self._state.draws += 1
        return np.random.default_rng((self._state.seed, self._state.draws))

    def _bounded(self, setting: Sequence[int]) -> Setting:
        n_a, n_p, n_t = (min(max(1, count), most) for count, most in zip(setting, self._limits, strict=True))
        return n_a, n_p, n_t

    def _over_ceiling(self, window: Window) -> bool:
        return self._max_lag is not None and window.mean.lag > self._max_lag

    def _judge_lag(self) -> Verdict | None:
        """Returns the verdict by the ceiling alone, or None if the rate decides."""
        s = self._state
        assert s.trial is not None
        over = self._over_ceiling(s.window)
        if not self._over_ceiling(s.baseline):
            return (Decision.REJECTED, Reason.LAG_OVER_CEILING) if over else None
        if s.window.mean.lag < LOWER * s.baseline.mean.lag or (s.trial[0] < s.accepted[0] and not over):
            return Decision.ACCEPTED, Reason.LAG_LOWER
        return Decision.REJECTED, Reason.LAG_NOT_LOWER
