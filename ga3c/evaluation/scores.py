"""How well a trained policy plays: episodes by the paper's protocol, raw scores, and what they come to.

Episode i has an environment, a seed and a generator of actions of its own, all drawn from (seed, i), and is played to
its end. So as many episodes count as were asked for, the long ones too, and the same seed plays the same episodes: the
batch of a prediction always has one row for each environment, those without an episode included, since arithmetic may
round differently in a batch of another size.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ga3c.envs.atari import atari_id
from ga3c.envs.base import EnvSpec
from ga3c.evaluation.episodes import Protocol, playing
from ga3c.evaluation.policy import Trained
from ga3c.runs.directory import Log
from ga3c.settings.schema import Settings

Predict = Callable[[NDArray], tuple[NDArray[np.float32], NDArray[np.float32]]]
RESAMPLES = 2000  # of the bootstrap


class Played(NamedTuple):
    """Raw scores (episodes,) float64 and lengths (episodes,) int64 in agent steps, in the order of the seeds."""

    scores: NDArray[np.float64]
    lengths: NDArray[np.int64]


def play_episodes(predict: Predict, spec: EnvSpec, settings: Settings, protocol: Protocol, processes: int = 1,
                  on_end: Callable[[], object] = lambda: None,
                  watch: Callable[[NDArray], object] = lambda observation: None) -> Played:
    """Plays the protocol's episodes of `settings.env.game`, the world of `spec`; `on_end` is called after each, `watch`
    with each observation (*shape) of the first.

    A lost life ends nothing here. With several `processes` environments step beside each other; scores are the same.
    Raises what a world raises, and OSError if a process is ended by others.
    """
    settings = settings.changed(**{"life_loss": False})
    left, waiting = protocol.episodes, iter(range(protocol.episodes))
    scores, lengths = np.zeros(left), np.zeros(left, np.int64)
    policy = np.zeros((protocol.n_rows, spec.n_actions), np.float32)
    begin = {row: next(waiting) for row in range(protocol.n_rows)}
    under_way = dict(begin)
    with playing(settings, protocol, processes) as turn:
        while left:
            observation, over = turn(policy, begin)
            begin = {}
            for row, score, length in over:
                scores[under_way[row]], lengths[under_way[row]] = score, length
                left -= 1
                on_end()
                episode = next(waiting, None)
                if episode is not None:
                    begin[row] = under_way[row] = episode
            if not lengths[0]:  # what is shown afterwards is the next episode's
                watch(observation[0])
            policy, _ = predict(observation)
    return Played(scores, lengths)


# ------------------------------------------------------------------------------------------------ what it comes to

def interquartile_mean(scores: NDArray[np.float64]) -> float:
    """Mean of what is left when a quarter (rounded down) is cut off at each end (Agarwal et al., NeurIPS 2021)."""
    cut = len(scores) // 4
    return float(np.sort(scores)[cut:len(scores) - cut].mean())


def bootstrap_interval(scores: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], float],
                       seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap: the middle 95 % of `statistic` over resamples of `scores`, the same for the same seed."""
    rng = np.random.default_rng(seed)
    drawn = [statistic(scores[rng.integers(len(scores), size=len(scores))]) for _ in range(RESAMPLES)]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def summarise(played: Played, game: str) -> dict[str, Any]:
    """Statistics of an evaluation as plain JSON values; `human_normalised` of the mean, where `game` has a reference.

    0 is random play and 1 the human tester of the reference table, `atari_scores.yaml`.
    """
    scores = played.scores

    def mean(some: NDArray[np.float64]) -> float:
        return float(some.mean())

    summary: dict[str, Any] = {
        "mean": mean(scores), "mean_interval": bootstrap_interval(scores, mean),
        "median": float(np.median(scores)),
        "iqm": interquartile_mean(scores), "iqm_interval": bootstrap_interval(scores, interquartile_mean),
        "min": float(scores.min()), "max": float(scores.max()), "length_mean": float(played.lengths.mean())}
    table = yaml.safe_load((resources.files("ga3c") / "atari_scores.yaml").read_text(encoding="utf-8"))
    if game in table:
        random, human = table[game]
        summary |= {"random": random, "human": human, "human_normalised": (summary["mean"] - random) / (human - random)}
    return summary | {"scores": scores.tolist(), "lengths": played.lengths.tolist()}


def report(trained: Trained, spec: EnvSpec, settings: Settings, protocol: Protocol,
           played: Played) -> dict[str, Any]:
    """Everything there is to say: what was evaluated, how, and `summarise`; the same whenever it is evaluated again."""
    world = ("noop_max", "frame_skip", "sticky_actions", "max_episode_frames", "fire_reset", "full_action_space")
    shown = world if atari_id(settings.env.game) else ()
    return {"checkpoint": str(trained.path), "game": spec.name, "agent_steps": trained.progress.get("agent_steps"),
            "protocol": {**protocol._asdict(), **{name: getattr(settings.env, name) for name in shown}},
            **summarise(played, spec.name)}


def record(trained: Trained, found: dict[str, Any]) -> None:
    """Appends the report as a line to the events.jsonl of the run it belongs to, if any. Raises OSError."""
    if trained.run is not None:
        event = {"time": trained.progress.get("time"), "event": "evaluation", **found,
                 "checkpoint": f"checkpoints/{trained.path.name}"}
        with contextlib.closing(Log(trained.run / "events.jsonl")) as file:
            file.write(json.dumps(event) + "\n")


def table(found: dict[str, Any]) -> RenderableType:
    """The report for people."""
    protocol = dict(found["protocol"])
    how = [f"{protocol.pop('episodes')} episodes", f"seed {protocol.pop('seed')}",
           "likeliest actions" if protocol.pop("greedy") else "sampled actions", f"{protocol.pop('envs')} environments",
           *(f"{name} {value:,}" for name, value in protocol.items())]
    steps = "" if found["agent_steps"] is None else f", {found['agent_steps']:,} agent steps"
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(justify="right", style="bold")
    grid.add_column(style="dim")

    def interval(name: str) -> str:
        low, high = found[name]
        return f"95 % interval {low:,.2f} to {high:,.2f}"

    grid.add_row("Mean", f"{found['mean']:,.2f}", interval("mean_interval"))
    grid.add_row("Median", f"{found['median']:,.2f}")
    grid.add_row("Interquartile mean", f"{found['iqm']:,.2f}", interval("iqm_interval"))
    grid.add_row("Least, most", f"{found['min']:,.2f}", f"{found['max']:,.2f}")
    grid.add_row("Length", f"{found['length_mean']:,.1f}", f"agent steps, {min(found['lengths']):,} to "
                 f"{max(found['lengths']):,}")
    if "human" in found:
        grid.add_row("Human-normalised", f"{100 * found['human_normalised']:,.1f} %",
                     f"random {found['random']:,}, human {found['human']:,}")
    return Group(Text(f"{found['game']}: {found['checkpoint']}{steps}", style="bold"), Text(", ".join(how)), grid)
