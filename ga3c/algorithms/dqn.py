"""DQN: Q-learning from a replay against a target network (Mnih et al., 2015), and what its members share.

Double (van Hasselt et al., 2016): the newest weights choose the action whose value the target gives. Dueling (Wang et
al., 2016): Q = V + A - mean A, from two streams. Transitions of up to n steps come from `replay`, with importance
weights if they were drawn by priority (Schaul et al., 2016).

A member gives each action Z numbers: here its value, elsewhere a distribution of returns (`c51.py`, `qr.py`).

Index order: n samples, A actions, Z numbers of an action.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from keras import ops

from ga3c.algorithms.acting import epsilon_greedily
from ga3c.algorithms.base import Head, Loss, Network, Prepared, Rates, Tensor
from ga3c.algorithms.losses import huber
from ga3c.algorithms.rows import flat, sample_weights
from ga3c.envs.base import EnvSpec
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field, Outputs


class DQN:
    """Its only output is `q` (A,). Members override what their numbers mean: `numbers` and the last three methods."""

    reads = ("observation", "action", "returns", "following", "discount", "weight", "filled")
    reads_target = True
    numbers = 1
    """Z."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.acting = epsilon_greedily(settings, settings.replay.replay_start)
        self.rates: dict[str, object] = {}
        self.variables: dict[str, object] = {}

    def heads(self, env: EnvSpec) -> dict[str, Head]:
        """Returns the head of the numbers of all actions; if dueling those of V and of the advantages."""
        n_actions = int(env.n_actions)
        if not self.settings.replay.dueling:
            return {"q": Head(n_actions * self.numbers)}
        return {"value": Head(self.numbers, own_layer=True),
                "advantage": Head(n_actions * self.numbers, own_layer=True)}

    def outputs(self, env: EnvSpec) -> dict[str, Field]:
        """Returns the field of the output: q (A,), float32."""
        return {"q": Field((int(env.n_actions),), np.float32)}

    def act(self, network: Network, observation: Tensor) -> Outputs:
        """Returns q (n, A), float32, for observations (n, *shape)."""
        return {"q": self.expected(self._of_actions(network(observation)))}

    def _of_actions(self, heads: Mapping[str, Tensor]) -> Tensor:
        """Returns (n, A, Z)."""
        def split(head: Tensor) -> Tensor:
            return ops.reshape(head, (-1, head.shape[1] // self.numbers, self.numbers))

        if "q" in heads:
            return split(heads["q"])
        advantage = split(heads["advantage"])
        return split(heads["value"]) + advantage - ops.mean(advantage, axis=1, keepdims=True)

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        """Returns rows that are transitions, with what is `wanted` of their actions, see `aim`."""
        following = flat(batch["following"], 2)
        beyond = self._of_actions(network.target(following))
        best = ops.argmax(self.expected(
            self._of_actions(network(following)) if self.settings.replay.double else beyond), axis=1)
        wanted = self.aim(batch["returns"], batch["discount"], taken(beyond, best))
        return Prepared({"observation": flat(batch["observation"], 3), "action": ops.reshape(batch["action"], (-1,)),
                         "wanted": ops.stop_gradient(wanted), "weight": batch["weight"],
                         "filled": ops.reshape(batch["filled"], (-1,))})

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        """Returns the weighted mean of the losses.

        Metrics: q_loss, q_mean: the mean of max Q. rows: error (n,), for priorities.
        """
        weight = sample_weights(rows["filled"])
        numbers = self._of_actions(network(rows["observation"], training=True))
        losses, error = self.compare(taken(numbers, rows["action"]), rows["wanted"])
        loss = ops.sum(weight * rows["weight"] * losses)
        best = ops.max(self.expected(numbers), axis=1)
        return Loss(loss, {"q_loss": loss, "q_mean": ops.sum(weight * best)}, rows={"error": error})

    def expected(self, numbers: Tensor) -> Tensor:
        """Returns the expected return of each action (n, A), from its numbers (n, A, Z)."""
        return numbers[..., 0]

    def aim(self, returns: Tensor, discount: Tensor, beyond: Tensor) -> Tensor:
        """Returns G + gamma^m Q(s', a'; target) (n,).

        returns: G (n,). discount: gamma^m (n,), 0 after an end. beyond: the target's numbers (n, Z) of a' in s'.
        """
        return returns + discount * beyond[:, 0]

    def compare(self, numbers: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (losses, errors), both (n,), of numbers (n, Z) against what is `wanted` of them.

        Here Huber's loss, whose gradient is that of the error clipped to [-1, 1].
        """
        error = wanted - numbers[:, 0]
        return huber(error), error


def taken(numbers: Tensor, action: Tensor) -> Tensor:
    """Returns (n, Z): the numbers (n, A, Z) of the actions (n,) int."""
    return ops.sum(numbers * ops.one_hot(action, numbers.shape[1])[:, :, None], axis=1)
