"""The record of a run: its files, its limits and its checkpoints, by a clock that the test sets."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from recording import WORKERS, Clock, end, learned, model, names, rows, tick

from ga3c.learner import checkpoint
from ga3c.runs.recorder import Recorder
from ga3c.runs.statistics import TrainerTime


# ------------------------------------------------------------------------------------------------ the files

def test_a_row_is_written_once_a_second(tmp_path: Path, clock: Clock, begin: Callable[..., Recorder]) -> None:
    record = begin()
    for now in (1000.5, 1000.9, 1001.0, 1001.5, 1002.125, 1002.5, 1003.0, 1005.5, 1005.51, 1005.6, 1006.5):
        clock.now = now
        record.tick(model(), WORKERS, [])
    assert [row["time"] for row in rows(tmp_path)] == [1.0, 2.125, 3.0, 5.5, 6.5]


def test_a_row_holds_the_facts_and_memory(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], capsys: pytest.CaptureFixture[str]) -> None:
    record = begin()
    learned(record, 5, 1.0, 2.0)
    clock.now += 2.0
    record.tick(model(5), WORKERS, [2**30])
    row, = rows(tmp_path)
    assert set(row) == {
        "time", "agent_steps", "frames", "episodes", "trainings", "pps", "tps", "agents", "predictors", "trainers",
        "prediction_queue", "training_queue", "agent_deaths", "environment_faults", "skipped_updates",
        "skipped_minibatches", "dropped_steps",
        "prediction_batch", "score", "score_mean", "training_batch", "lag_in_flight", "lag_queued", "lag_in_flight_ms",
        "lag_queued_ms", "lag_mean", "lag_p95", "policy_loss", "value_loss", "entropy", "gradient_norm",
        "explained_variance", "learning_rate", "wait_ms", "queue_ms", "service_ms", "reply_ms", "slot_wait_ms",
        "play_ms", "predictor_busy", "predict_ms", "trainer_busy", "gather_ms", "update_ms", "memory_mb", "cpu_agents",
        "cpu_server", "cpu_outside", "cpu_evaluator", "cpu_machine"}
    assert (row["agent_steps"], row["frames"], row["tps"], row["score_mean"]) == (50, 200, 2.5, 1.5)
    assert row["memory_mb"] > 1
    assert capsys.readouterr().out.startswith("[Time: 0:00:02] [Steps: 50 Frames: 200]")


def test_episodes_are_a_table(tmp_path: Path, clock: Clock, begin: Callable[..., Recorder]) -> None:
    record = begin()
    learned(record, 5, 1.0, -2.5)
    clock.now += 1.25
    record.tick(model(5), WORKERS, [])
    with open(tmp_path / "episodes.csv", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == ["time", "agent_step", "score", "length"]
    assert [[float(value) for value in line] for line in lines] == [[1.25, 50, 1, 7], [1.25, 50, -2.5, 7]]


def test_messages_are_shown_and_logged_and_events_are_kept(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], capsys: pytest.CaptureFixture[str]) -> None:
    record = begin(started=False)
    record.log("an agent died")
    record.start()
    clock.now += 1.5
    record.event("agent_died", agent=3)
    assert capsys.readouterr().out == "an agent died\n"
    assert (tmp_path / "log.txt").read_text().endswith(" an agent died\n")
    assert rows(tmp_path, "events.jsonl") == [{"time": 1.5, "event": "agent_died", "agent": 3}]


def test_a_line_torn_by_a_crash_is_ended_before_the_next(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder]) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"time": 1.0}\n{"time": 2.')
    record = begin(resumed={"time": 2.0})
    clock.now += 1.0
    record.tick(model(), WORKERS, [])
    first, torn, last = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert (first, torn) == ('{"time": 1.0}', '{"time": 2.')
    assert json.loads(last)["time"] == 3.0


def test_the_bottleneck_is_in_rows_log_and_last_words(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], capsys: pytest.CaptureFixture[str]) -> None:
    record = begin(started=False)
    count = record.statistics.new_count()
    record.start()
    for second, agents in enumerate((1, 2, 2, 2, 2)):
        count.requests, count.calls, count.queued, count.served = (count.requests + 10, count.calls + 5,
                                                                   count.queued + 0.1, count.served + 0.2)
        learned(record, second + 1, 1.0, spent=TrainerTime(0.1, 0.2, 0.1))
        clock.now += 1.0
        record.tick(model(second + 1), WORKERS._replace(agents=agents), [os.getpid()])
    found = [row.get("bottleneck") for row in rows(tmp_path)]
    assert found[:3] == [None] * 3 and None not in found[3:]
    assert "Bottleneck" not in (tmp_path / "log.txt").read_text()
    clock.now += 60.0
    record.tick(model(5), WORKERS._replace(agents=2), [os.getpid()])
    assert f"\nBottleneck: {rows(tmp_path)[-1]['bottleneck']}: " in (tmp_path / "log.txt").read_text()
    record.finish("a test", "it was not waited for")
    assert f"\nBottleneck: {rows(tmp_path)[-2]['bottleneck']}: " in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ limits

@pytest.mark.parametrize(("limit", "before", "reached", "told"), [
    ({"steps": 100}, 99, 100, "--steps 100"), ({"frames": 400}, 99, 100, "--frames 400"),
    ({"frames": 401}, 100, 101, "--frames 401")])
def test_steps_and_frames_are_limits(
        begin: Callable[..., Recorder], limit: dict[str, int], before: int, reached: int, told: str) -> None:
    record = begin(**limit)
    record.statistics.agent_steps = before
    assert record.reached() is None
    record.statistics.agent_steps = reached
    assert record.reached() == told


def test_minutes_are_a_limit_and_only_training_counts(clock: Clock, begin: Callable[..., Recorder]) -> None:
    record = begin(resumed={"time": 50.0}, started=False, minutes=1.5)
    clock.now += 500.0
    assert (record.time, record.reached()) == (50.0, None)
    record.start()
    clock.now += 39.5
    assert record.reached() is None
    clock.now += 0.5
    assert record.reached() == "--minutes 1.5"


def test_episodes_are_a_limit_over_all_resumes(clock: Clock, begin: Callable[..., Recorder]) -> None:
    record = begin(resumed={"episodes": 3}, episodes=5)
    assert record.reached() is None
    clock.now += 1.0
    record.tick(learned(record, 1, 0.0, 0.0), WORKERS, [])
    assert record.reached() == "--episodes 5"


def test_the_main_thread_sleeps_until_the_next_row_or_the_end(clock: Clock, begin: Callable[..., Recorder]) -> None:
    record = begin(minutes=0.025)
    clock.now += 0.25
    assert record.seconds_to_next() == 0.75
    clock.now += 0.75
    record.tick(model(), WORKERS, [])
    assert record.seconds_to_next() == 0.5
    clock.now += 7.0
    assert record.seconds_to_next() == 0.0


# ------------------------------------------------------------------------------------------------ checkpoints

def test_a_resumed_run_goes_on_where_its_checkpoint_was(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder]) -> None:
    first = begin()
    first.statistics.new_count().predictions = 77
    clock.now += 4.0
    first.statistics.dropped_steps = 40
    end(first, learned(first, 6, 1.0, 3.0), "--steps 60")
    first.close()
    clock.now += 1e6
    second = begin(resumed=checkpoint.newest(tmp_path / "checkpoints")[0].progress)
    clock.now += 1.0
    tick(second, learned(second, 7, 8.0))
    last = rows(tmp_path)[-1]
    assert [last[name] for name in ("time", "agent_steps", "trainings", "episodes", "score_mean", "tps", "pps")] == [
        5.0, 70, 7, 3, 4.0, 1.0, 0.0]
    assert last["dropped_steps"] == 40
    assert second.statistics.predictions == 77
    header, *lines = (tmp_path / "episodes.csv").read_text().splitlines()
    assert [float(line.split(",")[2]) for line in lines] == [1, 3, 8]


def test_a_full_disk_is_warned_of_each_minute_and_training_goes_on(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    record = begin(checkpoint_minutes=1)
    record.checkpoints.save(learned(record, 1))

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full)
        for second in range(2, 200):
            clock.now += 1.0
            tick(record, learned(record, second))
    assert names(tmp_path) == [10]
    out = capsys.readouterr().out
    assert out.count("No checkpoint: No space left on device; training goes on") == 3
    assert out.count("lines of the record could not be written; training goes on") == 4
    assert [event["event"] for event in rows(tmp_path, "events.jsonl")] == ["checkpoint"] + 3 * ["checkpoint_failed"]
    clock.now += 60.0
    tick(record, learned(record, 300))
    assert names(tmp_path) == [10, 3000]


def test_why_there_is_no_last_checkpoint_is_told(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], capsys: pytest.CaptureFixture[str]) -> None:
    record = begin()
    record.checkpoints.save(learned(record, 5))
    clock.now += 1.5
    record.finish("lost agents", "it failed, OSError: disk", ValueError("each one failed"))
    *_, told, last = capsys.readouterr().out.splitlines()
    assert told == "No last checkpoint: it failed, OSError: disk." and last.startswith("Newest checkpoint: ")
    ended, = [event for event in rows(tmp_path, "events.jsonl") if event["event"] == "end"]
    assert (ended["reason"], ended["cause"], ended["unsaved"]) == (
        "lost agents", "ValueError: each one failed", "it failed, OSError: disk")
    assert "ValueError: each one failed" in (tmp_path / "log.txt").read_text()


def test_skipped_updates_are_told_once_a_minute(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], capsys: pytest.CaptureFixture[str]) -> None:
    record, ours, told = begin(started=False), model(5), []
    record.statistics.skips = skips = ours.skips
    record.start()
    for second in range(1, 71):
        if second in (3, 4, 5):
            skips.record_skip(second, {"policy_loss": math.nan, "entropy": 1.5})
        if second in (10, 69):
            skips.record_update(second, 7)
        clock.now += 1.0
        record.tick(ours, WORKERS, [])
        told += [(second, line) for line in capsys.readouterr().out.splitlines() if "so skipped" in line]
    end(record, ours, "a test")
    told += [(0, line) for line in capsys.readouterr().out.splitlines() if "so skipped" in line]
    said = ("Not finite, so skipped: {} updates and {} minibatches so far. The last: {}. "
            "10 updates in a row are divergence.")
    one, other, last = ("update 3 is not finite: policy_loss nan, entropy 1.5",
                        "7 minibatches of update 10 are not finite", "7 minibatches of update 69 are not finite")
    assert told == [(3, said.format(1, 0, one)), (63, said.format(3, 7, other)), (0, said.format(3, 14, last))]
    assert [(event["updates"], event["minibatches"], event["cause"]) for event in rows(tmp_path, "events.jsonl")
            if event["event"] == "skipped"] == [(1, 0, one), (3, 7, other), (3, 14, last)]
    assert [row["skipped_updates"] for row in rows(tmp_path)] == [0] * 2 + [1, 2] + [3] * 67
    assert rows(tmp_path)[-1]["skipped_minibatches"] == 14


def test_a_failing_tensorboard_writer_is_given_up(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    record = begin(tensorboard=True)
    monkeypatch.setattr(record._tensorboard, "row", lambda *_: 1 / 0)
    for second in (1, 2):
        clock.now += 1.0
        tick(record, learned(record, second))
    assert len(rows(tmp_path)) == 2
    assert capsys.readouterr().out.count("TensorBoard gets no more numbers, training goes on: division by zero") == 1


# ------------------------------------------------------------------------------------------------ the end

def test_the_end_writes_the_last_row_a_checkpoint_and_says_how_to_go_on(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], capsys: pytest.CaptureFixture[str]) -> None:
    record = begin()
    clock.now += 0.5
    end(record, learned(record, 200, 5.0), "SIGINT")
    assert rows(tmp_path)[-1]["agent_steps"] == 2000
    assert [event["event"] for event in rows(tmp_path, "events.jsonl")] == ["lag", "checkpoint", "end"]
    *_, ended, go_on = capsys.readouterr().out.splitlines()
    assert ended == "Ended by SIGINT after 2,000 agent steps, 1 episodes."
    newest = tmp_path / "checkpoints" / "000000002000"
    assert go_on == f"Newest checkpoint: {newest}   resume with: ga3c-train --resume {tmp_path}"
    assert checkpoint.load(newest).progress["episodes"] == 1


def test_no_checkpoint_is_made_when_nothing_was_learned(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], capsys: pytest.CaptureFixture[str]) -> None:
    record = begin()
    end(record, model(0, record), "SIGINT")
    assert checkpoint.saved(tmp_path / "checkpoints") == []
    assert "No checkpoint" in capsys.readouterr().out
