"""The runs behind the figures: learning runs keep their directories, runs for speed keep one line each.

A learning run is kept if it has used its budget, and resumed if not (`train`). A run for speed uses a temporary
directory (`speed`). Its measurements are a line in a file of JSON lines (`completed`).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ga3c
from ga3c.commands.train import parser as train_parser
from ga3c.envs.atari_games import atari_game_of
from ga3c.learner import checkpoint
from ga3c.runs import reader
from ga3c.runs.directory import lock_directory, versions
from ga3c.settings.effects import ineffective
from ga3c.settings.flags import settings_of_run
from ga3c.settings.machine import usable_cores
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.tuning.measurement import name as counts_name

# Settings that may differ between an existing run and the wanted run.
_MAY_DIFFER = {"run_dir", "minutes", "steps", "checkpoint_minutes", "checkpoints_kept", "remember", "tensorboard",
               "evaluation_minutes", "evaluation_episodes"}
_OWN = ("game", "minutes", "steps", "frames", "episodes", "run_dir", "checkpoint_minutes")
_LEAST_ROWS = 3
_LONGEST_BEGINNING = 60.0  # seconds


def exit_code(tool: str, work: Callable[[], list[str]], interrupted: str = "interrupted") -> int:
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
        print(f"{tool}: {interrupted}; repeat the command to continue", file=sys.stderr)
        return 130
    for failure in failures:
        print(f"{tool}: {failure}", file=sys.stderr)
    return 1 if failures else 0


class Variant(NamedTuple):
    """One curve of a figure: its label, its part of the runs' names, and its flags."""

    label: str
    name: str
    flags: tuple[str, ...]


# ------------------------------------------------------------------------------------------ learning

def settings_for(variant: Variant, game: str, seed: int, flags: Sequence[str], minutes: float | None,
                 steps: int | None) -> Settings:
    """Returns the settings of a run; the variant's flags come last. Raises ConfigError."""
    argv = ["--seed", str(seed), "--no-remember", *flags, *variant.flags]
    return settings_of_run(train_parser(), argv, _OWN, game=game).changed(minutes=minutes, steps=steps)


def run_name(variant: Variant, game: str, seed: int) -> str:
    """Returns the name of a run's directory."""
    return f"{game}-{variant.name}-s{seed}".replace(":", "-").replace("/", "-")


def shared(number: int, agents: int) -> int:
    """Returns the environments of each agent. Raises ConfigError if `number` is not a multiple of `agents`."""
    if number < 1 or number % agents:
        raise ConfigError(f"--environments: {number} cannot be shared by {agents} agents; a multiple of {agents} can")
    return number // agents


def reached(run: Path, settings: Settings) -> bool:
    """Says whether the run has used its budget of steps or minutes. Raises OSError if there is no record."""
    rows = reader.rows(run).new()
    return bool(rows) and (settings.run.steps is not None and rows[-1]["agent_steps"] >= settings.run.steps
                           or settings.run.minutes is not None and rows[-1]["time"] >= 60 * settings.run.minutes)


def finished(run: Path, settings: Settings) -> bool:
    """Says whether the run has used its budget and its newest whole checkpoint is from its end."""
    try:
        steps = int(checkpoint.newest(run / "checkpoints")[1].name)
    except checkpoint.CheckpointError:
        return False
    if settings.run.steps is not None and steps >= settings.run.steps:
        return True
    return (run / "metrics.jsonl").exists() and reached(run, settings) and (
        steps >= reader.rows(run).new()[-1]["agent_steps"])


def train(run: Path, settings: Settings) -> None:
    """Trains the run until it has used its budget and has a checkpoint from its end.

    Raises ConfigError if the run exists with other settings; SystemExit after an interrupt, when the run has ended with
    a checkpoint.
    """
    if (run / "config.yaml").exists():
        theirs, ours = reader.whole_settings(run), json.loads(json.dumps(settings.flat()))
        # The default of a setting without effect here may have changed since the run began.
        unused = ineffective(settings, atari_game_of(settings.env) is not None).keys()
        for name in sorted(ours.keys() - _MAY_DIFFER - unused):
            if theirs.get(name) != ours[name]:
                raise ConfigError(f"{run} was trained with {name} {theirs.get(name)}, not {ours[name]}; "
                                  "give another --out")
        if finished(run, settings):
            return
    print("training", run, flush=True)
    often = min(10.0, settings.run.minutes / 3 if settings.run.minutes else 10.0)
    if checkpoint.saved(run / "checkpoints"):
        ga3c.train(resume=run, quiet=True, minutes=settings.run.minutes, steps=settings.run.steps)
    else:
        if run.exists():  # without a checkpoint it cannot be resumed; nothing is deleted
            names = (run.with_name(f"{run.name}.broken{number}") for number in range(1, 1000))
            run.rename(next(name for name in names if not name.exists()))
        ga3c.train(settings.changed(run_dir=str(run), checkpoint_minutes=often), quiet=True)
    if not finished(run, settings):
        raise SystemExit(f"{run} was interrupted; repeat the command to continue it")


def train_all(wanted: Sequence[tuple[Path, Settings]], then: Callable[[int], None]) -> list[str]:
    """Trains the runs one after the other and calls `then` with the index of each. Returns the failures, a line each.

    Raises ConfigError if another process trains a run; SystemExit after an interrupt.
    """
    for run, _ in wanted:
        if run.exists():
            os.close(lock_directory(run))  # raises if a process trains in it
    failures = []
    for number, (run, settings) in enumerate(wanted):
        try:
            train(run, settings)
            then(number)
        except (ConfigError, ga3c.CommandFailed) as failure:
            failures.append(f"{run}: {failure}")
    return failures


def run_numbers(run: Path, goal: float | None) -> dict[str, Any]:
    """Returns the numbers of a run; {} if no agent has played.

    workers: N_A/N_P/N_T at the end. score: mean of the last hundred episodes, at the end. best: the highest such mean,
    from the hundredth episode on. minutes_to_paper, frames_to_paper: until that mean first reached `goal`, the paper's
    score of the game.
    """
    rows = reader.lasting([row for row in reader.rows(run).new() if row["agents"] > 0])
    if not rows:
        return {}
    minutes, steps, score, lag = (
        reader.column(rows, name) for name in ("time", "agent_steps", "score_mean", "lag_mean"))
    minutes /= 60
    whole = np.where(reader.column(rows, "episodes") >= 100, score, np.nan)  # the mean of fewer episodes is too noisy
    there = np.flatnonzero(whole >= (np.inf if goal is None else goal))  # NaN >= goal is False

    def known(number: float) -> float | None:
        return round(float(number), 2) if np.isfinite(number) else None

    return {"minutes": known(minutes[-1]), "agent_steps": int(steps[-1]), "frames": int(rows[-1]["frames"]),
            "steps_per_second": known((steps[-1] - steps[0]) / max(60 * (minutes[-1] - minutes[0]), 1.0)),
            "lag": known(float(np.nanmean(lag))) if np.isfinite(lag).any() else None,
            "workers": counts_name([rows[-1][kind] for kind in ("agents", "predictors", "trainers")]),
            "score": known(score[-1]), "best": known(float(np.nanmax(whole))) if np.isfinite(whole).any() else None,
            "minutes_to_paper": known(minutes[there[0]]) if len(there) else None,
            "frames_to_paper": int(rows[there[0]]["frames"]) if len(there) else None}


def curve(run: Path, points: int = 100) -> dict[str, list[float]]:
    """Returns the run's score (mean of the last hundred episodes) at about `points` equally spaced agent steps.

    agent_steps, minutes, score: lists of the same length; empty if no episode has ended.
    """
    rows = [row for row in reader.lasting(reader.rows(run).new()) if row["score_mean"] is not None]
    if not rows:
        return {"agent_steps": [], "minutes": [], "score": []}
    steps, seconds, score = (reader.column(rows, name) for name in ("agent_steps", "time", "score_mean"))
    kept = np.unique(np.searchsorted(steps, np.linspace(steps[0], steps[-1], points)))
    return {"agent_steps": [int(number) for number in steps[kept]],
            "minutes": [round(float(number), 2) for number in seconds[kept] / 60],
            "score": [round(float(number), 2) for number in score[kept]]}


def points(curve: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """Converts the points of a `curve` to rows of metrics."""
    return [{"agent_steps": steps, "time": 60 * minutes, "score_mean": score} for steps, minutes, score
            in zip(curve["agent_steps"], curve["minutes"], curve["score"], strict=True)]


# ------------------------------------------------------------------------------------------ speed

def speed(settings: Settings, seconds: float) -> dict[str, float | None]:
    """Runs the service and returns its agent steps/s and means of metrics, over the last `seconds` of the run.

    If no update comes before those seconds, the run is repeated with twice the time before them. The value of a column
    that the run did not measure is None. Raises ConfigError; CommandFailed; KeyboardInterrupt after an interrupt;
    SystemExit if the seconds are too few or no update comes.
    """
    # An Atari environment takes 10 ms of a core to start. Batches and queues then need time to become steady.
    environments = settings.agent_count * settings.agents.envs_per_agent
    before = seconds / 2 + 0.01 * environments / usable_cores()
    while True:
        late = [row for row in _rows(settings, before + seconds) if row["time"] >= before]
        if len(late) < _LEAST_ROWS:
            raise SystemExit(f"{seconds:g} seconds are too few rows; give more --seconds")
        if late[0]["trainings"]:
            break
        if before > _LONGEST_BEGINNING:
            raise SystemExit(f"no update in the first {before:.0f} seconds of a run; give smaller batches")
        before *= 2
    late = [row for row in late if row["agents"]]
    names = ("pps", "tps", "prediction_batch", "training_queue", "prediction_queue", "lag_mean", "cpu_agents",
             "cpu_server", "cpu_machine")
    columns = {name: reader.column(late, name) for name in names}
    rate = float(np.ptp(reader.column(late, "agent_steps")) / np.ptp(reader.column(late, "time")))
    if not rate:
        raise SystemExit(f"no update in {seconds:g} seconds of a run; give more --seconds, or smaller batches")
    return {"steps_per_second": rate,
            **{name: float(np.nanmean(values)) if np.isfinite(values).any() else None
               for name, values in columns.items()}}


def _rows(settings: Settings, seconds: float) -> list[dict[str, Any]]:
    """Makes a run of `seconds` and returns its rows. Raises ConfigError, CommandFailed, KeyboardInterrupt."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        made = settings.changed(run_dir=str(run), minutes=seconds / 60, tensorboard=False)
        ga3c.train(made, quiet=True)
        if not reached(run, made):
            raise KeyboardInterrupt
        return reader.rows(run).new()


def digest(text: str) -> str:
    """Returns twelve characters that differ for other texts."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def machine() -> dict[str, Any]:
    """Returns the common conditions of all measurements of a call: processor, cores, version, commit.

    The commit of a tree with other changes, which ends in +, has these changes' digest behind it.
    """
    found = {name: versions()[name] for name in ("processor", "cores", "ga3c", "commit")}
    if str(found["commit"]).endswith("+"):
        changes = subprocess.run(["git", "diff", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True,
                                 errors="replace", check=False).stdout
        found["commit"] = f"{found['commit']}{digest(changes)}"
    return found


def same(one: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    """Says whether a measurement was made under the conditions. A condition that it did not record counts as None."""
    return all(one.get(name) == value for name, value in conditions.items())


def completed(log: Path, wanted: Sequence[Mapping[str, Any]],
              measure: Callable[[Mapping[str, Any]], Mapping[str, Any]],
              line_of: Callable[[Mapping[str, Any]], str]) -> list[dict[str, Any]]:
    """Returns the measurements under all conditions in `wanted`, in their order.

    Measurements missing in the file `log` are made by `measure`, appended to it and printed by `line_of`. Conditions
    are plain JSON values and differ from each other.
    """
    found = reader.Follower(log).new() if log.exists() else []
    for conditions in random.sample(wanted, len(wanted)):  # random: a slowing machine must not look like an effect
        if not any(same(one, conditions) for one in found):
            found.append({**conditions, **measure(conditions)})
            torn = log.exists() and not log.read_bytes().endswith(b"\n")  # for example after a full disk
            with open(log, "a", encoding="utf-8") as file:
                file.write("\n" * torn + json.dumps(found[-1]) + "\n")
            print(line_of(found[-1]), flush=True)
    return [one for conditions in wanted for one in found if same(one, conditions)]
