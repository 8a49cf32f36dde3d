"""Rollouts in shared memory: written once by an agent, read by index by predictors, trained on where they lie, or
copied once where those of an update do not lie side by side.

A slot holds the facts of up to rollout_length steps of E environments; nothing here is a return or an advantage, so that every
learner finds what it needs. `FIELDS` is the whole layout. Who may touch a slot, and when, is `channel.py`'s business.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.factory import EnvSpec

_ALIGNMENT = 64  # bytes; what TensorFlow asks of memory that it is to use as it stands
_EXTRA_ROW = ("policy", "value", "version", "asked")


def aligned(shape: tuple[int, ...], dtype: Any) -> NDArray:
    """An array of zeros, which `model.Model` can use on a processor without copying it."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    room = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    found: NDArray = room[start:start + size].view(dtype).reshape(shape)
    return found


class _Field(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any


def _fields(spec: EnvSpec, rollout_length: int, n_envs: int) -> dict[str, _Field]:
    """name -> shape and dtype of one slot. T = rollout_length, E = n_envs, A = actions.

    Rows T of `_EXTRA_ROW` serve the observation in which episodes were truncated: it stands
    in `following` for the moment, is predicted like any other, and only its value is kept, in
    final_value. So the observations of slots side by side are one array of nothing else.
    """
    T, E, A = rollout_length, n_envs, spec.n_actions
    return {
        "observation": _Field((T, E, *spec.observation_shape), spec.observation_dtype),
        "following": _Field((E, *spec.observation_shape), spec.observation_dtype),  # the one after the last step
        "policy": _Field((T + 1, E, A), np.float32),      # behaviour policy, written by a predictor
        "value": _Field((T + 1, E), np.float32),          # V at prediction, written by a predictor
        "version": _Field((T + 1,), np.int64),            # updates the predicting model had seen
        "action": _Field((T, E), np.int32),
        "reward": _Field((T, E), np.float32),             # raw
        "terminated": _Field((T, E), np.bool_),
        "truncated": _Field((T, E), np.bool_),
        "final_value": _Field((T, E), np.float32),        # V of the last observation of a truncated episode
        "bootstrap_value": _Field((E,), np.float32),      # V of the observation after the last step
        "score": _Field((T, E), np.float64),              # of the episode that ended in this step, else NaN
        "episode_length": _Field((T, E), np.int32),       # its agent steps, else 0
        "asked": _Field((T + 1,), np.float64),            # when the prediction was asked for, monotonic seconds
        "submitted": _Field((), np.float64),              # when it was handed in, monotonic seconds
        "seconds": _Field((3,), np.float32),              # of the agent since its last rollout: waiting for a slot,
                                                          # waiting for predictions, playing
        "steps": _Field((), np.int32),                    # rows filled: rollout_length, or fewer if it was cut short
    }


# One row for each agent, at its first slot: what its supervisor may know of it, living or dead. Never in a batch.
_VITALS = {
    "taken": _Field((), np.int64),           # slots the agent has asked for, in this incarnation
    "faults": _Field((), np.int64),          # environments that failed its process, in this incarnation, and
    "last_words": _Field((), "S4000"),       # traceback of the last of them: both at the first agent of the process
}


class _Facts:
    """One array per field; the first axis counts slots, or rollouts in a batch."""

    observation: NDArray
    following: NDArray
    policy: NDArray[np.float32]
    value: NDArray[np.float32]
    version: NDArray[np.int64]
    action: NDArray[np.int32]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    final_value: NDArray[np.float32]
    bootstrap_value: NDArray[np.float32]
    score: NDArray[np.float64]
    episode_length: NDArray[np.int32]
    asked: NDArray[np.float64]
    submitted: NDArray[np.float64]
    seconds: NDArray[np.float32]
    steps: NDArray[np.int32]


class Batch(_Facts):
    """Room for up to B rollouts, contiguous per field: observation (B, T, E, *shape), reward (B, T, E), ...

    `batch[:n]` is a view of the first n rollouts, `batch[mask]` a copy of those in `mask` (B,). Fields are as in
    `_fields`, without the extra row T. `arrays` has all of them by name.
    """

    def __init__(self, arrays: dict[str, NDArray]) -> None:
        self.arrays = arrays
        self.__dict__.update(arrays)

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, rollouts: slice | NDArray[np.bool_]) -> Batch:
        return Batch({name: array[rollouts] for name, array in self.arrays.items()})

    def keep(self, rollouts: NDArray[np.bool_]) -> int:
        """Moves the first rollouts that are in the mask (n,), n <= B, to the front; returns how many they are."""
        kept = int(rollouts.sum())
        for array in self.arrays.values():
            array[:kept] = array[:len(rollouts)][rollouts]
        return kept

    def empty(self, rollouts: slice | NDArray[np.bool_]) -> None:
        """Leaves no step in these."""
        self.steps[rollouts] = 0
        self.seconds[rollouts] = 0.0

    @property
    def agent_steps(self) -> int:
        """Filled steps of all environments in the batch."""
        return int(self.steps.sum() * self.reward.shape[2])

    @property
    def filled(self) -> NDArray[np.bool_]:
        """(B, T, 1): whether a row holds a step; rows after `steps` of a cut rollout do not."""
        return (np.arange(self.reward.shape[1]) < self.steps[:, None])[:, :, None]


class Slots(_Facts):
    """`n_slots` slots in one nameless block of shared memory, as one array per field: (n_slots, *field shape).

    Beside them, for each agent at its first slot, the fields of `_VITALS`.

    Passing it to a child process (as an argument of Process) shares the block. Attributes are named as in `_fields`.
    """

    taken: NDArray[np.int64]
    faults: NDArray[np.int64]
    last_words: NDArray[np.bytes_]

    def __init__(self, spec: EnvSpec, rollout_length: int, n_envs: int, n_slots: int) -> None:
        self.rollout_length, self.n_envs, self.n_slots = rollout_length, n_envs, n_slots
        self._layout = _fields(spec, rollout_length, n_envs)
        size = sum(self._field_bytes(field) for field in (self._layout | _VITALS).values())
        # Pages are there once they are written to: slots of agents that never come take no memory. Not in /dev/shm,
        # which may be small.
        self._file = os.memfd_create("rollouts")
        weakref.finalize(self, os.close, self._file)
        os.ftruncate(self._file, size)
        self._map(self._file)

    def _field_bytes(self, field: _Field) -> int:
        size = self.n_slots * int(np.prod(field.shape)) * np.dtype(field.dtype).itemsize
        return int(-(-size // _ALIGNMENT) * _ALIGNMENT)

    def _map(self, file: int) -> None:
        block = np.frombuffer(mmap.mmap(file, 0), np.uint8)
        offset = 0
        for name, field in (self._layout | _VITALS).items():
            shape = (self.n_slots, *field.shape)
            count = int(np.prod(shape)) * np.dtype(field.dtype).itemsize
            setattr(self, name, block[offset:offset + count].view(field.dtype).reshape(shape))
            offset += self._field_bytes(field)
        self._trained_on = {name: getattr(self, name)[:, :self.rollout_length] if name in _EXTRA_ROW else getattr(self, name)
                            for name in self._layout}
        self._rows = {name: getattr(self, name).reshape(-1, *self._layout[name].shape[1:])
                      for name in ("observation", *_EXTRA_ROW)}

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("rollout_length", "n_envs", "n_slots", "_layout")} | {
            "_file": DupFd(self._file)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        file = state.pop("_file").detach()
        self.__dict__.update(state)
        self._map(file)
        os.close(file)  # the mapping has its own

    def empty_batch(self, n_rollouts: int) -> Batch:
        """Room for `n_rollouts` rollouts, to be filled by `gather`."""
        def shape(name: str) -> tuple[int, ...]:
            shape = self._layout[name].shape
            return (n_rollouts, self.rollout_length, *shape[1:]) if name in _EXTRA_ROW else (n_rollouts, *shape)

        return Batch({name: aligned(shape(name), field.dtype) for name, field in self._layout.items()})

    def room(self, n: int) -> NDArray:
        """For the observations (n, E, *shape) of n rows, to be filled by `look`."""
        return aligned((n, *self.observation.shape[2:]), self.observation.dtype)

    @property
    def slot_rows(self) -> int:
        """Row r of slot s is row s * `slot_rows` + r of all: one number is found much sooner than two."""
        return self.rollout_length + 1

    def look(self, at: list[int], into: NDArray) -> None:
        """Copies the observations of n rows to the front of `into` (n or more, E, *shape)."""
        found = [divmod(each, self.slot_rows) for each in at]
        # With the default mode it would be copied once more, in case of a row out of range.
        self._rows["observation"].take([slot * self.rollout_length + row for slot, row in found], axis=0, out=into[:len(at)],
                                       mode="clip")
        for number, (slot, row) in enumerate(found):
            if row == self.rollout_length:
                into[number] = self.following[slot]

    def when_asked(self, at: list[int]) -> list[float]:
        """When the predictions of n rows were asked for."""
        return list(map(self._rows["asked"].item, at))

    def answer(self, at: list[int], policy: NDArray[np.float32], value: NDArray[np.float32], version: int) -> None:
        """Writes policy (n, E, A), value (n, E) and version into n rows."""
        policies, values, versions = (self._rows[name] for name in ("policy", "value", "version"))
        for number, row in enumerate(at):
            policies[row], values[row], versions[row] = policy[number], value[number], version

    def gather(self, slots: Iterable[int], into: Batch, at: int) -> None:
        """Copies rollouts in `slots` to places at, at + 1, ... of `into`."""
        for place, slot in enumerate(slots, at):
            for name, facts in self._trained_on.items():
                into.arrays[name][place] = facts[slot]

    def lend(self, slots: list[int]) -> Batch | None:
        """The rollouts as they lie in `slots`, one or more; None if these do not lie side by side, in this order."""
        first, n = slots[0], len(slots)
        if slots != list(range(first, first + n)):
            return None
        return Batch({name: facts[first:first + n] for name, facts in self._trained_on.items()})
