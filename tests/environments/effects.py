"""What code of users may do to the process that it runs in: `EFFECTS`, by name."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import locale
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np


def _raise(error: BaseException) -> None:
    raise error


class Stuck:
    """No stream: whatever is done with it raises."""

    def __getattr__(self, name: str) -> Any:
        raise OSError("no stream")


def sleeps() -> None:
    time.sleep(600)


def catches_all() -> None:
    """As users write it: it swallows what should end the process."""
    try:
        sys.exit(3)
    except:  # noqa: B001, E722
        pass


def loses_its_directory() -> None:
    place = tempfile.mkdtemp()
    os.chdir(place)
    os.rmdir(place)


EFFECTS: dict[str, Callable[[], object]] = {
    "exit": lambda: sys.exit("enough of this"), "leave": lambda: os._exit(0),
    "interrupt": lambda: signal.raise_signal(signal.SIGINT) or _raise(KeyboardInterrupt()), "block": sleeps,
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV), "recursion": lambda: EFFECTS["recursion"](),
    # What changes the whole process, and does no harm where it is contained.
    "sigterm": lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    "sigint": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    "sigmask": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT}),
    "alarm": lambda: signal.setitimer(signal.ITIMER_REAL, 2.0), "chdir": lambda: os.chdir("/"),
    "no-directory": loses_its_directory, "umask": lambda: os.umask(0o777), "gc": gc.disable,
    "thread": lambda: threading.Thread(target=sleeps).start(), "bare-except": catches_all,
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"), "warnings": lambda: warnings.simplefilter("error"),
    "seterr": lambda: np.seterr(all="raise"), "shallow": lambda: sys.setrecursionlimit(50),
    "stdout": lambda: setattr(sys, "stdout", Stuck()), "stderr": lambda: setattr(sys, "stderr", None),
    "closed-stdout": lambda: sys.stdout.close(), "environ": os.environ.clear,
    "monotonic": lambda: setattr(time, "monotonic", lambda: 0.0), "faulthandler": faulthandler.disable,
    "atexit": lambda: atexit.register(sleeps), "closerange": lambda: os.closerange(3, 256),
    "fork": os.fork, "exec": lambda: os.execv("/bin/true", ["true"]),
}

HARMLESS = ("sigterm", "sigint", "sigmask", "alarm", "umask", "gc", "thread", "bare-except", "locale", "warnings",
            "seterr", "faulthandler", "stdout", "stderr", "atexit", "chdir")
