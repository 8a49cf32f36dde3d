"""The host: what plays. Shared memory, the channel, agents, predictors, and their supervision. It needs no trainer."""

from __future__ import annotations

from collections.abc import Callable

from ga3c.agents.process import agent_main
from ga3c.learner.learner import Learner
from ga3c.learner.shared_learner import SharedLearner
from ga3c.runs.recorder import Recorder
from ga3c.service.a3c_worker import worker
from ga3c.service.agent_pool import AgentPool
from ga3c.service.predictor import run_predictor
from ga3c.service.signals import Signals
from ga3c.service.workers import WorkerPool
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Slots


class Host:
    """The agents of a run, and the predictors that answer them. Used by the supervisor's thread.

    Rollouts wait in `channel`, in slots of `store`, until a training side collects them. Without one, agents play until
    their slots are full.

    store, channel, agents, predictors: its parts.

    Args:
        model: answers the agents; they act on its outputs. With A3C on processors they have copies of it.
        failed: called with the exception of a predictor's thread, and when that thread began.
    """

    def __init__(self, settings: Settings, recorder: Recorder, model: Learner | SharedLearner, signals: Signals,
                 failed: Callable[[BaseException, float], None]) -> None:
        self._settings = settings
        self._statistics = recorder.statistics
        self._model = model
        self._signals = signals
        self._resumed_at = recorder.statistics.agent_steps
        most, _, _ = settings.schedule.most
        slots = settings.agents.slots_per_agent
        self.store = Slots(recorder.spec, settings.schedule.segment, settings.agents.envs_per_agent, most * slots, most,
                           model.outputs, settings.algorithm.normalize_rewards)
        self.channel = Channel(self.store, slots, self._on_vacant)
        entry = (worker(model.shared, model.settings, recorder.spec) if isinstance(model, SharedLearner) else
                 agent_main)
        self.agents = AgentPool(settings, self.store, self.channel, recorder, model, entry, signals.interruptible)
        self.predictors = WorkerPool("predictor", self._predict, self.channel.dismiss_predictor, failed)

    def _on_vacant(self, agent: int) -> None:
        """Hears from a trainer's thread that all slots of the agent are free again."""
        self.agents.vacate(agent)
        self._signals.wake()

    def _predict(self) -> None:
        """Does the work of a predictor until one is dismissed."""
        assert not isinstance(self._model, SharedLearner)
        batching = self._settings.batching
        with self._statistics.counting() as count:
            run_predictor(self.channel, self.store, self._model, batching.prediction_batch_max, count,
                          batching.prediction_batch_min)

    @property
    def sentinels(self) -> list[int]:
        """What becomes ready when an agent's process ends."""
        return [process.sentinel for process in self.agents.processes]

    def possible(self, asked: int) -> int:
        """Returns how many of the `asked` agents are possible; 0 if none is."""
        return self.agents.wanted(asked, self._statistics.agent_steps > self._resumed_at)

    def reap(self, asked: int) -> None:
        """Notes every process that has ended. Raises AgentsLost if none of the `asked` agents is possible any more."""
        self.agents.reap()
        if self.possible(asked) <= 0:
            raise self.agents.lost()

    def settled(self, agents: int, predictors: int) -> bool:
        """Returns whether exactly so many workers are at work, and no agent is starting or draining."""
        return (agents, predictors) == (self.agents.at_work, len(self.predictors)) and self.agents.settled()
