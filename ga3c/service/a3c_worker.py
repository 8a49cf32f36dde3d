"""A worker of A3C on processors: an agent with a copy of the model of its own (Mnih et al., 2016, algorithm S3).

    pull the shared weights -> play `rollout_length` steps by them -> gradient of the rollout -> push -> pull -> ...

With `local_updates` the worker steps by its gradients itself, and shares its steps after so many of them.

The worker is an agent's process like any other (`agents/process.py`): the same loop plays, the supervisor watches and
replaces it. What differs is who grants its requests. Predictions come from its own copy; a rollout is learned from here
before it is submitted. The main process then only counts what was made of it, and gives the slot back.

Nothing is sent to other workers, and nobody waits for them. Next hop of an observation: `LocalModel._predict`.
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
from ga3c.learner.shared_weights import Pushed, SharedWeights
from ga3c.learner.tensorflow_import import Library, before_tensorflow, fixed_library
from ga3c.settings.schema import Settings
from ga3c.transport.port import PREDICT, SUBMIT, Port, Request
from ga3c.transport.slots import AgentStatus, Slots


class LocalModel:
    """A worker's own copy of the model, and its port: together they grant what the worker's loop asks for.

    The copy changes in one place, between two rollouts. So a rollout, and the value of what follows it, are of the same
    weights; `version` in its slot is that of the last pull.
    """

    def __init__(self, port: Port, store: Slots, settings: Settings, env: EnvSpec, shared: SharedWeights) -> None:
        # Not before `before_tensorflow`, and never in the fork server: a process must not be forked with its threads.
        from ga3c.learner.backend import GradientBackend
        from ga3c.learner.learner import make_algorithm, rates_at
        self._port, self._store, self._shared, self._settings = port, store, shared, settings.algorithm
        self._rates = functools.partial(rates_at, settings.algorithm)
        self._backend = GradientBackend(settings, env, make_algorithm(settings))
        self._predictions = self._calls = 0
        self._pull()

    def status(self, store: Slots, state: AgentStatus) -> None:
        """As `Port.status`."""
        if state == AgentStatus.DRAINED:
            self._share()
        self._port.status(store, state)

    def grant(self, request: Request, store: Slots) -> int:
        """As `Port.grant`; waits for a free slot at most, which the main process releases. Raises ServerGone,
        ModelFailed.
        """
        kind, slot, step = request
        if kind == PREDICT:
            with _of_the_model():
                self._predict(slot, step)
            return self._port.look(store)
        if kind == SUBMIT:
            try:
                with _of_the_model():
                    self._learn(slot)
            except ModelFailed:
                store.submitted_at[slot] = 0.0  # it has delivered nothing
                raise
        return self._port.grant(request, store)

    def _pull(self) -> None:
        self._version, self._pulled = self._shared.pull(self._port.agent)
        self._state: dict[str, NDArray] = {}  # what steps of its own have made of variables that no gradient changes
        self._steps = self._shared.steps(self._settings, self._pulled) if self._settings.local_updates > 1 else None
        self._weights = self._backend.variables.taken(self._pulled)

    def _share(self) -> None:
        """Adds the worker's own steps to the weights of all, unless those that it began from were given up."""
        if self._steps and self._steps.taken and self._version >= self._shared.min_valid_version:
            self._shared.add(self._port.agent, self._steps, self._state)
        self._steps = None  # they are the others' now

    def _predict(self, slot: int, step: int) -> None:
        store = self._store
        last = step == store.rollout_length  # a final observation
        outputs = self._backend.predict(store.following[slot] if last else store.observation[slot, step], self._weights)
        store.answer([store.row(slot, step)], {name: array[None] for name, array in outputs.items()}, self._version)
        self._predictions += store.n_envs
        self._calls += 1

    def _learn(self, slot: int) -> None:
        """Makes an update of a rollout, and leaves word of it; pushes and pulls if it is time."""
        batch, shared, began = self._store.view(slot), self._shared, time.monotonic()
        rates = self._rates(shared.agent_steps, shared.learning_rate_factor)
        found = self._backend.gradients(self._backend.inputs(batch), rates, self._weights)
        metrics, version, agent_steps = [*found.metrics.values(), 1.0, rates.learning_rate], 0, 0
        # Weights that were given up lead nowhere, and what is not finite would spoil those of all.
        if all(map(math.isfinite, metrics)) and self._version >= shared.min_valid_version:
            if self._steps:
                self._steps.step(found.gradients, rates.learning_rate)
                self._state |= found.state
                self._pulled |= found.state
                version, agent_steps = shared.count(self._port.agent, batch.agent_steps)
                self._version += 1
            else:
                version, agent_steps = shared.push(self._port.agent, self._settings, rates.learning_rate,
                                                   found.gradients, found.state, batch.agent_steps)
        if version and self._steps and self._steps.taken < self._settings.local_updates:
            self._weights = self._backend.variables.taken(self._pulled)
        else:
            self._share()
            self._pull()
        shared.tell(slot, Pushed(version, agent_steps, metrics, time.monotonic() - began, self._predictions,
                                 self._calls))
        self._predictions = self._calls = 0


def worker(shared: SharedWeights, settings: Settings, env: EnvSpec) -> Callable[..., None]:
    """The entry point of such an agent's process, for `AgentPool`. Called in the process that has TensorFlow.

    settings: those that the model is made by; the network's precision is decided.
    """
    return functools.partial(agent_main, model=functools.partial(_model, shared, settings, env, fixed_library()))


def _model(shared: SharedWeights, settings: Settings, env: EnvSpec, library: Library | None, port: Port,
           store: Slots) -> LocalModel:
    before_tensorflow(library=library)
    with _of_the_model(), _signs_of_life(lambda: port.status(store, AgentStatus.STARTING)):
        from ga3c.learner.device import start_tensorflow
        start_tensorflow(settings)
        return LocalModel(port, store, settings, env, shared)


@contextlib.contextmanager
def _of_the_model() -> Iterator[None]:
    """What is raised within is no failure of an environment."""
    try:
        yield
    except Exception as error:
        raise ModelFailed from error


@contextlib.contextmanager
def _signs_of_life(sign: Callable[[], None]) -> Iterator[None]:
    """Within, `sign` is called with each module that is imported.

    TensorFlow has thousands. From a slow disk, or with many workers on few cores, they take longer than an agent may.
    """
    class Finder:
        """Finds nothing, so that others do."""

        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> None:
            """Asked first for every module."""
            sign()

    finder: Any = Finder
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
