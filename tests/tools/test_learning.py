"""`learning.py`: tables of runs that are trained one after the other, in as many calls as it takes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import learning
import pytest
from programs import TOOLS

from ga3c.settings.files import to_yaml
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

TABLES = TOOLS / "figures/tables"
REPORT = {"mean": 1234.5, "mean_interval": (1000.0, 1500.25), "human_normalised": 0.831}


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.yaml"
    path.write_text(text)
    return path


TWO = "flags: --agents 2\nsteps: 100\nrows:\n  - {name: one, game: toy:catch}\n  - {name: two, game: Pong, seed: 3, "\
      "steps: 200, flags: --agents 3}\n"


def played(run: Path, settings: Settings, until: int) -> None:
    """A record of a second for each agent step until then. An episode ends every other second, with that score."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").write_text(to_yaml(settings))
    (run / "versions.json").write_text(json.dumps({"commit": "c0ffee", "processor": "Z80", "cores": 1}))
    rows = [{"time": float(step), "agent_steps": step, "frames": step, "episodes": step // 2, "agents": 2,
             "predictors": 1, "trainers": 1, "lag_mean": 1.5, "score_mean": float(step // 2 * 2) if step > 1 else None}
            for step in range(1, until + 1)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The runs that are trained, to their end, and evaluated."""
    calls = list[Any]()

    def note(run: Path, settings: Settings) -> None:
        calls.append((run.name, settings.run.steps))
        played(run, settings, settings.run.steps or 0)

    monkeypatch.setattr(learning, "train", note)
    monkeypatch.setattr(learning, "evaluated", lambda run, episodes: (calls.append((run.name, "played", episodes)),
                                                                      REPORT)[1])
    return calls


def test_a_rows_flags_come_after_the_tables(tmp_path: Path) -> None:
    one, two = learning.rows_of(table(tmp_path, TWO))
    assert (one.name, one.settings.env.game, one.settings.tuning.agents) == ("one", "toy:catch", 2)
    assert one.settings.run.steps == 100
    assert (two.settings.tuning.agents, two.settings.run.steps, two.settings.run.seed) == (3, 200, 3)
    assert not two.settings.tuning.remember


@pytest.mark.parametrize(("text", "message"), [
    ("rows: []", "has no rows"), ("- 1", "is to have some of flags"), ("rows: {}", "rows: {} is to be of type list"),
    ("row: []", "unknown 'row'; known are flags, steps, rows"), ("rows: [", "while parsing"),
    ("rows: [{name: a, game: Pong}]", "row 1: has no 'steps'"), ("steps: 5\nrows: [{game: Pong}]", "has no 'name'"),
    ("steps: 5\nrows: [{name: ../a, game: Pong}]", "name of one directory"),
    ("steps: 5\nrows: [{name: a, game: Pong}, {name: a, game: Pong}]", "row 2: name: another row is 'a', too"),
    ("steps: 5\nrows: [{name: a, game: Pong, seed: x}]", "seed: 'x' is to be of type int"),
    ("steps: 5\nrows: [{name: a, game: Pong, flags: --gama 1}]", r"row 1 \(a\): .*--gama"),
    ("steps: 5\nflags: --steps 9\nrows: [{name: a, game: Pong}]", "--steps")])
def test_a_mistake_in_a_table_is_told_before_anything_is_trained(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        learning.rows_of(table(tmp_path, text))


@pytest.mark.parametrize("path", [*sorted(TABLES.glob("*.yaml")), TOOLS.parent / "docs/examples/compare.yaml"],
                         ids=lambda path: path.stem)
def test_a_table_that_comes_with_it_has_runs_that_differ(path: Path) -> None:
    settings = [row.settings for row in learning.rows_of(path)]
    assert len(settings) > 1 and all(one not in settings[:place] for place, one in enumerate(settings))


def test_every_row_is_trained_and_evaluated_and_listed(
        tmp_path: Path, called: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one").mkdir()
    monkeypatch.setattr(sys, "argv", ["x", str(table(tmp_path, TWO)), "--out", str(tmp_path), "--episodes", "5"])
    assert learning.main() == 0
    assert called == [("one", 100), ("one", "played", 5), ("two", 200), ("two", "played", 5)]
    text = capsys.readouterr().out
    assert text == (tmp_path / "learning.md").read_text()
    assert text.splitlines()[2:] == [
        "| one | toy:catch | 0 | 1,234.5 | 1,000.0 - 1,500.2 | 83% | - | - | 100.0 | 100 | 1.67 | 1.0 | 1.5 |",
        "| two | Pong | 3 | 1,234.5 | 1,000.0 - 1,500.2 | 83% | 18 | 3.33 | 200.0 | 200 | 3.33 | 1.0 | 1.5 |"]
    numbers = json.loads((tmp_path / "learning.json").read_text())
    assert numbers.keys() == {"one", "two"} and numbers["one"]["mean"] == 1234.5
    curve = numbers["two"]["curve"]
    assert {name: numbers["two"][name] for name in ("game", "seed", "steps", "flags", "commit", "processor")} == {
        "game": "Pong", "seed": 3, "steps": 200, "flags": "--agents 2 --agents 3", "commit": "c0ffee",
        "processor": "Z80"}
    assert len(curve["score"]) == 100 and curve["agent_steps"][::99] == [2, 200] and curve["score"][::99] == [2, 200]
    assert curve["minutes"][-1] == round(200 / 60, 2)
    assert (tmp_path / "learning.png").read_bytes()[:4] == b"\x89PNG"

    shutil.rmtree(tmp_path / "one")
    (tmp_path / "learning.md").unlink()
    called.clear()
    assert learning.main() == 0 and capsys.readouterr().out == text, "numbers outlive their runs"
    assert called == [("two", 200), ("two", "played", 5)]
    assert json.loads((tmp_path / "learning.json").read_text()) == numbers
    table(tmp_path, TWO.replace("100", "150"))
    called.clear()
    assert learning.main() == 0 and called[:2] == [("one", 150), ("one", "played", 5)]


def test_a_run_that_is_interrupted_is_shown_as_far_as_it_came(
        tmp_path: Path, called: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(run: Path, settings: Settings) -> None:
        played(run, settings, 90 if run.name == "one" else 0)
        raise KeyboardInterrupt

    monkeypatch.setattr(learning, "train", stop)
    with pytest.raises(KeyboardInterrupt):
        learning.make(table(tmp_path, TWO), tmp_path, 30)
    lines = (tmp_path / "learning.md").read_text().splitlines()[2:]
    assert lines == ["| one | toy:catch | 0 | - | - | - | - | - | 90.0 | 90 | 1.5 | 1.0 | 1.5 |",
                     "| two | Pong | 3 | - | - | - | 18 | - | - | - | - | - | - |"]
    assert (tmp_path / "learning.png").exists()
    assert json.loads((tmp_path / "learning.json").read_text())["one"]["curve"]["score"][-1] == 90


@pytest.mark.parametrize("text", ["{", "[1]", '{"one": 3}'])
def test_numbers_that_something_else_wrote_are_told_and_kept(tmp_path: Path, called: list[Any], text: str) -> None:
    (tmp_path / "learning.json").write_text(text)
    with pytest.raises(ConfigError, match="learning.json: not as learning.py writes it; move it away"):
        learning.make(table(tmp_path, TWO), tmp_path, 5)
    assert not called and (tmp_path / "learning.json").read_text() == text


def test_a_run_that_fails_is_left_out_and_told(
        tmp_path: Path, called: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(run: Path, settings: Any) -> None:
        if run.name == "one":
            raise learning.ga3c.CommandFailed("ended with exit code 1: it diverged")
        played(run, settings, 200)

    monkeypatch.setattr(learning, "train", fail)
    monkeypatch.setattr(sys, "argv", ["x", str(table(tmp_path, TWO)), "--out", str(tmp_path)])
    assert learning.main() == 1 and called == [("two", "played", 30)]
    printed = capsys.readouterr()
    assert "| one | toy:catch | 0 | - | - | - | - | - | - | - | - | - | - |" in printed.out
    assert "it diverged" in printed.err


def test_a_run_that_went_on_elsewhere_names_all_machines_and_commits(tmp_path: Path, called: list[Any]) -> None:
    run, (row, _) = tmp_path / "one", learning.rows_of(table(tmp_path, TWO))
    played(run, row.settings, 100)
    starts = [{"event": "start", "time": time, "versions": {"commit": commit, "processor": processor, "cores": 1}}
              for time, commit, processor in ((0, "c0ffee", "Z80"), (40, "decade", "Z80"), (50, "decade", "6502"))]
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in starts))
    assert tuple(learning._origin(run).values()) == ("c0ffee, decade", "Z80, 6502", 1)


@pytest.fixture
def handlers() -> Iterator[None]:
    """Puts back the signal handlers of before."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_time_that_is_up_while_the_run_ends_does_not_end_it_at_once(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals = list[int]()

    def train(run: Path, settings: Any) -> None:
        """As `ga3c.train`, which would kill the run at a second interrupt."""
        played(run, settings, 90)
        for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGTERM):
            try:
                signal.raise_signal(number)
            except KeyboardInterrupt:
                signals.append(number)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise KeyboardInterrupt

    monkeypatch.setattr(learning, "train", train)
    monkeypatch.setattr(sys, "argv", ["x", str(table(tmp_path, TWO)), "--out", str(tmp_path)])
    assert learning.main() == 130
    assert signals == [signal.SIGTERM]


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("ends", ["in time", "with its steps"])
def test_an_interrupt_ends_the_call_with_the_run_that_is_on(
        ends: str, tmp_path: Path, called: list[Any], monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(run: Path, settings: Any) -> None:
        called.append(run.name)
        played(run, settings, 90)
        try:
            signal.raise_signal(signal.SIGALRM)
        except KeyboardInterrupt:  # as `ga3c.train` does
            if ends == "in time":
                raise

    timers: list[tuple[int, float]] = []
    monkeypatch.setattr(signal, "setitimer", lambda *timer: timers.append(timer))
    monkeypatch.setattr(learning, "train", interrupted)
    monkeypatch.setattr(sys, "argv", ["x", str(table(tmp_path, TWO)), "--out", str(tmp_path), "--minutes-left", "9"])
    assert learning.main() == 130
    assert called == ["one"] and "repeat the command to continue" in capsys.readouterr().err
    assert timers == [(signal.ITIMER_REAL, 540.0)]


@pytest.mark.slow
def test_a_table_of_real_runs_is_interrupted_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    text = "flags: --agents 2 --no-dynamic\nrows:\n  - {name: first, game: toy:catch, steps: 5000}\n" \
           "  - {name: second, game: toy:catch, steps: STEPS, seed: 1}\n"
    program = [sys.executable, str(TOOLS / "figures/learning.py"), str(tmp_path / "table.yaml"), "--out",
               str(tmp_path / "out"), "--episodes", "3"]
    environment = {**os.environ, "PYTHONPATH": str(TOOLS.parent)}
    table(tmp_path, text.replace("STEPS", "2000000000"))
    rows = tmp_path / "out/second/metrics.jsonl"
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=environment) as interrupted:
        while not rows.exists() or len(rows.read_text().splitlines()) < 3:
            assert interrupted.poll() is None, interrupted.stderr and interrupted.stderr.read()
            time.sleep(0.1)
        interrupted.send_signal(signal.SIGINT)
        out, said = interrupted.communicate()
    assert interrupted.returncode == 130 and "repeat the command to continue" in said and out.count("training") == 2
    had = json.loads(rows.read_text().splitlines()[-1])["agent_steps"]
    table(tmp_path, text.replace("STEPS", str(had + 5000)))
    ended = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0 and ended.stdout.count("training") == 1, ended.stderr
    starts = [event for event in map(json.loads, (rows.parent / "events.jsonl").read_text().splitlines())
              if event["event"] == "start"]
    assert [start["resumed_at"] for start in starts][-1] == had and len(starts) == 2
    lines = ended.stdout.splitlines()[-2:]
    assert [line.split(" | ")[:3] for line in lines] == [["| first", "toy:catch", "0"], ["| second", "toy:catch", "1"]]
    assert all("-" != line.split(" | ")[3] for line in lines)
    program += ["--minutes-left", "10"]
    again = subprocess.run(program, capture_output=True, text=True, check=False, env=environment)
    assert again.returncode == 0 and "training" not in again.stdout and again.stdout.splitlines()[-2:] == lines
