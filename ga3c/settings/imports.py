"""Module search paths of the processes. The user's directory comes last.

Otherwise a file beside the user's game, such as `random.py` or `queue.py`, would replace a module of Python.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_SAFE = "ga3c"  # any text turns the variable on; this text tells `forget_safe_path` that we set it
_ROOT = Path(__file__).resolve().parents[2]


def python_path(here: str) -> str:
    """Returns PYTHONPATH for a process of ours: the search path of this process, with the directory `here` last.

    If `here` holds this package (a checkout that is not installed), it keeps its place.
    """
    searched = [path or here for path in sys.path]
    last = [here] if here in searched and not os.path.samefile(here, _ROOT) else []
    return os.pathsep.join([*(path for path in searched if path not in last), *last])


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Sets PYTHONSAFEPATH in its block, so that new Python processes do not search the working directory first.

    multiprocessing needs it, because it starts Python with `-c`. In a checkout that is not installed nothing changes,
    because only the working directory holds the package. After the block the variable stays, empty, which means off:
    replacing a variable is safe while other threads read the environment, adding one is not.
    """
    before = os.environ.get("PYTHONSAFEPATH", "")
    if not os.path.samefile(".", _ROOT):
        os.environ["PYTHONSAFEPATH"] = before or _SAFE
    try:
        yield
    finally:
        os.environ["PYTHONSAFEPATH"] = before


def forget_safe_path() -> None:
    """Removes our PYTHONSAFEPATH, so that programs started by users' code in this process search as usual."""
    if os.environ.get("PYTHONSAFEPATH") == _SAFE:
        del os.environ["PYTHONSAFEPATH"]
