"""Where runs are, and what one has written, read back: while it goes on or afterwards, by `ga3c-top`, `ga3c-plot` and
the tools.

A line that a crash has torn is passed over; so is the last one while it is being written, and whatever is neither a row
of metrics nor an event. Rows of earlier versions, which measured less, get None for what they lack.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ga3c.settings.files import recorded_values
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

Entry = dict[str, Any]

_NUMBERS = ("time", "agent_steps", "frames", "episodes", "agents", "predictors", "trainers")
_NUMBERS_OR_NONE = ("trainings", "pps", "tps", "prediction_queue", "training_queue", "agent_deaths", "memory_mb",
                    "prediction_batch", "training_batch", "score", "score_mean", "lag_mean", "lag_p95", "policy_loss",
                    "value_loss", "entropy", "learning_rate")
_MOST = 1e15  # a number beyond is none that a run has written


def is_number(value: Any) -> bool:
    """Whether it is a number that a run may have written: neither a truth value nor NaN nor infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST < value < _MOST


def _row(entry: Entry) -> Entry | None:
    if not all(is_number(entry.get(name)) for name in _NUMBERS):
        return None
    limit = {"limit": entry["limit"]} if isinstance(entry.get("limit"), str) else {}
    numbers = {name: value for name, value in entry.items() if name != "limit" and is_number(value)}
    return {**dict.fromkeys(_NUMBERS_OR_NONE), **numbers, **limit}


def _event(entry: Entry) -> Entry | None:
    return entry if isinstance(entry.get("event"), str) and is_number(entry.get("time")) else None


class Follower:
    """The objects of a file of JSON lines as they are added to it; `sound` says what is kept of each, if anything."""

    def __init__(self, path: Path, sound: Callable[[Entry], Entry | None] = lambda entry: entry) -> None:
        self._path, self._at, self._sound = path, 0, sound

    def new(self) -> list[Entry]:
        """Those added since it was asked last; at first, all. Raises OSError."""
        with open(self._path, "rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[:data.rfind(b"\n") + 1]
        self._at += len(whole)
        found = []
        for line in whole.splitlines():
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue
            sound = self._sound(entry) if isinstance(entry, dict) else None
            if sound is not None:
                found.append(sound)
        return found


def rows(run: Path) -> Follower:
    """The rows of a run's metrics.jsonl: numbers by column; the columns every version writes are there, maybe None."""
    return Follower(run / "metrics.jsonl", _row)


def lasting(entries: Sequence[Entry]) -> list[Entry]:
    """Those that no later one goes back behind in `time`: a resumed run begins where its checkpoint was."""
    return list(itertools.compress(entries, _lasts(column(entries, "time"))))


def _lasts(time: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(n,): whether nothing after it is earlier."""
    lasts: NDArray[np.bool_] = time <= np.fmin.accumulate(time[::-1])[::-1]
    return lasts


def events(run: Path) -> Follower:
    """The events of a run's events.jsonl: each has its kind as `event` and a `time`; the rest is as it stands there."""
    return Follower(run / "events.jsonl", _event)


def lasting_events(run: Path) -> list[Entry]:
    """The events that the run has not gone back behind since; no evaluations by `ga3c-eval`, which have the time of
    their checkpoint. Raises OSError.
    """
    return lasting([event for event in events(run).new() if event["event"] != "evaluation" or "best" in event])


def episodes(run: Path) -> dict[str, NDArray[np.float64]]:
    """The columns of a run's episodes.csv, float64: time (s), agent_step, raw score, length (agent steps); without
    those that a resume went back behind. Raises OSError.
    """
    names = ("time", "agent_step", "score", "length")
    found = []
    for line in (run / "episodes.csv").read_bytes().splitlines(keepends=True):
        cells = line.decode(errors="replace").split(",")
        try:
            if len(cells) == len(names) and line.endswith(b"\n"):
                found.append([float(cell) for cell in cells])
        except ValueError:  # the names, or torn
            continue
    table = np.array(found, np.float64).reshape(-1, len(names))
    return dict(zip(names, table[_lasts(table[:, 0])].T, strict=True))


def column(rows: Iterable[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    """One field of the rows, float64; NaN where it was not measured."""
    return np.array([row[name] if is_number(row.get(name)) else np.nan for row in rows], np.float64)


def settings(run: Path) -> dict[str, Any]:
    """The values by setting in the run's config.yaml, of whatever version; {} if there is none. Raises ConfigError."""
    return recorded_values(run / "config.yaml")


def whole_settings(run: Path) -> dict[str, Any]:
    """As `settings`; those that the run's version of ga3c lacked are today's defaults."""
    found = settings(run)
    return json.loads(json.dumps(Settings().flat())) | found if found else {}


def new_directory(game: str, seed: int) -> Path:
    """Makes runs/<game>-<date>-<time>-s<seed>, or that with a number behind it. Raises ConfigError."""
    path = stem = Path("runs") / f"{game.replace(':', '-').replace('/', '-')}-{time.strftime('%Y%m%d-%H%M%S')}-s{seed}"
    try:
        stem.parent.mkdir(exist_ok=True)
        for number in itertools.count(2):
            try:
                path.mkdir()
                break
            except FileExistsError:
                path = stem.with_name(f"{stem.name}-{number}")
    except OSError as error:
        raise ConfigError(f"run_dir: {error.filename}: {error.strerror}") from None
    return path


def find_run(where: Path | None) -> Path:
    """The run directory `where`, or the one below runs/ that was written to last. Raises ConfigError if it is none."""
    if where is None:
        runs = [path.parent for path in Path("runs").glob("*/metrics.jsonl")]
        if not runs:
            raise ConfigError("no run is named, and there is none in runs/; name its directory")
        return max(runs, key=lambda run: (run / "metrics.jsonl").stat().st_mtime)
    if not (where / "metrics.jsonl").is_file():
        raise ConfigError(f"{where} is no run: it has no metrics.jsonl")
    return where
