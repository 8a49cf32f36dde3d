"""The numbers of a run: over the last window, over the whole run, and from many threads."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from counting import busy

from ga3c.envs.base import EnvSpec
from ga3c.learner.learner import UpdateStats
from ga3c.transport.slots import Batch, Slots
from ga3c.runs.statistics import Episode, Statistics, TrainerTime, Workers

NOBODY = Workers(0, 0, 0, 0, 0)
LAST = ("training_batch", "lag_mean", "lag_p95")
METRICS = {"policy_loss": 0.5, "value_loss": 2.0, "entropy": 1.0, "gradient_norm": 9.0, "explained_variance": 0.1,
           "learning_rate": 3e-4}


def update(version: int = 1, **changed: Any) -> UpdateStats:
    facts: dict[str, Any] = {"batch_steps": 10, "metrics": METRICS}
    return UpdateStats(version, **{**facts, **changed})


def batch(rollout_length: int = 3, n_envs: int = 2, steps: tuple[int, ...] = (3,)) -> Batch:
    """Rollouts in which nothing ended; the test adds what did."""
    spec = EnvSpec("a world", (1,), np.dtype("u1"), 2, 4)
    made = Slots(spec, rollout_length, n_envs, 1).empty_batch(len(steps))
    made.score[:] = np.nan
    made.episode_length[:] = 0
    made.steps[:], made.seconds[:] = steps, 0.0
    made.version[:] = made.requested_at[:] = 0
    return made


def made_by(version: int, lag: np.ndarray) -> Batch:
    """A rollout whose steps had this lag in the update to `version`."""
    made = batch(rollout_length=len(lag), n_envs=1, steps=(len(lag),))
    made.version[0] = version - 1 - lag
    return made


def ended(*scores: float) -> Batch:
    made = batch(rollout_length=len(scores), n_envs=1, steps=(len(scores),))
    made.score[0, :, 0], made.episode_length[0, :, 0] = scores, 7
    return made


# ------------------------------------------------------------------------------------------------ rates

def test_rates_are_of_the_last_window_only() -> None:
    statistics = Statistics(4)
    count = statistics.new_count()
    statistics.row(10.0, NOBODY)
    count.predictions, count.calls = 100, 10
    for version in range(1, 5):
        statistics.report(update(version), batch())
    first, _ = statistics.row(12.0, NOBODY)
    count.predictions, count.calls = 130, 11
    second, _ = statistics.row(13.0, NOBODY)
    third, _ = statistics.row(14.0, NOBODY)
    assert [(row["pps"], row["tps"], row["prediction_batch"]) for row in (first, second, third)] == [
        (50.0, 2.0, 10.0), (30.0, 0.0, 30.0), (0.0, 0.0, None)]


def test_predictions_of_all_predictors_are_added_also_of_those_that_left() -> None:
    statistics = Statistics(4)
    statistics.row(0.0, NOBODY)
    for predictions in (30, 12):
        count = statistics.new_count()
        count.predictions, count.calls = predictions, 6
    row, _ = statistics.row(1.0, NOBODY)
    assert (row["pps"], row["prediction_batch"], statistics.predictions) == (42.0, 3.5, 42)


# ------------------------------------------------------------------------------------------------ totals

def test_a_resumed_run_counts_on() -> None:
    statistics = Statistics(4, agent_steps=1000, trainings=50, predictions=900, episodes=7, dropped_steps=30,
                            scores=[1.0, 2.0])
    row, _ = statistics.row(60.0, NOBODY)
    assert row["dropped_steps"] == 30
    assert [row[name] for name in ("agent_steps", "frames", "trainings", "episodes", "score", "score_mean")] == [
        1000, 4000, 50, 7, 2.0, 1.5]
    statistics.new_count().predictions += 10
    statistics.collect(ended(6.0))
    statistics.report(update(51), ended(6.0))
    row, _ = statistics.row(62.0, NOBODY)
    assert [row[name] for name in ("agent_steps", "frames", "trainings", "episodes", "score", "score_mean")] == [
        1001, 4004, 51, 8, 6.0, 3.0]
    assert (row["tps"], row["pps"], statistics.predictions) == (0.5, 5.0, 910)


def test_reports_that_arrive_out_of_order_do_not_turn_the_totals_back() -> None:
    statistics = Statistics(4)
    statistics.report(update(2), batch())
    statistics.report(update(1), batch())
    row, _ = statistics.row(1.0, NOBODY)
    assert row["trainings"] == 2


def test_steps_and_episodes_count_when_collected_and_updates_when_made() -> None:
    """So a replay, whose batches bring no new steps, stops neither limits nor rates."""
    statistics = Statistics(4)
    statistics.collect(ended(1.0, 2.0))
    statistics.drain()
    assert (statistics.agent_steps, statistics.episodes, statistics.trainings) == (2, 2, 0)
    for version in (1, 2, 3):
        statistics.report(update(version), ended(1.0, 2.0))
    statistics.drain()
    assert (statistics.agent_steps, statistics.episodes, statistics.trainings) == (2, 2, 3)
    statistics.report_dropped(ended(1.0, 2.0))
    statistics.report_lost(ended(9.0))
    statistics.drain()
    assert (statistics.agent_steps, statistics.episodes, statistics.dropped_steps) == (2, 3, 3)


# ------------------------------------------------------------------------------------------------ episodes

def test_the_episodes_of_a_batch_are_listed_with_score_and_length() -> None:
    statistics, made = Statistics(4), batch(steps=(3, 3))
    made.score[0, 1, 0], made.episode_length[0, 1, 0] = -3.5, 12
    made.score[1, 2, 1], made.episode_length[1, 2, 1] = 0.0, 4
    statistics.collect(made)
    row, episodes = statistics.row(5.0, NOBODY)
    assert episodes == [Episode(5.0, 12, -3.5, 12), Episode(5.0, 12, 0.0, 4)]
    assert (row["episodes"], row["score"], row["score_mean"]) == (2, 0.0, -1.75)
    assert statistics.row(6.0, NOBODY)[1] == []


def test_stale_rows_of_a_cut_rollout_are_not_counted() -> None:
    statistics, made = Statistics(4), batch(steps=(2, 0))
    made.score[:], made.episode_length[:] = 100.0, 9
    made.score[0, :2] = 1.0
    statistics.collect(made)
    _, episodes = statistics.row(1.0, NOBODY)
    assert [episode.score for episode in episodes] == [1.0] * 4


def test_score_mean_is_over_the_last_hundred_episodes() -> None:
    statistics = Statistics(4, scores=range(1000, 1100))
    statistics.collect(ended(*range(150)))
    row, _ = statistics.row(1.0, NOBODY)
    assert (row["episodes"], row["score"], row["score_mean"]) == (150, 149.0, np.mean(range(50, 150)))


# ------------------------------------------------------------------------------------------------ losses and lag

def test_lag_is_over_all_steps_of_the_window() -> None:
    statistics = Statistics(4)
    statistics.report(update(201), made_by(201, np.arange(90)[::-1]))
    statistics.report(update(202), made_by(202, np.arange(90, 101)[::-1]))
    row, _ = statistics.row(1.0, NOBODY)
    assert (row["lag_mean"], row["lag_p95"]) == (50.0, 95.0)
    assert (row["lag_in_flight"], row["lag_queued"], row["lag_queued_ms"]) == (40.198, 9.802, None)
    statistics.report(update(203), made_by(203, np.array([6, 4])))
    assert statistics.row(2.0, NOBODY)[0]["lag_mean"] == 5.0


def test_metrics_are_means_per_agent_step_whatever_their_names() -> None:
    statistics = Statistics(4)
    early = update(1, batch_steps=10, metrics={"policy_loss": 1.0, "surprise": 8.0})
    late = update(2, batch_steps=30, metrics={"policy_loss": 5.0, "surprise": 4.0})
    for made in (early, late):
        statistics.report(made, batch())
    row, _ = statistics.row(1.0, NOBODY)
    assert [row[name] for name in ("policy_loss", "surprise", "training_batch")] == [4.0, 5.0, 20.0]


def test_a_window_without_an_update_repeats_the_last_losses() -> None:
    statistics = Statistics(4)
    statistics.report(update(4), made_by(4, np.array([3])))
    first, _ = statistics.row(1.0, NOBODY)
    second, _ = statistics.row(2.0, NOBODY)
    assert first["lag_mean"] == 3.0
    assert [second[name] for name in (*LAST, *METRICS)] == [first[name] for name in (*LAST, *METRICS)]


# ------------------------------------------------------------------------------------------------ threads

def test_nothing_is_lost_when_many_threads_report() -> None:
    statistics, each, n_threads = Statistics(4), 150, 8
    together = threading.Barrier(n_threads + 1)

    def work(first: int) -> None:
        count = statistics.new_count()
        together.wait()
        for number in range(first, first + each):
            count.predictions += 3
            statistics.collect(ended(number))
            statistics.report(update(number), ended(number))

    threads = [threading.Thread(target=work, args=(each * number,)) for number in range(n_threads)]
    for thread in threads:
        thread.start()
    together.wait()
    scores: list[float] = []
    while any(thread.is_alive() for thread in threads):
        scores += [episode.score for episode in statistics.row(1.0, NOBODY)[1]]
    row, episodes = statistics.row(2.0, NOBODY)
    scores += [episode.score for episode in episodes]
    assert sorted(scores) == list(range(n_threads * each))
    assert row["episodes"] == row["agent_steps"] == n_threads * each
    assert statistics.predictions == 3 * n_threads * each


# ------------------------------------------------------------------------------------------------ where the time went

def test_an_agents_wait_is_split_into_queue_service_and_reply() -> None:
    statistics = Statistics(4)
    count = statistics.new_count()
    statistics.row(10.0, NOBODY)
    # 4 calls that took 10 requests: 0.02 s each in the queue, 0.03 s being served.
    count.predictions, count.calls, count.requests = 40, 4, 10
    count.queued, count.served = 0.2, 0.3
    count.gathering, count.predicting, count.answering = 0.02, 0.08, 0.02
    made = batch(steps=(3, 2))
    made.seconds[:] = [[0.1, 0.15, 0.3], [0.0, 0.15, 0.2]]  # 5 rows in all: slot, prediction, play
    statistics.collect(made)
    statistics.report(update(), made, TrainerTime(gathering=0.1, updating=0.3, outside=0.2))
    row, _ = statistics.row(12.0, Workers(2, 1, 2, 0, 0))
    waits = {name: row[name] for name in (
        "queue_ms", "service_ms", "wait_ms", "reply_ms", "slot_wait_ms", "play_ms", "predict_ms", "gather_ms",
        "update_ms", "predictor_busy", "trainer_busy")}
    assert waits == pytest.approx({
        "queue_ms": 20, "service_ms": 30, "wait_ms": 60, "reply_ms": 10, "slot_wait_ms": 20, "play_ms": 100,
        "predict_ms": 20, "gather_ms": 100, "update_ms": 300, "predictor_busy": 0.12 / 2, "trainer_busy": 0.4 / 4})


def test_processor_time_outside_the_model_is_of_all_threads() -> None:
    statistics = Statistics(4)
    count = statistics.new_count()
    count.outside = 7.0
    statistics.row(10.0, NOBODY)
    statistics.report(update(), batch())
    assert statistics.row(11.0, NOBODY)[0]["cpu_outside"] is None, "one thread does everything"
    count.outside += 3.0
    statistics.report(update(), batch(), TrainerTime(0.0, 0.0, 0.5))
    statistics.report(update(), batch(), TrainerTime(0.0, 0.0, 1.0))
    busy(0.2)
    assert statistics.row(13.0, NOBODY)[0]["cpu_outside"] == pytest.approx(4.7 / 2, abs=0.05)
