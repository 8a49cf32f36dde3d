"""The boundary between processes: queues of tickets and, per process of agents, a channel of replies.

    agent  --ticket-->  prediction queue  --> predictors --answer--> replies to its process
    agent  --ticket-->  training queue    --> trainers   --freed --> replies to its process

Only tickets travel: 8 bytes naming agent, slot, row (or round) and incarnation. A queue is one pipe shared by all
agents with no lock: writes of up to PIPE_BUF bytes are atomic, and one read takes many whole tickets.

Only here does a slot change its owner: FREE -> agent (`Port` takes it) -> training queue (`Port` submits it) ->
trainer (`Channel.collect`) -> FREE (the agent is told). Each agent index has slots of its own, so what an agent may
have under way is bounded, which bounds the policy lag; waiting for a free slot is the back-pressure.

Agents may share a process (`seating.py` says which do). They begin and end together, as one incarnation, and take their
steps in turn. So that rollouts of an update need not be copied together, they fill slots side by side, *round* by
round, and a trainer gets such a block once it is whole (`blocks.py`). Who falls behind the others, as it has rested
for one, hands in a shorter rollout once its slot beside theirs is free, and is in step again.

When a process of agents has ended, however it ended, `retire` sends a *fence* down the training queue. Pipes keep their
order, so once a trainer has met the fence, and what was lent has been given back, everything its agents ever submitted
has been collected, all their slots are free, and they may begin anew, as the next incarnation. Answers to an
incarnation that is gone are dropped.

An agent that is not needed may *rest*: it hands in what it has, says so in a third queue, and keeps its environments
until it is called back, or its process told to leave.

Next hop of an observation: `predictor.run_predictor`.
"""

from __future__ import annotations

import bisect
import contextlib
import fcntl
import functools
import itertools
import math
import multiprocessing
import os
import select
import struct
import sys
import termios
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

import numpy as np
from numpy.typing import NDArray

from ga3c.settings.machine import usable_cores
from ga3c.settings.schema import MAX_SLOTS
from ga3c.transport.blocks import ROUNDS, Blocks, Rollout
from ga3c.transport.seating import Seating
from ga3c.transport.slots import Slots

Ticket = tuple[int, int, int, int]
"""Agent, slot, step, or of a rollout its round, and incarnation."""
_TICKET = struct.Struct("<4H")
_CLOSE = 0xFFFF    # as agent: one consumer of the queue shall end
_FENCE = 0xFFFF    # as slot, in the training queue: all tickets of this incarnation lie before this one
_LOOK = 1          # as its step: instead, an agent rests or leaves, for which others may have waited
_FREED = 0xFFFF    # as step, in a reply: the slot is free again
_LEAVE, _PAUSE, _RETURN = 0xFFFE, 0xFFFD, 0xFFFC  # as step, in a reply: what the agent shall do

SHORTEST_WAIT, LONGEST_WAIT = 1e-4, 5e-3  # seconds that a predictor waits for more requests
COUNT_SECONDS = 0.1  # after which it counts anew who plays

TAKE, PREDICT, SUBMIT, REST = range(4)
Request = tuple[int, int, int]
"""What an agent asks for: (TAKE, 0, 0), (PREDICT, slot, row), (SUBMIT, slot, 0) or (REST, slot, its steps)."""
WAIT = -1
"""In the place of a grant: it comes later."""
GO_ON, PAUSE, CUT = range(3)
"""What a prediction is granted with."""
OUT_OF_STEP = 3  # steps: who lacks more when another of its process has begun the next round is cut short


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
    """Tickets of n agents that wait; `at`: the n rows of the store that they ask about.

    Few at a time, so lists: NumPy does more different things for each of them than there is to be done, and a predictor
    finds none of it in the processor's caches.
    """

    def __init__(self, tickets: list[Ticket], store: Slots) -> None:
        self.tickets = tickets
        length = store.slot_rows
        self.at = [slot * length + row for _, slot, row, _ in tickets]

    def __len__(self) -> int:
        return len(self.tickets)

    @property
    def agents(self) -> list[int]:
        """Who waits."""
        return [agent for agent, _, _, _ in self.tickets]


class ServerGone(Exception):
    """The main process has closed the replies to this process, or has died."""


class _Seat:
    """One agent's, in its `Port`: its slots, those that are free, `waits_for`: TAKE or REST while it does, whether it
    shall pause, and in which round of blocks it plays.
    """

    def __init__(self, slots: range) -> None:
        self.slots, self.free = slots, deque(slots)
        self.waits_for, self.pause, self.round = WAIT, False, 0


class Port:
    """The agents' end of the channel, one for those of a process. Made by `Channel.open`, handed over as an argument.

    What an agent asks for is granted at once by `ask`, or later by `receive`. `block`: so many fill one together. What
    is handed in waits for those of the others, which a trainer would be woken for in vain, as long as they are in step;
    it is lost if the process dies meanwhile.
    """

    def __init__(self, slots: dict[int, range], rollout_length: int, block: int, incarnation: int,
                 requests: Connection, rollouts: Connection, rests: Connection, replies: Connection) -> None:
        self.agents, self.incarnation = list(slots), incarnation
        self.first_slot = {agent: its.start for agent, its in slots.items()}
        self._requests, self._rollouts, self._rests, self._replies = requests, rollouts, rests, replies
        self._seats = {agent: _Seat(its) for agent, its in slots.items()}
        self._leave = False
        self._t_max, self._block_size = rollout_length, block
        self._handed_in = b""  # tickets that wait
        self._round = self._block = 0  # of the foremost agents, and which of their slots they fill
        self._round_of = {slot: 0 for its in slots.values() for slot in its}  # when it was last taken

    @functools.cached_property
    def _files(self) -> tuple[int, int, int, int]:
        """The four pipes, in the process that uses the port."""
        return (self._requests.fileno(), self._rollouts.fileno(), self._rests.fileno(), self._replies.fileno())

    def ask(self, agent: int, request: Request) -> int:
        """The grant of one request of `play`, or WAIT. Raises ServerGone."""
        kind, slot, row = request
        seat = self._seats[agent]
        if kind == TAKE and seat.free:
            beside = seat.slots[self._block]
            return self._taken(seat, beside if beside in seat.free else seat.free[0])
        try:
            if kind == SUBMIT:
                self._handed_in += _TICKET.pack(agent, slot, self._round_of[slot], self.incarnation)
                if len(self._handed_in) >= _TICKET.size * min(self._block_size, self._playing):
                    self._submit()
                return 0
            if kind != PREDICT or row >= OUT_OF_STEP and seat.round == self._round:
                self._submit()  # nobody is in step with who rests, is out of slots, or is so far ahead
            if kind == PREDICT:
                os.write(self._files[0], _TICKET.pack(agent, slot, row, self.incarnation))
            elif kind == REST:
                if not row:
                    seat.free.appendleft(slot)
                if self._leave:
                    return 0
                os.write(self._files[2], _TICKET.pack(agent, 0, 0, self.incarnation))
        except BrokenPipeError:
            raise ServerGone from None
        seat.waits_for = kind
        return WAIT

    @property
    def _playing(self) -> int:
        return sum(seat.waits_for != REST for seat in self._seats.values())

    def _submit(self) -> None:
        if self._handed_in:
            os.write(self._files[1], self._handed_in)
            self._handed_in = b""

    def receive(self) -> list[tuple[int, int]]:
        """Waits for replies; returns the agents that may go on, in the order of their grants. Raises ServerGone."""
        granted: list[tuple[int, int]] = []
        while not granted:
            self._read(granted)
        return granted

    def _read(self, granted: list[tuple[int, int]]) -> None:
        data = os.read(self._files[3], 32 * _TICKET.size)
        if not data:
            raise ServerGone
        for agent, slot, step, _ in _TICKET.iter_unpack(data):
            seat = self._seats[agent]
            if step < _RETURN:  # the least of the words
                granted.append((agent, self._word(seat, step)))
            elif step == _FREED:
                seat.free.append(slot)
                if seat.waits_for == TAKE:
                    seat.waits_for = WAIT
                    granted.append((agent, self._taken(seat, slot)))
            elif step == _LEAVE:
                self._leave = True
                for resting, each in self._seats.items():
                    self._end_rest(resting, each, 0, granted)
            else:  # _RETURN and _PAUSE may come at once: then it rests again after a step
                seat.pause = step == _PAUSE
                if not seat.pause:
                    self._end_rest(agent, seat, 1, granted)

    def _taken(self, seat: _Seat, slot: int) -> int:
        seat.free.remove(slot)
        block = seat.slots.index(slot)
        if block != self._block:
            self._round, self._block = (self._round + 1) % ROUNDS, block
        seat.round = self._round_of[slot] = self._round
        return slot

    def _word(self, seat: _Seat, row: int) -> int:
        if seat.pause or self._leave:
            return PAUSE
        # Where its slot beside theirs is not free it would go on elsewhere, and be the one whom the others run after.
        behind = (seat.round != self._round and 0 < row < self._t_max - OUT_OF_STEP
                  and seat.slots[self._block] in seat.free)
        return CUT if self._block_size > 1 and behind else GO_ON

    @staticmethod
    def _end_rest(agent: int, seat: _Seat, grant: int, granted: list[tuple[int, int]]) -> None:
        if seat.waits_for == REST:
            seat.waits_for = WAIT
            granted.append((agent, grant))


class _TicketQueue:
    """A pipe of tickets: many writing processes, many reading threads."""

    def __init__(self) -> None:
        self._reader, self.writer = multiprocessing.Pipe(duplex=False)
        self._out, self._in = self._reader.fileno(), self.writer.fileno()

    def take(self, most: int) -> list[Ticket]:
        """Waits for tickets and returns those that are there, at most `most`."""
        return list(_TICKET.iter_unpack(os.read(self._out, most * _TICKET.size)))

    def put(self, agent: int, slot: int = 0, step: int = 0, incarnation: int = 0) -> None:
        os.write(self._in, _TICKET.pack(agent, slot, step, incarnation))

    def without_close(self, tickets: list[Ticket]) -> tuple[list[Ticket], bool]:
        """(tickets proper, whether the consumer that took them shall end)."""
        if max(tickets)[0] != _CLOSE:  # there is no agent of a higher number
            return tickets, False
        proper = [ticket for ticket in tickets if ticket[0] != _CLOSE]
        for _ in range(len(tickets) - len(proper) - 1):
            self.put(_CLOSE)  # meant for other consumers
        return proper, True

    def fileno(self) -> int:
        return self._out

    def close(self) -> None:
        self._reader.close()
        self.writer.close()

    def __len__(self) -> int:
        waiting = fcntl.ioctl(self._out, termios.FIONREAD, bytes(4))
        return int.from_bytes(waiting, sys.byteorder) // _TICKET.size


class Channel:
    """The server's end: queues for predictors and trainers, one port per process of agents for the supervisor.

    Args:
        store: the shared slots.
        seating: which agents share a process, and which slots are whose.
        slots_per_agent: at least 2: while a full rollout waits for its bootstrap value, the next one has begun.
        on_vacant: called, from a trainer's thread, when a retired process may be opened again.
        rollouts_per_update: so many side by side are a block.
    """

    def __init__(self, store: Slots, seating: Seating, slots_per_agent: int,
                 on_vacant: Callable[[int], None] = lambda process: None, rollouts_per_update: int = 1) -> None:
        capacity, processes = seating.capacity, seating.processes
        assert slots_per_agent >= 2 and store.n_slots == capacity * slots_per_agent <= MAX_SLOTS
        self._store, self._seating = store, seating
        self._slots_per_agent = slots_per_agent
        self._slots = [seating.slots_of(agent, slots_per_agent) for agent in range(capacity)]
        self._blocks = Blocks(seating, rollouts_per_update, self._plays)
        self._on_vacant = on_vacant
        self._predictions, self._rollouts, self._rests = _TicketQueue(), _TicketQueue(), _TicketQueue()
        self._replies: list[Connection | None] = [None] * processes
        self._reply_files = [-1] * capacity  # each agent's: their numbers, -1 while there is nobody to reply to
        self._incarnation = [0] * capacity
        self._living = [-1] * capacity  # the same while there is somebody to reply to, else -1
        # Of the incarnation at work, monotonic seconds: when it was opened, when it was last sent an answer or a slot,
        # when a predictor last took a request of it.
        self._opened_at, self._answered_at, self._freed_at, self._taken_at = ([0.0] * capacity for _ in range(4))
        self._last_answer = 0.0
        self._between = 0.0  # seconds from one request to the next while a predictor waits for more
        self._freed = np.zeros(capacity, np.int64)  # slots it was given back
        self._resting = np.zeros(capacity, np.bool_)
        # Of a process: slots with trainers; whether its fence was met; whether its agents were asked to leave.
        self._lent, self._fenced, self._leaving = [0] * processes, [False] * processes, [False] * processes
        # Guards replies, incarnations, loans: an answer is written wholly before or wholly not after an agent's end.
        self._lock = threading.Lock()
        self._outlet, self._intake = threading.Lock(), threading.Lock()  # one predictor, one trainer takes at a time

    # ---------------------------------------------------------------------------------- for the supervisor

    def open(self, process: int) -> Port:
        """A port for new incarnations of the agents of `process`, whose slots are all free. Close `Port` copies with
        `handed_over`.
        """
        replies, writer = multiprocessing.Pipe(duplex=False)
        agents = self._seating.agents_of(process)
        with self._lock:
            assert self._replies[process] is None
            self._replies[process], self._leaving[process] = writer, False
            incarnation, now = (self._incarnation[agents[0]] + 1) % 2**16, time.monotonic()
            for agent in agents:
                self._incarnation[agent] = self._living[agent] = incarnation
                self._reply_files[agent] = writer.fileno()
                slots = self._slots[agent]
                self._opened_at[agent] = self._answered_at[agent] = self._freed_at[agent] = now
                self._freed[agent], self._resting[agent] = 0, False
                self._blocks.begin(agent)
                self._store.asked[slots] = 0.0
                self._store.taken[slots.start] = self._store.faults[slots.start] = 0
            return Port({agent: self._slots[agent] for agent in agents}, self._store.rollout_length,
                        self._blocks.fellows(agents[0]), incarnation,
                        self._predictions.writer, self._rollouts.writer, self._rests.writer, replies)

    @staticmethod
    def handed_over(port: Port) -> None:
        """The agents' process has its own copy of the port: without ours, its death closes the pipe."""
        port._replies.close()

    def ask_to_leave(self, process: int) -> None:
        """Its agents leave with the next prediction they are granted, handing in what they have; at once where they
        rest.
        """
        with self._lock:
            self._leaving[process] = True
            self._send(self._seating.agents_of(process)[0], 0, _LEAVE)
        self._look()

    def ask_to_rest(self, agent: int) -> None:
        """The agent rests with the next prediction it is granted, handing in what it has; then it is in `rested`."""
        with self._lock:
            self._send(agent, 0, _PAUSE)

    def call_back(self, agent: int) -> None:
        """The agent, which has rested, plays on."""
        with self._lock:
            self._answered_at[agent] = time.monotonic()  # its turn begins now
            self._resting[agent] = False
            self._send(agent, 0, _RETURN)

    def rested(self) -> list[int]:
        """Agents that have come to rest since this was last asked."""
        if not len(self._rests):
            return []
        tickets = self._rests.take(len(self._rests))
        with self._lock:
            agents = [agent for agent, _, _, incarnation in tickets if self._living[agent] == incarnation]
            self._resting[agents] = True
        if agents:
            self._look()
        return agents

    def _look(self) -> None:
        """Wakes a trainer: what waits may be for those who play no more."""
        if len(self._blocks):
            self._rollouts.put(0, _FENCE, _LOOK)

    def fileno(self) -> int:
        """Readable when `rested` has something to tell."""
        return self._rests.fileno()

    def hang_up(self, process: int) -> None:
        """Closes the replies to `process`: wherever its agents wait, they are told `ServerGone`."""
        with self._lock:
            writer, self._replies[process] = self._replies[process], None
            for agent in self._seating.agents_of(process):
                self._living[agent] = self._reply_files[agent] = -1
                self._answered_at[agent] = self._opened_at[agent]
                self._resting[agent] = False
        if writer is not None:
            writer.close()

    def retire(self, process: int) -> None:
        """It has ended; `on_vacant` is called once all that its agents submitted has been collected."""
        self.hang_up(process)
        agent = self._seating.agents_of(process)[0]
        self._rollouts.put(agent, _FENCE, 0, self._incarnation[agent])

    @property
    def playing(self) -> int:
        """Agents that have made their environments and do not rest."""
        return sum(self.is_playing(agent) for agent in np.flatnonzero(~self._resting).tolist())

    def _plays(self, agent: int) -> bool:
        return (self.is_playing(agent) and not self._resting[agent]
                and not self._leaving[self._seating.process_of(agent)])

    def only_blocks(self) -> bool:
        """Whether all who play fill blocks, so that nobody's rollouts go together with what a block has left over."""
        return self._blocks.all_play()

    def is_playing(self, agent: int) -> bool:
        """Whether the agent has made its environments and been answered."""
        return self._answered_at[agent] > self._opened_at[agent]

    @property
    def waiting(self) -> int:
        """Agents that have asked for a prediction and not been answered."""
        asked = self._store.asked.max(axis=1)[np.array(self._slots)].max(axis=1)
        return int(((asked > np.array(self._answered_at)) & (np.array(self._living) >= 0)).sum())

    def idle_since(self, process: int) -> float | None:
        """Since when it has been the turn of `process` (monotonic seconds); None while all of its agents wait for a
        predictor or a slot, or rest.

        Nothing is written for this: it follows from what agents ask for and what they have been sent.
        """
        agents = self._seating.agents_of(process)
        turns = [turn for turn in map(self._turn, agents) if turn is not None]
        # While it is the turn of several, one plays: the process was at work when any of them last asked.
        return max(min(turns), *(self._asked_at(agent) for agent in agents)) if turns else None

    def _asked_at(self, agent: int) -> float:
        return float(self._store.asked[self._slots[agent]].max())

    def _turn(self, agent: int) -> float | None:
        """Since when it has been the agent's turn; None while it waits for a predictor or a slot, or rests."""
        if self._resting[agent]:
            return None
        asked = self._asked_at(agent)
        if asked > self._answered_at[agent]:
            # The queue keeps its order: if others were answered much later, this one never sent what it wrote down, or
            # its predictor has not come back.
            return asked if self._last_answer > asked + 1.0 and self._taken_at[agent] < asked else None
        if self._store.taken[self._slots[agent].start] > self._slots_per_agent + self._freed[agent]:
            return None
        return max(self._answered_at[agent], self._freed_at[agent])

    def has_delivered(self, process: int) -> bool:
        """Whether an agent of this incarnation of it has handed in a rollout."""
        return any(self._store.submitted[self._slots[agent]].max() > self._opened_at[agent]
                   for agent in self._seating.agents_of(process))

    def faults(self, process: int) -> tuple[int, str]:
        """(environments that failed its agents in this incarnation, traceback of the last one)."""
        first = self._slots[self._seating.agents_of(process)[0]].start
        count = int(self._store.faults[first])
        return count, self._store.last_words[first].decode(errors="replace") if count else ""

    def _send(self, agent: int, slot: int, step: int) -> None:
        file = self._reply_files[agent]
        if file >= 0:
            self._write(file, _TICKET.pack(agent, slot, step, 0))

    @staticmethod
    def _write(file: int, tickets: bytes) -> None:
        try:
            os.write(file, tickets)
        except BrokenPipeError:
            pass  # it died; the supervisor learns of it from the process itself

    # ---------------------------------------------------------------------------------- for predictors

    def requests(self, most: int, least: int = 1) -> Iterator[Requests]:
        """What agents wait for, until `dismiss_predictor`: always one of `batch_sizes(most)`, the largest that is
        there. One predictor takes at a time: it would else wait for as many as were there before another took them.

        Where agents enough are at play to fill the cores, the first waits for company, once and for 5 ms at the most,
        until about `least` are there: a call of the model costs nearly the same for one.
        """
        sizes, cores, at_play, counted = batch_sizes(most), usable_cores(), 0, -math.inf
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
                        at_play, counted = self.playing, now
                    wanted = nearest_size(sizes, min(least, (at_play - cores) // 2))
                    waiting = self._wait_for_company(waiting, wanted)
                tickets, ended = self._predictions.without_close(self._predictions.take(largest_size(sizes, waiting)))
            if tickets:
                size = largest_size(sizes, len(tickets))  # one was no request, but the word to end
                self._put_back(tickets[size:])
                requests, now = Requests(tickets[:size], self._store), time.monotonic()
                for agent, _, _, _ in requests.tickets:
                    self._taken_at[agent] = now
                yield requests

    def _wait_for_company(self, waiting: int, wanted: int) -> int:
        """Sleeps for about as long as it takes `wanted` requests to be there; returns how many are."""
        if waiting >= wanted:
            return waiting
        began = time.monotonic()
        time.sleep(min(max((wanted - waiting) * self._between, SHORTEST_WAIT), LONGEST_WAIT))
        there = len(self._predictions)
        self._between += 0.1 * ((time.monotonic() - began) / max(1, there - waiting) - self._between)
        return there

    def answer(self, requests: Requests, policy: NDArray[np.float32], value: NDArray[np.float32], version: int) -> None:
        """Writes policy (n, E, A), value (n, E) and version into the n rows asked for, and wakes their agents."""
        with self._lock:
            living = self._living
            alive = [living[agent] == incarnation for agent, _, _, incarnation in requests.tickets]
            if not all(alive):
                requests = Requests(list(itertools.compress(requests.tickets, alive)), self._store)
                policy, value = policy[alive], value[alive]
            self._store.answer(requests.at, policy, value, version)
            now = self._last_answer = time.monotonic()
            replies: dict[int, bytes] = {}  # a process is woken once, whoever of its agents is answered
            for agent, slot, row, _ in requests.tickets:
                self._answered_at[agent], file = now, self._reply_files[agent]
                replies[file] = replies.get(file, b"") + _TICKET.pack(agent, slot, row, 0)
            for file, tickets in replies.items():
                self._write(file, tickets)

    def ask_again(self, requests: Requests) -> None:
        """Puts back what could not be answered; another predictor takes it."""
        self._put_back(requests.tickets)

    def _put_back(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            self._predictions.put(*ticket)

    def dismiss_predictor(self) -> None:
        """One predictor ends after the tickets that are already waiting."""
        self._predictions.put(_CLOSE)

    @property
    def prediction_queue(self) -> int:
        """Agents waiting for a predictor."""
        return len(self._predictions)

    # ---------------------------------------------------------------------------------- for trainers

    @contextlib.contextmanager
    def collect(self, most: int, oldest: bool = False) -> Iterator[tuple[list[int], bool]]:
        """Waits for rollouts and gives (their slots, whether the trainer shall end); the slots are free once the block
        of code has ended. One trainer collects at a time.

        Which ones, `Blocks.take` says; none only if the trainer shall end.
        """
        with self._intake:
            rollouts, ended = self._blocks.take(most, oldest)
            while not rollouts and not ended:
                self._receive()
                rollouts, ended = self._blocks.take(most, oldest)
        try:
            yield [rollout.slot for rollout in rollouts], ended
        finally:
            self._give_back(rollouts)

    def _receive(self) -> None:
        """Waits for tickets; what has been handed in is a trainer's now."""
        tickets, ended = self._rollouts.without_close(self._rollouts.take(64))
        with self._lock:
            # An agent that was given up though it lives may hand in what is another's now.
            rollouts = [Rollout(agent, slot, number) for agent, slot, number, incarnation in tickets
                        if slot != _FENCE and self._incarnation[agent] == incarnation]
            fenced = [self._seating.process_of(agent) for agent, slot, step, _ in tickets
                      if slot == _FENCE and step != _LOOK]
            for rollout in rollouts:
                self._lent[self._seating.process_of(rollout.agent)] += 1
            for process in fenced:
                self._fenced[process] = True
        self._blocks.add(rollouts)
        if ended:
            self._blocks.end()
        self._vacate(fenced)

    def _give_back(self, rollouts: list[Rollout]) -> None:
        with self._lock:
            now = time.monotonic()
            for agent, slot, _ in rollouts:
                self._lent[self._seating.process_of(agent)] -= 1
                self._freed_at[agent] = now
                self._freed[agent] += 1
                self._send(agent, slot, _FREED)  # its place is not given away before its fence
        self._vacate([self._seating.process_of(rollout.agent) for rollout in rollouts])

    def _vacate(self, processes: list[int]) -> None:
        """Tells of those whose fence has been met and whose slots are all free."""
        for process in processes:
            with self._lock:
                vacant = self._fenced[process] and not self._lent[process]
                if vacant:
                    self._fenced[process] = False
            if vacant:
                self._on_vacant(process)

    def dismiss_trainer(self) -> None:
        """One trainer ends once the rollouts that are already waiting have been collected, whether the others of their
        blocks have come or not; its last batch may not be full.
        """
        self._rollouts.put(_CLOSE)

    def drop_rollouts(self) -> int:
        """Takes the rollouts that wait for trainers away, for good; returns how many. Trainers must be dismissed."""
        with self._intake:  # who has it will meet the word to end
            self._rollouts.put(_CLOSE)  # ours: there is one more than trainers, so the wait ends
            taken = self._rollouts.take(8192)  # as many as a pipe holds
            tickets, _ = self._rollouts.without_close(taken)  # those of the trainers go back
            return self._blocks.drop() + sum(slot != _FENCE for _, slot, _, _ in tickets)

    @property
    def training_queue(self) -> int:
        """Rollouts waiting for a trainer, not for others of their block."""
        return len(self._rollouts) + self._blocks.ready

    def close(self) -> None:
        """Gives back all pipes; nobody may be using the channel any more."""
        for process in range(len(self._replies)):
            self.hang_up(process)
        for queue in (self._predictions, self._rollouts, self._rests):
            queue.close()
