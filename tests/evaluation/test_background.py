"""An evaluation during training: however it ends, its outcome says so, and nothing is left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import psutil
import pytest
from children import REPORT

from ga3c.envs import child_process
from ga3c.evaluation import background
from ga3c.evaluation.background import Evaluator, Outcome

CHECKPOINT = Path("run/checkpoints/000000000010")


@pytest.fixture
def made() -> Iterator[Evaluator]:
    made = Evaluator(5)
    yield made
    made.stop()


def begin(made: Evaluator, function: str, monkeypatch: pytest.MonkeyPatch, episodes: int = 3) -> None:
    monkeypatch.setattr(background, "_FUNCTION", f"children:{function}")
    made.start(CHECKPOINT, episodes, 7)


def outcome(made: Evaluator) -> Outcome:
    found = None
    deadline = time.monotonic() + 100
    while found is None:
        assert wait(made.sentinels, 100) and time.monotonic() < deadline, "it has not ended"
        found = made.collect()
    assert found.checkpoint == CHECKPOINT
    assert made.collect() is None and made.checkpoint is None and made.pid is None and made.sentinels == []
    return found


def test_a_report_and_its_film_are_collected_once(made: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(made, "reports_among_prints", monkeypatch)
    assert outcome(made) == Outcome(CHECKPOINT, REPORT, "", b"GIF8")


@pytest.mark.parametrize(("function", "cause"), [
    ("raises", "exit code 1: RuntimeError: of our own code"), ("complains", "exit code 5: ga3c-eval: it is damaged"),
    ("kills_itself", "killed by signal 11"), ("ends", "exit code 0: it wrote no report"),
    ("closes_its_pipe", "it closed the pipe on which its process answers")])
def test_a_failure_is_an_outcome_with_its_cause(
        made: Evaluator, monkeypatch: pytest.MonkeyPatch, function: str, cause: str) -> None:
    monkeypatch.setattr(child_process, "END_SECONDS", 0.1 if function == "closes_its_pipe" else 60.0)
    begin(made, function, monkeypatch)
    assert outcome(made) == Outcome(CHECKPOINT, None, cause)


def test_one_that_never_ends_is_ended(made: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(made, "hangs_whatever_it_is_given", monkeypatch)
    process = psutil.Process(made.pid)
    assert made.collect() is None
    monkeypatch.setattr(background, "TIMEOUT", 0.0)
    assert made.collect() == Outcome(CHECKPOINT, None, "it did not end within 0 minutes")
    assert not process.is_running() and made.checkpoint is None and made.sentinels == []


def test_one_that_is_under_way_is_ended_at_once(made: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(made, "hangs_whatever_it_is_given", monkeypatch)
    assert made.checkpoint == CHECKPOINT
    process = psutil.Process(made.pid)
    made.stop()
    assert not process.is_running() and made.checkpoint is None
    made.stop()


@pytest.mark.parametrize(("episodes", "minutes"), [(16, "30"), (17, "20"), (160, "4")])
def test_it_is_given_the_checkpoint_no_gpu_and_time_for_all_episodes(
        made: Evaluator, monkeypatch: pytest.MonkeyPatch, episodes: int, minutes: str) -> None:
    begin(made, "reports_what_it_was_given", monkeypatch, episodes)
    assert outcome(made).report == {
        "arguments": [str(CHECKPOINT), "--episodes", str(episodes), "--seed", "7", "--max-minutes", minutes], "nice": 5,
        "filmed": False, "gpu": "-1"}
