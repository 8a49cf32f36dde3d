"""The guards that `tests/guards.py` removes are in the code, and their tests exist."""

from __future__ import annotations

import subprocess
import sys

import pytest
from guards import GUARDS, HERE, place
from guards_list import Guard


@pytest.mark.parametrize("guard", GUARDS, ids=[f"{guard.row}-{guard.taken}" for guard in GUARDS])
def test_a_guard_is_in_the_code_and_its_test_among_the_tests(guard: Guard) -> None:
    for module, what, _ in guard.edits:
        assert (HERE / "ga3c" / f"{module}.py").read_text(encoding="utf-8").count(what) == 1
    assert place(guard)


def test_the_parameters_of_the_guards_tests_are_those_of_today() -> None:
    named = {place(guard) for guard in GUARDS if "[" in guard.test}
    files = sorted({test.split("::")[0] for test in named})
    collected = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-n", "0", "-o",
                                "addopts=--import-mode=importlib", *files], cwd=HERE,
                               capture_output=True, text=True, check=True).stdout
    assert named <= {*collected.splitlines()}
