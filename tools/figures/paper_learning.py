"""The papers' tables and figures of learning; the command is `papers.py`.

Accelerated Methods (Stooke and Abbeel, 2018), figures 4 and 9; CuLE (Dalton et al., 2020), table 3.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from figure_output import Column, markdown, write
from figure_runs import Variant, curve, run_name, run_numbers, settings_for, shared, train_all

from ga3c.runs import reader
from ga3c.runs.figures import Group, figure_by_game, figure_of, grouped
from ga3c.settings.messages import ConfigError

# K,N,SPU -> minutes and million frames to a Pong score of 18, with 120 environments (Dalton et al., 2020, table 3).
PUBLISHED_PONG = {"1,5,5": (11.2, 2.4), "5,5,1": (14.5, 2.6), "20,20,1": (5.0, 0.8)}
PONG_GOAL = 18.0
_TITLE = "K,N,SPU = "

NORMS = ("weight-norm", "gradient-norm", "step-norm")


def learned(options: argparse.Namespace, variants: Sequence[Variant], common: Sequence[str],
            show: Callable[[dict[str, dict[str, list[Path]]]], str]) -> list[str]:
    """Trains a run for each game, seed and variant, and calls `show` after each run. Returns the failures.

    show: writes the table and figure of the runs, by game and label, and returns the table. Raises like `train_all`.
    """
    minutes, steps = (options.minutes, options.steps) if options.minutes or options.steps else options.budget
    wanted = [(game, variant.label, options.out / options.what / run_name(variant, game, seed),
               settings_for(variant, game, seed, [*common, *options.flags], minutes, steps))
              for seed in options.seeds for game in options.games for variant in variants]
    runs: dict[str, dict[str, list[Path]]] = {}
    text = "nothing to show"

    def trained(number: int) -> None:
        nonlocal text
        game, label, run, _ = wanted[number]
        runs.setdefault(game, {}).setdefault(label, []).append(run)
        text = show(runs)

    failures = train_all([(run, settings) for *_, run, settings in wanted], trained)
    print(text)
    return failures


def listed(runs: Mapping[str, Mapping[str, Sequence[Path]]], goal: float | None = None) -> list[dict[str, Any]]:
    """Returns a row for each run."""
    return [{"game": game, "label": label, "seed": reader.settings(run)["seed"], "run": str(run),
             **run_numbers(run, goal)}
            for game, by_label in runs.items() for label, of_label in by_label.items() for run in of_label]


LEARNED = (Column("game", "game"), Column("", "label"), Column("seed", "seed"),
           Column("agent steps", "agent_steps", "{:,}"), Column("minutes", "minutes", "{:.2f}"),
           Column("agent steps/s", "steps_per_second", "{:,.0f}"),
           Column("score, last 100 episodes", "score", "{:,.2f}"))


def groups_of(runs: Mapping[str, Mapping[str, Sequence[Path]]]) -> dict[str, list[Group]]:
    """Returns the runs of each game as curves with the labels of their variants."""
    return {game: [grouped(of_label, [label])[0] for label, of_label in by_label.items()]
            for game, by_label in runs.items()}


def curves(runs: Mapping[str, Mapping[str, Sequence[Path]]]) -> list[Group]:
    """Returns the runs of all games as curves. With several games, labels include the game."""
    return [group._replace(label=f"{game} {group.label}") if len(runs) > 1 else group
            for game, groups in groups_of(runs).items() for group in groups]


def batch(options: argparse.Namespace) -> list[str]:
    """A2C, or what the preset names, with each number of environments. The preset says what grows with them."""
    def variant(number: int) -> Variant:
        return Variant(f"{number} environments", f"environments{number}", (
            "--agents", str(options.agents), "--envs-per-agent", str(shared(number, options.agents))))

    def show(runs: dict[str, dict[str, list[Path]]]) -> str:
        rows = listed(runs)
        for row in rows:
            row["curve"] = curve(Path(row["run"]))
        text = markdown(rows, LEARNED)
        write(options, rows, text, figure_by_game(groups_of(runs), "score-steps"))
        return text

    return learned(options, [variant(number) for number in options.environments],
                   ("--preset", options.preset, "--network", "auto"), show)


def norms(options: argparse.Namespace) -> list[str]:
    """A2C with each optimizer."""
    variants = [Variant(name, flag, ("--optimizer", flag)) for name, flag in (("RMSProp", "rmsprop"), ("Adam", "adam"))]

    def show(runs: dict[str, dict[str, list[Path]]]) -> str:
        rows, columns = listed(runs), list(LEARNED)
        for panel in NORMS:
            name = panel.replace("-", "_")
            columns += [Column(f"{panel.replace('-', ' ')}, median", name, "{:.4g}"),
                        Column("last", f"{name}_last", "{:.4g}")]
            for row in rows:
                known = reader.column(reader.lasting(reader.rows(Path(row["run"])).new()), name)
                known = known[np.isfinite(known)]
                if len(known):
                    row |= {name: float(np.median(known)), f"{name}_last": float(known[-1])}
        text = markdown(rows, columns)
        write(options, rows, text, figure_of(curves(runs), NORMS, 3, 30.0))
        return text

    return learned(options, variants, ("--preset", options.preset, "--norms"), show)


def cule(options: argparse.Namespace) -> list[str]:
    """A2C with V-trace and each row's groups, rollout length and steps per update."""
    variants = []
    for row in options.rows:
        groups, length, steps = map(int, row.split(","))
        if options.agents % groups:
            raise ConfigError(f"--agents: {options.agents} agents cannot be shared by the {groups} groups of row {row}")
        variants.append(Variant(f"{_TITLE}{row}", row.replace(",", "-"), (
            "--agents", str(options.agents), "--envs-per-agent", str(shared(options.environments, options.agents)),
            "--update-groups", str(groups), "--rollout-length", str(length), "--steps-per-update", str(steps))))

    def show(runs: dict[str, dict[str, list[Path]]]) -> str:
        rows = listed(runs, PONG_GOAL)
        for row in rows:
            row["label"] = row["label"].removeprefix(_TITLE)
            groups, length, steps = map(int, row["label"].split(","))
            last = reader.rows(Path(row["run"])).new()[-1]
            trained = last["trainings"] * options.environments / groups * length
            row |= {"uses": trained / last["agent_steps"], "planned": length / (steps * groups),
                    "minutes_to_paper": row["minutes_to_paper"] if row["game"] == "Pong" else None,
                    "frames_to_paper": row["frames_to_paper"] if row["game"] == "Pong" else None}
            if row["game"] == "Pong" and options.environments == 120 and row["label"] in PUBLISHED_PONG:
                row["paper minutes"], row["paper frames"] = PUBLISHED_PONG[row["label"]]
        text = markdown(rows, [
            Column("game", "game"), Column("K,N,SPU", "label"), *LEARNED[2:], Column("policy lag", "lag", "{:.2f}"),
            Column("uses of a step", "uses", "{:.2f}"), Column("planned", "planned", "{:.2f}"),
            Column("minutes to 18", "minutes_to_paper", "{:,.1f}"), Column("frames", "frames_to_paper", "{:,}"),
            Column("paper: minutes", "paper minutes"), Column("million frames", "paper frames")])
        write(options, rows, text, figure_of(curves(runs), ("score-time", "lag", "tps"), 3, 10.0))
        return text

    return learned(options, variants, ("--preset", options.preset), show)
