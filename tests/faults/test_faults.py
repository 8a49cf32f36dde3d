"""Whole services whose environments, agents or threads fail: the run goes on, and says what happened."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import dropwhile
from pathlib import Path

import faulty
import numpy as np
import psutil
import pytest
from counting import CheckingModel, agent_processes, counting_with_faults, end_run, events, resize

from ga3c.envs.toys import Counting
from ga3c.runs import reader as record
from ga3c.runs.recorder import Recorder
from ga3c.service import agent_pool
from ga3c.service.agent_pool import AgentsLost
from ga3c.service.signals import Signals
from ga3c.service.supervisor import Service

MakeRun = Callable[..., Recorder]


def lose_patience(service: Service, seconds: float = 2.0) -> None:
    """From now on an agent is silent after so many seconds: all have begun, however slow the machine is."""
    agents = service._host.agents
    agents._settings = agents._settings.changed(agent_timeout=seconds)


class Dropping(CheckingModel):
    """Knows that an episode may end, dropped, at any step: then the next begins with a new number."""

    def check(self, batch, i, e, steps):
        moments = batch.observation[i, :steps, e].copy().view("<u4").astype(int)
        for t in range(steps):
            agent, episode, step = moments[t]
            dropped = batch.truncated[i, t, e] and batch.episode_length[i, t, e] == 0
            if dropped:
                assert batch.reward[i, t, e] == 0 and batch.final_value[i, t, e] == batch.value[i, t, e]
                self.trained[agent][("dropped", episode)] += 1
            else:
                assert batch.reward[i, t, e] == step + 1
                assert np.isfinite(batch.final_value[i, t, e]) or not batch.truncated[i, t, e]


@pytest.mark.parametrize(("fault", "cause"), [
    ("crash", "RuntimeError: the emulator lost its mind"), ("nan", "a reward is not finite or too large"),
    ("huge", "a reward is not finite or too large"), ("misshapen", "WrongForm")])
def test_an_environment_that_fails_in_a_step_is_restarted_inside_its_agent(
        fault: str, cause: str, make_run: MakeRun, interruption: Signals, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    model = Dropping()
    run = make_run(counting_with_faults(game=faulty.make(tmp_path, monkeypatch, fault)))
    assert Service(run.settings, run, model, interruption).run() == "--steps 4000"
    assert not events(run, "agent_died"), "the agent goes on"
    told, = events(run, "environment_failed")
    assert cause in told["cause"]
    assert (run.directory / "log.txt").read_text().count("Traceback") == 1, "once per kind"
    assert run.statistics.environment_faults >= 10
    assert sum(moment[0] == "dropped" for moments in model.trained.values() for moment in moments) >= 10
    run.finish("the test", "it was not waited for")
    run.close()
    lengths = record.episodes(run.directory)["length"]
    assert len(lengths) > 20 and lengths.max() <= max(Counting.length(n) for n in range(10))


@pytest.mark.parametrize(("fault", "where", "cause", "code"), [
    ("segfault", "step", "signal", -signal.SIGSEGV), ("leave", "step", "exit", 7),
    ("stall", "step", "hung", -signal.SIGKILL),
    pytest.param("stall", "reset", "hung", -signal.SIGKILL, marks=pytest.mark.slow),
    ("crash", "constructor", "exception", 1)])
def test_an_agent_that_its_environment_ends_or_holds_up_is_restarted(
        fault: str, where: str, cause: str, code: int, make_run: MakeRun, interruption: Signals, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    probed = tmp_path / "failed-once"
    probed.touch()  # the main process makes one to look at it
    game = faulty.make(tmp_path, monkeypatch, fault, where, once=True)
    run = make_run(counting_with_faults(game=game, steps=None, minutes=4))
    probed.unlink()
    places = {"step": "in its environment", "reset": "making its environments"}

    def stop(updates: int) -> None:
        if probed.exists():  # the fault has come
            lose_patience(service)
            if updates % 20 == 0 and planned() and again():
                end_run()

    def planned() -> list[dict]:
        """Not one that was too slow to begin on a busy machine."""
        held = {event["agent"] for event in events(run, "agent_hung") if event["where"] == places[where]}
        return [event for event in events(run, "agent_died") if (event["cause"], event["exitcode"]) == (cause, code)
                and (cause != "hung" or event["agent"] in held)]

    def again() -> list[float]:
        """Seconds from that death to the agent's next start."""
        return [event["time"] - planned()[-1]["time"] for event in events(run, "agent_started")
                if event["agent"] == planned()[-1]["agent"] and event["time"] >= planned()[-1]["time"]]

    service = Service(run.settings, run, Dropping(stop), interruption)
    assert service.run() == "SIGTERM"
    assert again()[0] < 60.0
    log = (run.directory / "log.txt").read_text()
    if cause == "hung":
        hung = [event for event in events(run, "agent_hung") if event["agent"] == planned()[-1]["agent"]]
        assert "in stall" in log and hung[-1]["where"] == places[where] and 2.0 <= hung[-1]["silent"] < 60.0
    if cause == "signal":
        assert "Fatal Python error: Segmentation fault" in log


def test_a_stopped_agent_is_restarted_wherever_it_was(
        make_run: MakeRun, interruption: Signals) -> None:
    stopped: list[int] = []

    def stop(updates: int) -> None:
        if updates % 40:
            return
        victims = [process for process in agent_processes() if process.pid not in stopped]
        if len(stopped) < 3 and victims:
            stopped.append(victims[0].pid)
            victims[0].suspend()
            if len(stopped) == 3:
                lose_patience(service)
        if len(events(run, "agent_died")) >= 3:
            end_run()

    model = CheckingModel(stop)
    run = make_run(counting_with_faults(steps=None, minutes=4, agents=6, agents_max=6))
    service = Service(run.settings, run, model, interruption)
    assert service.run() == "SIGTERM"
    assert {event["cause"] for event in events(run, "agent_died")} == {"hung"}
    model.assert_nothing_doubled()
    model.assert_no_gap()


@pytest.mark.slow
def test_nobody_is_killed_for_waiting_or_for_a_pause_of_the_whole_service(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CheckingModel(lambda updates: end_run() if resumed.is_set() and updates % 20 == 0 else None)
    paused, over, resumed = list[str](), list[str](), threading.Event()
    predict, update = model.predict, model.update

    def slow(call, kind, seconds):
        def slowed(*arguments):
            if model.version > 20 and kind not in paused:
                paused.append(kind)
                lose_patience(service, 3.0)
                time.sleep(seconds)
                over.append(kind)
            return call(*arguments)
        return slowed

    monkeypatch.setattr(model, "predict", slow(predict, "predict", 4.5))
    monkeypatch.setattr(model, "update", slow(update, "update", 4.5))
    monkeypatch.setattr(agent_pool, "LONGEST_WATCH_GAP", 1.5)
    run = make_run(counting_with_faults(steps=None, minutes=4))
    tick = run.tick

    def resume():
        for process in agent_processes():
            process.resume()
        resumed.set()

    def inattentive(*arguments):
        # As after a suspend: nobody looked for a while. Not while agents wait, for nobody would be judged then.
        if len(over) == 2 and "all" not in paused:
            paused.append("all")
            for process in agent_processes():
                process.suspend()
            time.sleep(4.5)
            threading.Timer(0.5, resume).start()  # after the look
        return tick(*arguments)

    monkeypatch.setattr(run, "tick", inattentive)
    service = Service(run.settings, run, model, interruption)
    assert service.run() == "SIGTERM"
    assert set(paused) == {"predict", "update", "all"}
    # To make environments may take longer on a busy machine.
    assert [event for event in events(run, "agent_hung") if event["where"] == "in its environment"] == []


def test_an_agent_that_never_plays_is_quarantined_and_the_others_go_on(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ga3c.service.workers.FIRST_PAUSE", 0.02)
    made = []

    def kill(updates: int) -> None:
        for event in events(run, "agent_started"):
            if event["agent"] == 1 and event["pid"] not in made:
                made.append(event["pid"])
                with contextlib.suppress(ProcessLookupError):
                    os.kill(event["pid"], signal.SIGKILL)
        if any(event["quarantined"] for event in events(run, "agent_died")) and updates % 50 == 0:
            end_run()

    model = CheckingModel(kill)
    settings = counting_with_faults(steps=None)
    run = make_run(settings)
    monkeypatch.setattr("ga3c.transport.channel.Channel.has_delivered", lambda self, agent: agent != 1)
    Service(settings, run, model, interruption).run()
    assert [(event["agent"], event["quarantined"]) for event in events(run, "agent_died")] == [
        (1, False)] * 4 + [(1, True)]
    assert len(events(run, "agent_started")) == 3 + 4


def test_running_out_of_memory_is_named_and_takes_one_agent_away(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr(agent_pool, "oom_kills", lambda: len(killed))

    def kill(updates: int) -> None:
        if updates == 50:
            victim = agent_processes()[0]
            killed.append(victim.pid)
            victim.kill()
        elif updates == 200:
            end_run()

    settings = counting_with_faults(steps=None)
    run = make_run(settings)
    Service(settings, run, CheckingModel(kill), interruption).run()
    assert [event["cause"] for event in events(run, "agent_died")] == ["out of memory"]
    assert len(events(run, "agent_started")) == 3, "it is not replaced"
    assert "likely because memory ran out" in (run.directory / "log.txt").read_text()


def test_a_kill_long_after_memory_ran_out_elsewhere_is_a_kill(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(agent_pool, "oom_kills", lambda: looks.append(1) or (4 if len(looks) > 1 else 3))

    def kill(updates: int) -> None:
        if len(looks) >= 4 and not killed:
            killed.append(agent_processes()[0])
            killed[0].kill()
        elif killed and updates % 10 == 0 and len(events(run, "agent_started")) == 4:
            end_run()

    killed: list[object] = []
    settings = counting_with_faults(steps=None)
    run = make_run(settings)
    Service(settings, run, CheckingModel(kill), interruption).run()
    assert [event["cause"] for event in events(run, "agent_died")] == ["signal"]
    assert len(events(run, "agent_started")) == 4


def test_all_quarantined_names_the_exception(make_run: MakeRun, interruption: Signals, tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ga3c.service.workers.FIRST_PAUSE", 0.02)
    run = make_run(counting_with_faults(game=faulty.make(tmp_path, monkeypatch, "crash", "reset")))
    with pytest.raises(AgentsLost, match="all 3 failed again and again.*RuntimeError: the emulator lost its mind"):
        Service(run.settings, run, CheckingModel(), interruption).run()
    assert len(events(run, "agent_died")) == 15 and len(events(run, "environment_failed")) == 1


def test_a_kill_storm_changes_nothing_but_time(make_run: MakeRun, interruption: Signals) -> None:
    chance = random.Random(4)
    stopped: set[int] = set()  # which are left to the service
    run = make_run(counting_with_faults(steps=None, minutes=4, agents=6, agents_max=6))
    over = threading.Event()

    def enough(updates: int) -> None:
        if updates % 100 == 0:
            causes = [event["cause"] for event in events(run, "agent_died")]
            if len(causes) >= 12 and stopped:
                lose_patience(service)
                if "hung" in causes:
                    end_run()

    def storm() -> None:
        while not over.wait(0.3):
            agents = agent_processes()
            victims = [process for process in agents if process.pid not in stopped]
            if victims and service._host.channel.playing >= 4:  # the rest begin, which may take them long
                victim, number = chance.choice(victims), chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
                if len(agents) - len(victims) >= 3:
                    number = signal.SIGKILL  # were all six stopped at a time, nobody could play
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.send_signal(number)
                if number == signal.SIGSTOP:
                    stopped.add(victim.pid)

    model = CheckingModel(enough)
    service = Service(run.settings, run, model, interruption)
    killer = threading.Thread(target=storm)
    killer.start()
    try:
        assert service.run() == "SIGTERM"
    finally:
        over.set()
        killer.join()
    died = events(run, "agent_died")
    assert {"hung", "signal"} == {event["cause"] for event in died}
    rows = [json.loads(line) for line in (run.directory / "metrics.jsonl").read_text().splitlines()]
    still = [row["tps"] == 0 for row in dropwhile(lambda row: row["tps"] == 0, rows[:-1])]
    assert still and sum(still) <= len(still) / 2, "the others go on meanwhile"
    model.assert_nothing_doubled()
    model.assert_no_gap()


def test_a_slow_agent_is_neither_killed_nor_waited_for(
        make_run: MakeRun, interruption: Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty.importable(tmp_path, monkeypatch, "one_slow",
                      "import gymnasium, multiprocessing, time\nfrom ga3c.envs.toys import Counting\n"
                      "class Slow(gymnasium.Wrapper):\n"
                      "    def step(self, action):\n"
                      "        time.sleep(0.1 if multiprocessing.current_process().name == 'agent-2' else 0)\n"
                      "        return self.env.step(action)\n"
                      "gymnasium.register('Slow-v0', lambda: Slow(Counting()))\n")

    def end(updates: int) -> None:
        if len(model.trained) == 6 and updates >= 100:  # environments, two of each agent
            end_run()

    run = make_run(counting_with_faults(game="one_slow:Slow-v0", steps=None, minutes=4))
    model = CheckingModel(end)
    assert Service(run.settings, run, model, interruption).run() == "SIGTERM"
    assert not events(run, "agent_hung") and not events(run, "agent_died")
    steps = sorted(sum(moments.values()) for moments in model.trained.values())
    assert steps[2] > 3 * steps[1], "the others keep their speed"


def test_agents_that_are_to_leave_but_are_stuck_in_a_step_are_killed(
        make_run: MakeRun, interruption: Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty.importable(tmp_path, monkeypatch, "stuck_but_one",
                      "import gymnasium\nfrom faulty import Faulty\nfrom ga3c.envs.toys import Counting\n"
                      "gymnasium.register('Stuck-v0', "
                      "lambda: Faulty(Counting(), 'stall', 'step', 50, None, 'agent-0'))\n")

    def change(updates: int) -> None:
        played = len(model.predicted) == 6 and min(map(len, model.predicted.values())) > 50  # each environment
        if played and time.monotonic() - float(service._host.store.heartbeat[1:3].max()) > 0.5:  # they stand still
            resize(service, 1, 1, 1)
            lose_patience(service)
        if updates % 20 == 0 and len(events(run, "agent_left")) == 2:
            end_run()

    run = make_run(counting_with_faults(game="stuck_but_one:Stuck-v0", steps=None, minutes=4))
    model = CheckingModel(change)
    service = Service(run.settings, run, model, interruption)
    assert service.run() == "SIGTERM"
    left = sorted((event["agent"], event["exitcode"]) for event in events(run, "agent_left"))
    assert left == [(1, -signal.SIGKILL), (2, -signal.SIGKILL)] and not events(run, "agent_died")
    assert {event["cause"] for event in events(run, "agent_left")} == {"hung"} and len(events(run, "agent_hung")) == 2
    assert run.statistics.agent_deaths == 2
    assert "Agent 1 was draining, but was killed by SIGKILL." in (run.directory / "log.txt").read_text()


def test_agents_end_with_a_killed_main_process_even_in_a_stuck_environment(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(
        "import gymnasium\nfrom faulty import Faulty\nfrom ga3c.envs.toys import Catch\n"
        "gymnasium.register('Stuck-v0', lambda: Faulty(Catch(), 'stall', 'step', 3, None))\n")
    path = os.pathsep.join([str(Path(__file__).parent), *(entry or os.getcwd() for entry in sys.path)])
    process = subprocess.Popen(
        [sys.executable, "-m", "ga3c", "--game", "stuck:Stuck-v0", "--agents", "2", "--no-tensorboard",
         "--run-dir", "run"], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.DEVNULL)
    try:
        log = tmp_path / "run/metrics.jsonl"
        deadline = time.monotonic() + 200
        while not log.exists() or len(log.read_text().splitlines()) < 3:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        others = psutil.Process(process.pid).children(recursive=True)
        assert len(others) >= 3
    finally:
        process.kill()
        process.wait()
    _, alive = psutil.wait_procs(others, timeout=60)
    assert not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]
