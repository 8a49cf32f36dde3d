"""The counter: the only worker thread in the main process with A3C on processors. It counts the workers' updates."""

from __future__ import annotations

import time
from collections.abc import Callable

from ga3c.learner.learner import UpdateStats
from ga3c.learner.shared_learner import SharedLearner
from ga3c.runs.statistics import PredictionCount, TrainerTime
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Batch, Slots


def run_counter(channel: Channel, store: Slots, learner: SharedLearner, count: PredictionCount,
                report: Callable[[UpdateStats, Batch, TrainerTime], None], dropped: Callable[[Batch], None]) -> None:
    """Counts the workers' updates and releases their slots, until it is dismissed like a trainer.

    `report` is called with each update, `dropped` with each rollout without an update. Raises Diverged.
    """
    ended, reported = False, time.thread_time()
    while not ended:
        with channel.collect(1) as (slots, ended):
            for slot in slots:
                batch = store.view(slot)
                try:
                    update, pushed = learner.read_update(slot, batch)
                except BaseException:
                    dropped(batch)
                    raise
                count.predictions += pushed.predictions
                count.calls += pushed.calls
                if update is None:
                    dropped(batch)
                else:
                    now = time.thread_time()
                    report(update, batch, TrainerTime(0.0, pushed.updating, now - reported))
                    reported = now
