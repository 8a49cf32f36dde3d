"""The fork server, and processes that are started from it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from ga3c.agents import forkserver as module
from ga3c.agents.forkserver import start_forkserver
from ga3c.envs.factory import make_environment
from ga3c.settings.files import configured
from ga3c.service.signals import Interrupted
from ga3c.settings.schema import EnvSettings


def look(connection, game: str) -> None:
    environment = make_environment(configured(game=game), 1)
    environment.reset(0)
    connection.send((sorted(sys.modules), psutil.Process().memory_info().rss, os.getppid()))
    environment.close()


FORKED = """
import gc
import multiprocessing
import os
import signal
from multiprocessing import forkserver

import cv2
import numpy as np

from ga3c.envs import ale
from ga3c.envs.factory import make_environment
from ga3c.agents.forkserver import start_forkserver
from ga3c.settings.files import configured
from ga3c.settings.schema import EnvSettings

def look(pipe, game, seed):
    pipe.send((len(os.listdir("/proc/self/task")), cv2.getNumThreads(), "GA3C_PRELOAD" in os.environ,
               gc.get_freeze_count() > 0))
    load, loaded = ale._load, []
    ale._load = lambda rom: loaded.append(rom) or load(rom)
    for _ in range(2):
        world = make_environment(configured(game=game, emulator="ale"), 3)
        world.reset(seed)
        for action in range(20):
            world.step(np.full(3, action % 6))
        pipe.send((len(loaded), world.observation.tobytes()))

if __name__ == "__main__":
    context, seen = multiprocessing.get_context("forkserver"), []
    for game, seed in (("Pong", 1), ("Pong", 1), ("Pong", 2), ("Boxing", 1)):
        start_forkserver(EnvSettings(game=SERVER[0], emulator="ale"), SERVER[1])
        ours, theirs = context.Pipe()
        process = context.Process(target=look, args=(theirs, game, seed))
        process.start()
        assert ours.recv() == (1, 1, False, True), "one thread, nothing to hand on, nothing to be collected"
        seen.append([ours.recv(), ours.recv()])
        process.join()
        if game == KILLED:
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
            os.waitid(os.P_PID, forkserver._forkserver._forkserver_pid, os.WEXITED | os.WNOWAIT)
    loaded = [[count for count, _ in agent] for agent in seen]
    assert loaded == [[0, 3]] * 3 + [[3, 6]], loaded
    first, again, other, boxing = [[played for _, played in agent] for agent in seen]
    assert first[0] == first[1] == again[0] != other[0] == other[1]
    print("as one that makes its own")
"""


@pytest.mark.parametrize(("server", "killed", "loaded"), [
    (("Pong", 3), None, [0, 3]), (("Pong", 3), "Pong", [0, 3]),
    pytest.param(("Pong", 1), None, [2, 5], marks=pytest.mark.slow),
    pytest.param(("toy:catch", 3), None, [3, 6], marks=pytest.mark.slow)])
def test_agents_are_forked_with_their_emulators_and_play_as_if_they_had_made_them(
        tmp_path: Path, server: tuple[str, int], killed: str | None, loaded: list[int]) -> None:
    script = tmp_path / "forked.py"
    script.write_text(f"SERVER, KILLED = {server!r}, {killed!r}\n"
                      + FORKED.replace("[[0, 3]] * 3", f"[{loaded}] * 3"))
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
    assert (ended.returncode, ended.stdout) == (0, "as one that makes its own\n"), ended.stderr


def test_an_agents_process_holds_no_tensorflow() -> None:
    start_forkserver(EnvSettings(game="Pong"), 1)
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=look, args=(theirs, "Pong"))
    process.start()
    modules, _, parent = ours.recv()
    process.join()
    ours.close()
    theirs.close()
    assert "ga3c.agents.process" in modules and parent != os.getpid()
    heavy = {"tensorflow", "keras", "tensorboard", "h5py", "matplotlib", "rich"}
    assert not heavy & {module.split(".")[0] for module in modules}


class Given:
    """What a process is given."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def begin(target: Callable[[], Any], *waiting: Callable[[], AbstractContextManager[None]],
          given: Given | None = None) -> tuple[BaseProcess, int]:
    """The process, which has been started, and the pid of its fork server."""
    process = multiprocessing.get_context("forkserver").Process(target=target)
    return process, module.start(process, given or Given(), EnvSettings(game="toy:catch"), 1, *waiting)


class Waits:
    """What starts are waited for in: the one with this number is interrupted, when `at` is set."""

    def __init__(self, interrupted: int, at: threading.Event) -> None:
        self._interrupted, self._at, self._n = interrupted, at, 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self._n += 1
        if self._n == self._interrupted:
            assert self._at.wait(60)
            raise Interrupted
        yield


def children() -> set[int]:
    """Of the fork server."""
    return {process.pid for process in psutil.Process(module._forkserver_pid()).children()}


def test_a_start_that_is_given_up_before_it_begins_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ForkServerProcess] = []
    monkeypatch.setattr(ForkServerProcess, "start", started.append)
    asked, given = threading.Event(), Given()
    asked.set()
    with pytest.raises(Interrupted):
        begin(print, Waits(1, asked), given=given)
    assert given.closed == 1 and "starting" not in {thread.name for thread in threading.enumerate()} and not started


@pytest.mark.parametrize("by", ["waiting", "Ctrl-C", "Ctrl-C before the wait"])
def test_what_has_just_started_when_the_wait_is_interrupted_is_ended_before_that_is_raised(
        by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, begun, given = ForkServerProcess.start, threading.Event(), Given()
    started = list[ForkServerProcess]()
    start_forkserver(EnvSettings(game="toy:catch"), 1)

    def noticed(process: ForkServerProcess) -> None:
        right(process)
        started.append(process)
        begun.set()
        if by == "Ctrl-C":
            os.kill(os.getpid(), signal.SIGINT)
            interrupted.wait(60)

    def interrupt(*signalled: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def interrupted_start(thread: threading.Thread) -> None:
        begin_thread(thread)
        raise KeyboardInterrupt

    begin_thread = threading.Thread.start
    if by == "Ctrl-C before the wait":
        monkeypatch.setattr(threading.Thread, "start", interrupted_start)
    interrupted, before = threading.Event(), signal.signal(signal.SIGINT, interrupt)
    monkeypatch.setattr(ForkServerProcess, "start", noticed)
    monkeypatch.setattr(module, "_GRACE", 30.0)
    try:
        with pytest.raises(Interrupted if by == "waiting" else KeyboardInterrupt):
            begin(signal.pause, *([Waits(2, begun)] if by == "waiting" else []), given=given)
    finally:
        signal.signal(signal.SIGINT, before)
    assert started[0].exitcode == -signal.SIGKILL and given.closed == 1


def test_what_is_started_after_it_was_given_up_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    right, begun, given_up, given = ForkServerProcess.start, threading.Event(), threading.Event(), Given()
    started = list[ForkServerProcess]()
    start_forkserver(EnvSettings(game="toy:catch"), 1)
    before = children()

    def late(process: ForkServerProcess) -> None:
        begun.set()
        assert given_up.wait(60) and not given.closed, "it is sent what it is given"
        right(process)
        started.append(process)

    monkeypatch.setattr(ForkServerProcess, "start", late)
    monkeypatch.setattr(module, "_GRACE", 0.1)
    with pytest.raises(Interrupted):
        begin(signal.pause, Waits(2, begun), given=given)
    thread, = (thread for thread in threading.enumerate() if thread.name == "starting")
    given_up.set()
    thread.join(60)
    assert started[0].exitcode == -signal.SIGKILL and given.closed == 1 and children() <= before


def test_signals_are_handled_while_a_fork_server_does_not_answer_and_it_is_given_up(
        monkeypatch: pytest.MonkeyPatch) -> None:
    start_forkserver(EnvSettings(game="toy:catch"), 1)
    monkeypatch.setattr(module, "ANSWER_SECONDS", 3.0)
    stopped, handled = module._forkserver_pid(), list[float]()
    before = signal.signal(signal.SIGUSR2, lambda *signalled: handled.append(time.monotonic()))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR2))
    try:
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        timer.start()
        with pytest.raises(OSError, match="no answer from the fork server for 3 s"):
            begin(print)
        assert handled and handled[0] < began + 2.9 and module.forkserver_ended(stopped)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR2, before)
    start_forkserver(EnvSettings(game="toy:catch"), 1)
    assert module._forkserver_pid() != stopped and not module.forkserver_ended(module._forkserver_pid())


def test_a_fork_server_whose_socket_was_cleared_away_is_left_to_its_processes_and_another_started(
        monkeypatch: pytest.MonkeyPatch) -> None:
    kept = list[int]()
    monkeypatch.setattr(module, "_unreachable", kept)
    context = multiprocessing.get_context("forkserver")
    goes_on, end = context.Event(), context.Event()
    first, old = begin(end.wait)
    shutil.rmtree(os.path.dirname(forkserver._forkserver._forkserver_address))
    second, new = begin(goes_on.set)
    assert new != old and goes_on.wait(60) and first.exitcode is None and not module.forkserver_ended(old)
    end.set()
    first.join()
    second.join()
    assert (first.exitcode, second.exitcode) == (0, 0)
    for descriptor in kept:
        os.close(descriptor)
    assert len(kept) == 1 and os.waitpid(old, 0)[0] == old


def test_a_fork_server_at_an_abstract_address_has_no_socket_that_could_be_missed(
        monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Python 3.11.0."""
    start_forkserver(EnvSettings(game="toy:catch"), 1)
    monkeypatch.setattr(forkserver._forkserver, "_forkserver_address", "\0listener-1-0")
    kept = list(module._unreachable)
    module._forget_unreachable()
    assert forkserver._forkserver._forkserver_address == "\0listener-1-0" and module._unreachable == kept


def test_a_process_can_be_started_though_the_working_directory_is_gone(tmp_path: Path) -> None:
    gone, here = tmp_path / "gone", os.getcwd()
    gone.mkdir()
    start_forkserver(EnvSettings(game="toy:catch"), 1)
    try:
        os.chdir(gone)
        gone.rmdir()
        process, _ = begin(print)
        process.join()
        assert process.exitcode == 0
    finally:
        os.chdir(here)


def test_without_a_thread_to_wait_in_there_is_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(OSError, match="can't start new thread"):
        begin(print)
