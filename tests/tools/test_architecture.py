"""`docs/architecture.md` names files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = sorted({(path, name) for path, names in re.findall(
    r"`(\w+/\w+\.py)(?:: ([\w., ]+))?`", (ROOT / "docs/architecture.md").read_text(encoding="utf-8"))
    for name in names.split(", ")})


def defined(path: Path) -> set[str]:
    """Functions and classes of a module, and the members of its classes, as "Class.member"."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
    return names


def test_many_places_are_named() -> None:
    assert len(NAMED) > 30


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_place_exists(path: str, name: str) -> None:
    file = ROOT / ("" if path.startswith("docs/") else "ga3c") / path
    assert file.is_file() and (not name or name in defined(file))
