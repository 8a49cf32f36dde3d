"""The paper's process: one of the three counts by one."""

from __future__ import annotations

import pytest
from controlled import hill, play

from ga3c.tuning.fast import WATCHED, Fast
from ga3c.tuning.measurement import Measurement
from ga3c.tuning.paper import Paper
from ga3c.tuning.trial import Decision, Reason


@pytest.mark.parametrize("kind", ["paper", "fast"])
def test_an_interrupted_trial_is_no_verdict_on_its_setting(kind: str) -> None:
    controller = (Paper if kind == "paper" else Fast)((4, 1, 1), (32, 2, 2), None, 0)
    assert controller.interrupt(Reason.EVALUATION) is None
    second = 0
    while controller.setting == controller.accepted:
        play(controller, hill, 1, first=second)
        second += 1
    play(controller, hill, 2, first=second)
    accepted, trial, state = controller.accepted, controller.setting, controller.state()
    assert accepted == (4, 1, 1) and len(state["window"]["seconds"]) == 2
    ended = controller.interrupt(Reason.EVALUATION)
    assert ended and (ended.before, ended.after, ended.decision, ended.reason) == (
        accepted, trial, Decision.ABORTED, Reason.EVALUATION)
    assert controller.setting == controller.accepted == accepted
    for time in range(100, 600):
        assert controller.observe(Measurement(time, 0.0, 1.0, 0.0, 0.0, True)) is None
        assert controller.setting == accepted, "nothing begins while nothing counts"
    changed = {name for name, value in controller.state().items() if state[name] != value}
    assert changed == {"trial", "window"}
    assert play(controller, hill, 200, first=600), "it goes on"


def test_a_neighbour_whose_trial_is_interrupted_is_due_again() -> None:
    controller = Fast((12, 1, 1), (32, 2, 2), None, 0)
    second = 0
    while controller.searching or controller.setting == controller.accepted:
        play(controller, hill, 1, first=second)
        second += 1
    waits = controller._state.probe_wait
    controller.interrupt(Reason.EVALUATION)
    play(controller, hill, WATCHED, first=second)
    assert controller.setting != controller.accepted and controller._state.probe_wait == waits


@pytest.mark.parametrize("kind", ["paper", "fast"])
def test_where_fewer_agents_can_be_had_no_more_are_asked_for(kind: str) -> None:
    controller = (Paper if kind == "paper" else Fast)((16, 1, 1), (32, 2, 2), None, 0)
    play(controller, hill, 100)
    second = 100
    while controller.setting == controller.accepted:
        play(controller, hill, 1, first=second)
        second += 1
    under_way = controller.setting
    ended = controller.restrict(5)
    assert controller.setting[0] <= 5 and controller.accepted[0] == 5
    assert ended and ended.after == under_way and ended.decision is Decision.ABORTED and controller.restrict(5) is None
    trials = play(controller, hill, 2000)
    assert trials and all(trial.after[0] <= 5 and trial.before[0] <= 5 for trial in trials)
    accepted = controller.accepted
    controller.restrict(9)
    assert controller.accepted == accepted


def test_what_was_measured_with_more_agents_than_can_be_had_is_forgotten() -> None:
    controller, second = Fast((16, 1, 1), (16, 2, 2), None, 0), 0
    while controller.setting[0] >= 16:
        play(controller, hill, 1, first=second)
        second += 1
    assert controller.setting == (8, 1, 1), "a trial of fewer, which are not too many"
    controller.restrict(12)
    assert controller.setting == controller.accepted == (12, 1, 1) and not len(controller.baseline)
    Fast((1, 1, 1), (12, 2, 2), None, 0).restore(controller.state())  # a checkpoint has it in bounds


def test_the_paper_changes_one_by_one_and_accepts_what_is_faster() -> None:
    controller = Paper((4, 1, 1), (20, 3, 3), None, 3, window=60.0)
    trials = play(controller, hill, 3600)
    assert len(trials) == 59  # the first minute measures the start
    for trial in trials:
        steps = [abs(a - b) for a, b in zip(trial.before, trial.after, strict=True)]
        assert sorted(steps) == [0, 0, 1]
        assert (trial.decision is Decision.ACCEPTED) == (trial.window.mean.rate > trial.baseline.mean.rate)
    assert 10 <= controller.accepted[0] <= 15
