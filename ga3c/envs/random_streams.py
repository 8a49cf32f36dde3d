"""Random generators as plain arrays, for checkpoints without pickle; and the global streams of other people's code."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LOW = 2**64 - 1


def packed(generator: np.random.Generator) -> NDArray[np.uint64]:
    """Where a PCG64 generator stands: (6,) uint64. Raises ValueError for a generator of another kind."""
    state = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise ValueError(f"a {state['bit_generator']} generator cannot be saved; PCG64 can")
    words = [part for name in ("state", "inc") for part in divmod(state["state"][name], _LOW + 1)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def unpacked(array: NDArray[np.uint64]) -> np.random.Generator:
    """The generator that `packed` made `array` (6,) of. Raises ValueError if the array is none."""
    if array.dtype != np.uint64 or array.shape != (6,):
        raise ValueError(f"a generator is uint64 (6,), not {array.dtype} {array.shape}")
    state_high, state_low, increment_high, increment_low, has_uint32, uinteger = array.tolist()
    bits = np.random.PCG64(0)
    try:
        bits.state = {"bit_generator": "PCG64", "has_uint32": has_uint32, "uinteger": uinteger,
                      "state": {"state": state_high << 64 | state_low, "inc": increment_high << 64 | increment_low}}
    except (OverflowError, TypeError) as error:
        raise ValueError(f"no state of a generator: {error}") from None
    return np.random.Generator(bits)


def seed_global_streams(seed: int) -> None:
    """Seeds `random` and `np.random`, which environments of users draw from (0 <= seed < 2**32)."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # others draw from it


def global_streams() -> list[Any]:
    """Where `random` and `np.random` stand, as plain JSON values."""
    kind, keys, *rest = np.random.get_state()
    return [random.getstate(), [kind, np.asarray(keys).tolist(), *rest]]


def restore_global_streams(streams: list[Any]) -> None:
    """Has both go on from there. Raises ValueError or TypeError if `streams` are none."""
    (version, words, gauss), numpys = streams
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(numpys))


class GlobalStreams:
    """`random` and `np.random` as one environment's own: `with streams:` what is drawn comes from them.

    They go on where they stood at the end of the last `with`. Outside, the streams of the process are untouched. That
    costs 20 us, so it is for environments that share a process and must not depend on each other.
    """

    def __init__(self, seed: int) -> None:
        self._ours: tuple[Any, Any] = random.getstate(), np.random.get_state()
        with self:
            seed_global_streams(seed)

    def __enter__(self) -> None:
        self._others = random.getstate(), np.random.get_state()
        random.setstate(self._ours[0])
        np.random.set_state(self._ours[1])

    def __exit__(self, *exception: object) -> None:
        self._ours = random.getstate(), np.random.get_state()
        random.setstate(self._others[0])
        np.random.set_state(self._others[1])
