"""Weights that several processes learn by, in shared memory, and the statistics of the optimizer that go with them.

Asynchronous methods: Mnih et al., ICML 2016, section 4 and algorithm S3. Each worker takes a copy of the weights, and
later pushes a gradient. It reads and writes them without a lock, as in Hogwild (Recht et al., 2011): of two pushes at
the same moment a few numbers of one may be lost. So it may be with weights and with statistics, and with nothing else:
every counter has one writer:

- All workers write weights, the optimizer's statistics and the algorithm's variables.
- Each worker writes its own row of updates and agent steps: made, brought into the weights, and still pending.
- It also writes what it tells of an update, in the row of a slot, until it submits that slot.
- The main process writes the totals before and the learning rate's factor.

This module knows no TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.learner.numpy_optimizers import MultiStepAdam, adam, rmsprop
from ga3c.settings.schema import AlgorithmSettings
from ga3c.transport.block import Block
from ga3c.transport.fields import Field

_CHUNK = 2**14  # weights at a time: they stay in the cache, and what others push meanwhile is lost of these few only


class Pushed(NamedTuple):
    """What a worker tells of one rollout.

    version, agent_steps: totals after its push; 0 if nothing was pushed. metrics: what was measured, in the order of
    their names, the learning rate last. updating: seconds. predictions, calls: observations, and calls of the model
    for them.
    """

    version: int
    agent_steps: int
    metrics: list[float]
    updating: float
    predictions: int
    calls: int


class SharedWeights:
    """Arrays by name, as `Variables.arrays` has them, for `workers` processes. Passing it to one shares it.

    Args:
        arrays: what they begin with.
        statistics: for each trainable array its name and those of its statistics, as of `Variables.statistics`.
        slots: of all workers.
        metrics: how many numbers a worker tells of an update.
    """

    def __init__(self, arrays: Mapping[str, NDArray], statistics: Sequence[tuple[str, ...]], workers: int, slots: int,
                 metrics: int) -> None:
        self.statistics = tuple(statistics)
        shapes = {name: Field(array.shape, array.dtype) for name, array in arrays.items()}
        whole, real = np.int64, np.float64
        self._block = Block("weights", {
            **{f"shared.{name}": field for name, field in shapes.items()},
            # updates: made; added: into the weights here; pending: made of a copy, and not yet added.
            **{name: Field((workers,), whole) for name in ("updates", "added", "pending", "agent_steps")},
            "before": Field((3,), whole),  # version, agent steps, steps of the optimizer: beside those of the workers
            "min_valid_version": Field((), whole), "being_set": Field((), whole),
            "learning_rate_factor": Field((), real),
            "pushed": Field((slots, len(Pushed._fields) - 1), real), "metrics": Field((slots, metrics), real)})
        self.set(arrays, 0, 0, 0)
        self.learning_rate_factor = 1.0

    # ------------------------------------------------------------------------------------ counters

    def _total(self, which: int, rows: str) -> int:
        arrays = self._block.arrays
        return int(arrays["before"][which] + arrays[rows].sum())

    @property
    def version(self) -> int:
        """Updates so far, of all workers."""
        return self._total(0, "updates")

    @property
    def agent_steps(self) -> int:
        """Agent steps learned from so far, of all workers."""
        return self._total(1, "agent_steps")

    @property
    def min_valid_version(self) -> int:
        """The first version of these weights' line."""
        return int(self._block.arrays["min_valid_version"])

    @property
    def learning_rate_factor(self) -> float:
        """The scheduled learning rate is multiplied by it. The main process alone sets it."""
        return float(self._block.arrays["learning_rate_factor"])

    @learning_rate_factor.setter
    def learning_rate_factor(self, factor: float) -> None:
        self._block.arrays["learning_rate_factor"][...] = factor

    def updates_of(self, worker: int) -> int:
        """Updates that this worker has made, all its processes together."""
        return int(self._block.arrays["updates"][worker])

    # ------------------------------------------------------------------------------------ for the main process

    def arrays(self) -> dict[str, NDArray]:
        """A copy of all arrays by name; the number of the optimizer's steps is among them."""
        found = {name.removeprefix("shared."): array.copy() for name, array in self._block.arrays.items()
                 if name.startswith("shared.")}
        found["optimizer.00"][...] = self._total(2, "added")
        return found

    def set(self, arrays: Mapping[str, NDArray], version: int, agent_steps: int, min_valid_version: int) -> None:
        """Begins again from these arrays and totals. Updates by weights older than `min_valid_version` are refused."""
        own = self._block.arrays
        own["being_set"][...] = 1
        own["min_valid_version"][...] = min_valid_version
        for name, array in arrays.items():
            own[f"shared.{name}"][...] = array
        own["before"][:] = (version - own["updates"].sum(), agent_steps - own["agent_steps"].sum(),
                            int(arrays["optimizer.00"]) - own["added"].sum())
        own["being_set"][...] = 0

    def pushed(self, slot: int) -> Pushed:
        """What was told of the rollout in this slot, which was submitted."""
        version, agent_steps, updating, predictions, calls = self._block.arrays["pushed"][slot].tolist()
        return Pushed(int(version), int(agent_steps), self._block.arrays["metrics"][slot].tolist(), updating,
                      int(predictions), int(calls))

    # ------------------------------------------------------------------------------------ for workers

    def pull(self, worker: int) -> tuple[int, dict[str, NDArray]]:
        """(version, a copy of the network's weights and of the algorithm's variables) for this worker.

        What others have still pending is not in them, so the version is without it: it counts as lag. What a
        quarantined worker had pending counts to the end of the run.
        """
        own = self._block.arrays
        own["pending"][worker] = 0  # added, or given up; or an earlier process of this worker has died with it
        # Before they are read: what is pushed meanwhile counts as lag, too.
        setting, least = bool(own["being_set"]), self.min_valid_version
        version = max(self.version - int(own["pending"].sum()), least)
        pulled = {name.removeprefix("shared."): array.copy() for name, array in own.items()
                  if name.startswith("shared.") and not name.startswith("shared.optimizer.")}
        if setting or own["being_set"] or least != self.min_valid_version:  # of two lines: not to be learned with
            version = min(version, self.min_valid_version - 1)
        return version, pulled

    def push(self, worker: int, settings: AlgorithmSettings, learning_rate: float, gradients: Sequence[NDArray],
             state: Mapping[str, NDArray], agent_steps: int) -> tuple[int, int]:
        """One update by these gradients, one for each of `statistics`, with the statistics of now.

        state: what variables become that no gradient changes. The last worker's stand: sums of what several workers
        added to a decaying mean would not decay. Returns (version, agent steps) after it.
        """
        step = self._total(2, "added") + 1
        for at, part, weights, *kept in self._parts():
            by = gradients[at].reshape(-1)[part]
            if settings.optimizer == "adam":
                adam(weights, kept[0], kept[1], by, learning_rate, settings.adam_epsilon, step)
            else:
                rmsprop(weights, kept[0], by, learning_rate, settings.rmsprop_decay, settings.rmsprop_epsilon,
                        settings.optimizer == "rmsprop-pytorch")
        self._set_state(state)
        self._block.arrays["added"][worker] += 1
        return self._counted(worker, agent_steps)

    def steps(self, settings: AlgorithmSettings, pulled: Mapping[str, NDArray]) -> MultiStepAdam:
        """For a worker that makes several updates of the weights it has pulled before it shares them by `add`."""
        weights, means, mean_squares = zip(*self.statistics, strict=True)
        own = self._block.arrays
        return MultiStepAdam([pulled[name] for name in weights], [own[f"shared.{name}"].copy() for name in means],
                             [own[f"shared.{name}"].copy() for name in mean_squares],
                             self._total(2, "added"), settings.adam_epsilon)

    def count(self, worker: int, agent_steps: int) -> tuple[int, int]:
        """An update of so many steps was made of a copy. Returns (version, agent steps) after it."""
        self._block.arrays["pending"][worker] += 1
        return self._counted(worker, agent_steps)

    def _counted(self, worker: int, agent_steps: int) -> tuple[int, int]:
        self._block.arrays["updates"][worker] += 1
        self._block.arrays["agent_steps"][worker] += agent_steps
        return self.version, self.agent_steps

    def add(self, worker: int, steps: MultiStepAdam, state: Mapping[str, NDArray]) -> None:
        """Adds updates that were counted when they were made. state: as of `push`."""
        for at, part, *arrays in self._parts():
            steps.add(at, part, *arrays)
        self._set_state(state)
        self._block.arrays["added"][worker] += steps.taken
        self._block.arrays["pending"][worker] = 0

    def _parts(self) -> Iterator[tuple[Any, ...]]:
        """(which of `statistics`, part, that part of the flat weights and of each of their statistics)"""
        for at, names in enumerate(self.statistics):
            flat = [self._block.arrays[f"shared.{name}"].reshape(-1) for name in names]
            for begin in range(0, len(flat[0]), _CHUNK):
                part = slice(begin, begin + _CHUNK)
                yield at, part, *(array[part] for array in flat)

    def _set_state(self, state: Mapping[str, NDArray]) -> None:
        for name, array in state.items():
            self._block.arrays[f"shared.{name}"][...] = array

    def tell(self, slot: int, pushed: Pushed) -> None:
        """Leaves word of the rollout in this slot, before it is submitted."""
        self._block.arrays["metrics"][slot] = pushed.metrics
        self._block.arrays["pushed"][slot] = [number for name, number in pushed._asdict().items() if name != "metrics"]
