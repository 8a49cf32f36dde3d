"""Agents and threads that cannot be started, or only later: the whole service goes on without them."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psutil
import pytest
from counting import CheckingModel, agent_processes, counting, end_run, events, resize

from ga3c.runs.recorder import Recorder
from ga3c.service.signals import Signals
from ga3c.service.agent_pool import AgentsLost
from ga3c.service.supervisor import Service
from ga3c.transport.channel import Channel
from ga3c.transport.port import Port

MakeRun = Callable[..., Recorder]


def test_others_take_the_place_of_quarantined_agents(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    stages = [{0, 1, 2}, {0, 1, 3}, {0, 1, 3, 4}]
    end = [math.inf]

    def change(updates: int) -> None:
        if updates > end[0]:
            end_run()
        alive = {agent.number for agent in service._host.agents.agents if agent.alive}
        if not stages or alive != stages[0] or model.trained_steps == 0:
            return
        del stages[0]
        if len(stages) == 2:
            failing = service._host.agents.agents[2]
            monkeypatch.setattr(failing, "note_failure", lambda *how: False)  # as if for the fifth time in a row
            failing.process.kill()
        elif stages:
            resize(service, 5, 1, 1)  # one more than there can be
        else:
            end[0] = updates + 300

    model = CheckingModel(change)
    run = make_run(counting(steps=None, minutes=4, agents=3, agents_max=5))
    service = Service(run.settings, run, model, interruption)
    assert service.run() == "SIGTERM" and not stages
    assert sorted(event["agent"] for event in events(run, "agent_started")) == [0, 1, 2, 3, 4]
    model.assert_nothing_doubled()


@pytest.mark.parametrize("after", [0, 2])
def test_an_agent_for_which_the_system_has_no_process_is_done_without(
        after: int, make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    start, starts = ForkServerProcess.start, []

    def failing(process: ForkServerProcess) -> None:
        starts.append(process.name)
        if len(starts) > after:
            raise OSError(11, "Resource temporarily unavailable")
        start(process)

    monkeypatch.setattr(ForkServerProcess, "start", failing)
    settings = counting()
    run = make_run(settings)
    service = Service(settings, run, CheckingModel(), interruption)
    if not after:
        with pytest.raises(AgentsLost, match="none can be started: .*Resource temporarily unavailable"):
            service.run()
        return
    assert service.run() == "--steps 6000"
    assert starts == ["agent-0", "agent-1", "agent-2"], "it is not tried each second"
    told, = events(run, "agent_not_started")
    assert told["agent"] == 2 and "Resource temporarily unavailable" in told["cause"]


def test_an_agent_that_was_refused_is_tried_again_later(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    start, refused = ForkServerProcess.start, []

    def refusing(process: ForkServerProcess) -> None:
        if process.name == "agent-2" and len(refused) < 2:
            refused.append(time.monotonic())
            raise OSError(11, "Resource temporarily unavailable")
        start(process)

    def stop(updates: int) -> None:
        if len(events(run, "agent_started")) == 3:
            end_run()

    monkeypatch.setattr(ForkServerProcess, "start", refusing)
    monkeypatch.setattr("ga3c.service.workers.START_PAUSE", 0.3)
    run = make_run(counting(steps=None, minutes=4))
    assert Service(run.settings, run, CheckingModel(stop), interruption).run() == "SIGTERM"
    assert [event["agent"] for event in events(run, "agent_started")] == [0, 1, 2]
    assert refused[1] - refused[0] >= 0.3


def test_an_agent_for_which_there_is_no_descriptor_is_tried_again_later(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    right, refused = Channel.open, []

    def refusing(channel: Channel, agent: int) -> Port:
        if agent == 2 and not refused:
            refused.append(agent)
            raise OSError(24, "Too many open files")
        return right(channel, agent)

    def stop(updates: int) -> None:
        if len(events(run, "agent_started")) == 3:
            end_run()

    monkeypatch.setattr(Channel, "open", refusing)
    monkeypatch.setattr("ga3c.service.workers.START_PAUSE", 0.3)
    run = make_run(counting(steps=None, minutes=4))
    assert Service(run.settings, run, CheckingModel(stop), interruption).run() == "SIGTERM"
    event, = events(run, "agent_not_started")
    assert "Too many open files" in event["cause"]


def test_agents_are_restarted_though_the_runs_directory_was_moved(make_run: MakeRun, interruption: Signals) -> None:
    def change(updates: int) -> None:
        if updates == 30:
            run.directory.rename(moved)
            before.extend(agent_processes())
            for process in before:
                process.kill()
        if before and updates % 10 == 0 and len(set(agent_processes()) - set(before)) == 3:
            end_run()

    before = list[psutil.Process]()
    run = make_run(counting(steps=None, minutes=4))
    moved = run.directory.with_name("moved")
    model = CheckingModel(change)
    assert Service(run.settings, run, model, interruption).run() == "SIGTERM"
    moved.rename(run.directory)
    assert len(events(run, "agent_died")) == len(before) and not any(
        event["quarantined"] for event in events(run, "agent_died"))
    model.assert_nothing_doubled()


def test_a_run_ends_while_the_fork_server_does_not_answer(make_run: MakeRun, interruption: Signals) -> None:
    stopped = list[psutil.Process]()

    def change(updates: int) -> None:
        if not stopped and len(events(run, "agent_started")) == 3:
            stopped.append(agent_processes()[0].parent())
            stopped[0].suspend()
            resize(service, 4, 1, 1)
        if stopped and any(thread.name == "starting" for thread in threading.enumerate()):
            end_run()

    run = make_run(counting(steps=None, minutes=4))
    service = Service(run.settings, run, CheckingModel(change), interruption)
    try:
        assert service.run() == "SIGTERM"
    finally:
        for process in stopped:
            process.resume()
        for thread in threading.enumerate():
            if thread.name == "starting":
                thread.join(60)
    assert not events(run, "agent_not_started"), "nobody refused it"


def test_agents_are_restarted_when_the_process_they_were_forked_from_has_died(
        make_run: MakeRun, interruption: Signals) -> None:
    def change(updates: int) -> None:
        if not before and updates >= 30 and len(events(run, "agent_started")) == 3:
            forkservers = {process.parent() for process in agent_processes()}
            before.extend(agent_processes())
            for process in forkservers:
                process.kill()
        elif before and updates % 10 == 0 and len(events(run, "agent_started")) == 6 and not blocked:
            status = Path(f"/proc/{agent_processes()[0].ppid()}/status").read_text()
            blocked.append(int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16))
            end_run()

    before: list[psutil.Process] = []
    blocked: list[int] = []
    model = CheckingModel(change)
    run = make_run(counting(steps=None, minutes=4))
    assert Service(run.settings, run, model, interruption).run() == "SIGTERM"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        assert blocked[0] & 1 << (number - 1), "the new one is left alone by whoever asks for a checkpoint"
    assert len(before) == 3
    assert not psutil.wait_procs(before, timeout=60)[1]
    assert len(events(run, "agent_started")) == 6
    assert {event["exitcode"] for event in events(run, "agent_died")} == {255}
    model.assert_nothing_doubled()


@pytest.mark.parametrize("times, kind", [
    (1, ConnectionRefusedError), (2, ConnectionRefusedError), (1, EOFError), (1, BrokenPipeError)],
                         ids=["refuses", "refuses twice", "took the request with it", "died before it"])
def test_a_fork_server_that_is_just_ending_is_waited_for_once(
        times: int, kind: type[Exception], make_run: MakeRun, interruption: Signals,
        monkeypatch: pytest.MonkeyPatch) -> None:
    start, asked = ForkServerProcess.start, []

    def refusing(process: ForkServerProcess) -> None:
        if process.name == "agent-2":
            asked.append(time.monotonic())
            if len(asked) <= times:
                raise kind
        start(process)

    def stop(updates: int) -> None:
        if len(asked) == times == 2:
            if time.monotonic() > asked[1] + 1.6:  # it shall not be tried again for a while
                end_run()
        elif updates % 10 == 0 and len(events(run, "agent_started")) == 3:
            end_run()

    monkeypatch.setattr(ForkServerProcess, "start", refusing)
    monkeypatch.setattr("ga3c.service.workers.FORKSERVER_SECONDS", 0.5)
    monkeypatch.setattr("ga3c.service.workers.START_PAUSE", 3600.0)  # what is refused comes back no more
    run = make_run(counting(steps=None, minutes=4))
    assert Service(run.settings, run, CheckingModel(stop), interruption).run() == "SIGTERM"
    assert len(events(run, "agent_not_started")) == times and len(asked) == 2
    assert len(events(run, "agent_started")) == 4 - times, "that it is refused again is no matter of waiting"
    assert asked[1] - asked[0] >= 0.5


def test_no_agent_is_started_while_a_fork_server_is_just_ending(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    start, begun, refused = ForkServerProcess.start, [], []

    def refusing(process: ForkServerProcess) -> None:
        if process.name == "agent-2" and not refused:
            refused.append(time.monotonic())
            begun[0][0].kill()  # its index is vacant in a moment
            raise ConnectionRefusedError(111, "Connection refused")
        start(process)
        begun.append((process, time.monotonic()))

    def stop(updates: int) -> None:
        if updates % 10 == 0 and len(begun) == 4:
            end_run()

    monkeypatch.setattr(ForkServerProcess, "start", refusing)
    monkeypatch.setattr("ga3c.service.workers.FORKSERVER_SECONDS", 1.0)
    run = make_run(counting(steps=None, minutes=4))
    Service(run.settings, run, CheckingModel(stop), interruption).run()
    again = [(process.name, when) for process, when in begun[2:]]
    assert sorted(name for name, _ in again) == ["agent-0", "agent-2"]
    assert all(when >= refused[0] + 1.0 for _, when in again)


def test_a_system_without_another_thread_goes_on_with_those_there_are_and_tries_again(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    start, tried = threading.Thread.start, []

    def refusing(thread: threading.Thread) -> None:
        if thread.name == "predictor-1":
            tried.append(time.monotonic())
            if len(tried) == 1:
                raise RuntimeError("can't start new thread")
        start(thread)

    def stop(updates: int) -> None:
        if len(tried) == 2:
            end_run()

    monkeypatch.setattr(threading.Thread, "start", refusing)
    monkeypatch.setattr("ga3c.service.workers.THREAD_PAUSE", 0.3)
    model = CheckingModel(stop)
    run = make_run(counting(steps=None, minutes=4, predictors=2))
    assert Service(run.settings, run, model, interruption).run() == "SIGTERM"
    event, = events(run, "thread_not_started")
    assert event["cause"] == "predictor: can't start new thread" and tried[1] - tried[0] >= 0.3
    model.assert_nothing_doubled()
    model.assert_nothing_lost()


_TWO_AT_MOST = """
import errno, os
if os.environ.get("ROOM_FOR_TWO"):
    fork, children = os.fork, []

    def limited():
        alive = [pid for pid in children if os.path.exists(f"/proc/{pid}")]
        if len(alive) >= 2:
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        pid = fork()
        if pid:
            children.append(pid)
        return pid

    os.fork = limited
"""


def end_forkserver() -> None:
    """Whatever needs one starts another."""
    pid = forkserver._forkserver._forkserver_pid
    if pid:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_one_process_too_many_costs_no_agent_its_place(
        make_run: MakeRun, interruption: Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server dies of it, and with it all that is known of those that it had started."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(_TWO_AT_MOST)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("ROOM_FOR_TWO", "1")
    monkeypatch.setattr("ga3c.service.workers.START_PAUSE", 3600.0)
    end_forkserver()
    ended_at = []

    def change(updates: int) -> None:
        refused = "2 agents for now" in (run.directory / "log.txt").read_text()
        if refused and not ended_at:
            ended_at.append(updates + 200)
        if ended_at and updates == ended_at[0]:
            end_run()

    model = CheckingModel(change)
    run = make_run(counting(agents=3, steps=None, minutes=4))
    try:
        assert Service(run.settings, run, model, interruption).run() == "SIGTERM"
    finally:
        end_forkserver()
    died = events(run, "agent_died")
    assert {event["cause"] for event in died} == {"fork server"} and len(died) == 4, "twice both"
    assert not any(event["quarantined"] for event in died)
    model.assert_nothing_doubled()
