"""An algorithm that reads its target network, and a user's network, which keeps none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from batches import heads

from ga3c.algorithms.a3c import A3C
from ga3c.algorithms.base import Loss, Network, Prepared, Rates, Tensor
from ga3c.algorithms.rows import filled_samples, flat, sample_weights
from ga3c.envs.base import EnvSpec


class OneMore(A3C):
    """Its value is to be the target's plus 1. So it grows by 1 with each target, and not without a new one."""

    reads = ("observation", "reward", "filled")
    reads_target = True

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        ops = keras.ops
        observation = flat(batch["observation"], 3)
        return Prepared({"observation": observation, "wanted": network.target(observation)["value"][:, 0] + 1.0,
                         "filled": filled_samples(batch["filled"], ops.shape(batch["reward"]))})

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        ops = keras.ops
        value = network(rows["observation"], training=True)["value"][:, 0]
        late = network.target(rows["observation"])["value"][:, 0] + 1.0  # the same in every minibatch
        error = ops.abs(rows["wanted"] - value) + ops.abs(late - rows["wanted"])
        return Loss(ops.sum(sample_weights(rows["filled"]) * ops.square(error)), {"error": ops.mean(error)},
                    rows={"error": error})


class Remembers(A3C):
    """Reads what no rollout has: its value is to be `wanted`, where `weight` is not 0."""

    reads = ("observation", "wanted", "weight", "filled")

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        return Prepared({"observation": flat(batch["observation"], 3), "wanted": batch["wanted"],
                         "weight": batch["weight"], "filled": keras.ops.reshape(batch["filled"], (-1,))})

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        ops = keras.ops
        value = network(rows["observation"], training=True)["value"][:, 0]
        return Loss(ops.mean(rows["weight"] * ops.square(rows["wanted"] - value)), {})


def own_network(settings: Any, spec: EnvSpec) -> keras.Model:
    seen = keras.Input(spec.observation_shape)
    return keras.Model(seen, {name: keras.layers.Dense(head.units, head.activation)(seen)
                              for name, head in heads(spec).items()})
