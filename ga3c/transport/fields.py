"""The schema of a slot: which facts one rollout holds, with shapes and dtypes.

T = rollout_length, E = environments of one agent, A = actions. Nothing here is a return, an advantage or a target.
An algorithm adds the outputs of its model: they stand beside the observation they were computed from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ga3c.envs.base import EnvSpec


class Field(NamedTuple):
    """Shape and dtype of one array."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def nbytes(self) -> int:
        """Bytes of one such array."""
        return math.prod(self.shape) * int(np.dtype(self.dtype).itemsize)


Outputs = Mapping[str, Any]
"""What a model says of n observations, by name: arrays (n, ...)."""

PER_REQUEST = ("version", "requested_at")
"""Facts of a prediction beside its outputs, one for all environments of the agent."""

PER_ROLLOUT = ("following", "bootstrap_value", "submitted_at", "seconds", "steps")
"""Facts of a rollout as a whole. All others have an axis of steps."""


def actor_critic_outputs(env: EnvSpec) -> dict[str, Field]:
    """The outputs of an actor-critic for one observation: probabilities (A,) and value (), float32."""
    return {"policy": Field((env.n_actions,), np.float32), "value": Field((), np.float32)}


def slot_fields(env: EnvSpec, rollout_length: int, n_envs: int, outputs: Mapping[str, Field],
                discounted: bool = False) -> dict[str, Field]:
    """The fields of one slot, by name. `discounted` adds `discounted_reward`, which `normalize_rewards` needs.

    Outputs and `PER_REQUEST` have one row more than there are steps. Row T is for the final observation of a
    truncated episode: that observation stands in `following` for a moment, is predicted like any other, and only its
    value is kept, in `final_value`. So the observations of a slot are one array of nothing else.
    """
    T, E = rollout_length, n_envs
    # The sum of the episode's rewards so far, each discounted by its age in steps, this step's included.
    sums = {"discounted_reward": Field((T, E), np.float32)} if discounted else {}
    return {
        "observation": Field((T, E, *env.observation_shape), env.observation_dtype),
        "following": Field((E, *env.observation_shape), env.observation_dtype),  # the one after the last step
        **{name: Field((T + 1, E, *field.shape), field.dtype) for name, field in outputs.items()},
        "version": Field((T + 1,), np.int64),            # updates that the predicting model had seen
        "action": Field((T, E), np.int32),
        "reward": Field((T, E), np.float32),             # the outermost wrapper's, not clipped
        **sums,
        "terminated": Field((T, E), np.bool_),
        "truncated": Field((T, E), np.bool_),
        "final_value": Field((T, E), np.float32),        # V of the final observation of a truncated episode
        "bootstrap_value": Field((E,), np.float32),      # V of `following`
        "score": Field((T, E), np.float64),              # of the episode that ended in this step, else NaN
        "episode_length": Field((T, E), np.int32),       # its agent steps, else 0
        "requested_at": Field((T + 1,), np.float64),     # monotonic seconds; 0: nobody looked at the clock
        "submitted_at": Field((), np.float64),           # monotonic seconds
        "seconds": Field((3,), np.float32),              # of the agent since its last rollout: waiting for a slot,
                                                         # waiting for predictions, playing
        "steps": Field((), np.int32),                    # rows filled: T, or fewer in an agent's last rollout
    }


def status_fields(env: EnvSpec) -> dict[str, Field]:
    """One row for each agent. Its process alone writes it while it lives; the supervisor reads it, also afterwards.

    `Channel.open` resets it before the process starts. Statistics are there only where wrappers keep any: the last that
    were reported, and those before.
    """
    running = {"statistics": Field((2, env.n_statistics, 3), np.float64), "statistics_at": Field((), np.int64)}
    return {
        "state": Field((), np.int64),            # an `AgentStatus`
        "heartbeat": Field((), np.float64),      # monotonic seconds of the last sign of life
        "playing_since": Field((), np.float64),  # monotonic seconds when its environments were made
        "faults": Field((), np.int64),           # environments that failed and were made again
        "last_fault": Field((), "S4000"),        # traceback of the last of them
        **(running if env.n_statistics else {}),
    }
