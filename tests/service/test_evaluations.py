"""Evaluations while a run goes on and at its end, by a clock that the test sets and an evaluator that plays nothing."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from recording import WORKERS, Clock, end, model, names, rows

from ga3c.evaluation.background import Outcome
from ga3c.learner import checkpoint
from ga3c.runs.recorder import Recorder
from ga3c.service.evaluations import Evaluations
from ga3c.service.signals import Interrupted, Signals

PLAYED = checkpoint.Best("", 0.0, {"episodes": 7})


class Stub:
    """Stands for the evaluator; the test says when an evaluation has ended, and how."""

    pid, sentinels, seconds_left = None, (), 60.0

    def __init__(self) -> None:
        self.checkpoint: Path | None = None
        self.started: list[tuple[str, int, int]] = []
        self.ended: Outcome | None = None
        self.error: OSError | None = None
        self.changed = threading.Condition()

    def start(self, path: Path, episodes: int, seed: int, video: bool) -> None:
        assert self.checkpoint is None and path.is_dir()
        if self.error:
            raise self.error
        with self.changed:
            self.checkpoint = path
            self.started.append((path.name, episodes, seed))
            self.changed.notify_all()

    def wait_for(self, name: str) -> None:
        """Until an evaluation of that checkpoint is under way."""
        with self.changed:
            assert self.changed.wait_for(lambda: bool(self.started) and self.started[-1][0] == name, 60)

    def end(self, mean: float | None, episodes: int = 7) -> None:
        assert self.checkpoint is not None
        report = {"checkpoint": "x", "agent_steps": int(self.checkpoint.name), "mean": mean, "mean_interval": [0, 1],
                  "scores": [mean], "cut": [], "protocol": {"episodes": episodes, "seed": len(self.started)}}
        self.ended = Outcome(self.checkpoint, report if mean is not None else None, "exit code 1: of the world")

    def collect(self) -> Outcome | None:
        ended, self.ended = self.ended, None
        if ended is not None:
            self.checkpoint = None
        return ended

    def stop(self) -> None:
        self.checkpoint = None


Evaluated = tuple[Recorder, Stub, Evaluations]


@pytest.fixture
def evaluated(begin: Callable[..., Recorder]) -> Callable[..., Evaluated]:
    """A run that evaluates every three seconds and keeps one checkpoint."""
    def evaluated(resumed: dict[str, Any] | None = None, **changed: Any) -> Evaluated:
        record = begin(resumed, started=False, **{
            "evaluation_minutes": 0.05, "evaluation_episodes": 7, "checkpoints_kept": 1, **changed})
        ours = Evaluations(record)
        stub = record.evaluator = ours.evaluator = cast(Any, Stub())
        record.start()
        return record, stub, ours

    return evaluated


def seconds(record: Recorder, ours: Evaluations, clock: Clock, first: int, last: int) -> None:
    for second in range(first, last + 1):
        clock.now += 1.0
        ours.tick(model(second, record))
        record.tick(model(second), WORKERS, [])
        record.checkpoints.wait()


def evaluations(directory: Path) -> list[dict[str, Any]]:
    return [event for event in rows(directory, "events.jsonl") if event["event"].startswith("evaluation")]


def test_an_evaluation_begins_with_a_checkpoint_when_it_is_due_after_the_last_has_ended(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., Evaluated]) -> None:
    record, evaluator, ours = evaluated(seed=5)
    seconds(record, ours, clock, 1, 7)
    assert evaluator.started == [("000000000030", 7, 36)] and names(tmp_path) == [30]
    evaluator.end(1.0)
    seconds(record, ours, clock, 8, 10)
    assert len(evaluator.started) == 1
    seconds(record, ours, clock, 11, 11)
    assert [name for name, _, _ in evaluator.started] == ["000000000030", "000000000110"]


def test_a_run_that_is_often_interrupted_is_evaluated_too(
        clock: Clock, evaluated: Callable[..., Evaluated]) -> None:
    record, evaluator, ours = evaluated({"time": 2.0})
    seconds(record, ours, clock, 1, 2)
    assert len(evaluator.started) == 1, "three seconds after the run's beginning, not after the resume"
    evaluator.end(1.0)
    record, evaluator, ours = evaluated({"time": 3.0})
    seconds(record, ours, clock, 3, 4)
    assert not evaluator.started
    seconds(record, ours, clock, 5, 6)
    assert len(evaluator.started) == 1


def test_a_full_disk_stops_neither_training_nor_the_record_of_an_evaluation(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., Evaluated],
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    record, evaluator, ours = evaluated()
    seconds(record, ours, clock, 1, 4)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "set_best", full)
        patch.setattr(np, "savez", full)
        evaluator.end(2.0)
        seconds(record, ours, clock, 5, 120)
    told = [event["event"] for event in rows(tmp_path, "events.jsonl")]
    assert told.count("evaluation") == 1 and told.count("checkpoint_failed") == 2, "tried once a minute"
    assert "best.json: No space left on device; training goes on" in capsys.readouterr().out
    seconds(record, ours, clock, 121, 190)
    assert len(evaluator.started) == 2


def test_without_evaluation_minutes_nothing_is_evaluated(
        clock: Clock, evaluated: Callable[..., Evaluated]) -> None:
    record, evaluator, ours = evaluated(evaluation_minutes=None)
    seconds(record, ours, clock, 1, 20)
    assert evaluator.started == []


def test_the_best_checkpoint_and_the_one_under_evaluation_outlast_the_newest(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., Evaluated],
        capsys: pytest.CaptureFixture[str]) -> None:
    record, evaluator, ours = evaluated(checkpoint_minutes=1 / 60)
    seconds(record, ours, clock, 1, 4)
    assert names(tmp_path) == [30, 40]
    evaluator.end(2.0)
    seconds(record, ours, clock, 5, 9)
    assert names(tmp_path) == [30, 80, 90], "the best, the one under evaluation, the newest"
    evaluator.end(1.5)
    seconds(record, ours, clock, 10, 14)
    assert names(tmp_path) == [30, 130, 140]
    evaluator.end(2.5)
    seconds(record, ours, clock, 15, 15)
    assert names(tmp_path) == [130, 150] and checkpoint.best(tmp_path / "checkpoints") == PLAYED._replace(
        checkpoint="000000000130", mean=2.5)
    assert [(event["checkpoint"], event["mean"], event["best"]) for event in evaluations(tmp_path)] == [
        ("checkpoints/000000000030", 2.0, True), ("checkpoints/000000000080", 1.5, False),
        ("checkpoints/000000000130", 2.5, True)]
    assert rows(tmp_path)[-1]["best_evaluation"] == 2.5
    out = capsys.readouterr().out
    assert "Evaluation at 30 agent steps: mean 2.00 (0.00 to 1.00) of 1 episodes, the best so far." in out
    assert "[Best: 2.50]" in out


@pytest.mark.parametrize("error", [None, OSError(11, "Resource temporarily unavailable")])
def test_an_evaluation_that_fails_is_told_and_the_next_one_begins(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., Evaluated], error: OSError | None,
        capsys: pytest.CaptureFixture[str]) -> None:
    record, evaluator, ours = evaluated()
    evaluator.error = error
    seconds(record, ours, clock, 1, 4)
    if error is None:
        evaluator.end(None)
    seconds(record, ours, clock, 5, 5)
    event, = evaluations(tmp_path)
    assert (event["event"], event["checkpoint"]) == ("evaluation_failed", "checkpoints/000000000030")
    assert ("of the world" if error is None else "Resource temporarily unavailable") in event["cause"]
    assert "failed, training goes on" in capsys.readouterr().out and record.checkpoints.best is None
    evaluator.error = None
    seconds(record, ours, clock, 6, 8)
    assert evaluator.started[-1][0] == ("000000000080" if error is None else "000000000060")


def test_a_best_under_another_protocol_is_no_measure(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., Evaluated]) -> None:
    record, evaluator, ours = evaluated()
    for second, mean, episodes in ((4, 21.0, 1), (8, 18.0, 30), (12, 17.0, 30), (16, math.nan, 2), (20, 19.0, 30)):
        seconds(record, ours, clock, second - 3 if second > 4 else 1, second - 1)
        evaluator.end(mean, episodes)
        seconds(record, ours, clock, second, second)
    assert [event["best"] for event in evaluations(tmp_path)] == [True, True, False, False, True]
    best = checkpoint.best(tmp_path / "checkpoints")
    assert best is not None and (best.mean, best.protocol) == (19.0, {"episodes": 30})


def test_the_end_stops_an_evaluation_but_takes_one_that_is_ready(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., Evaluated],
        capsys: pytest.CaptureFixture[str]) -> None:
    record, evaluator, ours = evaluated()
    seconds(record, ours, clock, 1, 3)
    evaluator.end(3.0)
    ours.stop()
    end(record, model(3, record), "--steps 30")
    assert [event["event"] for event in evaluations(tmp_path)] == ["evaluation"]
    path = tmp_path / "checkpoints/000000000030"
    assert f"Best evaluation: 3.00, by {path}" in capsys.readouterr().out
    record.close()

    again, evaluator, ours = evaluated(resumed={"agent_steps": 30, "time": 3.0})
    assert again.checkpoints.best == PLAYED._replace(checkpoint="000000000030", mean=3.0)
    seconds(again, ours, clock, 4, 6)
    ours.stop()
    end(again, model(6, again), "SIGINT")
    assert evaluator.checkpoint is None
    assert evaluations(tmp_path)[-1] == {
        "time": 6.0, "event": "evaluation_stopped", "checkpoint": "checkpoints/000000000060"}
    assert names(tmp_path) == [30, 60]


@pytest.mark.parametrize("under_way", [True, False])
def test_the_last_checkpoint_is_evaluated_when_training_is_over(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., Evaluated], interruption: Signals,
        under_way: bool) -> None:
    record, evaluator, ours = evaluated()
    seconds(record, ours, clock, 1, 3)
    if not under_way:
        seconds(record, ours, clock, 4, 5)
    last = 3 if under_way else 5
    rows_meanwhile: list[int] = []

    def evaluate() -> None:
        interruption.wake()  # of something else
        evaluator.wait_for(f"{10 * last:012d}")
        deadline = time.monotonic() + 150
        while len(rows(tmp_path)) <= last and time.monotonic() < deadline:
            time.sleep(0.01)
        rows_meanwhile.append(len(rows(tmp_path)))
        evaluator.end(4.0)
        interruption.wake()  # as the end of an evaluation does

    with ThreadPoolExecutor(1) as pool:
        ending = pool.submit(evaluate)
        ours.evaluate_last(model(last, record), interruption)
        ending.result()
    assert rows_meanwhile == [last + 1], "the last row is there, whatever becomes of the evaluation"
    clock.now += 100.0
    ours.stop()
    end(record, model(last, record), f"--steps {10 * last}")
    assert len(rows(tmp_path)) == last + 1
    assert [(event["event"], event["checkpoint"][-3:]) for event in evaluations(tmp_path)] == (
        [("evaluation", "030")] if under_way else [("evaluation_stopped", "030"), ("evaluation", "050")])
    assert record.checkpoints.best is not None and record.checkpoints.best.checkpoint == f"{10 * last:012d}"
    assert rows(tmp_path)[-1]["time"] == last, "to evaluate is not to train"


def test_whoever_interrupts_the_last_evaluation_does_without_it(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., Evaluated],
        interruption: Signals) -> None:
    record, evaluator, ours = evaluated()
    seconds(record, ours, clock, 1, 2)

    def interrupt() -> None:
        evaluator.wait_for("000000000020")
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        interrupting = pool.submit(interrupt)
        ours.evaluate_last(model(2, record), interruption)
        interrupting.result()
    assert evaluator.started == [("000000000020", 7, 21)] and interruption.signum == signal.SIGINT
    ours.stop()
    end(record, model(2, record), "--steps 20")
    assert [event["event"] for event in evaluations(tmp_path)] == ["evaluation_stopped"] and names(tmp_path) == [20]


def test_a_second_ctrl_c_does_not_wait_for_the_checkpoint_that_is_to_be_evaluated(
        clock: Clock, evaluated: Callable[..., Evaluated], interruption: Signals,
        monkeypatch: pytest.MonkeyPatch) -> None:
    record, evaluator, ours = evaluated()
    seconds(record, ours, clock, 1, 2)

    def held(learner: object) -> None:
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
        raise AssertionError("it waits on")

    monkeypatch.setattr(record.checkpoints, "save_last", held)
    with pytest.raises(Interrupted):
        ours.evaluate_last(model(2, record), interruption)
    assert interruption.hurried and not evaluator.started


def test_a_last_evaluation_that_cannot_begin_is_told(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., Evaluated], interruption: Signals,
        capsys: pytest.CaptureFixture[str]) -> None:
    record, evaluator, ours = evaluated()
    seconds(record, ours, clock, 1, 2)
    evaluator.error = OSError(11, "Resource temporarily unavailable")
    ours.evaluate_last(model(2, record), interruption)
    assert [event["event"] for event in evaluations(tmp_path)] == ["evaluation_failed"] and names(tmp_path) == [20]
    assert "training goes on" not in capsys.readouterr().out


def test_a_run_that_is_interrupted_evaluates_nothing_more(
        clock: Clock, evaluated: Callable[..., Evaluated], interruption: Signals) -> None:
    record, evaluator, ours = evaluated()
    seconds(record, ours, clock, 1, 2)
    interruption.signum = signal.SIGINT
    ours.evaluate_last(model(2, record), interruption)
    assert evaluator.started == []
