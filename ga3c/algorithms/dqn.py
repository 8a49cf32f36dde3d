"""DQN: Q-learning from a replay against a target network (Mnih et al., 2015).

Double (van Hasselt et al., 2016): the newest weights choose the action whose value the target gives. Dueling (Wang et
al., 2016): Q = V + A - mean A. Transitions of up to n steps come from `replay`, with importance weights if they were
drawn by priority (Schaul et al., 2016).

Index order: n samples, A actions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from keras import ops

from ga3c.algorithms.base import Head, Loss, Network, Prepared, Rates, Tensor
from ga3c.algorithms.losses import chosen
from ga3c.algorithms.pqn import epsilon_greedily
from ga3c.algorithms.rows import flat, sample_weights
from ga3c.envs.base import EnvSpec
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field, Outputs


class DQN:
    """Its only output is `q` (A,)."""

    reads = ("observation", "action", "returns", "following", "discount", "weight", "filled")
    reads_target = True

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.acting = epsilon_greedily(settings)
        self.rates: dict[str, object] = {}
        self.variables: dict[str, object] = {}

    def heads(self, env: EnvSpec) -> dict[str, Head]:
        """Returns the head of the A Q-values; if dueling those of V and of the A advantages."""
        n_actions = int(env.n_actions)
        return ({"value": Head(1), "advantage": Head(n_actions)} if self.settings.replay.dueling else
                {"q": Head(n_actions)})

    def outputs(self, env: EnvSpec) -> dict[str, Field]:
        """Returns the field of the output: q (A,), float32."""
        return {"q": Field((int(env.n_actions),), np.float32)}

    def act(self, network: Network, observation: Tensor) -> Outputs:
        """Returns q (n, A), float32, for observations (n, *shape)."""
        return {"q": self._q(network(observation))}

    def _q(self, heads: Mapping[str, Tensor]) -> Tensor:
        if "q" in heads:
            return heads["q"]
        return heads["value"] + heads["advantage"] - ops.mean(heads["advantage"], axis=1, keepdims=True)

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        """Returns rows that are transitions, with their `wanted` value G + gamma^m Q(s', a'; target) (n,)."""
        following = flat(batch["following"], 2)
        beyond = self._q(network.target(following))
        best = ops.argmax(self._q(network(following)) if self.settings.replay.double else beyond, axis=1)
        wanted = batch["returns"] + batch["discount"] * chosen(beyond, best)
        return Prepared({"observation": flat(batch["observation"], 3), "action": ops.reshape(batch["action"], (-1,)),
                         "wanted": ops.stop_gradient(wanted), "weight": batch["weight"],
                         "filled": ops.reshape(batch["filled"], (-1,))})

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        """Returns the weighted mean of Huber's loss, whose gradient is that of the error clipped to [-1, 1].

        Metrics: q_loss, q_mean: the mean of max Q. rows: error (n,), for priorities.
        """
        weight = sample_weights(rows["filled"])
        q = self._q(network(rows["observation"], training=True))
        error = rows["wanted"] - chosen(q, rows["action"])
        size = ops.abs(error)
        huber = ops.where(size <= 1.0, 0.5 * ops.square(error), size - 0.5)
        loss = ops.sum(weight * rows["weight"] * huber)
        return Loss(loss, {"q_loss": loss, "q_mean": ops.sum(weight * ops.max(q, axis=1))}, rows={"error": error})
