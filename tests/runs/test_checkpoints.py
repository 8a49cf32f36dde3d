"""The checkpoints of a run: when, of what, which stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from recording import Clock, learned, model, rows, tick

from ga3c.learner import checkpoint
from ga3c.learner.learner import DeviceFailed
from ga3c.runs.recorder import Recorder


def test_a_checkpoint_is_made_when_it_is_due(tmp_path: Path, clock: Clock, begin: Callable[..., Recorder]) -> None:
    record = begin(checkpoint_minutes=0.05, checkpoints_kept=2, game="Pong")
    record.statistics.new_count().predictions = 77
    record.statistics.dropped_steps = 40
    for second in range(1, 11):
        clock.now += 1.0
        tick(record, learned(record, second, float(second)))
    kept = checkpoint.saved(tmp_path / "checkpoints")
    assert [path.name for path in kept] == ["000000000090", "000000000060"]
    arrays, progress = checkpoint.load(kept[0])
    assert arrays["weights"].tolist() == [9, 9, 9]
    assert progress.items() >= {"version": 9, "agent_steps": 90, "time": 9.0, "episodes": 9, "predictions": 77,
                                "dropped_steps": 40,
                                "recent_scores": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], "game": "Pong"}.items()
    assert [(event["event"], event["path"]) for event in rows(tmp_path, "events.jsonl") if event["event"] != "lag"] == [
        ("checkpoint", f"checkpoints/{steps:012d}") for steps in (30, 60, 90)]
    assert record.disturbances == 6, "no second with a checkpoint counts for a trial"


def test_the_first_checkpoint_of_each_hour_stays(tmp_path: Path, clock: Clock, begin: Callable[..., Recorder]) -> None:
    record = begin(checkpoints_kept=1)
    began = clock.now
    for number, minutes in enumerate((5, 50, 61, 70, 119, 125, 170), 1):
        clock.now = began + 60.0 * minutes
        record.checkpoints.save(model(number, record))
    assert [path.name for path in checkpoint.saved(tmp_path / "checkpoints")] == [
        "000000000070", "000000000060", "000000000030"]


def test_a_device_that_fails_a_checkpoint_is_told(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch) -> None:
    record = begin(checkpoint_minutes=1 / 60)
    clock.now += 1.0
    ours = learned(record, 1)

    def fail() -> None:
        raise DeviceFailed("an update did not end within 5 s")

    with monkeypatch.context() as patch:
        patch.setattr(ours, "state", fail)
        tick(record, ours)
    assert "No checkpoint: an update did not end within 5 s; training goes on" in capsys.readouterr().out
    assert rows(tmp_path, "events.jsonl")[-1]["event"] == "checkpoint_failed"
    clock.now += 1.0
    tick(record, ours)
    assert checkpoint.saved(tmp_path / "checkpoints")


def test_going_back_needs_a_checkpoint_that_is_whole_and_finite(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder]) -> None:
    record = begin(checkpoints_kept=9)
    for version in (1, 2, 3):
        record.checkpoints.save(learned(record, version))
    (tmp_path / "checkpoints/000000000030/arrays.npz").write_bytes(b"rubbish")
    spoilt = cast(Any, model(4, record))
    spoilt.state = lambda: ({"weights": np.full(3, np.inf)}, 4)
    record.checkpoints.save(spoilt)
    now, taken = cast(Any, model(5, record)), []
    now.learning_rate_factor, now.go_back = 1.0, taken.append
    assert record.checkpoints.back_to_finite(now) == tmp_path / "checkpoints/000000000020"
    arrays, = taken
    assert (arrays["weights"].tolist(), now.learning_rate_factor) == ([2, 2, 2], 0.5)


def test_going_back_asks_nothing_of_what_games_keep(tmp_path: Path, begin: Callable[..., Recorder]) -> None:
    record = begin()
    ours = cast(Any, model(1, record))
    ours.state = lambda: ({"weights": np.ones(3), "serial.0.best": np.full(1, -np.inf),
                           "serial.0.name": np.array("ab")}, 1)
    record.checkpoints.save(ours)
    ours.learning_rate_factor, ours.go_back = 1.0, lambda arrays: None
    assert record.checkpoints.back_to_finite(ours) == tmp_path / "checkpoints/000000000010"
