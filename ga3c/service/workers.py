"""What is done about what went wrong: restart, park or stop. Pure decisions; the service carries them out.

A process whose agents have handed in a rollout and that dies is started again at once, whatever ended it. One that dies
before that waits longer each time, unless it was shot (SIGKILL): that says little about its environments, or took long
enough. After `PARK_AFTER` times in a row it is parked: another takes its place, or the run goes on without its agents.
When all are parked there is nothing to go on with. A predictor or trainer thread is started again unless it was
started after the last failure and that is less than `THREAD_PEACE` seconds ago: one fault may hit several. Divergence
is mended once, from a checkpoint.
"""

from __future__ import annotations

PARK_AFTER = 5
THREAD_PEACE = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class Recovery:
    """Remembers what went wrong. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.parked: set[int] = set()
        self._fruitless: dict[int, int] = {}  # process -> its deaths in a row without a rollout before
        self._thread_failed_at: float | None = None
        self._mended = False

    def process_died(self, process: int, delivered: bool, shot: bool, now: float) -> float | None:
        """When its agents are to be started again; None: never, it is parked.

        `delivered`: one of them has handed in a rollout since it began; `shot`: killed, by others or because it hung.
        """
        if delivered:
            self._fruitless.pop(process, None)
            return now
        times = self._fruitless[process] = self._fruitless.get(process, 0) + 1
        if times >= PARK_AFTER:
            self.parked.add(process)
            return None
        pause = _FIRST_PAUSE if shot else min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**(times - 1))
        return now + pause

    def thread_failed(self, now: float, began: float) -> bool:
        """Whether the thread, at work since `began`, is started again; False: the run ends."""
        before, self._thread_failed_at = self._thread_failed_at, now
        return before is None or began < before or now - before > THREAD_PEACE

    def diverged(self) -> bool:
        """Whether to go on from a checkpoint; False: the run ends."""
        again, self._mended = not self._mended, True
        return again
