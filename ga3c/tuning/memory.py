"""Counts that a search found, kept for the next run of the same kind on this machine.

They stand in `$XDG_CACHE_HOME/ga3c/tuned.json`, else `~/.cache/ga3c/tuned.json`, one entry for each kind of run:

    {"machine": "host", "cores": 2, "game": "Pong", ..., "counts": [8, 1, 1], "rate": 5100.0}

The file is replaced as a whole. If two searches end at the same moment, one entry may be lost; it costs a new search.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ga3c import __version__
from ga3c.settings.machine import usable_cores
from ga3c.settings.schema import Settings

Counts = tuple[int, int, int]
"""Agents, predictors, trainers."""

Entry = dict[str, Any]

_SHAPE = ("network", "large_stride", "precision", "envs_per_agent", "rollout_length", "prediction_batch_min",
          "training_batch_min", "slots_per_agent", "max_lag")


def cache_file() -> Path:
    """Where the counts are kept. A user without a home, as containers have, keeps them in the temporary directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(tempfile.gettempdir() if cache.startswith("~") else cache) / "ga3c" / "tuned.json"


def kind_of_run(settings: Settings, game: str) -> Entry:
    """What the best counts depend on: machine, version, game, and the settings that shape the work."""
    flat = settings.flat()
    return {"machine": platform.node(), "cores": usable_cores(),
            "devices": os.environ.get("CUDA_VISIBLE_DEVICES", "all"), "version": __version__, "game": game,
            **{name: flat[name] for name in _SHAPE}}


def entries() -> list[Entry]:
    """All entries with counts and rate; whatever else is in the file is left out. Raises OSError, ValueError."""
    try:
        found = json.loads(cache_file().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if isinstance(found, dict):  # as versions before 0.9 wrote it
        return []
    if not isinstance(found, list):
        raise ValueError("not a list of entries")
    return [entry for entry in found if isinstance(entry, dict) and _counts(entry)
            and type(entry.get("rate")) in (int, float)]


def recall(settings: Settings, game: str, say: Callable[[str], None]) -> Counts | None:
    """The counts remembered for such a run, if any. `say` takes a line if the file cannot be read."""
    kind = kind_of_run(settings, game)
    return next((_counts(entry) for entry in _readable(say) if _is_of(entry, kind)), None)


def remember(settings: Settings, game: str, counts: Counts, rate: float, say: Callable[[str], None]) -> None:
    """Keeps these counts for the next such run. If it cannot write, `say` takes a line and the run goes on."""
    path, kind = cache_file(), kind_of_run(settings, game)
    aside = path.with_name(f".tuned.{os.getpid()}")
    others = [entry for entry in _readable(say) if not _is_of(entry, kind)]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [*others, {**kind, "counts": list(counts), "rate": round(rate, 1)}]
        aside.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        say(f"Counts are not remembered: {error.filename or path}: {error.strerror or error}")


def _readable(say: Callable[[str], None]) -> list[Entry]:
    try:
        return entries()
    except (OSError, ValueError) as error:
        say(f"Remembered counts are ignored: {cache_file()}: {error}")
        return []


def _is_of(entry: Entry, kind: Entry) -> bool:
    return all(name in entry and entry[name] == value for name, value in kind.items())


def _counts(entry: Entry) -> Counts | None:
    counts = entry.get("counts")
    if isinstance(counts, list) and len(counts) == 3 and all(type(count) is int and count > 0 for count in counts):
        return counts[0], counts[1], counts[2]
    return None
