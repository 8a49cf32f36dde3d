"""The schedules of a replay: processes do to the byte what one thread does, and each epoch what it should."""

from __future__ import annotations

import json
import random
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from counting import agent_processes, end_run, events

from ga3c.algorithms.acting import epsilon_greedily
from ga3c.learner import checkpoint
from ga3c.learner.learner import Learner, UpdateStats
from ga3c.learner.skips import Skips
from ga3c.runs.recorder import Recorder
from ga3c.service.memory import Memory
from ga3c.service.serial import run_serial
from ga3c.service.signals import Signals
from ga3c.service.supervisor import Service
from ga3c.settings.files import configured
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field
from ga3c.transport.slots import Batch

MakeRun = Callable[..., Recorder]


def chosen(**changes: Any) -> Settings:
    return configured(**{"game": "toy:catch", "algorithm": "dqn", "agents": 4, "envs_per_agent": 2,
                         "tensorboard": False, "rollout_length": 4, "replay_size": 2000, "replay_start": 160,
                         "target_steps": 320, "intensity": 2.0, "training_batch_min": 16, "n_step": 3, "steps": 1920,
                         "epsilon_steps": 800, **changes})


class Chain:
    """A learner whose weights are a checksum of all updates, and whose Q-values depend on the weights they come from.

    calls: observations in each prediction. acted: the weights that each prediction used. log: "u" for an update, "p"
    for a prediction, "t" where a target was kept. replays: checksum of the memory's ring before each update.
    """

    def __init__(self, settings: Settings, sleeps: bool = False, slow: float = 0.0) -> None:
        self.version = self.min_valid_version = 0
        self.device = "CPU"
        self.outputs = {"q": Field((3,), np.float32)}
        self.acting = epsilon_greedily(settings, settings.replay.replay_start)
        self.learning_rate_factor, self.ending_early, self.skips, self.minibatch_seconds = 1.0, False, Skips(), 0.0
        self.newest = self.acts = self.kept = 1
        self.sleeps, self.slow = sleeps, slow
        self.memory: Memory | None = None
        self.calls, self.acted, self.replays = list[int](), list[int](), list[int]()
        self.log: list[str] = []
        self.steps: list[int] = []
        self.on_update: Callable[[int], None] = lambda updates: None
        self.at_once = threading.Lock()

    def sleep(self) -> None:
        if self.sleeps and random.random() < 0.2:
            time.sleep(0.005 * random.random())

    def shared(self, observation: np.ndarray) -> np.ndarray:
        return observation

    def predict(self, observation: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
        self.sleep()
        weights = self.acts
        self.calls.append(len(observation))
        self.acted.append(weights)
        self.log.append("p")
        q = [[zlib.crc32(row.tobytes(), weights + action) for action in range(3)] for row in np.asarray(observation)]
        return {"q": np.array(q, np.float64).astype(np.float32)}, self.version

    def publish(self) -> None:
        self.acts = self.newest

    def keep_target(self) -> None:
        self.kept = self.newest
        self.log.append("t")

    def act_by_target(self) -> None:
        self.acts = self.kept

    def update(self, batch: Batch, agent_steps: int, since: int) -> UpdateStats:
        assert self.at_once.acquire(blocking=False), "one update at a time"
        self.sleep()
        time.sleep(self.slow)
        assert self.memory is not None
        self.replays.append(zlib.crc32(self.memory._ring._frames.tobytes()))
        for name in ("observation", "action", "returns", "following", "discount", "weight"):
            self.newest = zlib.crc32(np.ascontiguousarray(batch.arrays[name]).tobytes(), self.newest)
        self.newest = zlib.crc32(str((self.kept, agent_steps)).encode(), self.newest)
        self.version += 1
        self.log.append("u")
        self.steps.append(agent_steps)
        error = (batch.returns - self.newest % 7).astype(np.float32)
        self.at_once.release()
        self.on_update(self.version)
        return UpdateStats(self.version, batch.size, {"q_loss": 0.0}, rows={"error": error})


@pytest.fixture
def played(make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Chain]:
    """Plays a run with these settings, in processes or in one thread. Returns its learner."""

    def play(settings: Settings, on_update: Callable[[int], None] = lambda updates: None, **how: Any) -> Chain:
        run, learner = make_run(settings), Chain(settings, **how)
        learner.on_update = on_update

        def remembering(*args: Any) -> Memory:
            learner.memory = Memory(*args)
            return learner.memory

        monkeypatch.setattr("ga3c.service.memory.Memory", remembering)
        if settings.run.serial:
            run_serial(settings, run, learner, interruption)
        else:
            Service(settings, run, learner, interruption).run()
        run.statistics.drain()
        play.run = run  # type: ignore[attr-defined]
        return learner

    return play


@pytest.mark.parametrize("priorities", [{}, {"priority_alpha": 0.6}], ids=["uniform", "prioritised"])
@pytest.mark.parametrize("schedule", ["standard", "synchronised", "concurrent", "both"])
def test_processes_do_what_one_thread_does_whatever_sleeps(
        schedule: str, priorities: dict, played: Callable[..., Chain]) -> None:
    one = played(chosen(schedule=schedule, serial=True, **priorities))
    many = played(chosen(schedule=schedule, wrappers=("sleepy:Sleepy",), **priorities), sleeps=True)
    assert one.version > 60 and (many.newest, many.kept, many.version) == (one.newest, one.kept, one.version)
    assert many.steps == one.steps and many.acted[:len(one.acted)] == one.acted
    assert one.calls.count(one.calls[0]) == len(one.calls) == 1920 / one.calls[0], "calls = steps / W"
    assert one.calls[0] == (8 if schedule in ("synchronised", "both") else 2)


@pytest.mark.parametrize("schedule", ["concurrent", "both"])
def test_in_an_epoch_neither_the_replay_nor_what_acts_changes(schedule: str, played: Callable[..., Chain]) -> None:
    learner = played(chosen(schedule=schedule), slow=0.002)
    assert len(set(learner.replays)) == 5, "of six epochs the first has no update"
    per_epoch = 320 // learner.calls[0]
    epochs = [set(learner.acted[first:first + per_epoch]) for first in range(0, 6 * per_epoch, per_epoch)]
    assert [len(weights) for weights in epochs] == [1] * 6
    assert len(set.union(*epochs)) == 5, "the first two act by the first weights"
    assert "pu" in "".join(learner.log) and "up" in "".join(learner.log).split("t")[2], "updates beside the play"


def test_the_log_of_standard_dqn_is_the_expected_string(played: Callable[..., Chain]) -> None:
    learner = played(chosen(schedule="standard", serial=True, agents=1, envs_per_agent=1, steps=80, replay_start=40,
                            target_steps=16, training_batch_min=8))
    assert "".join(learner.log) == 10 * "pppp" + "ppppu" + "pppput" + 2 * (3 * "ppppu" + "pppput")


@pytest.mark.parametrize("schedule", ["queues", "standard", "both"])
def test_the_intensity_holds_with_a_slow_trainer_and_killed_agents(
        schedule: str, played: Callable[..., Chain]) -> None:
    def kill(updates: int) -> None:
        if updates in (40, 80):
            agent_processes()[0].kill()
        if updates == 160:
            end_run()

    learner = played(chosen(schedule=schedule, steps=None, minutes=4, wrappers=("sleepy:Sleepy",), replay_size=8000),
                     kill, sleeps=True, slow=0.005)
    run = played.run  # type: ignore[attr-defined]
    assert len(events(run, "agent_died")) == 2
    assert learner.memory is not None
    owed = 2.0 * (learner.memory._ledger.appended - 160) - 16 * learner.version
    # An epoch's updates follow its steps, and stop with the run.
    assert -16 < owed <= (2 * 320 if schedule == "both" else 16 + 2 * 8 * 4)
    assert not (learner.memory._ring.written == 0).any()


def test_targets_are_kept_at_the_same_steps_by_each_schedule_that_acts_by_the_newest(
        played: Callable[..., Chain]) -> None:
    logs = ["".join(played(chosen(schedule=schedule, serial=True)).log).replace("p", "")
            for schedule in ("standard", "synchronised")]
    assert logs[0] == logs[1] and logs[0].count("t") == 6


@pytest.mark.parametrize("schedule", ["queues", "both"])
def test_five_breaks_in_processes_lose_no_sample_and_shift_no_target(
        schedule: str, make_run: MakeRun, interruption: Signals) -> None:
    saved, progress = dict[str, np.ndarray](), {"version": 0, "agent_steps": 0}
    for steps in (300, 600, 900, 1200, 1500):
        settings = chosen(schedule=schedule, steps=steps)
        run = make_run(settings)
        learner = Learner(settings, run.spec)
        if saved:
            learner.restore(saved, progress["version"])
            run.statistics.agent_steps = progress["agent_steps"]
        Service(settings, run, learner, interruption, saved=saved).run()
        assert not any(name.startswith("replay.") for name in saved)
        saved, progress = checkpoint.load(run.checkpoints.save(learner))
        assert "begins empty" not in (run.directory / "log.txt").read_text()
    facts = json.loads(saved["replay.facts"].tobytes())
    replay = settings.replay
    assert facts["began_at"] == 0 and facts["appended"] + facts["before_meeting"] == progress["agent_steps"]
    # The limit ends a run at a meeting, before the updates of the next epoch.
    due = replay.intensity * (facts["appended"] - replay.replay_start - replay.target_steps * (schedule == "both"))
    assert abs(facts["used"] - due) <= max(settings.batching.training_batch_min, 0.01 * due)
