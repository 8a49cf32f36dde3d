"""The main process's learner for A3C on processors. It reads the shared weights, which the workers update.

It makes no update and no prediction of a run. The workers do (`service/a3c_worker.py`).
"""

from __future__ import annotations

import math

from numpy.typing import NDArray

from ga3c.envs.base import EnvSpec
from ga3c.learner.backend import make_differentiating
from ga3c.learner.learner import UpdateStats, make_algorithm
from ga3c.learner.samples import batch_fields
from ga3c.learner.shared_weights import SharedWeights, WorkerReport
from ga3c.learner.skips import Skips
from ga3c.settings.schema import Settings
from ga3c.transport.slots import Batch


class SharedLearner:
    """A `learner.Model` whose weights are in `shared`.

    settings: with the precision that workers compute in. outputs: the fields that the model returns, for `Slots`.
    skips: counts of what was not finite.
    """

    def __init__(self, settings: Settings, env: EnvSpec) -> None:
        algorithm = make_algorithm(settings)
        self._backend = make_differentiating(
            settings, env, algorithm, batch_fields(settings, env, algorithm.outputs(env)))
        self.precision = self._backend.precision
        self.device = self._backend.device
        self.settings = settings.changed(precision=self.precision)
        self.outputs = algorithm.outputs(env)
        self.acting = algorithm.acting
        self._metrics = (*self._backend.metrics, "passes", "learning_rate")
        workers, _, _ = settings.schedule.most
        self.shared = SharedWeights(self._backend.arrays(), self._backend.statistics(), workers,
                                    workers * settings.agents.slots_per_agent, len(self._metrics))
        self.skips, self.minibatch_seconds = Skips(), 0.0  # none is in this process

    @property
    def version(self) -> int:
        """Updates so far."""
        return self.shared.version

    @property
    def learning_rate_factor(self) -> float:
        """Multiplies the scheduled learning rate."""
        return self.shared.learning_rate_factor

    @learning_rate_factor.setter
    def learning_rate_factor(self, factor: float) -> None:
        self.shared.learning_rate_factor = factor

    def read_update(self, slot: int, batch: Batch) -> tuple[UpdateStats | None, WorkerReport]:
        """Returns the update that a worker made from this slot's rollout, and the worker's report.

        The update is None if none was made. Raises Diverged after `SKIPS_MAX` updates in a row that were not finite.
        """
        report = self.shared.read_report(slot)
        metrics = dict(zip(self._metrics, report.metrics, strict=True))
        if report.version:
            self.skips.record_update(report.version, 0)
            return UpdateStats(report.version, batch.agent_steps, metrics), report
        if batch.version[0, 0] >= self.shared.min_valid_version and not all(map(math.isfinite, metrics.values())):
            self.skips.record_skip(self.version + 1, metrics)
        return None, report

    def state(self) -> tuple[dict[str, NDArray], int]:
        """Returns (weights and optimizer by name, version) as they are now. Workers may push meanwhile."""
        version = self.version
        return self.shared.arrays(), version

    def can_read_state(self) -> bool:
        """Returns True: `state` always works."""
        return True

    def start_from(self, arrays: dict[str, NDArray]) -> None:
        """As `Learner.start_from`."""
        fitting = self._backend.matching_arrays(arrays, only=("network.", "observation."))
        self.shared.restart_from({**self.shared.arrays(), **fitting}, 0, 0)

    def restore(self, arrays: dict[str, NDArray], version: int) -> None:
        """As `Learner.restore`."""
        self.shared.restart_from(self._backend.matching_arrays(arrays), version, self.shared.min_valid_version)

    def go_back(self, arrays: dict[str, NDArray]) -> None:
        """As `Learner.go_back`. Workers push no more updates of the abandoned weights."""
        arrays = self._backend.matching_arrays(arrays)
        version = self.version + 1  # as late as possible: workers go on pushing until the restart begins
        self.shared.restart_from(arrays, version, version)
        self.skips.in_a_row = 0
