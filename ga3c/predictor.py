"""A predictor: a thread that answers the agents. Next hop of an observation: `model.Model.predict`, and back."""

from __future__ import annotations

from ga3c.channel import Channel
from ga3c.model import Model
from ga3c.rollout import RolloutStore


class PredictionCount:
    """Written by one predictor, read by anyone: observations predicted, and calls of the model."""

    def __init__(self) -> None:
        self.predictions = 0
        self.calls = 0


def run_predictor(channel: Channel, store: RolloutStore, model: Model, batch_max: int, count: PredictionCount) -> None:
    """Takes as many requests as are there (up to `batch_max` observations), one inference, answers; until dismissed."""
    n_envs = store.n_envs
    for tickets in channel.requests(max(1, batch_max // n_envs)):
        observation = store.observation[tickets["slot"], tickets["step"]]
        policy, value, version = model.predict(observation.reshape(-1, *observation.shape[2:]))
        channel.answer(tickets, policy.reshape(len(tickets), n_envs, -1), value.reshape(-1, n_envs), version)
        count.predictions += len(value)
        count.calls += 1
