"""The guards that `tests/guards.py` removes are in the code, and their tests exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from guards import GUARDS, HERE, place
from guards_list import Guard


@pytest.mark.parametrize("guard", GUARDS, ids=[f"{guard.row}-{guard.taken}" for guard in GUARDS])
def test_a_guard_is_in_the_code_and_its_test_among_the_tests(guard: Guard) -> None:
    for module, what, _ in guard.edits:
        assert (HERE / "ga3c" / f"{module}.py").read_text(encoding="utf-8").count(what) == 1
    assert place(guard)


def test_the_table_of_faults_names_the_tests_of_its_guards() -> None:
    rows = {}
    for line in (HERE / "docs/troubleshooting.md").read_text(encoding="utf-8").splitlines():
        cells = line.strip("| ").split(" | ")
        if cells[0].isdigit() and len(cells) == 6:
            rows[int(cells[0])] = [Path("tests", name) for name in re.sub(r" \([^)]*\)", "", cells[5]).split(", ")
                                   if "/" in name or (HERE / "tests" / name).is_dir()]
    assert {guard.row for guard in GUARDS} <= rows.keys()
    for names in rows.values():
        for name in names:
            assert (HERE / name).is_dir() or (HERE / name.with_name(f"test_{name.name}.py")).is_file(), name
    for guard in GUARDS:
        file = Path(place(guard).split("::")[0])
        assert file.parent in rows[guard.row] or file.with_name(file.stem.removeprefix("test_")) in rows[guard.row], (
            guard.row, file)


def test_the_parameters_of_the_guards_tests_are_those_of_today(all_tests: set[str]) -> None:
    named = {place(guard) for guard in GUARDS if "[" in guard.test}
    files = sorted({test.split("::")[0] for test in named})
    if {*files} <= {test.split("::")[0] for test in all_tests}:
        assert named <= all_tests
        return
    collected = subprocess.run([sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "", "-n", "0", "-o",
                                "addopts=--import-mode=importlib", *files], cwd=HERE,
                               capture_output=True, text=True, check=True).stdout
    assert named <= {*collected.splitlines()}
