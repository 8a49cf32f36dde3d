"""Measurements of this machine that runs keep for later runs, in files of the user's cache directory.

The files are in `$XDG_CACHE_HOME/ga3c`, else `~/.cache/ga3c`. Each holds a list of entries. An entry has a kind (what
was measured, on which machine) and the result. Files are replaced as a whole. If two runs write at the same moment,
one entry may be lost; a later run measures it again.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ga3c import __version__
from ga3c.settings.machine import usable_cores

Entry = dict[str, Any]


def cache_file(name: str) -> Path:
    """Returns the path of the file. A user without a home, as in containers, gets the temporary directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(tempfile.gettempdir() if cache.startswith("~") else cache) / "ga3c" / name


def this_machine() -> Entry:
    """Returns the part of the kind that all entries have: machine, cores, devices, version."""
    return {"machine": platform.node(), "cores": usable_cores(),
            "devices": os.environ.get("CUDA_VISIBLE_DEVICES", "all"), "version": __version__}


def entries(name: str) -> list[Entry]:
    """Reads all entries of a file and leaves anything else out. Raises OSError, ValueError."""
    try:
        entries = json.loads(cache_file(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(entries, list):
        raise ValueError("not a list of entries")
    return [entry for entry in entries if isinstance(entry, dict)]


def recalled(name: str, kind: Entry, what: str, log: Callable[[str], None]) -> list[Entry]:
    """Returns the entries of this kind. If the file cannot be read, `log` gets a line that names `what`."""
    return [entry for entry in _readable(name, what, log) if _is_of(entry, kind)]


def remember(name: str, kind: Entry, entries: Entry, what: str, log: Callable[[str], None]) -> None:
    """Writes what was found and replaces earlier entries of this kind. If that fails, `log` gets a line."""
    path = cache_file(name)
    aside = path.with_name(f".{path.stem}.{os.getpid()}")
    kept = [entry for entry in _readable(name, what, log) if not _is_of(entry, kind)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps([*kept, {**kind, **entries}], indent=1) + "\n", encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        log(f"{what} are not remembered: {error.filename or path}: {error.strerror or error}")
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def _readable(name: str, what: str, log: Callable[[str], None]) -> list[Entry]:
    try:
        return entries(name)
    except (OSError, ValueError) as error:
        log(f"Remembered {what.lower()} are ignored: {cache_file(name)}: {error}")
        return []


def _is_of(entry: Entry, kind: Entry) -> bool:
    return all(name in entry and entry[name] == value for name, value in kind.items())
