"""A channel driven by hand, as an agent's process and a trainer would."""

from __future__ import annotations

import numpy as np

from ga3c.envs.base import EnvSpec
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Slots

SPEC = EnvSpec("none", (3,), np.dtype(np.uint8), 2, 1)


def make_store(agents: int, slots_per_agent: int = 2) -> Slots:
    """Small slots of so many agents."""
    return Slots(SPEC, 2, 1, agents * slots_per_agent, agents)


def outputs(n: int, value: float = 0.0) -> dict[str, np.ndarray]:
    """Of n requests of agents with one environment."""
    return {"policy": np.full((n, 1, 2), 0.5, np.float32), "value": np.full((n, 1), value, np.float32)}


def collected(channel: Channel, most: int) -> tuple[list[int], bool]:
    """Slots that `Channel.collect` gives, released at once, and whether the trainer must end."""
    with channel.collect(most) as collection:
        return collection.slots, collection.over
