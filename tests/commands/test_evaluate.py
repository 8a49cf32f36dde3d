"""`ga3c-eval` on games that do anything: one report, one line for what goes wrong, and no word of theirs in between."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from multiprocessing.connection import wait
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
from PIL import Image
from trained import make_trained

import ga3c
from ga3c.commands import evaluate as module
from ga3c.commands.evaluate import evaluate
from ga3c.evaluation.background import Evaluator
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ga3c.learner.backend.start", lambda settings: None)


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """Makes `run` with a new policy of an odd game, which is not made for that."""
    def run(name: str, **changed: object) -> Path:
        game = f"odd:{name}-v0"
        make_trained(tmp_path / "run", configured(game="odd:Plain-v0"), says=configured(game=game, **changed),
                     game=game)
        return tmp_path / "run"

    return run


def test_the_report_is_all_that_is_printed(run: Callable[..., Path], capfd: pytest.CaptureFixture[str]) -> None:
    run("Prints")
    assert evaluate(["run", "--json", "--episodes", "3"]) == 0
    out, err = capfd.readouterr()
    assert (out.count("\n"), err) == (1, "")
    report = json.loads(out)
    assert (report["scores"], report["cut"], report["limits"]) == ([5.0] * 3, [], {"steps": 108_000, "minutes": 30.0})
    assert Path("run/log.txt").read_text().count("forged") == 15


@pytest.mark.parametrize(("name", "code", "told"), [
    ("Exits", 3, r"'odd:Exits-v0' failed while it played: SystemExit: the code 'enough of this' \(odd.py, line \d+\)"),
    ("ExitsUnmade", 2, r"game: 'odd:ExitsUnmade-v0' cannot be made: SystemExit: the code 3 \(odd.py, line \d+\)")])
def test_a_game_that_fails_is_told_in_one_line(
        run: Callable[..., Path], capfd: pytest.CaptureFixture[str], name: str, code: int, told: str) -> None:
    run(name)
    assert evaluate(["run", "--json", "--episodes", "3"]) == code
    out, err = capfd.readouterr()
    assert out == "" and re.fullmatch(f"ga3c-eval: {told}\n", err), err


def test_games_are_opened_by_flags_or_as_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, float | None]] = []

    def noted(settings: Settings, *others: object) -> NoReturn:
        asked.append((settings.env.noop_max, settings.env.sticky_actions))
        raise ConfigError("enough")

    monkeypatch.setattr("ga3c.evaluation.players.playing", noted)
    make_trained(tmp_path / "run", configured(game="odd:Plain-v0"), game="Pong",
                 says=configured(game="Pong", sticky_actions=0.125))
    for flags in ([], ["--noop-max", "7", "--sticky-actions", "0.5"]):
        assert evaluate(["run", *flags]) == 2
    assert asked == [(30, 0.125), (7, 0.5)]


def test_flags_of_atari_are_refused_where_the_game_is_another(
        run: Callable[..., Path], capfd: pytest.CaptureFixture[str]) -> None:
    run("Plain")
    assert evaluate(["run", "--noop-max", "7"]) == 2
    assert capfd.readouterr().err == "ga3c-eval: --noop-max: odd:Plain-v0 is no Atari game and has none\n"


def test_episodes_that_were_cut_short_are_said(run: Callable[..., Path], capfd: pytest.CaptureFixture[str]) -> None:
    run("Endless")
    assert evaluate(["run", "--episodes", "3", "--max-steps", "70"]) == 0
    shown = capfd.readouterr().out
    assert re.search(r"Cut short +3 +of them, at 70 agent steps or 30 min", shown)
    assert re.match(r"odd:Endless-v0: \S+/checkpoints/\d{12}, [\d,]+ agent steps\n", shown), shown
    assert evaluate(["run", "--episodes", "3", "--max-minutes", "0.001", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["cut"] == [0, 1, 2] and report["limits"]["minutes"] == 0.001
    assert report["scores"] == report["lengths"]


def test_without_a_terminal_lines_say_how_far_it_is(
        run: Callable[..., Path], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    run("Plain")
    monkeypatch.setattr(module, "PROGRESS_SECONDS", 0.0)
    assert evaluate(["run", "--episodes", "3", "--json"]) == 0
    lines = capfd.readouterr().err.splitlines()
    assert re.fullmatch(r"ga3c-eval: 0 of 3 episodes after \d+ s; each environment has played 1 agent steps", lines[0])
    assert re.match(r"ga3c-eval: 3 of 3 episodes", lines[-1])


def test_an_evaluation_in_the_background_films_what_has_pictures(tmp_path: Path) -> None:
    make_trained(tmp_path / "run", configured(game="Pong"))
    made, outcome = Evaluator(0), None
    try:
        made.start(tmp_path / "run/checkpoints/000000000010", 1, 7, video=True)
        while outcome is None:
            assert wait(made.sentinels, 200)
            outcome = made.collect()
    finally:
        made.stop()
    assert outcome.report is not None, outcome
    with Image.open(BytesIO(outcome.video)) as film:
        assert getattr(film, "n_frames", 1) > 50


def test_a_run_that_cannot_be_written_to_is_evaluated(
        run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def refused(trained: object, found: object) -> NoReturn:
        raise PermissionError(13, "Permission denied", "run/events.jsonl")

    run("Plain")
    monkeypatch.setattr("ga3c.evaluation.scores.record", refused)
    assert evaluate(["run", "--episodes", "2", "--json"]) == 0
    out, err = capfd.readouterr()
    assert len(json.loads(out)["scores"]) == 2
    assert err.splitlines()[-1] == "ga3c-eval: not recorded: [Errno 13] Permission denied: 'run/events.jsonl'"


def test_python_gets_the_report_though_a_game_prints_one(run: Callable[..., Path]) -> None:
    assert ga3c.evaluate(run("Prints"), episodes=2)["scores"] == [5.0, 5.0]


@pytest.mark.parametrize(("signum", "code"), [
    pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow),
    (signal.SIGTERM, 143), pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow)])
def test_a_signal_ends_it_with_all_that_a_game_has_started(run: Callable[..., Path], signum: int, code: int) -> None:
    run("StartsEndless")
    temporary = Path("temporary").absolute()
    temporary.mkdir()
    # A shell's background jobs, this test among them, may be born deaf to Ctrl-C.
    program = ("import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
               "from ga3c.commands import evaluate, launch\nevaluate.PROGRESS_SECONDS = 0.1\nlaunch.evaluate()")
    with subprocess.Popen([sys.executable, "-c", program, "run", "--episodes", "1"], stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path)),
                               "TMPDIR": str(temporary)}) as evaluating:
        assert evaluating.stderr is not None
        assert evaluating.stderr.readline().startswith("ga3c-eval: 0 of 1 episodes")
        helper = psutil.Process(int(Path("started").read_text()))
        members = [helper, helper.parent()]
        evaluating.send_signal(signum)
        rest = evaluating.stderr.read().splitlines()
    assert evaluating.returncode == code and all(line.startswith("ga3c-eval: 0 of 1") for line in rest), rest
    assert not psutil.wait_procs(members, timeout=60)[1]
    assert signum == signal.SIGKILL or not list(temporary.iterdir())
