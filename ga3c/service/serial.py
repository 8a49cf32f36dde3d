"""Serial mode: the same agents, slots, learner and record in one thread, in a fixed order. Repeatable to the byte.

The schedule sets the order (`one_thread.py`). With the queues, one inference per round answers all agents' pending
predictions, in the order of the agents. Then each agent plays on to its next prediction. An update is made as soon as
its rollouts have been submitted.

Atari and the toys can save the state of their environments. Then checkpoints hold everything that agents need, and a
resumed run equals one that never ended. Other games begin new episodes on a resume.
"""

from __future__ import annotations

import json
import traceback
import zlib
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ga3c.agents.fault_tolerant import RETRIES
from ga3c.envs.containment import ProcessState, described
from ga3c.learner.learner import Diverged, Learner, UpdateStats
from ga3c.runs.recorder import Recorder
from ga3c.runs.statistics import Workers
from ga3c.service.agent_pool import AgentsLost
from ga3c.service.batches import clean
from ga3c.service.divergence import Divergence
from ga3c.service.environment_faults import EnvironmentFaults
from ga3c.service.evaluations import Evaluations
from ga3c.service.memory import remembering
from ga3c.service.serial_agents import PREFIX, Agents
from ga3c.service.signals import Interrupted, Signals
from ga3c.settings.schema import Settings
from ga3c.transport.slots import Batch

_MIN_VALID_VERSION = f"{PREFIX}min_valid_version"


def run_serial(settings: Settings, recorder: Recorder, learner: Learner, signals: Signals,
               saved: dict[str, NDArray] | None = None, evaluations: Evaluations | None = None) -> str:
    """Plays and trains until a limit is reached or a signal arrives; returns which one.

    saved: arrays of the checkpoint that `learner` was restored from. If they hold fitting agents of serial mode, these
    continue; else new ones begin. Raises AgentsLost.
    """
    faults = EnvironmentFaults(recorder)

    def failed(agent: int) -> None:
        faults.note(agent, 1, traceback.format_exc())

    def stopping() -> bool:
        return signals.signum is not None

    recorder.statistics.skips = learner.skips
    try:
        restored = _restored(settings, recorder, learner, saved or {}, failed, stopping)
        agents = restored or Agents(settings, recorder.spec, learner, recorder.statistics.agent_steps, failed=failed,
                                    stopping=stopping)
    except Interrupted:
        recorder.start()
        return signals.name or ""
    try:
        learning = _Learning(settings, recorder, learner, saved or {}, same_lives=restored is not None)
        reason = _play(agents, learning, recorder, learner, signals, evaluations)
        state = _state(agents, learning, learner)
        recorder.checkpoints.extra_arrays = lambda: state  # the last checkpoint comes after the environments are closed
        return reason
    except BaseException as error:
        if agents.given_up is None:
            raise
        recorder.note(traceback.format_exc())
        raise AgentsLost(f"agents: the environments of agent {agents.given_up} failed {RETRIES + 1} times in a row; "
                         f"the last time: {described(error)}") from error
    finally:
        for failure in agents.close():
            recorder.note(f"An environment failed when it was closed, which harms nothing: {failure}")
        signals.reinstall_handlers()


def _state(agents: Agents, learning: _Learning, learner: Learner) -> dict[str, NDArray]:
    """Returns what a checkpoint has beside the model."""
    rollouts = agents.state()
    if rollouts:
        rollouts[_MIN_VALID_VERSION] = np.array(learner.min_valid_version)
    return rollouts | learning.state()


def _restored(settings: Settings, recorder: Recorder, learner: Learner, saved: Mapping[str, NDArray],
              failed: Callable[[int], None], stopping: Callable[[], bool]) -> Agents | None:
    """Returns the agents of a checkpoint; None if it has none, or they do not fit."""
    if f"{PREFIX}places" not in saved:
        if saved:
            recorder.log("New episodes begin: the checkpoint does not hold those that were under way.")
        return None
    try:
        began_at = json.loads(saved[f"{PREFIX}places"].tobytes())["began_at"]
        restored = Agents(settings, recorder.spec, learner, began_at, saved, failed, stopping)
        learner.min_valid_version = int(saved[_MIN_VALID_VERSION])
        return restored
    except (ValueError, LookupError, TypeError, AttributeError, zlib.error, OverflowError) as error:
        recorder.log(f"New episodes begin: those of the checkpoint do not fit, {' '.join(str(error).split())[:200]}.")
        return None


class _Learning:
    """The updates of serial mode: see `one_thread.Learning`."""

    def __init__(self, settings: Settings, recorder: Recorder, learner: Learner, saved: dict[str, NDArray],
                 same_lives: bool) -> None:
        self._statistics = recorder.statistics
        self._learner = learner
        self._divergence = Divergence(recorder, learner)
        self._publishes = not settings.schedule.epochs
        self._memory = (remembering(settings, learner, recorder, saved, same_lives)
                        if settings.schedule.remembers else None)

    def state(self) -> dict[str, NDArray]:
        """Returns what a checkpoint has of the memory."""
        return self._memory.state() if self._memory is not None else {}

    def submitted(self, rollout: Batch, agent: int) -> bool:
        """See `one_thread.Learning`."""
        if self._memory is not None:
            self._memory.append(rollout, agent)
        return self._memory is not None

    def update(self, rollouts: Batch) -> None:
        """See `one_thread.Learning`."""
        statistics = self._statistics
        if self._memory is not None:
            self._memory.train(self._make)
            self._memory.meet()
        else:
            began_at = statistics.agent_steps
            statistics.collect(rollouts)
            self._make(rollouts, began_at, clean(rollouts, self._learner, statistics))
        statistics.drain()  # so that a limit on episodes is reached at the same update in every run

    def _make(self, batch: Batch, agent_steps: int, since: int) -> UpdateStats | None:
        update = None
        try:
            update = self._learner.update(batch, agent_steps, since)
        except Diverged as error:
            self._divergence.answer(error)
        if update is None:
            self._statistics.report_dropped(batch)
            return None
        if self._publishes:
            self._learner.publish()
        self._statistics.report(update, batch)
        return update


def _play(agents: Agents, learning: _Learning, recorder: Recorder, learner: Learner, signals: Signals,
          evaluations: Evaluations | None) -> str:
    count = recorder.statistics.new_count()
    if not agents.can_save:
        recorder.log("This game cannot save its state: a resume of this run will begin new episodes.")
    recorder.checkpoints.extra_arrays = lambda: _state(agents, learning, learner)
    recorder.start()
    workers, kept = Workers(agents.n, 1, 1, 0, 0), ProcessState()
    reason = None
    while reason is None:
        try:
            predictions, calls = agents.go_on(learner.predict, learning, lambda: recorder.reached() is not None)
        except BaseException:
            recorder.checkpoints.extra_arrays = dict  # an agent in the middle of a step cannot be saved
            raise
        count.predictions += predictions
        count.calls += calls
        kept.put_back()  # undoes what environments in this process changed
        signals.reinstall_handlers()
        if evaluations:
            evaluations.tick(learner)
        recorder.tick(learner, workers, [])
        if signals.take_checkpoint_request():
            recorder.checkpoints.request(learner)
        reason = signals.name or recorder.reached()
    return reason
