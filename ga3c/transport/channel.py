"""The boundary between processes: two queues of tickets and, per agent, a pipe of replies.

    agent  --ticket-->  prediction queue  --> predictors --answer--> replies to the agent
    agent  --ticket-->  training queue    --> trainers   --freed --> replies to the agent

Only here does a slot change its owner: FREE -> agent (`Port` takes it) -> training queue (`Port` submits it) ->
trainer (`Channel.collect`) -> FREE (a reply tells the agent). Each agent has slots of its own, so what it may have
under way is bounded. That bounds the policy lag.

When an agent's process has ended, however it ended, `retire` sends a *fence* down the training queue. Pipes keep their
order. Once a trainer has met the fence, and every slot it collected has been released, the agent's slots are all free,
and the next *generation* may begin. Answers to a generation that is gone are dropped.

Next hop of an observation: `service.predictor.run_predictor`. Of a rollout: `service.batches.RolloutQueue`.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import multiprocessing
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from ga3c.settings.machine import usable_cores
from ga3c.settings.schema import MAX_SLOTS
from ga3c.transport.fields import Outputs
from ga3c.transport.port import Port
from ga3c.transport.slots import AgentStatus, Slots
from ga3c.transport.tickets import CLOSE, FENCE, FREED, STOP, TICKET, WAKE, Ticket, TicketQueue

SHORTEST_DELAY, LONGEST_DELAY = 1e-4, 5e-3  # seconds of queue delay: a predictor waits for a larger batch
MOST_TICKETS = 8192  # in one read, where all are wanted
COUNT_SECONDS = 0.1  # after which a predictor counts again how many agents play


def batch_sizes(most: int) -> list[int]:
    """How many requests one prediction may take: 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on, and `most`.

    Few, because TensorFlow keeps buffers for every size it has met, in each of its threads.
    """
    regular = {size for power in range(most.bit_length()) for size in (2**power, 3 * 2**power)}
    return sorted({size for size in regular if size < most} | {most})


def largest_size(sizes: list[int], waiting: int) -> int:
    """The largest of `sizes`, which begin with 1, that so many requests fill."""
    return sizes[bisect.bisect(sizes, waiting) - 1]


def nearest_size(sizes: list[int], wanted: int) -> int:
    """Which of `sizes` is nearest to that, of two the larger."""
    return min(reversed(sizes), key=lambda size: abs(size - wanted))


class Requests:
    """Tickets of n agents that wait for a prediction; `rows`: the n rows of the slots they ask about.

    Lists, not arrays: they are few, and NumPy would cost more than there is to do.
    """

    def __init__(self, tickets: list[Ticket], store: Slots) -> None:
        self.tickets = tickets
        self.rows = [store.row(slot, step) for _, slot, step, _ in tickets]

    def __len__(self) -> int:
        return len(self.tickets)

    @property
    def agents(self) -> list[int]:
        """Who waits."""
        return [agent for agent, _, _, _ in self.tickets]


class Arrivals(NamedTuple):
    """Tickets of requests; (agent, slot) of rollouts, which belong to who takes them; whether `dismiss_predictor` was
    called since.
    """

    tickets: list[Ticket]
    rollouts: list[tuple[int, int]]
    over: bool


class _Line:
    """The server's end of one agent: its slots, its generation and the pipe of replies while there is one."""

    def __init__(self, slots: range) -> None:
        self.slots = slots
        self.generation = 0
        self.replies: Connection | None = None
        self.file = -1          # of the replies
        self.opened_at = 0.0    # monotonic seconds
        self.collected = 0      # slots that trainers have
        self.fenced = False     # a trainer has met the fence

    @property
    def connected(self) -> int:
        """The generation that can be answered; -1 while there is none."""
        return self.generation if self.replies is not None else -1


class Channel:
    """The server's end: queues for predictors and trainers, one line per agent for the supervisor.

    Args:
        store: the shared slots, `slots_per_agent` for each agent.
        slots_per_agent: at least 2: while a full rollout waits for its bootstrap value, the next one has begun.
        on_vacant: called, from a trainer's thread, when a retired agent may be opened again.
    """

    def __init__(self, store: Slots, slots_per_agent: int,
                 on_vacant: Callable[[int], None] = lambda agent: None) -> None:
        assert slots_per_agent >= 2 and store.n_slots == store.n_agents * slots_per_agent <= MAX_SLOTS
        self._store = store
        self._lines = [_Line(range(agent * slots_per_agent, (agent + 1) * slots_per_agent))
                       for agent in range(store.n_agents)]
        self._on_vacant = on_vacant
        self._predictions, self._rollouts = TicketQueue(), TicketQueue()
        self._between = 0.0  # seconds from one request to the next while a predictor waits for more
        # Guards lines: nothing is written to an agent's slots or pipe after `hang_up`.
        self._lock = threading.Lock()
        self._outlet, self._intake = threading.Lock(), threading.Lock()  # one predictor, one trainer takes at a time

    # ---------------------------------------------------------------------------------- for the supervisor

    def open(self, agent: int) -> Port:
        """A port for a new generation of the agent, whose slots are all free. Close ours once it is handed over."""
        replies, writer = multiprocessing.Pipe(duplex=False)
        with self._lock:
            line, store = self._lines[agent], self._store
            assert line.replies is None
            line.replies, line.file = writer, writer.fileno()
            line.generation, line.opened_at = (line.generation + 1) % 2**16, time.monotonic()
            store.requested_at[line.slots] = 0.0
            store.state[agent], store.heartbeat[agent] = AgentStatus.STARTING, line.opened_at
            store.faults[agent] = 0
            if "statistics" in vars(store):
                store.statistics[agent] = 0.0
            return Port(agent, line.slots, line.generation, self._predictions.writer, self._rollouts.writer, replies)

    def stop(self, agent: int) -> None:
        """With its next prediction the agent submits what it has and ends."""
        with self._lock:
            self._reply(self._lines[agent], 0, STOP)

    def hang_up(self, agent: int) -> None:
        """Closes the replies to the agent: wherever it waits, it gets `ServerGone`."""
        with self._lock:
            line = self._lines[agent]
            writer, line.replies, line.file = line.replies, None, -1
        if writer is not None:
            writer.close()

    def withdraw(self, agent: int) -> None:
        """No process has got its port. Rounds that waited for the agent go on without it."""
        self.hang_up(agent)
        self._rollouts.put(WAKE, FENCE)

    def retire(self, agent: int) -> None:
        """It has ended; `on_vacant` is called once all that it submitted has been collected and released."""
        self.hang_up(agent)
        self._rollouts.put(agent, FENCE, 0, self._lines[agent].generation)

    def has_delivered(self, agent: int) -> bool:
        """Whether this generation of the agent has submitted a rollout."""
        line = self._lines[agent]
        return bool(self._store.submitted_at[line.slots].max() > line.opened_at)

    def faults(self, agent: int) -> tuple[int, str]:
        """(environments that failed this generation of the agent, traceback of the last one)."""
        count = int(self._store.faults[agent])
        return count, self._store.last_fault[agent].decode(errors="replace") if count else ""

    def _reply(self, line: _Line, slot: int, step: int) -> None:
        # Never blocks: what an agent can be sent between two reads is less than the smallest pipe holds.
        if line.file >= 0:
            with contextlib.suppress(BrokenPipeError):  # it died; the supervisor learns of it from the process itself
                os.write(line.file, TICKET.pack(0, slot, step, 0))

    @property
    def playing(self) -> int:
        """Agents that have made their environments."""
        states = self._store.state
        return sum(line.replies is not None and AgentStatus.STARTING < states[agent] < AgentStatus.DRAINED
                   for agent, line in enumerate(self._lines))

    @property
    def waiting(self) -> int:
        """Agents that wait for a prediction."""
        return self._in_state(AgentStatus.WAITING_FOR_PREDICTION)

    @property
    def blocked(self) -> int:
        """Agents that wait for a free slot, and so for trainers."""
        return self._in_state(AgentStatus.WAITING_FOR_SLOT)

    def _in_state(self, state: AgentStatus) -> int:
        states = self._store.state
        return sum(line.replies is not None and states[agent] == state for agent, line in enumerate(self._lines))

    # ---------------------------------------------------------------------------------- for predictors

    def requests(self, most: int, least: int = 1) -> Iterator[Requests]:
        """What agents wait for, until `dismiss_predictor`: always one of `batch_sizes(most)`, the largest that is
        there. One predictor takes at a time.

        Dynamic batching: a call of the model costs nearly the same for one request as for several. So where enough
        agents play to fill the cores, a predictor waits once, 5 ms at the most, until about `least` are there.
        """
        sizes, cores, playing, counted = batch_sizes(most), usable_cores(), 0, -math.inf
        ready = select.poll()
        ready.register(self._predictions, select.POLLIN)
        ended = False
        while not ended:
            with self._outlet:
                waiting = len(self._predictions)
                if not waiting:
                    ready.poll()
                    waiting = len(self._predictions)
                now = time.monotonic()
                if waiting < least:
                    if now - counted > COUNT_SECONDS:
                        playing, counted = self.playing, now
                    wanted = nearest_size(sizes, min(least, (playing - cores) // 2))
                    waiting = self._delayed(waiting, wanted)
                tickets, ended = self._predictions.without_close(self._predictions.take(largest_size(sizes, waiting)))
            if tickets:
                size = largest_size(sizes, len(tickets))  # fewer where a dismissal was among them
                self._put_back(tickets[size:])
                yield Requests(tickets[:size], self._store)

    def _delayed(self, waiting: int, wanted: int) -> int:
        """Sleeps for about as long as it takes `wanted` requests to be there; returns how many are."""
        if waiting >= wanted:
            return waiting
        began = time.monotonic()
        time.sleep(min(max((wanted - waiting) * self._between, SHORTEST_DELAY), LONGEST_DELAY))
        there = len(self._predictions)
        self._between += 0.1 * ((time.monotonic() - began) / max(1, there - waiting) - self._between)
        return there

    def answer(self, requests: Requests, outputs: Outputs, version: int) -> None:
        """Writes outputs, arrays (n, E, ...) by name, and their version into the n rows, and wakes the agents."""
        with self._lock:
            lines = self._lines
            alive = [lines[agent].connected == generation for agent, _, _, generation in requests.tickets]
            if not all(alive):
                requests = Requests(list(itertools.compress(requests.tickets, alive)), self._store)
                outputs = {name: np.asarray(array)[alive] for name, array in outputs.items()}
            self._store.answer(requests.rows, outputs, version)
            for agent, slot, step, _ in requests.tickets:
                self._reply(lines[agent], slot, step)

    def ask_again(self, requests: Requests) -> None:
        """Puts back what could not be answered; another predictor takes it."""
        self._put_back(requests.tickets)

    def _put_back(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            self._predictions.put(*ticket)

    def dismiss_predictor(self) -> None:
        """One predictor ends after the tickets that are already waiting."""
        self._predictions.put(CLOSE)

    @property
    def prediction_queue(self) -> int:
        """Agents waiting for a predictor."""
        return len(self._predictions)

    # ---------------------------------------------------------------------------------- for trainers

    @contextlib.contextmanager
    def collect(self, most: int) -> Iterator[tuple[list[int], bool]]:
        """Waits for rollouts and gives (slots of 1 to `most` of them, whether the trainer shall end).

        Leaving the block of code releases the slots. One trainer collects at a time, in the order of submission.
        There are no slots only if the trainer shall end.
        """
        with self._intake:
            rollouts, ended = self._receive(most)
            while not rollouts and not ended:
                rollouts, ended = self._receive(most)
        try:
            yield [slot for _, slot in rollouts], ended
        finally:
            self.release(rollouts)

    def _receive(self, most: int) -> tuple[list[tuple[int, int]], bool]:
        """Waits for tickets: ((agent, slot) of rollouts, which belong to the trainer now; whether it shall end)."""
        tickets, ended = self._rollouts.without_close(self._rollouts.take(most))
        rollouts, fenced = [], []
        with self._lock:
            for agent, slot, _, generation in tickets:
                if agent == WAKE:
                    continue
                line = self._lines[agent]
                if slot == FENCE:
                    line.fenced = True
                    fenced.append(agent)
                elif line.generation == generation:  # else of an agent that lives on though it was given up
                    line.collected += 1
                    rollouts.append((agent, slot))
        self._vacate(fenced)
        return rollouts, ended

    def release(self, rollouts: list[tuple[int, int]]) -> None:
        """The slots of these (agent, slot) belong to their agents again."""
        with self._lock:
            for agent, slot in rollouts:
                line = self._lines[agent]
                line.collected -= 1
                self._reply(line, slot, FREED)  # no other generation can have begun before its fence
        self._vacate([agent for agent, _ in rollouts])

    def _vacate(self, agents: list[int]) -> None:
        """Reports those whose fence has been met and whose slots are all free."""
        for agent in agents:
            with self._lock:
                line = self._lines[agent]
                vacant = line.fenced and not line.collected
                line.fenced = line.fenced and not vacant
            if vacant:
                self._on_vacant(agent)

    def dismiss_trainer(self) -> None:
        """One trainer ends once the rollouts that are already waiting have been collected; its last batch may not be
        full.
        """
        self._rollouts.put(CLOSE)

    def drop_rollouts(self) -> list[int]:
        """Takes the rollouts that wait for trainers away, for good; returns their slots. Trainers must be dismissed."""
        with self._intake:  # a trainer that holds it lets go at its own dismissal
            self._rollouts.put(CLOSE)  # one more than trainers, so that this loop ends
            dropped, ended = list[int](), False
            while not ended:
                tickets, ended = self._rollouts.without_close(self._rollouts.take(MOST_TICKETS))
                dropped += [slot for _, slot, _, _ in tickets if slot != FENCE]
            return dropped

    @property
    def training_queue(self) -> int:
        """Rollouts waiting for a trainer."""
        return len(self._rollouts)

    # ---------------------------------------------------------------------------------- for schedules in rounds

    @property
    def connected(self) -> dict[int, int]:
        """The agents that can be answered, and their generations."""
        return {agent: line.generation for agent, line in enumerate(self._lines) if line.replies is not None}

    def arrivals(self) -> Iterator[Arrivals]:
        """Whatever agents ask for and submit, as soon as it is there, until `dismiss_trainer`. One thread takes it.

        A submission comes no later than what its agent asks for after it.
        """
        ready, ended = select.poll(), False
        for queue in (self._predictions, self._rollouts):
            ready.register(queue, select.POLLIN)
        while not ended:
            ready.poll()
            tickets, over = list[Ticket](), False
            if len(self._predictions):
                tickets, over = self._predictions.without_close(self._predictions.take(MOST_TICKETS))
            rollouts: list[tuple[int, int]] = []
            if len(self._rollouts):
                rollouts, ended = self._receive(MOST_TICKETS)
            yield Arrivals(tickets, rollouts, over)

    # ---------------------------------------------------------------------------------- the end

    def close(self) -> None:
        """Closes all pipes; nobody may be using the channel any more."""
        for agent in range(len(self._lines)):
            self.hang_up(agent)
        self._predictions.close()
        self._rollouts.close()
