"""Messages about mistakes in settings: one line with the name, the value and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Sequence


class ConfigError(Exception):
    """A mistake in a setting. The message is one printable line for the user, whatever was typed."""

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else "?" for c in " ".join(message.split())))


def nearest(name: str, known: Sequence[str]) -> str:
    """"; did you mean X?" with the closest of the known names; "" if none is close."""
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""


def shown(value: object) -> str:
    """A value as Python writes it, at most 100 characters."""
    try:
        return repr(value)[:100]
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"
