"""A simulated machine that trains, to compare controllers of N_A, N_P and N_T on: hundreds of runs in minutes.

    python tools/simulate/plant.py [--seeds 200] [--first-seed 0] [--hours 2] [--json plant.json] [--load]

`simulate` follows every agent, ticket, batch and update through cores (processor sharing; threads come before agents,
which are niced), the interpreter lock, devices and the update lock. `Table` holds its steady states for a grid of
settings and interpolates, so that an hour of a controller's run costs milliseconds; `plant_check.py` says how far it
is off.
`run` plays a table second by second, with noise, drift, whole updates and the seconds that a change takes.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ga3c.settings.flags import output_file
from ga3c.settings.schema import Settings
from ga3c.transport.channel import batch_sizes, largest_size
from ga3c.tuning.controller import Fast, Measurement, Paper, Setting, Trial, name


class Machine(NamedTuple):
    """A machine and what it trains. Times in seconds of one core, or of one device.

    step: one environment, one agent step; ticket: the rest of an agent's cycle (system calls); wake: from an answer
    to its use, without work. The interpreter runs `call` for a batch of predictions and `each` for an agent in it,
    `gather` for an agent step that is trained on. A prediction of n observations computes predict + n * observation, an
    update of n agent steps train + n * sample: on a core, or on one of `devices`. crowd: share by which every agent per
    core slows all agents down. most: observations of a prediction.
    """

    name: str
    cores: int
    devices: int
    limits: Setting
    step: float
    ticket: float = 65e-6
    call: float = 60e-6
    each: float = 8e-6
    gather: float = 2.5e-6
    predict: float = 250e-6
    observation: float = 20e-6
    train: float = 1500e-6
    sample: float = 91e-6
    wake: float = 150e-6
    crowd: float = 0.011
    envs: int = 16
    rollout_length: int = 20
    batch: int = 320
    slots: int = 2
    most: int = 128


# The costs of a CPU were fitted to real runs (`plant_check.py` tells the error), those of a GPU are assumptions.
# Limits are the service's own, of the paper's batches twice that.
PONG, BOXING = 244e-6, 342e-6
LARGE: dict[str, Any] = {"observation": 58e-6, "sample": 225e-6}  # the large network
_GPU: dict[str, Any] = {"predict": 250e-6, "observation": 1.5e-6, "train": 1500e-6, "sample": 6e-6}
MACHINES = {machine.name: machine for machine in (
    Machine("2 cores", 2, 0, (8, 2, 2), BOXING),
    Machine("4 cores, paper's batches", 4, 0, (256, 2, 2), PONG, envs=1, rollout_length=5, batch=40, slots=4),
    Machine("8 cores", 8, 0, (32, 4, 4), BOXING),
    Machine("16 cores, 1 GPU", 16, 1, (64, 8, 8), PONG, **_GPU),
    Machine("32 cores, 2 GPUs", 32, 2, (128, 16, 16), BOXING, **_GPU),
    Machine("128 cores, 8 GPUs", 128, 8, (512, 16, 16), 600e-6, **_GPU),
)}


# ------------------------------------------------------------------------------------------------ event by event

class _Station:
    """Up to `width` jobs at once, the others wait in line; on cores they share, see `simulate`."""

    def __init__(self, width: int, runs_on: str) -> None:
        self.free, self.runs_on, self.line = width, runs_on, deque[Any]()


class Steady(NamedTuple):
    """Agent steps trained per second, mean lag in updates, mean lengths of prediction and training queue, and the
    `idle` of a `Measurement`.
    """

    rate: float
    lag: float
    waiting: float
    handed_in: float
    idle: float


def profile(m: Machine, setting: Setting, updates: int = 80, seed: int = 0, cores_taken: int = 0) -> dict[str, float]:
    """What a run would measure in its steady state, by the names of metrics.jsonl; `steps_per_second` are agent steps.

    Over this many updates after a warm-up, with so many of the cores taken by other programs. Times of an agent, a call
    and an update are by Little's law: how many were at it in the mean, over how many passed through it in a second.
    With devices, an update that waits for one counts as under way; on cores it waits as it does for the update lock.
    """
    rng = np.random.default_rng(seed)
    n_a, n_p, n_t = setting
    cores = m.cores - cores_taken
    now, version, began, lags = 0.0, 0, 0.0, []
    warm = 20 + n_a * m.envs * m.rollout_length // (2 * m.batch)
    calls = answered = served_agents = waking = predicting = gathering = 0
    totals = [0.0] * 11                                  # over time, of `state` in the loop below
    served = [0.0, 0.0]                                  # seconds a job of either class has had: threads, agents
    running: list[list[tuple[float, int, Any]]] = [[], []]  # jobs on cores by the `served` at which they end
    timed: list[tuple[float, int, Any]] = []             # jobs on devices by the time at which they end
    number = 0
    stations = {"interpreter": _Station(1, "core"), "update": _Station(1, "core"),
                "device": _Station(m.devices, "device")}
    requests: deque[tuple[int, int]] = deque()
    sizes = batch_sizes(max(1, m.most // m.envs))
    rollouts: deque[tuple[int, list[int]]] = deque()
    idle_predictors, idle_trainers = n_p, n_t
    per_batch = -(-m.batch // (m.envs * m.rollout_length))
    free_slots = [m.slots - 1] * n_a
    blocked: set[int] = set()
    held: list[list[int]] = [[] for _ in range(n_a)]
    collecting: list[tuple[int, list[int]]] = []

    def start(kind: int, work: float, then: Callable[[], None]) -> None:
        """On a core; kind 0: a thread, 1: an agent, whose work varies."""
        nonlocal number
        number += 1
        heapq.heappush(running[kind], (served[kind] + work, number, then))

    def through(station: str, work: float, then: Callable[[], None]) -> None:
        at = stations[station]
        if at.free == 0:
            at.line.append((work, then))
            return
        at.free -= 1

        def over() -> None:
            at.free += 1
            if at.line:
                through(station, *at.line.popleft())
            then()

        if at.runs_on == "core":
            start(0, work, over)
        else:
            later(work, over)

    def compute(work: float, then: Callable[[], None]) -> None:
        if m.devices:
            through("device", work, then)
        else:
            start(0, work, then)

    def later(seconds: float, then: Callable[[], None]) -> None:
        nonlocal number
        number += 1
        heapq.heappush(timed, (now + seconds, number, then))

    def wake(agent: int, step: int) -> None:
        nonlocal waking
        waking += 1
        later(m.wake, lambda: woken(agent, step))

    def woken(agent: int, step: int) -> None:
        nonlocal waking
        waking -= 1
        play(agent, step)

    def play(agent: int, step: int) -> None:
        work = (m.envs * m.step + m.ticket) * (1 + m.crowd * n_a / cores) * rng.gamma(25.0, 1 / 25.0)
        start(1, work, lambda: ask(agent, step))

    def ask(agent: int, step: int) -> None:
        if step == m.rollout_length:
            if free_slots[agent] == 0:
                blocked.add(agent)
                return
            free_slots[agent] -= 1
            step = 0
        requests.append((agent, step))
        predict()

    def predict() -> None:
        nonlocal idle_predictors, served_agents
        if not idle_predictors or not requests:
            return
        idle_predictors -= 1
        taken = [requests.popleft() for _ in range(largest_size(sizes, len(requests)))]
        served_agents += len(taken)
        made_by = version
        through("interpreter", m.call + m.each * len(taken), lambda: infer(taken, made_by))

    def infer(taken: list[tuple[int, int]], made_by: int) -> None:
        nonlocal predicting
        predicting += 1
        compute(m.predict + m.observation * m.envs * len(taken), lambda: answer(taken, made_by))

    def answer(taken: list[tuple[int, int]], made_by: int) -> None:
        nonlocal idle_predictors, served_agents, predicting, calls, answered
        idle_predictors += 1
        predicting -= 1
        served_agents -= len(taken)
        calls, answered = calls + 1, answered + len(taken)
        for agent, step in taken:
            if step == 0 and len(held[agent]) == m.rollout_length:
                rollouts.append((agent, held[agent]))
                held[agent] = []
                train()
            held[agent].append(made_by)
            wake(agent, step + 1)
        predict()

    def train() -> None:
        nonlocal idle_trainers
        while idle_trainers and rollouts:
            agent, versions = rollouts.popleft()
            collecting.append((agent, versions))
            free_slots[agent] += 1
            if agent in blocked:
                blocked.remove(agent)
                ask(agent, m.rollout_length)
            if len(collecting) == per_batch:
                idle_trainers -= 1
                update([version for _, versions in collecting for version in versions])
                collecting.clear()

    def update(versions: list[int]) -> None:
        nonlocal gathering
        gathering += 1
        through("interpreter", m.gather * m.batch, lambda: gathered(versions))

    def gathered(versions: list[int]) -> None:
        nonlocal gathering
        gathering -= 1
        through("device" if m.devices else "update", m.train + m.sample * m.batch, lambda: updated(versions))

    def updated(versions: list[int]) -> None:
        nonlocal version, began, idle_trainers, calls, answered
        if version == warm:
            began, totals[:], calls, answered = now, [0.0] * len(totals), 0, 0
        elif version > warm:
            lags.append(version - sum(versions) / len(versions))
        version += 1
        idle_trainers += 1
        train()

    for agent, step in enumerate(rng.integers(m.rollout_length, size=n_a)):
        held[agent] = [0] * int(step)
        play(agent, int(step))
    while len(lags) < updates:
        threads = min(1.0, cores / len(running[0])) if running[0] else 1.0
        left = cores - threads * len(running[0])
        agents = min(1.0, max(left, 0.1 * cores) / len(running[1])) if running[1] else 1.0
        waits = [(running[kind][0][0] - served[kind]) / speed if running[kind] else math.inf
                 for kind, speed in enumerate((threads, agents))]
        waits.append(timed[0][0] - now if timed else math.inf)
        first = min(range(3), key=waits.__getitem__)
        elapsed = max(0.0, waits[first])
        now += elapsed
        state = (len(requests), len(rollouts), served_agents, waking, len(blocked), n_p - idle_predictors, predicting,
                 n_t - idle_trainers - gathering - len(stations["update"].line), gathering,
                 threads * len(running[0]), agents * len(running[1]))
        totals = [total + elapsed * each for total, each in zip(totals, state, strict=True)]
        served[0] += elapsed * threads
        served[1] += elapsed * agents
        heapq.heappop(timed if first == 2 else running[first])[2]()
    length = now - began
    queue, handed_in, serving, replying, without_slot, predictors, in_model, updating, copying, server, playing = totals
    waiting = queue + serving + replying
    return {"steps_per_second": updates * per_batch * m.envs * m.rollout_length / length, "lag_mean": float(np.mean(lags)),
            "prediction_queue": queue / length, "training_queue": handed_in / length,
            "agents": n_a, "predictors": n_p, "trainers": n_t, "cpu_server": server / length,
            "cpu_agents": playing / length, "cpu_machine": (server + playing) / length + cores_taken,
            "wait_ms": 1e3 * waiting / answered, "queue_ms": 1e3 * queue / answered,
            "service_ms": 1e3 * serving / answered, "reply_ms": 1e3 * replying / answered,
            "slot_wait_ms": 1e3 * without_slot / answered,
            "play_ms": 1e3 * (n_a * length - waiting - without_slot) / answered,
            "predict_ms": 1e3 * in_model / calls, "predictor_busy": predictors / (n_p * length),
            "update_ms": 1e3 * updating / updates, "gather_ms": 1e3 * copying / updates,
            "trainer_busy": (updating + copying) / (n_t * length)}


def simulate(m: Machine, setting: Setting, updates: int = 80, seed: int = 0, cores_taken: int = 0) -> Steady:
    """The steady state; see `profile`."""
    found = profile(m, setting, updates, seed, cores_taken)
    rate, lag, waiting, handed_in = (found[name] for name in (
        "steps_per_second", "lag_mean", "prediction_queue", "training_queue"))
    return Steady(rate, lag, waiting, handed_in, 1.0 if m.devices else max(0.0, 1 - found["cpu_machine"] / m.cores))


# ------------------------------------------------------------------------------------------------ all settings

class Table:
    """The steady states of all settings within a machine's limits, interpolated between powers of two (N_A: of 1.5).

    `fields` (5, N_A, N_P, N_T): as `Steady`. `cores_taken` by another process; `others`: which share of all that is.
    """

    def __init__(self, m: Machine, cores_taken: int = 0) -> None:
        self.machine, self.others = m, cores_taken / m.cores
        counts = [sorted({min(most, round(base ** i)) for i in range(40)})
                  for most, base in zip(m.limits, (1.5, 2, 2), strict=True)]
        grid = np.array([[[simulate(m, (n_a, n_p, n_t), cores_taken=cores_taken) for n_t in counts[2]]
                          for n_p in counts[1]] for n_a in counts[0]])
        for axis, (points, most) in enumerate(zip(counts, m.limits, strict=True)):
            # Where each count lies between the points, then linear in the logarithm.
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
        """Agent steps trained per second of every setting."""
        rates: NDArray[np.float64] = self.fields[0]
        return rates

    def best(self, max_lag: float = math.inf) -> Setting:
        """The exhaustive optimum of all settings whose lag is no more than that."""
        allowed = np.where(self.fields[1] <= max_lag, self.rates, 0.0)
        n_a, n_p, n_t = np.unravel_index(int(allowed.argmax()), allowed.shape)
        return int(n_a) + 1, int(n_p) + 1, int(n_t) + 1


# ------------------------------------------------------------------------------------------------ second by second

class Noise(NamedTuple):
    """Relative standard deviations: of every second alone; of a slow drift that all settings share, with its time
    constant in seconds. hiccup: probability that a second begins three at 60 %."""

    second: float = 0.05
    drift: float = 0.03
    drift_seconds: float = 90.0
    hiccup: float = 0.003


class Decides(Protocol):
    """As much of a controller as a plant asks for."""

    accepted: Setting

    @property
    def setting(self) -> Setting:
        """What is wanted now."""

    def observe(self, m: Measurement) -> Trial | None:
        """See `Controller.observe`."""


class Course(NamedTuple):
    """Second by second: the true rate of what was running and of the accepted setting, the rate that the controller
    was told, and the accepted setting's true lag."""

    running: NDArray
    accepted: NDArray
    told: NDArray
    lag: NDArray


USUAL = Noise()


def run(controller: Decides, table_at: Callable[[int], Table], seconds: int, seed: int, noise: Noise = USUAL) -> Course:
    """Plays so many seconds; `table_at(second)` is the machine's load."""
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
        if setting != last:  # agents are forked one after the other and begin their episodes; threads start at once
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
        controller.observe(Measurement(second + 1.0, trained, steady.lag * factor[second], steady.waiting,
                                       steady.handed_in, void > 0, table.others, steady.idle))
        void -= 1.0
    return Course(*course)


class Faulty:
    """The authors' code: all three move at once, and the rate of a rejected trial is what the next is compared with."""

    def __init__(self, start: Setting, limits: Setting, seed: int, window: int = 60) -> None:
        self.accepted = self.setting = start
        self._limits, self._length, self._rng = limits, window, np.random.default_rng(seed)
        self._before = -1.0
        self._now: list[float] = []

    def observe(self, m: Measurement) -> None:
        """One noisy window decides."""
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
    """Every 20 seconds another setting, uniform in the logarithm; after 30 minutes the best seen stays."""

    def __init__(self, start: Setting, limits: Setting, seed: int) -> None:
        self.accepted = self.setting = start
        self._limits, self._rng, self._best = limits, np.random.default_rng(seed), -1.0
        self._now: list[float] = []

    def observe(self, m: Measurement) -> None:
        """Keeps the best mean."""
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
    """Seconds until the accepted setting is within 5 % of the best (infinite if never), share of the best at the end,
    regret (share of the best lost over the whole run), worst ten minutes of what was running after those seconds.

    An accepted setting whose lag is over `max_lag` by more than a twentieth, which noise can hide, counts for nothing.
    """
    accepted = np.where(course.lag <= 1.05 * max_lag, course.accepted, 0.0)
    there = np.flatnonzero(accepted >= 0.95 * best)
    sums = np.concatenate([[0.0], np.cumsum(course.running[there[0]:])]) if len(there) else np.zeros(1)
    tens = (sums[600:] - sums[:-600]) / 600
    return {"seconds to 95 %": float(there[0] + 1) if len(there) else math.inf,
            "end": float(accepted[-1] / best), "regret": float(1 - course.running.mean() / best),
            "worst 10 min": float(tens.min() / best) if len(tens) else math.nan}


def adapts(seed: int, full: Table, less: Table) -> dict[str, float]:
    """Cores are taken from second 1800 to 2100. Of the setting `Fast` has before that, and from 3 minutes after each
    change on: the mean share of what is possible under that load; and the share there would be had it stayed."""
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
    """A table."""
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def finite(found: Any) -> Any:
    """The same with None for what is infinite or no number, as JSON knows neither."""
    if isinstance(found, dict):
        return {key: finite(value) for key, value in found.items()}
    return None if isinstance(found, float) and not math.isfinite(found) else found


def keep(everything: dict[str, Any], file: Path | None) -> None:
    """As JSON, where a file was named."""
    if file is not None:
        file.write_text(json.dumps(finite(everything), indent=1) + "\n", encoding="utf-8")


def compare(table: Table, seeds: range, hours: float) -> dict[str, dict[str, float]]:
    """Every controller from 1/1/1 on this machine: medians over the seeds, the worst end, the mean regret."""
    result = {}
    for word, make in CONTROLLERS.items():
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
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description="Compare controllers of N_A, N_P and N_T on simulated machines.")
    parser.add_argument("--seeds", type=int, default=200, help="as many [200]")
    parser.add_argument("--first-seed", type=int, default=0, help="and the next ones [0]")
    parser.add_argument("--hours", type=float, default=2.0, help="of simulated training for each")
    parser.add_argument("--machines", nargs="+", choices=list(MACHINES), default=list(MACHINES), metavar="NAME")
    parser.add_argument("--json", type=output_file(), metavar="FILE", help="also write the numbers there")
    parser.add_argument("--load", action="store_true", help="cores taken for five minutes, and nothing else")
    options = parser.parse_args()
    began = time.monotonic()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    tables = [Table(MACHINES[each]) for each in options.machines]
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
        print(markdown(["half the cores taken; median (worst) share of the best, seeds that have 90 % of it", "before",
                        "taken, had it stayed", "taken, after 3 min", "given back, after 3 min"], rows))
        keep(everything, options.json)
        return 0
    for table in tables:
        result = compare(table, seeds, options.hours)
        optima = {word: table.best(ceiling) for word, ceiling in (("optimum", math.inf), (CAPPED, CEILING))}
        everything[table.machine.name] = {
            "optimum": name(optima["optimum"]), "rate": table[optima["optimum"]].rate,
            f"optimum, lag at most {CEILING:g}": name(optima[CAPPED]), "its rate": table[optima[CAPPED]].rate, **result}
        print(f"{table.machine.name}: " + "; ".join(
            f"{word.replace('fast', 'optimum')} {name(best)}, {table[best].rate:,.0f} agent steps/s, lag "
            f"{table[best].lag:.1f}" for word, best in optima.items()) + "\n")
        print(markdown(["controller", *result["fast"]],
                       [[word, *(f"{value:,.0f}" if "seconds" in key else f"{value:.3f}" for key, value in row.items())]
                        for word, row in result.items()]), flush=True)
    keep(everything, options.json)
    print(f"{options.seeds} seeds, {options.hours:g} hours each, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
