"""Code of users in our process: what it changes is put back, what it raises is one line, what it prints cannot fail."""

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
from typing import Any

import numpy as np

from ga3c.settings.messages import ESCAPED, ConfigError

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep


class Kept:
    """What is put back after code of users that plays in this process, as it takes only some microseconds.

    That is: standard streams of Python, umask, blocked signals, alarm, NumPy's error handling, limit of recursion. A
    process that the code forked, and that comes back from it as if it was this one, ends.
    """

    def __init__(self) -> None:
        self._pid, self._streams = os.getpid(), (sys.stdin, sys.stdout, sys.stderr)
        self._mask = os.umask(0o077)
        os.umask(self._mask)
        self._blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._alarm = signal.getitimer(signal.ITIMER_REAL)
        self._errors, self._depth = np.geterr(), sys.getrecursionlimit()

    def put_back(self) -> None:
        """As it was when this was made."""
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
    """Within, code of users runs. Afterwards what it changed for the whole process is as before.

    That is what `Kept` puts back, and working directory, signal handlers, locale, filters of warnings. In another
    thread than the main one, handlers are left alone: it cannot set them.
    """
    kept, directory, language = Kept(), os.open(".", os.O_PATH), locale.setlocale(locale.LC_ALL)
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()} if main else {}
    try:
        with warnings.catch_warnings():
            yield
    finally:
        kept.put_back()
        os.fchdir(directory)
        os.close(directory)
        locale.setlocale(locale.LC_ALL, language)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)


def described(error: BaseException) -> str:
    """What users' code raised, in one line: type, message, and the file and line where, if that is not ours."""
    name = type(error).__name__
    try:
        said = " ".join(str(error).split())[:300]
    except Exception as another:  # an exception of users' code, which may be unable to say anything
        said = f"its message cannot be read: {type(another).__name__}"
    if isinstance(error, SystemExit):
        said = f"the code {error.code!r}"
    frames = [frame for frame in reversed(traceback.extract_tb(error.__traceback__))
              if not frame.filename.startswith((_OURS, contextlib.__file__, "<"))]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    where = f" ({os.path.basename(own[0].filename)}, line {own[0].lineno})" if own else ""
    return f"{name}: {said}{where}" if said else f"{name}{where}"


class EnvironmentFailed(Exception):
    """Code of users failed while it played. The message is one line."""


@contextlib.contextmanager
def reraising(what: str, kind: type[Exception] = EnvironmentFailed) -> Iterator[None]:
    """Within, code of users runs. What it raises becomes a `kind` of one line, which begins with `what`.

    A ConfigError is one line already. KeyboardInterrupt is Ctrl-C and goes on.
    """
    try:
        yield
    except (ConfigError, EnvironmentFailed, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: B036  # SystemExit, too
        raise kind(f"{what}: {described(error)}") from error


class Dropping(io.RawIOBase):
    """Writes to a descriptor. What cannot be written, as the disk is full, is lost without a word."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """All of it."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, data)
        return len(data)


def drop_unwritable_output() -> None:
    """From now on what Python prints in this process cannot fail: a full disk is no fault of who prints."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(Dropping(descriptor)), "utf-8", ESCAPED,
                                            line_buffering=True))
