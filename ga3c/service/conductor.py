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
from ga3c.service.predictor import Predictor
from ga3c.service.rounds import Rounds, Update
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
    """

    def __init__(self, channel: Channel, store: Slots, learner: Learner, schedule: Schedule,
                 rollout_length: int, report: Callable[[UpdateStats, Batch, TrainerTime], None],
                 statistics: Statistics, over: Callable[[], bool]) -> None:
        self._channel = channel
        self._store = store
        self._learner = learner
        self._report = report
        self._statistics = statistics
        self._over = over
        self._rounds = Rounds(schedule)
        self._buffer = store.empty_batch(schedule.rollouts, rollout_length)
        self._tickets: dict[int, Ticket] = {}   # one for each agent that waits
        self._ending = False                    # agents drain: every request is answered

    def run(self, count: PredictionCount) -> None:
        """Runs until `dismiss_trainer`. After `dismiss_predictor` it makes no update and answers every request."""
        predictor = Predictor(self._channel, self._store, self._learner, self._store.n_agents, count)
        self._work(predictor)  # a failed thread before this one may have left work
        for arrived in self._channel.arrivals():
            self._note(arrived)
            self._work(predictor)

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
        for agent, _, slot in arrived.rollouts:
            if agent in known and not self._ending:
                self._rounds.submitted(agent, slot)
            else:
                gone.append((agent, slot))
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
        while not self._over() and (due := self._rounds.due(self._channel.connected)) is not None:
            if isinstance(due, Update):
                began = time.thread_time()
                self._update(due)
                predictor.leave_out(time.thread_time() - began)
            else:
                self._answer(predictor, due.agents)
                self._rounds.answered(due)

    def _answer(self, predictor: Predictor, agents: list[int]) -> None:
        predictor.answer(Requests([self._tickets[agent] for agent in agents], self._store))
        for agent in agents:
            del self._tickets[agent]

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
