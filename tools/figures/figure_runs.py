"""Runs behind the tables and figures: how they are trained, and their numbers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ga3c
from ga3c.envs.atari_games import atari_game_of
from ga3c.learner import checkpoint
from ga3c.runs import reader
from ga3c.settings.effects import ineffective
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.tuning.measurement import name as counts_name

# Settings that may differ between an existing run and the wanted run.
_MAY_DIFFER = {"run_dir", "steps", "checkpoint_minutes", "checkpoints_kept", "remember", "tensorboard",
               "evaluation_minutes", "evaluation_episodes"}

# Scores of GA3C after a day (Babaeizadeh et al., 2017, table 3).
PUBLISHED = {"Amidar": 218.0, "Boxing": 92.0, "Centipede": 7386.0, "NameThisGame": 5643.0, "MsPacman": 1978.0,
             "Pong": 18.0, "Qbert": 14966.0, "Seaquest": 1706.0, "UpNDown": 8623.0}


def exit_code(tool: str, work: Callable[[], list[str]]) -> int:
    """Runs a tool's `work`, which returns its failures, and prints each error in a line that begins with `tool`.

    Returns the exit code: 0; 1 after failures; 2 after a mistake of the user; 130 after an interrupt.
    """
    try:
        failures = work()
    except ConfigError as mistake:
        print(f"{tool}: {mistake}", file=sys.stderr)
        return 2
    except (ga3c.CommandFailed, OSError) as failed:
        failures = [str(failed)]
    except KeyboardInterrupt:
        print(f"{tool}: interrupted; repeat the command to continue", file=sys.stderr)
        return 130
    for failure in failures:
        print(f"{tool}: {failure}", file=sys.stderr)
    return 1 if failures else 0


def markdown(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Formats a Markdown table, a line for each row. columns: heading -> form, as "{score:,.1f}"; None is a "-"."""
    def cell(form: str, row: Mapping[str, Any]) -> str:
        name = form[1:].partition(":")[0].rstrip("}")
        return "-" if row.get(name) is None else form.format(**row)

    lines = [columns.keys(), ["---"] * len(columns), *([cell(form, row) for form in columns.values()] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def finished(run: Path, steps: int) -> bool:
    """Says whether the newest whole checkpoint of a run has so many agent steps."""
    try:
        return int(checkpoint.newest(run / "checkpoints")[1].name) >= steps
    except checkpoint.CheckpointError:
        return False


def train(run: Path, settings: Settings) -> None:
    """Trains or resumes a run until it has used its steps and has a checkpoint from its end.

    Raises ConfigError if the run exists with other settings; CommandFailed; KeyboardInterrupt after an interrupt, when
    the run has ended with a checkpoint.
    """
    steps = settings.run.steps or 0
    if (run / "config.yaml").exists():
        _compare(run, settings)
        if finished(run, steps):
            return
    print("training", run, flush=True)
    if checkpoint.saved(run / "checkpoints"):
        ga3c.train(resume=run, quiet=True, steps=steps)
    else:
        if run.exists():  # without a checkpoint it cannot be resumed; nothing is deleted
            names = (run.with_name(f"{run.name}.broken{number}") for number in range(1, 1000))
            run.rename(next(name for name in names if not name.exists()))
        ga3c.train(settings.changed(run_dir=str(run)), quiet=True)
    if not finished(run, steps):
        raise KeyboardInterrupt


def _compare(run: Path, settings: Settings) -> None:
    """Raises ConfigError if the run was trained with other settings."""
    before = reader.settings(run)
    wanted = json.loads(json.dumps(settings.flat()))
    # The default of a setting without effect here may have changed since the run began.
    unused = ineffective(settings, atari_game_of(settings.env) is not None).keys()
    for name in sorted(wanted.keys() - _MAY_DIFFER - unused):
        if before.get(name) != wanted[name]:
            raise ConfigError(f"{run} was trained with {name} {before.get(name)}, not {wanted[name]}; "
                              "give another --out")


def run_numbers(run: Path, game: str) -> dict[str, Any]:
    """Returns the numbers of a run; {} if no agent has played.

    workers: N_A/N_P/N_T at the end. score: mean of the last hundred episodes, at the end. best: the highest such mean,
    from the hundredth episode on. minutes_to_paper, frames_to_paper: until that mean first reached GA3C's in its paper.
    """
    rows = reader.lasting([row for row in reader.rows(run).new() if row["agents"] > 0])
    if not rows:
        return {}
    minutes, steps, score, lag = (
        reader.column(rows, name) for name in ("time", "agent_steps", "score_mean", "lag_mean"))
    minutes /= 60
    whole = np.where(reader.column(rows, "episodes") >= 100, score, np.nan)  # the mean of fewer episodes is too noisy
    there = np.flatnonzero(whole >= PUBLISHED.get(game, np.inf))  # NaN >= goal is False

    def known(number: float) -> float | None:
        return round(float(number), 2) if np.isfinite(number) else None

    return {"minutes": known(minutes[-1]), "agent_steps": int(steps[-1]), "frames": int(rows[-1]["frames"]),
            "steps_per_second": known((steps[-1] - steps[0]) / max(60 * (minutes[-1] - minutes[0]), 1.0)),
            "lag": known(float(np.nanmean(lag))) if np.isfinite(lag).any() else None,
            "workers": counts_name([rows[-1][kind] for kind in ("agents", "predictors", "trainers")]),
            "score": known(score[-1]), "best": known(float(np.nanmax(whole))) if np.isfinite(whole).any() else None,
            "minutes_to_paper": known(minutes[there[0]]) if len(there) else None,
            "frames_to_paper": int(rows[there[0]]["frames"]) if len(there) else None}


def curve(run: Path) -> dict[str, list[float]]:
    """Returns the run's score (mean of the last hundred episodes) at about 100 equally spaced agent steps.

    agent_steps, minutes, score: lists of the same length; empty if no episode has ended.
    """
    rows = [row for row in reader.lasting(reader.rows(run).new()) if row["score_mean"] is not None]
    if not rows:
        return {"agent_steps": [], "minutes": [], "score": []}
    steps, seconds, score = (reader.column(rows, name) for name in ("agent_steps", "time", "score_mean"))
    kept = np.unique(np.searchsorted(steps, np.linspace(steps[0], steps[-1], 100)))
    return {"agent_steps": [int(number) for number in steps[kept]],
            "minutes": [round(float(number), 2) for number in seconds[kept] / 60],
            "score": [round(float(number), 2) for number in score[kept]]}


def points(curve: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Converts the points of a `curve` to rows of metrics."""
    return [{"agent_steps": steps, "time": 60 * minutes, "score_mean": score} for steps, minutes, score
            in zip(curve["agent_steps"], curve["minutes"], curve["score"], strict=True)]
