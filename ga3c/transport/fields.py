"""The layout of a slot: the arrays of one rollout, with shapes and dtypes.

T = rollout_length, E = environments of one agent, A = actions. A slot holds no return, advantage or target. An
algorithm adds the outputs of its model, at the step of the observation that they were computed from.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ga3c.envs.base import EnvSpec


class Field(NamedTuple):
    """Shape and dtype of one array."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def nbytes(self) -> int:
        """Returns the bytes of one such array."""
        return math.prod(self.shape) * int(np.dtype(self.dtype).itemsize)


Outputs = Mapping[str, Any]
"""A model's outputs for n observations, by name: arrays (n, ...)."""


def actor_critic_outputs(env: EnvSpec) -> dict[str, Field]:
    """Returns the outputs of an actor-critic for one observation: probabilities (A,) and value (), float32."""
    return {"policy": Field((env.n_actions,), np.float32), "value": Field((), np.float32)}


PER_REQUEST = ("version", "requested_at")
"""Facts of a prediction beside its outputs, one for all environments of the agent."""

PER_ROLLOUT = ("following", "bootstrap_value", "submitted_at", "seconds", "steps")
"""Facts of a rollout as a whole. All others have an axis of steps."""


def slot_fields(env: EnvSpec, rollout_length: int, n_envs: int, outputs: Mapping[str, Field],
                discounted: bool = False) -> dict[str, Field]:
    """Returns the fields of one slot by name. `discounted` adds `discounted_reward`, for `normalize_rewards`.

    Outputs and `PER_REQUEST` have one row more than there are steps. Row T is for the final observation of a
    truncated episode. That observation is put into `following` for a moment and predicted like any other. Only its
    value is kept, in `final_value`. So `observation` needs no extra row. Without an output "value" there is no
    `final_value` and no `bootstrap_value`, and no such prediction.
    """
    T, E = rollout_length, n_envs
    # The sum of the episode's rewards so far, each discounted by its age in steps, this step's included.
    sums = {"discounted_reward": Field((T, E), np.float32)} if discounted else {}
    values = {
        "final_value": Field((T, E), np.float32),        # V of the final observation of a truncated episode
        "bootstrap_value": Field((E,), np.float32),      # V of `following`
    } if "value" in outputs else {}
    return {
        "observation": Field((T, E, *env.observation_shape), env.observation_dtype),
        "following": Field((E, *env.observation_shape), env.observation_dtype),  # the observation after the last step
        **{name: Field((T + 1, E, *field.shape), field.dtype) for name, field in outputs.items()},
        "version": Field((T + 1,), np.int64),            # updates that the predicting model had seen
        "action": Field((T, E), np.int32),
        "reward": Field((T, E), np.float32),             # of the outermost wrapper, not clipped
        **sums,
        "terminated": Field((T, E), np.bool_),
        "truncated": Field((T, E), np.bool_),
        **values,
        "score": Field((T, E), np.float64),              # of the episode that ended in this step, else NaN
        "episode_length": Field((T, E), np.int32),       # its agent steps, else 0
        "requested_at": Field((T + 1,), np.float64),     # monotonic seconds; 0: not measured
        "submitted_at": Field((), np.float64),           # monotonic seconds
        "seconds": Field((3,), np.float32),              # of the agent since its last rollout: waiting for a slot,
                                                         # waiting for predictions, playing
        "steps": Field((), np.int32),                    # filled steps: T, or fewer in a first or last rollout
    }


def rollout_fields(env: EnvSpec, rollout_length: int, n_envs: int, outputs: Mapping[str, Field],
                   discounted: bool = False) -> dict[str, Field]:
    """Returns the fields of one rollout in a batch, see `in_batch`. The arguments are those of `slot_fields`."""
    return in_batch(slot_fields(env, rollout_length, n_envs, outputs, discounted), rollout_length, outputs)


def in_batch(slot: Mapping[str, Field], rollout_length: int, outputs: Iterable[str]) -> dict[str, Field]:
    """Returns the fields of one rollout in a batch by name: those of a slot without the extra row.

    And `reused`, how many of its first steps were in an earlier batch, and `filled` (T, 1), whether there is a step.
    """
    with_extra_row = {*outputs, *PER_REQUEST}
    fields = {name: Field((rollout_length, *field.shape[1:]), field.dtype) if name in with_extra_row else field
              for name, field in slot.items()}
    return {**fields, "reused": Field((), np.int32), "filled": Field((rollout_length, 1), np.bool_)}


STATUS_FIELDS = {
    "state": Field((), np.int64),            # an `AgentStatus`
    "heartbeat": Field((), np.float64),      # monotonic seconds of the last heartbeat
    "playing_since": Field((), np.float64),  # monotonic seconds when its environments were made
    "faults": Field((), np.int64),           # failures of its environments
    "last_fault": Field((), "S4000"),        # traceback of the last failure
}
"""One agent's status. Only its process writes it while it lives; the supervisor reads it.

`Channel.open` resets it before the process starts.
"""
