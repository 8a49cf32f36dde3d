"""Reproduces the papers' tables and figures of speed, small by default.

    python tools/figures/speed.py workers --out DIR [--agents 1 2 4 8] [--predictors 1 2] [--trainers 1 2]
                                          [--networks small large]
    python tools/figures/speed.py networks --out DIR [--networks small large-4 ...] [--agents 16] [--workers CORES]
    python tools/figures/speed.py environments --out DIR [--environments 8 32 128] [--agents 4]
    python tools/figures/speed.py schedules --out DIR [--agents 1 2 4 8]

workers: GA3C, figures 3 and 4: TPS, cores, training queue and prediction batch by N_A, N_P, N_T and network.
networks: GA3C, table 2: predictions and trainings per second of A3C on processors (`--algorithm a3c-cpu`) and of GA3C.
    `large-2` is the large network with stride 2.
environments: Accelerated Methods, figure 2: agent steps per second over the number of environments, by schedule.
    Updates are made, too, of as many steps in each schedule.
schedules: Daley and Amato, table 1: agent steps per second by schedule of DQN and N_A, of one environment each. The
    device and the environments are real; `tools/bench/artificial.py` has those of the paper.

Each run lasts for seconds, in random order. DIR gets a line for each in NAME.jsonl, and NAME.md and NAME.png. A second
call of the same commit measures only what is missing. FLAGS after `--` go to ga3c-train, for all runs.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from figure_runs import exit_code, markdown

import ga3c
from ga3c.commands.train import parser as train_parser
from ga3c.envs.check import probe
from ga3c.runs import reader
from ga3c.runs.directory import versions
from ga3c.runs.figures import STYLE
from ga3c.settings.flags import settings_of_run
from ga3c.settings.machine import usable_cores
from ga3c.settings.messages import ConfigError
from ga3c.settings.presets import PRESETS
from ga3c.settings.schema import Settings
from ga3c.settings.whole_files import write_whole

# Predictions per second of A3C on 16 cores, and of GA3C with a Titan X beside them (Babaeizadeh et al., 2017, table 2).
PUBLISHED_PPS = {"small": (352, 1361), "large-4": (113, 1271), "large-3": (97, 1206), "large-2": (43, 874),
                 "large-1": (11, 490)}
SCHEDULES = ("synchronous", "alternating", "queues")
FROM_MEMORY = ("standard", "concurrent", "synchronised", "both")
_OWN = ("game", "minutes", "steps", "frames", "episodes", "run_dir", "tensorboard", "dynamic")
_MEANS = ("pps", "tps", "prediction_batch", "training_queue", "lag_mean", "cpu_machine")
_LEAST_ROWS = 3
_LONGEST_BEGINNING = 60.0  # seconds

Wanted = list[tuple[dict[str, Any], Settings]]  # names of a measurement, settings of its run


class Subject(NamedTuple):
    """What can be measured: with which preset, in which runs, and how it is shown.

    table: rows -> rows of the Markdown table. lines: the columns that name a curve. x: the column over which the
    `panels` are drawn, by column and title.
    """

    preset: str
    wanted: Callable[[argparse.Namespace], Wanted]
    table: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
    columns: dict[str, str]
    lines: tuple[str, ...]
    x: str
    panels: dict[str, str]


# ------------------------------------------------------------------------------------------ what is measured

def settings_of(options: argparse.Namespace, **chosen: Any) -> Settings:
    """Returns the settings of a run for speed, with the values `chosen`. Raises ConfigError."""
    # Random steps before learning take longer than a measurement with many environments.
    common = ["--preset", SUBJECTS[options.what].preset, "--random-start-steps", "0"]
    return settings_of_run(train_parser(), [*common, *options.flags], (*_OWN, *chosen), game=options.game,
                           dynamic=False, **chosen)


def workers(options: argparse.Namespace) -> Wanted:
    """Each network with each N_A, N_P and N_T."""
    names = ("network", "agents", "predictors", "trainers")
    chosen = [dict(zip(names, values, strict=True)) for values in itertools.product(
        options.networks, options.agents, options.predictors, options.trainers)]
    return [(line, settings_of(options, **line)) for line in chosen]


def networks(options: argparse.Namespace) -> Wanted:
    """A3C on processors and GA3C, for each network."""
    slots = PRESETS["a3c-cpu"]["slots_per_agent"]  # enough that no worker waits to be counted
    systems = {"GA3C": {"agents": options.agents[0]},
               "A3C": {"agents": options.workers, "algorithm": "a3c-cpu", "slots_per_agent": slots}}
    wanted: Wanted = []
    for network, (system, chosen) in itertools.product(options.networks, systems.items()):
        name, _, stride = network.partition("-")
        chosen = {**chosen, "network": name, **({"large_stride": int(stride)} if stride else {})}
        wanted.append(({"network": network, "system": system}, settings_of(options, **chosen)))
    return wanted


def environments(options: argparse.Namespace) -> Wanted:
    """Each schedule with each number of environments."""
    agents = options.agents[0]
    wanted: Wanted = []
    for schedule, number in itertools.product(SCHEDULES, options.environments):
        if number < 1 or number % agents:
            raise ConfigError(f"--environments: {number} cannot be shared by {agents} agents; a multiple of it can")
        chosen = {"schedule": schedule, "agents": agents, "envs_per_agent": number // agents}
        if schedule == "queues":  # as many steps as an update in rounds
            length = settings_of(options, **chosen).algorithm.rollout_length
            chosen["training_batch_min"] = number * length
        wanted.append(({"schedule": schedule, "environments": number}, settings_of(options, **chosen)))
    return wanted


def schedules(options: argparse.Namespace) -> Wanted:
    """Each schedule of DQN with each N_A. Epochs are short, so that each run has some."""
    wanted: Wanted = []
    for schedule, agents in itertools.product(FROM_MEMORY, options.agents):
        chosen = {"schedule": schedule, "agents": agents, "envs_per_agent": 1, "replay_size": 20_000,
                  "replay_start": 500, "target_steps": 500}
        if agents > 1 or schedule in ("standard", "concurrent"):  # one agent is synchronised anyway
            wanted.append(({"schedule": schedule, "agents": agents}, settings_of(options, **chosen)))
    return wanted


# ------------------------------------------------------------------------------------------ measuring

def speed(settings: Settings, seconds: float) -> dict[str, float | None]:
    """Runs the service and returns its agent steps/s and means of metrics, over the last `seconds` of the run.

    If no update comes before those seconds, the run is repeated with twice the time before them. The value of a column
    that the run did not measure is None. Raises ConfigError; CommandFailed; KeyboardInterrupt after an interrupt;
    SystemExit if the seconds are too few or no update comes.
    """
    # An Atari environment takes 10 ms of a core to start. Batches and queues then need time to become steady.
    before = seconds / 2 + 0.01 * settings.schedule.agents * settings.agents.envs_per_agent / usable_cores()
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
    means = {name: reader.column(late, name) for name in _MEANS}
    rate = float(np.ptp(reader.column(late, "agent_steps")) / np.ptp(reader.column(late, "time")))
    if not rate:
        raise SystemExit(f"no update in {seconds:g} seconds of a run; give more --seconds, or smaller batches")
    return {"steps_per_second": rate, **{name: float(np.nanmean(values)) if np.isfinite(values).any() else None
                                         for name, values in means.items()}}


def _rows(settings: Settings, seconds: float) -> list[dict[str, Any]]:
    """Makes a run of `seconds` and returns its rows. Raises ConfigError, CommandFailed, KeyboardInterrupt."""
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        ga3c.train(settings.changed(run_dir=str(run), minutes=seconds / 60, tensorboard=False), quiet=True)
        rows = reader.rows(run).new()
    if not rows or rows[-1]["time"] < seconds:
        raise KeyboardInterrupt
    return rows


def measured(options: argparse.Namespace, wanted: Wanted) -> list[dict[str, Any]]:
    """Returns the measurements in `wanted`, in their order. Those that the log does not have are made and appended."""
    log = options.out / f"{options.what}.jsonl"
    known = reader.Follower(log).new() if log.exists() else []
    machine = {name: versions()[name] for name in ("processor", "cores", "ga3c", "commit")}
    conditions = [{**names, "game": settings.env.game, "seconds": options.seconds, "flags": options.flags, **machine,
                   "settings": hashlib.sha256(json.dumps(settings.flat()).encode()).hexdigest()[:12]}
                  for names, settings in wanted]

    def lines_of(index: int) -> list[dict[str, Any]]:
        return [line for line in known if {**line, **conditions[index]} == line]

    # In random order: a slowing machine must not look like an effect.
    for index in random.sample(range(len(wanted)), len(wanted)):
        if not lines_of(index):
            line = {**conditions[index], **speed(wanted[index][1], options.seconds)}
            torn = log.exists() and not log.read_bytes().endswith(b"\n")  # for example after a full disk
            with open(log, "a", encoding="utf-8") as file:
                file.write("\n" * torn + json.dumps(line) + "\n")
            known.append(line)
            print(*wanted[index][0].values(), f"{line['steps_per_second']:,.0f} agent steps/s", flush=True)
    return [lines_of(index)[0] for index in range(len(wanted))]


# ------------------------------------------------------------------------------------------ showing

def by_network(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row for each network, with both systems and the paper's."""
    rows = []
    for network in dict.fromkeys(line["network"] for line in lines):
        row: dict[str, Any] = {"network": network}
        for line in lines:
            if line["network"] == network:
                row |= {f"{line['system']} {name}": line[name] for name in ("pps", "tps")}
        if row.get("A3C pps") and row.get("GA3C pps"):
            row["ratio"] = row["GA3C pps"] / row["A3C pps"]
        row["paper A3C"], row["paper GA3C"] = PUBLISHED_PPS[network]
        rows.append({**row, "paper ratio": row["paper GA3C"] / row["paper A3C"]})
    return rows


def draw(subject: Subject, lines: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Draws a curve for each combination of the subject's `lines`, in its panels."""
    import matplotlib
    from matplotlib.figure import Figure
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(subject.panels), 3.2), layout="constrained")
        axes = figure.subplots(1, len(subject.panels), squeeze=False)[0]
        for axis, (column, title) in zip(axes, subject.panels.items(), strict=True):
            curves: dict[str, list[tuple[Any, float]]] = {}
            for line in lines:
                label = ", ".join(str(line[name]) for name in subject.lines)
                value = line[column] if line[column] is not None else np.nan
                curves.setdefault(label, []).append((line[subject.x], value))
            for label, points in curves.items():
                axis.plot(*zip(*points, strict=True), "o-", markersize=3, label=label)
            axis.set(title=title, xlabel=subject.x)
            axis.set_ylim(bottom=0)
        axes[0].legend()
        figure.savefig(file, dpi=150)


SUBJECTS = {
    "workers": Subject("default", workers, list, {
        "network": "{network}", "N_A": "{agents}", "N_P": "{predictors}", "N_T": "{trainers}",
        "agent steps/s": "{steps_per_second:,.0f}", "cores busy": "{cpu_machine:.2f}",
        "training queue": "{training_queue:.1f}", "observations a prediction": "{prediction_batch:.1f}",
        "policy lag": "{lag_mean:.2f}"}, ("network", "predictors", "trainers"), "agents", {
        "steps_per_second": "agent steps a second", "cpu_machine": "cores busy",
        "training_queue": "rollouts that wait", "prediction_batch": "observations a prediction"}),
    "networks": Subject("ga3c", networks, by_network, {
        "network": "{network}", "A3C on processors, PPS": "{A3C pps:,.0f}", "A3C, TPS": "{A3C tps:,.1f}",
        "GA3C, PPS": "{GA3C pps:,.0f}", "GA3C, TPS": "{GA3C tps:,.1f}", "ratio of PPS": "{ratio:.2f}",
        "paper: A3C, PPS": "{paper A3C:,}", "paper: GA3C, PPS": "{paper GA3C:,}",
        "paper: ratio": "{paper ratio:.1f}"}, ("system",), "network", {
        "pps": "predictions a second", "tps": "trainings a second"}),
    "environments": Subject("accelerated-a2c", environments, list, {
        "schedule": "{schedule}", "environments": "{environments}", "agent steps/s": "{steps_per_second:,.0f}",
        "observations a prediction": "{prediction_batch:.1f}", "policy lag": "{lag_mean:.2f}",
        "cores busy": "{cpu_machine:.2f}"}, ("schedule",), "environments", {
        "steps_per_second": "agent steps a second", "cpu_machine": "cores busy"}),
    "schedules": Subject("fast-dqn", schedules, list, {
        "schedule": "{schedule}", "N_A": "{agents}", "agent steps/s": "{steps_per_second:,.0f}",
        "observations a prediction": "{prediction_batch:.1f}", "cores busy": "{cpu_machine:.2f}"},
        ("schedule",), "agents", {
        "steps_per_second": "agent steps a second", "cpu_machine": "cores busy"})}


def make(options: argparse.Namespace) -> list[str]:
    """Measures what is missing and shows everything. Returns []. Raises like `speed`."""
    subject = SUBJECTS[options.what]
    wanted = subject.wanted(options)
    probe(wanted[0][1])
    options.out.mkdir(parents=True, exist_ok=True)
    lines = measured(options, wanted)
    text = markdown(subject.table(lines), subject.columns)
    write_whole(options.out / f"{options.what}.md", text)
    draw(subject, lines, options.out / f"{options.what}.png")
    print(text, end="")
    return []


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parts = parser.add_subparsers(dest="what", required=True, metavar="|".join(SUBJECTS))
    for name, agents, network in (("workers", [1, 2, 4, 8], ["small", "large"]), ("networks", [16], [*PUBLISHED_PPS]),
                                  ("environments", [2 * usable_cores()], None), ("schedules", [1, 2, 4, 8], None)):
        part = parts.add_parser(name, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        part.add_argument("--out", type=Path, metavar="DIR", required=True, help="of what is measured and drawn")
        part.add_argument("--game", default="Pong", help="of all runs")
        part.add_argument("--seconds", type=float, default=10.0, help="of each run that count")
        part.add_argument("--agents", nargs="+" if name in ("workers", "schedules") else 1, type=int, metavar="N",
                          default=agents, help="N_A")
        if network:
            part.add_argument("--networks", nargs="+", metavar="NETWORK", default=network, help="of both systems",
                              choices=PUBLISHED_PPS if name == "networks" else None)
        if name == "workers":
            part.add_argument("--predictors", nargs="+", type=int, metavar="N", default=[1, 2], help="N_P")
            part.add_argument("--trainers", nargs="+", type=int, metavar="N", default=[1, 2], help="N_T")
        elif name == "networks":
            part.add_argument("--workers", type=int, metavar="N", default=usable_cores(), help="of A3C")
        elif name == "environments":
            part.add_argument("--environments", nargs="+", type=int, metavar="N", default=[8, 32, 128], help="in all")
    argv = [*sys.argv[1:], "--"]
    own, flags = argv[:argv.index("--")], argv[argv.index("--") + 1:-1]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the current run must end in order
    options = parser.parse_args(own, argparse.Namespace(flags=flags))
    return exit_code("speed", lambda: make(options))


if __name__ == "__main__":
    sys.exit(main())
