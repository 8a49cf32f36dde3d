"""Measures the error of the simulated machines of `machine.py` and of the tables of `plant.py`.

    python tools/simulate/plant_check.py

Simulated rates, and their unevenness from second to second, are compared with real runs, recorded under docs/results.
The interpolation of a table is compared with the simulation.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from machine import LARGE, MACHINES, PONG, simulate
from numpy.typing import NDArray
from plant import Decides, Table, markdown, run
from tune_report import swept, training_rows, workers

from ga3c.settings.files import configured
from ga3c.settings.presets import PRESETS
from ga3c.tuning.measurement import Setting

RESULTS = Path(__file__).parents[2] / "docs/results"
MEASURED = RESULTS / "speed/0.8.0/figures-3-4-320.jsonl"
# Zen 4, Pong on our own emulator: costs of the parts alone, and agent steps/s by preset (docs/results.md, "Speed").
ZEN_4: dict[str, Any] = {"step": 107e-6, "observation": 34e-6, "sample": 108e-6}
ON_ZEN_4 = {"fast": 6077.0, "default": 3006.0}
ONE_ENVIRONMENT = 3680.0  # agent steps/s of Pong, 48 agents with an environment each: speed/0.8.0/placement.txt


def _off(found: NDArray, real: NDArray) -> list[str]:
    """Returns the median and range of the relative errors, and the range without a common factor."""
    ratio = found / real
    error, shape = ratio - 1, ratio / np.median(ratio) - 1
    return [f"{np.median(abs(error)):.0%}", f"{error.min():+.0%} to {error.max():+.0%}",
            f"{shape.min():+.0%} to {shape.max():+.0%}"]


def _counts(setting: str) -> Setting:
    n_a, n_p, n_t = map(int, setting.split("/"))
    return n_a, n_p, n_t


def calibration() -> list[list[Any]]:
    """Compares two-core machines with real runs: those of `MEASURED`, to which the costs were fitted, and others."""
    real = [json.loads(line) for line in MEASURED.read_text(encoding="utf-8").splitlines()]
    boxing = MACHINES["2 cores"]
    pong = boxing._replace(step=PONG)
    rows = []
    for network, machine in (("small", pong), ("large", pong._replace(**LARGE))):
        runs = [run for run in real if run["network"] == network]
        found = [simulate(machine, (run["agents"], run["predictors"], run["trainers"]), 300) for run in runs]
        rate = np.array([run["steps_per_second"] for run in runs])
        lag = np.array([each.lag - run["lag_mean"] for each, run in zip(found, runs, strict=True)])
        rows.append([f"Pong, {network} network, fitted: {len(runs)} settings",
                     *_off(np.array([each.rate for each in found]), rate),
                     f"{np.median(abs(lag)):.1f}", f"{lag.min():+.1f} to {lag.max():+.1f}"])
    for game, machine in (("Pong", pong), ("Boxing", boxing)):
        sweep = swept(list((RESULTS / f"tuning-{game.lower()}/sweep").iterdir()))
        rates = [simulate(machine, _counts(setting), 300).rate for setting in sweep]
        rows.append([f"{game}, sweep of another day: {len(sweep)} settings",
                     *_off(np.array(rates), np.array([np.median(each) for each in sweep.values()])), "", ""])
    alone = np.array([simulate(pong._replace(envs=1), (48, 1, 1), 300).rate])
    rows.append(["Pong, an environment an agent: 48/1/1", *_off(alone, np.array([ONE_ENVIRONMENT]))[:2], "", "", ""])
    for preset, real_rate in ON_ZEN_4.items():
        machine = boxing._replace(**ZEN_4).learning(configured(**PRESETS.get(preset, {})))
        simulated = np.array([simulate(machine, (3, 1, 1), 300).rate])
        rows.append([f"Pong, Zen 4, costs as measured alone, {preset}: 3/1/1",
                     *_off(simulated, np.array([real_rate]))[:2], "", "", ""])
    return rows


def unevenness(time: NDArray, rate: NDArray, kind: NDArray) -> list[str]:
    """Returns how much the rates of two seconds of one `kind` differ (standard deviation), 5, 60 and 300 s apart.

    The last value is the share of seconds whose rate is below 75 % of the median of their kind.
    """
    found = []
    for gap in (5, 60, 300):
        later = np.searchsorted(time, time + gap - 0.5)
        pairs = [(i, j) for i, j in enumerate(later)
                 if j < len(time) and abs(time[j] - time[i] - gap) < 1 and kind[i] == kind[j]]
        apart = np.array([np.log(rate[j] / rate[i]) for i, j in pairs])
        found.append(f"{1.4826 * np.median(abs(apart)) / math.sqrt(2):.1%}")
    slow = [rate[kind == each] < 0.75 * np.median(rate[kind == each]) for each in set(kind)]
    return [*found, f"{np.concatenate(slow).mean():.1%}"]


def unevennesses() -> list[list[Any]]:
    """Returns the unevenness of the runs tuned from 1/1/1, and of the simulated two-core machine with its noise."""
    rows = []
    for game in ("pong", "boxing"):
        for run_of in ("fast-1", "fast-2", "fast-3", "paper"):
            rows_of_run = training_rows(RESULTS / f"tuning-{game}" / run_of)
            real = [row for row in rows_of_run if row["time"] > 60 and row["tps"]]
            rows.append([f"{game.capitalize()}, {run_of}", *unevenness(
                np.array([row["time"] for row in real]), np.array([row["tps"] for row in real]),
                np.array([workers(row) for row in real]))])
    table = Table(MACHINES["2 cores"])
    still = cast(Decides, SimpleNamespace(accepted=(4, 1, 1), setting=(4, 1, 1), observe=lambda m: None))
    for seed in range(3):
        rates = run(still, lambda _: table, 1200, seed).measured[::5]
        rows.append([f"simulated, seed {seed}", *unevenness(
            np.arange(0, 1200.0, 5), rates, np.full(len(rates), "4/1/1"))])
    return rows


def check(tables: list[Table], seed: int = 0) -> list[list[Any]]:
    """Compares tables with the simulation at random settings: median and largest relative error of the rate."""
    rng = np.random.default_rng(seed)
    rows = []
    for table in tables:
        limits = table.machine.limits
        settings = [[math.ceil(most ** rng.random()) for most in limits] for _ in range(20)]
        errors = [abs(table[n_a, n_p, n_t].rate / simulate(table.machine, (n_a, n_p, n_t), 160, 1).rate - 1)
                  for n_a, n_p, n_t in settings]
        rows.append([table.machine.name, f"{np.median(errors):.1%}", f"{max(errors):.1%}"])
    return rows


def main() -> int:
    """Runs the command and returns its exit code."""
    argparse.ArgumentParser(description="How far simulated machines are off.").parse_args()
    print(markdown(["against two real cores", "rate: median error", "all", "but for a common factor",
                    "lag: median error, updates", "all"], calibration()))
    print(markdown(["how far seconds are apart", "after 5 s", "60 s", "300 s", "below 75 %"], unevennesses()))
    print(markdown(["table against simulation", "median error of the rate", "largest"],
                   check([Table(machine.learning(configured())) for machine in MACHINES.values() if machine.envs > 1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
