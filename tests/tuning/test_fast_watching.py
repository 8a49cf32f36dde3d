"""The fast process once its search is over: neighbours, external load, interruptions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from controlled import crowded, hill, peaked, play

from ga3c.tuning.comparison import FIRST_LOOK, LAST_LOOK
from ga3c.tuning.controller import Controller
from ga3c.tuning.fast import Fast
from ga3c.tuning.measurement import Measurement, Setting
from ga3c.tuning.trial import Decision, Trial


def test_a_lag_that_rises_later_is_brought_under_its_ceiling() -> None:
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
    assert sum(len(trial.window) for trial in trials) < 0.15 * 3600
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
    assert 10 < sum(trial.decision is Decision.ABORTED for trial in trials) < len(trials) / 2


@pytest.mark.parametrize(("before", "after"), [(0.5, 0.0), (0.0, 0.5)])
def test_a_load_that_changes_late_in_a_trial_is_no_verdict(before: float, after: float) -> None:
    for seed in range(6):
        controller, share, aborted = Fast((4, 1, 1), (64, 2, 2), None, seed), before, None
        for second in range(600):
            for trial in beside(controller, lambda _, share=share: share, 1, second, lambda setting: 3000.0):
                if share == after:
                    aborted = trial.decision is Decision.ABORTED
            if aborted is not None:
                break
            if controller.setting != controller.accepted and len(controller._state.window) == LAST_LOOK - FIRST_LOOK:
                share = after
        assert aborted


def test_a_search_disturbed_again_and_again_waits() -> None:
    controller, busy, second, trials = Fast((3, 1, 1), (64, 2, 2), None, 0), 0.0, 0, []
    while len(trials) < 3:
        resting = controller.setting == controller.accepted
        trials += beside(controller, lambda second, busy=busy: busy, 1, second)
        if resting and controller.setting != controller.accepted:
            busy = 0.5 - busy  # with each trial it begins, or ends
        second += 1
    assert [trial.decision for trial in trials] == [Decision.ABORTED] * 3
    began = second
    while controller.setting == controller.accepted:
        assert controller.searching
        beside(controller, lambda second, busy=busy: busy, 1, second)
        second += 1
    assert 115 < second - began < 130
    beside(controller, lambda second: busy, 300, second)
    assert hill(controller.accepted) > 0.9 * hill((12, 1, 1))


@pytest.mark.parametrize(("first", "then", "told"), [(0.0, 0.0, False), (0.3, 0.3, True), (0.3, 0.0, True)])
def test_it_tells_what_may_hold_beside_other_programs_only(first: float, then: float, told: bool) -> None:
    controller = Fast((2, 1, 1), (64, 2, 2), None, 0)
    beside(controller, lambda second: first, 20)
    assert controller.searching
    for second in range(20, 400):
        if controller.searching:
            beside(controller, lambda second: then, 1, second)
    assert not controller.searching and controller.under_external_load is told


def test_a_short_visit_of_another_program_is_no_reason_to_search() -> None:
    controller = Fast((12, 1, 1), (64, 2, 2), None, 0)
    beside(controller, lambda second: 0.0, 600)
    assert not controller.searching
    searched = []
    for second in range(600, 800):
        beside(controller, lambda second: 0.5 * (610 <= second < 640), 1, first=second)
        searched.append(controller.searching)
    assert not any(searched)


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
