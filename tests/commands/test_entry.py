"""What every command does around its work: standard streams, paths that are no text, threads that never end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import TRAIN, events

from ga3c.commands.entry import guarded
from ga3c.settings.messages import for_shell

pytestmark = pytest.mark.usefixtures("own_directory")

NOT_TEXT = os.fsdecode(b"\xff [bold]'s \"run\"")  # a byte that is no UTF-8, markup of rich, quotes


def ended(work: str, redirected: str = "", before: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A process that does the lines of `work` as a command. A shell does `before`, and redirects its streams."""
    lines = "".join(f"    {line}\n" for line in work.splitlines())
    Path("program.py").write_text("import os, subprocess, sys, threading\nfrom ga3c.commands.entry import run_command\n"
                                  f"def work(argv):\n{lines}run_command(work)\n")
    return subprocess.run(["bash", "-c", f'{before}"{sys.executable}" program.py {redirected}'], capture_output=True,
                          timeout=200, check=False, stdin=subprocess.DEVNULL, env={**os.environ, **environment})


# ------------------------------------------------------------------------------------------------ streams

@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_place_of_a_closed_stream(closed: str) -> None:
    done = ended("file = open('file', 'w')\n"
                 "print('to standard output', flush=True)\n"
                 "print('to standard error', file=sys.stderr, flush=True)\n"
                 "assert not sys.stdin.read()\n"
                 "os.write(2, b'from C++')\n"
                 "subprocess.run(['bash', '-c', 'echo child; echo child >&2'], check=True)\n"
                 "return 0 if file.fileno() > 2 else 7", closed)
    assert done.returncode == 0, done.stderr
    assert not Path("file").read_text()


@pytest.mark.parametrize("unwritable", ["2>/dev/full", "2> >(exec 0<&-)"])
def test_an_unwritable_standard_error_changes_no_exit_code(unwritable: str) -> None:
    done = ended("from ga3c.commands.entry import fail, guarded\n"
                 "print('x' * 100_000, file=sys.stderr)\n"
                 "return guarded('a command', lambda: fail('lost', 3, 'a command'))", unwritable)
    assert done.returncode == 3, done


def test_what_a_stream_cannot_show_is_escaped() -> None:
    said = "print('caf\\u00e9 \\u2588 ' + os.fsdecode(b'\\xff'))"
    ascii_only = ended(said, PYTHONIOENCODING="ascii")
    assert (ascii_only.returncode, ascii_only.stdout) == (0, b"caf\\xe9 \\u2588 \xff\n")
    utf_8 = ended(said, PYTHONIOENCODING="utf-8")
    assert (utf_8.returncode, utf_8.stdout) == (0, "caf\u00e9 \u2588 ".encode() + b"\xff\n")
    posix = ended(said, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="")
    assert posix.returncode == 0 and posix.stdout.endswith(b"\xff\n")


# ------------------------------------------------------------------------------------------------ paths

def test_a_shell_takes_a_path_for_what_it_is() -> None:
    paths = [b"run", b"-run", b"it's [bold]", b"a\nb\tc\x1b[1m", b"\xff\\'\"$HOME`id`"]
    quoted = [for_shell(os.fsdecode(path)) for path in paths]
    assert all(each.isprintable() for each in quoted)
    command = f"printf '%s\\0' {' '.join(quoted)}"
    printed = subprocess.run(["bash", "-c", command], capture_output=True, check=True).stdout
    assert [os.path.normpath(each) for each in printed.split(b"\0")[:-1]] == paths


def test_a_run_in_a_directory_that_is_no_text_goes_on_without_streams(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)  # for the path of a socket, in the same run
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    run = Path(NOT_TEXT)
    how = [*TRAIN, "--game", "toy:catch", "--agents", "2", "--run-dir", NOT_TEXT, "--steps", "4000"]
    done = subprocess.run(how, capture_output=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr
    assert list((run / "tensorboard").iterdir()) and b"\xff [bold]" in (done.stdout.splitlines()[-1])
    said = (run / "log.txt").read_text(encoding="utf-8").splitlines()[-1]
    pasted = said.partition("resume with: ga3c-train ")[2]
    seconds = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["time"]
    goes_on = f'"{sys.executable}" -m ga3c {pasted} --steps 1000000000 --minutes {seconds / 60 + 0.05}'
    done = subprocess.run(["bash", "-c", f"{goes_on} <&- >&- 2>&-"], timeout=200, check=False)
    assert done.returncode == 0
    assert [event["event"] for event in events(run)].count("end") == 2
    starts = [event for event in events(run) if event["event"] == "start"]
    assert [NOT_TEXT in event["command"] for event in starts] == [True, True]
    for command, arguments in (("top", ["--once"]), ("plot", ["-o", f"{NOT_TEXT}.png"])):
        program = f"from ga3c.commands.launch import {command}; {command}()"
        done = subprocess.run([sys.executable, "-c", program, NOT_TEXT, *arguments], capture_output=True, timeout=200,
                              check=False)
        assert done.returncode == 0 and b"\xff [bold]'s" in done.stdout, done


# ------------------------------------------------------------------------------------------------ the end

@pytest.mark.parametrize(("returned", "code", "says"), [
    ("return 3", 3, b""), ("sys.exit('no')", 1, b"no\n")])
def test_a_thread_that_never_ends_does_not_keep_the_process(returned: str, code: int, says: bytes) -> None:
    done = ended("import atexit\n"
                 "atexit.register(print, 'last words')\n"
                 "threading.Thread(target=threading.Event().wait).start()\n"
                 f"print('done')\n{returned}")
    assert (done.returncode, done.stdout, done.stderr) == (code, b"done\nlast words\n", says)


def test_a_late_ctrl_c_changes_no_exit_code() -> None:
    done = ended("import atexit, os\n"
                 "atexit.register(lambda: [os.kill(os.getpid(), number) for number in (1, 2, 10, 15)])\n"
                 "print('done')\nreturn 3")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"done\n", b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_a_command_lets_it_put_things_in_order(number: signal.Signals) -> None:
    done = ended("import time\n"
                 f"child = os.fork()\nif child == 0:\n    os.kill(os.getpid(), {int(number)})\n    time.sleep(60)\n"
                 "print('child', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)\n"
                 f"try:\n    os.kill(os.getpid(), {int(number)})\n    time.sleep(60)\n"
                 "finally:\n    print('in order')", before="env --default-signal=TERM,HUP ")  # else nohup's would stay
    said = f"child {-number}\nin order\n".encode()
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, said, b"")


def test_what_nohup_ignores_stays_ignored() -> None:
    done = ended("import signal\nos.kill(os.getpid(), signal.SIGHUP)\nprint('goes on')", before="trap '' HUP; ")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"goes on\n", b"")


@pytest.mark.parametrize(("imported", "code"), [("ga3c.commands.top", -signal.SIGINT), ("rich.live", 130)])
def test_ctrl_c_while_a_command_is_imported_is_no_traceback(imported: str, code: int) -> None:
    # A shell's background jobs, this test among them, may be born deaf to Ctrl-C.
    program = ("import os, signal, sys\n"
               "class Interrupting:\n"
               "    def find_spec(self, name, *others):\n"
               f"        if name == {imported!r}:\n"
               "            os.kill(os.getpid(), signal.SIGINT)\n"
               "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
               "sys.meta_path.insert(0, Interrupting())\n"
               "from ga3c.commands.launch import top\ntop()")
    done = subprocess.run([sys.executable, "-c", program, "run"], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, b"")


@pytest.mark.parametrize(("error", "code"), [
    (KeyboardInterrupt(), 130), (KeyError("a mistake of ours"), 6), (OSError(28, "No space left"), 5)])
def test_the_exit_code_says_what_ended_a_command(
        error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise error

    assert guarded("ga3c-test", work) == code
    assert ("Traceback" in capsys.readouterr().err) == (code == 6)
