"""The simulated machine, and the controllers on a small one of it."""

from __future__ import annotations

import machine
import numpy as np
import plant
import plant_check
import pytest

from ga3c.settings.files import configured
from ga3c.settings.presets import PRESETS


@pytest.fixture(scope="module")
def table() -> plant.Table:
    return plant.Table(machine.MACHINES["2 cores"]._replace(limits=(16, 2, 2)))


def test_one_agent_alone_has_the_rate_that_its_costs_add_up_to() -> None:
    m = machine.MACHINES["8 cores"]
    cycle = (m.envs * m.step + m.ticket) * (1 + m.crowd / m.cores) + m.wake + m.call + m.each + m.predict
    cycle += m.envs * m.observation
    assert machine.simulate(m, (1, 1, 1)).rate == pytest.approx(m.envs / cycle, rel=0.03)


def test_no_machine_does_more_than_its_cores_and_its_update_lock_can() -> None:
    small, large = machine.MACHINES["2 cores"], machine.MACHINES["8 cores"]
    least = small.step + small.ticket / small.envs + small.observation + small.sample
    assert machine.simulate(small, (24, 2, 2)).rate < small.cores / least
    update = large.train + large.sample * large.batch
    assert machine.simulate(large, (60, 2, 4)).rate == pytest.approx(large.batch / update, rel=0.03)


def test_passes_make_updates_longer_and_count_neither_as_steps_nor_as_versions() -> None:
    m = machine.MACHINES["8 cores"]._replace(passes=3, minibatches=4, forward=1)
    found = machine.simulate(m, (8, 1, 1), 160)
    update = 12 * m.train + 3 * m.sample * m.batch + m.predict + m.observation * m.batch
    assert m.update(m.batch) == pytest.approx(update)
    assert found.rate == pytest.approx(m.batch / (update + m.gather * m.batch), rel=0.03)
    # Updates are slow: all slots are full or under way, and each rollout is one update.
    assert 0.9 * m.slots * 8 < found.lag <= m.slots * 8


def test_cores_that_are_free_share_an_update() -> None:
    m = machine.MACHINES["8 cores"]
    alone, shared = (machine.simulate(m._replace(threads=threads), (16, 1, 1), 160).rate for threads in (1, 4))
    assert alone == pytest.approx(m.batch / (m.update(m.batch) + m.gather * m.batch), rel=0.03) and shared > 1.5 * alone


def test_a_machine_learns_as_settings_say() -> None:
    default = machine.MACHINES["2 cores"].learning(configured())
    assert (default.envs, default.slots, default.rollout_length, default.batch) == (16, 2, 64, 2048)
    assert (default.passes, default.minibatches, default.forward, default.threads) == (3, 8, 1, 2)
    fast = machine.MACHINES["2 cores"].learning(configured(**PRESETS["fast"]))
    assert fast == machine.MACHINES["2 cores"], "what its costs were fitted to"


def test_an_update_is_of_whole_rollouts_and_costs_as_much() -> None:
    m = machine.MACHINES["8 cores"]._replace(envs=32)
    update = m.train + (m.sample + m.gather) * 32 * m.rollout_length
    assert machine.simulate(m, (16, 1, 1), 160).rate == pytest.approx(32 * m.rollout_length / update, rel=0.03)


def test_lag_grows_with_the_agents_and_is_bounded_by_their_slots() -> None:
    m = machine.MACHINES["8 cores"]
    few, many = (machine.simulate(m, (n_a, 1, 1)).lag for n_a in (4, 40))
    assert 0 <= few < many < 40 * m.slots * m.envs * m.rollout_length / m.batch


def test_the_table_is_the_simulation_between_its_points_too(table: plant.Table) -> None:
    for setting in ((1, 1, 1), (6, 1, 2), (11, 2, 1)):
        assert table[setting].rate == pytest.approx(machine.simulate(table.machine, setting, 160, 1).rate, rel=0.05)
    assert table[table.best()].rate == table.rates.max()


def test_under_a_ceiling_only_settings_below_it_count(table: plant.Table) -> None:
    ceiling = table[table.best()].lag / 2
    capped = table[table.best(ceiling)]
    assert capped.lag <= ceiling and capped.rate == table.rates[table.fields[1] <= ceiling].max() < table.rates.max()
    course = plant.Course(*(np.full(700, value) for value in (1000.0, 1000.0, 1000.0, 10.4)))
    assert plant.scores(course, 1000.0, 10.0)["end"] == plant.scores(course, 1000.0)["end"] == 1.0
    over = plant.scores(course, 1000.0, 9.5)
    assert over["end"] == 0.0 and over["seconds to 95 %"] == np.inf


def test_the_fast_controller_is_there_in_a_quarter_of_the_papers_time(table: plant.Table) -> None:
    result = plant.compare(table, seeds=range(5), hours=0.5)
    fast, paper = result["fast"], result["paper"]
    assert fast["seconds to 95 %, median"] < paper["seconds to 95 %, median"] / 4
    assert fast["end, worst"] > 0.9 and fast["regret, mean"] < paper["regret, mean"]
    assert result[plant.CAPPED]["end, worst"] > 0.9


def test_the_authors_code_takes_a_rejected_trial_as_its_next_baseline() -> None:
    controller = plant.Faulty((5, 5, 5), (9, 9, 9), 0, window=1)
    accepted = []
    for second, rate in enumerate([100.0, 10.0, 50.0]):
        controller.observe(plant.Measurement(second, rate, 0.0, 0.0, 0.0, False))
        accepted.append(controller.accepted)
    assert accepted[0] == accepted[1] != accepted[2]  # half as fast as what it had, and kept


def test_the_same_seed_plays_the_same_course(table: plant.Table) -> None:
    one, two = (plant.run(plant.CONTROLLERS["fast"](table.machine, 3), lambda _: table, 300, 3) for _ in range(2))
    assert np.array_equal(one.running, two.running)


def test_what_is_never_reached_is_null_in_json() -> None:
    found = plant.finite({"paper": {"seconds to 95 %": float("inf"), "worst 10 min": float("nan"), "end": 0.5}})
    assert found == {"paper": {"seconds to 95 %": None, "worst 10 min": None, "end": 0.5}}


def test_how_uneven_a_run_is_compares_seconds_of_one_setting_only() -> None:
    rng, time = np.random.default_rng(0), np.arange(0.0, 60_000.0, 5.0)
    kind = np.where(time % 140 < 70, "4/1/1", "1/1/1")
    rate = np.where(kind == "4/1/1", 3000.0, 1000.0) * np.exp(rng.normal(0.0, 0.05, len(time)))
    rate[100:124] *= 0.5
    *apart, slow = (float(each.removesuffix("%")) for each in plant_check.unevenness(time, rate, kind))
    assert apart == pytest.approx([5.0] * 3, abs=0.4) and slow == 0.2


@pytest.mark.slow
def test_the_simulated_machine_is_near_the_real_runs_it_was_fitted_to() -> None:
    rows = plant_check.calibration()
    fitted = [row for row in rows if "fitted" in row[0]]
    assert len(fitted) == 2 and all(float(row[1].removesuffix("%")) <= 5 and float(row[4]) <= 0.2 for row in fitted)
    assert len(rows) == 7
