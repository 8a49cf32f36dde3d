"""Simulates a machine that trains, event by event: every agent, ticket, batch and update on cores and devices.

All jobs share the cores; threads go before agents, which are niced. The interpreter lock, the update lock and devices
are simulated, too. `profile` returns the metrics of a run in its steady state, `simulate` the part that a controller
sees. `plant_check.py` compares the simulation with real runs.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ga3c.settings.algorithms import facts
from ga3c.settings.schema import Settings
from ga3c.transport.channel import batch_sizes, largest_size
from ga3c.tuning.measurement import Setting


class Machine(NamedTuple):
    """A machine and what it trains. Times are in seconds of one core, or of one device.

    step: one environment, one agent step. ticket: the rest of an agent's cycle (system calls). wake: delay from an
    answer to its use. The interpreter takes `call` for a batch of predictions, `each` for an agent in it and `gather`
    for an agent step in a training batch. A prediction of n observations takes predict + n * observation, on a core or
    on one of `devices`. An update of n agent steps takes `update(n)`. crowd: slowdown of agents, per agent on a core.
    most: the most observations in a prediction. batch: the least agent steps of an update, in whole rollouts.
    forward: predictions of the whole batch before the first pass. threads: cores that share an update, without loss.
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
    passes: int = 1
    minibatches: int = 1
    forward: int = 0
    threads: int = 1

    def update(self, n: int) -> float:
        """Returns the seconds of an update of `n` steps: each pass takes `train` per minibatch, `sample` per step."""
        return (self.forward * (self.predict + self.observation * n)
                + self.passes * (self.minibatches * self.train + self.sample * n))

    def learning(self, settings: Settings) -> Machine:
        """Returns this machine with the rollouts and updates of the settings."""
        algorithm, agents = settings.algorithm, settings.agents
        return self._replace(
            envs=agents.envs_per_agent, slots=agents.slots_per_agent, rollout_length=algorithm.rollout_length,
            batch=settings.batching.training_batch_min, passes=algorithm.passes, minibatches=algorithm.minibatches,
            forward=int(facts(algorithm.algorithm).predicts_first),
            threads=self.cores if algorithm.passes > 1 else max(1, self.cores // 2))  # `learner.device`


# The costs of a CPU are fitted to real runs (`plant_check.py` prints the error); those of a GPU are assumptions.
# Limits are the service's own; with the paper's batches, twice that.
PONG, BOXING = 244e-6, 342e-6
LARGE: dict[str, Any] = {"observation": 58e-6, "sample": 225e-6}  # the large network
_GPU: dict[str, Any] = {"predict": 250e-6, "observation": 1.5e-6, "train": 1500e-6, "sample": 6e-6}
MACHINES = {machine.name: machine for machine in (
    Machine("2 cores", 2, 0, (8, 2, 2), BOXING),
    Machine("4 cores", 4, 0, (16, 2, 2), PONG),
    Machine("4 cores, paper's batches", 4, 0, (256, 2, 2), PONG, envs=1, rollout_length=5, batch=40, slots=4),
    Machine("8 cores", 8, 0, (32, 4, 4), BOXING),
    Machine("16 cores, 1 GPU", 16, 1, (64, 8, 8), PONG, **_GPU),
    Machine("32 cores, 2 GPUs", 32, 2, (128, 16, 16), BOXING, **_GPU),
    Machine("128 cores, 8 GPUs", 128, 8, (512, 16, 16), 600e-6, **_GPU),
)}


class _Station:
    """A resource that runs up to `width` jobs at once; other jobs wait. Jobs share cores, see `profile`."""

    def __init__(self, width: int, runs_on: str) -> None:
        self.free, self.runs_on, self.line = width, runs_on, deque[Any]()


class Steady(NamedTuple):
    """The steady state of a machine, as a controller sees it.

    rate: agent steps trained per second, each counted once. lag: mean policy lag in updates; all passes of a batch
    count as one update. prediction_queue, training_queue: mean lengths. idle: idle share of the cores, 1 with a device.
    """

    rate: float
    lag: float
    prediction_queue: float
    training_queue: float
    idle: float


def profile(m: Machine, setting: Setting, updates: int = 80, seed: int = 0, cores_taken: int = 0) -> dict[str, float]:
    """Returns the metrics of a run in its steady state, by their names in metrics.jsonl, and `steps_per_second`.

    They are means over `updates` updates after a warm-up, while other programs take `cores_taken` cores. Times of an
    agent, a call and an update follow from Little's law: mean number in a stage over throughput. The time of an update
    includes its wait for a device, but not its wait for the update lock.
    """
    rng = np.random.default_rng(seed)
    n_a, n_p, n_t = setting
    cores = m.cores - cores_taken
    now, version, began, lags = 0.0, 0, 0.0, []
    warm = 20 + n_a * m.envs * m.rollout_length // (2 * m.batch)
    calls = answered = served_agents = waking = predicting = gathering = 0
    totals = [0.0] * 11                                  # over time, of `state` in the loop below
    served = [0.0, 0.0]                                  # seconds of core time per job so far: threads, agents
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
    batch = per_batch * m.envs * m.rollout_length  # of whole rollouts
    free_slots = [m.slots - 1] * n_a
    blocked: set[int] = set()
    held: list[list[int]] = [[] for _ in range(n_a)]
    collecting: list[tuple[int, list[int]]] = []

    def start(kind: int, work: float, then: Callable[[], None]) -> None:
        """Starts a job on a core. kind 0: a thread, 1: an agent."""
        nonlocal number
        number += 1
        heapq.heappush(running[kind], (served[kind] + work, number, then))

    def share(work: float, then: Callable[[], None], threads: int) -> None:
        """Starts a job that is split over `threads` cores."""
        left = threads

        def over() -> None:
            nonlocal left
            left -= 1
            if not left:
                then()

        for _ in range(threads):
            start(0, work / threads, over)

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
            share(work, over, m.threads if station == "update" else 1)
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
        through("interpreter", m.gather * batch, lambda: gathered(versions))

    def gathered(versions: list[int]) -> None:
        nonlocal gathering
        gathering -= 1
        through("device" if m.devices else "update", m.update(batch), lambda: updated(versions))

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
    queue, submitted, serving, replying, without_slot, predictors, in_model, updating, copying, server, playing = totals
    waiting = queue + serving + replying
    return {"steps_per_second": updates * batch / length,
            "lag_mean": float(np.mean(lags)),
            "prediction_queue": queue / length, "training_queue": submitted / length,
            "prediction_batch": m.envs * answered / calls, "passes": m.passes,
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
    """Returns the steady state; see `profile`."""
    found = profile(m, setting, updates, seed, cores_taken)
    rate, lag, waiting, submitted = (found[name] for name in (
        "steps_per_second", "lag_mean", "prediction_queue", "training_queue"))
    return Steady(rate, lag, waiting, submitted, 1.0 if m.devices else max(0.0, 1 - found["cpu_machine"] / m.cores))
