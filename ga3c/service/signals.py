"""Turns signals to the process into requests, and wakes the main thread."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupted(BaseException):
    """A request to stop came where nothing needs a clean end."""


class Signals:
    """The requests that came by signals. SIGINT and SIGTERM ask to stop; `signum` is the first that came.

    at_once: whether the first request raises Interrupted in the main thread, and a second Ctrl-C, too. A second Ctrl-C
    sets `hurried`: it asks to skip the last checkpoint. A third one ends the process at once. SIGUSR1 asks for a
    checkpoint. SIGHUP (the terminal was closed) is ignored, here and in processes that are started later.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.hurried = self.at_once = self._first_raises = self._second_raises = self._raised = False
        self._checkpoint_requested = False
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self._reader = reader
        self._writer = writer
        self._handlers: dict[int, Any] = {
            signal.SIGINT: self._note, signal.SIGTERM: self._note, signal.SIGHUP: signal.SIG_IGN,
            signal.SIGUSR1: self._note_checkpoint}
        self._previous = {number: signal.signal(number, handler) for number, handler in self._handlers.items()}

    def reinstall_handlers(self) -> None:
        """Installs the signal handlers again if users' code in this process has replaced them."""
        for number, handler in self._handlers.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)

    @contextlib.contextmanager
    def hurrying(self) -> Iterator[None]:
        """Within, a second Ctrl-C raises Interrupted, also an earlier one. For slow work that may be skipped."""
        self._second_raises = True
        try:
            if self.hurried:
                raise Interrupted
            yield
        finally:
            self._second_raises = False

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within, a request to stop raises Interrupted, also an earlier one. For a wait that may be given up."""
        self._first_raises = True
        try:
            if self.signum is not None:
                raise Interrupted
            yield
        finally:
            self._first_raises = False

    def _note_checkpoint(self, number: int, frame: FrameType | None) -> None:
        self._checkpoint_requested = True
        if not self.at_once:  # before the run only a stop wakes: a measurement would end by it
            self.wake()

    def take_checkpoint_request(self) -> bool:
        """Returns whether a checkpoint was requested since the last call."""
        requested, self._checkpoint_requested = self._checkpoint_requested, False
        return requested

    def _note(self, number: int, frame: FrameType | None) -> None:
        repeated = number == signal.SIGINT and self.signum is not None  # a repeated SIGTERM has no further meaning
        if repeated:
            if self.hurried:
                _show_cursor()
                os._exit(128 + number)
            self.hurried = True
        self.signum = self.signum or number
        self.wake()
        # Other code may have swallowed the first exception, as in `__del__`.
        if self._first_raises or (self.at_once and (repeated or not self._raised)) or (
                repeated and self._second_raises):
            self._raised = True
            self._first_raises = self._second_raises = False  # the contexts that set them may be just ending
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
        """Discards the wake-ups so far."""
        try:
            os.read(self._reader, 65_536)
        except BlockingIOError:
            pass

    def ignore(self) -> None:
        """Makes SIGINT and SIGTERM do nothing after `close`, because the process ends anyway."""
        self._previous |= {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN}

    def close(self) -> None:
        """Restores the signal handlers of before, and closes the wake-up pipe."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)


def _show_cursor() -> None:
    """Shows the terminal's cursor, which a panel hides. Does not wait for a terminal that nobody reads."""
    with contextlib.suppress(OSError):
        if os.isatty(1):
            os.write(os.open("/proc/self/fd/1", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), b"\x1b[?25h")
