"""The controller of the GA3C paper: one of the three numbers changes by one, minute after minute."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from ga3c.tuning.controller import Controller, State
from ga3c.tuning.measurement import Measurement, Setting, Window
from ga3c.tuning.trial import Decision, Reason, Trial, Verdict

COOLING = 0.97  # factor of the temperature after each trial: it halves in 23 minutes of windows of 60 seconds


@dataclass
class PaperState(State):
    """The state of a `Paper` controller; see `State`."""

    temperature: Annotated[float, Field(ge=0)] = 0.0


class Paper(Controller[PaperState]):
    """A controller that changes a random one of the three numbers by one for `window` seconds (GA3C, section 4.3).

    The rate is compared with the rate at the accepted setting. Simulated annealing (Kirkpatrick et al., 1983) accepts a
    trial that loses the share x of it with probability exp(-x / temperature). Each trial cools by 3 %. At temperature 0
    this is the greedy rule of the paper.
    """

    def __init__(self, start: Setting, limits: Setting, max_lag: float | None, seed: int,
                 window: float = 60.0, temperature: float = 0.0) -> None:
        super().__init__(PaperState(seed, start, temperature=temperature), limits, max_lag)
        self._length = max(1, round(window))

    def reheat(self, temperature: float) -> None:
        """Sets the temperature, whatever it has cooled to."""
        self._state.temperature = temperature

    def _watch(self, m: Measurement) -> None:
        s = self._state
        s.fresh.add(m)
        if len(s.fresh) >= self._length:
            s.baseline, s.fresh = s.fresh, Window()
            self._try_neighbour(m)

    def _try_neighbour(self, m: Measurement) -> None:
        neighbours = []
        for which in range(3):
            for sign in (-1, 1):
                changed = list(self.accepted)
                changed[which] += sign
                if list(self._bounded(changed)) == changed:
                    neighbours.append(self._bounded(changed))
        if neighbours:
            self._begin(m, neighbours[self._random().integers(len(neighbours))])

    def _judge(self) -> Verdict | None:
        s = self._state
        if len(s.window) < self._length:
            return None
        by_lag = self._judge_lag()
        if by_lag:
            return by_lag
        loss = 1 - s.window.mean.rate / max(s.baseline.mean.rate, 1e-9)
        if loss < 0:
            return Decision.ACCEPTED, Reason.FASTER
        if s.temperature and self._random().random() < math.exp(-loss / s.temperature):
            return Decision.ACCEPTED, Reason.ANNEALING
        return Decision.REJECTED, Reason.NOT_FASTER

    def _after(self, m: Measurement, trial: Trial) -> None:
        if trial.decision is not Decision.ABORTED:
            self._state.temperature *= COOLING
        self._try_neighbour(m)
