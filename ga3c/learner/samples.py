"""The fields of batches: of whole rollouts, or of single transitions from a replay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ga3c.envs.base import EnvSpec
from ga3c.settings.algorithms import facts
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field, rollout_fields


def batch_fields(settings: Settings, env: EnvSpec, outputs: Mapping[str, Field]) -> dict[str, Field]:
    """Returns the fields of what the first axis of the run's batches counts, by name."""
    if facts(settings.algorithm.algorithm).remembers:
        return sample_fields(env)
    return rollout_fields(env, settings.algorithm.rollout_length, settings.agents.envs_per_agent, outputs,
                          settings.algorithm.normalize_rewards)


def sample_fields(env: EnvSpec) -> dict[str, Field]:
    """Returns the fields of one transition of up to n steps from a replay, by name; see `replay.ring.Sampled`."""
    number, observation = Field((), np.dtype(np.float32)), env.observation_dtype
    return {"observation": Field((1, 1, *env.observation_shape), observation),
            "following": Field((1, *env.observation_shape), observation),
            "action": Field((1, 1), np.dtype(np.int32)), "returns": number, "discount": number, "weight": number,
            "filled": Field((1, 1), np.dtype(np.bool_))}
