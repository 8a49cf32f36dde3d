"""The decisions of both controllers: what no measurement may make them do, and where they lead on simple machines."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ga3c.tuning.controller import (
    FIRST_LOOK,
    LONGEST_LOOK,
    OLD,
    PATIENCE,
    WATCHED,
    Controller,
    Fast,
    Measurement,
    Paper,
    Setting,
    Trial,
)

counts = st.tuples(st.integers(1, 300), st.integers(1, 9), st.integers(1, 9))
seconds = st.builds(Measurement, st.just(0.0), st.floats(0, 1e5), st.floats(0, 50), st.floats(0, 300),
                    st.floats(0, 300), st.booleans(), st.sampled_from([0.0, 0.05, 0.5, 1.0]),
                    st.sampled_from([0.0, 0.03, 1.0]))
processes: dict[str, Callable[..., Controller]] = {
    "fast": Fast, "paper": lambda *given: Paper(*given, window=3.0),
    "annealing": lambda *given: Paper(*given, window=2.0, temperature=0.3)}
controllers = st.builds(
    lambda kind, *given: processes[kind](*given), st.sampled_from(sorted(processes)), counts, counts,
    st.none() | st.floats(0.5, 30), st.integers(0, 99))


def at(time: int, second: Measurement) -> Measurement:
    return second._replace(time=float(time))


def play(controller: Controller, rate: Callable[[Setting, int], float], seconds: int, noise: float = 0.05,
         lag: Callable[[Setting], float] = lambda setting: 1.0, first: int = 0) -> list[Trial]:
    """A machine that answers at once."""
    rng, trials = np.random.default_rng(0), []
    for second in range(first, first + seconds):
        setting = controller.setting
        trial = controller.observe(Measurement(
            second + 1.0, rate(setting, second) * (1 + noise * rng.standard_normal()), lag(setting), 0.0, 0.0, False))
        trials += [trial] if trial else []
    return trials


def hill(setting: Setting, second: int = 0) -> float:
    """Two cores: best at 12 agents, and more threads cost a little."""
    n_a, n_p, n_t = setting
    return 3000 * min(n_a / 12, (12 / n_a) ** 0.3) * 0.97 ** (n_p + n_t - 2)


def peaked(setting: Setting, best: int) -> float:
    """Two cores beside some load: so many agents are best."""
    return 3000 * min(setting[0] / best, (best / setting[0]) ** 0.5) * 0.97 ** (setting[1] + setting[2] - 2)


def large(setting: Setting, second: int = 0) -> float:
    """A large machine: every kind of worker is a limit."""
    n_a, n_p, n_t = setting
    parts = np.array([400.0 * min(n_a, 160), 12_000.0 * min(n_p, 6), 16_000.0 * min(n_t, 4)])
    return float((parts ** -8).sum() ** (-1 / 8)) * (1 - n_a / 4000)


# ------------------------------------------------------------------------------------------------ whatever is measured

@examples(deadline=None, max_examples=150)
@given(controllers, counts, st.lists(seconds | st.integers(1, 300), max_size=120))
def test_counts_stay_in_bounds(controller: Controller, most: Setting, heard: list[Measurement | int]) -> None:
    controller._limits, controller._max_lag = most, 5.0
    controller.restrict(most[0])
    controller.accepted = controller._bounded(controller.accepted)
    for time, told in enumerate(heard):
        if isinstance(told, int):  # fewer agents can be had, or more again
            most = (told, *most[1:])
            controller.restrict(told)
        else:
            controller.observe(at(time, told))
        for setting in (controller.setting, controller.accepted):
            assert all(1 <= count <= limit for count, limit in zip(setting, most, strict=True))


@examples(deadline=None, max_examples=150)
@given(controllers, st.lists(seconds, max_size=120))
def test_an_undo_restores_setting_and_baseline_exactly(controller: Controller, heard: list[Measurement]) -> None:
    for time, second in enumerate(heard):
        accepted, baseline = controller.accepted, json.dumps(vars(controller.baseline))
        measured = json.dumps(controller.baseline.seconds)
        trial = controller.observe(at(time, second))
        if trial and trial.kept is None:  # what was measured is kept, and measured again
            assert trial.before == controller.setting == accepted
            assert json.dumps(controller.baseline.seconds) == measured
        elif trial and not trial.kept:
            assert trial.before == controller.accepted == accepted
            assert json.dumps(vars(controller.baseline)) == baseline
        elif trial:
            assert (trial.before, trial.after) == (accepted, controller.accepted)
            assert trial.seconds == len(controller.baseline)


@examples(deadline=None, max_examples=150)
@given(controllers, st.lists(seconds, max_size=60), st.integers(1, int(PATIENCE)))
def test_a_void_window_changes_nothing(controller: Controller, heard: list[Measurement], length: int) -> None:
    for time, second in enumerate(heard):
        controller.observe(at(time, second._replace(void=False)))
    before = controller.state()
    for time in range(len(heard), len(heard) + length):
        void = Measurement(time - 1.0, 1e9, 1e9, 0.0, 0.0, True)
        assert controller.observe(void) is None
        assert controller.state() == before


@examples(deadline=None, max_examples=150)
@given(controllers, st.lists(seconds, max_size=60), st.lists(seconds, max_size=60))
def test_after_a_restore_the_same_measurements_lead_to_the_same_decisions(
        controller: Controller, heard: list[Measurement], more: list[Measurement]) -> None:
    def anew() -> Controller:
        made = type(controller)((1, 1, 1), (300, 9, 9), None, 7)
        asked = vars(controller).keys() & {"_limits", "_max_lag", "_length"}
        vars(made).update({name: vars(controller)[name] for name in asked})
        return made

    for time, second in enumerate(heard):
        controller.observe(at(time, second))
    state = json.loads(json.dumps(controller.state()))
    other = anew()
    other.restore(state)
    assert other.state() == controller.state() == state
    for time, second in enumerate(more, len(heard)):
        assert other.observe(at(time, second)) == controller.observe(at(time, second))
    assert other.state() == controller.state()


@examples(deadline=None, max_examples=50)
@given(st.sampled_from(sorted(processes)), st.integers(0, 9), st.lists(seconds, max_size=100))
def test_the_same_seed_makes_the_same_decisions(kind: str, seed: int, heard: list[Measurement]) -> None:
    one, two = (processes[kind]((3, 1, 1), (40, 4, 4), None, seed) for _ in range(2))
    for time, second in enumerate(heard):
        assert one.observe(at(time, second)) == two.observe(at(time, second))
        assert one.setting == two.setting


# ------------------------------------------------------------------------------------------------ state

def test_a_window_asked_for_when_a_run_goes_on_is_the_one_that_counts() -> None:
    before, after = (Paper((2, 1, 1), (8, 2, 2), None, 0, window=window) for window in (5.0, 20.0))
    play(before, hill, 5)
    after.restore(before.state())
    trials = play(after, hill, 60, first=5)
    assert trials and all(trial.seconds == 20 for trial in trials)


@pytest.mark.parametrize("change", [
    {"process": "Paper"}, {"accepted": [9, 1, 1]}, {"_trial": [0, 1, 1]}, {"more": 1}, {"_tried": [7]},
    {"_fresh": {"seconds": 3}}, {"rng": {}}])
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(change: dict[str, Any]) -> None:
    controller = Fast((2, 1, 1), (8, 2, 2), None, 0)
    before = controller.state()
    with pytest.raises((ValueError, TypeError, LookupError)):  # what `Tuner` takes for a state that does not fit
        controller.restore(before | {"_streak": 9} | change)
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


def test_what_was_measured_in_another_hour_does_not_count() -> None:
    controller = Fast((12, 1, 1), (32, 2, 2), None, 0)
    play(controller, hill, 600)
    assert not controller.searching and len(controller.baseline) > 20
    controller.remeasure()
    play(controller, lambda setting, second: 1.05 * hill(setting), 10, first=5000)
    assert len(controller.baseline) == 10 and controller.baseline.newest == 5010


def test_seconds_from_before_a_long_disturbance_do_not_count() -> None:
    controller = Fast((2, 1, 1), (32, 2, 2), None, 0)
    play(controller, hill, 4)
    for second in range(4, 604):
        controller.observe(Measurement(second + 1.0, 1.0, 1.0, 0.0, 0.0, True))
    play(controller, hill, 1, first=604)
    assert controller.setting == controller.accepted and not len(controller.baseline)
    play(controller, hill, 4, first=605)
    assert controller.setting != controller.accepted and len(controller.baseline) == 5


# ------------------------------------------------------------------------------------------------ patience

@pytest.mark.parametrize("kind", processes)
def test_a_trial_without_a_second_that_counts_is_given_up(kind: str) -> None:
    controller = processes[kind]((2, 1, 1), (8, 2, 2), None, 0)
    second = 0
    while controller.setting == controller.accepted:
        play(controller, hill, 1, first=second)
        second += 1
    tried, ended = controller.setting, None
    for time in range(second, second + int(PATIENCE) + 5):
        ended = ended or controller.observe(Measurement(time, 0.0, 0.0, 0.0, 0.0, True))
    assert ended is not None and ended.kept is None and ended.after == tried
    assert "undisturbed" in ended.reason


def test_a_setting_that_can_twice_not_be_measured_is_turned_down() -> None:
    controller, told, second = Fast((2, 1, 1), (8, 2, 2), None, 0), [], 0
    while len(told) < 2:
        resting = controller.setting == controller.accepted
        trial = controller.observe(Measurement(second, 100.0, 1.0, 0.0, 0.0, not resting))
        told += [trial] if trial else []
        second += 1
    assert [(trial.after, trial.kept) for trial in told] == [((4, 1, 1), None), ((4, 1, 1), False)]
    play(controller, lambda setting, second: 100.0, 7, first=second)
    assert controller.setting not in ((2, 1, 1), (4, 1, 1)), "others are tried"


def test_a_trial_that_could_not_be_measured_cools_nothing() -> None:
    controller = Paper((2, 1, 1), (8, 2, 2), None, 0, window=3.0, temperature=0.3)
    play(controller, hill, 3)
    before = controller.state()["_temperature"]
    for time in range(3, 5 + int(PATIENCE)):
        controller.observe(Measurement(time, 0.0, 0.0, 0.0, 0.0, True))
    assert controller.state()["_temperature"] == before
    play(controller, hill, 10, first=100)
    assert controller.state()["_temperature"] < before


# ------------------------------------------------------------------------------------------------ the paper's process

@pytest.mark.parametrize("kind", ["paper", "fast"])
def test_an_interrupted_trial_is_no_verdict_on_its_setting(kind: str) -> None:
    controller = (Paper if kind == "paper" else Fast)((4, 1, 1), (32, 2, 2), None, 0)
    assert controller.interrupt("nothing is tried") is None
    second = 0
    while controller.setting == controller.accepted:
        play(controller, hill, 1, first=second)
        second += 1
    play(controller, hill, 2, first=second)
    accepted, trial, state = controller.accepted, controller.setting, controller.state()
    assert accepted == (4, 1, 1) and len(state["_window"]["seconds"]) == 2
    ended = controller.interrupt("for a while")
    assert ended and (ended.before, ended.after, ended.kept, ended.reason) == (accepted, trial, None, "for a while")
    assert controller.setting == controller.accepted == accepted
    for time in range(100, 600):
        assert controller.observe(Measurement(time, 0.0, 1.0, 0.0, 0.0, True)) is None
        assert controller.setting == accepted, "nothing begins while nothing counts"
    changed = {name for name, value in controller.state().items() if state[name] != value}
    assert changed == {"_trial", "_window"}
    assert play(controller, hill, 200, first=600), "it goes on"


def test_a_neighbour_whose_trial_is_interrupted_is_due_again() -> None:
    controller = Fast((12, 1, 1), (32, 2, 2), None, 0)
    second = 0
    while controller.searching or controller.setting == controller.accepted:
        play(controller, hill, 1, first=second)
        second += 1
    waits = controller._probe_wait
    controller.interrupt("for a while")
    play(controller, hill, WATCHED, first=second)
    assert controller.setting != controller.accepted and controller._probe_wait == waits


@pytest.mark.parametrize("kind", ["paper", "fast"])
def test_where_fewer_agents_can_be_had_no_more_are_asked_for(kind: str) -> None:
    controller = (Paper if kind == "paper" else Fast)((16, 1, 1), (32, 2, 2), None, 0)
    play(controller, hill, 100)
    under_way = controller.setting
    ended = controller.restrict(5)
    assert controller.setting[0] <= 5 and controller.accepted[0] == 5
    assert ended and ended.after == under_way and ended.kept is None and controller.restrict(5) is None
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


def test_the_paper_changes_one_by_one_and_keeps_what_is_faster() -> None:
    controller = Paper((4, 1, 1), (20, 3, 3), None, 3, window=60.0)
    trials = play(controller, hill, 3600)
    assert len(trials) == 59  # the first minute measures the start
    for trial in trials:
        steps = [abs(a - b) for a, b in zip(trial.before, trial.after, strict=True)]
        assert sorted(steps) == [0, 0, 1]
        assert trial.kept == (trial.rate > trial.rate_before)
    assert 10 <= controller.accepted[0] <= 15


def test_without_temperature_nothing_slower_is_kept_and_with_it_ever_less() -> None:
    def falling(setting: Setting, second: int) -> float:
        return 1000.0 / sum(setting)

    assert not any(trial.kept for trial in play(Paper((1, 1, 1), (50, 9, 9), None, 0, 2.0), falling, 400, noise=0.0))
    controller = Paper((1, 1, 1), (50, 9, 9), None, 0, window=2.0, temperature=5.0)
    slower = [trial.kept for trial in play(controller, falling, 1200, noise=0.0)
              if trial.rate < trial.rate_before]
    assert sum(slower[:30]) > sum(slower[-30:])


@pytest.mark.parametrize(("loss", "temperature", "kept"), [
    (0.1, 0.1, 0.368), (0.05, 0.2, 0.779), (0.3, 0.1, 0.050), (0.5, 0.05, 0.0)])
def test_a_slower_trial_is_kept_as_often_as_annealing_has_it(loss: float, temperature: float, kept: float) -> None:
    trials = [play(Paper((1, 1, 1), (2, 1, 1), None, seed, 1.0, temperature),
                   lambda setting, second: 1000.0 * (1 - loss * (setting[0] - 1)), 2, noise=0.0)
              for seed in range(800)]
    assert np.mean([trial.kept for trial, in trials]) == pytest.approx(kept, abs=0.04)  # exp(-loss / temperature)


# ------------------------------------------------------------------------------------------------ the fast process

def test_nothing_is_compared_with_what_the_accepted_setting_made_long_ago() -> None:
    controller, rng, newest, ages = Fast((8, 1, 1), (32, 2, 2), None, 0), np.random.default_rng(0), 0.0, []
    for time in np.arange(1.0, 400.0):
        running = controller.setting
        controller.observe(Measurement(time, 1000 * (1 + 0.1 * rng.standard_normal()), 1.0, 0.0, 0.0, False))
        newest = time if running == controller.accepted else newest
        if running != controller.setting != controller.accepted:
            ages.append(time - newest)
    assert LONGEST_LOOK <= max(ages) <= OLD  # some trials begin right after others


@pytest.mark.parametrize("seed", range(3))
def test_it_climbs_a_small_machine_and_wastes_no_time_on_threads(seed: int) -> None:
    controller = Fast((1, 1, 1), (32, 2, 2), None, seed)
    trials = play(controller, hill, 120)
    assert hill(controller.accepted) > 0.95 * 3000
    assert controller.accepted[1:] == (1, 1)
    assert sum(trial.after[1:] != (1, 1) for trial in trials) <= 5


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_threads_of_a_large_machine(seed: int) -> None:
    controller = Fast((1, 1, 1), (1024, 16, 16), None, seed)
    play(controller, large, 600)
    best = max(large((n_a, n_p, n_t)) for n_a in range(1, 400) for n_p in range(1, 10) for n_t in range(1, 10))
    assert large(controller.accepted) > 0.95 * best


def test_threads_that_pay_only_together_are_tried_together_also_in_small_steps() -> None:
    """What undid the coarse step may have been a hiccup. Predictors that are not needed cost a little."""
    controller = Fast((100, 1, 2), (100, 8, 8), None, 0, fine=True)
    play(controller, lambda setting, second: 1000.0 * min(setting[1], setting[2] / 2) * 0.98 ** setting[1], 600)
    assert controller.accepted[1:] == (4, 8)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_hiccup_does_not_hide_threads_that_pay_only_together(threads: int) -> None:
    controller, slow = Fast((100, threads, threads), (100, 8, 8), None, 0), 0

    def rate(setting: Setting, second: int) -> float:
        nonlocal slow
        hiccup = setting[1:] == (2 * threads, 2 * threads) and slow < 3
        slow += hiccup
        return 1000.0 * min(setting[1:]) * (setting[0] / 100) ** 0.3 * (0.3 if hiccup else 1.0)

    play(controller, rate, 600)
    assert slow == 3 and controller.accepted[1:] == (8, 8)


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_hiccup_in_a_trial_does_not_hide_that_it_pays(first: int) -> None:
    """Of one kind, too, which is else turned down after three seconds: three of ten seconds are slow."""
    controller, rng, tried = Fast((100, 1, 1), (100, 2, 1), None, 0), np.random.default_rng(first), 0
    for second in range(1000):
        if not controller.searching:
            break
        paying = controller.setting[1] == 2
        tried += paying
        rate = 1000.0 * (1.16 if paying else 1.0) * (0.5 if paying and first < tried <= first + 3 else 1.0)
        controller.observe(Measurement(
            second + 1.0, rate * (controller.setting[0] / 100) ** 0.3 * (1 + 0.05 * rng.standard_normal()),
            1.0, 0.0, 0.0, False))
    assert controller.accepted == (100, 2, 1)


@pytest.mark.parametrize(("idle", "others", "tried"), [
    (0.0, 0.0, False), (0.03, 0.05, False), (0.05, 0.0, True), (1.0, 0.0, True), (0.0, 0.5, True)])
def test_more_threads_are_tried_only_where_cores_are_left_or_others_take_them(
        idle: float, others: float, tried: bool) -> None:
    """Those of an hour's searches and of single neighbours afterwards, though here each would pay."""
    controller, rng, trials = Fast((8, 2, 2), (64, 4, 4), None, 0), np.random.default_rng(0), []
    for second in range(3600):
        n_a, n_p, n_t = controller.setting
        rate = 1000 * min(n_a / 12, 1.0) * (n_p * n_t) ** 0.5 * (1 + 0.05 * rng.standard_normal())
        trial = controller.observe(Measurement(second + 1.0, rate, 1.0, 0.0, 0.0, False, others, idle))
        trials += [trial] if trial else []
    more = [trial for trial in trials if trial.after[1] > trial.before[1] or trial.after[2] > trial.before[2]]
    assert bool(more) is tried and (controller.accepted[1:] == (4, 4)) is tried
    assert any(trial.after[0] > trial.before[0] for trial in trials)  # more agents make larger batches,
    assert any(sum(trial.after[1:]) < sum(trial.before[1:]) for trial in trials)  # and so do fewer threads


def test_the_way_up_by_threads_ends_where_no_core_is_left() -> None:
    """With four of each all are at work; the step after those that paid would be by a larger factor."""
    controller, rng, seen = Fast((64, 1, 1), (64, 64, 64), None, 0), np.random.default_rng(0), []
    for second in range(600):
        _, n_p, n_t = controller.setting
        rate = 1000 * min(n_p, n_t, 4) * (1 + 0.02 * rng.standard_normal())
        controller.observe(Measurement(second + 1.0, rate, 1.0, 0.0, 0.0, False, 0.0, 1 - min(n_p, n_t, 4) / 4))
        seen.append((n_p, n_t))
    assert controller.accepted[1:] == (4, 4) and max(min(each) for each in seen) == 4, seen


def test_steps_grow_while_they_pay() -> None:
    trials = play(Fast((1, 1, 1), (1024, 4, 4), None, 0), lambda setting, second: 100.0 * setting[0], 40)
    assert [trial.after[0] for trial in trials[:5]] == [2, 4, 16, 64, 256]
    assert all(trial.seconds == 3 for trial in trials[:5])


def test_a_search_ends_and_the_rate_is_watched() -> None:
    controller = Fast((10, 1, 1), (32, 2, 2), None, 0)
    play(controller, hill, 400)
    assert not controller.searching
    quiet = play(controller, hill, 1200, first=400)
    assert sum(trial.seconds for trial in quiet) < 0.12 * 1200


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_rate_that_changes_begins_a_new_search_within_a_minute(factor: float) -> None:
    controller = Fast((10, 1, 1), (32, 2, 2), None, 0)
    play(controller, hill, 400)
    assert not controller.searching
    play(controller, lambda setting, second: factor * hill(setting), 60, first=400)
    assert controller.searching


def test_a_hiccup_begins_none() -> None:
    controller = Fast((10, 1, 1), (32, 2, 2), None, 0)
    play(controller, hill, 400)
    play(controller, lambda setting, second: hill(setting) * (0.3 if 420 <= second < 423 else 1), 60, first=400)
    assert not controller.searching


# ------------------------------------------------------------------------------------------------ the ceiling

def crowded(setting: Setting) -> float:
    return 0.6 * setting[0]


@pytest.mark.parametrize("kind", ["fast", "paper"])
def test_lag_is_kept_under_its_ceiling_where_speed_alone_would_break_it(kind: str) -> None:
    def rising(setting: Setting, second: int) -> float:
        return 1000.0 * setting[0] ** 0.5

    seconds = 600 if kind == "fast" else 3600
    free, bound = (processes[kind]((1, 1, 1), (64, 2, 2), ceiling, 0) for ceiling in (None, 6.0))
    for controller in (free, bound):
        play(controller, rising, seconds, lag=crowded)
    assert crowded(free.accepted) > 6.0
    assert 4.0 < crowded(bound.accepted) <= 6.0


def test_near_the_ceiling_on_lag_single_agents_are_tried() -> None:
    controller = Fast((1, 1, 1), (64, 2, 2), 10.0, 0)
    trials = play(controller, lambda setting, _: 100.0 * setting[0], 600, noise=0.02, lag=lambda s: s[0] / 1.85)
    assert controller.accepted[0] == 18 and max(trial.after[0] for trial in trials if trial.kept) == 18  # 19: 10.3


def test_where_lag_leaves_no_room_for_an_agent_one_is_tried_with_fewer_threads() -> None:
    """With as many trainers, which do not pay, a fifth agent is over the ceiling."""
    def lag(setting: Setting) -> float:
        return 2.0 * setting[0] + 0.5 * (setting[2] - 1)

    for seed in range(6):
        controller = Fast((4, 1, 4), (64, 4, 4), 10.4, seed)
        play(controller, lambda setting, _: 100.0 * setting[0], 300, noise=0.02, lag=lag)
        assert controller.accepted[0] == 5 and controller.accepted[2] == 1


@pytest.mark.parametrize("trainers", [2, 4, 8])
def test_an_exchange_that_is_over_the_ceiling_does_not_hide_fewer_threads(trainers: int) -> None:
    """There is no room for an agent more, whatever the threads; fewer trainers are faster."""
    controller = Fast((20, 1, trainers), (64, 1, 8), 10.2, 0)
    play(controller, lambda setting, _: 2000.0 * 0.9 ** np.log2(setting[2]) * min(1, setting[0] / 20), 150, noise=0.02,
         lag=lambda setting: 0.5 * setting[0])
    assert controller.accepted == (20, 1, 1)


def test_how_far_lag_is_over_its_ceiling_tells_how_many_agents_are_too_many() -> None:
    controller = Fast((60, 1, 1), (64, 2, 2), 6.0, 0)
    trials = play(controller, lambda setting, second: 100.0 * setting[0], 60, lag=crowded)
    assert trials[0].after == (10, 1, 1) and trials[0].kept and crowded((10, 1, 1)) == 6.0


def test_a_lag_a_little_over_its_ceiling_costs_an_agent_and_no_more() -> None:
    controller = Fast((20, 1, 1), (64, 2, 2), 12.5, 0)
    for first, more in ((0, 0.0), (600, 0.6)):
        trials = play(controller, lambda setting, second: 100.0 * setting[0], 600, noise=0.02, first=first,
                      lag=lambda setting, more=more: 0.6 * setting[0] + more)
    assert [trial.after[0] for trial in trials if trial.kept] == [19]


def test_a_lag_over_the_ceiling_from_the_start_is_brought_under_it_whatever_it_costs() -> None:
    controller = Fast((64, 1, 1), (64, 2, 2), 6.0, 0)
    play(controller, lambda setting, second: 100.0 * setting[0], 300, lag=crowded)
    assert 4.0 < crowded(controller.accepted) <= 6.0


def test_a_start_that_was_found_before_is_searched_around_in_small_steps() -> None:
    for fine, most in ((True, 1.5), (False, 2.0)):
        trials = play(Fast((12, 1, 1), (64, 4, 4), None, 0, fine=fine), hill, 300)
        assert max(trial.after[0] / trial.before[0] for trial in trials) == pytest.approx(most, rel=0.1)


def test_neighbours_are_tried_more_and_more_rarely_until_something_changes() -> None:
    controller, begun = Fast((12, 1, 1), (64, 4, 4), None, 0), []

    def go_on(first: int, seconds: int, factor: float) -> None:
        for second in range(first, first + seconds):
            resting = controller.setting == controller.accepted and not controller.searching
            controller.observe(Measurement(second + 1.0, factor * hill(controller.setting), 1.0, 0.0, 0.0, False))
            if resting and controller.setting != controller.accepted:
                begun.append(second)

    go_on(0, 10_000, 1.0)
    assert np.diff(begun)[:5] == pytest.approx([240, 480, 480, 480, 480], abs=5)
    begun.clear()
    go_on(10_000, 1_000, 0.5)
    assert [240, 480] == pytest.approx(np.diff(begun)[-2:], abs=5), "a new search begins it anew"


def test_neighbours_that_are_slower_without_a_doubt_are_not_tried_again() -> None:
    """Of the agents' every number but the best is; of the threads' one may be as good."""
    def steep(setting: Setting, second: int) -> float:
        return 3000.0 * min(setting[0] / 16, 16 / setting[0]) * (1.0 if setting[1:] in ((2, 2), (2, 3)) else 0.8)

    for seed in range(6):
        controller, second = Fast((16, 2, 2), (64, 4, 4), None, seed), 0
        while controller.searching:
            play(controller, steep, 20, noise=0.02, first=second)
            second += 20
        trials = play(controller, steep, 20_000, noise=0.02, first=second)
        slower = [trial.after for trial in trials if trial.rate < 0.9 * trial.rate_before]
        assert len(slower) == len(set(slower)) and len(trials) > len(slower)


@pytest.mark.parametrize("lasts", [True, False])
def test_a_neighbour_stays_if_it_is_better_twice(lasts: bool) -> None:
    """Of the many looks of hours in which nothing is searched for, some find a gain by chance."""
    best = (16, 2, 2)
    controller, rng, trials = Fast(best, (64, 4, 4), None, 0), np.random.default_rng(0), []
    for second in range(2000):
        setting = controller.setting
        lucky = not controller.searching and setting != best and (lasts or not trials)
        rate = (3000 if setting == best else 3200 if lucky else 2900) * (1 + 0.05 * rng.standard_normal())
        trial = controller.observe(Measurement(second + 1.0, rate, 1.0, 0.0, 0.0, False))
        if trial and (trials or lucky):
            trials.append(trial)
        if len(trials) == 2:
            break
    assert trials[0].kept is False and trials[0].after == trials[1].after
    assert trials[1].kept is lasts and (controller.accepted == trials[1].after) is lasts


def until_one_is_to_be_repeated(controller: Controller, least_agents: int = 1) -> int:
    """Plays until a neighbour, better if it has so many agents, is to be tried once more; returns the seconds."""
    rng = np.random.default_rng(0)
    for second in range(4000):
        better = controller.setting[0] >= least_agents and not controller.searching
        rate = 3000 if controller.setting == (16, 2, 2) else 3200 if better else 2900
        trial = controller.observe(Measurement(
            second + 1.0, rate * (1 + 0.03 * rng.standard_normal()), 1.0, 0.0, 0.0, False))
        if trial and trial.reason.endswith("once more") and not controller.searching:
            return second + 1
    raise AssertionError("no trial was to be repeated")


def test_a_neighbour_beside_which_others_came_is_not_tried_again_and_again() -> None:
    """Programs that come or go with every trial."""
    controller, others, before, given_up = Fast((16, 2, 2), (64, 4, 4), None, 0), 0.0, (16, 2, 2), 0
    played = until_one_is_to_be_repeated(controller)
    for second in range(played, played + 200):
        if controller.setting not in (before, controller.accepted):
            others = 0.5 - others
        before = controller.setting
        trial = controller.observe(Measurement(second + 1.0, 3000.0, 1.0, 0.0, 0.0, False, others))
        given_up += trial is not None and trial.kept is None
    assert given_up == 1


def test_a_repeated_neighbour_whose_trial_is_interrupted_is_tried_again_and_no_other() -> None:
    controller, tried = Fast((16, 2, 2), (64, 4, 4), None, 0), []
    played = until_one_is_to_be_repeated(controller)
    interrupted = False
    for second in range(played, played + 100):
        if controller.setting != controller.accepted and not interrupted:
            ended = controller.interrupt("an evaluation")
            assert ended is not None
            tried.append(ended.after)
            interrupted = True
        trial = controller.observe(Measurement(
            second + 1.0, 3000.0 if controller.setting == (16, 2, 2) else 2700.0, 1.0, 0.0, 0.0, False))
        tried += [trial.after] if trial else []
    assert len(tried) == 2 and tried[0] == tried[1]


def test_a_neighbour_that_there_is_no_room_for_any_more_is_not_tried_again() -> None:
    controller = Fast((16, 2, 2), (64, 2, 2), None, 0)
    played = until_one_is_to_be_repeated(controller, least_agents=17)
    assert controller.restrict(16) is None
    for second in range(played, played + 200):
        assert controller.setting[0] <= 16
        controller.observe(Measurement(second + 1.0, 3000.0, 1.0, 0.0, 0.0, False))


def test_by_chance_alone_fewer_workers_do_not_lead_far_below_the_best() -> None:
    """A step down costs one to three percent: too little to be sure of in a trial, too much to be lost in each."""
    def slope(setting: Setting) -> float:
        return float(np.prod(np.divide(setting, (200, 16, 16)) ** 0.05))

    ends = []
    for seed in range(24):
        controller, rng = Fast((200, 16, 16), (200, 16, 16), None, seed, fine=True), np.random.default_rng(seed)
        for second in range(7200):
            rate = 3000 * slope(controller.setting) * (1 + 0.08 * rng.standard_normal())
            controller.observe(Measurement(second + 1.0, rate, 1.0, 0.0, 0.0, False))
        ends.append(slope(controller.accepted))
    assert np.mean(ends) > 0.977, ends


def test_a_lag_that_rises_long_after_the_search_is_brought_under_its_ceiling_soon() -> None:
    controller = Fast((12, 1, 1), (64, 4, 4), 5.0, 0)
    play(controller, hill, 3000)
    assert not controller.searching and crowded(controller.accepted) > 5.0
    play(controller, hill, 240, lag=crowded, first=3000)
    assert crowded(controller.accepted) <= 5.0


def test_on_a_plateau_there_are_no_more_agents_than_it_takes() -> None:
    """From 4 agents on nothing changes: of many looks at nothing some find a gain, which must not lead upwards."""
    def flat(setting: Setting, second: int) -> float:
        return 3000.0 * min(1.0, setting[0] / 4)

    ends = []
    for seed in range(12):
        for start in ((1, 1, 1), (16, 1, 1)):
            controller = Fast(start, (64, 2, 2), None, seed)
            play(controller, flat, 3600)
            ends.append(controller.accepted)
    agents = sorted(n_a for n_a, _, _ in ends)
    assert agents[0] >= 3 and agents[len(agents) // 2] <= 8 and agents[-1] <= 24, ends


def test_a_rate_that_wavers_by_a_tenth_is_no_reason_to_search_all_the_time() -> None:
    """Other programs and the game itself move the rate for half a minute at a time."""
    rng, wave, waves = np.random.default_rng(1), 0.0, []
    for _ in range(3600):
        wave = 0.97 * wave + rng.normal(0.0, 0.02)
        waves.append(1.0 + wave)
    assert 0.06 < np.std(waves) < 0.12
    controller = Fast((10, 1, 1), (32, 2, 2), None, 0)
    trials = play(controller, lambda setting, second: waves[second] * hill(setting), 3600)
    assert sum(trial.seconds for trial in trials) < 0.15 * 3600
    assert hill(controller.accepted) > 0.9 * hill((12, 1, 1))


def beside(controller: Controller, busy: Callable[[int], float], seconds: int, first: int = 0,
           rate: Callable[[Setting], float] = hill) -> list[Trial]:
    """Other programs take the share `busy(second)` of the cores, and of the rate."""
    rng, trials = np.random.default_rng(first), []
    for second in range(first, first + seconds):
        share = busy(second)
        now = (1 - share) * rate(controller.setting) * (1 + 0.05 * rng.standard_normal())
        trial = controller.observe(Measurement(second + 1.0, now, 1.0, 0.0, 0.0, False, share))
        trials += [trial] if trial else []
    return trials


def test_another_program_that_comes_and_goes_is_no_reason_for_a_change() -> None:
    """Every minute or so it takes half of the cores for some seconds, in which no setting is faster than another."""
    ends, trials = [], []
    for seed in range(8):
        rng, controller, taken = np.random.default_rng(seed), Fast((12, 1, 1), (64, 2, 2), None, seed), np.zeros(2400)
        second = 0
        while second < 2400:
            second += int(rng.exponential(40))
            length = 1 + int(rng.exponential(20))
            taken[second:second + length] = 0.5
            second += length
        for second in range(0, 2400, 10):
            trials += beside(controller, lambda second, taken=taken: taken[second], 10, second)
            ends += [hill(controller.accepted) / hill((12, 1, 1))] if second >= 600 else []
    assert np.mean(ends) > 0.95 and min(ends) > 0.75, (np.mean(ends), min(ends))
    assert 10 < sum(trial.kept is None for trial in trials) < len(trials) / 2


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.0), (0.0, 0.5)])
def test_a_load_that_comes_or_goes_in_a_trials_last_seconds_is_no_verdict_on_it(before: float, after: float) -> None:
    for seed in range(6):
        controller, share, given_up = Fast((4, 1, 1), (64, 2, 2), None, seed), before, None
        for second in range(600):
            for trial in beside(controller, lambda _, share=share: share, 1, second, lambda setting: 3000.0):
                if share == after:
                    given_up = trial.kept is None
            if given_up is not None:
                break
            if controller.setting != controller.accepted and len(controller._window) == LONGEST_LOOK - FIRST_LOOK:
                share = after
        assert given_up


def test_a_search_that_is_disturbed_again_and_again_waits_and_then_goes_on() -> None:
    controller, busy, second, trials = Fast((3, 1, 1), (64, 2, 2), None, 0), 0.0, 0, []
    while len(trials) < 3:
        resting = controller.setting == controller.accepted
        trials += beside(controller, lambda second, busy=busy: busy, 1, second)
        if resting and controller.setting != controller.accepted:
            busy = 0.5 - busy  # with each trial it begins, or ends
        second += 1
    assert [trial.kept for trial in trials] == [None] * 3
    began = second
    while controller.setting == controller.accepted:
        assert controller.searching
        beside(controller, lambda second, busy=busy: busy, 1, second)
        second += 1
    assert 115 < second - began < 130
    beside(controller, lambda second: busy, 300, second)
    assert hill(controller.accepted) > 0.9 * hill((12, 1, 1))


def test_programs_that_take_what_is_left_do_not_hold_a_search_up() -> None:
    """The more agents, the less is left for them: that is the setting's own doing."""
    controller = Fast((2, 1, 1), (64, 2, 2), None, 0)
    for second in range(600):
        n_a, n_p, n_t = controller.setting
        rate = hill(controller.setting)
        controller.observe(Measurement(second + 1.0, rate, 1.0, 0.0, 0.0, False, max(0.0, 1 - rate / 3000)))
    assert hill(controller.accepted) > 0.9 * hill((12, 1, 1))


@pytest.mark.parametrize(("first", "then", "told"), [(0.0, 0.0, False), (0.3, 0.3, True), (0.3, 0.0, True)])
def test_it_tells_whether_what_it_found_may_hold_beside_other_programs_only(
        first: float, then: float, told: bool) -> None:
    controller = Fast((2, 1, 1), (64, 2, 2), None, 0)
    beside(controller, lambda second: first, 20)
    assert controller.searching
    for second in range(20, 400):
        if controller.searching:
            beside(controller, lambda second: then, 1, second)
    assert not controller.searching and controller.beside_others is told


def test_a_short_visit_of_another_program_is_no_reason_to_search() -> None:
    controller = Fast((12, 1, 1), (64, 2, 2), None, 0)
    beside(controller, lambda second: 0.0, 600)
    assert not controller.searching
    searched = []
    for second in range(600, 800):
        beside(controller, lambda second: 0.5 * (610 <= second < 640), 1, first=second)
        searched.append(controller.searching)
    assert not any(searched)


def test_a_visit_is_no_reason_to_search_when_a_neighbour_would_be_tried_either() -> None:
    controller, first = Fast((12, 1, 1), (64, 2, 2), None, 0), 0
    while controller.searching:
        beside(controller, lambda second: 0.0, 1, first)
        first += 1
    due, trials, searched = controller._probe_at, [], []
    for second in range(first, first + 300):
        trials += beside(controller, lambda now: 0.5 * (due - 20 <= now < due + 20), 1, second)
        searched.append(controller.searching)
    assert trials and not any(searched)


@pytest.mark.parametrize(("when", "seconds"), [(40, 400), (600, 180)])
def test_a_load_that_lasts_is_searched_anew_whenever_it_began(when: int, seconds: int) -> None:
    """Beside it many agents are best, without it few: what was turned down in one is not in the other."""
    for seed in range(6):
        controller, searching = Fast((8, 1, 1), (64, 2, 2), None, seed), []
        first = 10_000 * seed
        beside(controller, lambda second: 0.0, when, first, lambda setting: peaked(setting, 4))
        assert controller.searching == (when == 40)
        for second in range(first + when, first + when + seconds):
            beside(controller, lambda second: 0.5, 1, second, lambda setting: peaked(setting, 32))
            searching.append(controller.searching)
        assert peaked(controller.accepted, 32) > 0.85 * 3000, controller.accepted
        assert (False, True) in zip(searching, searching[1:], strict=False), "a search after the load began"


def test_cores_that_came_free_are_searched_for_though_the_rate_is_the_same() -> None:
    """Beside the load ten agents were best; they are as fast without it, and twice as many twice as fast."""
    for seed in range(6):
        controller = Fast((10, 1, 1), (64, 2, 2), None, seed)
        for first, share, best in ((0, 0.5, 10), (1000, 0.0, 20)):
            beside(controller, lambda second, share=share: share, 1000, first,
                   lambda setting, share=share, best=best: min(setting[0], best) * 100.0 / (1 - share))
        assert controller.accepted[0] >= 19


def test_when_a_load_has_ended_what_was_found_without_it_is_tried_first() -> None:
    for seed in range(6):
        controller, found = Fast((8, 1, 1), (64, 2, 2), None, seed), []
        for visit in range(2):
            for share, best in ((0.0, 4), (0.5, 32)):
                first = 2000 * visit + (1000 if share else 0)
                trials = beside(controller, lambda second, share=share: share, 1000, first,
                                lambda setting, best=best: peaked(setting, best))
                found.append(controller.accepted)
                controller.restore(controller.state())
                if visit:
                    assert found[-3] in (trial.after for trial in trials[:2]), (found, trials[:3])
        assert peaked(found[2], 4) > 0.9 * 3000 and peaked(found[3], 32) > 0.9 * 3000, found


def test_a_search_does_not_go_back_to_what_it_has_just_left() -> None:
    climbs = 0
    for seed in range(8):
        controller, second = Fast((10, 1, 1), (10, 1, 1), None, seed), 0
        while controller.searching:
            play(controller, lambda setting, second: 600.0, 1, first=second)
            second += 1
        found = controller.accepted
        controller._limits = (200, 1, 1)
        trials = play(controller, lambda setting, second: 600.0 * (setting[0] / 10) ** 0.3, 900, first=second)
        first = next((number for number, trial in enumerate(trials) if trial.kept), len(trials))
        climbs += first < len(trials)
        assert found not in [trial.after for trial in trials[first:]]
    assert climbs >= 2


def test_a_jump_to_what_was_found_is_no_way_to_go_on() -> None:
    controller = Fast((8, 2, 1), (64, 2, 1), None, 0)
    controller._found_beside = [(0.0, (16, 1, 1))]
    controller._search_anew()
    trials = play(controller, lambda setting, second: 100.0 * setting[0] / setting[1], 40)
    assert trials[0].after == (16, 1, 1) and trials[0].kept
    assert trials[1].after[0] > 16


@pytest.mark.parametrize("length", [4, 5])
def test_a_state_of_an_earlier_version_is_gone_on_from(length: int) -> None:
    controller = Fast((4, 1, 1), (64, 2, 2), None, 0)
    play(controller, hill, 100)
    state = controller.state()
    for name in ("_found", "_others_at", "_given_up", "_doubted", "_wait_until", "_found_beside", "_likely",
                 "_worse", "_once"):
        del state[name]
    for window in ("baseline", "_window", "_fresh"):
        state[window]["seconds"] = [second[:length] for second in state[window]["seconds"]]
    restored = Fast((1, 1, 1), (64, 2, 2), None, 1)
    restored.restore({**state, "_changed": True})
    assert restored.accepted == controller.accepted and restored.baseline.seconds == controller.baseline.seconds
    play(restored, hill, 300, first=100)
    assert hill(restored.accepted) > 0.9 * hill((12, 1, 1))
