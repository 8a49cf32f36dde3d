"""Schedules in rounds with agents in processes: byte for byte what serial mode does, and what faults do to them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from counting import CheckingModel, agent_processes, end_run
from ports import collected, make_store

from ga3c.learner.learner import UpdateStats
from ga3c.runs.recorder import Recorder
from ga3c.service.conductor import Conductor
from ga3c.service.serial import run_serial
from ga3c.service.signals import Signals
from ga3c.service.supervisor import Service
from ga3c.settings.files import configured
from ga3c.settings.schedule import Schedule
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Arrivals, Channel, Rollout
from ga3c.transport.slots import Batch

MakeRun = Callable[..., Recorder]
_TIMES = ("requested_at", "submitted_at", "seconds")
SCHEDULES = {
    "synchronous": {"schedule": "synchronous"}, "alternating": {"schedule": "alternating"},
    "multi-batch": {"schedule": "multi-batch", "update_groups": 2, "rollout_length": 4, "steps_per_update": 2},
    "multi-batch, twice": {"schedule": "multi-batch", "update_groups": 2, "rollout_length": 4, "steps_per_update": 1,
                           "slots_per_agent": 3}}


def in_rounds(**changes: Any) -> Settings:
    return configured(**{"game": "toy:counting", "tensorboard": False, "steps": 1200, "agents": 4, "envs_per_agent": 2,
                         "rollout_length": 5, **changes})


class Noting(CheckingModel):
    """Notes a digest of everything in a batch that is no time, its steps, and how old they are."""

    def __init__(self, on_update: Callable[[int], None] = lambda updates: None) -> None:
        super().__init__(on_update)
        self.digests: list[str] = []
        self.ages: list[np.ndarray] = []
        self.calls: list[int] = []

    def predict(self, observation: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
        self.calls.append(len(observation))
        return super().predict(observation)

    def update(self, batch: Batch, *clock: int) -> UpdateStats:
        digest, filled = hashlib.sha256(), batch.filled[:, :, 0]
        # It is written only where it means something; elsewhere stands what the slot had before.
        final_value = np.where(batch.truncated, batch.final_value, 0)
        for name, array in sorted((batch.arrays | {"final_value": final_value}).items()):
            if name not in _TIMES:
                by_step = array.ndim > 1 and array.shape[1] == filled.shape[1] and name != "following"
                digest.update(name.encode() + np.ascontiguousarray(array[filled] if by_step else array).tobytes())
        self.digests.append(digest.hexdigest()[:12])
        self.ages.append((self.version - batch.version)[filled])
        return super().update(batch, *clock)


def played(settings: Settings, make_run: MakeRun, interruption: Signals, model: Any = None) -> Any:
    """The model after a run with these settings, in processes or, with `serial`, in one thread."""
    run, model = make_run(settings), model or Noting()
    if settings.run.serial:
        run_serial(settings, run, model, interruption)
    else:
        assert Service(settings, run, model, interruption).run() == f"--steps {settings.run.steps}"
    run.statistics.drain()
    assert run.statistics.agent_steps == model.trained_steps >= settings.run.steps
    return model


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_processes_do_what_one_thread_does(schedule: str, make_run: MakeRun, interruption: Signals) -> None:
    one, many = (played(in_rounds(serial=serial, **SCHEDULES[schedule]), make_run, interruption)
                 for serial in (True, False))
    assert len(one.digests) > 20 and many.digests == one.digests and many.calls[:len(one.calls)] == one.calls
    ages = np.concatenate(one.ages)
    if schedule in ("synchronous", "alternating"):
        assert not ages.any() and set(one.calls) <= {2, 4, 6, 8}
    else:
        assert ages.max() == (3 if "twice" in schedule else 1)
    if "twice" not in schedule:
        one.assert_nothing_doubled()
    for uses in one.trained.values() if "twice" in schedule else ():
        # N / (SPU K) = 4 / (1 * 2); the run ended before the newest eight steps had had their second update.
        assert [uses[moment] for moment in sorted(uses)[:-8]] == [2] * (len(uses) - 8)
    one.assert_no_gap()


class Anywhere(Noting):
    """Takes episodes that begin anywhere."""

    def check(self, batch: Batch, i: int, e: int, steps: int) -> None:
        pass


def test_random_steps_before_learning_are_the_same_in_processes_and_in_one_thread(
        make_run: MakeRun, interruption: Signals) -> None:
    none, one, many = (
        played(in_rounds(serial=serial, schedule="synchronous", steps=400, random_start_steps=most), make_run,
               interruption, Anywhere()) for serial, most in ((True, 0), (True, 60), (False, 60)))
    assert many.digests == one.digests and set(one.digests).isdisjoint(none.digests)


def test_of_a_run_that_goes_on_only_an_agent_that_is_restarted_takes_random_steps(
        make_run: MakeRun, interruption: Signals) -> None:
    def change(updates: int) -> None:
        if updates == 5:
            agent_processes()[0].kill()
        if len(begun()) == 10:
            end_run()

    def begun() -> list[bool]:  # 0 are the rows that fill up a prediction
        return [(0, 0) in model.predicted[agent] for agent in sorted(model.predicted) if agent]

    model = Anywhere(change)
    run = make_run(in_rounds(schedule="synchronous", steps=None, minutes=4, random_start_steps=200))
    run.statistics.agent_steps = 100
    Service(run.settings, run, model, interruption).run()
    assert begun().count(True) == 8 and begun().count(False) == 2


def test_alternating_learns_from_what_synchronous_learns_from(make_run: MakeRun, interruption: Signals) -> None:
    found = [played(in_rounds(serial=True, schedule=schedule), make_run, interruption)
             for schedule in ("synchronous", "alternating")]
    assert found[0].digests == found[1].digests and found[0].calls.count(8) > 100 > found[1].calls.count(8) == 0


def test_an_agent_that_dies_is_done_without_and_comes_back(make_run: MakeRun, interruption: Signals) -> None:
    def change(updates: int) -> None:
        if updates == 10:
            agent_processes()[0].kill()
        rows.append(steps[-1])
        if updates > 10 and rows[-1] == 40 and min(rows) < 40:
            end_run()

    rows, steps = list[int](), [0]

    class Counts(Noting):
        def update(self, batch: Batch, *clock: int) -> UpdateStats:
            steps.append(batch.agent_steps)
            return super().update(batch, *clock)

    model = Counts(change)
    run = make_run(in_rounds(schedule="synchronous", steps=None, minutes=4))
    assert Service(run.settings, run, model, interruption).run() == "SIGTERM"
    died = [line for line in (run.directory / "events.jsonl").read_text().splitlines() if '"agent_died"' in line]
    assert len(died) == 1 and json.loads(died[0])["cause"] == "signal"
    assert min(rows) == 30 and not np.concatenate(model.ages).any()
    model.assert_nothing_doubled()


def test_what_was_trained_on_is_not_dropped_when_its_agent_dies(make_run: MakeRun, interruption: Signals) -> None:
    def change(updates: int) -> None:
        if updates == 20:  # all agents wait, each with one slot that was trained on once; half have one more
            for process in agent_processes():
                process.kill()
        if updates == 60:
            end_run()

    model = Noting(change)
    run = make_run(in_rounds(**SCHEDULES["multi-batch, twice"], steps=None, minutes=4))
    assert Service(run.settings, run, model, interruption).run() == "SIGTERM"
    run.statistics.drain()
    died = [line for line in (run.directory / "events.jsonl").read_text().splitlines() if '"agent_died"' in line]
    assert len(died) == 4
    assert run.statistics.dropped_steps <= 4 * 2 * 2, "what half of the agents had not been trained on, twice"
    assert all(set(ages) <= {0, 1, 2, 3} for ages in model.ages)


def test_a_run_is_stopped_in_the_middle_of_a_round(make_run: MakeRun, interruption: Signals) -> None:
    model = Noting(lambda updates: end_run() if updates == 5 else None)
    run = make_run(in_rounds(schedule="multi-batch", update_groups=4, rollout_length=20, steps=None))
    assert Service(run.settings, run, model, interruption).run() == "SIGTERM"
    run.statistics.drain()
    predicted, trained = (sum(map(len, found.values())) for found in (model.predicted, model.trained))
    assert 0 <= predicted - trained - run.statistics.dropped_steps <= 4 * 2, "no agent was hung up on with more"
    model.assert_nothing_doubled()


class Refusing(Noting):
    """Makes no update of every third batch, and fails once at a later one."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.lost = 0, 0

    def update(self, batch: Batch, *clock: int) -> Any:
        self.asked += 1
        if self.asked % 3 and self.asked != 10:
            return super().update(batch, *clock)
        self.lost += batch.agent_steps
        if self.asked == 10:
            raise RuntimeError("the model lost its mind")
        return None


def test_what_no_update_was_made_of_is_counted_as_dropped(make_run: MakeRun, interruption: Signals) -> None:
    run, model = make_run(in_rounds(schedule="synchronous")), Refusing()
    assert Service(run.settings, run, model, interruption).run() == "--steps 1200"
    run.statistics.drain()
    predicted, trained = (sum(map(len, found.values())) for found in (model.predicted, model.trained))
    assert model.lost > 100
    assert model.lost <= run.statistics.dropped_steps <= predicted - trained


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_at_the_end_every_step_has_been_trained_on_or_is_counted_as_dropped(
        schedule: str, make_run: MakeRun, interruption: Signals) -> None:
    run, model = make_run(in_rounds(**SCHEDULES[schedule])), Noting()
    Service(run.settings, run, model, interruption).run()
    run.statistics.drain()
    predicted, trained = (sum(map(len, found.values())) for found in (model.predicted, model.trained))
    asked_last = 4 * 2  # each environment's observation that its agent drained on, or was answered for and hung up
    assert 0 <= predicted - trained - run.statistics.dropped_steps <= asked_last


def test_what_waits_for_an_update_when_the_end_comes_is_counted_and_released() -> None:
    dropped, released = list[object](), list[tuple[int, int]]()
    channel = SimpleNamespace(connected={0: 1, 1: 1}, release=released.extend)
    store = SimpleNamespace(empty_batch=lambda *size: None, view=lambda slot: slot)
    statistics = SimpleNamespace(report_lost=dropped.append)
    conductor = Conductor(channel, store, None, Schedule(5, rollouts=2), 5, lambda *update: None, statistics,
                          lambda: False)
    conductor._rounds.asked(0, 0, 0, 1)
    conductor._rounds.asked(1, 7, 0, 1)
    assert conductor._rounds.due([0, 1])  # the rounds begin
    conductor._note(Arrivals([], [Rollout(1, 1, 7)], False))
    assert not dropped and not released, "agent 0 still plays"
    conductor._note(Arrivals([], [Rollout(0, 1, 0)], True))
    assert sorted(dropped) == [0, 7] and sorted(released) == [(0, 0), (1, 7)]


def test_a_thread_that_fails_goes_on_where_it_was(make_run: MakeRun, interruption: Signals) -> None:
    class Failing(Noting):
        def predict(self, observation: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
            if len(self.calls) == 30 and not self.digests.count("failed"):
                self.digests.append("failed")
                raise ZeroDivisionError
            return super().predict(observation)

    settings = in_rounds(schedule="synchronous")
    model = played(settings, make_run, interruption, Failing())
    model.digests.remove("failed")
    assert model.digests == played(settings.changed(serial=True), make_run, interruption).digests


PPO = {"algorithm": "ppo", "passes": 2, "minibatches": 2}


@pytest.mark.parametrize(("schedule", "updates", "algorithm"), [
    ("synchronous", 30, PPO), ("alternating", 30, PPO), ("multi-batch", 76, PPO), ("multi-batch, twice", 151, PPO),
    ("multi-batch, twice", 151, {"algorithm": "a3c", "correction": "vtrace", "passes": 1, "minibatches": 1}),
    ("synchronous", 30, {"algorithm": "a2c", "passes": 1, "minibatches": 1}),
    ("alternating", 30, {**PPO, "algorithm": "appo"})])
def test_weights_are_those_of_the_serial_run_to_the_byte(
        schedule: str, updates: int, algorithm: dict[str, Any], make_run: MakeRun, interruption: Signals) -> None:
    from ga3c.learner.learner import Learner
    states = []
    for serial in (True, False):
        settings = in_rounds(game="toy:catch", serial=serial, learning_rate=1e-2, **algorithm, **SCHEDULES[schedule])
        run = make_run(settings)
        model = Learner(settings, run.spec)
        (run_serial if serial else lambda *given: Service(*given).run())(settings, run, model, interruption)
        states.append(model.state())
    assert states[0][1:] == states[1][1:] and states[0][1] == updates
    for name, array in states[0][0].items():
        assert array.tobytes() == states[1][0][name].tobytes(), name


def test_who_waits_for_an_agent_that_cannot_be_started_looks_again_who_is_there() -> None:
    channel = Channel(make_store(3), 2)
    channel.open(0)
    channel.open(1)
    arrivals = channel.arrivals()
    channel.withdraw(1)
    assert next(arrivals) == Arrivals([], [], False) and channel.connected == {0: 1}
    channel.withdraw(0)
    channel.dismiss_trainer()
    assert collected(channel, 5) == ([], True), "a trainer takes no notice"
    channel.close()
