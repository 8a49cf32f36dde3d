"""A trainer: a thread that turns rollouts into updates. The last hop of an observation: `model.Model.train`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from ga3c.channel import Channel
from ga3c.config import Settings
from ga3c.model import Model, Update
from ga3c.rollout import RolloutStore, TrainingBatch


class Spent(NamedTuple):
    """Where a trainer's time went between two reports, in seconds: waiting for rollouts, copying them, updating."""

    waiting: float
    gathering: float
    updating: float


def rollouts_per_batch(settings: Settings) -> int:
    """The fewest full rollouts that hold `training_batch_min` agent steps."""
    return -(-settings.training_batch_min // (settings.t_max * settings.envs_per_agent))


def run_trainer(channel: Channel, store: RolloutStore, model: Model, n_rollouts: int,
                report: Callable[[Update, TrainingBatch, Spent], None]) -> None:
    """Collects `n_rollouts` rollouts, one update, reports it; until dismissed, then trains on what it has and ends."""
    batch = store.empty_batch(n_rollouts)
    ended = False
    while not ended:
        began = time.monotonic()
        filled, ended, gathering = channel.collect(batch)
        collected = time.monotonic()
        if filled:
            update = model.train(batch[:filled])
            spent = Spent(collected - began - gathering, gathering, time.monotonic() - collected)
            if update is not None:
                report(update, batch[:filled], spent)
