"""The record of a run: its directory, its files, its limits and its checkpoints, by a clock the test winds."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ga3c.learner import checkpoint
from ga3c.runs import recorder as run
from ga3c.settings.files import resolve, to_yaml
from ga3c.settings.messages import ConfigError
from ga3c.settings.files import configured
from ga3c.settings.schema import Settings
from ga3c.envs.factory import EnvSpec
from ga3c.evaluation.background import Outcome
from ga3c.service.signals import Signals
from ga3c.settings.machine import processor
from ga3c.learner.learner import DeviceFailed, Learner, UpdateStats
from ga3c.transport.slots import Slots, Batch
from ga3c.runs.recorder import Run, _Meter, create_directory, lock_directory
from ga3c.runs.statistics import Workers
from ga3c.service.trainer import Spent

SPEC = EnvSpec("Pong", (2,), np.dtype("u1"), 3, 4)
WORKERS = Workers(2, 1, 1, 0, 0)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=made, strftime=time.strftime))
    return made


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Begins a run in tmp_path; given `resumed`, goes on with the one that is there."""
    made: list[Run] = []

    def begin(resumed: dict[str, Any] | None = None, **changed: Any) -> Run:
        settings = configured(**{"tensorboard": False, **changed})
        made.append(Run(settings, SPEC, tmp_path, resumed or {}))
        return made[-1]

    yield begin
    for each in made:
        if not each._log.closed:
            each.close()


class Learned:
    """As much of a model as a record looks at."""

    def __init__(self, version: int = 0) -> None:
        self.version, self.agent_steps, self.learning_rate_factor = version, 10 * version, 1.0

    def state(self) -> tuple[dict[str, np.ndarray], int, int]:
        return {"weights": np.full(3, self.version, np.float32)}, self.version, self.agent_steps


def model(version: int = 0) -> Learner:
    return cast(Learner, Learned(version))


def learned(record: Run, version: int, *scores: float, spent: Spent | None = None) -> Learner:
    """The record hears of an update in which episodes ended with these scores."""
    batch: Batch = Slots(SPEC, max(1, len(scores)), 1, 1).empty_batch(1)
    batch.steps[:], batch.seconds[:] = len(scores), 0.01
    batch.score[0, :len(scores), 0], batch.episode_length[:] = scores, 7
    batch.version[:] = batch.asked[:] = 0
    record.statistics.report(UpdateStats(version, 10 * version, 10, {
        "policy_loss": 0.5, "value_loss": 2.0, "entropy": 1.0, "gradient_norm": 9.0, "explained_variance": 0.1,
        "learning_rate": 3e-4}), batch, spent)
    return model(version)


def rows(directory: Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / file).read_text().splitlines()]


# ------------------------------------------------------------------------------------------------ the directory

@pytest.mark.parametrize(("game", "stem"), [("Pong", "Pong"), ("toy:catch", "toy-catch"), ("a.b:C/D-v0", "a.b-C-D-v0")])
def test_a_run_gets_a_directory_named_after_game_time_and_seed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, game: str, stem: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ga3c.runs.reader.time", SimpleNamespace(strftime=lambda form: time.strftime(form, time.gmtime(0))))
    assert create_directory(configured(seed=3), SPEC._replace(name=game)) == Path(f"runs/{stem}-19700101-000000-s3")


def test_runs_that_begin_in_the_same_second_get_directories_of_their_own(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ga3c.runs.reader.time", SimpleNamespace(strftime=lambda form: "now"))
    made = [create_directory(Settings(), SPEC) for _ in range(3)]
    assert made == [Path("runs/Pong-now-s0"), Path("runs/Pong-now-s0-2"), Path("runs/Pong-now-s0-3")]
    assert all((path / "config.yaml").is_file() for path in made)


def test_a_directory_holds_the_settings_and_the_versions(tmp_path: Path) -> None:
    settings = configured(run_dir=str(tmp_path / "deep" / "mine"), gamma=0.5)
    path = create_directory(settings, SPEC)
    assert (path / "config.yaml").read_text() == to_yaml(settings)
    assert resolve({}, str(path / "config.yaml")) == settings
    versions = json.loads((path / "versions.json").read_text())
    assert {"ga3c", "python", "tensorflow", "keras", "gymnasium", "ale-py", "numpy", "command", "commit"} <= {*versions}
    assert versions["processor"] == processor()


def test_the_commit_is_that_of_the_checkout_it_is_run_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which("git"):
        pytest.skip("no git")
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    (tmp_path / "here.py").touch()
    monkeypatch.setattr("ga3c.runs.recorder.__file__", str(tmp_path / "here.py"))
    commit = run._commit.__wrapped__
    assert commit() is None
    subprocess.run([*git, "init", "--quiet"], check=True)
    assert commit() is None
    subprocess.run([*git, "add", "here.py"], check=True)
    assert commit() is None
    subprocess.run([*git, "commit", "--quiet", "--message", "first"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    first = commit()
    assert first and head.startswith(first) and len(first) >= 7
    (tmp_path / "installed.py").touch()
    monkeypatch.setattr("ga3c.runs.recorder.__file__", str(tmp_path / "installed.py"))
    assert commit() is None, "in somebody else's checkout"
    monkeypatch.setattr("ga3c.runs.recorder.__file__", str(tmp_path / "here.py"))
    (tmp_path / "here.py").write_text("changed")
    assert commit() == f"{first}+"
    monkeypatch.setenv("PATH", "")
    assert commit() is None


def test_a_directory_that_is_not_empty_is_refused_with_the_way_on(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 7")
    with pytest.raises(ConfigError) as caught:
        create_directory(configured(run_dir=str(tmp_path)), SPEC)
    assert str(caught.value) == (
        f"run_dir: {tmp_path} is not empty; choose another, or go on with it: --resume {tmp_path}")
    assert (tmp_path / "config.yaml").read_text() == "seed: 7"


@pytest.mark.parametrize("below", ["file", "file/deeper"])
def test_a_directory_that_cannot_be_made_is_told_in_one_line(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        create_directory(configured(run_dir=str(tmp_path / below)), SPEC)
    assert str(caught.value).startswith(f"run_dir: {tmp_path / 'file'}")
    assert len(str(caught.value).splitlines()) == 1


# ------------------------------------------------------------------------------------------------ the files

def test_a_row_is_written_once_a_second(tmp_path: Path, clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin()
    record.start()
    for now in (1000.5, 1000.9, 1001.0, 1001.5, 1002.125, 1002.5, 1003.0):
        clock.now = now
        record.tick(model(), WORKERS, [])
    assert [row["time"] for row in rows(tmp_path)] == [1.0, 2.125, 3.0]


def test_after_a_stall_the_next_row_is_again_of_a_whole_second(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin()
    record.start()
    for now in (1005.5, 1005.51, 1005.6, 1006.5):
        clock.now = now
        record.tick(model(), WORKERS, [])
    assert [row["time"] for row in rows(tmp_path)] == [5.5, 6.5]


def test_a_row_holds_the_facts_and_memory(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run], capsys: pytest.CaptureFixture[str]) -> None:
    record = begin()
    record.start()
    learned(record, 5, 1.0, 2.0)
    clock.now += 2.0
    record.tick(model(5), WORKERS, [2**30])
    row, = rows(tmp_path)
    assert set(row) == {
        "time", "agent_steps", "frames", "episodes", "trainings", "pps", "tps", "agents", "predictors", "trainers",
        "prediction_queue", "training_queue", "agent_deaths", "environment_faults", "dropped_steps",
        "prediction_batch", "score", "score_mean", "training_batch", "lag_in_flight", "lag_queued", "lag_in_flight_ms",
        "lag_queued_ms", "lag_mean", "lag_p95", "policy_loss", "value_loss", "entropy", "gradient_norm",
        "explained_variance", "learning_rate", "wait_ms", "queue_ms", "service_ms", "reply_ms", "slot_wait_ms",
        "play_ms", "predictor_busy", "predict_ms", "trainer_busy", "gather_ms", "update_ms", "memory_mb", "cpu_agents",
        "cpu_server", "cpu_outside", "cpu_evaluator", "cpu_machine"}
    assert (row["agent_steps"], row["frames"], row["tps"], row["score_mean"]) == (50, 200, 2.5, 1.5)
    assert row["memory_mb"] > 1
    assert capsys.readouterr().out.startswith("[Time: 0:00:02] [Steps: 50 Frames: 200]")


@pytest.mark.parametrize(("usable", "whole"), [(os.cpu_count() or 1, True), ((os.cpu_count() or 1) + 1, False)])
def test_of_a_machine_that_may_be_used_in_part_only_what_is_ours_counts(
        monkeypatch: pytest.MonkeyPatch, usable: int, whole: bool) -> None:
    monkeypatch.setattr("ga3c.runs.recorder.usable_cores", lambda: usable)
    monkeypatch.setattr(_Meter, "_busy", staticmethod(lambda: 1e6 * time.monotonic()))
    meter = _Meter()
    meter._at, meter._machine = meter._at - 1.0, meter._machine - 1e6  # a second ago
    spent = meter.used([], None)
    assert spent["cpu_machine"] == (pytest.approx(1e6, rel=0.01) if whole else spent["cpu_server"])


def test_episodes_are_a_table(tmp_path: Path, clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin()
    record.start()
    learned(record, 5, 1.0, -2.5)
    clock.now += 1.25
    record.tick(model(5), WORKERS, [])
    with open(tmp_path / "episodes.csv", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    assert header == ["time", "agent_step", "score", "length"]
    assert [[float(value) for value in line] for line in lines] == [[1.25, 50, 1, 7], [1.25, 50, -2.5, 7]]


@pytest.mark.parametrize("score", [1_234_567.0, 12_345_678.0, 0.1234567])
def test_a_score_is_written_with_all_its_digits(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run], score: float) -> None:
    record = begin()
    record.start()
    learned(record, 1, score)
    clock.now += 1.0
    record.tick(model(1), WORKERS, [])
    assert float((tmp_path / "episodes.csv").read_text().split(",")[-2]) == score


def test_messages_are_shown_and_logged_and_events_are_kept(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run], capsys: pytest.CaptureFixture[str]) -> None:
    record = begin()
    record.say("an agent died")
    record.start()
    clock.now += 1.5
    record.event("agent_died", agent=3)
    assert capsys.readouterr().out == "an agent died\n"
    assert (tmp_path / "log.txt").read_text().endswith(" an agent died\n")
    assert rows(tmp_path, "events.jsonl") == [{"time": 1.5, "event": "agent_died", "agent": 3}]


def test_a_line_torn_by_a_crash_is_ended_before_the_next(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run]) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"time": 1.0}\n{"time": 2.')
    record = begin(resumed={"time": 2.0})
    record.start()
    clock.now += 1.0
    record.tick(model(), WORKERS, [])
    first, torn, last = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert (first, torn) == ('{"time": 1.0}', '{"time": 2.')
    assert json.loads(last)["time"] == 3.0


def test_what_was_written_is_on_disk_while_the_run_goes_on(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin()
    record.start()
    clock.now += 1.0
    record.tick(learned(record, 1, 4.0), WORKERS, [])
    record.event("x")
    for file in ("metrics.jsonl", "episodes.csv", "events.jsonl", "log.txt"):
        assert (tmp_path / file).read_text().endswith("\n")


def test_three_seconds_with_the_same_workers_give_a_verdict_in_rows_log_and_last_words(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run], capsys: pytest.CaptureFixture[str]) -> None:
    record = begin()
    count = record.statistics.new_count()
    record.start()
    for second, agents in enumerate((1, 2, 2, 2, 2)):
        count.requests, count.calls, count.queued, count.served = (count.requests + 10, count.calls + 5,
                                                                   count.queued + 0.1, count.served + 0.2)
        learned(record, second + 1, 1.0, spent=Spent(0.1, 0.1, 0.2, 0.1))
        clock.now += 1.0
        record.tick(model(second + 1), WORKERS._replace(agents=agents), [os.getpid()])
    limits = [row.get("limit") for row in rows(tmp_path)]
    assert limits[:3] == [None] * 3 and None not in limits[3:]
    assert "Limited by" not in (tmp_path / "log.txt").read_text()
    clock.now += 60.0
    record.tick(model(5), WORKERS._replace(agents=2), [os.getpid()])
    assert f"Limited by {rows(tmp_path)[-1]['limit']}: " in (tmp_path / "log.txt").read_text()
    record.finish(model(5), "a test", skip_checkpoint=True)
    assert f"Speed was limited by {limits[-1]}: " in capsys.readouterr().out


def test_tensorboard_gets_the_same_numbers(tmp_path: Path, clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin(tensorboard=True)
    record.start()
    count = record.statistics.new_count()
    for version in (1, 2):
        count.predictions += 30
        count.calls += 1
        clock.now += 1.0
        record.tick(learned(record, version, float(version)), WORKERS, [])
    record.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = {name: [(event.step, float(event.tensor_proto.float_val[0])) for event in events.Tensors(name)]
             for name in ("score/score_mean", "speed/pps", "speed/tps")}
    assert shown == {"score/score_mean": [(10, 1.0), (20, 1.5)], "speed/pps": [(10, 30.0), (20, 30.0)],
                     "speed/tps": [(10, 1.0), (20, 1.0)]}


def test_without_tensorboard_no_events_are_written(tmp_path: Path, begin: Callable[..., Run]) -> None:
    begin(tensorboard=False)
    assert not (tmp_path / "tensorboard").exists()


# ------------------------------------------------------------------------------------------------ limits

@pytest.mark.parametrize(("limit", "before", "reached", "told"), [
    ({"steps": 100}, 99, 100, "--steps 100"), ({"frames": 400}, 99, 100, "--frames 400"),
    ({"frames": 401}, 100, 101, "--frames 401")])
def test_steps_and_frames_are_limits(
        begin: Callable[..., Run], limit: dict[str, int], before: int, reached: int, told: str) -> None:
    record = begin(**limit)
    assert record.reached(before) is None
    assert record.reached(reached) == told


def test_minutes_are_a_limit_and_only_training_counts(clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin(minutes=1.5)
    clock.now += 500.0
    assert (record.time, record.reached(0)) == (0.0, None)
    record.start()
    clock.now += 89.5
    assert record.reached(0) is None
    clock.now += 0.5
    assert record.reached(0) == "--minutes 1.5"


def test_minutes_count_over_all_resumes(clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin(resumed={"time": 50.0}, minutes=1)
    record.start()
    clock.now += 9.0
    assert (record.time, record.reached(0)) == (59.0, None)
    clock.now += 1.0
    assert record.reached(0) == "--minutes 1"


def test_episodes_are_a_limit_over_all_resumes(clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin(resumed={"episodes": 3}, episodes=5)
    record.start()
    assert record.reached(0) is None
    clock.now += 1.0
    record.tick(learned(record, 1, 0.0, 0.0), WORKERS, [])
    assert record.reached(0) == "--episodes 5"


def test_without_limits_a_run_goes_on_for_ever(clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin()
    record.start()
    clock.now += 1e9
    assert record.reached(10**12) is None


def test_the_main_thread_sleeps_until_the_next_row_or_the_end(clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin(minutes=0.025)
    record.start()
    clock.now += 0.25
    assert record.seconds_to_next() == 0.75
    clock.now += 0.75
    record.tick(model(), WORKERS, [])
    assert record.seconds_to_next() == 0.5
    clock.now += 7.0
    assert record.seconds_to_next() == 0.0


# ------------------------------------------------------------------------------------------------ checkpoints

def test_a_checkpoint_is_made_when_it_is_due(tmp_path: Path, clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin(checkpoint_minutes=0.05, checkpoints_kept=2, game="Pong")
    record.start()
    record.statistics.new_count().predictions = 77
    record.statistics.dropped_steps = 40
    for second in range(1, 11):
        clock.now += 1.0
        record.tick(learned(record, second, float(second)), WORKERS, [])
    kept = checkpoint.saved(tmp_path / "checkpoints")
    assert [path.name for path in kept] == ["000000000090", "000000000060"]
    assert record.checkpoint_path == kept[0]
    arrays, progress = checkpoint.load(kept[0])
    assert arrays["weights"].tolist() == [9, 9, 9]
    assert progress.items() >= {"version": 9, "agent_steps": 90, "time": 9.0, "episodes": 9, "predictions": 77,
                                "dropped_steps": 40,
                                "recent_scores": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], "game": "Pong"}.items()
    assert [(event["event"], event["path"]) for event in rows(tmp_path, "events.jsonl") if event["event"] != "lag"] == [
        ("checkpoint", f"checkpoints/{steps:012d}") for steps in (30, 60, 90)]
    assert record.disturbances == 3, "no second with a checkpoint counts for a trial"


def test_the_first_checkpoint_after_each_full_hour_outlasts_the_newest(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin(checkpoints_kept=1)
    record.start()
    began = clock.now
    for number, minutes in enumerate((5, 50, 61, 70, 119, 125, 170), 1):
        clock.now = began + 60.0 * minutes
        record.save(model(number))
    assert [path.name for path in checkpoint.saved(tmp_path / "checkpoints")] == [
        "000000000070", "000000000060", "000000000030"]


def test_a_device_that_fails_a_checkpoint_is_told_and_training_goes_on(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run], capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch) -> None:
    record = begin(checkpoint_minutes=1 / 60)
    record.start()
    clock.now += 1.0
    ours = learned(record, 1)

    def fail() -> None:
        raise DeviceFailed("an update has not ended in 5 s")

    with monkeypatch.context() as patch:
        patch.setattr(ours, "state", fail)
        record.tick(ours, WORKERS, [])
    assert "No checkpoint: an update has not ended in 5 s; training goes on" in capsys.readouterr().out
    assert rows(tmp_path, "events.jsonl")[-1]["event"] == "checkpoint_failed"
    clock.now += 1.0
    record.tick(ours, WORKERS, [])
    assert checkpoint.saved(tmp_path / "checkpoints")


def test_a_resumed_run_goes_on_where_its_checkpoint_was(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run]) -> None:
    first = begin()
    first.start()
    first.statistics.new_count().predictions = 77
    clock.now += 4.0
    first.statistics.dropped_steps = 40
    first.finish(learned(first, 6, 1.0, 3.0), "--steps 60", skip_checkpoint=False)
    first.close()
    clock.now += 1e6
    second = begin(resumed=checkpoint.newest(tmp_path / "checkpoints")[0].progress)
    second.start()
    clock.now += 1.0
    second.tick(learned(second, 7, 8.0), WORKERS, [])
    last = rows(tmp_path)[-1]
    assert [last[name] for name in ("time", "agent_steps", "trainings", "episodes", "score_mean", "tps", "pps")] == [
        5.0, 70, 7, 3, 4.0, 1.0, 0.0]
    assert last["dropped_steps"] == 40
    assert second.statistics.predictions == 77
    header, *lines = (tmp_path / "episodes.csv").read_text().splitlines()
    assert [float(line.split(",")[2]) for line in lines] == [1, 3, 8]


def test_a_full_disk_is_warned_of_each_minute_and_training_goes_on(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run], monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    record = begin(checkpoint_minutes=1)
    record.start()
    record.save(learned(record, 1))

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", full)
        for second in range(2, 200):
            clock.now += 1.0
            record.tick(learned(record, second), WORKERS, [])
    assert names(tmp_path) == [10]
    out = capsys.readouterr().out
    assert out.count("No checkpoint: No space left on device; training goes on") == 3
    assert out.count("lines of the record could not be written; training goes on") == 4
    assert [event["event"] for event in rows(tmp_path, "events.jsonl")] == ["checkpoint"] + 3 * ["checkpoint_failed"]
    clock.now += 60.0
    record.tick(learned(record, 300), WORKERS, [])
    assert names(tmp_path) == [10, 3000]


def test_a_tensorboard_writer_that_fails_is_given_up_and_training_goes_on(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run], monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    record = begin(tensorboard=True)
    record.start()
    monkeypatch.setattr(record._tensorboard, "row", lambda *_: 1 / 0)
    for second in (1, 2):
        clock.now += 1.0
        record.tick(learned(record, second), WORKERS, [])
    assert len(rows(tmp_path)) == 2 and capsys.readouterr().out.count("TensorBoard gets no more numbers") == 1


def test_going_back_needs_a_checkpoint_that_is_whole_and_finite(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin(checkpoints_kept=9)
    record.start()
    for version in (1, 2, 3):
        record.save(learned(record, version))
    (tmp_path / "checkpoints/000000000030/arrays.npz").write_bytes(b"rubbish")
    spoilt = cast(Any, model(4))
    spoilt.state = lambda: ({"weights": np.full(3, np.inf)}, 4, 40)
    record.save(spoilt)
    now, taken = cast(Any, model(5)), []
    now.learning_rate_factor, now.go_back = 1.0, taken.append
    assert record.back_to_finite(now) == tmp_path / "checkpoints/000000000020"
    arrays, = taken
    assert (arrays["weights"].tolist(), now.learning_rate_factor) == ([2, 2, 2], 0.5)


def test_a_directory_has_one_user_at_a_time_and_a_killed_one_leaves_it_free(tmp_path: Path) -> None:
    program = ("import sys, time\nfrom pathlib import Path\nfrom ga3c.runs.recorder import lock_directory\n"
               "lock_directory(Path(sys.argv[1]))\nprint('has it', flush=True)\ntime.sleep(100)\n")
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}) as owner:
        assert owner.stdout and owner.stdout.readline() == "has it\n"
        with pytest.raises(ConfigError, match=f"run_dir: {tmp_path} is in use by process {owner.pid}"):
            lock_directory(tmp_path)
        owner.kill()
    os.close(lock_directory(tmp_path))


# ------------------------------------------------------------------------------------------------ evaluations

PLAYED = checkpoint.Best("", 0.0, {"episodes": 7})


class Evaluations:
    """Stands for the evaluator; the test says when an evaluation has ended, and how."""

    pid, sentinels, seconds_left = None, (), 60.0

    def __init__(self) -> None:
        self.checkpoint: Path | None = None
        self.started: list[tuple[str, int, int]] = []
        self.ended: Outcome | None = None
        self.error: OSError | None = None

    def start(self, path: Path, episodes: int, seed: int, film: bool) -> None:
        assert self.checkpoint is None and path.is_dir()
        if self.error:
            raise self.error
        self.checkpoint = path
        self.started.append((path.name, episodes, seed))

    def end(self, mean: float | None, episodes: int = 7) -> None:
        assert self.checkpoint is not None
        report = {"checkpoint": "x", "agent_steps": int(self.checkpoint.name), "mean": mean, "mean_interval": [0, 1],
                  "scores": [mean], "protocol": {"episodes": episodes, "seed": len(self.started)}}
        self.ended = Outcome(self.checkpoint, report if mean is not None else None, "exit code 1: of the world")

    def collect(self) -> Outcome | None:
        ended, self.ended = self.ended, None
        if ended is not None:
            self.checkpoint = None
        return ended

    def stop(self) -> None:
        self.checkpoint = None


@pytest.fixture
def evaluated(begin: Callable[..., Run]) -> Callable[..., tuple[Run, Evaluations]]:
    """A run that evaluates every three seconds and keeps one checkpoint."""
    def evaluated(**changed: Any) -> tuple[Run, Evaluations]:
        record = begin(**{"evaluation_minutes": 0.05, "evaluation_episodes": 7, "checkpoints_kept": 1, **changed})
        record.evaluator = cast(Any, Evaluations())
        record.start()
        return record, cast(Any, record.evaluator)

    return evaluated


def seconds(record: Run, clock: Clock, first: int, last: int) -> None:
    for second in range(first, last + 1):
        clock.now += 1.0
        record.tick(model(second), WORKERS, [])


def names(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in checkpoint.saved(directory / "checkpoints"))


def evaluations(directory: Path) -> list[dict[str, Any]]:
    return [event for event in rows(directory, "events.jsonl") if event["event"].startswith("evaluation")]


def test_an_evaluation_begins_with_a_checkpoint_when_it_is_due_after_the_last_has_ended(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., tuple[Run, Evaluations]]) -> None:
    record, evaluator = evaluated(seed=5)
    seconds(record, clock, 1, 7)
    assert evaluator.started == [("000000000030", 7, 36)] and names(tmp_path) == [30]
    evaluator.end(1.0)
    seconds(record, clock, 8, 10)
    assert len(evaluator.started) == 1
    seconds(record, clock, 11, 11)
    assert [name for name, _, _ in evaluator.started] == ["000000000030", "000000000110"]


def test_a_full_disk_stops_neither_training_nor_the_record_of_an_evaluation(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., tuple[Run, Evaluations]],
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    record, evaluator = evaluated()
    seconds(record, clock, 1, 4)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "set_best", full)
        patch.setattr(np, "savez", full)
        evaluator.end(2.0)
        seconds(record, clock, 5, 120)
    told = [event["event"] for event in rows(tmp_path, "events.jsonl")]
    assert told.count("evaluation") == 1 and told.count("checkpoint_failed") == 2, "tried once a minute"
    assert "best.json: No space left on device; training goes on" in capsys.readouterr().out
    seconds(record, clock, 121, 190)
    assert len(evaluator.started) == 2


def test_without_evaluation_minutes_nothing_is_evaluated(
        clock: Clock, evaluated: Callable[..., tuple[Run, Evaluations]]) -> None:
    record, evaluator = evaluated(evaluation_minutes=None)
    seconds(record, clock, 1, 20)
    assert evaluator.started == []


def test_the_best_checkpoint_and_the_one_under_evaluation_outlast_the_newest(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., tuple[Run, Evaluations]],
        capsys: pytest.CaptureFixture[str]) -> None:
    record, evaluator = evaluated(checkpoint_minutes=1 / 60)
    seconds(record, clock, 1, 4)
    assert names(tmp_path) == [30, 40]
    evaluator.end(2.0)
    seconds(record, clock, 5, 9)
    assert names(tmp_path) == [30, 80, 90], "the best, the one under evaluation, the newest"
    evaluator.end(1.5)
    seconds(record, clock, 10, 14)
    assert names(tmp_path) == [30, 130, 140]
    evaluator.end(2.5)
    seconds(record, clock, 15, 15)
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
        tmp_path: Path, clock: Clock, evaluated: Callable[..., tuple[Run, Evaluations]], error: OSError | None,
        capsys: pytest.CaptureFixture[str]) -> None:
    record, evaluator = evaluated()
    evaluator.error = error
    seconds(record, clock, 1, 4)
    if error is None:
        evaluator.end(None)
    seconds(record, clock, 5, 5)
    event, = evaluations(tmp_path)
    assert (event["event"], event["checkpoint"]) == ("evaluation_failed", "checkpoints/000000000030")
    assert ("of the world" if error is None else "Resource temporarily unavailable") in event["cause"]
    assert "failed, training goes on" in capsys.readouterr().out and record.best_evaluation is None
    evaluator.error = None
    seconds(record, clock, 6, 8)
    assert evaluator.started[-1][0] == ("000000000080" if error is None else "000000000060")


def test_a_best_under_another_protocol_is_no_measure(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., tuple[Run, Evaluations]]) -> None:
    record, evaluator = evaluated()
    for second, mean, episodes in ((4, 21.0, 1), (8, 18.0, 30), (12, 17.0, 30), (16, math.nan, 2), (20, 19.0, 30)):
        seconds(record, clock, second - 3 if second > 4 else 1, second - 1)
        evaluator.end(mean, episodes)
        seconds(record, clock, second, second)
    assert [event["best"] for event in evaluations(tmp_path)] == [True, True, False, False, True]
    best = checkpoint.best(tmp_path / "checkpoints")
    assert best is not None and (best.mean, best.protocol) == (19.0, {"episodes": 30})


def test_a_best_of_a_version_that_noted_no_protocol_is_a_measure(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., tuple[Run, Evaluations]]) -> None:
    record, evaluator = evaluated()
    seconds(record, clock, 1, 3)
    evaluator.end(3.0)
    record.finish(model(3), "--steps 30", skip_checkpoint=False)
    record.close()
    (tmp_path / "checkpoints/best.json").write_text('{"checkpoint": "000000000030", "mean": 3.0}')
    again, evaluator = evaluated(resumed={"agent_steps": 30, "time": 3.0})
    seconds(again, clock, 4, 6)
    evaluator.end(2.0)
    seconds(again, clock, 7, 7)
    assert again.best_evaluation == checkpoint.Best("000000000030", 3.0)


def test_the_end_stops_an_evaluation_but_takes_one_that_is_ready(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., tuple[Run, Evaluations]],
        capsys: pytest.CaptureFixture[str]) -> None:
    record, evaluator = evaluated()
    seconds(record, clock, 1, 3)
    evaluator.end(3.0)
    record.finish(model(3), "--steps 30", skip_checkpoint=False)
    assert [event["event"] for event in evaluations(tmp_path)] == ["evaluation"]
    path = tmp_path / "checkpoints/000000000030"
    assert f"Best evaluation: 3.00, by {path}" in capsys.readouterr().out
    record.close()

    again, evaluator = evaluated(resumed={"agent_steps": 30, "time": 3.0})
    assert again.best_evaluation == PLAYED._replace(checkpoint="000000000030", mean=3.0)
    seconds(again, clock, 4, 6)
    again.finish(model(6), "SIGINT", skip_checkpoint=False)
    assert evaluator.checkpoint is None
    assert evaluations(tmp_path)[-1] == {
        "time": 6.0, "event": "evaluation_stopped", "checkpoint": "checkpoints/000000000060"}
    assert names(tmp_path) == [30, 60]


@pytest.mark.parametrize("under_way", [True, False])
def test_the_last_checkpoint_is_evaluated_when_training_is_over(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., tuple[Run, Evaluations]], interruption: Signals,
        under_way: bool) -> None:
    record, evaluator = evaluated()
    seconds(record, clock, 1, 3)
    if not under_way:
        seconds(record, clock, 4, 5)
    last = 3 if under_way else 5
    rows_meanwhile: list[int] = []

    def end() -> None:
        interruption.wake()  # of something else
        time.sleep(0.05)
        rows_meanwhile.append(len(rows(tmp_path)))
        evaluator.end(4.0)
        interruption.wake()  # as the end of an evaluation does

    ending = threading.Timer(0.1, end)
    ending.start()
    record.evaluate_last(model(last), interruption)
    ending.join()
    assert rows_meanwhile == [last + 1], "the last row is there, whatever becomes of the evaluation"
    clock.now += 100.0
    record.finish(model(last), f"--steps {10 * last}", skip_checkpoint=False)
    assert len(rows(tmp_path)) == last + 1
    assert [(event["event"], event["checkpoint"][-3:]) for event in evaluations(tmp_path)] == (
        [("evaluation", "030")] if under_way else [("evaluation_stopped", "030"), ("evaluation", "050")])
    assert record.best_evaluation is not None and record.best_evaluation.checkpoint == f"{10 * last:012d}"
    assert rows(tmp_path)[-1]["time"] == last, "to evaluate is not to train"


def test_whoever_interrupts_the_last_evaluation_does_without_it(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., tuple[Run, Evaluations]],
        interruption: Signals) -> None:
    record, evaluator = evaluated()
    seconds(record, clock, 1, 2)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    record.evaluate_last(model(2), interruption)
    timer.join()
    assert evaluator.started == [("000000000020", 7, 21)] and interruption.signum == signal.SIGINT
    record.finish(model(2), "--steps 20", skip_checkpoint=False)
    assert [event["event"] for event in evaluations(tmp_path)] == ["evaluation_stopped"] and names(tmp_path) == [20]


def test_a_last_evaluation_that_cannot_begin_is_told(
        tmp_path: Path, clock: Clock, evaluated: Callable[..., tuple[Run, Evaluations]], interruption: Signals,
        capsys: pytest.CaptureFixture[str]) -> None:
    record, evaluator = evaluated()
    seconds(record, clock, 1, 2)
    evaluator.error = OSError(11, "Resource temporarily unavailable")
    record.evaluate_last(model(2), interruption)
    assert [event["event"] for event in evaluations(tmp_path)] == ["evaluation_failed"] and names(tmp_path) == [20]
    assert "training goes on" not in capsys.readouterr().out


def test_a_run_that_is_interrupted_evaluates_nothing_more(
        clock: Clock, evaluated: Callable[..., tuple[Run, Evaluations]], interruption: Signals) -> None:
    record, evaluator = evaluated()
    seconds(record, clock, 1, 2)
    interruption.signum = signal.SIGINT
    record.evaluate_last(model(2), interruption)
    assert evaluator.started == []


# ------------------------------------------------------------------------------------------------ the end

def test_the_end_writes_the_last_row_a_checkpoint_and_says_how_to_go_on(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run], capsys: pytest.CaptureFixture[str]) -> None:
    record = begin()
    record.start()
    clock.now += 0.5
    record.finish(learned(record, 200, 5.0), "SIGINT", skip_checkpoint=False)
    assert rows(tmp_path)[-1]["agent_steps"] == 2000
    assert [event["event"] for event in rows(tmp_path, "events.jsonl")] == ["lag", "checkpoint", "end"]
    *_, ended, go_on = capsys.readouterr().out.splitlines()
    assert ended == "Ended by SIGINT after 2,000 agent steps, 1 episodes."
    newest = tmp_path / "checkpoints" / "000000002000"
    assert go_on == f"Newest checkpoint: {newest}   go on with: ga3c-train --resume {tmp_path}"
    assert checkpoint.load(newest).progress["episodes"] == 1


@pytest.mark.parametrize(("steps_learned", "skip"), [(0, False), (200, True)])
def test_no_checkpoint_is_made_when_nothing_was_learned_or_it_is_skipped(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run], capsys: pytest.CaptureFixture[str],
        steps_learned: int, skip: bool) -> None:
    record = begin()
    record.start()
    record.finish(model(steps_learned), "SIGINT", skip_checkpoint=skip)
    assert checkpoint.saved(tmp_path / "checkpoints") == []
    assert "No checkpoint" in capsys.readouterr().out


def test_the_end_does_not_save_again_what_is_already_saved(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run]) -> None:
    record = begin()
    record.start()
    record.save(learned(record, 3))
    record.finish(model(3), "--steps 30", skip_checkpoint=False)
    assert [event["event"] for event in rows(tmp_path, "events.jsonl")] == ["checkpoint", "end"]
