"""A model that learns nothing and notices everything: every batch of the counting world is checked as it comes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil

from ga3c.algorithms.acting import BY_POLICY
from ga3c.envs.toys import Counting
from ga3c.learner.learner import UpdateStats
from ga3c.learner.skips import Skips
from ga3c.runs.recorder import Recorder
from ga3c.settings.files import configured
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field
from ga3c.transport.slots import Batch

if TYPE_CHECKING:
    from ga3c.service.supervisor import Service

Moment = tuple[int, int]  # episode, step

noticed: list[Exception] = []  # by the models of this test


def counting(**changes: object) -> Settings:
    """Settings of a short run of the counting world."""
    return configured(**{
        "game": "toy:counting", "tensorboard": False, "steps": 6000, "dynamic": False,
        "agents": 3, "agents_max": 8, "envs_per_agent": 2, "rollout_length": 5, "training_batch_min": 30, **changes})


def counting_with_faults(**changes: object) -> Settings:
    """The same with fewer agents and a deadline: something in it is to fail."""
    return counting(**{"steps": 4000, "agent_nice": 0, "minutes": 4, "agents_max": 3, **changes})


def events(run: Recorder | Path, kind: str) -> list[dict]:
    """The events of a kind in the record of a run."""
    directory = run if isinstance(run, Path) else run.directory
    lines = (directory / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def busy(seconds: float) -> None:
    """Takes so much of a processor, in the calling thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def resize(service: Service, *wanted: int) -> None:
    """Wants so many agents, predictors and trainers from now on, as the controller does."""
    agents, predictors, trainers = wanted
    service._wanted = (agents, predictors, trainers)
    service._signals.wake()


def decode(observation: np.ndarray) -> np.ndarray:
    """(..., 12) bytes -> (..., 3) of agent, episode, step."""
    return np.ascontiguousarray(observation).view("<u4").astype(np.int64)


def successor(moment: Moment) -> Moment:
    """What an agent sees after its step from `moment`: the next step, or the next episode's first."""
    episode, step = moment
    return (episode + 1, 0) if step + 1 == Counting.length(episode) else (episode, step + 1)


def value_of(moments: np.ndarray) -> np.ndarray:
    """A value that names the observation it belongs to."""
    return (moments @ np.array([7919, 104729, 31]) % 65_521).astype(np.float32)


class CheckingModel:
    """Predicts what names the observation; checks in `update` that everything came back together.

    `on_update` is called with the number of updates so far, from a trainer's thread.
    """

    def __init__(self, on_update: Callable[[int], None] = lambda updates: None) -> None:
        self.version = self.min_valid_version = 0
        self.device = "CPU"
        self.outputs = {"policy": Field((2,), np.float32), "value": Field((), np.float32)}
        self.acting = BY_POLICY
        self.trained_steps = 0
        self.learning_rate_factor, self.ending_early, self.skips, self.minibatch_seconds = 1.0, False, Skips(), 0.0
        self.on_update = on_update
        self.lock = threading.Lock()
        self.predicted: dict[int, set[Moment]] = defaultdict(set)
        self.trained: dict[int, Counter[Moment]] = defaultdict(Counter)
        self.order: dict[int, list[Moment]] = defaultdict(list)

    def shared(self, observation: np.ndarray) -> np.ndarray:
        return observation

    def predict(self, observation: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
        moments = decode(observation)
        value = value_of(moments)
        with self.lock:
            for agent, episode, step in moments.tolist():
                if step < Counting.length(episode):  # else: the last observation of a truncated episode
                    self.predicted[agent].add((episode, step))
        share = (value % 97 + 1) / 100
        return {"policy": np.stack([share, 1 - share], axis=1), "value": value}, self.version

    def publish(self) -> None:
        pass

    def update(self, batch: Batch, agent_steps: int, since: int) -> UpdateStats:
        try:
            return self.checked(batch)
        except Exception as error:  # of which the service forgives one
            noticed.append(error)
            raise

    def checked(self, batch: Batch) -> UpdateStats:
        with self.lock:
            for i, steps in enumerate(batch.steps.tolist()):
                for e in range(batch.reward.shape[2] if steps else 0):  # a last batch may have rollouts without a step
                    self.check(batch, i, e, steps)
            assert (batch.version[batch.filled[:, :, 0]] <= self.version).all()
            self.version += 1
            self.trained_steps += batch.agent_steps
            self.on_update(self.version)
            return UpdateStats(self.version, batch.size, {})

    def check(self, batch: Batch, i: int, e: int, steps: int) -> None:
        moments = decode(batch.observation[i, :steps, e])
        values = value_of(moments)
        assert (batch.value[i, :steps, e] == values).all(), "a prediction went to the wrong place"
        assert np.allclose(batch.policy[i, :steps, e, 0], (values % 97 + 1) / 100)
        agent = int(moments[0, 0])
        assert (moments[:, 0] == agent).all()
        path = [(int(episode), int(step)) for _, episode, step in moments]
        after = [successor(moment) for moment in path]
        assert path[1:] == after[:-1], "steps of a rollout are not in order"
        assert batch.bootstrap_value[i, e] == value_of(np.array([agent, *after[-1]]))
        assert decode(batch.following[i, e]).tolist() == [agent, *after[-1]]
        for t, (episode, step) in enumerate(path):
            last = step + 1 == Counting.length(episode)
            assert batch.reward[i, t, e] == step + 1
            assert batch.terminated[i, t, e] == (last and episode % 2 == 0)
            assert batch.truncated[i, t, e] == (last and episode % 2 == 1)
            assert batch.episode_length[i, t, e] == (step + 1 if last else 0)
            if batch.truncated[i, t, e]:
                assert batch.final_value[i, t, e] == value_of(np.array([agent, episode, step + 1]))
        self.trained[agent].update(path)
        self.order[agent] += path

    def state(self) -> tuple[dict[str, np.ndarray], int]:
        return {"nothing": np.zeros(1)}, self.version

    def assert_nothing_doubled(self) -> None:
        for agent, moments in self.trained.items():
            assert max(moments.values()) == 1, f"{agent} was trained twice on {moments.most_common(1)}"

    def assert_no_gap(self) -> None:
        """What was trained of each agent is all it played, up to somewhere."""
        for agent, moments in self.trained.items():
            moment = (0, 0)
            for _ in range(len(moments)):
                assert moment in moments, f"{agent}: {moment} was lost"
                moment = successor(moment)

    def assert_nothing_lost(self) -> None:
        """Everything predicted was trained, but the one observation on which the agent drained."""
        for agent, moments in self.predicted.items():
            missing = moments - self.trained[agent].keys()
            assert len(missing) == 1, f"{agent}: {sorted(missing)[:5]} of {len(moments)} were lost"


def end_run() -> None:
    """To this process and so to its main thread, which is woken by it wherever it waits."""
    os.kill(os.getpid(), signal.SIGTERM)


def agent_processes() -> list[psutil.Process]:
    """The agents: children of our child, the fork server."""
    agents = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.ppid() != os.getpid():
                agents.append(process)
    return agents
