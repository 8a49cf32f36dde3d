"""`ga3c-top` in a real terminal, on runs that are written while it looks, and on ended ones."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyte
import pytest
from command_line import Command
from rows import ROW, rows

from ga3c.commands import top as module

TOP = [sys.executable, "-c", "from ga3c.commands.launch import top; top()"]
BUSY = {"cpu_agents": 1.5, "cpu_server": 0.4, "cpu_machine": 1.98, "wait_ms": 5.0, "slot_wait_ms": 0.5, "play_ms": 1.5,
        "queue_ms": 2.0, "service_ms": 2.0, "reply_ms": 1.0, "predict_ms": 1.5, "predictor_busy": 0.5,
        "trainer_busy": 0.5, "gather_ms": 2.0, "update_ms": 20.0}
TRIAL = {"time": 3.0, "event": "trial", "from": "8/1/1", "to": "16/1/1", "rate_from": 1000.0, "rate": 1090.0,
         "seconds": 20, "decision": "accepted"}


class Written:
    """A run as far as it has been written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        (path / "config.yaml").write_text("env:\n  game: Boxing\nrun:\n  steps: 400000\n")
        (path / "versions.json").write_text('{"cores": 2}')
        (path / "metrics.jsonl").touch()
        self._keep_fresh()
        self.event(event="start", time=0.0)

    def _keep_fresh(self) -> None:
        """Else it would be silent on a machine that is slow enough."""
        later = time.time() + 3600
        os.utime(self.path / "metrics.jsonl", (later, later))

    def event(self, **facts: Any) -> None:
        with open(self.path / "events.jsonl", "a") as file:
            file.write(json.dumps(facts) + "\n")

    def row(self, row: dict[str, Any]) -> None:
        with open(self.path / "metrics.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
        self._keep_fresh()


class Terminal:
    """A pseudo-terminal with a program in it."""

    def __init__(self, command: list[str], columns: int = 100, lines: int = 30) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.environ.update(TERM="xterm-256color", COLUMNS=str(columns), LINES=str(lines), TTY_COMPATIBLE="1")
            os.execv(command[0], command)
        self.exitcode: int | None = None

    @property
    def text(self) -> str:
        return "\n".join(self.screen.display)

    def type(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def wait(self, there: Callable[[str], bool], seconds: float = 100.0) -> str:
        """The screen once it is as wanted."""
        end = time.monotonic() + seconds
        while not there(self.text):
            assert self._read(end - time.monotonic()), f"it never came:\n{self.text}"
        return self.text

    def finish(self) -> int:
        """Its exit code, once it has ended."""
        while self._read(100.0):
            pass
        os.close(self._terminal)
        self.exitcode = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self.exitcode

    def kill(self) -> None:
        if self.exitcode is None:
            os.kill(self._pid, signal.SIGKILL)
            self.finish()

    def _read(self, seconds: float) -> bool:
        if not select.select([self._terminal], [], [], max(0.0, seconds))[0]:
            return False
        try:
            data = os.read(self._terminal, 65_536)
        except OSError:  # how Linux says that the program has closed its end
            return False
        self._stream.feed(data)
        return bool(data)


@pytest.fixture
def run(tmp_path: Path) -> Written:
    return Written(tmp_path / "run")


@pytest.fixture
def opened() -> Iterator[Callable[..., Terminal]]:
    terminals: list[Terminal] = []

    def open_terminal(*arguments: object) -> Terminal:
        terminals.append(Terminal([*TOP, *map(str, arguments)]))
        return terminals[-1]

    yield open_terminal
    for terminal in terminals:
        terminal.kill()


@pytest.fixture
def top(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`ga3c-top` in this process, without a terminal."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        code = module.top([*map(str, arguments)])
        return subprocess.CompletedProcess(arguments, code, *capfd.readouterr())

    return call


def test_it_follows_a_run_to_its_end(run: Written, opened: Callable[..., Terminal]) -> None:
    terminal = opened(run.path)
    terminal.wait(lambda text: "no second of training yet, at work" in " ".join(text.split()))
    for row in rows(5, **BUSY):
        run.row(row)
    run.event(**TRIAL)
    shown = ("GA3C  Boxing", "10,000", "12,346", "N_A", "Policy lag", "16/1/1 accepted +9%",
             "Bottleneck  environments: all 2 cores", "--steps 400,000", "at work; q leaves")
    terminal.wait(lambda text: all(each in text for each in shown))  # a read may end in the middle of a screen
    run.row(rows(7)[-1])
    terminal.wait(lambda text: "14,000" in text)
    (run.path / "checkpoints/000000014000").mkdir(parents=True)
    run.event(event="checkpoint", time=8.0, path="checkpoints/000000014000", agent_steps=14_000)
    run.row(ROW | {"time": 8.0, "agent_steps": 15_000, "agents": 0, "predictors": 0, "trainers": 0})
    run.event(event="end", time=8.0, reason="--minutes 0.1", agent_steps=15_000)
    assert terminal.finish() == 0
    for shown in ("15,000", "ended by --minutes 0.1", "Resume with  ga3c-train --resume",
                  "checkpoints/000000014000 written"):
        assert shown in terminal.text, terminal.text
    assert terminal.text.count("PPS at most") == 1, "the panel is drawn in place"


def test_q_leaves_and_the_terminal_is_as_it_was(run: Written, opened: Callable[..., Terminal]) -> None:
    for row in rows(5):
        run.row(row)
    terminal = opened(run.path)
    terminal.wait(lambda text: "at work; q leaves" in text)
    terminal.type(b"xq")
    assert terminal.finish() == 0
    then = Terminal(["/bin/sh", "-c", f"{shlex.join([*TOP, str(run.path)])}; stty -a"])
    then.wait(lambda text: "at work; q leaves" in text)
    then.type(b"q")
    assert then.finish() == 0 and " icanon" in then.text and " echo " in then.text


def test_an_interrupt_of_the_first_panel_leaves_the_cursor(run: Written) -> None:
    for row in rows(5):
        run.row(row)
    program = ("from rich.live import Live\nfrom ga3c.commands.launch import top\n"
               "def interrupted(live):\n    raise KeyboardInterrupt\n"
               "Live.refresh = interrupted\ntop()")
    terminal = Terminal([sys.executable, "-c", program, str(run.path)])
    assert terminal.finish() == 130 and not terminal.screen.cursor.hidden


def test_a_silent_run_is_told_from_one_at_work(run: Written, top: Command) -> None:
    run.row(ROW)
    hour_ago = time.time() - 3600
    for name in ("metrics.jsonl", "events.jsonl"):
        os.utime(run.path / name, (hour_ago, hour_ago))
    assert re.search(r"no row for 3,6\d\d s: killed, or stuck", top(run.path, "--once").stdout)
    run.event(event="last_evaluation", time=8.0, checkpoint="checkpoints/000000014000")
    assert "training is over, its last checkpoint is evaluated" in top(run.path, "--once").stdout
    run.event(event="end", time=8.0, reason="SIGINT", agent_steps=1)
    assert "ended by SIGINT" in top(run.path, "--once").stdout
    run.event(event="start", time=8.0)
    run.row(ROW)
    assert "at work" in top(run.path, "--once").stdout


def test_an_ended_run_is_shown_once_without_a_terminal(run: Written, top: Command) -> None:
    for row in rows(3):
        run.row(row)
    run.event(event="end", time=8.0, reason="--steps 6000", agent_steps=6000)
    done = top(run.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ended by --steps 6000" in done.stdout and "6,000" in done.stdout and "\x1b" not in done.stdout
    assert "Resume with" not in done.stdout, "there is no checkpoint to go on with"


def test_without_a_terminal_rows_are_lines_to_the_end_of_the_run(run: Written) -> None:
    run.row(ROW)
    with subprocess.Popen([*TOP, str(run.path)], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONUNBUFFERED": "1"}) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("[Time: 3:25:07] [Steps: 123,456,789")
        run.row(ROW | {"agent_steps": 123_456_999})
        assert "[Steps: 123,456,999" in process.stdout.readline()
        run.event(event="end", time=8.0, reason="SIGTERM", agent_steps=1)
        assert process.stdout.read().endswith("ended by SIGTERM\n")
    assert process.returncode == 0


def test_what_is_no_run_is_one_line(tmp_path: Path, top: Command) -> None:
    done = top(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (
        2, "", f"ga3c-top: {tmp_path} is no run: it has no metrics.jsonl\n")
