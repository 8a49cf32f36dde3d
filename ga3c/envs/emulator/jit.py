"""How this package compiles: every decorator of Numba is here, so that one place decides its options.

The options are worth a factor of two each. `_nrt=False` leaves out the counting of references, which costs more than
the emulation (Numba's issues 2345 and 2350); what is compiled so may pass arrays on but must not make any.

Numba keeps machine code on disk by the file that a function stands in. It does not see when a function that is called
from there changed in another file. So what it keeps is valid only for this package as a whole: `_stamp` tells it so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np

int64: Any = np.int64  # a number of the compiled code, whatever a checker of types makes of it
_F = TypeVar("_F", bound=Callable)
_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: _F) -> _F:
    """Compiles `function` on its first call and keeps the machine code on disk."""
    compiled: _F = numba.njit(**_OPTIONS)(function)
    _stamp(compiled)
    return compiled


def inlined(function: _F) -> _F:
    """The same for a helper that is copied into its callers. Use it where there are few of them."""
    compiled: _F = numba.njit(forceinline=True, **_OPTIONS)(function)
    _stamp(compiled)
    return compiled


def _package() -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of each file of the package."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return tuple((file.name, (status := file.stat()).st_size, status.st_mtime_ns) for file in files)


_PACKAGE = _package()


def _stamp(compiled: Any) -> None:
    files = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if files is not None:  # None where Numba is switched off
        files._source_stamp = _PACKAGE
