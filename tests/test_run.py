"""The record of a run: its directory, its files, its limits and its checkpoints, by a clock the test winds."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ga3c import checkpoint, run
from ga3c.config import ConfigError, Settings, resolve, to_yaml
from ga3c.environment import EnvironmentSpec
from ga3c.model import Model, Update
from ga3c.rollout import RolloutStore, TrainingBatch
from ga3c.run import Run, create_directory
from ga3c.stats import Workers

SPEC = EnvironmentSpec("Pong", (2,), np.dtype("u1"), 3, 4)
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
        settings = Settings.model_validate({"tensorboard": False, **changed})
        made.append(Run(settings, SPEC, tmp_path, resumed or {}))
        return made[-1]

    yield begin
    for each in made:
        if not each._log.closed:
            each.close()


class Learned:
    """As much of a model as a record looks at."""

    def __init__(self, version: int = 0) -> None:
        self.version, self.agent_steps = version, 10 * version

    def state(self) -> tuple[dict[str, np.ndarray], int, int]:
        return {"weights": np.full(3, self.version, np.float32)}, self.version, self.agent_steps


def model(version: int = 0) -> Model:
    return cast(Model, Learned(version))


def learned(record: Run, version: int, *scores: float) -> Model:
    """The record hears of an update in which episodes ended with these scores."""
    batch: TrainingBatch = RolloutStore(SPEC, max(1, len(scores)), 1, 1).empty_batch(1)
    batch.steps[:] = len(scores)
    batch.score[0, :len(scores), 0], batch.episode_length[:] = scores, 7
    record.statistics.report(Update(version, 10 * version, 10, 0.5, 2.0, 1.0, 3e-4, np.zeros(3, np.int64)), batch)
    return model(version)


def rows(directory: Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / file).read_text().splitlines()]


# ------------------------------------------------------------------------------------------------ the directory

@pytest.mark.parametrize(("game", "stem"), [("Pong", "Pong"), ("toy:catch", "toy-catch"), ("a.b:C/D-v0", "a.b-C-D-v0")])
def test_a_run_gets_a_directory_named_after_game_time_and_seed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, game: str, stem: str) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "time", SimpleNamespace(strftime=lambda form: time.strftime(form, time.gmtime(0))))
    assert create_directory(Settings(seed=3), SPEC._replace(name=game)) == Path(f"runs/{stem}-19700101-000000-s3")


def test_runs_that_begin_in_the_same_second_get_directories_of_their_own(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "time", SimpleNamespace(strftime=lambda form: "now"))
    made = [create_directory(Settings(), SPEC) for _ in range(3)]
    assert made == [Path("runs/Pong-now-s0"), Path("runs/Pong-now-s0-2"), Path("runs/Pong-now-s0-3")]
    assert all((path / "config.yaml").is_file() for path in made)


def test_a_directory_holds_the_settings_and_the_versions(tmp_path: Path) -> None:
    settings = Settings(run_dir=str(tmp_path / "deep" / "mine"), gamma=0.5)
    path = create_directory(settings, SPEC)
    assert (path / "config.yaml").read_text() == to_yaml(settings)
    assert resolve({}, str(path / "config.yaml")) == settings
    assert {"ga3c", "python", "tensorflow", "keras", "gymnasium", "ale-py", "numpy", "command"} <= set(
        json.loads((path / "versions.json").read_text()))


def test_a_directory_that_is_not_empty_is_refused_with_the_way_on(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 7")
    with pytest.raises(ConfigError) as caught:
        create_directory(Settings(run_dir=str(tmp_path)), SPEC)
    assert str(caught.value) == (
        f"run_dir: {tmp_path} is not empty; choose another, or go on with it: --resume {tmp_path}")
    assert (tmp_path / "config.yaml").read_text() == "seed: 7"


@pytest.mark.parametrize("below", ["file", "file/deeper"])
def test_a_directory_that_cannot_be_made_is_told_in_one_line(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError) as caught:
        create_directory(Settings(run_dir=str(tmp_path / below)), SPEC)
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
        "prediction_queue", "training_queue", "agent_deaths", "prediction_batch", "score", "score_mean",
        "training_batch", "lag_mean", "lag_p95", "policy_loss", "value_loss", "entropy", "learning_rate", "memory_mb"}
    assert (row["agent_steps"], row["frames"], row["tps"], row["score_mean"]) == (50, 200, 2.5, 1.5)
    assert row["memory_mb"] > 1
    assert capsys.readouterr().out.startswith("[Time: 0:00:02] [Steps: 50 Frames: 200]")


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
             for name in ("score_mean", "pps", "tps")}
    assert shown == {
        "score_mean": [(10, 1.0), (20, 1.5)], "pps": [(10, 30.0), (20, 30.0)], "tps": [(10, 1.0), (20, 1.0)]}


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
    for second in range(1, 11):
        clock.now += 1.0
        record.tick(learned(record, second, float(second)), WORKERS, [])
    kept = checkpoint.saved(tmp_path / "checkpoints")
    assert [path.name for path in kept] == ["000000000090", "000000000060"]
    assert record.checkpoint_path == kept[0]
    arrays, progress = checkpoint.load(kept[0])
    assert arrays["weights"].tolist() == [9, 9, 9]
    assert progress.items() >= {"version": 9, "agent_steps": 90, "time": 9.0, "episodes": 9, "predictions": 77,
                                "recent_scores": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], "game": "Pong"}.items()
    assert [(event["event"], event["path"]) for event in rows(tmp_path, "events.jsonl")] == [
        ("checkpoint", f"checkpoints/{steps:012d}") for steps in (30, 60, 90)]


def test_a_resumed_run_goes_on_where_its_checkpoint_was(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run]) -> None:
    first = begin()
    first.start()
    first.statistics.new_count().predictions = 77
    clock.now += 4.0
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
    assert second.statistics.predictions == 77
    header, *lines = (tmp_path / "episodes.csv").read_text().splitlines()
    assert [float(line.split(",")[2]) for line in lines] == [1, 3, 8]


# ------------------------------------------------------------------------------------------------ the end

def test_the_end_writes_the_last_row_a_checkpoint_and_says_how_to_go_on(
        tmp_path: Path, clock: Clock, begin: Callable[..., Run], capsys: pytest.CaptureFixture[str]) -> None:
    record = begin()
    record.start()
    clock.now += 0.5
    record.finish(learned(record, 200, 5.0), "SIGINT", skip_checkpoint=False)
    assert rows(tmp_path)[-1]["agent_steps"] == 2000
    assert [event["event"] for event in rows(tmp_path, "events.jsonl")] == ["checkpoint", "end"]
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
