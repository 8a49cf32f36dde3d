"""Text for users: one-line messages for mistakes in settings (name, value, correct form), and printable paths."""

from __future__ import annotations

import codecs
import difflib
import os
import reprlib
import shlex
import sys
from collections.abc import Sequence

ESCAPED = "ga3c.escaped"
"""A value for `errors` of a stream. Bytes of a path that are no text stay as they are; other characters that
the stream cannot encode are escaped.
"""


def _escape(error: UnicodeError) -> tuple[bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start:error.end]
    return b"".join(os.fsencode(c) if "\udc80" <= c <= "\udcff" else c.encode("ascii", "backslashreplace")
                    for c in wrong), error.end


codecs.register_error(ESCAPED, _escape)


def for_shell(path: str | os.PathLike[str]) -> str:
    """Quotes a path for a shell, in characters that standard output can encode."""
    text = os.fspath(path)
    text = f"./{text}" if text.startswith("-") else text
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
        if text.isprintable():
            return shlex.quote(text)
    except UnicodeEncodeError:
        pass
    # ANSI-C quoting: bash, zsh and POSIX 2024 support it.
    return "$'" + "".join(chr(byte) if 32 <= byte < 127 and chr(byte) not in "'\\" else f"\\{byte:03o}"
                          for byte in os.fsencode(text)) + "'"


class ConfigError(Exception):
    """A mistake in a setting. The message is one printable line, whatever the user typed."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))


def flag(name: str) -> str:
    """Returns the flag of a setting: `--max-lag` for `max_lag`."""
    return "--" + name.replace("_", "-")


def printable(text: str) -> str:
    """Replaces each unprintable character with a question mark."""
    return "".join(c if c.isprintable() else "?" for c in text)


def nearest(name: str, known: Sequence[str]) -> str:
    """Returns "; did you mean X?" with the closest of the known names; "" if none is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 100
_SHORT.maxlevel = 3


def shown(value: object) -> str:
    """Formats a value as Python writes it, at most 100 characters. Long or deep values are shortened."""
    try:
        return _SHORT.repr(value)[:100]
    except ValueError:  # an integer of more digits than Python writes
        return "a number of thousands of digits"
