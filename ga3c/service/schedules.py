"""What the main process's threads do, by schedule: GA3C's queues, rounds, A3C on processors.

The supervisor starts, ends and replaces the threads; it does not know what they do. `orders.py` has the serial twins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ga3c.agents.process import agent_main
from ga3c.learner.learner import Learner, UpdateStats
from ga3c.learner.shared_learner import SharedLearner
from ga3c.runs.recorder import Recorder
from ga3c.runs.statistics import Spent
from ga3c.service.a3c_worker import worker
from ga3c.service.batches import BatchSource, Reused, RolloutQueue, lag_limit, refusal
from ga3c.service.conductor import Conductor
from ga3c.service.counter import run_counter
from ga3c.service.predictor import run_predictor
from ga3c.service.trainer import run_trainer
from ga3c.settings.plan import plan, rollouts_per_batch
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Batch, Slots

Report = Callable[[UpdateStats, Batch, Spent], None]
Halved = Callable[[int, int], None]


class Schedule(Protocol):
    """What the supervisor needs of one.

    entry: what an agent's process runs. predictors, trainers: threads of the run's begin; only tuning changes them.
    trains: whether the trainers make the updates. agents_first: whether threads begin with the agents they find.
    """

    entry: Callable[..., None]
    predictors: int
    trainers: int
    trains: bool
    agents_first: bool

    def predict(self) -> None:
        """The work of a predictor, until one is dismissed. Any thread."""

    def train(self) -> None:
        """The work of a trainer, until one is dismissed. Any thread."""

    def drain(self) -> None:
        """A stop begins: agents are about to be sent the stop message."""

    def hurry(self) -> None:
        """A stop takes long: the update under way ends early, and no batch is used again."""

    def untrained(self, slots: list[int]) -> list[int]:
        """Which of these submitted rollouts, which no trainer has collected, nobody has learned from."""


class QueueSchedule:
    """GA3C: predictors answer what waits, trainers train on any rollouts, and nobody waits for anybody."""

    trains, agents_first = True, False

    def __init__(self, settings: Settings, channel: Channel, store: Slots, learner: Learner, recorder: Recorder,
                 report: Report, halved: Halved) -> None:
        self.entry = agent_main
        self.predictors, self.trainers = settings.tuning.predictors, settings.tuning.trainers
        self._settings, self._channel, self._store, self._learner = settings, channel, store, learner
        self._statistics, self._report, self._halved = recorder.statistics, report, halved
        self._ending = False

    def predict(self) -> None:
        """As of any schedule."""
        batching = self._settings.batching
        with self._statistics.counting() as count:
            run_predictor(self._channel, self._store, self._learner, batching.prediction_batch_max, count,
                          batching.prediction_batch_min)

    def train(self) -> None:
        """As of any schedule."""
        s, learner, dropped = self._settings, self._learner, self._statistics.report_dropped
        refused = refusal(lag_limit(s), lambda: learner.version, lambda: learner.min_valid_version)
        uses = s.batching.batch_reuse
        source: BatchSource = RolloutQueue(self._channel, self._store, rollouts_per_batch(s), refused, dropped, uses)
        if uses > 1:
            source = Reused(source, uses, refused, lambda: self._ending, lambda: learner.hurried)
        run_trainer(source, learner, self._report, self._halved, dropped)

    def drain(self) -> None:
        """As of any schedule. Predictors answer until they are dismissed."""
        self._ending = True

    def hurry(self) -> None:
        """As of any schedule."""
        self._learner.hurried = True

    def untrained(self, slots: list[int]) -> list[int]:
        """All of them."""
        return slots


class RoundsSchedule:
    """The schedules of `rounds.py`: one thread, the conductor, answers agents and makes the updates."""

    entry, predictors, trainers, trains, agents_first = staticmethod(agent_main), 0, 1, True, True

    def __init__(self, settings: Settings, channel: Channel, store: Slots, learner: Learner, recorder: Recorder,
                 report: Report) -> None:
        self._channel, self._learner, self._statistics = channel, learner, recorder.statistics
        self._conductor = Conductor(
            channel, store, learner, plan(settings), rollouts_per_batch(settings), settings.algorithm.rollout_length,
            report, recorder.statistics.report_dropped, lambda: recorder.reached(learner.agent_steps) is not None)

    def predict(self) -> None:
        """There is no predictor."""
        raise AssertionError

    def train(self) -> None:
        """As of any schedule."""
        with self._statistics.counting() as count:
            self._conductor.run(count)

    def drain(self) -> None:
        """As of any schedule: from now on the conductor answers whoever asks."""
        self._channel.dismiss_predictor()

    def hurry(self) -> None:
        """As of any schedule."""
        self._learner.hurried = True

    def untrained(self, slots: list[int]) -> list[int]:
        """All of them."""
        return slots


class WorkersSchedule:
    """A3C on processors: agents predict and learn by themselves; one thread counts what they have done."""

    predictors, trainers, trains, agents_first = 0, 1, False, False

    def __init__(self, channel: Channel, store: Slots, learner: SharedLearner, recorder: Recorder,
                 report: Report) -> None:
        self.entry = worker(learner.shared, learner.settings, recorder.spec)
        self._channel, self._store, self._learner = channel, store, learner
        self._statistics, self.report = recorder.statistics, report

    def predict(self) -> None:
        """There is no predictor."""
        raise AssertionError

    def train(self) -> None:
        """As of any schedule."""
        with self._statistics.counting() as count:
            run_counter(self._channel, self._store, self._learner, count, self.report,
                        self._statistics.report_dropped)

    def drain(self) -> None:
        """Agents need no answers: nothing is to be done."""

    def hurry(self) -> None:
        """No update is made here: nothing is to be done."""

    def untrained(self, slots: list[int]) -> list[int]:
        """Those whose update their worker has not made."""
        return [slot for slot in slots if not self._learner.shared.pushed(slot).version]


def make_schedule(settings: Settings, channel: Channel, store: Slots, learner: Learner | SharedLearner,
                  recorder: Recorder, report: Report, halved: Halved) -> Schedule:
    """That of the settings. `report` gets each update, `halved` what `run_trainer` says of one."""
    if settings.workers_learn:
        assert isinstance(learner, SharedLearner)
        return WorkersSchedule(channel, store, learner, recorder, report)
    assert not isinstance(learner, SharedLearner)
    if plan(settings).in_rounds:
        return RoundsSchedule(settings, channel, store, learner, recorder, report)
    return QueueSchedule(settings, channel, store, learner, recorder, report, halved)
