"""`equal_time.py`: ours and another program's curves up to the same minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import equal_time
import pytest

OURS = {"game": "Pong", "processor": "A", "curve": {
    "agent_steps": [10, 20, 30], "minutes": [1.0, 2.0, 3.0], "score": [0.0, 5.0, 20.0]}}
THEIRS = {"program": "Other", "processor": "B", "agent_steps": [1, 2], "minutes": [1.0, 2.5], "score": [-1.0, 1234.5]}


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(ours: Any, theirs: Any, *flags: str) -> int:
        for name, numbers in (("ours", ours), ("theirs", theirs)):
            (tmp_path / f"{name}.json").write_text(numbers if isinstance(numbers, str) else json.dumps(numbers))
        monkeypatch.setattr("sys.argv", ["equal_time.py", str(tmp_path / "ours.json"), str(tmp_path / "theirs.json"),
                                         "-o", str(tmp_path / "picture.png"), *flags])
        return equal_time.main()

    return call


def test_scores_are_those_of_the_last_point_within_the_minutes(
        call: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call({"pong": OURS, "boxing": OURS | {"game": "Boxing"}}, {"Pong": THEIRS}, "--minutes", "2.7") == 0
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| Pong | A | 5.0 | 20 | 2.0 | B | 1,234.5 | 2 | 2.5 |"]
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_game_that_only_one_has_played_is_left_out_and_none_is_a_mistake(
        call: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert call({"pong": OURS}, {"Qbert": THEIRS}) == 2
    assert capsys.readouterr().err == "equal_time.py: no game is in both files\n"


def test_what_is_no_json_is_a_mistake(call: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("{", {"Pong": THEIRS}) == 2
    said = capsys.readouterr().err
    assert said.startswith("equal_time.py: ") and said.count("\n") == 1


@pytest.mark.parametrize(("ours", "theirs", "flags", "told"), [
    ({"Pong": THEIRS}, {"pong": OURS}, [], "OURS is to be as learning.py writes it"),
    ({"pong": OURS}, {"Pong": THEIRS}, ["--minutes", "0.5"], "Pong: a curve has no point within 0.5 minutes"),
    ({"pong": OURS, "other": OURS | {"flags": "--gamma 0.9"}}, {"Pong": THEIRS}, [], "runs of several settings")])
def test_files_that_are_swapped_and_minutes_before_the_first_point_are_mistakes(
        call: Any, capsys: pytest.CaptureFixture[str], ours: Any, theirs: Any, flags: list[str], told: str) -> None:
    assert call(ours, theirs, *flags) == 2
    said = capsys.readouterr().err
    assert told in said and said.count("\n") == 1
