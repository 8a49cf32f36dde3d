"""What a run has written, read back: while it goes on or afterwards, by `ga3c-top`, `ga3c-plot` and the tools.

A line that a crash has torn is passed over; so is the last one while it is being written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from ga3c.config import ConfigError


class Follower:
    """The objects of a file of JSON lines as they are added to it."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def new(self) -> list[dict[str, Any]]:
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
            except ValueError:
                continue
            if isinstance(entry, dict):
                found.append(entry)
        return found


def read(run: Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """All objects of a run's metrics.jsonl or events.jsonl. Raises OSError."""
    return Follower(run / file).new()


def column(rows: Iterable[Mapping[str, Any]], name: str) -> NDArray[np.float64]:
    """One field of the rows, float64; NaN where it was not measured."""
    return np.array([np.nan if row.get(name) is None else row[name] for row in rows], np.float64)


def settings(run: Path) -> dict[str, Any]:
    """The run's config.yaml as it stands, of whatever version of ga3c; {} if there is none. Raises ConfigError."""
    path = run / "config.yaml"
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    return found if isinstance(found, dict) else {}


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
