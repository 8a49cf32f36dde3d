"""An alarm for predictors or trainers that have work but make no progress."""

from __future__ import annotations

from ga3c.settings.schedule import Schedule

STALL_SECONDS = 30.0  # alarm if work waits this long and none is done


class StallAlarm:
    """The alarm of one run. `check` is called once a second."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._done = (0, 0)
        self._moved = [0.0, 0.0]
        self._raised = False

    def check(self, now: float, not_before: float, predictions: int, version: int, agents: int, waiting: int,
              training_queue: int, blocked: int) -> str:
        """Returns a description of a stall, once for each stall; "" if there is none.

        Args:
            now, not_before: monotonic seconds; a stall counts from `not_before` at the earliest.
            predictions, version: totals so far; they show progress.
            agents: those at work. Where they wait for one another, there is work only if all wait.
            waiting, blocked: agents that wait for a prediction; agents that wait for a slot.
            training_queue: rollouts that wait. A few agents cannot fill an update, because their slots run out first;
                then `blocked` shows the stall.
        """
        idle = (waiting < (max(1, agents) if self._schedule.agents_wait else 1),
                training_queue < self._schedule.rollouts and not blocked)
        moved = (predictions != self._done[0], version != self._done[1])
        self._done = (predictions, version)
        for index in range(2):
            if idle[index] or moved[index] or not self._moved[index]:
                self._moved[index] = now
        stands = [now - max(at, not_before) >= STALL_SECONDS for at in self._moved]
        before, self._raised = self._raised, any(stands)
        if before or not self._raised:
            return ""
        return (f"{waiting} agents wait for a prediction" if stands[0] else
                f"{training_queue} rollouts and {blocked} agents wait for an update")
