"""Counts that a search found, kept for the next run of the same kind on this machine.

They are in `tuned.json` in the user's cache directory, one entry for each kind of run:

    {"machine": "host", "cores": 2, "game": "Pong", ..., "counts": [8, 1, 1], "rate": 5100.0}
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from ga3c.settings import remembered
from ga3c.settings.machine import processor
from ga3c.settings.remembered import Entry, this_machine
from ga3c.settings.schema import Settings

Counts = tuple[int, int, int]
"""Agents, predictors, trainers."""

_FILE, _WHAT = "tuned.json", "Counts"
_SHAPE = ("wrappers", "emulator", "mode", "difficulty", "frame_skip", "network", "large_stride", "precision", "kernels",
          "device_threads", "algorithm", "passes", "minibatches", "envs_per_agent", "agent_nice",
          "rollout_length", "prediction_batch_min", "prediction_batch_max", "training_batch_min", "slots_per_agent",
          "max_lag")


def cache_file() -> Path:
    """Returns the path of the file that keeps the counts."""
    return remembered.cache_file(_FILE)


def kind_of_run(settings: Settings, game: str) -> Entry:
    """Returns all that the best counts depend on: machine, version, game, and the settings that shape the work."""
    from ga3c.envs.atari_games import atari_game_of  # imports gymnasium, which `--help` must not
    atari = atari_game_of(settings.env)
    frame_skip = {"frame_skip": list(atari.frame_skip)} if atari else {}  # the game's name may set it
    return {**this_machine(), "processor": processor(), "game": game, **shape(settings), **frame_skip}


def shape(settings: Settings) -> Entry:
    """Returns the settings that shape the work, as JSON values."""
    flat = settings.flat()
    plain: Entry = json.loads(json.dumps({name: flat[name] for name in _SHAPE}))
    return plain


def entries() -> list[Entry]:
    """Returns all entries with counts and rate, and leaves out all others. Raises OSError, ValueError."""
    return [entry for entry in remembered.entries(_FILE) if _whole(entry)]


def recall(settings: Settings, game: str, log: Callable[[str], None]) -> Counts | None:
    """Returns the counts remembered for such a run, or None. `log` gets a line if the file cannot be read."""
    same_kind = remembered.recalled(_FILE, kind_of_run(settings, game), _WHAT, log)
    return next((_counts(entry) for entry in same_kind if _whole(entry)), None)


def remember(settings: Settings, game: str, counts: Counts, rate: float, log: Callable[[str], None]) -> None:
    """Keeps these counts for the next such run. If that fails, `log` gets a line and the run goes on."""
    remembered.remember(_FILE, kind_of_run(settings, game), {"counts": list(counts), "rate": round(rate, 1)}, _WHAT,
                        log)


def _whole(entry: Entry) -> bool:
    return _counts(entry) is not None and type(entry.get("rate")) in (int, float)


def _counts(entry: Entry) -> Counts | None:
    counts = entry.get("counts")
    if isinstance(counts, list) and len(counts) == 3 and all(type(count) is int and count > 0 for count in counts):
        return counts[0], counts[1], counts[2]
    return None
