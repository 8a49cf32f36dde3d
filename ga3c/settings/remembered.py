"""What runs find out about this machine, kept for later runs in files of the user's cache directory.

They stand in `$XDG_CACHE_HOME/ga3c`, else `~/.cache/ga3c`. Each is a list of entries: what an entry is of, and what was
found. A file is replaced as a whole. If two runs write at the same moment, one entry may be lost; it is found again.
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
    """Where it is kept. A user without a home, as containers have, keeps it in the temporary directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(tempfile.gettempdir() if cache.startswith("~") else cache) / "ga3c" / name


def this_machine() -> Entry:
    """What every entry is of: machine, cores, devices, version."""
    return {"machine": platform.node(), "cores": usable_cores(),
            "devices": os.environ.get("CUDA_VISIBLE_DEVICES", "all"), "version": __version__}


def entries(name: str) -> list[Entry]:
    """All entries of a file; whatever else is in it is left out. Raises OSError, ValueError."""
    try:
        found = json.loads(cache_file(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if isinstance(found, dict):  # as versions before 0.9 wrote it
        return []
    if not isinstance(found, list):
        raise ValueError("not a list of entries")
    return [entry for entry in found if isinstance(entry, dict)]


def recalled(name: str, kind: Entry, what: str, log: Callable[[str], None]) -> list[Entry]:
    """The entries of this kind. If the file cannot be read, `log` takes a line, in which `what` is remembered."""
    return [entry for entry in _readable(name, what, log) if _is_of(entry, kind)]


def remember(name: str, kind: Entry, found: Entry, what: str, log: Callable[[str], None]) -> None:
    """Keeps what was found in the place of entries of this kind. If that fails, `log` takes a line."""
    path = cache_file(name)
    aside = path.with_name(f".{path.stem}.{os.getpid()}")
    kept = [entry for entry in _readable(name, what, log) if not _is_of(entry, kind)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps([*kept, {**kind, **found}], indent=1) + "\n", encoding="utf-8")
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
