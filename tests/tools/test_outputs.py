"""Every tool checks its command line before it begins to work."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("command", "says"), [
    ("transport --json .", "cannot be written"),
    ("roofline --json nowhere/x.json", "is no directory"), ("emulator_cuda --json nowhere/x.json", "is no directory"),
    ("emulator --json x.gif", "none of .json by its name")])
def test_an_output_that_cannot_be_written_is_reported_before_the_work(
        command: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", command.split())
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(sys.argv[0]).main()
    assert ended.value.code == 2 and says in capsys.readouterr().err


@pytest.mark.parametrize(("tool", "flags"), [
    ("roofline", "--game Boxing"), ("roofline", "--minutes 1"), ("roofline", "--run-dir x"),
    ("speed", "--agents 3"), ("speed", "--network large"), ("speed", "--no-dynamic")])
def test_flags_that_a_tool_of_speed_sets_itself_are_refused(
        tool: str, flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    given = ["workers", "--out", str(tmp_path / "out")] if tool == "speed" else ["--runs", "0"]
    monkeypatch.setattr(sys, "argv", [tool, *given, "--", *flags.split()])
    assert importlib.import_module(tool).main() == 2
    told = capsys.readouterr().err
    assert f"{tool}: {flags.split()[0].replace('--no-', '--')} cannot be given after --" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()
