"""Tickets and the pipes they travel in: many writing processes, many reading threads, no lock between processes.

A ticket is 8 bytes: agent, slot, step, generation. Writes of up to PIPE_BUF bytes to a pipe are atomic, and one read
takes many whole tickets.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import struct
import sys
import termios
from collections import deque

Ticket = tuple[int, int, int, int]
"""Agent, slot, step, generation."""

TICKET = struct.Struct("<4H")
CLOSE = 0xFFFF    # as agent: one consumer of the queue shall end
WAKE = 0xFFFE     # as agent, in the training queue: nothing, but who waits looks again who is there
FENCE = 0xFFFF    # as slot, in the training queue: all tickets of this generation lie before this one
FREED = 0xFFFF    # as step, in a reply: the slot is free again
STOP = 0xFFFE     # as step, in a reply: the agent shall submit what it has and end

_PIPE_BYTES = 2**20  # the most a user may ask for: room for 131,072 tickets


class TicketQueue:
    """One pipe of tickets.

    `put` never blocks, so that neither the supervisor nor a consumer can be held up by a full queue. Agents write to
    `writer` themselves and may block: they are at most as many as their slots.
    """

    def __init__(self) -> None:
        self._reader, self.writer = multiprocessing.Pipe(duplex=False)
        self._out = self._reader.fileno()
        with contextlib.suppress(OSError):  # the default is enough for a thousand agents
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # Opened once more, since agents share what is set on `writer`.
        self._in = os.open(f"/proc/self/fd/{self.writer.fileno()}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._overflow: deque[Ticket] = deque()

    def take(self, most: int) -> list[Ticket]:
        """Waits for tickets and returns those that are there, at most `most`."""
        tickets = list(TICKET.iter_unpack(os.read(self._out, most * TICKET.size)))
        while self._overflow:
            if not self._written(self._overflow.popleft()):
                break
        return tickets

    def put(self, agent: int, slot: int = 0, step: int = 0, generation: int = 0) -> None:
        """Adds a ticket without blocking. If the pipe is full, the ticket stays here until a `take`."""
        self._written((agent, slot, step, generation))

    def _written(self, ticket: Ticket) -> bool:
        try:
            os.write(self._in, TICKET.pack(*ticket))
        except BlockingIOError:
            self._overflow.append(ticket)
            return False
        return True

    def without_close(self, tickets: list[Ticket]) -> tuple[list[Ticket], bool]:
        """(tickets proper, whether the consumer that took them shall end)."""
        if max(tickets)[0] != CLOSE:  # there is no agent of a higher number
            return tickets, False
        proper = [ticket for ticket in tickets if ticket[0] != CLOSE]
        for _ in range(len(tickets) - len(proper) - 1):
            self.put(CLOSE)  # meant for other consumers
        return proper, True

    def fileno(self) -> int:
        """For `select`: readable while tickets wait."""
        return self._out

    def close(self) -> None:
        """Nobody may be using the queue any more."""
        self._reader.close()
        self.writer.close()
        os.close(self._in)

    def __len__(self) -> int:
        waiting = fcntl.ioctl(self._out, termios.FIONREAD, bytes(4))
        return int.from_bytes(waiting, sys.byteorder) // TICKET.size
