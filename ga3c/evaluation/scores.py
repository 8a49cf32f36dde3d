"""The results of an evaluation: statistics of the raw scores, a report, a table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from importlib import resources
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ga3c.envs.atari_games import atari_game_of
from ga3c.envs.base import EnvSpec
from ga3c.evaluation.episodes import Limits, Played, Protocol
from ga3c.evaluation.policy import Trained
from ga3c.runs.directory import Log
from ga3c.settings.schema import EnvSettings, Settings

RESAMPLES = 2000  # of the bootstrap


def interquartile_mean(scores: NDArray[np.float64]) -> float:
    """Returns the mean without the lowest and highest quarters, each rounded down (Agarwal et al., NeurIPS 2021)."""
    cut = len(scores) // 4
    return float(np.sort(scores)[cut:len(scores) - cut].mean())


def bootstrap_interval(scores: NDArray[np.float64],
                       statistic: Callable[[NDArray[np.float64]], float]) -> tuple[float, float]:
    """Returns the percentile bootstrap interval: the middle 95 % of `statistic` over `RESAMPLES` resamples."""
    rng = np.random.default_rng(0)
    drawn = [statistic(scores[rng.integers(len(scores), size=len(scores))]) for _ in range(RESAMPLES)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def summarise(played: Played, game: str) -> dict[str, Any]:
    """Returns statistics of an evaluation as plain JSON values. `cut`: numbers, from 0, of episodes cut short.

    `human_normalised` scales the mean: 0 is random play, 1 the human tester. It is there if `game` is in the reference
    table `atari_scores.yaml`.
    """
    scores = played.scores
    summary: dict[str, Any] = {
        "mean": float(scores.mean()), "mean_interval": bootstrap_interval(scores, np.mean),
        "median": float(np.median(scores)),
        "iqm": interquartile_mean(scores), "iqm_interval": bootstrap_interval(scores, interquartile_mean),
        "min": float(scores.min()), "max": float(scores.max()), "length_mean": float(played.lengths.mean())}
    references = reference_scores()
    if game in references:
        random, human = references[game]
        summary |= {"random": random, "human": human, "human_normalised": (summary["mean"] - random) / (human - random)}
    return summary | {"scores": scores.tolist(), "lengths": played.lengths.tolist(), "cut": list(played.cut)}


def reference_scores() -> dict[str, tuple[float, float]]:
    """Returns, for each Atari game, the scores of random play and of the human tester."""
    table = yaml.safe_load((resources.files("ga3c.evaluation") / "atari_scores.yaml").read_text(encoding="utf-8"))
    return {game: (random, human) for game, (random, human) in table.items()}


def report(trained: Trained, spec: EnvSpec, settings: Settings, protocol: Protocol, limits: Limits,
           played: Played) -> dict[str, Any]:
    """Returns what was evaluated, how, and the statistics of `summarise`, as plain JSON values.

    The same evaluation gives the same report, unless the limit in minutes cut an episode short.
    """
    as_tested = settings.env.mode is None and settings.env.difficulty is None  # what the human tester played
    return {"checkpoint": str(trained.path), "game": spec.name, "agent_steps": trained.progress.get("agent_steps"),
            "protocol": {**protocol._asdict(), **_atari_protocol(settings.env)},
            "limits": limits._asdict(), **summarise(played, spec.name if as_tested else "")}


def _atari_protocol(env: EnvSettings) -> dict[str, Any]:
    """Returns how the emulator played; {} for other games. A default mode or difficulty is left out."""
    game = atari_game_of(env)
    if game is None:
        return {}
    chosen = {"mode": env.mode, "difficulty": env.difficulty}
    return {"noop_max": env.noop_max, "frame_skip": game.frame_skip_shown, "sticky_actions": game.sticky_actions,
            "max_episode_frames": env.max_episode_frames, "fire_reset": env.fire_reset,
            "full_action_space": env.full_action_space,
            **{name: value for name, value in chosen.items() if value is not None}}


def record(trained: Trained, results: dict[str, Any]) -> None:
    """Appends the report to events.jsonl of the policy's run, if it has one. Raises OSError."""
    if trained.run is not None:
        event = {"time": trained.progress.get("time"), "event": "evaluation", **results,
                 "checkpoint": f"checkpoints/{trained.path.name}"}
        with contextlib.closing(Log(trained.run / "events.jsonl")) as file:
            file.write(json.dumps(event) + "\n")
            if file.lost:
                raise file.last_error


def table(results: dict[str, Any]) -> RenderableType:
    """Returns the report as text and a table for the terminal."""
    protocol = dict(results["protocol"])
    how = [f"{protocol.pop('episodes')} episodes", f"seed {protocol.pop('seed')}",
           "likeliest actions" if protocol.pop("greedy") else "sampled actions", f"{protocol.pop('envs')} environments",
           *(f"{name} {value if isinstance(value, str) else f'{value:,}'}" for name, value in protocol.items())]
    steps = "" if results["agent_steps"] is None else f", {results['agent_steps']:,} agent steps"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(justify="right", style="bold")
    grid.add_column(style="dim")

    def interval(name: str) -> str:
        low, high = results[name]
        return f"95 % interval {low:,.2f} to {high:,.2f}"

    grid.add_row("Mean", f"{results['mean']:,.2f}", interval("mean_interval"))
    grid.add_row("Median", f"{results['median']:,.2f}")
    grid.add_row("Interquartile mean", f"{results['iqm']:,.2f}", interval("iqm_interval"))
    grid.add_row("Least, most", f"{results['min']:,.2f}", f"{results['max']:,.2f}")
    grid.add_row("Length", f"{results['length_mean']:,.1f}", f"agent steps, {min(results['lengths']):,} to "
                 f"{max(results['lengths']):,}")
    if results["cut"]:
        most = results["limits"]["steps"]
        minutes = results["limits"]["minutes"]
        grid.add_row("Cut short", f"{len(results['cut']):,}", f"of them, at {most:,} agent steps or {minutes:g} min")
    if "human" in results:
        grid.add_row("Human-normalised", f"{100 * results['human_normalised']:,.1f} %",
                     f"random {results['random']:,}, human {results['human']:,}")
    return Group(Text(f"{results['game']}: {results['checkpoint']}{steps}", style="bold"), Text(", ".join(how)), grid)
