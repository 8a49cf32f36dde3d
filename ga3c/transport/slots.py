"""Rollouts in shared memory: an agent writes each once, predictors and trainers read it by index.

If an update has one rollout, it is trained on in place; several are copied into one batch. `fields.py` has the layout.
`channel.py` decides which thread or process may use a slot, and when.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.base import EnvSpec
from ga3c.transport.block import ALIGNMENT, Block
from ga3c.transport.fields import (PER_REQUEST, PER_ROLLOUT, STATUS_FIELDS, Field, Outputs, actor_critic_outputs,
                                   in_batch, slot_fields)


class AgentStatus(enum.IntEnum):
    """The status of an agent, as its process reports it. `service.workers.AgentState` is the supervisor's view."""

    STARTING = 0                # making and resetting its environments
    PLAYING = 1
    WAITING_FOR_PREDICTION = 2
    WAITING_FOR_SLOT = 3
    DRAINED = 4                 # has submitted its last rollout and ends


def aligned(shape: tuple[int, ...], dtype: Any) -> NDArray:
    """Returns an array of zeros, aligned so that a model on a processor can use it without a copy."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    whole = np.zeros(size + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    array: NDArray = whole[start:start + size].view(dtype).reshape(shape)
    return array


class _Facts:
    """One array per field of `slot_fields`; the first axis counts slots, or rollouts in a batch."""

    observation: NDArray
    following: NDArray
    policy: NDArray[np.float32]
    value: NDArray[np.float32]
    version: NDArray[np.int64]
    action: NDArray[np.int32]
    reward: NDArray[np.float32]
    discounted_reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_value: NDArray[np.float32]
    bootstrap_value: NDArray[np.float32]
    score: NDArray[np.float64]
    episode_length: NDArray[np.int32]
    requested_at: NDArray[np.float64]
    submitted_at: NDArray[np.float64]
    seconds: NDArray[np.float32]
    steps: NDArray[np.int32]


class Batch(_Facts):
    """Up to B rollouts, contiguous per field: observation (B, T, E, *shape), reward (B, T, E), ...

    `batch[:n]` is a view of the first n rollouts, `batch[mask]` a copy of those in `mask` (B,). Fields are those of
    `slot_fields`, without the extra row T, and `reused` (B,): how many of a rollout's first steps were in an earlier
    batch. `arrays` has all of them by name.
    """

    reused: NDArray[np.int32]

    def __init__(self, arrays: dict[str, NDArray]) -> None:
        self.arrays = arrays
        self.__dict__.update(arrays)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, rollouts: slice | NDArray[np.bool_]) -> Batch:
        return Batch({name: array[rollouts] for name, array in self.arrays.items()})

    def clear(self, rollouts: slice | NDArray[np.bool_]) -> None:
        """Marks these rollouts as empty: without steps and without agents' seconds."""
        self.steps[rollouts] = self.reused[rollouts] = 0
        self.seconds[rollouts] = 0.0

    @property
    def size(self) -> int:
        """Returns the filled steps of all environments in the batch."""
        return int(self.steps.sum() * self.reward.shape[2])

    @property
    def agent_steps(self) -> int:
        """Returns `size` without the steps that were in an earlier batch."""
        return int((self.steps - self.reused).sum() * self.reward.shape[2])

    @property
    def new(self) -> NDArray[np.bool_]:
        """Returns (B, T, 1): whether there is a step, and it was in no earlier batch."""
        return self.filled & (np.arange(self.reward.shape[1]) >= self.reused[:, None])[:, :, None]

    @property
    def filled(self) -> NDArray[np.bool_]:
        """Returns (B, T, 1): whether there is a step."""
        return (np.arange(self.reward.shape[1]) < self.steps[:, None])[:, :, None]


class Slots(_Facts):
    """`n_slots` slots and the status of `n_agents` agents in one block of shared memory.

    One array per field: (n_slots, *field shape) or (n_agents, *field shape), as attributes. Passing the object to a
    child process (as an argument of Process) shares the block.

    Args:
        outputs: fields of the model's outputs for one observation; None: those of an actor-critic.
        discounted: adds the field `discounted_reward`, for `normalize_rewards`.
    """

    state: NDArray[np.int64]
    heartbeat: NDArray[np.float64]
    playing_since: NDArray[np.float64]
    faults: NDArray[np.int64]
    last_fault: NDArray[np.bytes_]

    def __init__(self, env: EnvSpec, rollout_length: int, n_envs: int, n_slots: int, n_agents: int = 1,
                 outputs: Mapping[str, Field] | None = None, discounted: bool = False) -> None:
        self.rollout_length = rollout_length
        self.n_envs = n_envs
        self.n_slots = n_slots
        self.n_agents = n_agents
        outputs = outputs or actor_critic_outputs(env)
        self.outputs = tuple(outputs)
        self._fields = slot_fields(env, rollout_length, n_envs, outputs, discounted)
        self._block = Block("rollouts", {
            **{name: Field((n_slots, *field.shape), field.dtype) for name, field in self._fields.items()},
            **{name: Field((n_agents, *field.shape), field.dtype) for name, field in STATUS_FIELDS.items()}})
        self._find()

    def _find(self) -> None:
        self.__dict__.update(self._block.arrays)
        rows = ("observation", *self.outputs, *PER_REQUEST)
        self._trained_on = {name: getattr(self, name)[:, :self.rollout_length] if name in rows[1:] else
                            getattr(self, name) for name in self._fields}
        self._rows = {name: getattr(self, name).reshape(-1, *self._fields[name].shape[1:]) for name in rows}

    def __getstate__(self) -> dict[str, Any]:
        kept = ("rollout_length", "n_envs", "n_slots", "n_agents", "outputs", "_fields", "_block")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._find()

    @property
    def rollout_fields(self) -> dict[str, Field]:
        """The fields of one rollout in a batch of such slots, by name."""
        return in_batch(self._fields, self.rollout_length, self.outputs)

    def empty_batch(self, n_rollouts: int, rollout_length: int | None = None) -> Batch:
        """Returns a batch for `n_rollouts` rollouts, to be filled by `gather`, or by `append` if a length is given."""
        T = rollout_length or self.rollout_length
        return Batch({**{name: aligned((n_rollouts, *array.shape[1:]) if name in PER_ROLLOUT else
                                       (n_rollouts, T, *array.shape[2:]), array.dtype)
                         for name, array in self._trained_on.items()}, "reused": np.zeros(n_rollouts, np.int32)})

    def empty_observations(self, n: int) -> NDArray:
        """Returns an array for the observations (n, E, *shape) of n requests, to be filled by `observations`."""
        return aligned((n, *self.observation.shape[2:]), self.observation.dtype)

    def row(self, slot: int, step: int) -> int:
        """Returns the flat index of (slot, step), with T + 1 rows in each slot. One index is faster than two."""
        return slot * (self.rollout_length + 1) + step

    def observations(self, rows: list[int], into: NDArray) -> None:
        """Copies the observations of n rows to the front of `into` (n or more, E, *shape)."""
        T = self.rollout_length
        places = [divmod(row, T + 1) for row in rows]
        # The default mode makes one more copy, in case an index is out of range.
        self._rows["observation"].take([slot * T + step for slot, step in places], axis=0, out=into[:len(rows)],
                                       mode="clip")
        for number, (slot, step) in enumerate(places):
            if step == T:
                into[number] = self.following[slot]

    def requested(self, rows: list[int]) -> list[float]:
        """Returns the times at which the predictions of n rows were requested, in monotonic seconds."""
        return list(map(self._rows["requested_at"].item, rows))

    def answer(self, rows: list[int], outputs: Outputs, version: int) -> None:
        """Writes outputs, arrays (n, E, ...) by name, and their version into n rows."""
        versions = self._rows["version"]
        for name in self.outputs:
            into, values = self._rows[name], outputs[name]
            for number, row in enumerate(rows):
                into[row] = values[number]
        for row in rows:
            versions[row] = version

    def gather(self, slots: Iterable[int], into: Batch, at: int) -> None:
        """Copies the rollouts in `slots` to places at, at + 1, ... of `into`."""
        for place, slot in enumerate(slots, at):
            for name, facts in self._trained_on.items():
                into.arrays[name][place] = facts[slot]

    def append(self, slot: int, into: Batch, place: int) -> None:
        """Copies the slot's steps to the end of a rollout of `into`. The steps before them then count as `reused`."""
        before, steps = int(into.steps[place]), int(self.steps[slot])
        for name, facts in self._trained_on.items():
            if name in PER_ROLLOUT:
                into.arrays[name][place] = facts[slot]
            else:
                into.arrays[name][place, before:before + steps] = facts[slot, :steps]
        into.steps[place], into.reused[place] = before + steps, before

    def view(self, slot: int) -> Batch:
        """Returns the rollout of one slot as a batch, without copying it."""
        return Batch({**{name: facts[slot:slot + 1] for name, facts in self._trained_on.items()},
                      "reused": np.zeros(1, np.int32)})

    def facts(self) -> dict[str, NDArray]:
        """Returns every array of the slots by name, for a checkpoint of serial mode."""
        return {name: getattr(self, name) for name in self._fields}


def taken_names(env: EnvSpec) -> set[str]:
    """Returns names that no output of a model may have: facts, status rows, and attributes of `Slots` and `Batch`."""
    own = Slots(env, 1, 1, 1, discounted=True)
    return ({*dir(own), *dir(own.empty_batch(1, 1))} - {*own.outputs})
