"""What makes the compiled code fast stays. It is read from the code, as times say little on a busy machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ga3c.envs.emulator import consoles, jit


def _sample() -> str:
    """LLVM's code of a function that passes arrays on and divides, and of a helper that is to be inlined."""
    @jit.inlined
    def helper(values: Any, at: int) -> Any:
        return values[at & 3] + 7

    @jit.kernel
    def callee(values: Any, number: int) -> Any:
        total = 0
        for place in range(len(values)):
            total += values[place] * number // (number + 2)
        return total

    @jit.kernel
    def sample(values: Any, number: int) -> Any:
        return callee(values[1:], number) // number + helper(values, number)

    values = np.array([4, 2, 3, 5])
    assert helper(values, 2) == 10
    assert sample(values, 2) == (2 * 2 // 4 + 3 * 2 // 4 + 5 * 2 // 4) // 2 + 10
    return "\n".join(each.inspect_llvm(each.signatures[0]) for each in (sample, helper))


def test_what_makes_it_fast_is_in_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(jit._OPTIONS, "cache", False)  # what is loaded from disk has no such code
    code = _sample()
    assert "NRT_" not in code, "references are not counted"
    assert "PyEval_SaveThread" in code and "PyEval_RestoreThread" in code, "other threads of Python run meanwhile"
    assert "ZeroDivisionError" not in code and "division by zero" not in code, "divisions raise nothing"
    assert "alwaysinline" in code, "helpers are inlined"


def test_machine_code_is_kept_on_disk() -> None:
    """As far as the cache can be written, which it can here."""
    consoles.compile_consoles()
    for kernel in (consoles._play, consoles._show):
        assert jit.CACHE is not None and jit.CACHE in Path(kernel.stats.cache_path).parents
        assert list(Path(kernel.stats.cache_path).glob(f"consoles.{kernel.py_func.__name__}-*.nbi"))
        assert sum(kernel.stats.cache_hits.values()) + sum(kernel.stats.cache_misses.values()) == 1
