"""Checks of a game before a run: `check`, and `probe` for its spec alone.

A game that may run user code is made and played for one step in a separate process, which is then killed. It may end
its process, block, print, start threads and processes, or change signals or the working directory. None of that lasts.
The facts about the game come back as plain data.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from ga3c.envs.base import Environment, EnvSpec
from ga3c.envs.containment import EnvironmentFailed, described, reraising
from ga3c.envs.factory import make_environment, runs_user_code
from ga3c.envs.gymnasium import GymnasiumEnvironment, layers
from ga3c.envs.process_group import how_it_ended, kill_group, kill_group_when_closed
from ga3c.settings.imports import python_path
from ga3c.settings.machine import LONGEST_WAIT
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

_PROGRAM = "from ga3c.envs.check import main; main()"
_END_SECONDS = 5.0  # for the process to end after it has closed its pipe
_START_SECONDS = 60.0  # for the process to import what is ours
_CLOSE_SECONDS = 10.0  # for an environment to be closed
_ALIVE = b" "  # a byte before the answer, at first and after each part of the work; JSON may begin with spaces


class Checked(NamedTuple):
    """The facts about a game: its spec, and notes for the user at the start, one line each."""

    spec: EnvSpec
    notes: list[str]


def probe(settings: Settings) -> EnvSpec:
    """Returns the spec of `settings.env.game`. Raises as `check`."""
    return check(settings).spec


def check(settings: Settings) -> Checked:
    """Makes one environment of `settings.env.game`. Plays one step if the game may run user code.

    Raises ConfigError as `make_environment`. Also raises it if the step fails, if an observation does not match its
    space, and if one of these takes more than `agent_timeout` seconds.
    """
    if runs_user_code(settings):
        found = run_in_own_process(settings, _PROGRAM, settings.agents.agent_timeout, "made and played its first step")
        name, shape, dtype, *counts = found["spec"]
        if found["closing"]:
            found["notes"].append(f"{name} fails when it is closed, which harms nothing: {found['closing']}")
        return Checked(EnvSpec(name, tuple(shape), np.dtype(dtype), *counts), found["notes"])
    environment = make_environment(settings, 1)
    environment.close()
    return Checked(environment.spec, [])


def run_in_own_process(settings: Settings, program: str, seconds: float, what: str) -> dict[str, Any]:
    """Runs `program`, a line of Python that calls `serve_answer`, in its own process and returns the answer.

    `closing` in the answer says what went wrong when the environment was closed; "" if nothing did. `what` completes
    the error messages: what the game should have done. Raises ConfigError if the process fails, ends without an answer,
    or shows no sign of life for `seconds`.
    """
    game = settings.env.game
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as answers:
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", program, str(writer)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL, pass_fds=[writer], process_group=0,
                env={**os.environ, "PYTHONPATH": python_path(os.getcwd())})
        finally:
            os.close(writer)
        assert process.stdin is not None
        try:
            try:
                process.stdin.write(pickle.dumps(settings))
                process.stdin.flush()  # left open, because the process ends when it is closed
            except BrokenPipeError:
                pass  # the process has ended; the cause is reported below
            answer = b""
            starting = max(_START_SECONDS, min(seconds, LONGEST_WAIT))
            if not wait([reader], starting):
                raise ConfigError(f"game: the process that checks {game!r} did not begin within {starting:g} s")
            # A process that user code started may hold the pipe open, so the newline ends the answer.
            while b"\n" not in answer:
                if not wait([reader], min(seconds, LONGEST_WAIT)):
                    raise ConfigError(f"game: {game!r} blocked for {seconds:g} s (agent_timeout) before it had {what}")
                part = answers.read(65_536)
                if not part:
                    raise ConfigError(f"game: {game!r} {_end_of(process)} before it had {what}")
                answer += part
            answer, _, closing = answer.partition(b"\n")
            found: dict[str, Any] = json.loads(answer)
            if "error" in found:
                raise ConfigError(found["error"])
            deadline = time.monotonic() + _CLOSE_SECONDS
            while b"\n" not in closing and wait([reader], max(0.0, deadline - time.monotonic())):
                part = answers.read(65_536)
                closing += part or b'"it ended its process"\n'
        finally:
            kill_group(process.pid)
            process.wait()
            with contextlib.suppress(BrokenPipeError):  # it has not read all, and another error is on its way
                process.stdin.close()
    closed, ends, _ = closing.partition(b"\n")
    found["closing"] = json.loads(closed) if ends else f"it takes more than {_CLOSE_SECONDS:g} s"
    return found


def _end_of(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        return "closed the pipe on which its process answers"
    return how_it_ended(code)


# ------------------------------------------------------------------------------------------------ in the process

def main() -> None:
    """Entry point of the process that `check` starts."""
    serve_answer(_examined)


def serve_answer(examined: Callable[[Settings, Callable[[], None]], tuple[Environment, dict[str, Any]]]) -> None:
    """Reads settings from standard input and calls `examined` with them and with a function that shows a sign of life.

    Writes what it found as one line of JSON, closes the environment that it returned, and writes a second line: a
    string that says why this failed, or "". The process of `run_in_own_process` calls this and then ends. Its first
    argument is the descriptor to write to.
    """
    descriptor, ours = int(sys.argv[1]), os.getpid()

    def write(line: bytes) -> None:
        while line:
            line = line[os.write(descriptor, line):]

    settings: Settings = pickle.load(sys.stdin.buffer)
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    kill_group_when_closed(lifeline)
    write(_ALIVE)
    environment = None
    try:
        environment, found = examined(settings, lambda: write(_ALIVE))
    except (ConfigError, EnvironmentFailed) as error:
        found = {"error": str(error)}
    except BaseException as error:  # noqa: B036  # KeyboardInterrupt: nobody but users' code raises it here
        found = {"error": f"game: {settings.env.game!r} cannot be made: {described(error)}"}
    if os.getpid() != ours:  # this is a child that the game forked
        os._exit(0)
    write(json.dumps(found).encode() + b"\n")
    closing = ""
    try:
        if environment:
            environment.close()
    except BaseException as error:  # noqa: B036  # the game can be played nevertheless
        closing = described(error)
    write(json.dumps(closing).encode() + b"\n")
    os._exit(0)  # even if threads of user code still run


def _examined(settings: Settings, alive: Callable[[], None]) -> tuple[Environment, dict[str, Any]]:
    game = settings.env.game
    environment = make_environment(settings, 1, alive=alive)
    notes = [environment.note] if isinstance(environment, GymnasiumEnvironment) and environment.note else []
    with reraising(f"game: {game!r} fails at its first step", ConfigError):
        environment.reset(settings.run.seed)
        before = _numbers_of_wrappers(environment)
        environment.step(np.zeros(1, np.int64))
    alive()
    carried: list[str] = []
    if before:
        with contextlib.suppress(Exception):  # the agents will meet the same failure
            environment.reset(settings.run.seed)
            after = _numbers_of_wrappers(environment)
            carried = [name for name, value in before.items() if value != after.get(name)]
    if carried:
        notes.append(f"{game}: kept from episode to episode, but not saved: {', '.join(carried)}; a resumed run and an "
                     "evaluation begin without it")
    name, shape, dtype, *counts = environment.spec
    return environment, {"spec": [name, shape, str(dtype), *counts], "notes": notes}


def _numbers_of_wrappers(environment: Environment) -> dict[str, bytes]:
    """Returns the numbers that user wrappers hold, by "Wrapper.attribute". An episode's beginning should set them."""
    wrappers = layers(environment.envs[0])[:-1] if isinstance(environment, GymnasiumEnvironment) else []
    return {f"{type(wrapper).__name__}.{name}": value for wrapper in wrappers
            if not type(wrapper).__module__.startswith("gymnasium.") for name, value in _numbers(wrapper).items()}


def _numbers(holder: object, within: bool = True) -> dict[str, bytes]:
    """Returns the attributes that are numbers or arrays of numbers, as bytes; if `within`, also those of attributes."""
    numbers = dict[str, bytes]()
    for name, value in vars(holder).items():
        if isinstance(value, int | float | np.number | np.ndarray):
            array = np.asarray(value)
            numbers |= {name: array.tobytes()} if array.dtype.kind in "biuf" else {}
        elif within and hasattr(value, "__dict__") and not isinstance(value, gymnasium.Env):
            numbers |= {f"{name}.{inner}": data for inner, data in _numbers(value, within=False).items()}
    return numbers
