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
CLOSE = 0xFFFF    # as agent: one consumer of the queue must end
WAKE = 0xFFFE     # as agent, in the training queue: no rollout; its reader looks again which agents are connected
FENCE = 0xFFFF    # as slot, in the training queue: all tickets of this generation came before this one
FREED = 0xFFFF    # as step, in a reply: the slot is free again
STOP = 0xFFFE     # as step, in a reply: the agent must submit its steps and end

_PIPE_BYTES = 2**20  # the most a user may ask for: room for 131,072 tickets


class TicketQueue:
    """One pipe of tickets.

    `put` never blocks, so that a full queue holds up neither the supervisor nor a consumer. Agents write to `writer`
    themselves and may block. The queue has at most as many of their tickets as they have slots.
    """

    def __init__(self) -> None:
        self._reader, self.writer = multiprocessing.Pipe(duplex=False)
        self._out = self._reader.fileno()
        with contextlib.suppress(OSError):  # the default is enough for a thousand agents
            fcntl.fcntl(self._out, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # Opened once more: O_NONBLOCK on `writer` itself would also hold for the agents.
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
        """Adds a ticket without blocking. If the pipe is full, the ticket is kept here until a `take`."""
        self._written((agent, slot, step, generation))

    def _written(self, ticket: Ticket) -> bool:
        try:
            os.write(self._in, TICKET.pack(*ticket))
        except BlockingIOError:
            self._overflow.append(ticket)
            return False
        return True

    def without_close(self, tickets: list[Ticket]) -> tuple[list[Ticket], bool]:
        """Returns (tickets without CLOSE, whether the consumer that took them must end)."""
        if max(tickets)[0] != CLOSE:  # CLOSE is larger than the number of any agent
            return tickets, False
        proper = [ticket for ticket in tickets if ticket[0] != CLOSE]
        for _ in range(len(tickets) - len(proper) - 1):
            self.put(CLOSE)  # meant for other consumers
        return proper, True

    def fileno(self) -> int:
        """Returns the descriptor for `select`; it is readable while tickets wait."""
        return self._out

    def close(self) -> None:
        """Closes the pipe. No thread may still use the queue."""
        self._reader.close()
        self.writer.close()
        os.close(self._in)

    def __len__(self) -> int:
        waiting = fcntl.ioctl(self._out, termios.FIONREAD, bytes(4))
        return int.from_bytes(waiting, sys.byteorder) // TICKET.size
