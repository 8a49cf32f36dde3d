"""The papers' tables and figures of speed; the command is `papers.py`.

GA3C (Babaeizadeh et al., 2017), table 2; Accelerated Methods (Stooke and Abbeel, 2018), figure 2.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from figure_output import Column, markdown, panels, write
from figure_runs import completed, digest, machine, shared, speed

from ga3c.commands.train import parser as train_parser
from ga3c.envs.check import probe
from ga3c.settings.flags import settings_of_run
from ga3c.settings.machine import usable_cores
from ga3c.settings.presets import PRESETS
from ga3c.settings.schema import Settings

# Predictions per second of A3C on 16 cores, and of GA3C with a Titan X beside them (Babaeizadeh et al., 2017, table 2).
PUBLISHED_PPS = {"small": (352, 1361), "large-4": (113, 1271), "large-3": (97, 1206), "large-2": (43, 874),
                 "large-1": (11, 490)}

_A3C_SLOTS = str(PRESETS["a3c-cpu"]["slots_per_agent"])  # enough that no worker waits to be counted
SCHEDULES = ("synchronous", "alternating", "queues")
_OWN = ("game", "minutes", "steps", "frames", "episodes", "run_dir", "tensorboard")


def measured(options: argparse.Namespace, wanted: Sequence[tuple[Mapping[str, Any], Settings]],
             line_of: Callable[[Mapping[str, Any]], str]) -> list[dict[str, Any]]:
    """Returns the measurements of all runs in `wanted`: (names of a measurement, settings). Raises like `speed`."""
    here = machine()
    common = {"seconds": options.seconds, "flags": options.flags, **here}
    whole = [{**names, "game": settings.env.game, **common, "settings": digest(json.dumps(settings.flat()))}
             for names, settings in wanted]
    settings_of = {json.dumps(one): settings for one, (_, settings) in zip(whole, wanted, strict=True)}
    return completed(options.out / f"{options.what}.jsonl", whole,
                     lambda one: speed(settings_of[json.dumps(one)], options.seconds), line_of)


def fixed(options: argparse.Namespace, *flags: str) -> Settings:
    """Returns the settings of a run for speed; `flags` come last. Raises ConfigError."""
    # Random steps before learning take longer than a measurement with many environments.
    common = ["--preset", options.preset, "--no-dynamic", "--random-start-steps", "0"]
    return settings_of_run(train_parser(), [*common, *options.flags, *flags], _OWN, game=options.game)


def table2(options: argparse.Namespace) -> list[str]:
    """A3C on processors and GA3C, for each network."""
    wanted = []
    for network in options.networks:
        name, _, stride = network.partition("-")
        flags = ("--network", name, *(("--large-stride", stride) if stride else ()))
        wanted.append(({"network": network, "system": "GA3C", "agents": options.agents},
                       fixed(options, *flags, "--agents", str(options.agents))))
        wanted.append(({"network": network, "system": "A3C", "agents": options.workers},
                       fixed(options, *flags, "--algorithm", "a3c-cpu", "--agents", str(options.workers),
                             "--slots-per-agent", _A3C_SLOTS)))
    probe(wanted[0][1])
    found = measured(options, wanted, lambda one: f"{one['network']} {one['system']}: {one['pps'] or 0:,.0f} PPS, "
                                                  f"{one['tps'] or 0:,.1f} TPS")
    rows = []
    for network in options.networks:
        by_system = {one["system"]: one for one in found if one["network"] == network}
        row: dict[str, Any] = {"network": network}
        for system, one in by_system.items():
            row |= {f"{system} PPS": one["pps"], f"{system} TPS": one["tps"], f"{system} agents": one["agents"],
                    f"{system} steps": one["steps_per_second"]}
        if len(by_system) == 2 and by_system["A3C"]["pps"]:
            row["ratio"] = by_system["GA3C"]["pps"] / by_system["A3C"]["pps"]
        a3c, ga3c = PUBLISHED_PPS[network]
        rows.append({**row, "paper A3C": a3c, "paper GA3C": ga3c, "paper ratio": ga3c / a3c})
    text = markdown(rows, [
        Column("network", "network"), Column("A3C on processors, PPS", "A3C PPS", "{:,.0f}"),
        Column("TPS", "A3C TPS", "{:,.1f}"), Column("GA3C, PPS", "GA3C PPS", "{:,.0f}"),
        Column("TPS", "GA3C TPS", "{:,.1f}"), Column("ratio of PPS", "ratio", "{:.2f}"),
        Column("paper: A3C, PPS", "paper A3C", "{:,}"), Column("paper: GA3C, PPS", "paper GA3C", "{:,}"),
        Column("paper: ratio", "paper ratio", "{:.1f}")])
    write(options, rows, text, draw_table2(rows))
    print(text)
    return []


def draw_table2(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Draws PPS here and in the paper, on a logarithmic scale, and the ratios."""
    figure, axes = panels(3)
    places = np.arange(len(rows))
    for axis, title, prefix in ((axes[0], f"PPS here, {usable_cores()} cores", "{} PPS"),
                                (axes[1], "PPS in the paper, 16 cores and a GPU", "paper {}")):
        for number, system in enumerate(("A3C", "GA3C")):
            values = [row.get(prefix.format(system)) or np.nan for row in rows]
            bars = axis.bar(places + 0.4 * number - 0.2, values, 0.4, label=system)
            axis.bar_label(bars, [f"{value:,.0f}" if np.isfinite(value) else "" for value in values], fontsize=7)
        known = [row[name] for row in rows for system in ("A3C", "GA3C") if row.get(name := prefix.format(system))]
        axis.set(title=title, yscale="log")
        axis.set_ylim(min(known, default=1.0) / 3, 5 * max(known, default=1.0))  # room below and for the legend
        axis.legend(loc="upper center", ncols=2)
    for number, (label, name) in enumerate((("here", "ratio"), ("paper", "paper ratio"))):
        values = [row.get(name) or np.nan for row in rows]
        bars = axes[2].bar(places + 0.4 * number - 0.2, values, 0.4, label=label, color=f"C{number + 2}")
        axes[2].bar_label(bars, [f"{value:.1f}" if np.isfinite(value) else "" for value in values], fontsize=7)
    axes[2].set(title="PPS of GA3C / PPS of A3C")
    axes[2].margins(y=0.15)
    axes[2].legend(loc="upper left")
    for axis in axes:
        axis.set_xticks(places, [row["network"] for row in rows])
        axis.set_xlabel("network-stride")
    return figure


def environments(options: argparse.Namespace) -> list[str]:
    """Each schedule with each number of environments."""
    wanted = []
    for schedule in options.schedules:
        for number in options.environments:
            flags = ["--schedule", schedule, "--agents", str(options.agents),
                     "--envs-per-agent", str(shared(number, options.agents))]
            if schedule == "queues":
                length = fixed(options, *flags).algorithm.rollout_length
                flags += ["--training-batch-min", str(number * length)]  # as many steps as an update in rounds
            wanted.append(({"schedule": schedule, "environments": number, "agents": options.agents},
                           fixed(options, *flags)))
    probe(wanted[0][1])
    found = measured(options, wanted, lambda one: f"{one['schedule']}, {one['environments']} environments: "
                                                  f"{one['steps_per_second']:,.0f} agent steps/s")
    text = markdown(found, [
        Column("schedule", "schedule"), Column("environments", "environments"),
        Column("agent steps/s", "steps_per_second", "{:,.0f}"), Column("observations a prediction", "prediction_batch",
                                                                       "{:.1f}"),
        Column("policy lag", "lag_mean", "{:.2f}"), Column("cores busy", "cpu_machine", "{:.2f}")])
    write(options, found, text, draw_environments(found))
    print(text)
    return []


def draw_environments(found: Sequence[Mapping[str, Any]]) -> Any:
    """Draws agent steps a second and busy cores over the number of environments, a line for each schedule."""
    figure, axes = panels(2)
    for number, schedule in enumerate(dict.fromkeys(one["schedule"] for one in found)):
        own = sorted((one for one in found if one["schedule"] == schedule), key=lambda one: one["environments"])
        for axis, name in zip(axes, ("steps_per_second", "cpu_machine"), strict=True):
            axis.plot([one["environments"] for one in own], [one[name] for one in own], "osd"[number % 3] + "-",
                      label=schedule)
    ticks = sorted({one["environments"] for one in found})
    for axis, title in zip(axes, ("Agent steps a second", f"Cores busy, of {usable_cores()}"), strict=True):
        axis.set(title=title, xlabel="environments", xscale="log")
        axis.set_xticks(ticks, ticks)
        axis.minorticks_off()
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
        axis.legend()
    return figure
