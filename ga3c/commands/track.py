"""`ga3c-track`: sends a run's record to another tracker, from its own process.

The command only reads the run's files, so it costs the run only a share of a core. It may be started late, killed and
started again: RUN/track-NAME.json holds the number of rows sent. While a tracker does not answer, rows wait in the
run's files.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ga3c.commands.entry import guarded
from ga3c.runs import reader as record
from ga3c.settings.flags import Parser
from ga3c.settings.messages import ConfigError
from ga3c.settings.whole_files import write_whole

PERIOD = 5.0      # seconds between two reads; the cost of a tracker is mostly per call
TIMEOUT = 600.0  # seconds without a row after which a run counts as dead
_PAUSE = 1.0     # seconds after a failed send; they double each time
_LONGEST_PAUSE = 60.0
_BATCH = 200      # rows sent at a time

Point = tuple[int, dict[str, float]]  # agent steps, and the measurements at that point


class Tracker(Protocol):
    """A destination of points. Any exception of `send` means that the points did not arrive and are sent again."""

    id: str

    def send(self, points: Sequence[Point]) -> None:
        """Adds the points."""

    def close(self) -> None:
        """Ends the tracker's run, which may be opened again by its id."""


class _MLflow:
    def __init__(self, project: str, name: str, config: dict[str, Any], known: str | None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param
        self._client = MlflowClient()
        self._metric = Metric
        if known is None:
            experiment = self._client.get_experiment_by_name(project)
            number = experiment.experiment_id if experiment else self._client.create_experiment(project)
            known = self._client.create_run(number, run_name=name).info.run_id
            self._client.log_batch(known, params=[Param(key, str(value)) for key, value in config.items()])
        else:
            self._client.update_run(known, status="RUNNING")
        self.id = known
        self._arrived = 0
        # A point may be sent twice, if it is unknown whether it arrived. Both must then be equal to the last digit.
        self._began = int(self._client.get_run(known).info.start_time)  # milliseconds

    def send(self, points: Sequence[Point]) -> None:
        metrics = [self._metric(key, value, self._began + int(1000 * values["seconds"]), step)
                   for step, values in points for key, value in values.items()]
        while self._arrived < len(metrics):  # a retry skips arrived ones; MLflow takes 1,000 at a time
            self._client.log_batch(self.id, metrics=metrics[self._arrived:self._arrived + 1000])
            self._arrived += 1000
        self._arrived = 0

    def close(self) -> None:
        self._client.set_terminated(self.id)


class _LikeWandb:
    """The tracker Weights & Biases, or Trackio, which has the same functions."""

    def __init__(self, module: str, project: str, name: str, config: dict[str, Any], known: str | None) -> None:
        self._module = __import__(module)
        self.id = known or f"{name}-{os.urandom(3).hex()}"
        identity = {"id": self.id, "name": name} if module == "wandb" else {"name": self.id}
        self._run = self._module.init(project=project, config=config, resume="allow", **identity)
        self._by_step = module != "wandb"
        if not self._by_step:  # wandb drops a step below an earlier one, as after a resume
            self._module.define_metric("*", step_metric="agent_steps")

    def send(self, points: Sequence[Point]) -> None:
        for step, values in points:
            self._module.log({**values, "agent_steps": step}, **({"step": step} if self._by_step else {}))

    def close(self) -> None:
        self._module.finish()


TRACKERS: dict[str, Callable[[str, str, dict[str, Any], str | None], Tracker]] = {
    "mlflow": _MLflow,
    "trackio": lambda *about: _LikeWandb("trackio", *about),
    "wandb": lambda *about: _LikeWandb("wandb", *about),
}


def track(argv: Sequence[str]) -> int:
    return guarded("ga3c-track", lambda: _track(parser().parse_args(argv)))


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "ga3c-track", "Send what a run measures to another tracker, while it goes on or afterwards.",
        "examples:\n  ga3c-track runs/Boxing-... --to mlflow   where to is MLflow's own: MLFLOW_TRACKING_URI\n"
        "  ga3c-track --to wandb                    the run that was written to last\n"
        "  ga3c-track RUN --to trackio --project atari")
    parser.add_argument("run", metavar="RUN", type=Path, nargs="?", help="run directory [the one written to last]")
    parser.add_argument("--to", required=True, choices=sorted(TRACKERS), help="the tracker; install it beside ga3c")
    parser.add_argument("--project", metavar="NAME", default="ga3c", help="project or experiment there [%(default)s]")
    return parser


def _track(options: argparse.Namespace) -> int:
    run = record.find_run(options.run)
    note = run / f"track-{options.to}.json"
    tracker, sent = _open(options.to, options.project, run, note)
    print(f"ga3c-track: {run} to {options.to}, {tracker.id}", flush=True)
    ended = True
    warned = False

    def remember(rows: int) -> None:
        nonlocal warned
        try:
            entries = _noted(note) | {options.project: {"id": tracker.id, "rows": rows}}
            write_whole(note, json.dumps(entries) + "\n")
        except OSError as error:  # as on a full disk: the run goes on, and so do we
            if not warned:
                print(f"ga3c-track: {note} cannot be written, so a later call may send rows again: {error.strerror}",
                      file=sys.stderr)
            warned = True

    try:
        remember(sent)  # so that a later call uses the same tracker run
        reason = follow(run, tracker, sent, remember)
    finally:
        try:
            tracker.close()
        except Exception as error:  # trackers raise any exception
            ended = False
            print(f"ga3c-track: not ended there, the newest rows may be missing: {type(error).__name__}: {error}",
                  file=sys.stderr)
    print(f"ga3c-track: {reason}", flush=True)
    return 0 if ended else 6


def _open(name: str, project: str, run: Path, note: Path) -> tuple[Tracker, int]:
    """Returns the tracker and the number of rows it has. Raises ConfigError if it is missing or fails to start."""
    noted = _noted(note).get(project, {})
    try:
        return TRACKERS[name](project, run.resolve().name, record.settings(run), noted.get("id")), noted.get("rows", 0)
    except ImportError as error:
        raise ConfigError(f"--to: {name} is not installed ({error}); pip install {name}") from None
    except Exception as error:
        raise ConfigError(f"--to: {name} does not begin: {type(error).__name__}: {error}") from error


def _noted(note: Path) -> dict[str, dict[str, Any]]:
    """Returns by project the `id` of the tracker's run and the number of `rows` it has."""
    with suppress(FileNotFoundError):
        try:
            entries = json.loads(note.read_text(encoding="utf-8"))
            return {name: {"id": str(sent["id"]), "rows": int(sent["rows"])} for name, sent in entries.items()}
        except (ValueError, LookupError, TypeError, AttributeError):
            raise ConfigError(f"{note} is damaged; remove it to send everything again") from None
    return {}


def point(row: dict[str, Any]) -> Point:
    """Converts a row of metrics.jsonl to numbers. `time` becomes `seconds`, because trackers have their own `time`."""
    return int(row["agent_steps"]), {"seconds" if name == "time" else name: float(value) for name, value in row.items()
                                     if value is not None and name not in ("agent_steps", "bottleneck")}


def follow(run: Path, tracker: Tracker, sent: int, remember: Callable[[int], None],
           wait: Callable[[float], None] = time.sleep) -> str:
    """Sends the rows of metrics.jsonl after the first `sent` until the run has ended. Returns the reason for the end.

    `remember` gets the number of rows that have arrived. A run resumed meanwhile is followed further. Raises OSError.
    """
    metrics = record.rows(run)
    events = record.events(run)
    rows = metrics.new()[sent:]
    last: dict[str, Any] = {}
    idle = 0.0
    pause = 0.0
    while True:
        # Events are read before rows: a run that has ended has written all its rows.
        last = next((event for event in reversed(events.new()) if event["event"] in ("start", "end")), last)
        new = metrics.new()
        rows += new
        if rows:
            batch = rows[:_BATCH]
            try:
                tracker.send([point(row) for row in batch])
            except Exception as error:  # trackers raise any exception while their server is away
                pause = min(max(_PAUSE, 2 * pause), _LONGEST_PAUSE)
                print(f"ga3c-track: not sent, again in {pause:.0f} s: {type(error).__name__}: {error}", file=sys.stderr)
                wait(pause)
                continue
            pause = 0.0
            sent += len(batch)
            rows = rows[_BATCH:]
            remember(sent)
        if not rows and last.get("event") == "end":
            return f"the run has ended, {sent:,} rows sent"
        idle = 0.0 if new or rows else idle + PERIOD
        if idle >= TIMEOUT:
            return f"no row for {TIMEOUT:.0f} s, {sent:,} rows sent; start it again if the run goes on"
        if not rows:
            wait(PERIOD)
