"""How this package compiles: every decorator of Numba is here, so that one place decides its options.

The options are worth a factor of two each. `_nrt=False` leaves out the counting of references, which costs more than
the emulation (Numba's issues 2345 and 2350); what is compiled so may pass arrays on but must not make any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba

_F = TypeVar("_F", bound=Callable)
_OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False}


def kernel(function: _F) -> _F:
    """Compiles `function` on its first call and keeps the machine code on disk."""
    compiled: _F = numba.njit(**_OPTIONS)(function)
    return compiled


def inlined(function: _F) -> _F:
    """The same for a helper that is copied into its callers. Use it where there are few of them."""
    compiled: _F = numba.njit(forceinline=True, **_OPTIONS)(function)
    return compiled
