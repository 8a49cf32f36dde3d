"""Settings of a short run of A3C on processors, whose workers learn by themselves."""

from __future__ import annotations

from typing import Any

from ga3c.settings.files import configured
from ga3c.settings.schema import Settings

T = 5


def settings(**changes: Any) -> Settings:
    return configured(**{
        "game": "toy:catch", "algorithm": "a3c-cpu", "tensorboard": False, "agents": 2, "envs_per_agent": 1,
        "rollout_length": T, "optimizer": "rmsprop", "learning_rate": 0.01, "precision": "float32",
        "agent_timeout": 300.0, "agent_nice": 0, **changes})
