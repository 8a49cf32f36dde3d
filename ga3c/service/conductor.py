"""The conductor: the only thread that answers agents and makes updates, for schedules in rounds.

It carries out what `rounds.Rounds` says is due. It serves agents' processes; serial mode does the same for its own
agents. Next hop of an observation: `Learner.predict`, and back; of a rollout: `Learner.update`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ga3c.learner.learner import Learner, UpdateStats
from ga3c.runs.statistics import PredictionCount, Statistics, TrainerTime
from ga3c.service.batches import clean, join
from ga3c.service.memory import Memory
from ga3c.service.predictor import Predictor
from ga3c.service.rounds import Rounds, Update
from ga3c.service.workers import WorkerThread
from ga3c.settings.schedule import Schedule
from ga3c.transport.channel import Arrivals, Channel, Requests
from ga3c.transport.slots import Batch, Slots
from ga3c.transport.tickets import Ticket


class Conductor:
    """The state of the rounds, and the work on them. A thread that replaces a failed one continues with this state.

    Args:
        rollout_length: steps in a rollout of a batch.
        report: called with each update.
        statistics: counts what is collected, dropped and lost.
        over: returns whether the last update was made. After it, requests wait until the agents drain.
        memory: takes the rollouts and gives the batches, if the schedule has one.
        failed: called with the exception of the thread that updates are made in, in epochs, and when it began.
    """

    def __init__(self, channel: Channel, store: Slots, learner: Learner, schedule: Schedule,
                 rollout_length: int, report: Callable[[UpdateStats, Batch, TrainerTime], None],
                 statistics: Statistics, over: Callable[[], bool], memory: Memory | None = None,
                 failed: Callable[[BaseException, float], None] = lambda error, began: None) -> None:
        self._channel = channel
        self._store = store
        self._learner = learner
        self._report = report
        self._statistics = statistics
        self._over = over
        self._memory = memory
        self._epochs = schedule.epochs
        self._failed = failed
        self._training = False                  # whether the updates of an epoch are being made
        self._trainer: WorkerThread | None = None  # which makes them
        self._rounds = Rounds(schedule, memory.played if memory is not None else 0)
        self._buffer = store.empty_batch(schedule.rollouts, rollout_length)
        self._tickets: dict[int, Ticket] = {}   # one for each agent that waits
        self._ending = False                    # agents drain: every request is answered

    def run(self, count: PredictionCount) -> None:
        """Runs until `dismiss_trainer`. After `dismiss_predictor` it makes no update and answers every request."""
        predictor = Predictor(self._channel, self._store, self._learner, self._store.n_agents, count)
        if self._memory is not None and not self._training:
            self._begin_epoch(self._memory)  # a run, or a failed thread, may have ended before or within it
        self._work(predictor)  # a failed thread before this one may have left work
        for arrived in self._channel.arrivals():
            self._note(arrived)
            self._work(predictor)
        if self._trainer is not None:
            self._trainer.join(None)

    def _note(self, arrived: Arrivals) -> None:
        connected, known = self._channel.connected, self._rounds.generations
        for agent in [agent for agent, generation in known.items() if connected.get(agent) != generation]:
            del known[agent]
            self._tickets.pop(agent, None)
            self._leave(agent)
        if arrived.over:
            self._ending = True
            for agent in known:  # no update follows
                self._leave(agent)
        gone = []
        for agent, generation, slot in arrived.rollouts:
            if agent not in known or self._ending:
                gone.append((agent, slot))
                continue
            self._rounds.submitted(agent, slot)
            if self._memory is not None:
                self._memory.append(self._store.view(slot), agent, generation)
                self._channel.release([(agent, slot)])
        self._drop(gone)
        for ticket in arrived.tickets:
            agent, slot, step, generation = ticket
            if connected.get(agent) == generation:
                self._tickets[agent] = ticket
                self._rounds.asked(agent, slot, step, generation)

    def _leave(self, agent: int) -> None:
        """Takes the agent out of all further updates. Releases its slots; untrained rollouts count as dropped."""
        left = self._rounds.left(agent)
        self._drop([(agent, slot) for slot in left.untrained])
        self._channel.release([(agent, slot) for slot in left.trained])

    def _drop(self, rollouts: list[tuple[int, int]]) -> None:
        for _, slot in rollouts:
            self._statistics.report_lost(self._store.view(slot))
        if rollouts:
            self._channel.release(rollouts)

    def _work(self, predictor: Predictor) -> None:
        """Carries out what is due, until an agent must play first."""
        if self._ending:
            if self._tickets:
                self._answer(predictor, sorted(self._tickets))
            return
        while (due := self._rounds.due(self._channel.connected)) is not None:
            if isinstance(due, Update):
                if self._training:
                    return  # the thread wakes this one
                began = time.thread_time()
                if self._memory is None:
                    self._update(due)
                else:
                    self._train(self._memory)
                predictor.leave_out(time.thread_time() - began)
            elif self._over():
                return
            else:
                self._answer(predictor, due.agents)
                self._rounds.answered(due)

    def _answer(self, predictor: Predictor, agents: list[int]) -> None:
        predictor.answer(Requests([self._tickets[agent] for agent in agents], self._store))
        for agent in agents:
            del self._tickets[agent]

    def _train(self, memory: Memory) -> None:
        """Makes the updates that are due; in epochs lets them begin, and what is played from now on meet them later."""
        self._rounds.updated()
        if not self._epochs:
            memory.train(self._make)
        memory.meet()
        self._begin_epoch(memory)

    def _begin_epoch(self, memory: Memory) -> None:
        if self._epochs and memory.due and not self._over():
            self._training = True
            self._trainer = WorkerThread("trainer-of-an-epoch", lambda: self._beside(memory), self._failed)

    def _beside(self, memory: Memory) -> None:
        """Makes the updates of an epoch, in a thread of its own."""
        try:
            memory.train(self._make, lambda: self._ending)
        finally:
            self._training = False
            self._channel.wake()

    def _make(self, batch: Batch, agent_steps: int, since: int) -> UpdateStats | None:
        before = time.monotonic()
        update = self._learner.update(batch, agent_steps, since)
        if update is None:
            self._statistics.report_dropped(batch)
        else:
            if not self._epochs:
                self._learner.publish()
            self._report(update, batch, TrainerTime(0.0, time.monotonic() - before, 0.0))
        return update

    def _update(self, due: Update) -> None:
        before = time.monotonic()
        join(self._store, due.rollouts, self._buffer)
        self._channel.release(self._rounds.updated())
        began_at = self._statistics.agent_steps
        self._statistics.collect(self._buffer)
        since = clean(self._buffer, self._learner, self._statistics)
        gathered = time.monotonic()
        try:
            update = self._learner.update(self._buffer, began_at, since)
        except BaseException:
            self._statistics.report_dropped(self._buffer)
            raise
        if update is None:
            self._statistics.report_dropped(self._buffer)
        else:
            self._learner.publish()
            self._report(update, self._buffer, TrainerTime(gathered - before, time.monotonic() - gathered, 0.0))
