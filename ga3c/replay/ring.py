"""The ring: what was played, as single observations, of each environment in a stream of its own.

A stream is a sequence of rows: an observation, the action taken on it, the reward, and how the step ended. An
observation that ended a truncated episode is a row without an action. Of an image that stacks its last planes only the
newest is kept, and the stack is rebuilt when it is drawn. So a million steps of Atari take 7.1 GB instead of 28. The
memory is this process's own and is committed as it fills.

A row's serial number counts all rows of its stream, so it names the row even after it was overwritten.

Index order: S streams, L rows of each, n samples, k planes of a stack.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.base import EnvSpec
from ga3c.replay.kernels import stack, stack_four

_COLUMNS = ("action", "reward", "version", "flags", "depth")
_TERMINATED, _OBSERVED = 1, 2  # flags: the step ended its episode; the row has an observation, but no action


class Sampled(NamedTuple):
    """Transitions of up to n steps, (n, ...).

    observation: the state. action: taken on it. returns: G, the discounted sum of the m rewards that follow. following:
    the state after them. discount: gamma^m, or 0 where the episode terminated, and `following` counts nothing.
    stream, serial: the row, for priorities. version: of the weights that played it.
    """

    observation: NDArray
    action: NDArray[np.int32]
    returns: NDArray[np.float32]
    following: NDArray
    discount: NDArray[np.float32]
    stream: NDArray[np.int64]
    serial: NDArray[np.int64]
    version: NDArray[np.int64]


def bytes_per_row(env: EnvSpec) -> int:
    """Returns the bytes that one row of a ring takes."""
    values = int(np.prod(env.observation_shape, dtype=np.int64)) // env.stacked
    return values * env.observation_dtype.itemsize + 4 + 4 + 8 + 1 + 1


class Ring:
    """The newest rows of each stream.

    Args:
        streams: the number of environments.
        capacity: rows of all streams together; each has an equal part.
        n_step: the most steps of a transition.
    """

    def __init__(self, env: EnvSpec, streams: int, capacity: int, n_step: int, gamma: float) -> None:
        planes = env.stacked
        self._shape = env.observation_shape
        self._planes = planes
        self.n_step = n_step
        self._gamma = gamma
        self.length = capacity // streams
        if self.length < n_step + 2 * planes:
            raise ValueError(f"{capacity} rows are too few for {streams} streams of {n_step + 2 * planes}")
        pixels = int(np.prod(self._shape, dtype=np.int64)) // planes
        # One row more, of zeros, stands for the planes that a young stack does not have.
        self._frames = np.zeros((streams * self.length + 1, pixels), env.observation_dtype)
        self._action = np.zeros((streams, self.length), np.int32)
        self._reward = np.zeros((streams, self.length), np.float32)
        self._version = np.zeros((streams, self.length), np.int64)
        self._flags = np.zeros((streams, self.length), np.uint8)
        self._depth = np.zeros((streams, self.length), np.uint8)  # planes before a row's own that belong to its stack
        self.written = np.zeros(streams, np.int64)  # rows of each stream so far
        self._buffers = [np.empty((0, pixels, planes), env.observation_dtype)] * 2
        self._whole = np.ones(streams, bool)        # whether the next row begins anew, or after an end

    # ------------------------------------------------------------------------------------------------ appending

    def append(self, stream: int, steps: Mapping[str, NDArray], following: NDArray) -> int:
        """Appends T steps of one environment. Returns the number of rows written.

        Args:
            steps: observation (T, *shape), action, reward, terminated, truncated and version (T,).
            following: (*shape), the observation after the last step. It is kept if that step truncated its episode. A
                truncation before the last step loses its final observation: the transitions to it end one step before.
        """
        before = int(self.written[stream])
        over = steps["terminated"] | steps["truncated"]
        last = len(over) - 1
        first = 0
        for end in [*np.flatnonzero(over[:-1]).tolist(), last]:
            part = slice(first, end + 1)
            self._write(stream, {name: array[part] for name, array in steps.items()})
            self._whole[stream] = over[end]
            if steps["truncated"][end]:
                if end < last:
                    self._flags[stream, (self.written[stream] - 1) % self.length] = _OBSERVED
                else:
                    self._observe(stream, following, self._next_depth(stream))
            first = end + 1
        return int(self.written[stream]) - before

    def append_all(self, first: int, steps: Mapping[str, NDArray], following: NDArray) -> NDArray[np.int64]:
        """Appends T steps of each of E environments, to the streams from `first` on. Returns the rows of each, (E,).

        Args:
            steps: as those of `append`, but (T, E, ...), and `version` (T,).
            following: (E, *shape).
        """
        truncated, over = steps["truncated"], steps["terminated"] | steps["truncated"]
        streams = first + np.arange(over.shape[1])
        alone = over[:-1].any(axis=0) | truncated[-1]
        if self._planes > 1:
            alone |= self._whole[streams]  # the first stack may need more rows
        rows = np.full(len(streams), len(over))
        for env in np.flatnonzero(alone).tolist():
            part = {name: array if array.ndim == 1 else array[:, env] for name, array in steps.items()}
            rows[env] = self.append(first + env, part, following[env])
        if not alone.all():  # most environments, most of the time: all at once
            envs = np.flatnonzero(~alone)
            self._write_all(streams[envs], envs, steps)
            self._whole[streams[envs]] = over[-1, envs]
        return rows

    def _write_all(self, streams: NDArray[np.int64], envs: NDArray[np.int64], steps: Mapping[str, NDArray]) -> None:
        """Writes the steps of `envs`, in none of which an episode begins or is cut, to their streams."""
        written, numbers = self.written[streams], np.arange(len(steps["action"]))[:, None]
        row = (written + numbers) % self.length
        newest = self._newest(steps["observation"])
        for at, env in enumerate(envs.tolist()):
            self._planes_of(int(streams[at]))[row[:, at]] = newest[:, env]
        depth = np.where(written > 0, self._depth[streams, (written - 1) % self.length] + 1, 0)
        self._depth[streams, row] = np.minimum(depth + numbers, self._planes - 1)
        self._action[streams, row] = steps["action"][:, envs]
        self._reward[streams, row] = steps["reward"][:, envs]
        self._version[streams, row] = steps["version"][:, None]
        self._flags[streams, row] = np.where(steps["terminated"][:, envs], _TERMINATED, 0)
        self.written[streams] = written + len(numbers)

    def cut(self, stream: int) -> None:
        """Notes that the stream goes on with another life: no transition leads over this place."""
        row = (self.written[stream] - 1) % self.length
        if self.written[stream] and not self._flags[stream, row] & _TERMINATED:
            self._flags[stream, row] = _OBSERVED
        self._whole[stream] = True

    def follow(self, other: Ring) -> NDArray[np.int64]:
        """Takes over the rows that another ring has more, of the same streams. Returns how many each stream got.

        The newest row of before is taken over again: the other ring may have noted that its life ended.
        """
        more = other.written - self.written
        for stream in np.flatnonzero(more).tolist():
            serial = np.arange(max(0, self.written[stream] - 1), other.written[stream])
            assert len(serial) <= min(self.length, other.length), "the other ring has forgotten some"
            row, its = serial % self.length, serial % other.length
            self._planes_of(stream)[row] = other._planes_of(stream)[its]
            for mine, theirs in zip(self._columns, other._columns, strict=True):
                mine[stream, row] = theirs[stream, its]
        self.written[:] = other.written
        self._whole[:] = other._whole
        return more

    @property
    def _columns(self) -> tuple[NDArray, ...]:
        return self._action, self._reward, self._version, self._flags, self._depth

    # ------------------------------------------------------------------------------------------------ in checkpoints

    def state(self, since: NDArray[np.int64] | None = None) -> dict[str, NDArray]:
        """Returns a copy of the rows that are there, or of those from the serial numbers `since` (S,) on."""
        first = np.maximum(self.written - self.length, 0 if since is None else since)
        rows = self._rows(first, self.written)
        columns = {name: column.reshape(-1)[rows] for name, column in zip(_COLUMNS, self._columns, strict=True)}
        return {"frames": self._frames[rows], **columns, "first": first, "written": self.written.copy(),
                "whole": self._whole.copy()}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Continues from a `state`. Raises ValueError, LookupError or TypeError, changing nothing, if it does not fit.
        """
        first, written = state["first"], state["written"]
        if written.shape != self.written.shape or not (first <= written).all() or (
                written - first > self.length).any():
            raise ValueError("the replay has other streams")
        rows = self._rows(first, written)
        names = ("frames", *_COLUMNS)
        places = [self._frames, *(column.reshape(-1) for column in self._columns)]
        for name, place in zip(names, places, strict=True):
            if state[name].shape != (len(rows), *place.shape[1:]) or state[name].dtype != place.dtype:
                raise ValueError(f"the replay has other {name}")
        for name, place in zip(names, places, strict=True):
            place[rows] = state[name]
        self.written[:], self._whole[:] = written, state["whole"]

    def _rows(self, first: NDArray[np.int64], written: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns where the rows of all streams lie, from their `first` serial numbers (S,) on."""
        return np.concatenate([stream * self.length + np.arange(start, end) % self.length
                               for stream, (start, end) in enumerate(zip(first, written, strict=True))])

    # ------------------------------------------------------------------------------------------------ the rows

    def _write(self, stream: int, steps: Mapping[str, NDArray]) -> None:
        """Writes rows of one episode, none of which but the last ends it."""
        observation = steps["observation"]
        depth = self._next_depth(stream)
        if self._planes > 1 and self._whole[stream]:
            depth = self._depth_of(stream, observation[0], depth)
        numbers = np.arange(len(observation))
        rows = (self.written[stream] + numbers) % self.length
        self._planes_of(stream)[rows] = self._newest(observation)
        self._depth[stream, rows] = np.minimum(depth + numbers, self._planes - 1)
        self._action[stream, rows] = steps["action"]
        self._reward[stream, rows] = steps["reward"]
        self._version[stream, rows] = steps["version"]
        self._flags[stream, rows] = np.where(steps["terminated"], _TERMINATED, 0)
        self.written[stream] += len(rows)

    def _observe(self, stream: int, observation: NDArray, depth: int) -> None:
        """Writes a row without an action."""
        row = self.written[stream] % self.length
        self._planes_of(stream)[row] = self._newest(observation)
        self._depth[stream, row] = depth
        self._action[stream, row] = self._reward[stream, row] = self._version[stream, row] = 0
        self._flags[stream, row] = _OBSERVED
        self.written[stream] += 1

    def _newest(self, observation: NDArray) -> NDArray:
        """Returns the newest plane of each observation, or all of an observation without planes: (..., P)."""
        kept = observation[..., -1] if self._planes > 1 else observation
        return kept.reshape(*observation.shape[:observation.ndim - len(self._shape)], -1)

    def _planes_of(self, stream: int) -> NDArray:
        """Returns the rows of a stream, (L, P)."""
        return self._frames[stream * self.length:(stream + 1) * self.length]

    def _next_depth(self, stream: int) -> int:
        """Returns how many planes before the next row belong to its stack, if the stack goes on."""
        if not self.written[stream]:
            return 0
        return min(int(self._depth[stream, (self.written[stream] - 1) % self.length]) + 1, self._planes - 1)

    def _depth_of(self, stream: int, observation: NDArray, depth: int) -> int:
        """Returns how many planes before the newest are in the rows before: after an end the stack may go on or not."""
        older = observation[..., :-1].reshape(-1, self._planes - 1)
        if not older.any():
            return 0
        serial, planes = int(self.written[stream]), self._planes_of(stream)
        if serial and all(np.array_equal(
                older[:, -1 - back], planes[(serial - 1 - back) % self.length] if back < depth else 0 * older[:, 0])
                          for back in range(self._planes - 1)):
            return depth
        for plane in range(self._planes - 1):
            alone = np.repeat(older[:, plane:plane + 1], self._planes, axis=1)
            self._observe(stream, alone.reshape(self._shape), plane)
        return self._planes - 1

    # ------------------------------------------------------------------------------------------------ drawing

    def oldest(self, written: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the serial number of the first row whose stack is whole, in streams of so many rows."""
        return np.where(written > self.length, written - self.length + self._planes - 1, 0)

    def usable(self, stream: NDArray[np.int64], serial: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns (n,): whether the rows have an action, are still there, and so is all that `draw` needs of them."""
        written = self.written[stream]
        there = (serial >= self.oldest(written)) & (serial < written)
        row = serial % self.length
        usable: NDArray[np.bool_] = there & (self._flags[stream, row] & _OBSERVED == 0)
        steps, ended = self._steps(stream, serial)
        usable &= ended | (serial + steps < written)
        return usable

    def _steps(self, stream: NDArray[np.int64], serial: NDArray[np.int64]
               ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns (steps m of each transition, whether its episode terminated)."""
        steps = np.zeros(len(serial), np.int64)
        ended = np.zeros(len(serial), bool)
        going = np.ones(len(serial), bool)
        for k in range(self.n_step):
            flags = self._flags[stream, (serial + k) % self.length]
            going &= (flags & _OBSERVED == 0) & (serial + k < self.written[stream])
            steps += going
            ended |= going & (flags & _TERMINATED != 0)
            going &= flags & _TERMINATED == 0
        return steps, ended

    def draw(self, stream: NDArray[np.int64], serial: NDArray[np.int64]) -> Sampled:
        """Returns the transitions that begin in these rows (n,), all of them `usable`.

        The next draw overwrites the observations: to take new memory for them takes longer than to fill it.
        """
        steps, ended = self._steps(stream, serial)
        returns = np.zeros(len(serial), np.float32)
        for k in range(self.n_step):
            reward = self._reward[stream, (serial + k) % self.length]
            returns += np.where(k < steps, np.float32(self._gamma**k) * reward, np.float32(0.0))
        discount = np.where(ended, 0.0, self._gamma**steps).astype(np.float32)
        after = np.where(ended, serial, serial + steps)  # any row, where nothing follows
        return Sampled(self._observations(stream, serial, 0), self._action[stream, serial % self.length], returns,
                       self._observations(stream, after, 1), discount, stream, serial,
                       self._version[stream, serial % self.length])

    def _observations(self, stream: NDArray[np.int64], serial: NDArray[np.int64], buffer: int) -> NDArray:
        row = stream * self.length + serial % self.length
        if self._planes == 1:
            observations: NDArray = self._frames[row].reshape(-1, *self._shape)
            return observations
        back = np.arange(self._planes - 1, -1, -1)
        rows = stream[:, None] * self.length + (serial[:, None] - back) % self.length
        rows[back > self._depth[stream, serial % self.length][:, None]] = len(self._frames) - 1
        if len(self._buffers[buffer]) < len(serial):
            self._buffers[buffer] = np.empty((len(serial), self._frames.shape[1], self._planes), self._frames.dtype)
        stacks = self._buffers[buffer][:len(serial)]
        if self._planes == 4 and stacks.dtype == np.uint8 and sys.byteorder == "little":
            stack_four(self._frames, rows, stacks.view(np.uint32).reshape(len(serial), -1))
        else:
            stack(self._frames, rows, stacks)
        observations = stacks.reshape(-1, *self._shape)
        return observations
