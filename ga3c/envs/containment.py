"""Code of users in our process: what it changes for all is put back, and whatever it raises is told in one line."""

from __future__ import annotations

import contextlib
import locale
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ga3c.settings.messages import ConfigError

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Within, code of users runs. Afterwards what it changed for the whole process is as before.

    That is: working directory, umask, signal handlers, alarm, locale, filters of warnings, NumPy's error handling,
    limit of recursion. In another thread than the main one, handlers and alarm are left alone: it cannot set them.
    """
    directory, mask = os.open(".", os.O_PATH), os.umask(0o077)
    os.umask(mask)
    language, errors, depth = locale.setlocale(locale.LC_ALL), np.geterr(), sys.getrecursionlimit()
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()} if main else {}
    alarm = signal.getitimer(signal.ITIMER_REAL)
    try:
        with warnings.catch_warnings():
            yield
    finally:
        os.fchdir(directory)
        os.close(directory)
        os.umask(mask)
        locale.setlocale(locale.LC_ALL, language)
        np.seterr(**errors)
        sys.setrecursionlimit(depth)
        if main and alarm == (0.0, 0.0):
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler and handler is not None:
                signal.signal(number, handler)


def told(error: BaseException) -> str:
    """What users' code raised, in one line: type, message, and the file and line where, if that is not ours."""
    name = type(error).__name__
    try:
        said = " ".join(str(error).split())[:300]
    except Exception as another:  # an exception of users' code, which may be unable to say anything
        said = f"its message cannot be read: {type(another).__name__}"
    if isinstance(error, SystemExit):
        said = f"the code {error.code!r}"
    frames = [frame for frame in reversed(traceback.extract_tb(error.__traceback__))
              if not frame.filename.startswith((_OURS, "<"))]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    where = f" ({os.path.basename(own[0].filename)}, line {own[0].lineno})" if own else ""
    return f"{name}: {said}{where}" if said else f"{name}{where}"


class EnvironmentFailed(Exception):
    """Code of users failed while it played. The message is one line."""


@contextlib.contextmanager
def telling(what: str, kind: type[Exception] = EnvironmentFailed) -> Iterator[None]:
    """Within, code of users runs. What it raises becomes a `kind` of one line, which begins with `what`.

    A ConfigError is one line already. KeyboardInterrupt is Ctrl-C and goes on.
    """
    try:
        yield
    except (ConfigError, EnvironmentFailed, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: B036  # SystemExit, too
        raise kind(f"{what}: {told(error)}") from error
