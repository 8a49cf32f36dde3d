"""What makes the compiled code fast stays. It is read from the code, as times say little on a busy machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ga3c.envs.emulator import consoles, jit


@pytest.fixture(scope="module")
def code() -> str:
    """LLVM's code of a function that passes arrays on and divides, and of a helper that is to be inlined."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(jit._OPTIONS, "cache", False)  # what is loaded from disk has no such code
        return _sample()


def _sample() -> str:
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


def test_references_are_not_counted(code: str) -> None:
    assert "NRT_" not in code


def test_other_threads_of_python_run_meanwhile(code: str) -> None:
    assert "PyEval_SaveThread" in code and "PyEval_RestoreThread" in code


def test_divisions_raise_nothing(code: str) -> None:
    assert "ZeroDivisionError" not in code and "division by zero" not in code


def test_helpers_are_inlined(code: str) -> None:
    assert "alwaysinline" in code


def test_machine_code_is_kept_on_disk() -> None:
    """As far as the cache can be written, which it can here."""
    consoles.compile_consoles()
    for kernel in (consoles._play, consoles._show):
        assert jit.CACHE is not None and jit.CACHE in Path(kernel.stats.cache_path).parents
        assert list(Path(kernel.stats.cache_path).glob(f"consoles.{kernel.py_func.__name__}-*.nbi"))
        assert sum(kernel.stats.cache_hits.values()) + sum(kernel.stats.cache_misses.values()) == 1


def test_one_module_decides_the_options() -> None:
    """Every other compiles by its two decorators."""
    modules = sorted(Path(jit.__file__).parent.glob("*.py"))
    assert [path.name for path in modules if re.search(r"\bnumba\b", path.read_text())] == ["jit.py"]
