"""What every test must leave behind: nothing. And the pieces whole-service tests are built from."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Each test has a cache of its own; what takes half a minute to compile they share.
os.environ.setdefault("NUMBA_CACHE_DIR", os.path.expanduser("~/.cache/ga3c"))

import psutil
import pytest
from command_line import Command
from counting import noticed
from hypothesis import HealthCheck
from hypothesis import settings as examples
from recording import SPEC, Clock

from ga3c.commands.evaluate import evaluate
from ga3c.commands.train import train
from ga3c.envs.check import probe
from ga3c.runs.recorder import Recorder
from ga3c.service.signals import Signals
from ga3c.settings.files import configured
from ga3c.settings.schema import Settings

# The same examples in every run, so that a red test is about the change at hand; `--hypothesis-profile explore` draws
# new ones, `long` many.
examples.register_profile("same", derandomize=True, deadline=None)
examples.register_profile("explore", deadline=None)
examples.register_profile("long", deadline=None, max_examples=20_000, suppress_health_check=list(HealthCheck))
examples.load_profile("same")

PR_SET_CHILD_SUBREAPER = 36


def pytest_configure() -> None:
    # Whoever loses its parent becomes a child of this process, not of init: so it is seen when it is left behind.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _strangers(known: set[int]) -> list[psutil.Process]:
    """All descendants but those `known`, and multiprocessing's fork server and resource tracker of this process."""
    # It keeps them until the interpreter ends.
    own = {forkserver._forkserver._forkserver_pid,  # type: ignore[attr-defined]
           resource_tracker._resource_tracker._pid}  # type: ignore[attr-defined]
    return [process for process in psutil.Process().children(recursive=True) if process.pid not in known | own]


def wait_until(true: Callable[[], bool], otherwise: str) -> None:
    """Waits for what a test that runs beside this one may have there for a moment."""
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    processes = {process.pid for process in psutil.Process().children(recursive=True)}
    threads = set(threading.enumerate())
    shared_memory = set(os.listdir("/dev/shm"))
    yield
    _, alive = psutil.wait_procs(_strangers(processes), timeout=60)
    for process in alive:  # so that the tests that follow have the cores
        process.kill()
    assert not alive, f"processes left behind: {alive}"
    for thread in set(threading.enumerate()) - threads:
        thread.join(60)
        assert not thread.is_alive(), f"thread left behind: {thread}"
    wait_until(lambda: set(os.listdir("/dev/shm")) <= shared_memory, "shared memory left behind")


@pytest.fixture(autouse=True)
def nothing_noticed() -> Iterator[None]:
    """What a counting model finds wrong fails the test, though the service goes on."""
    noticed.clear()
    yield
    assert not noticed


@pytest.fixture(autouse=True)
def nothing_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts found by another run, or by the developer's own, are not this test's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The file of counts that runs of this test remember."""
    return tmp_path / "cache/ga3c/tuned.json"


@pytest.fixture
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def compiled_emulator() -> None:
    """Compiles the emulator, so that a command under test is not the first on this machine and does not say so."""
    from ga3c.envs.emulator.compiled import compile_kernels
    compile_kernels()


@pytest.fixture
def called_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[Callable], Command]:
    """Makes of a command a call in this process, which has its TensorFlow already: for what is not about processes."""
    monkeypatch.setattr("ga3c.learner.backend.start", lambda settings: None)

    def made(command: Callable[[Sequence[str]], int]) -> Command:
        def call(*arguments: str) -> CompletedProcess[str]:
            capfd.readouterr()
            return CompletedProcess(arguments, command(arguments), *capfd.readouterr())

        return call

    return made


@pytest.fixture
def train_here(called_here: Callable[[Callable], Command]) -> Command:
    """`train` in this process."""
    return called_here(train)


@pytest.fixture
def evaluate_here(called_here: Callable[[Callable], Command]) -> Command:
    """`evaluate` in this process."""
    return called_here(evaluate)


@pytest.fixture
def interruption() -> Iterator[Signals]:
    made = Signals()
    yield made
    made.close()


@pytest.fixture
def make_run(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    """Makes recorders, each in a directory of its own; `kind` may be a class derived from Recorder."""
    made: list[Recorder] = []

    def make(settings: Settings, kind: type[Recorder] = Recorder) -> Recorder:
        directory = tmp_path / f"run-{len(made)}"
        directory.mkdir()
        made.append(kind(settings, probe(settings), directory, {}))
        return made[-1]

    yield make
    for run in made:
        run.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Recorders go by this clock."""
    made = Clock()
    monkeypatch.setattr("ga3c.runs.recorder.time", SimpleNamespace(monotonic=made, strftime=time.strftime))
    return made


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., Recorder]]:
    """Begins a run in tmp_path; given `resumed`, goes on with the one that is there. Its clock runs if `started`."""
    made: list[Recorder] = []

    def begin(resumed: dict[str, Any] | None = None, wake: Callable[[], None] = lambda: None, started: bool = True,
              **changed: Any) -> Recorder:
        settings = configured(**{"tensorboard": False, **changed})
        made.append(Recorder(settings, SPEC, tmp_path, resumed or {}, wake))
        if started:
            made[-1].start()
        return made[-1]

    yield begin
    for record in made:
        record.checkpoints.wait()
        record.close()
