"""Standard output that never blocks a write. A run goes on even if its output is not read."""

from __future__ import annotations

import io
import os
import select
import socket
import stat
import time
from collections.abc import Callable
from typing import TextIO

from ga3c.settings.messages import ESCAPED

_WRITE_SECONDS = 0.1  # a terminal, pipe or socket has this long to accept a write
_PIECE = 256  # bytes: a writable pipe has room for this many, a writable terminal perhaps for only one


class NonBlocking(io.TextIOBase):
    """A text stream to the terminal, pipe or socket of another stream. Text that is not accepted in time is dropped.

    Other writers to the same stream still block. Raises OSError for a file, as writing to a file does not block.
    """

    _descriptor = -1  # until it is open

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._text = ""
        self._full = False
        self._descriptor, self._write = _opened(stream.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, text: str) -> int:
        self._text += text
        return len(text)

    def flush(self) -> None:
        data, self._text = self._text.encode(self.encoding, ESCAPED), ""
        poller = select.poll()
        poller.register(self._descriptor, select.POLLOUT)
        deadline = time.monotonic() + (0.0 if self._full else _WRITE_SECONDS)
        while data:
            try:
                data = data[self._write(data):]
            except BlockingIOError:
                if not poller.poll(max(0.0, 1000.0 * (deadline - time.monotonic()))):
                    break
        self._full = bool(data)

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                if self._descriptor >= 0:
                    os.close(self._descriptor)


def _opened(descriptor: int) -> tuple[int, Callable[[bytes], int]]:
    """Returns a descriptor of the same terminal, pipe or socket, and a function that writes bytes to it.

    The function writes a first part and returns its length, or raises BlockingIOError.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        own = os.dup(descriptor)
        return own, lambda data: _send(own, data)
    if not stat.S_ISFIFO(mode) and not stat.S_ISCHR(mode):
        raise OSError("writing to a file does not block")
    try:
        # A second open gives a mode of its own, so that other writers still block.
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
        return own, lambda data: os.write(own, data)
    except OSError:  # of another user, as with sudo and in containers
        own = os.dup(descriptor)
        return own, lambda data: _put(own, data)


def _send(descriptor: int, data: bytes) -> int:
    end = socket.socket(fileno=descriptor)
    try:
        return end.send(data, socket.MSG_DONTWAIT)
    finally:
        end.detach()


def _put(descriptor: int, data: bytes) -> int:
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    if not poller.poll(0):
        raise BlockingIOError
    return os.write(descriptor, data[:1] if os.isatty(descriptor) else data[:_PIECE])
