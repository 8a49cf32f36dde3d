"""Reproduces the GA3C paper's speed figures: 3 (TPS by N_A, N_P, N_T and network) and 4 (queue and batch).

    python tools/figures/speed_figures.py --out DIR [--game Pong] [--agents 1 2 4 8] [--predictors 1 2] [--trainers 1 2]
                                          [--networks small large] [--seconds 20] [-- any flags of ga3c-train]

The tool runs the service once for every combination, in random order. It appends a line to DIR/speed.jsonl for each. A
second call with the same length, commit and sizes of rollouts and updates measures only what is missing. Then the tool
draws DIR/speed.png: share of the best rate, cores in use, training queue, prediction batch.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from figure_runs import completed, exit_code, machine, speed

from ga3c.commands.train import parser as train_parser
from ga3c.envs.check import probe
from ga3c.settings.flags import settings_of_run
from ga3c.settings.machine import usable_cores
from ga3c.settings.schema import Settings

_OWN = ("game", "network", "agents", "predictors", "trainers", "minutes", "run_dir", "dynamic", "tensorboard")


def sizes(settings: Settings) -> list[int]:
    """Returns the environments per agent, the steps of a rollout and the least steps of an update."""
    return [settings.agents.envs_per_agent, settings.algorithm.rollout_length, settings.batching.training_batch_min]


def settings_of(conditions: Mapping[str, Any]) -> Settings:
    """Returns the settings of a measurement. Raises ConfigError."""
    chosen = {name: conditions[name] for name in ("game", "network", "agents", "predictors", "trainers")}
    return settings_of_run(train_parser(), conditions["flags"], _OWN, **chosen, dynamic=False)


def line_of(one: Mapping[str, Any]) -> str:
    """Formats a measurement as a line."""
    counts = "/".join(str(one[kind]) for kind in ("agents", "predictors", "trainers"))
    return f"{one['network']} {counts}: {one['steps_per_second']:,.0f} agent steps/s"


def draw(found: list[dict[str, Any]], file: Path) -> None:
    """Draws four panels over N_A, one line for each N_P/N_T and network."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), constrained_layout=True, sharex=True)
    best = {network: max(one["steps_per_second"] for one in found if one["network"] == network)
            for network in dict.fromkeys(one["network"] for one in found)}
    lines = dict.fromkeys((one["network"], one["predictors"], one["trainers"]) for one in found)
    for number, (network, predictors, trainers) in enumerate(lines):
        points = sorted((one for one in found if (one["network"], one["predictors"], one["trainers"])
                         == (network, predictors, trainers)), key=lambda one: one["agents"])
        style = {"marker": "o", "markersize": 4, "color": f"C{number % 10}",
                 "linestyle": "-" if network == next(iter(best)) else "--",
                 "label": f"{network}, N_P {predictors}, N_T {trainers}"}
        agents = [one["agents"] for one in points]
        for axis, values in zip(axes.flat, (
                [one["steps_per_second"] / best[network] for one in points], [one["cpu_machine"] for one in points],
                [one["training_queue"] for one in points], [one["prediction_batch"] for one in points]), strict=True):
            axis.plot(agents, values, **style)
    top = ", ".join(f"{network} {speed:,.0f}" for network, speed in best.items())
    for axis, title in zip(axes.flat, (
            f"Samples trained a second, 1 = best ({top})", f"Cores in use, of {usable_cores()}",
            "Training queue, rollouts waiting", "Prediction batch, observations"), strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted({one["agents"] for one in found}), sorted({one["agents"] for one in found}))
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    for axis in axes[1]:
        axis.set_xlabel("agents, N_A")
    axes[0, 0].legend(fontsize=7, ncols=len(best))
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def make(options: argparse.Namespace) -> list[str]:
    """Makes the missing measurements and draws the figure. Returns []. Raises ConfigError, CommandFailed, OSError."""
    settings = settings_of_run(train_parser(), options.flags, _OWN, game=options.game)
    kind = {"flags": options.flags, "seconds": options.seconds, **machine(), "sizes": sizes(settings)}
    wanted = [{"game": options.game, "network": network, "agents": agents, "predictors": predictors,
               "trainers": trainers, **kind} for network, agents, predictors, trainers in itertools.product(
                   options.networks, options.agents, options.predictors, options.trainers)]
    runs = [settings_of(one) for one in wanted]  # finds a mistake in the last one before the first is measured
    probe(runs[0])
    options.out.mkdir(parents=True, exist_ok=True)
    found = completed(options.out / "speed.jsonl", wanted, lambda one: speed(settings_of(one), one["seconds"]), line_of)
    draw(found, options.out / "speed.png")
    print(f"drawn: {options.out / 'speed.png'}")
    return []


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="of what is measured and drawn")
    parser.add_argument("--game", default="Pong")
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 2, 4, 8], metavar="N")
    parser.add_argument("--predictors", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--trainers", type=int, nargs="+", default=[1, 2], metavar="N")
    parser.add_argument("--networks", nargs="+", default=["small", "large"], metavar="NETWORK")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run that count [20]")
    parser.add_argument("flags", nargs="*", metavar="-- FLAGS", help="of ga3c-train, after --")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the current run must end in order
    return exit_code("speed_figures", lambda: make(options))


if __name__ == "__main__":
    sys.exit(main())
