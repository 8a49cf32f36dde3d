"""Checkpoints are written in the background: a slow disk stops nothing but themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from recording import WORKERS, Clock, end, learned, model, names, rows, tick

from ga3c.learner import checkpoint
from ga3c.runs.recorder import Recorder


class Disk:
    """Checkpoints are written once the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ready, self.saved = threading.Event(), checkpoint.save
        monkeypatch.setattr(checkpoint, "save", self._save)

    def _save(self, *arguments: Any) -> Path:
        assert self.ready.wait(100)
        return self.saved(*arguments)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk(monkeypatch)
    yield made
    made.ready.set()


def test_a_slow_disk_does_not_stop_the_rows(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], disk: Disk) -> None:
    woken = threading.Event()
    record = begin(checkpoint_minutes=1 / 60, wake=woken.set)
    for second in range(1, 6):
        before = record.disturbances
        clock.now += 1.0
        record.tick(learned(record, second), WORKERS, [])
        assert record.disturbances > before, "no second in which the disk is written to counts for a trial"
    assert [row["agent_steps"] for row in rows(tmp_path)] == [10, 20, 30, 40, 50]
    assert names(tmp_path) == [] and not woken.is_set()
    disk.ready.set()
    assert woken.wait(100), "the supervisor is told"
    clock.now += 1.0
    record.tick(learned(record, 6), WORKERS, [])
    record.checkpoints.wait()
    assert names(tmp_path) == [10, 60], "one at a time; the next begins when it can"
    assert [event["agent_steps"] for event in rows(tmp_path, "events.jsonl") if event["event"] == "checkpoint"] == [
        10, 60]


def test_what_is_written_is_of_the_moment_it_was_asked_for(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], disk: Disk) -> None:
    record = begin()
    record.controller = cast(Any, SimpleNamespace(state=lambda: {"seen": seen}))
    seen, ours = [1], cast(Any, learned(record, 1, 3.0))
    clock.now += 1.0
    record.tick(ours, WORKERS, [])
    record.checkpoints.request(ours)
    seen.append(2)
    ours.version = 2
    clock.now += 1.0
    record.tick(learned(record, 2, 5.0), WORKERS, [])
    disk.ready.set()
    record.checkpoints.wait()
    progress = checkpoint.load(tmp_path / "checkpoints/000000000010").progress
    assert (progress["version"], progress["recent_scores"], progress["controller"]) == (1, [3.0], {"seen": [1]})


def test_a_checkpoint_asked_for_while_one_is_written_follows_it(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], disk: Disk) -> None:
    record, paths = begin(), []
    record.checkpoints.request(model(1, record), paths.append)
    record.checkpoints.request(model(2, record))
    record.checkpoints.request(model(3, record), paths.append)  # that one will do
    disk.ready.set()
    record.checkpoints.wait()
    clock.now += 1.0
    tick(record, model(4, record))
    assert names(tmp_path) == [10, 40] and paths == 2 * [tmp_path / "checkpoints/000000000010"]


def test_the_end_waits_for_the_checkpoint_under_way(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], disk: Disk,
        capsys: pytest.CaptureFixture[str]) -> None:
    record = begin()
    record.checkpoints.request(model(1, record))
    threading.Timer(0.1, disk.ready.set).start()
    end(record, model(1, record), "--steps 10")
    assert [event["event"] for event in rows(tmp_path, "events.jsonl")] == ["checkpoint", "end"]
    assert f"Newest checkpoint: {tmp_path}/checkpoints/000000000010 " in capsys.readouterr().out


def test_the_end_tries_again_what_failed_under_way(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    record = begin()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", full)
        record.checkpoints.request(model(1, record))
        with pytest.raises(OSError, match="No space left"):
            end(record, model(1, record), "--steps 10")
    assert "training goes on" not in capsys.readouterr().out
    end(record, model(1, record), "--steps 10")
    assert names(tmp_path) == [10]


def test_who_skips_the_last_checkpoint_does_not_wait_for_one_under_way(
        tmp_path: Path, clock: Clock, begin: Callable[..., Recorder], disk: Disk, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("ga3c.runs.checkpoints.SKIP_SECONDS", 0.01)
    record = begin()
    record.checkpoints.request(model(1, record))
    record.checkpoints.skip_last()
    record.finish("SIGINT", "it was not waited for")
    assert names(tmp_path) == [] and "No checkpoint: it was not waited for" in capsys.readouterr().out
