"""The training side: what learns. The source of batches, the trainers, and their supervision.

It knows of a host its channel and its slots. Each kind of schedule has its own training side:

    queues    trainers train on any rollouts (`batches.RolloutQueue`), while the host's predictors answer agents; or
              one trainer fills a replay with them and trains on what it draws (`memory.Remembered`)
    rounds    one thread, the conductor, answers agents and makes the updates
    workers   agents learn by themselves (A3C on processors); one thread counts what they have done
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

from numpy.typing import NDArray

from ga3c.learner.learner import Diverged, Learner, Model, UpdateStats
from ga3c.learner.shared_learner import SharedLearner
from ga3c.runs.recorder import Recorder
from ga3c.runs.statistics import TrainerTime
from ga3c.service.batches import BatchSource, RolloutQueue
from ga3c.service.conductor import Conductor
from ga3c.service.counter import run_counter
from ga3c.service.divergence import Divergence
from ga3c.service.memory import Remembered, remembering
from ga3c.service.trainer import UpdateSize, run_trainer
from ga3c.service.workers import WorkerPool
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Batch, Slots


class Played(Protocol):
    """What a training side needs of a host: where rollouts wait."""

    channel: Channel
    store: Slots


class TrainingSide:
    """The trainers of a run, on the queues. Used by the supervisor's thread.

    trainers: the threads.

    Args:
        wake: called from trainers' threads when the supervisor has something to do.
        failed: called with the exception of a trainer's thread, and when that thread began.
        saved: arrays of the checkpoint that the model was restored from. Those of a replay are taken out.
    """

    def __init__(self, settings: Settings, host: Played, model: Model, recorder: Recorder, wake: Callable[[], None],
                 failed: Callable[[BaseException, float], None], saved: dict[str, NDArray] | None = None) -> None:
        self._settings = settings
        self._channel = host.channel
        self._store = host.store
        self._model = model
        self._recorder = recorder
        self._wake = wake
        self._divergence = Divergence(recorder, model)
        # A trainer that replaces a failed one goes on with it.
        self._memory = (remembering(settings, self._learner, recorder, {} if saved is None else saved, same_lives=False)
                        if settings.schedule.remembers else None)
        if self._memory is not None:
            recorder.checkpoints.extra_arrays = self._memory.state
        self._halvings: deque[tuple[int, int]] = deque()
        self._size = UpdateSize(self._on_halved)
        self.trainers = WorkerPool("trainer", self._train, host.channel.dismiss_trainer, failed)

    # ------------------------------------------------------------------------- called from trainers' threads

    def _train(self) -> None:
        """Does the work of a trainer until one is dismissed."""
        learner, statistics = self._learner, self._recorder.statistics
        source: BatchSource = RolloutQueue(
            self._channel, self._store, self._settings.schedule.rollouts, learner, statistics)
        if self._memory is not None:
            source = Remembered(self._memory, self._channel, self._store, self._recorder.spec, learner)
        run_trainer(source, learner, statistics, self._report, self._size)

    @property
    def _learner(self) -> Learner:
        return cast(Learner, self._model)

    def _report(self, update: UpdateStats, batch: Batch, spent: TrainerTime) -> None:
        self._recorder.statistics.report(update, batch, spent)
        if self._recorder.reached():
            self._wake()

    def _on_halved(self, most: int, n_rollouts: int) -> None:
        self._halvings.append((most, n_rollouts))
        self._wake()

    # ------------------------------------------------------------------------- called by the supervisor

    def report_halved(self) -> None:
        """Tells the user of updates that were halved since the last call."""
        recorder, shared = self._recorder, self._settings.algorithm
        while self._halvings:
            most, n_rollouts = self._halvings.popleft()
            steps = shared.rollout_length * self._settings.agents.envs_per_agent
            recorder.event("batch_halved", agent_steps=most * steps, before=n_rollouts * steps)
            recorder.log(f"The device has no memory for larger updates: at most {most * steps} agent steps of a "
                         f"batch of {n_rollouts * steps} from now on.")
            recorder.disturbances += 1

    def answer(self, error: Diverged) -> None:
        """Goes back to a checkpoint. Raises the error if that is not possible, see `Divergence`."""
        self._divergence.answer(error)

    def drain(self) -> None:
        """Prepares for the end of a run. Called before the agents get the stop message."""

    def end_update_early(self) -> None:
        """Shortens a slow stop: the update under way ends early."""
        self._learner.ending_early = True

    def drop_rollouts(self, why: str) -> None:
        """Discards the rollouts that wait for a trainer. Those not learned from count as dropped."""
        waiting = self._channel.drop_rollouts()
        if dropped := self._untrained(waiting):
            self._recorder.log(f"{why}: {len(dropped)} rollouts are not trained on.")
            for slot in dropped:
                self._recorder.statistics.report_lost(self._store.view(slot))
        if len(waiting) > len(dropped):
            self._recorder.log(f"{why}: the episodes of {len(waiting) - len(dropped)} rollouts are not counted.")

    def _untrained(self, slots: list[int]) -> list[int]:
        """Returns which of these rollouts were not learned from. They were submitted, but no trainer collected them."""
        return slots


class RoundsTraining(TrainingSide):
    """The schedules of `rounds.py`. A thread that replaces a failed one goes on with the same conductor."""

    def __init__(self, settings: Settings, host: Played, model: Model, recorder: Recorder, wake: Callable[[], None],
                 failed: Callable[[BaseException, float], None], saved: dict[str, NDArray] | None = None) -> None:
        super().__init__(settings, host, model, recorder, wake, failed, saved)
        self._conductor = Conductor(
            host.channel, host.store, self._learner, settings.schedule, settings.algorithm.rollout_length, self._report,
            recorder.statistics, lambda: recorder.reached() is not None, self._memory, failed)

    def _train(self) -> None:
        with self._recorder.statistics.counting() as count:
            self._conductor.run(count)

    def drain(self) -> None:
        """See `TrainingSide.drain`. The conductor then answers every request."""
        self._channel.dismiss_predictor()


class WorkersTraining(TrainingSide):
    """A3C on processors: agents predict and learn by themselves."""

    def __init__(self, settings: Settings, host: Played, model: Model, recorder: Recorder, wake: Callable[[], None],
                 failed: Callable[[BaseException, float], None], saved: dict[str, NDArray] | None = None) -> None:
        super().__init__(settings, host, model, recorder, wake, failed, saved)
        self._shared.shared.agent_steps = recorder.statistics.agent_steps

    @property
    def _shared(self) -> SharedLearner:
        return cast(SharedLearner, self._model)

    def _train(self) -> None:
        statistics = self._recorder.statistics
        with statistics.counting() as count:
            run_counter(self._channel, self._store, self._shared, count, statistics, self._report)

    def end_update_early(self) -> None:
        """See `TrainingSide.end_update_early`. No update is made here."""

    def _untrained(self, slots: list[int]) -> list[int]:
        """Returns those that their worker has made no update from."""
        return [slot for slot in slots if not self._shared.shared.read_report(slot).version]


def training_side(settings: Settings) -> type[TrainingSide]:
    """Returns the class for the schedule of the settings."""
    if settings.schedule.agents_learn:
        return WorkersTraining
    return RoundsTraining if settings.schedule.agents_wait else TrainingSide
