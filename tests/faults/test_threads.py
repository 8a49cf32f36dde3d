"""Whole services whose threads, device or weights fail: the run goes on, and says what happened."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from counting import CheckingModel, counting_with_faults, end_run, events

from ga3c.learner import checkpoint
from ga3c.learner.checkpoint import Checkpoint
from ga3c.learner.learner import Diverged, TooLarge, UpdateStats
from ga3c.runs.recorder import Recorder
from ga3c.service import stall_alarm, supervisor
from ga3c.service.signals import Signals
from ga3c.service.stall_alarm import StallAlarm
from ga3c.service.supervisor import Service
from ga3c.settings.schedule import Kind, Schedule
from ga3c.transport.slots import Batch

MakeRun = Callable[..., Recorder]


@pytest.mark.parametrize("method", ["predict", "update"])
def test_a_thread_that_raises_once_is_restarted_and_no_agent_waits_for_ever(
        method: str, make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CheckingModel()
    right, calls = getattr(model, method), []

    def wrong(argument: object, *clock: int) -> object:
        calls.append(1)
        if len(calls) == 20:
            raise ZeroDivisionError("of the model")
        return right(argument, *clock)

    monkeypatch.setattr(model, method, wrong)
    settings = counting_with_faults()
    run = make_run(settings)
    Service(settings, run, model, interruption).run()
    failed, = events(run, "thread_failed")
    assert failed["cause"] == "ZeroDivisionError: of the model"
    assert run.disturbances == 1 + len(events(run, "checkpoint"))
    assert "Traceback" in (run.directory / "log.txt").read_text()
    model.assert_nothing_doubled()
    if method == "predict":
        model.assert_nothing_lost()


def test_a_batch_too_large_for_the_device_is_halved_and_retried(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CheckingModel()
    right, fits = model.update, [99]

    def small(batch, *clock: int):
        if model.version == 10:
            fits[0] = 1
        if len(batch) > fits[0]:
            raise TooLarge("the device has no memory")
        return right(batch, *clock)

    monkeypatch.setattr(model, "update", small)
    run = make_run(counting_with_faults())
    assert Service(run.settings, run, model, interruption).run() == "--steps 4000"
    assert [(event["agent_steps"], event["before"]) for event in events(run, "batch_halved")] == [(20, 30), (10, 30)]
    assert run.disturbances == 2 + len(events(run, "checkpoint"))
    assert not events(run, "thread_failed") and "at most 10 agent steps" in (run.directory / "log.txt").read_text()
    model.assert_nothing_doubled()
    model.assert_nothing_lost()


def test_a_device_without_memory_for_one_rollout_ends_the_run(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(batch, *clock: int):
        raise TooLarge("the device has no memory for anything")

    model = CheckingModel()
    monkeypatch.setattr(model, "update", never)
    run = make_run(counting_with_faults())
    with pytest.raises(TooLarge, match="for anything"):
        Service(run.settings, run, model, interruption).run()
    assert len(events(run, "thread_failed")) == 1, "it is tried again once"


def test_the_alarm_says_what_stands_still_once_for_each_stall() -> None:
    alarm, longest = StallAlarm(Schedule(1, kind=Kind.QUEUES, rollouts=2)), stall_alarm.STALL_SECONDS

    def check(seconds: float, version: int, waiting: int, queue: int, not_before: float = 0.0, blocked: int = 0) -> str:
        return alarm.check(100.0 + seconds, 100.0 + not_before, 5, version, 4, waiting, queue, blocked)

    assert not check(0, 1, 0, 2) and not check(longest - 1, 1, 0, 2)
    assert check(longest, 1, 0, 2) == "2 rollouts and 0 agents wait for an update"
    assert not check(longest + 1, 1, 0, 2), "it has been said"
    assert not check(longest + 2, 2, 0, 2) and not check(2 * longest + 1, 2, 0, 2), "it has moved"
    assert not check(2 * longest + 2, 2, 0, 2, not_before=longest + 3), "agents came or went meanwhile"
    assert check(2 * longest + 3, 2, 0, 3, not_before=longest + 3) == "3 rollouts and 0 agents wait for an update"
    assert not check(5 * longest, 2, 0, 1), "one rollout of two is no work"
    assert not check(5 * longest + 1, 2, 3, 1)
    assert check(6 * longest + 1, 2, 3, 1) == "3 agents wait for a prediction"
    assert not check(7 * longest, 3, 0, 1) and not check(7 * longest + 1, 3, 0, 1, blocked=1)
    assert check(8 * longest + 1, 3, 0, 1, blocked=1) == "1 rollouts and 1 agents wait for an update"


def test_in_rounds_agents_that_wait_for_a_slow_one_are_no_stall() -> None:
    alarm, longest = StallAlarm(Schedule(1, rollouts=2)), stall_alarm.STALL_SECONDS
    assert not any(alarm.check(longest * number, 0.0, 5, 1, 4, 3, 0, 0) for number in range(1, 5))
    assert not alarm.check(longest * 4 + 1, 0.0, 5, 1, 4, 4, 0, 0), "all wait since now"
    assert alarm.check(longest * 5, 0.0, 5, 1, 4, 4, 0, 0) == "4 agents wait for a prediction"


@pytest.mark.parametrize(("where", "agents", "what"), [
    ("predict", 3, "3 agents wait for a prediction"), ("update", 1, "1 rollouts and 1 agents wait for an update")])
def test_when_nothing_moves_all_stacks_are_logged(
        where: str, agents: int, what: str, make_run: MakeRun, interruption: Signals,
        monkeypatch: pytest.MonkeyPatch) -> None:
    model = CheckingModel()
    right, told = getattr(model, where), threading.Event()

    def hold(argument, *clock: int):
        if model.version > 20:
            monkeypatch.setattr(stall_alarm, "STALL_SECONDS", 1.0)  # not before: agents take long to start, too
            assert told.wait(60.0)
        return right(argument, *clock)

    monkeypatch.setattr(model, where, hold)
    settings = counting_with_faults(agents=agents)
    run = make_run(settings)
    stacks = run.note_stacks
    monkeypatch.setattr(run, "note_stacks", lambda: (stacks(), told.set()))
    Service(settings, run, model, interruption).run()
    stalled, *_ = events(run, "stalled")
    assert stalled["what"] == what
    assert "in hold" in (run.directory / "log.txt").read_text()


def test_agents_that_wait_are_not_silent_however_short_the_timeout(make_run: MakeRun, interruption: Signals) -> None:
    model = CheckingModel()
    right = model.predict
    slow = list[int]()

    def slowly(observation: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
        if len(model.predicted) == 6:  # environments: all agents play
            service._host.agents._settings = run.settings.changed(agent_timeout=0.05)
            time.sleep(0.4)
            slow.append(len(observation))
            if len(slow) == 8:
                end_run()
        return right(observation)

    model.predict = slowly  # type: ignore[method-assign]
    run = make_run(counting_with_faults(steps=None, minutes=4))
    service = Service(run.settings, run, model, interruption)
    assert service.run() == "SIGTERM"
    assert not events(run, "agent_hung") and not events(run, "agent_died")


def test_an_agent_is_not_silent_while_its_process_is_started(make_run: MakeRun, interruption: Signals) -> None:
    run = make_run(counting_with_faults())
    made = Service(run.settings, run, CheckingModel(), interruption)
    agent, made._host.store.heartbeat[0], made._host.agents._watching_since = made._host.agents.agents[0], 90.0, 0.0
    silent = []
    for agent.started_at in (0.0, 95.0):
        silent.append(made._host.agents._silent(agent, 100.0))
    assert silent == [10.0, 5.0]
    made._host.channel.close()


def test_a_stop_does_not_wait_for_all_passes_of_a_long_update(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "DRAIN_TRAINERS_SECONDS", 0.5)

    class Long(CheckingModel):
        """After 20 updates the next one takes half a minute, if nobody is in a hurry."""

        def __init__(self) -> None:
            super().__init__()
            self.in_a_hurry = threading.Event()

        def __setattr__(self, name: str, value: object) -> None:
            if name == "ending_early" and value:
                self.in_a_hurry.set()
            super().__setattr__(name, value)

        def update(self, batch: Batch, *clock: int) -> UpdateStats:
            if self.version == 20:
                end_run()
                self.in_a_hurry.wait(60)
                while "Updates take long" not in log.read_text() and time.monotonic() < deadline:
                    time.sleep(0.01)
            return super().update(batch, *clock)

    model = Long()
    run = make_run(counting_with_faults(envs_per_agent=1, trainers=1, steps=None, minutes=4))
    log, deadline = run.directory / "log.txt", time.monotonic() + 60
    assert Service(run.settings, run, model, interruption).run() == "SIGTERM"
    assert model.in_a_hurry.is_set()
    run.statistics.drain()
    told = re.search("Updates take long: ([0-9]+) rollouts", log.read_text())
    assert told and 1 <= int(told[1]) <= run.statistics.dropped_steps <= 5 * int(told[1]), "the last may be short"


def test_what_two_trainers_say_of_the_same_weights_is_answered_once(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(counting_with_faults())
    monkeypatch.setattr(run.checkpoints, "back_to_finite", lambda model: run.directory / "checkpoints/000000000001")
    model = CheckingModel()
    made = Service(run.settings, run, model, interruption)
    made._failures.extend([(Diverged("at 1"), 0.0), (Diverged("at 1, too"), 0.0)])
    made._answer_failures()
    assert len(events(run, "diverged")) == 1 and not made._failures
    made._failures.append((Diverged("at 9"), 0.0))
    with pytest.raises(Diverged, match="at 9"):
        made._answer_failures()
    made._failures.clear()
    made._host.channel.close()


def test_divergence_is_answered_once_from_the_newest_finite_checkpoint(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CheckingModel()
    model.learning_rate_factor, restored, right = 1.0, [], model.update
    states = iter([np.ones(1), np.full(1, np.nan)])
    monkeypatch.setattr(model, "go_back", restored.append, raising=False)
    settings = counting_with_faults(steps=None)
    run = make_run(settings)

    def diverge(batch, *clock: int):
        if model.version in (20, 40):
            saved = Checkpoint({"weights": next(states)}, {"agent_steps": model.version})
            checkpoint.save(run.checkpoints.directory, f"{model.version:012d}", saved, 9)
        if model.version in (60, 100):
            model.version += 1
            raise Diverged(f"at {model.version}")
        return right(batch, *clock)

    monkeypatch.setattr(model, "update", diverge)
    with pytest.raises(Diverged, match="at 101"):
        Service(settings, run, model, interruption).run()
    arrays, = restored
    assert arrays["weights"].tolist() == [1.0] and model.learning_rate_factor == 0.5
    told, = events(run, "diverged")
    assert told["back_to"] == "checkpoints/000000000020" and told["cause"] == "at 61"
