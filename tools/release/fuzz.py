"""Fuzzes the readers of files, guided by coverage: settings, checkpoints, the record of a run.

    pip install -e '.[fuzz]'
    python tools/release/fuzz.py config --seconds 600       or: arrays, progress, manifest, metrics, events

A reader must report a bad file in one line, whatever the file holds. A case that breaks this rule is printed with its
traceback and kept as crash-*; the exit code is then not 0. The last lines count the cases.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["ga3c", "yaml"]):
    from ga3c.learner import checkpoint
    from ga3c.learner.checkpoint import CheckpointError
    from ga3c.runs import reader
    from ga3c.settings.files import resolve, to_yaml
    from ga3c.settings.messages import ConfigError


def config(path: Path) -> object:
    """Reads the file like `--config FILE`."""
    return to_yaml(resolve({}, str(path)))


def arrays(path: Path) -> object:
    """Reads the file like the weights of a checkpoint or a policy file."""
    return checkpoint.read_arrays(path)


def progress(path: Path) -> object:
    """Reads the file like the progress.json of an otherwise valid checkpoint, and like best.json beside it."""
    directory = path.parent / "checkpoints" / "000000000007"
    if not directory.exists():
        checkpoint.save(directory.parent, directory.name, checkpoint.Checkpoint({}, {}), 1)
    for file in (directory / "progress.json", directory.parent / "best.json"):
        file.write_bytes(path.read_bytes())
    sums = {name: checkpoint._sha256(directory / name) for name in ("arrays.npz", "progress.json")}
    (directory / "manifest.json").write_text(json.dumps(sums))
    return (checkpoint.hourly(directory.parent), checkpoint.best(directory.parent),
            checkpoint.unusable(checkpoint.load(directory).progress))


def manifest(path: Path) -> object:
    """Reads the file like the manifest.json of an otherwise valid checkpoint."""
    directory = path.parent / "checkpoints" / "000000000008"
    if not directory.exists():
        checkpoint.save(directory.parent, directory.name, checkpoint.Checkpoint({}, {}), 1)
    (directory / "manifest.json").write_bytes(path.read_bytes())
    return checkpoint.load(directory)


def metrics(path: Path) -> object:
    """Reads the file like metrics.jsonl."""
    (path.parent / "metrics.jsonl").write_bytes(path.read_bytes())
    rows = reader.rows(path.parent).new()
    return [reader.column(rows, name) for name in ("time", "score_mean", "bottleneck")]


def events(path: Path) -> object:
    """Reads the file like events.jsonl."""
    (path.parent / "events.jsonl").write_bytes(path.read_bytes())
    return [f"{event['time']:,.0f} {event['event']}" for event in reader.events(path.parent).new()]


TARGETS: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "config": (config, b"env:\n  game: Pong\n  wrappers: [a:b]\nalgorithm:\n  learning_rate: 1.0e-4\n"),
    "arrays": (arrays, b""), "manifest": (manifest, b'{"arrays.npz": "0", "progress.json": "1"}'),
    "progress": (progress, b'{"version": 1, "agent_steps": 7, "episodes": 0, "predictions": 9, "time": 4000.0, '
                           b'"recent_scores": [1.0], "checkpoint": "000000000007", "mean": 1.0}'),
    "metrics": (metrics, b'{"time": 1.0, "agent_steps": 9, "frames": 36, "episodes": 0, "agents": 1, "predictors": 1, '
                         b'"trainers": 1, "bottleneck": "device"}\n'),
    "events": (events, b'{"time": 1.0, "event": "end", "reason": "SIGINT"}\n')}


def main() -> None:
    """Runs the command. libFuzzer ends the process."""
    parser = argparse.ArgumentParser(description="Fuzz one reader of files, guided by coverage.")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60, help="[%(default)s]")
    options = parser.parse_args()
    read, example = TARGETS[options.target]
    directory = Path(tempfile.mkdtemp(prefix="fuzz-"))
    (directory / "corpus").mkdir()
    (directory / "case").mkdir()
    if options.target == "arrays":
        import numpy as np
        np.savez(directory / "corpus" / "example.npz", a=np.arange(6.0), b=np.zeros((2, 2), np.float32))
    else:
        (directory / "corpus" / "example").write_bytes(example)
    case: Any = directory / "case" / "file"

    def one(data: bytes) -> None:
        case.write_bytes(data)
        try:
            read(case)
        except (ConfigError, CheckpointError) as error:
            assert len(str(error).splitlines()) == 1, repr(str(error))

    atheris.Setup([sys.argv[0], f"-max_total_time={options.seconds}", "-max_len=4096", "-print_final_stats=1",
                   "-rss_limit_mb=4096", str(directory / "corpus")], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
