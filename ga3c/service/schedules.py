"""The work of the main process's threads, by schedule: GA3C's queues, rounds, A3C on processors.

The supervisor starts, ends and replaces the threads without knowing their work. `one_thread.py` carries out the same
schedules in serial mode.
"""

from __future__ import annotations

from collections.abc import Callable

from ga3c.agents.process import agent_main
from ga3c.learner.learner import Learner, UpdateStats
from ga3c.learner.shared_learner import SharedLearner
from ga3c.runs.recorder import Recorder
from ga3c.runs.statistics import TrainerTime
from ga3c.service.a3c_worker import worker
from ga3c.service.batches import RolloutQueue
from ga3c.service.conductor import Conductor
from ga3c.service.counter import run_counter
from ga3c.service.predictor import run_predictor
from ga3c.service.trainer import run_trainer
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Batch, Slots

Report = Callable[[UpdateStats, Batch, TrainerTime], None]
Halved = Callable[[int, int], None]


class Schedule:
    """A schedule, for the supervisor: what its threads do, and how they end.

    entry: the entry point of an agent's process. predictors, trainers: threads at the start; only tuning changes them.
    trains: whether the trainers make the updates. agents_first: whether agents must be started before the threads.
    """

    entry: Callable[..., None] = staticmethod(agent_main)
    predictors, trainers = 0, 1
    trains, agents_first = True, False

    def predict(self) -> None:
        """Does the work of a predictor until one is dismissed. Called in each predictor's thread, if there are any."""
        raise NotImplementedError

    def train(self) -> None:
        """Does the work of a trainer until one is dismissed. Called in each trainer's thread."""
        raise NotImplementedError

    def drain(self) -> None:
        """Prepares for the end of a run. Called before the agents get the stop message."""

    def end_update_early(self) -> None:
        """Shortens a slow stop: the update under way ends early."""

    def untrained(self, slots: list[int]) -> list[int]:
        """Returns which of these rollouts were not learned from. They were submitted, but no trainer collected them."""
        return slots


class QueueSchedule(Schedule):
    """GA3C: predictors answer waiting requests and trainers train on any rollouts, without waiting for each other."""

    def __init__(self, settings: Settings, channel: Channel, store: Slots, learner: Learner, recorder: Recorder,
                 report: Report, halved: Halved) -> None:
        self.predictors, self.trainers = settings.tuning.predictors, settings.tuning.trainers
        self._settings, self._channel, self._store, self._learner = settings, channel, store, learner
        self._statistics, self._report, self._halved = recorder.statistics, report, halved

    def predict(self) -> None:
        """See `Schedule.predict`."""
        batching = self._settings.batching
        with self._statistics.counting() as count:
            run_predictor(self._channel, self._store, self._learner, batching.prediction_batch_max, count,
                          batching.prediction_batch_min)

    def train(self) -> None:
        """See `Schedule.train`."""
        source = RolloutQueue(
            self._channel, self._store, self._settings.schedule.rollouts, self._learner, self._statistics)
        run_trainer(source, self._learner, self._statistics, self._report, self._halved)

    def end_update_early(self) -> None:
        """See `Schedule.end_update_early`."""
        self._learner.ending_early = True


class RoundsSchedule(Schedule):
    """The schedules of `rounds.py`: one thread, the conductor, answers agents and makes the updates."""

    agents_first = True

    def __init__(self, settings: Settings, channel: Channel, store: Slots, learner: Learner, recorder: Recorder,
                 report: Report) -> None:
        self._channel, self._learner, self._statistics = channel, learner, recorder.statistics
        self._conductor = Conductor(
            channel, store, learner, settings.schedule, settings.algorithm.rollout_length,
            report, recorder.statistics, lambda: recorder.reached() is not None)

    def train(self) -> None:
        """See `Schedule.train`."""
        with self._statistics.counting() as count:
            self._conductor.run(count)

    def drain(self) -> None:
        """See `Schedule.drain`. The conductor then answers every request."""
        self._channel.dismiss_predictor()

    def end_update_early(self) -> None:
        """See `Schedule.end_update_early`."""
        self._learner.ending_early = True


class WorkersSchedule(Schedule):
    """A3C on processors: agents predict and learn by themselves; one thread counts what they have done."""

    trains = False

    def __init__(self, channel: Channel, store: Slots, learner: SharedLearner, recorder: Recorder,
                 report: Report) -> None:
        self.entry = worker(learner.shared, learner.settings, recorder.spec)
        learner.shared.agent_steps = recorder.statistics.agent_steps
        self._channel, self._store, self._learner = channel, store, learner
        self._statistics, self._report = recorder.statistics, report

    def train(self) -> None:
        """See `Schedule.train`."""
        with self._statistics.counting() as count:
            run_counter(self._channel, self._store, self._learner, count, self._statistics, self._report)

    def untrained(self, slots: list[int]) -> list[int]:
        """Returns those that their worker has made no update from."""
        return [slot for slot in slots if not self._learner.shared.read_report(slot).version]


def make_schedule(settings: Settings, channel: Channel, store: Slots, learner: Learner | SharedLearner,
                  recorder: Recorder, report: Report, halved: Halved) -> Schedule:
    """Returns the schedule of the settings. `report` is called with each update, `halved` as in `run_trainer`."""
    if settings.schedule.agents_learn:
        assert isinstance(learner, SharedLearner)
        return WorkersSchedule(channel, store, learner, recorder, report)
    assert not isinstance(learner, SharedLearner)
    if settings.schedule.agents_wait:
        return RoundsSchedule(settings, channel, store, learner, recorder, report)
    return QueueSchedule(settings, channel, store, learner, recorder, report, halved)
