"""PQN: Q-learning without a replay, from rollouts of many environments (Gallici et al., 2024).

Targets are lambda-returns of the acting weights' own values, max Q. They are fixed before the first pass. A network
with `layer_norm` keeps Q-values from diverging, so that no target network is needed.

Index order: B rollouts, T steps, E environments, A actions; N = B T E samples, n of them in a minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from keras import ops

from ga3c.algorithms.acting import epsilon_greedily
from ga3c.algorithms.base import Head, Loss, Network, Prepared, Rates, Tensor
from ga3c.algorithms.losses import chosen
from ga3c.algorithms.returns import vtrace_returns
from ga3c.algorithms.rows import filled_samples, flat, sample_weights
from ga3c.envs.base import EnvSpec
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field, Outputs


class PQN:
    """Q-values as the only head. Its outputs are `q` (A,) and `value`, the highest of them."""

    reads = ("observation", "action", "reward", "terminated", "truncated", "filled", "value", "final_value",
             "bootstrap_value")
    reads_target = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.acting = epsilon_greedily(settings)
        self.rates: dict[str, object] = {}
        self.variables: dict[str, object] = {}

    def heads(self, env: EnvSpec) -> dict[str, Head]:
        """Returns the head of the A Q-values."""
        return {"q": Head(int(env.n_actions))}

    def outputs(self, env: EnvSpec) -> dict[str, Field]:
        """Returns the fields of the outputs: q (A,) and value (), float32."""
        return {"q": Field((int(env.n_actions),), np.float32), "value": Field((), np.float32)}

    def act(self, network: Network, observation: Tensor) -> Outputs:
        """Returns q (n, A) and value (n,), float32, for observations (n, *shape)."""
        q = network(observation)["q"]
        return {"q": q, "value": ops.max(q, axis=1)}

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        """Returns rows that are steps, with their returns (N,): lambda-returns of the clipped rewards."""
        shared, reward = self.settings.algorithm, batch["reward"]
        if shared.reward_clip:
            reward = ops.clip(reward, -shared.reward_clip, shared.reward_clip)
        returns = vtrace_returns(
            reward, batch["terminated"], batch["truncated"], batch["filled"], batch["value"], batch["final_value"],
            batch["bootstrap_value"], ops.ones_like(reward), shared.gamma, self.settings.pqn.td_lambda)
        return Prepared({
            "observation": flat(batch["observation"], 3), "action": ops.reshape(batch["action"], (-1,)),
            "returns": ops.reshape(returns, (-1,)), "filled": filled_samples(batch["filled"], ops.shape(reward))})

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        """Returns half the mean of (R - Q(s, a))^2.

        Metrics: q_loss; q_mean, the mean of max Q; explained_variance of the returns by Q(s, a), at least -1.
        """
        weight = sample_weights(rows["filled"])
        q = network(rows["observation"], training=True)["q"]
        error = rows["returns"] - chosen(q, rows["action"])
        squared = ops.sum(weight * ops.square(error))
        variance = ops.sum(weight * ops.square(rows["returns"] - ops.sum(weight * rows["returns"])))
        return Loss(0.5 * squared, {
            "q_loss": 0.5 * squared, "q_mean": ops.sum(weight * ops.max(q, axis=1)),
            "explained_variance": ops.maximum(1.0 - squared / ops.maximum(variance, 1e-8), -1.0)})
