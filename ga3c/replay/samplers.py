"""Samplers: which rows of a ring are drawn. Each row that can be drawn has a chance; overwritten rows have none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ga3c.replay.ring import Ring, Sampled
from ga3c.replay.sum_tree import SumTree


class Drawn(NamedTuple):
    """What a sampler draws. weight (n,): importance weights, at most 1; 1 for all if rows are drawn uniformly."""

    sampled: Sampled
    weight: NDArray[np.float32]


class Sampler(Protocol):
    """Draws transitions of a ring."""

    def appended(self, stream: int, rows: int) -> None:
        """Hears that the stream has so many rows more."""

    def draw(self, n: int, beta: float, rng: np.random.Generator) -> Drawn:
        """Draws n transitions, with replacement. Raises ValueError if none can be drawn.

        beta: how far importance weights undo the choice by priority; 1: wholly.
        """

    def report(self, stream: NDArray[np.int64], serial: NDArray[np.int64], error: NDArray[np.float32]) -> None:
        """Hears of the errors (n,) of transitions that were drawn. Rows that were overwritten since are left out."""

    def state(self) -> dict[str, NDArray]:
        """Returns what a checkpoint has of it beside the ring."""

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """Continues from a `state`. Raises ValueError or LookupError, changing nothing, if it does not fit."""


class Uniform:
    """Draws each transition with the same probability."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    def appended(self, stream: int, rows: int) -> None:
        """See `Sampler.appended`. Nothing is kept."""

    def draw(self, n: int, beta: float, rng: np.random.Generator) -> Drawn:
        """See `Sampler.draw`. Rows are drawn until n of them can be used, which are most rows."""
        ring = self._ring
        oldest = ring.oldest(ring.written)
        sizes = ring.written - oldest
        ends = np.cumsum(sizes)
        streams, serials = list[NDArray[np.int64]](), list[NDArray[np.int64]]()
        missing = n
        for _ in range(100):
            number = rng.integers(ends[-1], size=2 * missing + 8) if ends[-1] else np.empty(0, np.int64)
            stream = np.searchsorted(ends, number, side="right")
            serial = oldest[stream] + number - (ends - sizes)[stream]
            usable = np.flatnonzero(ring.usable(stream, serial))[:missing]
            streams.append(stream[usable])
            serials.append(serial[usable])
            missing -= len(usable)
            if not missing:
                return Drawn(ring.draw(np.concatenate(streams), np.concatenate(serials)), np.ones(n, np.float32))
        raise ValueError("the ring has no transition, or hardly any")

    def report(self, stream: NDArray[np.int64], serial: NDArray[np.int64], error: NDArray[np.float32]) -> None:
        """See `Sampler.report`. Errors change nothing."""

    def state(self) -> dict[str, NDArray]:
        """See `Sampler.state`."""
        return {}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """See `Sampler.restore`."""


class Prioritised:
    """Draws by priority |error|^alpha (Schaul et al., Prioritized Experience Replay, 2016, section 3).

    A new transition has the largest priority so far.
    """

    def __init__(self, ring: Ring, alpha: float) -> None:
        self._ring = ring
        self._alpha = alpha
        self._tree = SumTree(len(ring.written) * ring.length)
        self._largest = 1.0

    def appended(self, stream: int, rows: int) -> None:
        """See `Sampler.appended`. Gives the new rows the largest priority, and those written over none."""
        ring = self._ring
        written = int(ring.written[stream])
        first = written - rows
        before, now = ring.oldest(np.array([first, written])).tolist()
        for gone in (np.arange(before, now), np.arange(first, written)):
            self._set(np.full(len(gone), stream), gone, np.zeros(len(gone)))
        new = np.arange(max(now, first - ring.n_step), written)
        streams = np.full(len(new), stream)
        new = new[ring.usable(streams, new) & (self._priorities(streams, new) == 0.0)]
        self._set(np.full(len(new), stream), new, np.full(len(new), self._largest))

    def draw(self, n: int, beta: float, rng: np.random.Generator) -> Drawn:
        """See `Sampler.draw`."""
        length = self._ring.length
        if not self._tree.total:
            raise ValueError("the ring has no transition")
        stream, row = np.divmod(self._tree.draw(n, rng), length)
        written = self._ring.written[stream]
        serial = written - 1 - (written - 1 - row) % length
        weight = self._priorities(stream, serial) ** -beta  # what all weights have in common is divided out
        return Drawn(self._ring.draw(stream, serial), (weight / weight.max()).astype(np.float32))

    def report(self, stream: NDArray[np.int64], serial: NDArray[np.int64], error: NDArray[np.float32]) -> None:
        """See `Sampler.report`. The new priority is (|error| + 1e-6)^alpha."""
        there = np.isfinite(error) & self._ring.usable(stream, serial)
        priority = (np.abs(error[there]).astype(np.float64) + 1e-6) ** self._alpha
        self._largest = max(self._largest, priority.max(initial=0.0))
        self._set(stream[there], serial[there], priority)

    def state(self) -> dict[str, NDArray]:
        """See `Sampler.state`."""
        return {"priorities": self._tree.priorities.copy(), "largest": np.array(self._largest)}

    def restore(self, state: Mapping[str, NDArray]) -> None:
        """See `Sampler.restore`."""
        if "priorities" not in state or state["priorities"].shape != self._tree.priorities.shape:
            raise ValueError("it has other priorities, or none")
        priorities, largest = state["priorities"], float(state["largest"])
        self._tree.assign(np.arange(len(priorities)), priorities)
        self._largest = largest

    def _leaves(self, stream: NDArray[np.int64], serial: NDArray[np.int64]) -> NDArray[np.int64]:
        return stream * self._ring.length + serial % self._ring.length

    def _priorities(self, stream: NDArray[np.int64], serial: NDArray[np.int64]) -> NDArray[np.float64]:
        return self._tree.priorities[self._leaves(stream, serial)]

    def _set(self, stream: NDArray[np.int64], serial: NDArray[np.int64], priority: NDArray[np.float64]) -> None:
        self._tree.assign(self._leaves(stream, serial), priority)
