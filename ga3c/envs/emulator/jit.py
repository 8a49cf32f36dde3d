"""The decorators of compiled functions. Every Numba decorator is here, so that one place decides the options.

The options are worth a factor of two each. `_nrt=False` omits reference counting, which costs more than the emulation
(Numba's issues 2345 and 2350). Functions compiled this way may pass arrays on but must not make any.

Machine code is kept on disk, in one directory for each installation of this package. The reason is that Numba keeps
code by path, and looks for changes only in the function's own file, not in the functions that it calls. The directory
is emulator-<hash> below `$NUMBA_CACHE_DIR`, else `$XDG_CACHE_HOME/ga3c`, else `~/.cache/ga3c`. Where no directory
can be written, each process compiles for itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite.binding import get_host_cpu_name

int64: Any = np.int64  # the integer of compiled code; Any keeps type checkers out of it
_F = TypeVar("_F", bound=Callable)


def _cache() -> Path | None:
    """Returns the directory of this installation's machine code; None if it cannot be written."""
    sources = hashlib.sha256(f"{sys.version} {numba.__version__} {get_host_cpu_name()}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        sources.update(f"{path} {path.stat().st_mtime_ns} ".encode() + path.read_bytes())
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    base = tempfile.gettempdir() if base.startswith("~") else base
    place = Path(numba.config.CACHE_DIR or f"{base}/ga3c") / f"emulator-{sources.hexdigest()[:16]}"
    with contextlib.suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return place
    return None


CACHE = _cache()
_OPTIONS = {"cache": CACHE is not None, "nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: _F) -> _F:
    """Compiles `function` on its first call and keeps the machine code on disk."""
    return _compiled(function, False)


def inlined(function: _F) -> _F:
    """Compiles a helper as `kernel` does, but copies it into its callers. Use it where there are few callers."""
    return _compiled(function, True)


def _compiled(function: _F, inline: bool) -> _F:
    before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(CACHE or "")
    try:
        compiled: _F = numba.njit(**_OPTIONS, forceinline=inline)(function)
    finally:
        numba.config.CACHE_DIR = before
    return compiled
