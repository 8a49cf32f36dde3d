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
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ga3c.commands.entry import quiet
from ga3c.commands.train import parser as train_parser
from ga3c.envs.check import probe
from ga3c.runs.reader import Follower, column, rows
from ga3c.settings.flags import settings_of_run
from ga3c.settings.machine import before_tensorflow, usable_cores
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

_KEY = ("game", "network", "agents", "predictors", "trainers", "flags", "seconds", "ga3c", "commit", "sizes")
_OWN = ("game", "network", "agents", "predictors", "trainers", "minutes", "run_dir", "dynamic", "tensorboard")


def key_of(one: dict[str, Any]) -> tuple[Any, ...]:
    """The conditions of a measurement; None where an earlier version did not record one."""
    return tuple(one.get(name) for name in _KEY)


def sizes(settings: Settings) -> list[int]:
    """Environments per agent, steps of a rollout, least steps of an update."""
    return [settings.agents.envs_per_agent, settings.algorithm.rollout_length, settings.batching.training_batch_min]


def measure(key: tuple[Any, ...], envs_per_agent: int) -> dict[str, Any]:
    """One run of the service under the conditions `key`: means over its last seconds, when all agents play."""
    game, network, agents, predictors, trainers, flags, seconds, *_ = key
    # An Atari environment takes 10 ms of a core to begin; then a while until batches and queues are what they stay.
    whole = seconds * 1.5 + 0.01 * agents * envs_per_agent / usable_cores()
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        command = [sys.executable, "-m", "ga3c", "--game", game, "--network", network, "--no-dynamic", "--agents",
                   str(agents), "--predictors", str(predictors), "--trainers", str(trainers), "--minutes",
                   str(whole / 60), "--run-dir", str(run), "--no-tensorboard", *flags]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"speed_figures: {' '.join(command)} ended with {done.returncode}: {done.stdout[-500:]}")
        played = [row for row in rows(run).new() if row["agents"]]
    late = [row for row in played if row["time"] >= whole - seconds]
    if len(late) < 3:
        raise SystemExit(f"speed_figures: {seconds:g} seconds are too few rows; give more --seconds")
    names = ("tps", "prediction_batch", "training_queue", "prediction_queue", "lag_mean", "cpu_agents", "cpu_server",
             "cpu_machine")
    return {**dict(zip(_KEY, key, strict=True)),
            "steps_per_second": float(np.ptp(column(late, "agent_steps")) / np.ptp(column(late, "time"))),
            **{name: float(np.nanmean(column(late, name))) for name in names}}


def draw(found: list[dict[str, Any]], file: Path) -> None:
    """Four panels over N_A, one line for each N_P/N_T and network."""
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


def main() -> int:
    """The command; returns its exit code."""
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
    try:
        settings = settings_of_run(train_parser(), options.flags, _OWN, game=options.game)
        probe(settings)
    except ConfigError as error:
        print(f"speed_figures: {error}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    log = options.out / "speed.jsonl"
    before_tensorflow()
    with quiet(False):
        from ga3c.runs.directory import versions  # brings TensorFlow, for which a mistake in the flags need not wait
    machine = versions()
    kind = (options.flags, options.seconds, machine["ga3c"], machine["commit"], sizes(settings))
    wanted = [(options.game, network, *counts, *kind) for network, *counts in itertools.product(
        options.networks, options.agents, options.predictors, options.trainers)]
    found = Follower(log).new() if log.exists() else []
    for key in random.sample(wanted, len(wanted)):  # else a machine that becomes slower would look like an effect
        if key not in map(key_of, found):
            found.append({**measure(key, settings.agents.envs_per_agent),
                          **{name: machine[name] for name in ("processor", "cores")}})
            with open(log, "a", encoding="utf-8") as file:
                file.write(json.dumps(found[-1]) + "\n")
            print(f"{key[1]} {'/'.join(map(str, key[2:5]))}: {found[-1]['steps_per_second']:,.0f} agent steps/s",
                  flush=True)
    drawn = [one for one in found if key_of(one) in wanted]
    draw(sorted(drawn, key=lambda one: wanted.index(key_of(one))), options.out / "speed.png")
    print(f"drawn: {options.out / 'speed.png'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
