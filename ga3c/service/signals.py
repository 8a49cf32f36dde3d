"""Signals of the process as requests, and the wake-up of the main thread."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupted(BaseException):
    """A request to stop came where there is nothing to be ended cleanly."""


class Signals:
    """SIGINT and SIGTERM as requests to stop: `signum` says which came.

    at_once: the first request raises Interrupted in the main thread, and so does a second Ctrl-C. That asks to skip
    the last checkpoint (`hurried`); a third one ends the process at once. SIGUSR1 asks for a checkpoint. SIGHUP, of a
    terminal that goes away, is ignored, here and in the processes that are started from now on.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.hurried = self.at_once = self._first_raises = self._second_raises = self._raised = False
        self._checkpoint_requested = False
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self._reader, self._writer = reader, writer
        self._handlers: dict[int, Any] = {
            signal.SIGINT: self._note, signal.SIGTERM: self._note, signal.SIGHUP: signal.SIG_IGN,
            signal.SIGUSR1: self._note_checkpoint}
        self._previous = {number: signal.signal(number, handler) for number, handler in self._handlers.items()}

    def hold(self) -> None:
        """Takes the signals back, if code of users that runs in this process has taken them."""
        for number, handler in self._handlers.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)

    @contextlib.contextmanager
    def hurrying(self) -> Iterator[None]:
        """Within, a second Ctrl-C raises Interrupted: for what takes long, and may be left out."""
        self._second_raises = True
        try:
            if self.hurried:
                raise Interrupted
            yield
        finally:
            self._second_raises = False

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within, a request to stop raises Interrupted, also one that came before: for a wait that may be given up."""
        self._first_raises = True
        try:
            if self.signum is not None:
                raise Interrupted
            yield
        finally:
            self._first_raises = False

    def _note_checkpoint(self, number: int, frame: FrameType | None) -> None:
        self._checkpoint_requested = True
        self.wake()

    def take_checkpoint_request(self) -> bool:
        """Whether a checkpoint has been asked for since the last call."""
        requested, self._checkpoint_requested = self._checkpoint_requested, False
        return requested

    def _note(self, number: int, frame: FrameType | None) -> None:
        repeated = number == signal.SIGINT and self.signum is not None  # a repeated SIGTERM is only a repetition
        if repeated:
            if self.hurried:
                os._exit(128 + number)
            self.hurried = True
        self.signum = self.signum or number
        self.wake()
        # Code of others may have swallowed the first one, as in `__del__`.
        if self._first_raises or (self.at_once and (repeated or not self._raised)) or (
                repeated and self._second_raises):
            self._raised = True
            self._first_raises = self._second_raises = False  # it may come where these were about to be ended
            raise Interrupted

    @property
    def name(self) -> str | None:
        """The signal that came, as in "SIGINT"; None while none has."""
        return signal.Signals(self.signum).name if self.signum else None

    def fileno(self) -> int:
        """For `multiprocessing.connection.wait`: readable after `wake`."""
        return self._reader

    def wake(self) -> None:
        """Makes `fileno` readable; from any thread or signal handler."""
        try:
            os.write(self._writer, b"w")
        except BlockingIOError:
            pass  # it is readable already

    def clear(self) -> None:
        """Forgets the wake-ups that have come."""
        try:
            os.read(self._reader, 65_536)
        except BlockingIOError:
            pass

    def ignore(self) -> None:
        """From now on SIGINT and SIGTERM do nothing, also after `close`: the process ends anyhow."""
        self._previous |= {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}

    def close(self) -> None:
        """Signals do again what they did before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)
