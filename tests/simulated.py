"""A small simulated machine that trains: agents, predictors and trainers as generators, on cores and devices.

A process yields what it waits for: seconds of a core, a delay, or an item of a queue. `profile` returns the metrics of
a run in its steady state.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ga3c.transport.batch_sizes import batch_sizes, largest_size
from ga3c.tuning.measurement import Setting

THREADS, AGENTS = 0, 1  # kinds of jobs on cores; threads go first
Resume = Callable[[Any], None]
Wait = Callable[[Resume], None]
Process = Iterator[Wait]


class Machine(NamedTuple):
    """A machine and what it trains. Times are in seconds of one core, or of one device.

    step: one environment, one agent step. ticket: the rest of an agent's cycle (system calls). wake: delay from an
    answer to its use. The interpreter takes `call` for a batch of predictions, `each` for an agent in it and `gather`
    for an agent step in a training batch. A prediction of n observations takes predict + n * observation, on a core or
    on one of `devices`. Each pass over n agent steps takes train + n * sample. batch: the least agent steps of an
    update, in whole rollouts. most: the most observations in a prediction.
    """

    cores: int
    step: float
    devices: int = 0
    ticket: float = 65e-6
    call: float = 60e-6
    each: float = 8e-6
    gather: float = 2.5e-6
    predict: float = 250e-6
    observation: float = 20e-6
    train: float = 1500e-6
    sample: float = 91e-6
    wake: float = 150e-6
    envs: int = 16
    rollout_length: int = 20
    batch: int = 320
    slots: int = 2
    most: int = 128
    passes: int = 1


# Costs of a processor are near those of real runs; those of a GPU are assumptions.
TWO = Machine(2, 342e-6)  # cores
EIGHT = Machine(8, 342e-6)
GPU = Machine(16, 244e-6, devices=1, observation=1.5e-6, sample=6e-6)


class Queue:
    """Items, or tokens of a lock, and the processes that wait for them."""

    def __init__(self, tokens: int = 0) -> None:
        self.items = deque[Any]([None] * tokens)
        self._waiting = deque[Resume]()

    def put(self, item: Any = None) -> None:
        """Hands the item to the process that has waited longest, or keeps it."""
        if self._waiting:
            self._waiting.popleft()(item)
        else:
            self.items.append(item)

    def get(self, resume: Resume) -> None:
        """Continues a process with the oldest item, as soon as there is one."""
        if self.items:
            resume(self.items.popleft())
        else:
            self._waiting.append(resume)


class Clock:
    """Time, cores that jobs share, and the stages of processes. Threads go before agents, which are niced."""

    def __init__(self, cores: int) -> None:
        self.now = 0.0
        self.integrals = Counter[str]()  # stage -> processes in it x seconds
        self._inside = Counter[str]()
        self._cores = cores
        self._served = [0.0, 0.0]  # seconds of core time of each job so far, by kind
        self._running: list[list[tuple[float, int, Resume]]] = [[], []]  # by the `_served` at which they end
        self._delayed: list[tuple[float, int, Resume]] = []
        self._numbers = itertools.count()

    def compute(self, kind: int, seconds: float) -> Wait:
        """Takes seconds of a core."""
        return lambda resume: heapq.heappush(
            self._running[kind], (self._served[kind] + seconds, next(self._numbers), resume))

    def sleep(self, seconds: float) -> Wait:
        """Takes seconds, but no core."""
        return lambda resume: heapq.heappush(self._delayed, (self.now + seconds, next(self._numbers), resume))

    def enter(self, stage: str, number: int = 1) -> None:
        """So many processes more are in the stage; fewer if the number is below 0."""
        self._inside[stage] += number

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A process is in the stage."""
        self.enter(name)
        yield
        self.enter(name, -1)

    def advance(self) -> None:
        """Goes on to the next event."""
        threads, agents = map(len, self._running)
        speeds = [min(1.0, self._cores / threads) if threads else 1.0, 1.0]
        free = max(self._cores - speeds[THREADS] * threads, 0.1 * self._cores)
        speeds[AGENTS] = min(1.0, free / agents) if agents else 1.0
        ends = [(jobs[0][0] - self._served[kind]) / speeds[kind] if jobs else math.inf
                for kind, jobs in enumerate(self._running)]
        ends.append(self._delayed[0][0] - self.now if self._delayed else math.inf)
        elapsed = max(0.0, min(ends))
        self.now += elapsed
        for stage, number in self._inside.items():
            self.integrals[stage] += elapsed * number
        for kind, name, jobs in ((THREADS, "cpu_server", threads), (AGENTS, "cpu_agents", agents)):
            self._served[kind] += elapsed * speeds[kind]
            self.integrals[name] += elapsed * speeds[kind] * jobs
        heapq.heappop([*self._running, self._delayed][ends.index(min(ends))])[2](None)


def start(process: Process) -> None:
    """Runs the process until it waits; what it waits for continues it."""

    def resume(item: Any) -> None:
        try:
            process.send(item)(resume)
        except StopIteration:
            pass

    resume(None)


class _Run:
    """The processes of a run, and what they share."""

    def __init__(self, machine: Machine, setting: Setting, cores_taken: int) -> None:
        self.machine = machine
        self.clock = Clock(machine.cores - cores_taken)
        self.version = 0
        self.lags: list[float] = []  # of each update, in updates
        self.calls = 0
        self.answered = 0
        self._crowd = 1 + 0.011 * setting[0] / (machine.cores - cores_taken)  # slowdown of agents
        self._rng = np.random.default_rng(0)
        self._interpreter = Queue(1)
        self._collecting = Queue(1)
        self._device = Queue(machine.devices)
        self._requests = Queue()
        self._rollouts = Queue()
        agents, predictors, trainers = setting
        self._update = Queue(trainers if machine.devices else 1)
        self._slots = [Queue(machine.slots - 1) for _ in range(agents)]
        for agent, step in enumerate(self._rng.integers(machine.rollout_length, size=agents)):
            start(self._agent(agent, int(step)))
        for _ in range(predictors):
            start(self._predictor())
        for _ in range(trainers):
            start(self._trainer())

    @property
    def batch(self) -> int:
        """Agent steps of an update, in whole rollouts."""
        rollout = self.machine.envs * self.machine.rollout_length
        return -(-self.machine.batch // rollout) * rollout

    def _agent(self, agent: int, first: int) -> Process:
        m = self.machine
        answers = Queue()
        versions = [0] * first
        while True:
            work = (m.envs * m.step + m.ticket) * self._crowd * self._rng.gamma(25.0, 1 / 25.0)
            with self.clock.stage("play"):
                yield self.clock.compute(AGENTS, work)
            if len(versions) == m.rollout_length:
                with self.clock.stage("slot_wait"):
                    yield self._slots[agent].get
            with self.clock.stage("wait"):
                self.clock.enter("queue")
                self._requests.put(answers)
                version = yield answers.get
                if len(versions) == m.rollout_length:  # this answer was its last value
                    self._rollouts.put((agent, versions))
                    versions = []
                versions.append(version)
                with self.clock.stage("reply"):
                    yield self.clock.sleep(m.wake)

    def _predictor(self) -> Process:
        m = self.machine
        sizes = batch_sizes(max(1, m.most // m.envs))
        waiting = self._requests.items
        while True:
            first = yield self._requests.get
            with self.clock.stage("predictor"):
                taken = [first, *(waiting.popleft() for _ in range(largest_size(sizes, len(waiting) + 1) - 1))]
                version = self.version
                self.clock.enter("queue", -len(taken))
                self.clock.enter("service", len(taken))
                yield from self._interpret(m.call + m.each * len(taken))
                with self.clock.stage("predict"):
                    yield from self._compute(m.predict + m.observation * m.envs * len(taken))
                self.clock.enter("service", -len(taken))
                self.calls += 1
                self.answered += len(taken)
                for answers in taken:
                    answers.put(version)

    def _trainer(self) -> Process:
        m = self.machine
        work = m.passes * (m.train + m.sample * self.batch)
        while True:
            yield self._collecting.get
            versions: list[int] = []
            while len(versions) * m.envs < self.batch:
                agent, more = yield self._rollouts.get
                versions += more
                self._slots[agent].put()
            self._collecting.put()
            with self.clock.stage("gather"):
                yield from self._interpret(m.gather * self.batch)
            yield self._update.get
            with self.clock.stage("update"):
                yield from self._compute(work)
            self._update.put()
            self.lags.append(self.version - sum(versions) / len(versions))
            self.version += 1

    def _interpret(self, seconds: float) -> Process:
        return _hold(self._interpreter, self.clock.compute(THREADS, seconds))

    def _compute(self, seconds: float) -> Process:
        if self.machine.devices:
            yield from _hold(self._device, self.clock.sleep(seconds))
        else:
            yield self.clock.compute(THREADS, seconds)


def _hold(lock: Queue, wait: Wait) -> Process:
    yield lock.get
    yield wait
    lock.put()


@cache
def profile(machine: Machine, setting: Setting, cores_taken: int = 0) -> dict[str, float]:
    """Returns the metrics of a run in its steady state, by their names in metrics.jsonl, and `steps_per_second`.

    They are means over 80 updates after a warm-up, while other programs take `cores_taken` cores. Times of an agent, a
    call and an update follow from Little's law: mean number in a stage over throughput.
    """
    agents, predictors, trainers = setting
    run = _Run(machine, setting, cores_taken)
    while run.version < 20 + agents * machine.envs * machine.rollout_length // (2 * machine.batch):
        run.clock.advance()
    began, calls, answered, version = run.clock.now, run.calls, run.answered, run.version
    before = run.clock.integrals.copy()
    while run.version < version + 80:
        run.clock.advance()
    length = run.clock.now - began
    number = {stage: (total - before[stage]) / length for stage, total in run.clock.integrals.items()}
    steps = (run.answered - answered) / length  # of an agent, for all of its environments
    updates = 80 / length

    def milliseconds(stage: str, rate: float) -> float:
        return 1e3 * number.get(stage, 0.0) / rate

    return {"steps_per_second": updates * run.batch, "lag_mean": float(np.mean(run.lags[version:])),
            "passes": machine.passes, "agents": agents, "predictors": predictors, "trainers": trainers,
            "prediction_batch": machine.envs * (run.answered - answered) / (run.calls - calls),
            "prediction_queue": number["queue"],
            "cpu_server": number["cpu_server"], "cpu_agents": number["cpu_agents"],
            "cpu_machine": number["cpu_server"] + number["cpu_agents"] + cores_taken,
            **{f"{stage}_ms": milliseconds(stage, steps)
               for stage in ("play", "slot_wait", "wait", "queue", "service", "reply")},
            "predict_ms": milliseconds("predict", (run.calls - calls) / length),
            **{f"{stage}_ms": milliseconds(stage, updates) for stage in ("gather", "update")},
            "predictor_busy": number["predictor"] / predictors,
            "trainer_busy": (number["gather"] + number["update"]) / trainers}
