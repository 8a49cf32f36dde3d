"""`speed.py`: runs that are made up, and short ones."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import speed
from programs import tool
from rows import rows

import ga3c
from ga3c.settings.schema import Settings

Call = Callable[..., int]


@pytest.fixture
def first_update_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Runs without a service, a row a second, whose first update comes after so many. Returns their lengths."""
    def after(seconds: int) -> list[int]:
        lengths: list[int] = []

        def train(settings: Settings, quiet: bool) -> None:
            assert settings.run.run_dir and settings.run.minutes and quiet
            length = math.ceil(60 * settings.run.minutes - 1e-6)
            lengths.append(length)
            updates = [max(0, t + 1 - seconds) for t in range(length)]
            lines = rows(length, trainings=updates, agent_steps=[100 * done for done in updates],
                         agents=[min(t, 4) for t in range(length)], cpu_machine=0.5,
                         time=[t + 1.0625 for t in range(length)])
            Path(settings.run.run_dir).mkdir()
            (Path(settings.run.run_dir) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))

        monkeypatch.setattr(ga3c, "train", train)
        return lengths

    monkeypatch.setattr(speed, "usable_cores", lambda: 1)
    return after


def few() -> Settings:
    """Settings of 100 environments, of which a core begins as many in a second."""
    return Settings().changed(game="toy:catch", agents=4, envs_per_agent=25)


@pytest.mark.parametrize(("first", "lengths"), [(5, [16]), (20, [16, 22, 34])])
def test_speed_is_of_the_last_seconds_of_a_run_that_is_long_enough(
        first: int, lengths: list[int], first_update_after: Callable[[int], list[int]]) -> None:
    made = first_update_after(first)
    means = speed.speed(few(), 10)
    assert made == lengths and means["steps_per_second"] == 100 and means["cpu_machine"] == 0.5


def test_a_run_without_an_update_is_not_made_for_ever(first_update_after: Callable[[int], list[int]]) -> None:
    lengths = first_update_after(10_000)
    with pytest.raises(SystemExit, match="no update in the first 96 seconds"):
        speed.speed(few(), 10)
    assert lengths == [16, 22, 34, 58, 106]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls the tool, with an output directory of its own."""
    def calling(what: str, *arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["speed", what, "--out", str(tmp_path), *map(str, arguments)])
        return speed.main()

    return calling


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What the tool has had measured. The rate is the number of environments, and PPS fall with the network's size."""
    asked: list[Settings] = []

    def note(settings: Settings, seconds: float) -> dict[str, Any]:
        asked.append(settings)
        rate = float(settings.schedule.agents * settings.agents.envs_per_agent)
        pps = rate * (1 if settings.algorithm.network == "small" else settings.algorithm.large_stride / 10)
        return {"steps_per_second": rate, "pps": pps, "tps": 2.0, "prediction_batch": 3.0, "lag_mean": None,
                "cpu_machine": 1.5, "training_queue": 0.5}

    monkeypatch.setattr(speed, "speed", note)
    return asked


def table(path: Path) -> list[list[str]]:
    """The lines of a Markdown table below its heading, cell by cell."""
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in path.read_text().splitlines()[2:]]


def test_networks_are_measured_where_they_are_missing_and_divided(
        call: Call, measured: list[Settings], tmp_path: Path) -> None:
    common = ("--game", "toy:catch", "--workers", 2, "--agents", 5, "--networks", "small")
    assert call("networks", *common) == 0 and len(measured) == 2
    assert call("networks", *common, "large-2") == 0 and len(measured) == 4
    assert call("networks", *common, "large-2") == 0 and len(measured) == 4
    assert {(one.algorithm.network, one.algorithm.large_stride) for one in measured} == {("small", 4), ("large", 2)}
    assert sorted(one.algorithm.algorithm for one in measured) == ["a3c", "a3c", "a3c-cpu", "a3c-cpu"]
    assert not any(one.tuning.dynamic for one in measured) and all(one.agents.envs_per_agent == 1 for one in measured)
    assert table(tmp_path / "networks.md") == [
        ["small", "2", "2.0", "5", "2.0", "2.50", "352", "1,361", "3.9"],
        ["large-2", "0", "2.0", "1", "2.0", "2.50", "43", "874", "20.3"]]
    assert (tmp_path / "networks.png").read_bytes().startswith(b"\x89PNG")
    assert call("networks", *common, "--", "--gamma", "0.5") == 0 and len(measured) == 6


def test_schedules_are_compared_with_updates_of_one_size(
        call: Call, measured: list[Settings], tmp_path: Path) -> None:
    assert call("environments", "--game", "toy:catch", "--environments", 8, 32, "--agents", 4, "--", "--network",
                "dense") == 0
    assert len(measured) == 6
    for one in measured:
        size = one.agents.envs_per_agent * 4
        assert size in (8, 32) and one.schedule.agents == 4 and one.algorithm.network == "dense"
        rounds = one.schedule
        update = rounds.segment * size if rounds.agents_wait else one.batching.training_batch_min
        assert update == one.algorithm.rollout_length * size
    assert [row[:2] for row in table(tmp_path / "environments.md")] == [
        [schedule, size] for schedule in speed.SCHEDULES for size in ("8", "32")]


def test_schedules_of_a_replay_are_compared_by_number_of_agents(
        call: Call, measured: list[Settings], tmp_path: Path) -> None:
    assert call("schedules", "--game", "toy:catch", "--agents", 1, 8) == 0
    assert {(one.batching.schedule, one.schedule.agents) for one in measured} == {
        ("standard", 1), ("concurrent", 1), *((schedule, 8) for schedule in speed.FROM_MEMORY)}
    assert all(one.batching.training_batch_min == 32 and one.agents.envs_per_agent == 1 for one in measured)
    assert [row[:3] for row in table(tmp_path / "schedules.md")][:2] == [["standard", "1", "1"], ["standard", "8", "8"]]


def test_environments_that_cannot_be_shared_are_a_mistake(
        call: Call, measured: list[Settings], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("environments", "--environments", 8, 9, "--agents", 4) == 2
    assert "9 cannot be shared by 4 agents" in capsys.readouterr().err and not measured


def test_workers_are_measured_once_and_drawn(
        call: Call, measured: list[Settings], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("--game", "toy:catch", "--agents", 1, 3, "--predictors", 1, "--trainers", 2, "--networks", "dense")
    assert call("workers", *common) == 0 and len(measured) == 2
    *runs, heading, rule, one, three = capsys.readouterr().out.splitlines()
    assert sorted(run.rsplit(" ", 3)[0] for run in runs) == ["dense 1 1 2", "dense 3 1 2"]
    assert call("workers", *common) == 0 and len(measured) == 2
    assert capsys.readouterr().out.splitlines() == [heading, rule, one, three]
    assert [row[:4] for row in table(tmp_path / "workers.md")] == [["dense", "1", "1", "2"], ["dense", "3", "1", "2"]]
    assert (tmp_path / "workers.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_short_run_is_measured(tmp_path: Path) -> None:
    done = tool("figures/speed", "workers", "--out", tmp_path, "--game", "toy:catch", "--agents", 1, "--predictors", 1,
                "--trainers", 1, "--networks", "dense", "--seconds", 4, "--", "--envs-per-agent", "2",
                "--training-batch-min", "20", "--rollout-length", "5")
    assert done.returncode == 0 and done.stdout.startswith("dense 1 1 1 "), done.stderr
    line, = map(json.loads, (tmp_path / "workers.jsonl").read_text().splitlines())
    assert line["agents"] == 1 and line["steps_per_second"] > 0 and line["prediction_batch"] == 2
