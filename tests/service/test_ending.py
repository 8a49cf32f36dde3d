"""What fails while the service ends, and what then becomes of what was played."""

from __future__ import annotations

import threading
from collections.abc import Callable

import psutil
import pytest
from counting import CheckingModel, agent_processes, counting, end_run

from ga3c.learner.learner import DeviceFailed, Diverged, UpdateStats
from ga3c.runs.recorder import Recorder
from ga3c.service import supervisor
from ga3c.service.signals import Signals
from ga3c.service.supervisor import Service
from ga3c.transport.slots import Batch

MakeRun = Callable[..., Recorder]


def test_a_failure_while_stopping_is_not_swallowed(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CheckingModel()
    right = model.update

    def wrong(batch: Batch, *clock: int) -> UpdateStats:
        if (batch.steps < 5).any():  # rollouts are short only when agents drain
            raise ZeroDivisionError("at the end")
        return right(batch, *clock)

    monkeypatch.setattr(model, "update", wrong)
    settings = counting(agents=8)
    with pytest.raises(ZeroDivisionError, match="at the end"):
        Service(settings, make_run(settings), model, interruption).run()


def test_an_update_that_never_ends_is_no_clean_end(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    model, released = CheckingModel(), threading.Event()
    right = model.update

    def held(batch: Batch, *clock: int) -> UpdateStats:
        end_run()
        assert released.wait(60)
        return right(batch, *clock)

    monkeypatch.setattr(model, "update", held)
    monkeypatch.setattr(supervisor, "DRAIN_TRAINERS_SECONDS", 0.1)
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.5)
    run, before = make_run(counting()), set(threading.enumerate())
    try:
        with pytest.raises(DeviceFailed, match="an update did not end within 0.5 s"):
            Service(run.settings, run, model, interruption).run()
    finally:
        released.set()
        for thread in set(threading.enumerate()) - before:
            thread.join(60)


def test_no_update_begins_that_would_not_end_in_time(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    model, stopping, began = CheckingModel(), threading.Event(), list[int]()
    right = model.update

    def slow(batch: Batch, *clock: int) -> UpdateStats | None:
        if model.ending_early:
            return None
        if model.version >= 5:
            if not began:
                model.minibatch_seconds = 1.8
                end_run()
            began.append(model.version)
            assert stopping.wait(60)
        return right(batch, *clock)

    monkeypatch.setattr(model, "update", slow)
    monkeypatch.setattr(supervisor, "DRAIN_TRAINERS_SECONDS", 59.0)
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 60.0)
    run = make_run(counting(agents=8, trainers=1, steps=None, minutes=4))
    service = Service(run.settings, run, model, interruption)
    stop_all = service._host.agents.stop_all
    monkeypatch.setattr(service._host.agents, "stop_all", lambda at_once: (stopping.set(), stop_all(at_once=at_once)))
    assert service.run() == "SIGTERM"
    assert len(began) == 1


def test_updates_that_are_not_finite_while_stopping_change_nothing_of_how_it_ends(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    model, failed = CheckingModel(), list[int]()
    right = model.update

    def wrong(batch: Batch, *clock: int) -> UpdateStats:
        if (batch.steps < 5).any():
            failed.append(batch.agent_steps)
            psutil.wait_procs(agent_processes())  # others' rollouts wait meanwhile
            raise Diverged("ten in a row")
        return right(batch, *clock)

    monkeypatch.setattr(model, "update", wrong)
    run = make_run(counting(agents=8))
    assert Service(run.settings, run, model, interruption).run() == "--steps 6000"
    assert "While stopping: ten in a row." in (run.directory / "log.txt").read_text()
    run.statistics.drain()
    submitted = sum(len(moments) - 1 for moments in model.predicted.values())
    assert sum(failed) < run.statistics.dropped_steps == submitted - model.trained_steps


def test_an_agent_that_delivered_and_was_dismissed_has_not_failed_in_a_row(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(counting())
    made = Service(run.settings, run, CheckingModel(), interruption)
    agent, delivered = made._host.agents.agents[0], [0]
    monkeypatch.setattr(made._host.channel, "has_delivered", delivered.__contains__)
    for exitcode, failures, left in ((1, 2, 2), (0, 2, 0)):
        agent.failures = failures
        made._host.agents._note_drained(agent, exitcode)
        assert agent.failures == left
    delivered.clear()
    agent.failures = 2
    made._host.agents._note_drained(agent, 0)
    assert agent.failures == 2
    made._host.channel.close()
