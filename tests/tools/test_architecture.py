"""`docs/architecture.md` names files and functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

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


def test_named_places_exist() -> None:
    assert len(NAMED) > 30
    missing = []
    for path, name in NAMED:
        file = ROOT / ("" if path.startswith("docs/") else "ga3c") / path
        if not file.is_file() or (name and name not in defined(file)):
            missing.append((path, name))
    assert not missing
