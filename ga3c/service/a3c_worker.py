"""A worker of A3C on processors: an agent with its own copy of the model (Mnih et al., 2016, algorithm S3).

    pull the shared weights -> play `rollout_length` steps by them -> gradient of the rollout -> push -> pull -> ...

With `local_updates` above 1 the worker updates its own copy. It shares its updates after every `local_updates` of them.

The worker is an agent's process like any other (`agents/process.py`): the same loop plays, the supervisor watches and
replaces it. Only the grants differ. Predictions come from the worker's own copy. The worker learns from a rollout
before it submits it. The main process then only counts the update and releases the slot.

Workers send nothing to each other and do not wait for each other. Next hop of an observation: `LocalModel._predict`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from numpy.typing import NDArray

from ga3c.agents.process import ModelFailed, agent_main
from ga3c.envs.base import EnvSpec
from ga3c.learner.backend import Library, fixed_library, make_differentiating, prepare, start
from ga3c.learner.shared_weights import SharedWeights, WorkerReport
from ga3c.settings.schema import Settings
from ga3c.transport.port import PREDICT, SUBMIT, Port, Request
from ga3c.transport.slots import AgentStatus, Slots


class LocalModel:
    """A worker's own copy of the model, in front of its port. Together they grant the requests of the worker's loop.

    The copy changes only between two rollouts. So a rollout and its bootstrap value come from the same weights.
    `version` in the slot is that of the last pull, plus the worker's own updates since.
    """

    def __init__(self, port: Port, store: Slots, settings: Settings, env: EnvSpec, shared: SharedWeights) -> None:
        # After `prepare`, and never in the fork server: a process with the framework's threads must not fork.
        from ga3c.algorithms.base import annealed, rates_at
        from ga3c.learner.learner import make_algorithm
        from ga3c.learner.samples import batch_fields
        self._port = port
        self._store = store
        self._shared = shared
        self._settings = settings.algorithm
        self._local_updates = settings.a3c.local_updates
        algorithm = make_algorithm(settings)
        self._rates_at = functools.partial(
            rates_at, annealed(settings.algorithm, algorithm), settings.algorithm.anneal_steps)
        self._backend = make_differentiating(
            settings, env, algorithm, batch_fields(settings, env, algorithm.outputs(env)))
        self._predictions = self._calls = 0
        self._pull()

    def status(self, store: Slots, state: AgentStatus) -> None:
        """See `Port.status`. Shares the worker's own updates first if it has drained."""
        if state == AgentStatus.DRAINED:
            self._share()
        self._port.status(store, state)

    def grant(self, request: Request, store: Slots) -> int:
        """See `Port.grant`. Waits only for a free slot, which the main process releases.

        Raises ServerGone, ModelFailed.
        """
        kind, slot, step = request
        if kind == PREDICT:
            with _as_model_failure():
                self._predict(slot, step)
            return self._port.poll_stop(store)
        if kind == SUBMIT:
            try:
                with _as_model_failure():
                    self._learn(slot)
            except ModelFailed:
                store.submitted_at[slot] = 0.0  # the rollout does not count as delivered
                raise
        return self._port.grant(request, store)

    def _pull(self) -> None:
        self._version, self._pulled = self._shared.pull(self._port.agent)
        self._state: dict[str, NDArray] = {}  # variables that no gradient changes, after own updates
        self._steps = self._shared.steps(self._settings, self._pulled) if self._local_updates > 1 else None
        self._take_weights()

    def _take_weights(self) -> None:
        self._backend.assign(self._pulled)
        self._weights = self._backend.publish()

    def _share(self) -> None:
        """Adds the worker's own updates to the shared weights, unless they began from discarded weights."""
        if self._steps and self._steps.taken and self._version >= self._shared.min_valid_version:
            self._shared.add(self._port.agent, self._steps, self._state)
        self._steps = None  # shared, or discarded

    def _predict(self, slot: int, step: int) -> None:
        store = self._store
        last = step == store.rollout_length  # a final observation
        outputs = self._backend.predict(store.following[slot] if last else store.observation[slot, step], self._weights)
        store.answer([store.row(slot, step)], {name: array[None] for name, array in outputs.items()}, self._version)
        self._predictions += store.n_envs
        self._calls += 1

    def _learn(self, slot: int) -> None:
        """Makes an update from a rollout and records its result in shared memory. Pushes and pulls when due."""
        batch, shared, began = self._store.view(slot), self._shared, time.monotonic()
        rates = self._rates_at(shared.agent_steps, shared.learning_rate_factor)
        found = self._backend.gradients(self._backend.inputs(batch), rates)
        metrics, version = [*found.metrics.values(), 1.0, rates["learning_rate"]], 0
        # Gradients of discarded weights are useless. Numbers that are not finite would spoil the shared weights.
        if all(map(math.isfinite, metrics)) and self._version >= shared.min_valid_version:
            if self._steps:
                self._steps.step(found.gradients, rates["learning_rate"])
                self._state |= found.state
                self._pulled |= found.state
                version = shared.count(self._port.agent)
                self._version += 1
            else:
                version = shared.push(self._port.agent, self._settings, rates["learning_rate"], found.gradients,
                                      found.state)
        if version and self._steps and self._steps.taken < self._local_updates:
            self._take_weights()
        else:
            self._share()
            self._pull()
        shared.write_report(slot, WorkerReport(version, metrics, time.monotonic() - began, self._predictions,
                                               self._calls))
        self._predictions = self._calls = 0


def worker(shared: SharedWeights, settings: Settings, env: EnvSpec) -> Callable[..., None]:
    """Returns the entry point of a worker's process, for `AgentPool`. Call it in the process that has TensorFlow.

    settings: those of the model; the network's precision is decided in them.
    """
    return functools.partial(agent_main, model=functools.partial(_model, shared, settings, env, fixed_library()))


def _model(shared: SharedWeights, settings: Settings, env: EnvSpec, library: Library | None, port: Port,
           store: Slots) -> LocalModel:
    prepare(library=library)
    with _as_model_failure(), _signs_of_life(lambda: port.status(store, AgentStatus.STARTING)):
        start(settings)
        return LocalModel(port, store, settings, env, shared)


@contextlib.contextmanager
def _as_model_failure() -> Iterator[None]:
    """Turns an exception raised within into ModelFailed, so that it does not count as an environment's failure."""
    try:
        yield
    except Exception as error:
        raise ModelFailed from error


@contextlib.contextmanager
def _signs_of_life(sign: Callable[[], None]) -> Iterator[None]:
    """Calls `sign` for each module that is imported within.

    TensorFlow has thousands. On a slow disk, or with many workers on few cores, they take longer than the timeout.
    """
    class Finder:
        """A finder that finds nothing, so that the next finders are asked."""

        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> None:
            """Calls `sign`. Python asks this finder first for every module."""
            sign()

    finder: Any = Finder
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
