"""Random generators as plain arrays, for checkpoints without pickle, and the global random streams of user code."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LOW = 2**64 - 1


def packed(generator: np.random.Generator) -> NDArray[np.uint64]:
    """Returns the state of a PCG64 generator, (6,) uint64. Raises ValueError for a generator of another kind."""
    state = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise ValueError(f"a {state['bit_generator']} generator cannot be saved; PCG64 can")
    words = [part for name in ("state", "inc") for part in divmod(state["state"][name], _LOW + 1)]
    return np.array([*words, state["has_uint32"], state["uinteger"]], np.uint64)


def unpacked(array: NDArray[np.uint64]) -> np.random.Generator:
    """Returns the generator whose state `packed` returned as `array` (6,). Raises ValueError for any other array."""
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
    """Seeds `random` and `np.random` (0 <= seed < 2**32), because user environments draw from them."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # others draw from it


def global_streams() -> list[Any]:
    """Returns the states of `random` and `np.random` as plain JSON values."""
    kind, keys, *rest = np.random.get_state()
    return [random.getstate(), [kind, np.asarray(keys).tolist(), *rest]]


def restore_global_streams(streams: list[Any]) -> None:
    """Restores the states that `global_streams` returned. Raises ValueError or TypeError if `streams` is invalid."""
    (version, words, gauss), numpys = streams
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(numpys))


class GlobalStreams:
    """Private states of `random` and `np.random` for one environment. Code in `with streams:` draws from them.

    They continue where the last `with` block ended. The process's own states do not change. A block costs 20 us, so
    use it only for environments that share a process and must not depend on each other.
    """

    def __init__(self, seed: int) -> None:
        self._states: tuple[Any, Any] = random.getstate(), np.random.get_state()  # while in a block: the process's own
        with self:
            seed_global_streams(seed)

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *exception: object) -> None:
        self._swap()

    def _swap(self) -> None:
        states = random.getstate(), np.random.get_state()
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])
        self._states = states
