"""User code in our process: restores what it changes, turns its errors into one line, keeps prints from failing."""

from __future__ import annotations

import contextlib
import io
import locale
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np

from ga3c.settings.messages import ESCAPED, ConfigError

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep


class ProcessState:
    """The process state that is restored after user code plays in this process.

    Saving and restoring take only some microseconds. It holds Python's standard streams and recursion limit, the umask,
    blocked signals and NumPy's error handling. A new alarm is cancelled if none was set before. If user code
    forked this process, the child ends when it reaches `put_back`.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._streams = (sys.stdin, sys.stdout, sys.stderr)
        self._mask = os.umask(0o077)
        os.umask(self._mask)
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._alarm = signal.getitimer(signal.ITIMER_REAL)
        self._errors = np.geterr()
        self._depth = sys.getrecursionlimit()

    def put_back(self) -> None:
        if os.getpid() != self._pid:
            os._exit(0)
        sys.stdin, sys.stdout, sys.stderr = self._streams
        os.umask(self._mask)
        if self._alarm == (0.0, 0.0):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._blocked)
        np.seterr(**self._errors)
        sys.setrecursionlimit(self._depth)


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Restores, after the `with` block, what user code in it changed for the whole process.

    This is the state that `ProcessState` restores, the working directory, signal handlers, locale and warning filters.
    Signal handlers are restored in the main thread only, because other threads cannot set them.
    """
    state = ProcessState()
    directory = os.open(".", os.O_PATH)
    language = locale.setlocale(locale.LC_ALL)
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()} if main else {}
    try:
        with warnings.catch_warnings():
            yield
    finally:
        state.put_back()
        os.fchdir(directory)
        os.close(directory)
        locale.setlocale(locale.LC_ALL, language)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)


def described(error: BaseException) -> str:
    """Describes an exception of user code in one line: type, message, and the file and line if they are not ours."""
    name = type(error).__name__
    try:
        message = " ".join(str(error).split())[:300]
    except Exception as another:  # `str` of an exception class of user code may fail
        message = f"its message cannot be read: {type(another).__name__}"
    if isinstance(error, SystemExit):
        message = f"the code {error.code!r}"
    frames = [frame for frame in reversed(traceback.extract_tb(error.__traceback__))
              if not frame.filename.startswith((_OURS, contextlib.__file__, "<"))]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    where = f" ({os.path.basename(own[0].filename)}, line {own[0].lineno})" if own else ""
    return f"{name}: {message}{where}" if message else f"{name}{where}"


class EnvironmentFailed(Exception):
    """The error of user code that failed while it played. The message is one line."""


@contextlib.contextmanager
def reraising(what: str, kind: type[Exception] = EnvironmentFailed) -> Iterator[None]:
    """Turns an exception of user code in the `with` block into a `kind`. Its one-line message begins with `what`.

    A ConfigError or EnvironmentFailed passes unchanged, because it is one line already. KeyboardInterrupt (Ctrl-C) and
    GeneratorExit pass, too.
    """
    try:
        yield
    except (ConfigError, EnvironmentFailed, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: B036  # SystemExit, too
        raise kind(f"{what}: {described(error)}") from error


class _LossyFile(io.FileIO):
    """A file that drops what cannot be written, as on a full disk."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def lossy_stream(descriptor: int, encoding: str = "utf-8") -> TextIO:
    """Opens a descriptor as a stream of text whose writes never fail."""
    return io.TextIOWrapper(io.BufferedWriter(_LossyFile(descriptor, "wb", closefd=False)), encoding, ESCAPED,
                            line_buffering=True)


def drop_unwritable_output() -> None:
    """Replaces `sys.stdout` and `sys.stderr` by streams that never fail. A full disk must not end code that prints."""
    sys.stdout = lossy_stream(1)
    sys.stderr = lossy_stream(2)


def leave(code: int) -> NoReturn:
    """Ends the process at once, even if threads of users' code still run."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # users' code may have closed or replaced it
            stream.flush()
    os._exit(code)
