"""Weights that several processes update in shared memory, and the optimizer's statistics of them.

Asynchronous methods: Mnih et al., ICML 2016, section 4 and algorithm S3. Each worker copies the weights, and later
pushes a gradient. Workers read and write without a lock, as in Hogwild (Recht et al., 2011). Two pushes at the same
moment may lose a few numbers of one. Only weights and statistics may lose numbers. Every counter has one writer:

- All workers write weights, the optimizer's statistics and the algorithm's variables.
- Each worker writes its own row of updates: made, added to the weights, and still pending.
- Each worker writes its report on an update, in the row of a slot, until it submits that slot.
- The main process writes the totals from before, the agent steps collected, and the learning rate's factor.

This module does not import TensorFlow.
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

_CHUNK = 2**14  # weights at a time: they stay in the cache, and a push meanwhile loses numbers of these few only


class WorkerReport(NamedTuple):
    """A worker's report on one rollout.

    version: after its update; 0 if none was made. metrics: measured numbers, in the order of their names, the learning
    rate last. updating: seconds that the update took. predictions: observations predicted. calls: calls of the model
    for them.
    """

    version: int
    metrics: list[float]
    updating: float
    predictions: int
    calls: int


class SharedWeights:
    """Arrays by name, as from `Variables.arrays`, for `workers` processes. Passing the object to a process shares it.

    Args:
        arrays: the initial values.
        statistics: for each trainable array its name and those of its statistics, as of `Variables.statistics`.
        slots: of all workers.
        metrics: how many numbers a worker reports of an update.
    """

    def __init__(self, arrays: Mapping[str, NDArray], statistics: Sequence[tuple[str, ...]], workers: int, slots: int,
                 metrics: int) -> None:
        self.statistics = tuple(statistics)
        shapes = {name: Field(array.shape, array.dtype) for name, array in arrays.items()}
        whole, real = np.int64, np.float64
        self._block = Block("weights", {
            **{f"shared.{name}": field for name, field in shapes.items()},
            # updates: made; added: to the weights here; pending: made of a worker's copy, and not yet added.
            **{name: Field((workers,), whole) for name in ("updates", "added", "pending")},
            "before": Field((2,), whole),  # version and optimizer's steps: without the workers' own
            "agent_steps": Field((), whole),
            "min_valid_version": Field((), whole), "being_set": Field((), whole),
            "learning_rate_factor": Field((), real),
            "reports": Field((slots, len(WorkerReport._fields) - 1), real), "metrics": Field((slots, metrics), real)})
        self.restart_from(arrays, 0, 0)
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
        """Agent steps collected so far, which the rates follow. Only the main process sets them."""
        return int(self._block.arrays["agent_steps"])

    @agent_steps.setter
    def agent_steps(self, agent_steps: int) -> None:
        self._block.arrays["agent_steps"][...] = agent_steps

    @property
    def min_valid_version(self) -> int:
        """The lowest valid version. Updates from earlier weights are rejected."""
        return int(self._block.arrays["min_valid_version"])

    @property
    def learning_rate_factor(self) -> float:
        """Multiplies the scheduled learning rate. Only the main process sets it."""
        return float(self._block.arrays["learning_rate_factor"])

    @learning_rate_factor.setter
    def learning_rate_factor(self, factor: float) -> None:
        self._block.arrays["learning_rate_factor"][...] = factor

    def updates_of(self, worker: int) -> int:
        """Returns the updates that this worker has made, all its processes together."""
        return int(self._block.arrays["updates"][worker])

    # ------------------------------------------------------------------------------------ for the main process

    def arrays(self) -> dict[str, NDArray]:
        """Returns a copy of all arrays by name, including the number of the optimizer's steps."""
        arrays = {name.removeprefix("shared."): array.copy() for name, array in self._block.arrays.items()
                  if name.startswith("shared.")}
        arrays["optimizer.00"][...] = self._total(1, "added")
        return arrays

    def restart_from(self, arrays: Mapping[str, NDArray], version: int, min_valid_version: int) -> None:
        """Restarts from these arrays and this version. Refuses updates from weights before `min_valid_version`."""
        own = self._block.arrays
        own["being_set"][...] = 1
        own["min_valid_version"][...] = min_valid_version
        for name, array in arrays.items():
            own[f"shared.{name}"][...] = array
        own["before"][:] = version - own["updates"].sum(), int(arrays["optimizer.00"]) - own["added"].sum()
        own["being_set"][...] = 0

    def read_report(self, slot: int) -> WorkerReport:
        """Returns the report on the rollout in this slot, which was submitted."""
        version, updating, predictions, calls = self._block.arrays["reports"][slot].tolist()
        return WorkerReport(int(version), self._block.arrays["metrics"][slot].tolist(), updating, int(predictions),
                            int(calls))

    # ------------------------------------------------------------------------------------ for workers

    def pull(self, worker: int) -> tuple[int, dict[str, NDArray]]:
        """Returns (version, a copy of the network's weights and of the algorithm's variables) for this worker.

        Pending updates of other workers are not in the copy. So the version leaves them out, and they count as lag.
        Pending updates of a quarantined worker count until the run ends.
        """
        own = self._block.arrays
        own["pending"][worker] = 0  # added or abandoned, or lost with an earlier process of this worker
        # The version is read before the weights, so that pushes in between count as lag, too.
        setting, least = bool(own["being_set"]), self.min_valid_version
        version = max(self.version - int(own["pending"].sum()), least)
        pulled = {name.removeprefix("shared."): array.copy() for name, array in own.items()
                  if name.startswith("shared.") and not name.startswith("shared.optimizer.")}
        if setting or own["being_set"] or least != self.min_valid_version:  # a mix: its updates are rejected
            version = min(version, self.min_valid_version - 1)
        return version, pulled

    def push(self, worker: int, settings: AlgorithmSettings, learning_rate: float, gradients: Sequence[NDArray],
             state: Mapping[str, NDArray]) -> int:
        """Makes one update by these gradients, one for each of `statistics`, with the current statistics.

        state: new values of variables that no gradient changes. The last worker's values stay: additions of several
        workers to a decaying mean would not decay. Returns the version after the update.
        """
        step = self._total(1, "added") + 1
        for at, part, weights, *kept in self._parts():
            by = gradients[at].reshape(-1)[part]
            if settings.optimizer == "adam":
                adam(weights, kept[0], kept[1], by, learning_rate, settings.adam_epsilon, step)
            else:
                rmsprop(weights, kept[0], by, learning_rate, settings.rmsprop_decay, settings.rmsprop_epsilon,
                        settings.optimizer == "rmsprop-pytorch")
        self._set_state(state)
        self._block.arrays["added"][worker] += 1
        return self._counted(worker)

    def steps(self, settings: AlgorithmSettings, pulled: Mapping[str, NDArray]) -> MultiStepAdam:
        """Returns the optimizer of a worker that updates its own copy several times before it shares them by `add`."""
        weights, means, mean_squares = zip(*self.statistics, strict=True)
        own = self._block.arrays
        return MultiStepAdam([pulled[name] for name in weights], [own[f"shared.{name}"].copy() for name in means],
                             [own[f"shared.{name}"].copy() for name in mean_squares],
                             self._total(1, "added"), settings.adam_epsilon)

    def count(self, worker: int) -> int:
        """Counts an update made on a copy. Returns the version after it."""
        self._block.arrays["pending"][worker] += 1
        return self._counted(worker)

    def _counted(self, worker: int) -> int:
        self._block.arrays["updates"][worker] += 1
        return self.version

    def add(self, worker: int, steps: MultiStepAdam, state: Mapping[str, NDArray]) -> None:
        """Adds updates that were counted when they were made. state: as of `push`."""
        for at, part, *arrays in self._parts():
            steps.add(at, part, *arrays)
        self._set_state(state)
        self._block.arrays["added"][worker] += steps.taken
        self._block.arrays["pending"][worker] = 0

    def _parts(self) -> Iterator[tuple[Any, ...]]:
        """Yields (index in `statistics`, slice, that slice of the flat weights and of each of their statistics)."""
        for at, names in enumerate(self.statistics):
            flat = [self._block.arrays[f"shared.{name}"].reshape(-1) for name in names]
            for begin in range(0, len(flat[0]), _CHUNK):
                part = slice(begin, begin + _CHUNK)
                yield at, part, *(array[part] for array in flat)

    def _set_state(self, state: Mapping[str, NDArray]) -> None:
        for name, array in state.items():
            self._block.arrays[f"shared.{name}"][...] = array

    def write_report(self, slot: int, report: WorkerReport) -> None:
        """Writes the report on the rollout in this slot, before it is submitted."""
        self._block.arrays["metrics"][slot] = report.metrics
        self._block.arrays["reports"][slot] = [number for name, number in report._asdict().items() if name != "metrics"]
