"""Where processes look for modules: the user's directory comes last.

Else a file beside the user's game, such as `random.py` or `queue.py`, would stand in for a module of Python's.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

_SAFE = "ga3c"  # any text turns the variable on; by this one `forget_safe_path` knows ours
_ROOT = Path(__file__).resolve().parents[2]


def python_path(here: str) -> str:
    """PYTHONPATH for a process of ours: it imports what this one imports, and from the directory `here` last.

    Where `here` holds this package, it keeps its place: a checkout that is not installed.
    """
    searched = [path or here for path in sys.path]
    last = [here] if here in searched and not os.path.samefile(here, _ROOT) else []
    return os.pathsep.join([*(path for path in searched if path not in last), *last])


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Within, Python processes that are started do not look into the working directory first.

    It is meant for those of multiprocessing, which starts Python with `-c`. A checkout that is not installed is found
    nowhere else, so there nothing changes. Outside, the variable is there and empty, which means off: to replace a
    variable is safe while other threads read the environment, to add one is not.
    """
    before = os.environ.get("PYTHONSAFEPATH", "")
    if not os.path.samefile(".", _ROOT):
        os.environ["PYTHONSAFEPATH"] = before or _SAFE
    try:
        yield
    finally:
        os.environ["PYTHONSAFEPATH"] = before


def forget_safe_path() -> None:
    """Programs that users' code starts in this process look for modules as they always do."""
    if os.environ.get("PYTHONSAFEPATH") == _SAFE:
        del os.environ["PYTHONSAFEPATH"]
