"""`speed_figures.py`, with short runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import tool


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
