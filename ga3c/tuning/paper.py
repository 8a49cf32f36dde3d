"""The controller of the GA3C paper: one of the three numbers changes by one, minute after minute."""

from __future__ import annotations

from ga3c.tuning.controller import Controller, State
from ga3c.tuning.measurement import Measurement, Setting, Window
from ga3c.tuning.trial import Decision, Reason, Trial, Verdict


class Paper(Controller[State]):
    """A controller that changes a random one of the three numbers by one for `window` seconds (GA3C, section 4.3).

    A trial is accepted if its rate is higher than that of the accepted setting.
    """

    def __init__(self, start: Setting, limits: Setting, max_lag: float | None, seed: int, window: float = 60.0) -> None:
        super().__init__(State(seed, start), limits, max_lag)
        self._length = max(1, round(window))

    def _watch(self, m: Measurement) -> None:
        s = self._state
        s.fresh.add(m)
        if len(s.fresh) >= self._length:
            s.baseline = s.fresh
            s.fresh = Window()
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
        if s.window.mean.rate > s.baseline.mean.rate:
            return Decision.ACCEPTED, Reason.FASTER
        return Decision.REJECTED, Reason.NOT_FASTER

    def _after(self, m: Measurement, trial: Trial) -> None:
        self._try_neighbour(m)
