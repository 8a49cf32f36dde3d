"""The agent's end of the channel: it grants the requests of `agents.loop.play`.

Next hop of an observation: `transport.channel.Channel.requests`, which takes its ticket. Of a full rollout:
`transport.channel.Channel.collect`.
"""

from __future__ import annotations

import functools
import os
import select
import time
from collections import deque
from multiprocessing.connection import Connection

from ga3c.transport.slots import AgentStatus, Slots
from ga3c.transport.tickets import FREED, STOP, TICKET

TAKE, PREDICT, SUBMIT = range(3)
Request = tuple[int, int, int]
"""What an agent asks for: (TAKE, 0, 0), (PREDICT, slot, step) or (SUBMIT, slot, 0)."""
GO_ON, DRAIN = range(2)
"""What a granted prediction tells the agent: to play on, or to submit its steps and end."""

HEARTBEAT_SECONDS = 0.25  # between two heartbeats of an agent that waits


class ServerGone(Exception):
    """The error of an agent on which the main process has hung up, or whose main process has died."""


class Port:
    """One agent's requests and their grants. `Channel.open` makes it; it is passed on as an argument of Process.

    It also writes the agent's status: its state, and a heartbeat at every prediction and four times a second while the
    agent waits.
    """

    def __init__(self, agent: int, slots: range, generation: int, predictions: Connection, rollouts: Connection,
                 replies: Connection) -> None:
        self.agent = agent
        self.generation = generation
        self._predictions = predictions
        self._rollouts = rollouts
        self._replies = replies
        self._free = deque(slots)
        self._stopped = False
        self._answered = False

    def close(self) -> None:
        """Closes our copy of the replies. The agent's process has its own, so its death then closes the pipe."""
        self._replies.close()

    @functools.cached_property
    def _files(self) -> tuple[int, int, int]:
        return self._predictions.fileno(), self._rollouts.fileno(), self._replies.fileno()

    @functools.cached_property
    def _replied(self) -> select.poll:
        poll = select.poll()
        poll.register(self._files[2], select.POLLIN)
        return poll

    def status(self, store: Slots, state: AgentStatus) -> None:
        """Writes the agent's state and a heartbeat."""
        store.state[self.agent] = state
        store.heartbeat[self.agent] = time.monotonic()

    def alive(self, store: Slots) -> None:
        """Writes a heartbeat, for use during long work."""
        store.heartbeat[self.agent] = time.monotonic()

    def grant(self, request: Request, store: Slots) -> int:
        """Waits until the request is granted. Raises ServerGone.

        Returns a free slot for TAKE, GO_ON or DRAIN for PREDICT, GO_ON for SUBMIT.
        """
        kind, slot, step = request
        if kind == TAKE:
            if not self._free:
                self._wait(store, AgentStatus.WAITING_FOR_SLOT)
            return self._free.popleft()
        try:
            if kind == SUBMIT:
                os.write(self._files[1], TICKET.pack(self.agent, slot, 0, self.generation))
                return GO_ON
            self._answered = False
            os.write(self._files[0], TICKET.pack(self.agent, slot, step, self.generation))
        except BrokenPipeError:
            raise ServerGone from None
        self._wait(store, AgentStatus.WAITING_FOR_PREDICTION)
        return DRAIN if self._stopped else GO_ON

    def poll_stop(self, store: Slots) -> int:
        """Returns GO_ON or DRAIN without waiting, for an agent that predicts by itself. Raises ServerGone."""
        self.status(store, AgentStatus.PLAYING)
        if self._replied.poll(0):
            self._read()
        return DRAIN if self._stopped else GO_ON

    def _wait(self, store: Slots, state: AgentStatus) -> None:
        """Waits until a slot is free or the prediction has been answered, according to `state`."""
        store.state[self.agent] = state
        while not (self._free if state == AgentStatus.WAITING_FOR_SLOT else self._answered):
            store.heartbeat[self.agent] = time.monotonic()
            if self._replied.poll(1000 * HEARTBEAT_SECONDS):
                self._read()
        self.status(store, AgentStatus.PLAYING)

    def _read(self) -> None:
        data = os.read(self._files[2], 32 * TICKET.size)
        if not data:
            raise ServerGone
        for _, slot, step, _ in TICKET.iter_unpack(data):
            if step == FREED:
                self._free.append(slot)
            elif step == STOP:
                self._stopped = True
            else:
                self._answered = True
