"""`figure_runs.speed`, with made-up runs, and `speed_figures.py`, with short ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import figure_runs
import pytest
from programs import tool
from rows import rows

import ga3c
from ga3c.settings.schema import Settings


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
            made = rows(length, trainings=updates, agent_steps=[100 * done for done in updates],
                        agents=[min(t, 4) for t in range(length)], cpu_agents=0.5,
                        time=[t + 1.0625 for t in range(length)])
            Path(settings.run.run_dir).mkdir()
            (Path(settings.run.run_dir) / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))

        monkeypatch.setattr(ga3c, "train", train)
        return lengths

    monkeypatch.setattr(figure_runs, "usable_cores", lambda: 1)
    return after


def few() -> Settings:
    """Settings of 100 environments, of which a core begins as many in a second."""
    return Settings().changed(game="toy:catch", agents=4, envs_per_agent=25)


def test_speed_is_of_the_last_seconds(first_update_after: Callable[[int], list[int]]) -> None:
    lengths = first_update_after(5)
    found = figure_runs.speed(few(), 10)
    assert lengths == [16] and found["steps_per_second"] == 100 and found["cpu_agents"] == 0.5


def test_a_run_that_begins_slowly_is_made_longer(first_update_after: Callable[[int], list[int]]) -> None:
    lengths = first_update_after(20)
    assert figure_runs.speed(few(), 10)["steps_per_second"] == 100
    assert lengths == [16, 22, 34]


def test_a_run_without_an_update_is_not_made_for_ever(first_update_after: Callable[[int], list[int]]) -> None:
    lengths = first_update_after(10_000)
    with pytest.raises(SystemExit, match="no update in the first 96 seconds"):
        figure_runs.speed(few(), 10)
    assert lengths == [16, 22, 34, 58, 106]


def test_too_few_seconds_are_told(first_update_after: Callable[[int], list[int]]) -> None:
    first_update_after(0)
    with pytest.raises(SystemExit, match="1 seconds are too few rows; give more --seconds"):
        figure_runs.speed(few(), 1)


@pytest.mark.slow
def test_speed_figures_measure_what_is_missing_and_draw(tmp_path: Path) -> None:
    def figures(*agents: int) -> list[str]:
        done = tool("figures/speed_figures", "--out", tmp_path, "--game", "toy:catch", "--agents", *agents,
                    "--predictors", 1, "--trainers", 1, "--networks", "dense", "--seconds", 5, "--",
                    "--envs-per-agent", "2")
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert [line.split(":")[0] for line in figures(1)] == ["dense 1/1/1", "drawn"]
    assert [line.split(":")[0] for line in figures(1)] == ["drawn"]
    found, = map(json.loads, (tmp_path / "speed.jsonl").read_text().splitlines())
    assert found["agents"] == 1 and found["steps_per_second"] > 0 and found["prediction_batch"] == 2
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
