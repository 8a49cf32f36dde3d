"""The examination of a machine: what is wrong is found, and told with what fixes it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from ga3c.commands import doctor as examined
from ga3c.commands.doctor import Finding, doctor
from ga3c.learner.tensorflow import device
from ga3c.settings.files import configured
from ga3c.tuning.memory import cache_file, remember


def named(findings: list[Finding], name: str) -> Finding:
    found, = [finding for finding in findings if finding.name == name]
    return found


def test_a_machine_that_can_train_is_well_and_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(["--game", "Pong", "--json"]) == 0
    findings = [Finding(**entry) for entry in json.loads(capsys.readouterr().out)]
    assert {finding.name for finding in findings} >= {
        "Python", "TensorFlow", "GPU", "computing", "cores", "descriptors", "disk", "ROMs", "environments", "transport",
        "best settings"}
    for name, least in (("environments", 50), ("transport", 50), ("ROMs", 60)):
        assert float(named(findings, name).numbers.split()[0].replace(",", "")) > least
    assert "of Pong" in named(findings, "environments").numbers


def test_what_is_wrong_is_said_with_its_remedy_and_the_exit_code(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = Finding("disk", False, "1 MB free", "make room")
    for check in ("_python", "_tensorflow", "_cores", "_transport", "_remembered"):
        monkeypatch.setattr(examined, check, lambda: [Finding("other", True, "fine", "never said")])
    monkeypatch.setattr(examined, "preflight", lambda settings, directory: [wrong])
    monkeypatch.setattr(examined, "_environments", lambda settings: [])
    assert doctor([]) == 1
    said = capsys.readouterr().out
    assert "NO  disk" in said and "-> make room" in said and "1 of 6 need fixing" in said and "never" not in said
    monkeypatch.setattr(examined, "preflight", lambda settings, directory: [])
    assert doctor([]) == 0
    assert "All is well." in capsys.readouterr().out


def test_an_unseen_card_is_told_with_its_missing_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "glob", lambda path, pattern: iter(
        [path / "0000:01:00.0"] if str(path) == "/proc/driver/nvidia/gpus" else []))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def load(name: str, *mode: int) -> None:
        if "cusolver" in name or "cudnn" in name:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(ctypes, "CDLL", load)
    found = examined._gpus([])
    assert not found.ok and found.numbers == (
        "1 NVIDIA, but TensorFlow sees none; cannot be loaded: libcusolver.so.11, libcudnn.so.9")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert examined._gpus([]).ok and examined._gpus(["H100"]) == Finding("GPU", True, "H100", "")


def test_a_broken_tensorflow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delitem(sys.modules, "ga3c.learner.tensorflow.device", raising=False)
    found, = examined._tensorflow()
    assert not found.ok and "cannot be imported" in found.numbers and found.remedy.endswith("tensorflow")


@pytest.mark.parametrize(("reduce_sum", "told"), [
    (np.sum, ""),
    (lambda found: 0.0 if found.ndim == 4 else found.sum(),
     "64 x 64 ones, multiplied, add up to 262144, 8 x 8, convolved with 3 x 3, to 0"),
    (lambda found: json.loads(""), "JSONDecodeError: Expecting value")])
def test_a_device_that_does_not_compute_is_found(
        reduce_sum: Callable[[NDArray], float], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    convolutions = SimpleNamespace(conv2d=lambda *given: np.full((1, 6, 6, 1), 9.0))
    tensorflow = SimpleNamespace(device=contextlib.nullcontext, ones=np.ones, reduce_sum=reduce_sum, nn=convolutions)
    monkeypatch.setattr(device, "tf", tensorflow)
    assert device._failure("GPU:0").startswith(told)
    assert bool(told) == bool(device._failure("GPU:0"))


def test_an_agent_that_cannot_work_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ga3c.agents.process.agent_main", os.abort)  # which takes no arguments
    monkeypatch.setattr(examined, "START_SECONDS", 0.5)
    found, = examined._transport()
    assert not found.ok and "no answer" in found.numbers


def test_best_settings_are_shown_or_to_be_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "a laptop")  # names may have spaces
    assert "none remembered yet" in examined._remembered()[0].numbers
    settings = configured(envs_per_agent=4)
    remember(settings, "mine:A game", (16, 1, 2), 3085.2, print)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(platform, "node", lambda: "elsewhere")
        remember(settings, "Pong", (99, 1, 2), 9.0, print)
        elsewhere.setattr("ga3c.settings.remembered.__version__", "0.1")
        remember(settings, "Boxing", (99, 1, 2), 9.0, print)
    told = "mine:A game 16/1/2 with 4 environments an agent, 3,085 agent steps/s"
    assert examined._remembered() == [Finding("best settings", True, told, "")]
    cache_file().write_text("{")
    found, = examined._remembered()
    assert not found.ok and found.remedy == f"rm {cache_file()}"


@pytest.mark.parametrize(("game", "code", "told"), [
    ("Prints", 0, "agent steps/s of odd:Prints-v0"),
    ("Raises", 1, "fails while it is played: Odd: of two lines (odd.py, "),
    ("exit-making", 2, "cannot be made: SystemExit")])
def test_a_users_game_is_measured_in_its_own_process(
        game: str, code: int, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examined, "MEASURED", 0.1)
    for each in ("_tensorflow", "_transport"):
        monkeypatch.setattr(examined, each, lambda *arguments: [])
    assert doctor(["--game", f"odd:{game}-v0", "--json"]) == code
    printed = capsys.readouterr()
    assert len(printed.err.splitlines()) == (code == 2) and told in printed.err + printed.out
    if code != 2:
        finding = named([Finding(**entry) for entry in json.loads(printed.out)], "environments")
        assert finding.ok == (code == 0) and told in finding.numbers
