"""The whole service with real processes and threads on the counting world: nothing lost, doubled or misdelivered."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import faulty
import numpy as np
import psutil
import pytest
from counting import CheckingModel, agent_processes, counting, end_run, events, resize

from ga3c.learner.learner import UpdateStats
from ga3c.runs.recorder import Recorder
from ga3c.service.signals import Signals
from ga3c.service.agent_pool import AgentsLost
from ga3c.service.supervisor import Service
from ga3c.transport.port import PREDICT
from ga3c.transport.slots import Batch


MakeRun = Callable[..., Recorder]


@pytest.mark.parametrize(("agents", "predictors", "trainers", "envs"),
                         [(1, 1, 1, 1), (8, 1, 1, 1), (3, 3, 3, 2), (8, 2, 3, 4)])
def test_every_observation_comes_back_once_and_whole(
        agents: int, predictors: int, trainers: int, envs: int, make_run: MakeRun, interruption: Signals) -> None:
    def stop(updates: int) -> None:
        if updates % 20 == 0 and model.trained_steps >= 4000 and len(model.trained) == agents * envs:
            end_run()

    model = CheckingModel(stop)
    settings = counting(agents=agents, predictors=predictors, trainers=trainers, envs_per_agent=envs, steps=None,
                        minutes=4)
    run = make_run(settings)
    assert Service(settings, run, model, interruption).run() == "SIGTERM"
    assert len(model.trained) == agents * envs
    model.assert_nothing_doubled()
    model.assert_nothing_lost()
    if trainers == 1:
        for path in model.order.values():
            assert path == sorted(path)


def test_no_agent_waits_much_longer_than_the_others(make_run: MakeRun, interruption: Signals) -> None:
    waited: dict[int, list[float]] = defaultdict(list)

    class Waits(CheckingModel):
        def predict(self, observation: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
            time.sleep(0.002)  # so that most of the agents wait
            return super().predict(observation)

        def update(self, batch: Batch, *clock: int) -> UpdateStats:
            for i in np.flatnonzero(batch.steps):
                agent = int(batch.observation[i, 0, 0].copy().view("<u4")[0])
                waited[agent].append(float(batch.seconds[i, PREDICT]) / batch.steps[i])
            if len(waited) == 32 and min(map(len, waited.values())) > 20:
                end_run()
            return super().update(batch, *clock)

    settings = counting(agents=32, agents_max=32, envs_per_agent=1, prediction_batch_max=4, steps=None, minutes=4)
    run = make_run(settings)
    Service(settings, run, Waits(), interruption).run()
    means = np.array([np.mean(each[2:]) for each in waited.values()])  # the first ones began alone
    assert len(means) == 32 and means.max() < 3 * np.median(means), np.sort(means)


def test_workers_added_and_removed_meanwhile_lose_nothing(
        make_run: MakeRun, interruption: Signals) -> None:
    chance = random.Random(1)
    sizes: list[tuple[int, int, int]] = []

    def change(updates: int) -> None:
        if updates % 40 == 0:
            sizes.append((chance.randint(1, 8), chance.randint(1, 3), chance.randint(1, 3)))
            resize(service, *sizes[-1])

    model = CheckingModel(change)
    settings = counting(steps=40_000)
    run = make_run(settings)
    service = Service(settings, run, model, interruption)
    service.run()
    assert len(sizes) > 20
    assert len(events(run, "agent_left")) > 10 and not events(run, "agent_died")
    model.assert_nothing_doubled()
    model.assert_nothing_lost()


def belongings(process: psutil.Process) -> tuple[int, int, int]:
    """Descriptors, threads and bytes of memory: of this process's, those that Python's objects take."""
    gc.collect()
    ours = process.pid == os.getpid()
    return (process.num_fds(), process.num_threads(),
            tracemalloc.get_traced_memory()[0] if ours else process.memory_info().rss)


def mapped_slots() -> int:
    """How many agents' shared memory this process has mapped; other tests' slots may be among them."""
    return Path("/proc/self/maps").read_text().count("memfd:rollouts")


def change_at_random(most: int, make_run: MakeRun) -> Recorder:
    """A whole run in which the numbers of workers are changed `most` times, checked for what it lost or doubled."""
    chance = random.Random(3)
    wanted, changes = [3, 1, 1], 0

    def change(updates: int) -> None:
        nonlocal changes
        if updates % 10 == 0 and changes < most:
            which = chance.randrange(3)
            wanted[which] = chance.choice([n for n in range(1, (9, 4, 4)[which]) if n != wanted[which]])
            resize(service, *wanted)
            changes += 1
        elif changes == most and updates % 50 == 0:
            end_run()

    model = CheckingModel(change)
    run = make_run(counting(steps=None))
    with contextlib.closing(Signals()) as interruption:
        service = Service(run.settings, run, model, interruption)
        assert service.run() == "SIGTERM" and changes == most
    model.assert_nothing_doubled()
    model.assert_nothing_lost()
    return run


@pytest.mark.parametrize("most", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_hundreds_of_changes_lose_and_leave_nothing(most: int, make_run: MakeRun) -> None:
    tracemalloc.start()
    try:
        change_at_random(20, make_run).close()  # what is there once, whatever is done with it
        alive = [psutil.Process(), *psutil.Process().children()]  # the fork server and the resource tracker
        before, mapped_before = [belongings(process) for process in alive], mapped_slots()
        run = change_at_random(most, make_run)
        run.close()
        after, mapped_after = [belongings(process) for process in alive], mapped_slots()
    finally:
        tracemalloc.stop()
    left = events(run, "agent_left")
    assert not events(run, "agent_died")
    assert {event["exitcode"] for event in left} == {0} and len(left) > most // 3
    assert mapped_after <= mapped_before
    for (descriptors, threads, memory), base in zip(after, before, strict=True):
        assert descriptors <= base[0] and threads <= base[1]
        assert memory - base[2] < 600_000, "more than the record of a second run"


def test_the_controller_tunes_a_real_run_and_loses_nothing(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ga3c.tuning.fast.REMEASURED", 2)
    monkeypatch.setattr("ga3c.tuning.comparison.LAST_LOOK", 5)

    def stop(updates: int) -> None:
        if updates % 100 == 0 and events(run, "trial"):
            end_run()

    model = CheckingModel(stop)
    settings = counting(steps=None, dynamic=True, agents=1)
    run = make_run(settings)
    Service(settings, run, model, interruption).run()
    trial = events(run, "trial")[0]
    assert trial["from"] == "1/1/1" and trial["to"] != "1/1/1" and trial["rate"] > 0
    assert len(events(run, "agent_started")) >= int(trial["to"].split("/")[0])
    model.assert_nothing_doubled()
    model.assert_nothing_lost()


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSEGV, marks=pytest.mark.slow)])
def test_killed_agents_are_replaced_and_their_rollouts_not_mixed_up(
        number: signal.Signals, make_run: MakeRun, interruption: Signals) -> None:
    chance = random.Random(2)
    killed: list[int] = []

    def kill(updates: int) -> None:
        if updates % 40 or len(killed) == 6:
            return
        if victims := [process for process in agent_processes() if process.pid not in killed]:
            victim = chance.choice(victims)
            killed.append(victim.pid)
            victim.send_signal(number)

    model = CheckingModel(kill)
    settings = counting(steps=30_000, agents=3, agents_max=3)
    run = make_run(settings)
    Service(settings, run, model, interruption).run()
    died = events(run, "agent_died")
    started = events(run, "agent_started")
    assert {event["exitcode"] for event in died} == {-number} and len(killed) == 6
    assert len(died) == sum(event["pid"] in killed for event in started) >= 6
    assert len(started) >= 3 + len(died) - 1  # the last one may have come at the end
    assert run.statistics.agent_deaths == len(died)
    model.assert_nothing_doubled()
    model.assert_no_gap()


def test_a_death_is_noticed_and_mended_within_seconds(make_run: MakeRun, interruption: Signals) -> None:
    killed = []

    def kill(updates: int) -> None:
        if updates == 200:
            killed.append(run.time)
            agent_processes()[0].kill()
        elif updates > 200 and updates % 10 == 0 and len(events(run, "agent_started")) == 3:
            end_run()

    model = CheckingModel(kill)
    settings = counting(steps=None, minutes=4, agents=2, agents_max=2)
    run = make_run(settings)
    Service(settings, run, model, interruption).run()
    died, = events(run, "agent_died")
    again = [event for event in events(run, "agent_started") if event["time"] >= died["time"]]
    assert [event["agent"] for event in again] == [died["agent"]] and again[0]["generation"] == 2
    assert again[0]["time"] - killed[0] < 60.0
    assert run.disturbances == 1 + len(events(run, "checkpoint"))


@pytest.mark.parametrize("method", ["predict", "update"])
def test_an_exception_in_a_thread_ends_the_run_with_that_exception(
        method: str, make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CheckingModel()
    calls = []
    right = getattr(model, method)

    def wrong(*arguments: object) -> object:
        calls.append(1)
        if len(calls) > 20:
            raise ZeroDivisionError("of the model")
        return right(*arguments)

    monkeypatch.setattr(model, method, wrong)
    settings = counting(predictors=2, trainers=2)
    with pytest.raises(ZeroDivisionError, match="of the model"):
        Service(settings, make_run(settings), model, interruption).run()


def test_a_signal_ends_the_run_and_loses_nothing(make_run: MakeRun, interruption: Signals) -> None:
    model = CheckingModel(lambda updates: end_run() if updates == 50 else None)
    settings = counting(steps=None)
    assert Service(settings, make_run(settings), model, interruption).run() == "SIGTERM"
    model.assert_nothing_lost()


def test_an_environment_that_always_fails_ends_the_run_and_says_where_its_traceback_is(
        make_run: MakeRun, interruption: Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty.importable(tmp_path, monkeypatch, "world_without_a_level",
                      "import multiprocessing, gymnasium\n"
                      "class Broken(gymnasium.Env):\n"
                      "    observation_space = gymnasium.spaces.Box(0, 255, (12,), 'uint8')\n"
                      "    action_space = gymnasium.spaces.Discrete(2)\n"
                      "    def reset(self, seed=None, options=None):\n"
                      "        if multiprocessing.current_process().name == 'MainProcess':\n"  # the check
                      "            return self.observation_space.sample(), {}\n"
                      "        raise LookupError('no such level')\n"
                      "    def step(self, action):\n"
                      "        return self.observation_space.sample(), 0.0, False, False, {}\n"
                      "gymnasium.register('NoLevel-v0', Broken)\n")
    settings = counting(game="world_without_a_level:NoLevel-v0", agents=1, agents_max=1)
    run = make_run(settings)
    monkeypatch.setattr("ga3c.service.workers.FIRST_PAUSE", 0.05)
    with pytest.raises(AgentsLost, match="all 1 failed.*LookupError: no such level"):
        Service(settings, run, CheckingModel(), interruption).run()
    assert (run.directory / "log.txt").read_text().count("Traceback") == 1, "once per kind"
    assert [event["quarantined"] for event in events(run, "agent_died")] == [False] * 4 + [True]
    assert [event["cause"] for event in events(run, "environment_failed")] == ["LookupError: no such level"]


def test_a_new_agent_is_nice_while_it_makes_its_environments_and_its_start_up_is_measured(
        make_run: MakeRun, interruption: Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty.importable(tmp_path, monkeypatch, "slow_to_make",
                      "import multiprocessing, os, time, gymnasium\n"
                      "from ga3c.envs.toys import Counting\n"
                      "class Slow(Counting):\n"
                      "    def __init__(self):\n"
                      "        if multiprocessing.current_process().name != 'MainProcess':\n"  # the check
                      f"            open({str(tmp_path / 'niceness')!r}, 'a').write(f'{{os.nice(0)}} ')\n"
                      "            time.sleep(0.25)\n"
                      "        super().__init__()\n"
                      "gymnasium.register('Slow-v0', Slow)\n")
    run = make_run(counting(game="slow_to_make:Slow-v0", agents=2, agent_nice=7, steps=None, minutes=4))

    def stop(updates: int) -> None:
        if len(service._host.agents._start_times) == 2:
            end_run()

    service = Service(run.settings, run, CheckingModel(stop), interruption)
    assert service._host.agents.start_seconds is None
    assert service.run() == "SIGTERM"
    assert set((tmp_path / "niceness").read_text().split()) == {str(min(19, os.nice(0) + 7))}
    seconds = service._host.agents.start_seconds
    assert seconds is not None and 0.5 <= seconds < 60.0, "of two environments"
