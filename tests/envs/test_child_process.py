"""A child process: what it says comes back, however it ends is told, and nothing of it stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from ga3c.envs import child_process
from ga3c.envs.child_process import ChildEnded, ChildFailed, ChildProcess, ChildSilent

SECONDS = 60.0  # for what takes no time on an idle machine


def ended(child: ChildProcess) -> ChildEnded:
    with pytest.raises(ChildEnded) as error:
        child.receive(SECONDS)
    return error.value


def test_messages_go_both_ways_until_the_caller_hangs_up() -> None:
    with ChildProcess("children:echoes", 1, "two") as child:
        assert child.receive(SECONDS) == (1, "two")
        for message in ({"a": [1.5]}, None, b"x" * 2**20):
            child.send(message)
            assert child.receive(SECONDS) == message
        child.hang_up()
        assert child.join(SECONDS) == 3


@pytest.mark.parametrize(("function", "arguments", "code", "told"), [
    ("exits", (7,), 7, "ended its process with exit code 7"), ("raises", (), 1, "ended its process with exit code 1"),
    ("kills_itself", (), -11, "was ended by SIGSEGV"),
    ("says", (), 0, "ended its process with exit code 0"),
    ("leaves_a_thread", (), 4, "ended its process with exit code 4"),
    ("is_not_there", (), 1, "ended its process with exit code 1"),
    ("closes_its_pipe", (), None, "closed the pipe on which its process answers")])
def test_its_end_is_told(monkeypatch: pytest.MonkeyPatch, function: str, arguments: tuple[Any, ...], code: int | None,
                         told: str) -> None:
    monkeypatch.setattr(child_process, "END_SECONDS", SECONDS if code is not None else 0.1)
    with ChildProcess(f"children:{function}", *arguments) as child:
        error = ended(child)
        child.send("to nobody")
    assert (error.code, str(error)) == (code, told)


def test_what_it_said_before_its_end_is_received_first() -> None:
    with ChildProcess("children:says", 1, 2) as child:
        assert child.join(SECONDS) == 0
        assert [child.receive(SECONDS) for _ in range(2)] == [1, 2]
        assert ended(child).code == 0


def test_one_that_has_ended_before_it_reads_is_told_as_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(subprocess.Popen):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.wait()

    monkeypatch.setattr(child_process, "_PROGRAM", "import os; os._exit(3)")
    monkeypatch.setattr(subprocess, "Popen", Ended)
    with ChildProcess("children:echoes") as child:
        assert ended(child).code == 3


@pytest.fixture
def hanging() -> Iterator[tuple[ChildProcess, list[psutil.Process]]]:
    """One that hangs, and its processes."""
    with ChildProcess("children:hangs") as child:
        yield child, [psutil.Process(child.pid), psutil.Process(child.receive(SECONDS))]


def test_one_that_hangs_is_silent_and_closing_it_ends_all_at_once(
        hanging: tuple[ChildProcess, list[psutil.Process]]) -> None:
    child, processes = hanging
    with pytest.raises(ChildSilent, match=r"did not answer within 0\.1 s") as error:
        child.receive(0.1)
    assert error.value.begun and child.join(0.0) is None
    child.close()
    assert not psutil.wait_procs(processes, timeout=60)[1]
    child.close()


def test_what_else_is_waited_for_ends_the_wait(hanging: tuple[ChildProcess, list[psutil.Process]]) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x")
    with pytest.raises(ChildSilent):
        hanging[0].receive(stop=[reader])
    os.close(reader)
    os.close(writer)


def test_an_interrupt_of_the_caller_ends_it_too() -> None:
    with pytest.raises(KeyboardInterrupt), ChildProcess("children:hangs") as child:
        processes = [psutil.Process(child.pid), psutil.Process(child.receive(SECONDS))]
        raise KeyboardInterrupt
    assert not psutil.wait_procs(processes, timeout=60)[1]


def test_each_sign_of_life_begins_the_wait_anew() -> None:
    with ChildProcess("children:shows_signs_of_life", 0.4, 10) as child:
        assert child.receive(3.0, starting=SECONDS) == "done"


def test_one_that_does_not_begin_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "_PROGRAM", "import time; time.sleep(600)")
    with ChildProcess("children:echoes") as child, pytest.raises(ChildSilent, match="not begin within 0.2 s") as error:
        child.receive(0.1, starting=0.2)
    assert not error.value.begun


def test_a_poll_sees_what_is_there_without_a_wait() -> None:
    with ChildProcess("children:echoes") as child:
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                assert child.receive(0.0) == ()
                break
            except ChildSilent:
                assert time.monotonic() < deadline


def test_what_it_prints_goes_to_the_output_or_nowhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with open(tmp_path / "log", "wb") as log:
        for output in (log.fileno(), subprocess.DEVNULL):
            with ChildProcess("children:prints", output=output) as child:
                assert child.join(SECONDS) == 0
    assert sorted((tmp_path / "log").read_text().split()) == ["aloud", "complained", "said", "written"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("name", "tracebacks", "told"), [
    ("divides", True, r"it failed: ZeroDivisionError: division by zero \(children.py, line \d+\)"),
    ("exits", False, r"it failed: SystemExit: the code 'enough' \(children.py, line \d+\)"),
    ("mistaken", True, "game: this is one line")])
def test_an_attempt_that_fails_is_told_in_one_line(tmp_path: Path, name: str, tracebacks: bool, told: str) -> None:
    with (open(tmp_path / "log", "wb") as log,
          ChildProcess("children:attempts", name, tracebacks, output=log.fileno()) as child):
        with pytest.raises(ChildFailed, match=f"^{told}$"):
            child.receive(SECONDS)
        assert child.join(SECONDS) == 1
    assert ("Traceback" in (tmp_path / "log").read_text()) == (tracebacks and name != "mistaken")


def test_an_attempt_that_succeeds_goes_on() -> None:
    with ChildProcess("children:attempts", "succeeds", False) as child:
        assert child.receive(SECONDS) == 7


def test_a_copy_that_it_has_forked_says_nothing() -> None:
    with ChildProcess("children:forks") as child:
        assert child.receive(SECONDS) == "original"
        assert ended(child).code == 0


def test_its_end_is_seen_though_it_leaves_a_process_behind(tmp_path: Path) -> None:
    try:
        with ChildProcess("children:leaves_a_process", str(tmp_path / "left")) as child:
            assert ended(child).code == 0
    finally:
        psutil.Process(int((tmp_path / "left").read_text())).kill()


def test_it_has_a_group_an_empty_input_and_our_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend("/nowhere/special")
    with ChildProcess("children:says_what_it_is", "GIVEN", environment={"GIVEN": "7"},
                      directory=str(tmp_path)) as child:
        found = child.receive(SECONDS)
    assert "/nowhere/special" in found.pop("path")
    assert found == {"group": True, "directory": str(tmp_path), "variable": "7", "input": ""}


CALLER = """
import os
from ga3c.envs.child_process import ChildProcess
child = ChildProcess("children:hangs")
print(child.pid, child.receive(), flush=True)
os.kill(os.getpid(), {})
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_it_ends_with_its_caller_however_that_ends(number: int) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, "-c", CALLER.format(int(number))], stdout=subprocess.PIPE, text=True,
                          env=environment) as caller:
        assert caller.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in caller.stdout.readline().split()]
        if number == signal.SIGSTOP:
            time.sleep(0.5)
            assert all(process.is_running() for process in processes), "it has only been stopped"
            caller.kill()
    assert len(processes) == 2 and not psutil.wait_procs(processes, timeout=60)[1]


def test_one_that_cannot_be_started_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = psutil.Process().num_fds()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        ChildProcess("children:echoes")
    assert psutil.Process().num_fds() == before
