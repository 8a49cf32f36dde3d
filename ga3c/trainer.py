"""A trainer: a thread that turns rollouts into updates. The last hop of an observation: `model.Model.train`."""

from __future__ import annotations

from collections.abc import Callable

from ga3c.channel import Channel
from ga3c.config import Settings
from ga3c.model import Model, Update
from ga3c.rollout import RolloutStore, TrainingBatch


def rollouts_per_batch(settings: Settings) -> int:
    """The fewest full rollouts that hold `training_batch_min` agent steps."""
    return -(-settings.training_batch_min // (settings.t_max * settings.envs_per_agent))


def run_trainer(channel: Channel, store: RolloutStore, model: Model, n_rollouts: int,
                report: Callable[[Update, TrainingBatch], None]) -> None:
    """Collects `n_rollouts` rollouts, one update, reports it; until dismissed, then trains on what it has and ends."""
    batch = store.empty_batch(n_rollouts)
    ended = False
    while not ended:
        filled, ended = channel.collect(batch)
        if filled:
            report(model.train(batch[:filled]), batch[:filled])
