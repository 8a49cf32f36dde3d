"""The boundary between processes: two queues of tickets and, per agent, a pipe of replies.

    agent  --ticket-->  prediction queue  --> predictors --answer--> replies to the agent
    agent  --ticket-->  training queue    --> trainers   --freed --> replies to the agent

A slot changes its owner only here: FREE -> agent (`Port` takes it) -> training queue (`Port` submits it) ->
trainer (`Channel.collect`) -> FREE (a reply tells the agent). Each agent has its own slots, which bounds its rollouts
under way and so the policy lag.

When an agent's process has ended in any way, `retire` puts a *fence* into the training queue. Pipes keep their order.
So the agent's slots are all free once a trainer has met the fence and all collected slots have been released. Then the
next *generation* may begin. Answers to an earlier generation are dropped.

Next hop of an observation: `service.predictor.run_predictor`. Of a rollout: `service.batches.RolloutQueue`.
"""

from __future__ import annotations

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
from ga3c.settings.schedule import MAX_SLOTS
from ga3c.transport.batch_sizes import batch_sizes, largest_size, nearest_size
from ga3c.transport.fields import Outputs
from ga3c.transport.port import Port
from ga3c.transport.slots import AgentStatus, Slots
from ga3c.transport.tickets import CLOSE, FENCE, FREED, STOP, TICKET, WAKE, Ticket, TicketQueue

SHORTEST_DELAY, LONGEST_DELAY = 1e-4, 5e-3  # seconds of queue delay, in which a predictor waits for more
MOST_TICKETS = 8192  # in one read that takes all tickets
COUNT_SECONDS = 0.1  # after which a predictor counts the playing agents again


class Requests:
    """Tickets of n agents that wait for a prediction. `rows`: the flat indices (`Slots.row`) of their n observations.

    Lists, not arrays: for so few tickets NumPy's overhead would be larger than the work.
    """

    def __init__(self, tickets: list[Ticket], store: Slots) -> None:
        self.tickets = tickets
        self.rows = [store.row(slot, step) for _, slot, step, _ in tickets]

    def __len__(self) -> int:
        return len(self.tickets)

    @property
    def agents(self) -> list[int]:
        """Returns the numbers of the agents that wait."""
        return [agent for agent, _, _, _ in self.tickets]


class Rollout(NamedTuple):
    """A submitted rollout: its agent, the generation of the agent's process, and its slot."""

    agent: int
    generation: int
    slot: int


class Arrivals(NamedTuple):
    """Tickets of requests; rollouts, which now belong to the receiver; and `over`: whether
    `dismiss_predictor` was called since the last arrivals.
    """

    tickets: list[Ticket]
    rollouts: list[Rollout]
    over: bool


class Collection(NamedTuple):
    """What a trainer has collected.

    rollouts: in the order of submission. ended: (agent, generation) of processes that have ended, and from which
    nothing comes any more. over: whether the trainer must end.
    """

    rollouts: list[Rollout]
    ended: list[tuple[int, int]]
    over: bool

    @property
    def slots(self) -> list[int]:
        """The slots of the rollouts."""
        return [rollout.slot for rollout in self.rollouts]


class _AgentEnd:
    """The server's end of one agent: its slots, its generation and the pipe of replies while it is open."""

    def __init__(self, slots: range) -> None:
        self.slots = slots
        self.generation = 0
        self.replies: Connection | None = None
        self.file = -1          # descriptor of `replies`, else -1
        self.opened_at = 0.0    # monotonic seconds
        self.collected = 0      # slots that trainers have
        self.fenced = False     # a trainer has met the fence

    @property
    def connected(self) -> int:
        """Returns the generation that can be answered, or -1 if there is none."""
        return self.generation if self.replies is not None else -1


class Channel:
    """The server's end: queues for predictors and trainers, one `_AgentEnd` per agent for the supervisor.

    Args:
        store: the shared slots, `slots_per_agent` for each agent.
        slots_per_agent: at least 2, as the next rollout begins while a full one waits for its bootstrap value.
        on_vacant: called from a trainer's thread when a retired agent may be opened again.
    """

    def __init__(self, store: Slots, slots_per_agent: int,
                 on_vacant: Callable[[int], None] = lambda agent: None) -> None:
        assert slots_per_agent >= 2 and store.n_slots == store.n_agents * slots_per_agent <= MAX_SLOTS
        self._store = store
        self._ends = [_AgentEnd(range(agent * slots_per_agent, (agent + 1) * slots_per_agent))
                      for agent in range(store.n_agents)]
        self._on_vacant = on_vacant
        self._predictions = TicketQueue()
        self._rollouts = TicketQueue()
        self._seconds_between = 0.0  # seconds from one request to the next while a predictor waits for more
        # Guards the ends: nothing is written to an agent's slots or pipe after `hang_up`.
        self._lock = threading.Lock()
        # Held while taking, so that one thread takes at a time.
        self._prediction_lock = threading.Lock()
        self._training_lock = threading.Lock()

    # ---------------------------------------------------------------------------------- for the supervisor

    def open(self, agent: int) -> Port:
        """Returns a port for a new generation of an agent whose slots are all free. Close it once it is passed on."""
        replies, writer = multiprocessing.Pipe(duplex=False)
        with self._lock:
            end, store = self._ends[agent], self._store
            assert end.replies is None
            end.replies = writer
            end.file = writer.fileno()
            end.generation = (end.generation + 1) % 2**16
            end.opened_at = time.monotonic()
            store.requested_at[end.slots] = 0.0
            store.state[agent] = AgentStatus.STARTING
            store.heartbeat[agent] = end.opened_at
            store.faults[agent] = 0
            return Port(agent, end.slots, end.generation, self._predictions.writer, self._rollouts.writer, replies)

    def stop(self, agent: int) -> None:
        """Sends the stop message: at its next prediction the agent submits its steps and ends."""
        with self._lock:
            self._reply(self._ends[agent], 0, STOP)

    def hang_up(self, agent: int) -> None:
        """Closes the pipe of replies. The agent then gets `ServerGone`, wherever it waits."""
        with self._lock:
            end = self._ends[agent]
            writer = end.replies
            end.replies = None
            end.file = -1
        if writer is not None:
            writer.close()

    def withdraw(self, agent: int) -> None:
        """Hangs up on an agent whose process did not start. Rounds that waited for it go on without it."""
        self.hang_up(agent)
        self.wake()

    def retire(self, agent: int) -> None:
        """Hangs up on an agent that has ended. `on_vacant` is called once all its rollouts have been released."""
        self.hang_up(agent)
        self._rollouts.put(agent, FENCE, 0, self._ends[agent].generation)

    def has_delivered(self, agent: int) -> bool:
        """Returns whether this generation of the agent has submitted a rollout."""
        end = self._ends[agent]
        return bool(self._store.submitted_at[end.slots].max() > end.opened_at)

    def faults(self, agent: int) -> tuple[int, str]:
        """Returns (failures of this generation's environments, traceback of the last failure)."""
        count = int(self._store.faults[agent])
        return count, self._store.last_fault[agent].decode(errors="replace") if count else ""

    def _reply(self, end: _AgentEnd, slot: int, step: int) -> None:
        # Never blocks: even the smallest pipe holds all that an agent can be sent between two of its reads.
        if end.file >= 0:
            with contextlib.suppress(BrokenPipeError):  # the agent died; the supervisor watches the process itself
                os.write(end.file, TICKET.pack(0, slot, step, 0))

    @property
    def playing(self) -> int:
        """Returns the number of agents that have made their environments and have not drained."""
        states = self._store.state
        return sum(end.replies is not None and AgentStatus.STARTING < states[agent] < AgentStatus.DRAINED
                   for agent, end in enumerate(self._ends))

    @property
    def waiting(self) -> int:
        """Returns the number of agents that wait for a prediction."""
        return self._in_state(AgentStatus.WAITING_FOR_PREDICTION)

    @property
    def blocked(self) -> int:
        """Returns the number of agents that wait for a free slot, and so for trainers."""
        return self._in_state(AgentStatus.WAITING_FOR_SLOT)

    def _in_state(self, state: AgentStatus) -> int:
        states = self._store.state
        return sum(end.replies is not None and states[agent] == state for agent, end in enumerate(self._ends))

    # ---------------------------------------------------------------------------------- for predictors

    def requests(self, most: int, least: int = 1) -> Iterator[Requests]:
        """Yields batches of requests, until `dismiss_predictor`. One predictor takes at a time.

        The size is the largest one of `batch_sizes(most)` that the waiting requests fill. Dynamic batching: a call of
        the model costs nearly the same for one request as for several. So a predictor waits once, 5 ms at the most,
        until about `least` requests wait. It does so only while enough agents play to fill the cores.
        """
        sizes, cores, playing, counted = batch_sizes(most), usable_cores(), 0, -math.inf
        ready = select.poll()
        ready.register(self._predictions, select.POLLIN)
        ended = False
        while not ended:
            with self._prediction_lock:
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
                size = largest_size(sizes, len(tickets))  # fewer if a dismissal was among the tickets
                self.ask_again(Requests(tickets[size:], self._store))
                yield Requests(tickets[:size], self._store)

    def _delayed(self, waiting: int, wanted: int) -> int:
        """Sleeps for about the time until `wanted` requests wait. Returns the number that wait then."""
        if waiting >= wanted:
            return waiting
        began = time.monotonic()
        time.sleep(min(max((wanted - waiting) * self._seconds_between, SHORTEST_DELAY), LONGEST_DELAY))
        there = len(self._predictions)
        self._seconds_between += 0.1 * ((time.monotonic() - began) / max(1, there - waiting) - self._seconds_between)
        return there

    def answer(self, requests: Requests, outputs: Outputs, version: int) -> None:
        """Writes outputs, arrays (n, E, ...) by name, and their version into the n rows, and wakes the agents."""
        with self._lock:
            ends = self._ends
            alive = [ends[agent].connected == generation for agent, _, _, generation in requests.tickets]
            if not all(alive):
                requests = Requests(list(itertools.compress(requests.tickets, alive)), self._store)
                outputs = {name: np.asarray(array)[alive] for name, array in outputs.items()}
            self._store.answer(requests.rows, outputs, version)
            for agent, slot, step, _ in requests.tickets:
                self._reply(ends[agent], slot, step)

    def ask_again(self, requests: Requests) -> None:
        """Puts requests that could not be answered back into the queue, for another predictor."""
        for ticket in requests.tickets:
            self._predictions.put(*ticket)

    def dismiss_predictor(self) -> None:
        """Makes one predictor end after the tickets that are already waiting."""
        self._predictions.put(CLOSE)

    @property
    def prediction_queue(self) -> int:
        """Returns the number of requests that wait for a predictor."""
        return len(self._predictions)

    # ---------------------------------------------------------------------------------- for trainers

    @contextlib.contextmanager
    def collect(self, most: int) -> Iterator[Collection]:
        """Waits for rollouts and yields 1 to `most` of them. There may be none only if the trainer must end.

        Leaving the `with` block releases the slots. One trainer collects at a time, in the order of submission.
        """
        with self._training_lock:
            collection = self._receive(most)
            while not collection.rollouts and not collection.over:
                rollouts, ended, over = self._receive(most)
                collection = Collection(rollouts, [*collection.ended, *ended], over)
        try:
            yield collection
        finally:
            self.release([(rollout.agent, rollout.slot) for rollout in collection.rollouts])

    def _receive(self, most: int) -> Collection:
        """Waits for tickets, and takes their rollouts from the agents."""
        tickets, over = self._rollouts.without_close(self._rollouts.take(most))
        rollouts, ended = list[Rollout](), list[tuple[int, int]]()
        with self._lock:
            for agent, slot, _, generation in tickets:
                if agent == WAKE:
                    continue
                end = self._ends[agent]
                if slot == FENCE:
                    end.fenced = True
                    ended.append((agent, generation))
                elif end.generation == generation:  # else its process was given up, but still lives
                    end.collected += 1
                    rollouts.append(Rollout(agent, generation, slot))
        self._vacate([agent for agent, _ in ended])
        return Collection(rollouts, ended, over)

    def release(self, rollouts: list[tuple[int, int]]) -> None:
        """Gives the slots of these (agent, slot) back to their agents."""
        with self._lock:
            for agent, slot in rollouts:
                end = self._ends[agent]
                end.collected -= 1
                self._reply(end, slot, FREED)  # still its generation: the next needs the fence first
        self._vacate([agent for agent, _ in rollouts])

    def _vacate(self, agents: list[int]) -> None:
        """Reports agents whose fence has been met and whose slots are all free."""
        for agent in agents:
            with self._lock:
                end = self._ends[agent]
                vacant = end.fenced and not end.collected
                end.fenced = end.fenced and not vacant
            if vacant:
                self._on_vacant(agent)

    def dismiss_trainer(self) -> None:
        """Makes one trainer end after the rollouts that are already waiting. Its last batch may not be full."""
        self._rollouts.put(CLOSE)

    def drop_rollouts(self) -> list[int]:
        """Removes all rollouts from the training queue and returns their slots. Trainers must be dismissed before."""
        with self._training_lock:  # a trainer that holds it releases it at its dismissal
            self._rollouts.put(CLOSE)  # one more than for the trainers, so that this loop ends
            dropped, ended = list[int](), False
            while not ended:
                tickets, ended = self._rollouts.without_close(self._rollouts.take(MOST_TICKETS))
                dropped += [slot for _, slot, _, _ in tickets if slot != FENCE]
            return dropped

    @property
    def training_queue(self) -> int:
        """Returns the number of rollouts that wait for a trainer."""
        return len(self._rollouts)

    # ---------------------------------------------------------------------------------- for schedules in rounds

    @property
    def connected(self) -> dict[int, int]:
        """Returns the agents that can be answered, with their generations."""
        return {agent: end.generation for agent, end in enumerate(self._ends) if end.replies is not None}

    def wake(self) -> None:
        """Lets `arrivals` yield, though nothing may have arrived."""
        self._rollouts.put(WAKE, FENCE)

    def arrivals(self) -> Iterator[Arrivals]:
        """Yields all requests and rollouts as soon as they arrive, until `dismiss_trainer`. For one thread only.

        A rollout arrives no later than the request that its agent makes after submitting it.
        """
        ready, ended = select.poll(), False
        for queue in (self._predictions, self._rollouts):
            ready.register(queue, select.POLLIN)
        while not ended:
            ready.poll()
            tickets, over = list[Ticket](), False
            if len(self._predictions):
                tickets, over = self._predictions.without_close(self._predictions.take(MOST_TICKETS))
            rollouts: list[Rollout] = []
            if len(self._rollouts):
                rollouts, _, ended = self._receive(MOST_TICKETS)
            yield Arrivals(tickets, rollouts, over)

    # ---------------------------------------------------------------------------------- the end

    def close(self) -> None:
        """Closes all pipes. No thread may still use the channel."""
        for agent in range(len(self._ends)):
            self.hang_up(agent)
        self._predictions.close()
        self._rollouts.close()
