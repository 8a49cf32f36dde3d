"""Functions that tests call in a child process."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ga3c.envs.base import EnvSpec
from ga3c.envs.child_process import Caller
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings


def echoes(caller: Caller, *arguments: Any) -> int:
    """Sends its arguments, then all messages until the caller hangs up."""
    caller.send(arguments)
    while True:
        try:
            caller.send(caller.receive())
        except EOFError:
            return 3


def ends(caller: Caller, *arguments: Any) -> None:
    """Says nothing."""


def says(caller: Caller, *messages: Any) -> None:
    for message in messages:
        caller.send(message)


def closing_hangs(settings: Settings, alive: Callable[[], None]) -> tuple[Any, str]:
    return SimpleNamespace(close=functools.partial(time.sleep, 600)), "facts"


def closing_leaves(settings: Settings, alive: Callable[[], None]) -> tuple[Any, str]:
    return SimpleNamespace(close=functools.partial(os._exit, 0)), "facts"


def says_what_it_is(caller: Caller, variable: str) -> None:
    caller.send({"group": os.getpgrp() == os.getpid(), "directory": os.getcwd(), "path": sys.path,
                 "variable": os.environ.get(variable), "input": sys.stdin.read()})


def exits(caller: Caller, *code: Any) -> None:
    os._exit(code[0] if len(code) == 1 else 1)


def kills_itself(caller: Caller, *arguments: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def raises(caller: Caller, *arguments: Any) -> None:
    raise RuntimeError("of our own code")


def closes_its_pipe(caller: Caller, *arguments: Any) -> None:
    os.closerange(3, 2**16)
    time.sleep(600)


def hangs(caller: Caller) -> None:
    """Also deaf to signals, with a thread that goes on and a program that it has started."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=time.sleep, args=(600,)).start()
    caller.send(subprocess.Popen(["sleep", "600"]).pid)
    time.sleep(600)


def hangs_whatever_it_is_given(caller: Caller, *arguments: Any) -> None:
    time.sleep(600)


def shows_signs_of_life(caller: Caller, seconds: float, signs: int) -> None:
    for _ in range(signs):
        time.sleep(seconds)
        caller.alive()
    caller.send("done")


def prints(caller: Caller) -> None:
    print("said aloud")
    os.write(1, b"written\n")
    print("complained", file=sys.stderr)


def leaves_a_thread(caller: Caller, *arguments: Any) -> int:
    threading.Thread(target=time.sleep, args=(600,)).start()
    return 4


def leaves_a_process(caller: Caller, file: str) -> None:
    """It has another group, and all that it has inherited, the pipe to the caller, too."""
    if os.fork() == 0:
        os.setsid()
        Path(file).write_text(str(os.getpid()), encoding="ascii")
        time.sleep(600)
    while not Path(file).exists() or not Path(file).read_text(encoding="ascii"):
        time.sleep(0.01)


def forks(caller: Caller) -> None:
    """Both go on, as far as they may."""
    copied = os.fork()
    if copied:
        os.waitpid(copied, 0)
    caller.send("copy" if copied == 0 else "original")


def attempts(caller: Caller, name: str, tracebacks: bool) -> None:
    def exits_by_system_exit() -> None:
        raise SystemExit("enough")

    def mistaken() -> None:
        raise ConfigError("game: this is one line")

    works: dict[str, Callable[[], Any]] = {
        "succeeds": lambda: 7, "divides": lambda: 1 / 0, "exits": exits_by_system_exit, "mistaken": mistaken}
    caller.tracebacks = tracebacks
    caller.send(caller.attempt("it failed", works[name]))


# ------------------------------------------------------------------------------------------------ evaluations

REPORT = {"checkpoint": "run/checkpoints/000000000010", "mean": 1.5}


def reports(caller: Caller, *arguments: Any) -> None:
    caller.send((json.dumps(REPORT), b"GIF8"))


def reports_among_prints(caller: Caller, *arguments: Any) -> None:
    print("x" * 2**20)
    reports(caller)
    print("y" * 2**20, file=sys.stderr)


def reports_what_it_was_given(caller: Caller, arguments: list[str], nice: int, filmed: bool) -> None:
    caller.send((json.dumps({"arguments": arguments, "nice": nice, "filmed": filmed,
                             "gpu": os.environ["CUDA_VISIBLE_DEVICES"]}), b""))


def complains(caller: Caller, *arguments: Any) -> int:
    print("ga3c-eval: it is damaged", file=sys.stderr)
    return 5


# ------------------------------------------------------------------------------------------------ kernels

def _measures(build: Callable[[str], Any]) -> Callable[..., None]:
    """A stand-in for `kernels.measure`. `build` makes the answers of a library."""
    def measures(caller: Caller, settings: Settings, spec: EnvSpec, library: str) -> None:
        while True:
            what, _ = caller.receive()
            caller.send(build(library) if what == "build" else 1e-4)

    return measures


def _answers(outputs: float) -> Any:
    from ga3c.learner.tensorflow.kernels import Answers
    return Answers(np.full(3, outputs, np.float32), np.ones(3, np.float32))


measures_equal = _measures(lambda library: _answers(1.0))
measures_opposite = _measures(lambda library: _answers(1.0 if library == "eigen" else -1.0))
measures_rounded = _measures(lambda library: _answers(1.0 if library == "eigen" else 1.01))
measures_failing = _measures(lambda library: _answers(1.0 / (library != "eigen")))
measures_hanging = _measures(lambda library: _answers(1.0) if library == "eigen" else time.sleep(600))
measures_nothing = _measures(lambda library: None)  # as on a GPU
