"""The process of an evaluation during training: however it ends, its outcome says so, and nothing is left behind."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path

import psutil
import pytest

from ga3c.evaluation import background
from ga3c.evaluation.background import Evaluator, Outcome

CHECKPOINT = Path("run/checkpoints/000000000010")
REPORT = json.dumps({"checkpoint": str(CHECKPOINT), "mean": 1.5})


@pytest.fixture
def made() -> Iterator[Evaluator]:
    made = Evaluator(5)
    yield made
    made.stop()


def begin(made: Evaluator, program: str, monkeypatch: pytest.MonkeyPatch, episodes: int = 3) -> None:
    monkeypatch.setattr(background, "_PROGRAM", program)
    made.start(CHECKPOINT, episodes, 7)


def outcome(made: Evaluator) -> Outcome:
    assert wait(made.sentinels, 60), "it has not ended"
    found = made.collect()
    assert found is not None and found.checkpoint == CHECKPOINT
    assert made.collect() is None and made.checkpoint is None and made.pid is None and made.sentinels == []
    return found


REPORTS = "import os, sys; os.write(int(sys.argv[-1]), {!r})"


@pytest.mark.parametrize("program", [
    "{0}", "print('an environment says hello'); {0}; print(5)", "print('{{\"checkpoint\": 1}}'); {0}",
    "import sys; sys.stdout.write('x' * 2**20 + chr(10)); {0}; sys.stderr.write('y' * 2**20)"])
def test_a_report_is_collected_once(made: Evaluator, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    begin(made, program.format(REPORTS.format(REPORT.encode())), monkeypatch)
    assert outcome(made) == Outcome(CHECKPOINT, json.loads(REPORT), "")


def test_one_whose_game_leaves_a_process_behind_is_over_when_it_has_ended(
        made: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds everything that it has inherited, the socket to us, too."""
    left = tmp_path / "left"
    program = ("import os, time\nif os.fork() == 0:\n    os.setsid()\n"
               f"    open({str(left)!r}, 'w').write(str(os.getpid()))\n    time.sleep(600)\n"
               f"while not os.path.exists({str(left)!r}) or not os.path.getsize({str(left)!r}): time.sleep(0.01)\n")
    began = time.monotonic()
    try:
        begin(made, program + REPORTS.format(REPORT.encode()), monkeypatch)
        assert outcome(made) == Outcome(CHECKPOINT, json.loads(REPORT), "") and time.monotonic() - began < 50
    finally:
        psutil.Process(int(left.read_text())).kill()


def test_a_video_is_taken_out_of_its_report(made: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    with_video = json.dumps({**json.loads(REPORT), "video": "R0lGOA=="})
    begin(made, REPORTS.format(with_video.encode()), monkeypatch)
    assert outcome(made) == Outcome(CHECKPOINT, json.loads(REPORT), "", b"GIF8")


@pytest.mark.parametrize(("program", "cause"), [
    ("1 / 0", "exit code 1: ZeroDivisionError: division by zero"),
    ("import sys; print('ga3c-eval: it is damaged', file=sys.stderr); sys.exit(5)",
     "exit code 5: ga3c-eval: it is damaged"),
    ("import os; os.kill(os.getpid(), 9)", "killed by signal 9"),
    (f"print({REPORT!r})", "exit code 0: it wrote no report"), ("", "exit code 0: it wrote no report"),
    # Hung up, but not ended: it must neither be waited for nor left behind.
    ("import os, time; os.close(0); time.sleep(600)", "killed by signal 9")])
def test_a_failure_is_an_outcome_with_its_cause(
        made: Evaluator, monkeypatch: pytest.MonkeyPatch, program: str, cause: str) -> None:
    begin(made, program, monkeypatch)
    assert outcome(made) == Outcome(CHECKPOINT, None, cause)


def test_one_after_the_other(made: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in ("1 / 0", REPORTS.format(REPORT.encode())):
        begin(made, program, monkeypatch)
        assert (outcome(made).report is None) == (program == "1 / 0")


def test_one_that_never_ends_is_ended(made: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(made, "import time; time.sleep(600)", monkeypatch)
    process = psutil.Process(made.pid)
    assert made.collect() is None
    monkeypatch.setattr(background, "TIMEOUT", 0.0)
    assert made.collect() == Outcome(CHECKPOINT, None, "it did not end within 0 minutes")
    assert not process.is_running() and made.checkpoint is None and made.sentinels == []


def test_one_that_is_under_way_is_ended_at_once(
        made: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = tmp_path / "deaf"
    monkeypatch.setattr(background, "_CLEANUP_SECONDS", 0.1)
    begin(made, "import signal, time\nfor n in (1, 2, 15): signal.signal(n, signal.SIG_IGN)\n"
          f"open({str(deaf)!r}, 'w').close()\ntime.sleep(600)", monkeypatch)
    deadline = time.monotonic() + 30
    while not deaf.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert made.collect() is None and made.checkpoint == CHECKPOINT
    process, began = psutil.Process(made.pid), time.monotonic()
    made.stop()
    assert not process.is_running() and time.monotonic() - began < 2
    assert made.checkpoint is None
    made.stop()


def test_one_that_is_ended_removes_its_temporary_files(
        made: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    monkeypatch.setattr(background, "_CLEANUP_SECONDS", 30.0)
    begin(made, "import signal, sys, time\nfrom pathlib import Path\nsignal.signal(15, lambda *signalled: sys.exit())\n"
          f"file = Path({str(file)!r})\n"
          "try:\n    file.touch()\n    time.sleep(600)\nfinally:\n    file.unlink()", monkeypatch)
    deadline = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    made.stop()
    assert not file.exists()


def test_it_is_given_the_checkpoint_no_gpu_our_modules_and_a_group_of_its_own(
        made: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("/nowhere/special")
    begin(made, "import json, os, sys\nos.write(int(sys.argv[-1]), json.dumps({'checkpoint': sys.argv[1:-1], "
                "'group': os.getpgrp() == os.getpid(), 'gpu': os.environ['CUDA_VISIBLE_DEVICES'], "
                "'path': '/nowhere/special' in sys.path}).encode())", monkeypatch)
    assert outcome(made).report == {
        "checkpoint": [str(CHECKPOINT), "--episodes", "3", "--seed", "7", "--max-minutes", "30", "--no-record",
                       "--background", "5", "--report"],
        "group": True, "gpu": "-1", "path": True}


def test_one_that_cannot_be_started_leaves_nothing(made: Evaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background.sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        made.start(CHECKPOINT, 3, 7)
    assert made.checkpoint is None and made.sentinels == []


@pytest.mark.parametrize(("episodes", "minutes"), [(16, 30.0), (17, 20.0), (160, 4.0)])
def test_all_episodes_cut_short_are_over_long_before_its_time_is(
        made: Evaluator, monkeypatch: pytest.MonkeyPatch, episodes: int, minutes: float) -> None:
    begin(made, "import json, os, sys; os.write(int(sys.argv[-1]), json.dumps({'argv': sys.argv}).encode())",
          monkeypatch, episodes)
    report = outcome(made).report
    assert report is not None and float(report["argv"][report["argv"].index("--max-minutes") + 1]) == minutes
