"""The controller in a run: where it starts, which seconds it hears of, what is recorded, kept and remembered."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from counting import events

from ga3c.runs.recorder import Recorder
from ga3c.settings.files import configured
from ga3c.settings.machine import usable_cores
from ga3c.settings.schema import Settings
from ga3c.tuning.memory import recall, remember
from ga3c.tuning.tuner import SETTLED, WARM_UP, Tuner, start

MakeRun = Callable[..., Recorder]


def toy(**changed: Any) -> Settings:
    return configured(**{"game": "toy:catch", "tensorboard": False, **changed})


class Seconds:
    """Rows as the supervisor hands them to a tuner."""

    def __init__(self, tuner: Tuner) -> None:
        self.tuner, self.time, self.steps = tuner, 0.0, 0

    def pass_by(self, number: int, rate: Callable[[int], float] = lambda agents: 1000.0 * agents, lag: float = 2.0,
                settled: bool = True, length: float = 1.0, most: int | None = None, others: float = 0.0,
                ours: float = 0.75, **more: float) -> None:
        for _ in range(number):
            self.time += length
            self.steps += int(rate(self.tuner.setting[0]) * length)
            self.tuner.second({"time": self.time, "agent_steps": self.steps, "lag_mean": lag, "prediction_queue": 0,
                               "training_queue": 0, "cpu_agents": ours - 0.25, "cpu_server": 0.25,
                               "cpu_machine": ours + others * usable_cores(), **more}, settled,
                              self.tuner.controller._limits[0] if most is None else most)


# ------------------------------------------------------------------------------------------------ the start, the bounds

@pytest.mark.parametrize(("given", "first"), [
    ({}, (7, 2, 1)), ({"remember": False}, None), ({"start": "1/1/1"}, (1, 1, 1)), ({"start": "12/3/2"}, (12, 3, 2)),
    ({"agents": 4}, (4, 1, 1)), ({"trainers": 2}, None), ({"agents": 4, "start": "3/2/1"}, (3, 2, 1))])
def test_the_start_is_told_given_remembered_or_the_default(
        cache: Path, make_run: MakeRun, given: dict[str, Any], first: tuple[int, int, int] | None) -> None:
    settings = toy(**given)
    run = make_run(settings)
    remember(settings, run.spec.name, (7, 2, 1), 900.0, run.log)
    counts, remembered = start(settings, run)
    assert counts == (first or (settings.schedule.agents, settings.tuning.predictors, settings.tuning.trainers))
    assert remembered == (first == (7, 2, 1))


def test_what_is_remembered_is_brought_into_bounds(cache: Path, make_run: MakeRun) -> None:
    settings = toy(agents_max=9)
    run = make_run(settings)
    remember(settings, run.spec.name, (4000, 50, 1), 900.0, run.log)
    assert Tuner(settings, run, True).setting == (max(9, settings.schedule.agents), settings.schedule.most[1], 1)


@pytest.mark.parametrize("scarce", ["memory", "descriptors"])
def test_room_is_no_more_than_the_machine_can_hold(monkeypatch: pytest.MonkeyPatch, scarce: str) -> None:
    monkeypatch.setattr("ga3c.settings.schedule.usable_cores", lambda: 128)
    if scarce == "memory":
        monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PHYS_PAGES": 2**20}.get(name, 4096))
    else:
        monkeypatch.setattr("ga3c.settings.schedule.resource.getrlimit", lambda which: (1024, 4096))
    assert 10 < configured(agents=10).schedule.most[0] < 250


# ------------------------------------------------------------------------------------------------ seconds

def trial_begun(make_run: MakeRun, **changed: Any) -> tuple[Recorder, Seconds]:
    settings = toy(start="2/1/1", agents_max=64, max_lag=None, **changed)
    run = make_run(settings)
    seconds = Seconds(Tuner(settings, run, True))
    while seconds.tuner.setting == (2, 1, 1):
        seconds.pass_by(1)
    return run, seconds


@pytest.mark.parametrize(("on_cores", "share", "idle"), [
    (True, 0.75, 0.25), (True, 1.01, 0.0), (False, 0.75, 1.0)])
def test_idle_cores_are_told_where_they_bound_what_threads_can_bring(
        cache: Path, make_run: MakeRun, on_cores: bool, share: float, idle: float) -> None:
    settings = toy()
    seconds = Seconds(Tuner(settings, make_run(settings), on_cores))
    seconds.pass_by(WARM_UP + 6, ours=share * usable_cores())
    assert seconds.tuner.controller.baseline.mean.idle == pytest.approx(idle)


def test_the_first_seconds_of_a_run_do_not_count(cache: Path, make_run: MakeRun) -> None:
    """They are slow, and what a first trial is compared with would be found too low."""
    settings = toy(start="2/1/1", max_lag=None)
    seconds = Seconds(Tuner(settings, make_run(settings), True))
    seconds.pass_by(1, settled=False)
    seconds.pass_by(WARM_UP + SETTLED - 2, rate=lambda agents: 10.0)
    seconds.pass_by(5)
    assert seconds.tuner.controller.baseline.mean.rate == 2000.0 and seconds.tuner.setting == (4, 1, 1)


def test_trials_are_recorded_and_shown(cache: Path, make_run: MakeRun) -> None:
    run, seconds = trial_begun(make_run)
    seconds.pass_by(6)
    trial, *_ = events(run, "trial")
    assert trial["from"] == "2/1/1" and trial["to"] == "4/1/1" and trial["decision"] == "accepted"
    assert (trial["rate_from"], trial["rate"], trial["seconds"], trial["lag"]) == (2000.0, 4000.0, 3, 2.0)
    assert {"deviation_from", "deviation", "prediction_queue", "training_queue", "reason", "time"} <= trial.keys()
    assert run.tuning == "4/1/1 accepted +100%"


@pytest.mark.parametrize("disturb", ["unsettled", "disturbances", "late"])
def test_a_disturbed_second_and_the_one_after_it_do_not_count(cache: Path, make_run: MakeRun, disturb: str) -> None:
    run, seconds = trial_begun(make_run)
    trial = seconds.tuner.setting
    for _ in range(10):
        if disturb == "disturbances":
            run.disturbances += 1
        seconds.pass_by(1, rate=lambda agents: 0.0, settled=disturb != "unsettled",
                        length=3.0 if disturb == "late" else 1.0)
        seconds.pass_by(1, rate=lambda agents: 0.0)
        assert seconds.tuner.setting == trial
    seconds.pass_by(4)
    assert [event["rate"] for event in events(run, "trial")] == [4000.0]


def test_a_trial_during_which_another_program_began_is_aborted(cache: Path, make_run: MakeRun) -> None:
    run, seconds = trial_begun(make_run)
    while not events(run, "trial"):
        seconds.pass_by(1, others=0.5)
    trial, = events(run, "trial")
    assert trial["decision"] == "aborted"
    assert trial["reason"] == "other programs took more or less of the cores: 50% after 0%"
    assert seconds.tuner.setting == (2, 1, 1) and run.tuning == "4/1/1 aborted"
    seconds.pass_by(20, others=0.5)
    assert [each["decision"] for each in events(run, "trial")][1] == "accepted", "both were measured beside it"


def test_while_a_checkpoint_is_evaluated_the_accepted_setting_is_at_work(cache: Path, make_run: MakeRun) -> None:
    run, seconds = trial_begun(make_run)
    trial = seconds.tuner.setting
    assert trial == (4, 1, 1)
    run.evaluator = SimpleNamespace(checkpoint=Path("checkpoints/1"), pid=None)
    seconds.pass_by(1)
    assert seconds.tuner.setting == (2, 1, 1)
    aborted, = events(run, "trial")
    assert (aborted["to"], aborted["decision"], aborted["reason"]) == (
        "4/1/1", "aborted", "an evaluation began")
    seconds.pass_by(200)
    assert seconds.tuner.setting == (2, 1, 1) and len(events(run, "trial")) == 1
    run.evaluator.checkpoint = None
    seconds.pass_by(30)
    assert [(event["to"], event["decision"]) for event in events(run, "trial")[1:2]] == [("4/1/1", "accepted")]


def test_no_more_agents_are_tried_than_there_can_be(cache: Path, make_run: MakeRun) -> None:
    run, seconds = trial_begun(make_run)
    assert seconds.tuner.setting == (4, 1, 1)
    seconds.pass_by(1, most=3)
    assert seconds.tuner.setting == (2, 1, 1)
    seconds.pass_by(300, most=3)
    assert seconds.tuner.setting[0] <= 3
    ended, *others = events(run, "trial")
    assert (ended["to"], ended["decision"], ended["reason"]) == ("4/1/1", "aborted", "fewer agents are allowed now")
    assert others and all(int(trial["to"].split("/")[0]) <= 3 for trial in others)


def test_a_finished_search_is_recorded_and_remembered(cache: Path, make_run: MakeRun) -> None:
    run, seconds = trial_begun(make_run)
    seconds.pass_by(900, rate=lambda agents: 1000.0 * min(agents, 8))
    over = events(run, "search")[0]
    assert over["over"] is True and over["setting"] == "8/1/1" and abs(over["rate"] - 8000) < 1
    assert recall(run.settings, "toy:catch", run.log) == (8, 1, 1)
    assert recall(run.settings, "toy:identity", run.log) is None


@pytest.mark.parametrize(("remembered", "others"), [(True, 0.3), (False, 0.0)])
def test_what_is_best_beside_others_or_unwanted_is_not_remembered(
        cache: Path, make_run: MakeRun, remembered: bool, others: float) -> None:
    run, seconds = trial_begun(make_run, remember=remembered)
    seconds.pass_by(900, rate=lambda agents: 1000.0 * min(agents, 8), others=others)
    assert events(run, "search") and not cache.exists()


# ------------------------------------------------------------------------------------------------ going on

def test_a_resumed_controller_goes_on_and_measures_again(cache: Path, make_run: MakeRun) -> None:
    run, seconds = trial_begun(make_run)
    seconds.pass_by(12)
    accepted = seconds.tuner.controller.accepted
    assert accepted != (2, 1, 1)
    assert run.controller is seconds.tuner.controller
    again = make_run(run.settings)
    again.resumed_controller = json.loads(json.dumps(run.controller.state()))
    again.resumed_settings = run.settings.flat()
    assert Tuner(run.settings, again, True).setting == accepted
    assert Tuner(run.settings.changed(**{"start": "1/2/1"}), again, True).setting == (1, 2, 1)


def test_a_resumed_controller_searches_again_under_a_new_ceiling(
        cache: Path, make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    """As the advice says, of a search that ended at the ceiling on the lag: `a higher max_lag`."""
    settings = toy(start="1/1/1", agents_max=32, max_lag=4.0, remember=False)
    run = make_run(settings)
    seconds = Seconds(Tuner(settings, run, True))
    for _ in range(400):
        seconds.pass_by(1, lag=float(seconds.tuner.setting[0]))
    assert seconds.tuner.controller.accepted[0] <= 4 and not seconds.tuner.controller.searching
    for ceiling, least in ((4.0, 1), (40.0, 9)):
        again = make_run(settings)
        again.resumed_controller = json.loads(json.dumps(run.controller.state()))
        again.resumed_settings = json.loads(json.dumps(settings.flat()))
        resumed = Seconds(Tuner(settings.changed(max_lag=ceiling), again, True))
        resumed.time, resumed.steps = seconds.time, seconds.steps
        assert ("rely on what it found before: max_lag changed." in capsys.readouterr().out) == (ceiling == 40.0)
        for _ in range(100):
            resumed.pass_by(1, lag=float(resumed.tuner.setting[0]))
        assert least <= resumed.tuner.controller.accepted[0] < least + 30


def test_a_state_of_another_kind_is_reported_and_begun_again(
        cache: Path, make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    settings = toy(start="2/1/1")
    run = make_run(settings)
    run.resumed_controller = {"process": "Paper"}
    assert Tuner(settings, run, True).setting == (2, 1, 1)
    assert "begins again" in capsys.readouterr().out
