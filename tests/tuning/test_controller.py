"""Every controller: bounds, states, timeouts; what no measurement may make it do."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from controlled import controllers, counts, courses, hill, play, processes, told
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ga3c.tuning.controller import TIMEOUT, TIMEOUT_STARTS, Controller
from ga3c.tuning.fast import START_SHARE, Fast
from ga3c.tuning.measurement import Measurement, Setting
from ga3c.tuning.paper import Paper
from ga3c.tuning.trial import Decision, Reason


@examples(deadline=None, max_examples=150)
@given(controllers, counts, st.lists(st.tuples(st.integers(1, 300), courses), max_size=4))
def test_counts_stay_in_bounds(controller: Controller, most: Setting,
                               heard: list[tuple[int, list[Measurement | int]]]) -> None:
    controller._limits, controller._max_lag = most, 5.0
    controller.restrict(most[0])
    controller._state.accepted = controller._bounded(controller.accepted)
    time = 0
    for agents, course in heard:
        most = (agents, *most[1:])  # fewer can be had, or more again
        controller.restrict(agents)
        for second in told(controller, course, time):
            controller.observe(second)
            time += 1
            for setting in (controller.setting, controller.accepted):
                assert all(1 <= count <= limit for count, limit in zip(setting, most, strict=True))


@examples(deadline=None, max_examples=150)
@given(controllers, courses)
def test_a_rejection_restores_setting_and_baseline_exactly(
        controller: Controller, heard: list[Measurement | int]) -> None:
    for second in told(controller, heard):
        accepted, baseline = controller.accepted, repr(controller.baseline)
        measured = repr(controller.baseline.seconds)
        trial = controller.observe(second)
        if trial and trial.decision is Decision.ABORTED:  # what was measured stays, and is measured again
            assert trial.before == controller.accepted == accepted
            assert repr(controller.baseline.seconds) == measured
        elif trial and trial.decision is not Decision.ACCEPTED:
            assert trial.before == controller.accepted == accepted
            assert repr(controller.baseline) == baseline
        elif trial:
            assert (trial.before, trial.after) == (accepted, controller.accepted)
            assert len(trial.window) == len(controller.baseline)


@examples(deadline=None, max_examples=60)
@given(controllers, courses, st.integers(1, int(TIMEOUT)))
def test_a_void_window_changes_nothing(controller: Controller, heard: list[Measurement | int], length: int) -> None:
    first = 0
    for second in told(controller, heard):
        controller.observe(second._replace(void=False))
        first += 1
    before = controller.state()
    for time in range(first, first + length):
        void = Measurement(time - 1.0, 1e9, 1e9, 0.0, 0.0, True)
        assert controller.observe(void) is None
    assert controller.state() == before


@examples(deadline=None, max_examples=40)
@given(controllers, courses, courses)
def test_after_a_restore_decisions_are_the_same(
        controller: Controller, heard: list[Measurement | int], more: list[Measurement | int]) -> None:
    def anew() -> Controller:
        made = type(controller)((1, 1, 1), (300, 9, 9), None, 7)
        asked = vars(controller).keys() & {"_limits", "_max_lag", "_length"}
        vars(made).update({name: vars(controller)[name] for name in asked})
        return made

    time = 0
    for second in told(controller, heard):
        controller.observe(second)
        time += 1
    state = json.loads(json.dumps(controller.state()))
    other = anew()
    other.restore(state)
    assert other.state() == controller.state() == state
    for second in told(controller, more, time):
        assert other.observe(second) == controller.observe(second)
    assert other.state() == controller.state()


@pytest.mark.parametrize("change", [
    {"accepted": [9, 1, 1]}, {"trial": [0, 1, 1]}, {"more": 1}, {"rejected": [[1, 2]]}, {"fresh": {"seconds": 3}},
    {"draws": -1}, {"noise": math.nan}, {"searching": "yes"}])
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    controller = Fast((2, 1, 1), (8, 2, 2), None, 0)
    before = controller.state()
    with pytest.raises(ValueError) as refused:
        controller.restore(before | {"streak": 9} | change)
    assert controller.state() == before and "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", processes)
def test_a_state_of_another_process_or_version_is_refused(kind: str) -> None:
    controller = processes[kind]((2, 1, 1), (8, 2, 2), None, 0)
    before = controller.state()
    other = (Fast if kind != "fast" else Paper)((2, 1, 1), (8, 2, 2), None, 0).state()
    of_0_8 = {"accepted": [2, 1, 1], "baseline": {"seconds": [], "newest": 0.0}, "_trial": None, "_heard": 0.0,
              "_window": {"seconds": [], "newest": 0.0}, "_fresh": {"seconds": [], "newest": 0.0}, "searching": True,
              "process": type(controller).__name__, "rng": {"bit_generator": "PCG64"}}
    missing = {key: value for key, value in before.items() if key != "counted_at"}
    for state in (other, of_0_8, missing, {}, [], None, "2/1/1"):
        with pytest.raises(ValueError, match="another controller or version"):
            controller.restore(state)  # type: ignore[arg-type]
        assert controller.state() == before


def test_after_another_hour_the_accepted_setting_is_measured_again() -> None:
    controller = Fast((2, 1, 1), (32, 2, 2), None, 0)
    play(controller, hill, 20)
    controller.remeasure()
    assert controller.setting == controller.accepted
    play(controller, hill, 4, first=5000)
    assert controller.setting == controller.accepted
    play(controller, hill, 3, first=5004)
    assert controller.setting != controller.accepted


def test_seconds_from_before_a_long_disturbance_do_not_count() -> None:
    controller = Fast((2, 1, 1), (32, 2, 2), None, 0)
    play(controller, hill, 4)
    for second in range(4, 604):
        controller.observe(Measurement(second + 1.0, 1.0, 1.0, 0.0, 0.0, True))
    play(controller, hill, 1, first=604)
    assert controller.setting == controller.accepted and not len(controller.baseline)
    play(controller, hill, 4, first=605)
    assert controller.setting != controller.accepted and len(controller.baseline) == 5


@pytest.mark.parametrize("kind", processes)
def test_a_trial_without_a_second_that_counts_is_aborted(kind: str) -> None:
    controller = processes[kind]((2, 1, 1), (8, 2, 2), None, 0)
    second = 0
    while controller.setting == controller.accepted:
        play(controller, hill, 1, first=second)
        second += 1
    tried, ended = controller.setting, None
    for time in range(second, second + int(TIMEOUT) + 5):
        ended = ended or controller.observe(Measurement(time, 0.0, 0.0, 0.0, 0.0, True))
    assert ended is not None and ended.decision is Decision.ABORTED and ended.after == tried
    assert ended.reason is Reason.NOT_MEASURED


def test_a_setting_that_can_twice_not_be_measured_is_rejected() -> None:
    controller, told, second = Fast((2, 1, 1), (8, 2, 2), None, 0), [], 0
    while len(told) < 2:
        resting = controller.setting == controller.accepted
        trial = controller.observe(Measurement(second, 100.0, 1.0, 0.0, 0.0, not resting))
        told += [trial] if trial else []
        second += 1
    assert [(trial.after, trial.decision) for trial in told] == [
        ((4, 1, 1), Decision.ABORTED), ((4, 1, 1), Decision.REJECTED)]
    play(controller, lambda setting, second: 100.0, 7, first=second)
    assert controller.setting not in ((2, 1, 1), (4, 1, 1)), "others are tried"


def test_agents_that_take_long_to_start_are_waited_for() -> None:
    controller, start, second = Fast((2, 1, 1), (8, 2, 2), None, 0), 20.0, 0
    while controller.setting == controller.accepted:
        play(controller, hill, 1, first=second)
        second += 1
    void = Measurement(second + TIMEOUT + TIMEOUT_STARTS * start, 0.0, 0.0, 0.0, 0.0, True, agent_start_seconds=start)
    assert controller.observe(void) is None
    ended = controller.observe(void._replace(time=void.time + 1))
    assert ended and ended.decision is Decision.ABORTED


@pytest.mark.parametrize("start", [0.3, 30.0])
def test_slowly_starting_agents_are_changed_more_rarely(start: float) -> None:
    controller, begun, searches = Fast((12, 1, 1), (64, 4, 4), None, 0), [], []
    for second in range(20_000):
        searching, resting = controller.searching, controller.setting == controller.accepted
        rate = hill(controller.setting) * (1.0 if second < 10_000 or second % 700 < 350 else 0.5)
        controller.observe(Measurement(second + 1.0, rate, 1.0, 0.0, 0.0, False, agent_start_seconds=start))
        if resting and controller.setting != controller.accepted and not searching and not controller.searching:
            begun.append(second)
        if controller.searching and not searching:
            searches.append(second)
    usual = {0.3: 480, 30.0: 1500}[start]
    quiet = np.diff([second for second in begun if second < 10_000])
    assert quiet[2:] == pytest.approx([usual] * (len(quiet) - 2), abs=25) and len(quiet) > 4
    assert start / START_SHARE <= min(np.diff(searches)), "also where the rate changes all the time"
    assert (len(searches) > 20) == (start == 0.3)


@pytest.mark.parametrize("trainers", [1, 4])
def test_above_the_lag_ceiling_less_lag_decides_and_not_the_rate(trainers: int) -> None:
    controller = Fast((4, 1, trainers), (4, 1, 4), 5.0, 0)
    play(controller, lambda setting, second: 1000.0 * setting[2], 300, noise=0.02, lag=lambda setting: 6.0 + setting[2])
    assert controller.accepted[2] == 1
