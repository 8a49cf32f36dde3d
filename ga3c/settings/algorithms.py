"""Facts about each algorithm. Settings and the service read these facts and never compare algorithm names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Facts(NamedTuple):
    """The properties of one algorithm.

    path: the class, as `package.module:Class`. corrects_lag: the losses correct for policy lag; if not, they treat all
    samples as played by the current weights. begins: the preset that is the starting point if none is named.
    rollouts_whole: a minibatch consists of whole rollouts, not of single steps. predicts_first: an update predicts its
    whole batch before the first pass. workers_learn: each agent has its own model and trains it (A3C on processors).
    remembers: it learns from a replay. families: the groups of settings that it reads and others do not; None: unknown,
    as for a user's class.
    """

    path: str
    corrects_lag: bool = True
    begins: str = "default"
    rollouts_whole: bool = False
    predicts_first: bool = False
    workers_learn: bool = False
    remembers: bool = False
    families: tuple[str, ...] | None = None

    @property
    def one_pass(self) -> bool:
        """Whether its starting point makes one pass over a batch."""
        return self.begins == "fast"


ALGORITHMS: Mapping[str, Facts] = {
    "a3c": Facts("ga3c.algorithms.a3c:A3C", begins="fast", rollouts_whole=True, families=("actor_critic", "a3c")),
    "appo": Facts("ga3c.algorithms.appo:APPO", predicts_first=True, families=("actor_critic", "ppo")),
    "a2c": Facts("ga3c.algorithms.a2c:A2C", corrects_lag=False, begins="fast", families=("actor_critic",)),
    "ppo": Facts("ga3c.algorithms.ppo:PPO", corrects_lag=False, families=("actor_critic", "ppo")),
    "pqn": Facts("ga3c.algorithms.pqn:PQN", corrects_lag=False, begins="pqn", families=("value", "pqn")),
    "dqn": Facts("ga3c.algorithms.dqn:DQN", begins="value", remembers=True, families=("value", "replay")),
    "c51": Facts("ga3c.algorithms.c51:C51", begins="value", remembers=True, families=("value", "replay", "c51")),
    "qr": Facts("ga3c.algorithms.qr:QR", begins="value", remembers=True, families=("value", "replay", "qr")),
    "a3c-cpu": Facts("ga3c.algorithms.a3c:A3C", begins="fast", rollouts_whole=True, workers_learn=True,
                     families=("actor_critic", "a3c")),
}
"""The built-in algorithms, by name."""


def facts(algorithm: str) -> Facts:
    """Returns the facts of a built-in algorithm, or defaults for a user's class `package.module:Class`."""
    return ALGORITHMS.get(algorithm, Facts(algorithm))
