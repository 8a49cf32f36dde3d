"""The counter: the only worker thread in the main process with A3C on processors. It counts the workers' updates."""

from __future__ import annotations

import time
from collections.abc import Callable

from ga3c.learner.learner import UpdateStats
from ga3c.learner.shared_learner import SharedLearner
from ga3c.runs.statistics import PredictionCount, Statistics, TrainerTime
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Batch, Slots


def run_counter(channel: Channel, store: Slots, learner: SharedLearner, count: PredictionCount,
                statistics: Statistics, report: Callable[[UpdateStats, Batch, TrainerTime], None]) -> None:
    """Counts the workers' updates and releases their slots, until it is dismissed like a trainer.

    statistics: counts the rollouts. `report` is called with each update. Raises Diverged.
    """
    over, reported = False, time.thread_time()
    while not over:
        with channel.collect(1) as collection:
            over = collection.over
            for slot in collection.slots:
                batch = store.view(slot)
                statistics.collect(batch)
                learner.shared.agent_steps = statistics.agent_steps
                try:
                    update, pushed = learner.read_update(slot, batch)
                except BaseException:
                    statistics.report_dropped(batch)
                    raise
                count.predictions += pushed.predictions
                count.calls += pushed.calls
                if update is None:
                    statistics.report_dropped(batch)
                else:
                    now = time.thread_time()
                    report(update, batch, TrainerTime(0.0, pushed.updating, now - reported))
                    reported = now
