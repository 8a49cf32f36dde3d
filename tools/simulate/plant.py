"""Compares controllers of N_A, N_P and N_T on simulated machines: hundreds of runs in minutes.

    python tools/simulate/plant.py [--seeds 200] [--first-seed 0] [--hours 2] [--json plant.json] [--load]
    python tools/simulate/plant.py --preset fast  rollouts and updates of that preset, not of the defaults

    python tools/simulate/plant.py --step 90      environments that cost 90 us a step, like our own emulator

A `Table` holds the steady states of a simulated machine (`machine.py`) for a grid of settings and interpolates between
them. So an hour of a controller's run costs milliseconds. `run` simulates a table second by second, with noise, drift,
whole updates and the seconds that a change takes. `plant_check.py` measures the error of table and simulation.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from machine import MACHINES, Machine, Steady, simulate
from numpy.typing import NDArray

from ga3c.settings.files import configured
from ga3c.settings.flags import number, output_file
from ga3c.settings.presets import PRESETS
from ga3c.settings.schema import Settings
from ga3c.tuning.fast import Fast
from ga3c.tuning.measurement import Measurement, Setting, name
from ga3c.tuning.paper import Paper
from ga3c.tuning.trial import Trial


class Table:
    """The steady states of all settings within a machine's limits, interpolated between powers of two (N_A: of 1.5).

    fields: the fields of `Steady`, (5, N_A, N_P, N_T). external_load: share of the cores that other programs take.
    """

    def __init__(self, m: Machine, cores_taken: int = 0) -> None:
        self.machine, self.external_load = m, cores_taken / m.cores
        counts = [sorted({min(most, round(base ** i)) for i in range(40)})
                  for most, base in zip(m.limits, (1.5, 2, 2), strict=True)]
        grid = np.array([[[simulate(m, (n_a, n_p, n_t), cores_taken=cores_taken) for n_t in counts[2]]
                          for n_p in counts[1]] for n_a in counts[0]])
        for axis, (points, most) in enumerate(zip(counts, m.limits, strict=True)):
            # Interpolation is linear in the logarithm of the count.
            where = np.interp(np.log(np.arange(1, most + 1)), np.log(points), np.arange(len(points)))
            low = where.astype(int)
            share = (where - low).reshape([-1 if i == axis else 1 for i in range(4)])
            grid = (grid.take(low, axis) * (1 - share)
                    + grid.take(np.minimum(low + 1, len(points) - 1), axis) * share)
        self.fields: NDArray[np.float64] = np.moveaxis(grid, 3, 0)

    def __getitem__(self, setting: Setting) -> Steady:
        n_a, n_p, n_t = setting
        return Steady(*self.fields[:, n_a - 1, n_p - 1, n_t - 1].tolist())

    @property
    def rates(self) -> NDArray[np.float64]:
        """Agent steps trained per second of every setting, (N_A, N_P, N_T)."""
        rates: NDArray[np.float64] = self.fields[0]
        return rates

    def best(self, max_lag: float = math.inf) -> Setting:
        """Returns the fastest setting whose lag is at most `max_lag`."""
        allowed = np.where(self.fields[1] <= max_lag, self.rates, 0.0)
        n_a, n_p, n_t = np.unravel_index(int(allowed.argmax()), allowed.shape)
        return int(n_a) + 1, int(n_p) + 1, int(n_t) + 1


# ------------------------------------------------------------------------------------------------ second by second

class Noise(NamedTuple):
    """The noise of the measured rate.

    second, drift: relative standard deviations, of each second and of a slow drift that all settings share.
    drift_seconds: time constant of the drift. hiccup: probability that a second begins 3 s at 60 % of the rate.
    """

    second: float = 0.05
    drift: float = 0.03
    drift_seconds: float = 90.0
    hiccup: float = 0.003


class Decides(Protocol):
    """The part of a controller that a plant uses."""

    @property
    def accepted(self) -> Setting:
        """The best setting so far."""

    @property
    def setting(self) -> Setting:
        """The setting that the controller wants now."""

    def observe(self, m: Measurement) -> Trial | None:
        """See `Controller.observe`."""


class Course(NamedTuple):
    """The course of a simulated run, one value per second.

    running, accepted: true rates of the running and of the accepted setting. measured: the rate that the controller
    got. lag: true lag of the accepted setting.
    """

    running: NDArray
    accepted: NDArray
    measured: NDArray
    lag: NDArray


USUAL = Noise()


def run(controller: Decides, table_at: Callable[[int], Table], seconds: int, seed: int, noise: Noise = USUAL) -> Course:
    """Simulates `seconds` seconds of a controller. `table_at(second)`: the machine under the load of that second."""
    rng = np.random.default_rng(seed)
    factor = np.exp(rng.normal(0, noise.second, seconds))
    kept = math.exp(-1 / noise.drift_seconds)
    drift, pushes = 0.0, rng.normal(0, noise.drift * math.sqrt(1 - kept * kept), seconds)
    hiccups = rng.random(seconds) < noise.hiccup
    course, owed, void, last = np.empty((4, seconds)), 0.0, 0.0, controller.setting
    for second in range(seconds):
        table, setting = table_at(second), controller.setting
        steady = table[setting]
        true = steady.rate
        if setting != last:  # agents start one after the other and begin episodes; threads start at once
            new = max(0, setting[0] - last[0])
            void = 1.5 + new * (0.02 + 0.007 * table.machine.envs / table.machine.cores)
            before, last = table[last].rate, setting
        if void > 0:
            true = min(true, before)
        drift = kept * drift + pushes[second]
        slow = 0.6 if hiccups[max(0, second - 2):second + 1].any() else 1.0
        owed += true * factor[second] * math.exp(drift) * slow
        trained = owed // table.machine.batch * table.machine.batch
        owed -= trained
        accepted = table[controller.accepted]
        course[:, second] = true, accepted.rate, trained, accepted.lag
        controller.observe(Measurement(second + 1.0, trained, steady.lag * factor[second], steady.prediction_queue,
                                       steady.training_queue, void > 0, table.external_load, steady.idle))
        void -= 1.0
    return Course(*course)


class Faulty:
    """The controller of the authors' code: all counts move at once, and a rejected trial becomes the next baseline."""

    def __init__(self, start: Setting, limits: Setting, seed: int, window: int = 60) -> None:
        self.accepted = self.setting = start
        self._limits, self._length, self._rng = limits, window, np.random.default_rng(seed)
        self._before = -1.0
        self._now: list[float] = []

    def observe(self, m: Measurement) -> None:
        """Compares one window of seconds with the last."""
        if not m.void:
            self._now.append(m.rate)
        if len(self._now) < self._length:
            return
        rate, self._now = float(np.mean(self._now)), []
        if rate >= self._before:
            self.accepted = self.setting
        self._before = rate
        moved = [int(count + step) for count, step in zip(self.accepted, self._rng.integers(-1, 2, 3), strict=True)]
        n_a, n_p, n_t = (min(max(1, count), most) for count, most in zip(moved, self._limits, strict=True))
        self.setting = n_a, n_p, n_t


class RandomSearch:
    """A controller that tries random settings, log-uniform, for 20 s each, and keeps the best after 30 minutes."""

    def __init__(self, start: Setting, limits: Setting, seed: int) -> None:
        self.accepted = self.setting = start
        self._limits, self._rng, self._best = limits, np.random.default_rng(seed), -1.0
        self._now: list[float] = []

    def observe(self, m: Measurement) -> None:
        """Keeps the setting with the best mean rate."""
        if m.time > 1800:
            self.setting = self.accepted
            return
        if not m.void:
            self._now.append(m.rate)
        if len(self._now) == 20:
            rate, self._now = float(np.mean(self._now)), []
            if rate > self._best:
                self._best, self.accepted = rate, self.setting
            n_a, n_p, n_t = (int((most + 1) ** self._rng.random()) for most in self._limits)
            self.setting = n_a, n_p, n_t


CEILING = Settings().tuning.max_lag or math.inf
CAPPED = f"fast, lag at most {CEILING:g}"
Maker = Callable[[Machine, int], Decides]
CONTROLLERS: dict[str, Maker] = {
    "fast": lambda m, seed: Fast((1, 1, 1), m.limits, None, seed),
    CAPPED: lambda m, seed: Fast((1, 1, 1), m.limits, CEILING, seed),
    "paper": lambda m, seed: Paper((1, 1, 1), m.limits, None, seed),
    "paper, temperature 0.02": lambda m, seed: Paper((1, 1, 1), m.limits, None, seed, temperature=0.02),
    "authors' code": lambda m, seed: Faulty((1, 1, 1), m.limits, seed),
    "random search": lambda m, seed: RandomSearch((1, 1, 1), m.limits, seed),
}


def scores(course: Course, best: float, max_lag: float = math.inf) -> dict[str, float]:
    """Returns the scores of a controller; rates are shares of the `best` rate.

    seconds to 95 %: time until the accepted setting reaches 95 % of `best`; infinite if never. end: rate of the
    accepted setting at the end. regret: loss over the whole run. worst 10 min: lowest mean after reaching 95 %.

    An accepted setting has rate 0 while its lag exceeds `max_lag` by more than 5 %.
    """
    accepted = np.where(course.lag <= 1.05 * max_lag, course.accepted, 0.0)
    there = np.flatnonzero(accepted >= 0.95 * best)
    sums = np.concatenate([[0.0], np.cumsum(course.running[there[0]:])]) if len(there) else np.zeros(1)
    tens = (sums[600:] - sums[:-600]) / 600
    return {"seconds to 95 %": float(there[0] + 1) if len(there) else math.inf,
            "end": float(accepted[-1] / best), "regret": float(1 - course.running.mean() / best),
            "worst 10 min": float(tens.min() / best) if len(tens) else math.nan}


def adapts(seed: int, full: Table, less: Table) -> dict[str, float]:
    """Runs `Fast` while other programs take cores from second 1800 to 2100. Returns shares of the possible rate.

    before: before the load. taken, given back: from 3 minutes after each change. stayed: the rate under load of the
    setting accepted before it.
    """
    controller, stayed = CONTROLLERS["fast"](full.machine, seed), 0.0

    def load(second: int) -> Table:
        nonlocal stayed
        if second == 1800:
            stayed = less[controller.accepted].rate
        return less if 1800 <= second < 2100 else full

    course = run(controller, load, 2700, seed)
    return {"before": course.accepted[1790] / full.rates.max(), "stayed": stayed / less.rates.max(),
            "taken": course.accepted[1980:2100].mean() / less.rates.max(),
            "given back": course.accepted[2280:].mean() / full.rates.max()}


# ------------------------------------------------------------------------------------------------ the report

def markdown(head: list[str], rows: list[list[Any]]) -> str:
    """Formats a table in Markdown."""
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def finite(found: Any) -> Any:
    """Replaces infinity and NaN by None, because JSON lacks them."""
    if isinstance(found, dict):
        return {key: finite(value) for key, value in found.items()}
    return None if isinstance(found, float) and not math.isfinite(found) else found


def keep(everything: dict[str, Any], file: Path | None) -> None:
    """Writes `everything` as JSON, if a file is named."""
    if file is not None:
        file.write_text(json.dumps(finite(everything), indent=1) + "\n", encoding="utf-8")


def compare(table: Table, seeds: range, hours: float,
            controllers: Iterable[str] = CONTROLLERS) -> dict[str, dict[str, float]]:
    """Returns the scores of controllers that start at 1/1/1: medians over the seeds, worst end, mean regret."""
    result = {}
    for word in controllers:
        make = CONTROLLERS[word]
        ceiling = CEILING if word == CAPPED else math.inf
        best = table[table.best(ceiling)].rate
        all_scores = [scores(run(make(table.machine, seed), lambda _: table, int(3600 * hours), seed), best, ceiling)
                      for seed in seeds]
        column = {key: np.array([score[key] for score in all_scores]) for key in all_scores[0]}
        there = np.isfinite(column["seconds to 95 %"])
        result[word] = {
            "seconds to 95 %, median": float(np.median(column["seconds to 95 %"])),
            "reached": float(there.mean()), "end, median": float(np.median(column["end"])),
            "end, worst": float(column["end"].min()), "ends below 90 %": float((column["end"] < 0.9).mean()),
            "regret, mean": float(column["regret"].mean()),
            "worst 10 min": float(np.fmin.reduce(column["worst 10 min"]))}
    return result


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description="Compare controllers of N_A, N_P and N_T on simulated machines.")
    parser.add_argument("--seeds", type=number(int, 1, 1_000_000), default=200, help="number of seeds [200]")
    parser.add_argument("--first-seed", type=number(int, 0, 2**31), default=0, help="first of them [0]")
    parser.add_argument("--hours", type=number(float, 0.01, 1000), default=2.0, help="of simulated training for each")
    parser.add_argument("--machines", nargs="+", choices=list(MACHINES), metavar="NAME",
                        help="; ".join(MACHINES))
    parser.add_argument("--json", type=output_file(), metavar="FILE", help="also write the numbers there")
    parser.add_argument("--preset", choices=["default", "fast", "own"], default="default",
                        help="of rollouts and updates, for machines with its environments an agent; own: each "
                             "machine's own [default]")
    parser.add_argument("--step", type=number(float, 0.1, 1e6), metavar="US",
                        help="microseconds of an environment's step, in the place of each machine's own")
    parser.add_argument("--controllers", nargs="+", choices=list(CONTROLLERS), default=list(CONTROLLERS),
                        metavar="NAME")
    parser.add_argument("--load", action="store_true", help="only measure five minutes of external load")
    options = parser.parse_args()
    began = time.monotonic()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    given = {"step": 1e-6 * options.step} if options.step else {}
    machines = [MACHINES[each]._replace(**given) for each in options.machines or MACHINES]
    if options.preset != "own":
        settings = configured(**PRESETS.get(options.preset, {}))
        others = [each.name for each in machines if each.envs != settings.agents.envs_per_agent]
        if options.machines and others:
            parser.error(f"--machines: {others[0]} has other environments an agent; it goes with --preset own")
        machines = [each.learning(settings) for each in machines if each.name not in others]
    tables = list(map(Table, machines))
    everything: dict[str, Any] = {}
    if options.load:
        rows = []
        for table in tables:
            less = Table(table.machine, table.machine.cores // 2)
            results = [adapts(seed, table, less) for seed in seeds]
            shares = {key: np.array([result[key] for result in results]) for key in results[0]}
            everything[table.machine.name] = {
                key: {"median": float(np.median(values)), "worst": float(values.min()),
                      "at 90 %": float((values >= 0.9).mean())} for key, values in shares.items()}
            rows.append([table.machine.name, *(f"{found['median']:.3f} ({found['worst']:.3f}), {found['at 90 %']:.0%}"
                                               for found in everything[table.machine.name].values())])
        print(markdown(["half the cores taken; median (worst) share of the best, share of seeds above 90 %", "before",
                        "taken, setting kept", "taken, after 3 min", "given back, after 3 min"], rows))
        keep(everything, options.json)
        return 0
    for table in tables:
        result = compare(table, seeds, options.hours, options.controllers)
        optima = {word: table.best(ceiling) for word, ceiling in (("optimum", math.inf), (CAPPED, CEILING))}
        everything[table.machine.name] = {
            "optimum": name(optima["optimum"]), "rate": table[optima["optimum"]].rate,
            f"optimum, lag at most {CEILING:g}": name(optima[CAPPED]), "its rate": table[optima[CAPPED]].rate, **result}
        print(f"{table.machine.name}: " + "; ".join(
            f"{word.replace('fast', 'optimum')} {name(best)}, {table[best].rate:,.0f} agent steps/s, lag "
            f"{table[best].lag:.1f}" for word, best in optima.items()) + "\n")
        print(markdown(["controller", *next(iter(result.values()))],
                       [[word, *(f"{value:,.0f}" if "seconds" in key else f"{value:.3f}" for key, value in row.items())]
                        for word, row in result.items()]), flush=True)
        keep(everything, options.json)
    print(f"{options.seeds} seeds, {options.hours:g} hours each, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
