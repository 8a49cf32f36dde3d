"""A trainer: a thread that turns batches into updates. Last hop of a rollout: `Learner.update`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from ga3c.learner.learner import Learner, TooLarge, UpdateStats
from ga3c.runs.statistics import Statistics, TrainerTime
from ga3c.service.batches import BatchSource
from ga3c.transport.slots import Batch


class UpdateSize:
    """The most rollouts in an update: a whole batch, or fewer if the device has no memory for one.

    All trainers share it, and ask before an update begins. `halved` is called with (rollouts in an update from now on,
    rollouts in a batch).
    """

    def __init__(self, halved: Callable[[int, int], None] = lambda most, n_rollouts: None) -> None:
        self._most = 0
        self._halved = halved

    def of(self, batch: Batch) -> int:
        """Returns the most rollouts of the batch that an update may have."""
        return self._most or len(batch)

    def halve(self, part: Batch, batch: Batch) -> None:
        """Notes that the part of the batch was too large."""
        self._most = -(-len(part) // 2)
        self._halved(self._most, len(batch))


def run_trainer(source: BatchSource, learner: Learner, statistics: Statistics,
                report: Callable[[UpdateStats, Batch, TrainerTime], None], size: UpdateSize) -> None:
    """Makes one update from each batch of the source, publishes and reports it, until the source ends.

    If the device has no memory for an update, that part is halved, and all later updates are at most as large. Raises
    TooLarge if even one rollout is too large. Rollouts whose update was not made or failed count as dropped in
    `statistics`.
    """
    reported, inside = time.thread_time(), 0.0
    with contextlib.closing(source.batches()) as batches:
        for batch, filled, gathering, since in batches:
            first = 0
            while first < filled:
                part = batch[first:first + size.of(batch)]
                before, entered = time.monotonic(), time.thread_time()
                try:
                    update = learner.update(part, statistics.agent_steps - part.agent_steps, since)
                except Exception as error:
                    if not isinstance(error, TooLarge) or len(part) == 1:
                        statistics.report_dropped(batch[first:filled])
                        raise
                    size.halve(part, batch)
                    continue
                finally:
                    inside += time.thread_time() - entered
                if update is None:
                    statistics.report_dropped(part)
                else:
                    learner.publish()
                    source.learned(part, update)
                    updating, now = time.monotonic() - before - update.waited, time.thread_time()
                    report(update, part, TrainerTime(gathering, updating, now - reported - inside))
                    reported, inside = now, 0.0
                first, gathering = first + len(part), 0.0
