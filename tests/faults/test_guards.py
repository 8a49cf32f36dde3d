"""The guards that `tests/guards.py` removes are in the code, and their tests exist."""

from __future__ import annotations

import pytest
from guards import GUARDS, HERE, place
from guards_list import Guard


@pytest.mark.parametrize("guard", GUARDS, ids=[f"{guard.row}-{guard.taken}" for guard in GUARDS])
def test_a_guard_is_in_the_code_and_its_test_among_the_tests(guard: Guard) -> None:
    for module, what, _ in guard.edits:
        assert (HERE / "ga3c" / f"{module}.py").read_text(encoding="utf-8").count(what) == 1
    assert place(guard)
