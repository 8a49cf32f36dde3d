"""The fast process: where its search leads on simple machines, also under a ceiling on the policy lag."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest
from controlled import accepted, crowded, hill, large, play, processes
from simulated import TWO, profile

from ga3c.tuning.controller import Controller
from ga3c.tuning.fast import Fast
from ga3c.tuning.measurement import Measurement, Setting
from ga3c.tuning.paper import Paper
from ga3c.tuning.trial import Decision


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


def simulated(setting: Setting, second: int = 0) -> float:
    return profile(TWO, setting)["steps_per_second"]


def test_on_a_simulated_machine_it_takes_a_quarter_of_the_papers_time() -> None:
    limits = (16, 2, 2)
    best = max(simulated((n_a, n_p, n_t)) for n_a in range(1, 17) for n_p in (1, 2) for n_t in (1, 2))

    def seconds(controller: Controller) -> int:
        """To 95 % of the best."""
        course = []

        def rate(setting: Setting, second: int) -> float:
            course.append(simulated(controller.accepted))
            return simulated(setting)

        play(controller, rate, 1800)
        assert course[-1] > 0.9 * best
        return next(second for second, accepted in enumerate(course) if accepted > 0.95 * best)

    fast, paper = (median(seconds(process((1, 1, 1), limits, None, seed)) for seed in range(3))
                   for process in (Fast, Paper))
    assert fast < paper / 4


def test_threads_that_pay_only_together_are_tried_together() -> None:
    """What undid the coarse step may have been a hiccup. Predictors that are not needed cost a little."""
    controller = Fast((100, 1, 2), (100, 8, 8), None, 0, fine=True)
    play(controller, lambda setting, second: 1000.0 * min(setting[1], setting[2] / 2) * 0.98 ** setting[1], 600)
    assert controller.accepted[1:] == (4, 8)


def test_a_hiccup_in_a_trial_does_not_hide_that_it_pays() -> None:
    """Of one kind, too, which is else turned down after three seconds: three of ten seconds are slow."""
    first = 2
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
    (0.03, 0.05, False), (0.05, 0.0, True), (0.0, 0.5, True)])
def test_more_threads_are_tried_only_where_cores_are_left(idle: float, others: float, tried: bool) -> None:
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


def test_steps_grow_while_they_pay() -> None:
    trials = play(Fast((1, 1, 1), (1024, 4, 4), None, 0), lambda setting, second: 100.0 * setting[0], 40)
    assert [trial.after[0] for trial in trials[:5]] == [2, 4, 16, 64, 256]
    assert all(len(trial.window) == 3 for trial in trials[:5])


def test_a_search_ends_and_the_rate_is_watched() -> None:
    controller = Fast((10, 1, 1), (32, 2, 2), None, 0)
    play(controller, hill, 400)
    assert not controller.searching
    quiet = play(controller, hill, 1200, first=400)
    assert sum(len(trial.window) for trial in quiet) < 0.12 * 1200


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
    assert controller.accepted[0] == 18 and max(trial.after[0] for trial in trials if accepted(trial)) == 18  # 19: 10.3


def test_lag_over_its_ceiling_tells_how_many_agents_leave() -> None:
    controller = Fast((60, 1, 1), (64, 2, 2), 6.0, 0)
    trials = play(controller, lambda setting, second: 100.0 * setting[0], 60, lag=crowded)
    assert trials[0].after == (10, 1, 1) and accepted(trials[0]) and crowded((10, 1, 1)) == 6.0


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


def test_neighbours_that_were_twice_slower_are_not_tried_again() -> None:
    """Of the agents' every number but the best is; of the threads' one may be as good."""
    def steep(setting: Setting, second: int) -> float:
        return 3000.0 * min(setting[0] / 16, 16 / setting[0]) * (1.0 if setting[1:] in ((2, 2), (2, 3)) else 0.8)

    repeated = 0
    for seed in range(6):
        controller, second = Fast((16, 2, 2), (64, 4, 4), None, seed), 0
        while controller.searching:
            play(controller, steep, 20, noise=0.02, first=second)
            second += 20
        trials = play(controller, steep, 20_000, noise=0.02, first=second)
        slower = [trial.after for trial in trials if trial.window.mean.rate < 0.9 * trial.baseline.mean.rate]
        repeated += any(slower.count(each) > 2 for each in slower)
        assert len(trials) > len(slower)
    assert repeated <= 1, "by chance the one that is as good may look worse, too; then all are tried"


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
    assert trials[0].decision is Decision.RETRY and trials[0].after == trials[1].after
    assert accepted(trials[1]) is lasts and (controller.accepted == trials[1].after) is lasts
