"""An algorithm in one file with three heads and no policy: two guesses of each action's worth, and how far they differ.

It learns one-step returns of `toy:identity`, whose episodes need no more: the reward tells the right action.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from keras import ops

from ga3c.algorithms.acting import Acting, Outputs
from ga3c.algorithms.base import Head, Loss, Network, Prepared, Rates, Tensor
from ga3c.algorithms.rows import filled_samples, flat, sample_weights
from ga3c.envs.base import EnvSpec
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field


def choose(outputs: Outputs, rng: np.random.Generator, exploration: np.ndarray) -> np.ndarray:
    """Epsilon-greedy: `exploration` (n,) is the probability of an action at random."""
    worth = outputs["worth"]
    at_random = rng.random(len(worth)) < exploration
    return np.where(at_random, rng.integers(worth.shape[1], size=len(worth)), worth.argmax(axis=1))


def best(outputs: Outputs) -> np.ndarray:
    """Returns the actions of most worth."""
    return outputs["worth"].argmax(axis=1)


def explore(steps: int, agent: int, n_envs: int) -> np.ndarray:
    """Falls from 1 to 0.05 in 200 own steps, and to half of that in every second environment."""
    return max(0.05, 1.0 - steps / 200) / (1 + np.arange(n_envs) % 2)


class ThreeHeads:
    """The mean of two heads is what it acts on."""

    reads = ("observation", "action", "reward", "filled")
    acting = Acting(choose, best, explore)

    def __init__(self, settings: Settings) -> None:
        self.variables: dict[str, object] = {}

    def heads(self, env: EnvSpec) -> dict[str, Head]:
        """Returns three heads of different widths."""
        return {"one": Head(env.n_actions), "other": Head(env.n_actions), "doubt": Head(1)}

    def outputs(self, env: EnvSpec) -> dict[str, Field]:
        """Returns the field that agents act on."""
        return {"worth": Field((env.n_actions,), np.float32)}

    def act(self, network: Network, observation: Tensor) -> dict[str, Tensor]:
        """Returns the mean worth (n, A)."""
        heads = network(observation)
        return {"worth": (heads["one"] + heads["other"]) / 2}

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        """Returns steps as rows."""
        return Prepared({"observation": flat(batch["observation"], 3), "action": ops.reshape(batch["action"], (-1,)),
                         "reward": ops.reshape(batch["reward"], (-1,)),
                         "filled": filled_samples(batch["filled"], ops.shape(batch["reward"]))})

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        """Returns the squared errors of all heads."""
        heads, weight = network(rows["observation"], training=True), sample_weights(rows["filled"])
        taken = ops.one_hot(rows["action"], heads["one"].shape[-1])
        one, other = (ops.sum(taken * heads[name], axis=1) for name in ("one", "other"))
        doubt = heads["doubt"][:, 0] - ops.stop_gradient(ops.abs(one - other))
        error = ops.sum(weight * ((one - rows["reward"])**2 + (other - rows["reward"])**2 + doubt**2))
        return Loss(error, {"error": error})
