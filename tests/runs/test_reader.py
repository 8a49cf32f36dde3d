"""Reading what runs have written, also while they write."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ga3c.settings.messages import ConfigError
from ga3c.runs.reader import Follower, episodes, find_run, lasting, lasting_events, rows, settings


def test_lines_are_told_once_and_a_torn_one_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"time": 1}\n{"time": 2}\n{"ti')
    follower = Follower(path)
    assert [row["time"] for row in follower.new()] == [1, 2]
    assert follower.new() == []
    with open(path, "ab") as file:
        file.write(b'me": 3}\n')
    assert follower.new() == [{"time": 3}]


LEAST = dict.fromkeys(("time", "agent_steps", "frames", "episodes", "agents", "predictors", "trainers"), 1)


def test_a_row_has_numbers_and_none(tmp_path: Path) -> None:
    odd = [LEAST, {"time": 1}, LEAST | {"agents": "many"}, LEAST | {"frames": float("nan")}, LEAST | {"time": True},
           LEAST | {"pps": 7, "tps": "fast", "score": 10**400, "bottleneck": "device", "odd": [1]},
           LEAST | {"bottleneck": 3}, LEAST | {"bottleneck": "agents"}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in odd))
    first, second, third, last = rows(tmp_path).new()
    assert first == third and set(first.values()) == {1, None} and first["tps"] is None
    assert second == first | {"pps": 7, "bottleneck": "device"}
    assert last == first | {"bottleneck": "agents"}


def test_what_a_resume_cut_off_is_left_out_also_the_second_before_it(tmp_path: Path) -> None:
    """A checkpoint after 600.3 s; the run ended at 602 and went on from there, with its first row a second later."""
    played = [(600.0, 3_000_000), (601.0, 3_005_000), (602.0, 3_010_000), (601.3, 3_004_500), (602.3, 3_009_000)]
    (tmp_path / "metrics.jsonl").write_text("".join(
        json.dumps(LEAST | {"time": time, "agent_steps": steps}) + "\n" for time, steps in played))
    (tmp_path / "episodes.csv").write_text("time,agent_step,score,length\n" + "".join(
        f"{time},{steps},1.0,9\n" for time, steps in played))
    kept = [3_000_000, 3_004_500, 3_009_000]
    assert [row["agent_steps"] for row in lasting(rows(tmp_path).new())] == kept
    assert episodes(tmp_path)["agent_step"].tolist() == kept


def test_an_evaluation_lasts_as_long_as_its_checkpoint(tmp_path: Path) -> None:
    """A checkpoint after 600 s, whose evaluation ended at 660. Of two crashes only the second is from before it."""
    def written(*told: dict[str, object]) -> None:
        with open(tmp_path / "events.jsonl", "a") as file:
            file.writelines(json.dumps(event) + "\n" for event in told)

    of_600 = {"event": "evaluation", "time": 660.0, "agent_steps": 6_000, "best": True}
    written({"event": "start", "time": 0.0, "resumed_at": 0}, of_600, {"event": "agent_died", "time": 670.0},
            {"event": "evaluation", "time": 710.0, "agent_steps": 6_900, "best": False},
            {"event": "start", "time": 600.0, "resumed_at": 6_000})
    assert [event["time"] for event in lasting_events(tmp_path)] == [0.0, 660.0, 600.0]
    written({"event": "start", "time": 500.0, "resumed_at": 5_000})
    assert of_600 not in lasting_events(tmp_path)


def test_settings_are_those_of_the_file(tmp_path: Path) -> None:
    assert settings(tmp_path) == {}
    (tmp_path / "config.yaml").write_text("env:\n  game: Pong\n  a_setting_of_tomorrow: 1\n")
    assert settings(tmp_path) == {"game": "Pong", "a_setting_of_tomorrow": 1}
    (tmp_path / "config.yaml").write_text("game: [")
    with pytest.raises(ConfigError, match="config.yaml cannot be read"):
        settings(tmp_path)


def test_no_run_named_is_the_one_written_to_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="runs/ has none"):
        find_run(None)
    for name, written in (("a", 3), ("b", 9), ("c", 6)):
        (Path("runs") / name).mkdir(parents=True)
        (Path("runs") / name / "metrics.jsonl").touch()
        os.utime(Path("runs") / name / "metrics.jsonl", (written, written))
    assert find_run(None) == Path("runs/b")
    assert find_run(Path("runs/a")) == Path("runs/a")
    with pytest.raises(ConfigError, match="nowhere is no run"):
        find_run(Path("nowhere"))
