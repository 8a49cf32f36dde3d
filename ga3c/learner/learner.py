"""The learner of the service: predictions, updates, weights.

It owns the update lock, the version, and the rates that follow agent steps, as the learning rate.

Predictions do not wait for an update to end, as in the paper. Updates run one at a time. A backend
(`learner.backend`) does the computation. The algorithm defines what is learned, see `algorithms.base`.

Next hop of an observation after `predict`: `transport.channel.Channel.answer`, back to its agent. `update` is the last
hop.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

from numpy.typing import NDArray

from ga3c.algorithms.acting import Acting, no_exploration
from ga3c.algorithms.base import Algorithm, Rates, annealed, rates_at
from ga3c.algorithms.own import OwnAlgorithm
from ga3c.envs.base import EnvSpec
from ga3c.envs.containment import contained, reraising
from ga3c.envs.factory import import_callable
from ga3c.learner.backend import Observed, Weights, make_updating
from ga3c.learner.failures import DeviceFailed, TooLarge
from ga3c.learner.samples import batch_fields
from ga3c.learner.skips import Diverged, Skips
from ga3c.settings.algorithms import facts
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field, Outputs
from ga3c.transport.slots import Batch

__all__ = ["DeviceFailed", "Diverged", "Learner", "Model", "Observed", "Outputs", "Snapshot", "TooLarge", "UpdateStats",
           "stuck"]

_TARGET = "target."   # before the names of the target network's arrays in a `state`
UPDATE_TIMEOUT = 5.0  # seconds that a checkpoint waits for an update; at least twice as long as the last one took


class UpdateStats(NamedTuple):
    """The result of one update.

    version: after it. batch_steps: agent steps in its batch, also those that were in an earlier batch. rows: what the
    loss says of each row, see `Updated.rows`. metrics: what the algorithm measured, means per agent step and over
    minibatches; `gradient_norm` (before clipping), `passes` and `learning_rate`; with `settings.run.norms` also
    `weight_norm` and `step_norm`. waited: seconds that it waited for another trainer's update.
    """

    version: int
    batch_steps: int
    metrics: dict[str, float]
    waited: float = 0.0
    rows: Mapping[str, NDArray] = MappingProxyType({})


class Snapshot(NamedTuple):
    """Weights to predict with, and their version. A snapshot never changes: an update replaces it."""

    version: int
    weights: Weights


class Decision(NamedTuple):
    """What an update needs to know, decided before it begins, as several learners have to decide it together.

    rates: of this update, by name. target: the weights of the target network. seed: of the order of its minibatches.
    """

    rates: Rates
    target: Weights
    seed: tuple[int, int]


def stuck(seconds: float) -> DeviceFailed:
    """Returns the error to raise when an update has not ended after `seconds`."""
    return DeviceFailed(f"an update did not end within {seconds:g} s: the device is stuck, or the update too large; "
                        "ga3c-doctor tries each device; a smaller --envs-per-agent makes updates smaller, and with "
                        "--schedule queues a smaller --training-batch-min")


def make_algorithm(settings: Settings) -> Algorithm:
    """Makes the algorithm in the settings: a built-in one, or the user's class `module:Class`. Raises ConfigError."""
    name = settings.algorithm.algorithm
    with contained(), reraising(f"algorithm: {name!r} cannot be made", ConfigError):
        made: Algorithm = import_callable(facts(name).path, "algorithm")(settings)
    return OwnAlgorithm(name, made) if ":" in name else made


class Model(Protocol):
    """The part of a learner that the record, evaluations and the command use. `Learner` documents it."""

    learning_rate_factor: float
    skips: Skips
    minibatch_seconds: float
    outputs: dict[str, Field]
    acting: Acting
    precision: str
    device: str

    @property
    def version(self) -> int: ...  # noqa: E704

    def state(self) -> tuple[dict[str, NDArray], int]: ...  # noqa: E704

    def can_read_state(self) -> bool: ...  # noqa: E704

    def start_from(self, arrays: dict[str, NDArray]) -> None: ...  # noqa: E704

    def restore(self, arrays: dict[str, NDArray], version: int) -> None: ...  # noqa: E704

    def go_back(self, arrays: dict[str, NDArray]) -> None: ...  # noqa: E704


class Learner:
    """The weights, and the updates that change them. `predict` and `update` may be called from any thread.

    Predictions use the weights that were last published, updates the newest. An update reads the target network if its
    algorithm does: the weights when `keep_target` was last called. The schedule says when to publish, and when to keep.

    version: updates so far; a return to a checkpoint counts as one. min_valid_version: the version at the last return
    to a checkpoint; rollouts of earlier versions must not be trained on, which the source sees to.
    learning_rate_factor: multiplies the scheduled learning rate. skips: counts of what was not finite. ending_early:
    whether an update ends after its current minibatch, and no other begins. minibatch_seconds: of the last update, in
    the mean. outputs: the fields that `predict` returns, for `Slots`. acting: how agents act on them. precision: of the
    network's inner layers. device: what computes it.
    """

    def __init__(self, settings: Settings, env: EnvSpec, fields: Mapping[str, Field] | None = None) -> None:
        """`fields`: what the source of batches states, see `service.batches.BatchSource`; None: as the settings say.
        """
        algorithm = make_algorithm(settings)
        self._seed = settings.run.seed
        self._rates_at = functools.partial(
            rates_at, annealed(settings.algorithm, algorithm), settings.algorithm.anneal_steps)
        self.outputs = algorithm.outputs(env)
        self.acting = algorithm.acting
        self._environments = settings.schedule.agents * settings.agents.envs_per_agent
        self._backend = make_updating(
            settings, env, algorithm, fields or batch_fields(settings, env, self.outputs))
        self.precision = self._backend.precision
        self.device = self._backend.device
        self.version = self.min_valid_version = 0
        self.learning_rate_factor = 1.0
        self.ending_early = False
        self.skips = Skips()
        self.minibatch_seconds = 0.0
        self._update_lock, self._ended, self._last_took = threading.Lock(), 0, 0.0  # updates ended; seconds of the last
        self._reads_target = algorithm.reads_target
        self._target_arrays: dict[str, NDArray] = {}  # for checkpoints
        self._begin_from(0)

    def _begin_from(self, version: int) -> None:
        """Uses the variables as they are now for everything."""
        self._newest = self._snapshot = Snapshot(version, self._backend.publish())
        self.keep_target()

    def publish(self) -> None:
        """Lets predictions use the newest weights. From any thread, between any updates."""
        self._snapshot = self._newest

    def keep_target(self) -> None:
        """Makes the newest weights the target network of the updates to come. From any thread, between any updates."""
        self._target = self._newest
        if self._reads_target:
            self._target_arrays = {name: array for name, array in self._backend.arrays().items()
                                   if name.startswith("network.")}

    def act_by_target(self) -> None:
        """Lets predictions use the target network. From any thread, between any updates."""
        self._snapshot = self._target

    def snapshot(self) -> Snapshot:
        """Returns the snapshot that predictions use now."""
        return self._snapshot

    def shared(self, observation: NDArray) -> Observed:
        """Wraps an array that is overwritten between predictions, for `predict`. See `Backend.shared`."""
        return self._backend.shared(observation)

    def predict(self, observation: Observed) -> tuple[Outputs, int]:
        """Returns the outputs for observations (n, *shape), `shared` or not, and the version that computed them.

        Raises DeviceFailed.
        """
        version, weights = self._snapshot
        return self._backend.predict(observation, weights), version

    def update(self, batch: Batch, agent_steps: int, since: int) -> UpdateStats | None:
        """Makes one update from the filled steps of `batch`. Returns None if none was made; no weight has changed then.

        An update makes `passes` over the batch, each in `minibatches`, and raises the version by 1. Predictions use it
        once it is published. No update is made if no step is filled or no minibatch is finite. Nor is one made if the
        weights went back to a checkpoint meanwhile, or if `ending_early` is set at its beginning.

        Args:
            agent_steps: collected before this batch; the rates follow them.
            since: `min_valid_version` when the source made the batch.

        Raises Diverged after `SKIPS_MAX` updates in a row that were not finite, TooLarge and DeviceFailed.
        """
        if not batch.steps.any():
            return None
        inputs = self._backend.inputs(batch)
        before = time.monotonic()
        with self._updating():
            waited = time.monotonic() - before
            decision = self._decide(agent_steps, since)
            if decision is None:
                return None
            try:
                metrics, skipped, minibatches, rows = self._backend.update(
                    inputs, *decision, lambda: self.ending_early)
            except Exception:  # earlier minibatches have changed the weights
                self._newest = self._snapshot = Snapshot(self.version, self._backend.publish())
                raise
            if not all(map(math.isfinite, metrics.values())):
                self.skips.record_skip(self.version + 1, metrics)
                return None
            self.version += 1
            self.skips.record_update(self.version, skipped)
            self._newest = Snapshot(self.version, self._backend.publish())
            self.minibatch_seconds = (time.monotonic() - before - waited) / minibatches
            metrics |= {"learning_rate": decision.rates["learning_rate"]} | self._exploration(agent_steps)
            return UpdateStats(self.version, batch.size, metrics, waited, rows)

    def _exploration(self, agent_steps: int) -> dict[str, float]:
        """Returns how much agents explore after so many steps of all of them, in the mean; {} if they never do."""
        if self.acting.explore is no_exploration:
            return {}
        n = self._environments
        return {"exploration": float(self.acting.explore(agent_steps // n, 0, n).mean())}

    def _decide(self, agent_steps: int, since: int) -> Decision | None:
        """Decides about an update; None if it is not made, see `update`."""
        if self.ending_early or self.min_valid_version != since:
            return None
        rates = self._rates_at(agent_steps, self.learning_rate_factor)
        return Decision(rates, self._target.weights, (self._seed, self.version))

    @contextlib.contextmanager
    def _updating(self) -> Iterator[None]:
        with self._update_lock:
            began, version = time.monotonic(), self.version
            try:
                yield
            finally:
                self._ended += 1
                if self.version > version:
                    self._last_took = time.monotonic() - began

    @contextlib.contextmanager
    def _between_updates(self) -> Iterator[None]:
        ended, longest = self._ended, max(UPDATE_TIMEOUT, 2.0 * self._last_took)
        while not self._update_lock.acquire(timeout=longest):
            if self._ended == ended:
                raise stuck(round(longest, 1))
            ended = self._ended  # another trainer's update ended: the device is not stuck
        try:
            yield
        finally:
            self._update_lock.release()

    def state(self) -> tuple[dict[str, NDArray], int]:
        """Returns (weights and optimizer by name, version), taken between two updates.

        Raises DeviceFailed, also if an update takes longer than `UPDATE_TIMEOUT` and than twice the last update.
        """
        with self._between_updates():
            target = {f"{_TARGET}{name}": array for name, array in self._target_arrays.items()}
            return self._backend.arrays() | target, self.version

    def can_read_state(self) -> bool:
        """Returns whether `state` works: no update is stuck, and the weights can be read from their device."""
        if not self._update_lock.acquire(timeout=0.5):
            return False
        self._update_lock.release()
        try:
            self.state()
        except DeviceFailed:
            return False
        return True

    def start_from(self, arrays: dict[str, NDArray]) -> None:
        """Copies the network's weights from a `state`, and the observation moments that belong to them.

        Raises ValueError, changing nothing, if they do not fit.
        """
        self._backend.assign(self._backend.matching_arrays(arrays, only=("network.", "observation.")))
        self._begin_from(self.version)

    def restore(self, arrays: dict[str, NDArray], version: int) -> None:
        """Continues from a `state`. Ignores arrays of other owners, as `Backend.matching_arrays` does.

        Raises ValueError, changing nothing, if the state is of another network. Raises DeviceFailed as `state` does.
        """
        own = self._backend.matching_arrays(arrays)
        target = {name.removeprefix(_TARGET): array for name, array in arrays.items() if name.startswith(_TARGET)}
        target = self._backend.matching_arrays(target, only=("network.",)) if target and self._reads_target else {}
        with self._between_updates():
            if target:
                self._go_on_from(own | target, version)
                kept = self._target, self._target_arrays
            self._go_on_from(own, version)
            if target:
                self._target, self._target_arrays = kept

    def go_back(self, arrays: dict[str, NDArray]) -> None:
        """Takes weights and optimizer from an earlier `state`. The counters go on.

        `min_valid_version` becomes the version of these weights, so that rollouts of the abandoned weights can be
        rejected. An update in progress uses the abandoned weights, so it ends early. Raises as `restore` does.
        """
        arrays, ending_early = self._backend.matching_arrays(arrays), self.ending_early
        self.ending_early = True
        try:
            with self._between_updates():
                self._go_on_from(arrays, self.version + 1)
                self.min_valid_version = self.version
        finally:
            self.ending_early = ending_early

    def _go_on_from(self, arrays: dict[str, NDArray], version: int) -> None:
        self._backend.assign(arrays)
        self.version = version
        self._begin_from(version)
        self.skips.in_a_row = 0
