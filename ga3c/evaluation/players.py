"""The players of an evaluation's rows: this thread, or other processes. Start with `playing`, which chooses.

Users' code always plays in other processes: it may print, block, end its process, or start others. Each process leads
a process group, which is killed as a whole at the end. Its standard input is empty. Its output goes to the log of the
run, or to standard error if there is no log. Answers are plain arrays and text, because unpickling an exception of
users' code would run that code in this process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.agents.forkserver import start
from ga3c.envs.base import EnvSpec
from ga3c.envs.containment import EnvironmentFailed, described, drop_unwritable_output
from ga3c.envs.factory import runs_user_code
from ga3c.envs.process_group import how_it_ended, kill_leader, lead_group
from ga3c.evaluation.episodes import Limits, Players, Protocol, Rows, Turn
from ga3c.settings.machine import LONGEST_WAIT
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

CLOSE_SECONDS = 5.0  # time for the environments to close after the last episode


class _Failed(NamedTuple):
    """The last answer of a process: why it cannot play, in one line."""

    cause: str


@contextlib.contextmanager
def playing(settings: Settings, protocol: Protocol, limits: Limits, processes: int = 1,
            log: str | None = None) -> Iterator[Players]:
    """Yields the rows that play `settings.env.game`. A lost life ends no episode.

    Args:
        processes: the most processes in which environments step. Scores do not depend on it.
        log: the file that gets the output of users' code; None means standard error.

    A turn in other processes raises EnvironmentFailed if an environment fails, blocks or ends its process. If an
    environment cannot be made, `playing` or `spec` raises ConfigError. Raises OSError if no process can be started.
    """
    settings = settings.changed(life_loss=False)
    parts = shares(protocol, processes)
    if len(parts) == 1 and not runs_user_code(settings):
        with contextlib.closing(Rows(settings, protocol, limits, parts[0])) as rows:
            yield rows
        return
    with _Processes(settings, protocol, limits, parts, log) as players:
        yield players


def shares(protocol: Protocol, processes: int) -> list[range]:
    """Returns the rows of each process, for at most `processes` processes. No process has more than the first."""
    return [range(first, protocol.n_rows, processes) for first in range(min(processes, protocol.n_rows))]


class _Processes:
    """The processes that play `parts` of the rows. They make environments while this process does something else."""

    def __init__(self, settings: Settings, protocol: Protocol, limits: Limits, parts: list[range],
                 log: str | None) -> None:
        self._settings, self._arguments, self._parts = settings, (settings, protocol, limits), parts
        self._log = log
        self._order = np.argsort([row for part in parts for row in part])
        self._players: list[tuple[Connection, Any]] = []
        self._spec: EnvSpec | None = None

    def __enter__(self) -> _Processes:
        context = multiprocessing.get_context("forkserver")
        try:
            for part in self._parts:
                ours, theirs = context.Pipe()
                # Not a daemon: an environment may start processes of its own.
                arguments = theirs, *self._arguments, part, self._log
                process = context.Process(target=_play, args=arguments, daemon=False)
                start(process, theirs, self._settings.env, len(self._parts[0]))
                self._players.append((ours, process))
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        for pipe, _ in self._players:
            pipe.close()  # that ends the process
        if kind is None:
            deadline = time.monotonic() + CLOSE_SECONDS
            for _, process in self._players:
                process.join(max(0.0, deadline - time.monotonic()))
        self._end()

    def _end(self) -> None:
        for pipe, process in self._players:
            pipe.close()
            kill_leader(process)
            process.join()

    @property
    def spec(self) -> EnvSpec:
        """The specification of the game's environment. Waits for all environments; raises ConfigError if one fails."""
        return self._await_spec()

    def _await_spec(self) -> EnvSpec:
        if self._spec is None:
            game = f"game: {self._settings.env.game!r}"
            try:
                self._spec, *_ = [self._answer(pipe, process, game, "it was made") for pipe, process in self._players]
            except EnvironmentFailed as error:
                raise ConfigError(str(error)) from None
        return self._spec

    def turn(self, actions: NDArray[np.int64], begin: dict[int, int]) -> Turn:
        """Does what `Players.turn` does. Raises EnvironmentFailed, and ConfigError as `spec` does."""
        self._await_spec()
        for part, (pipe, _) in zip(self._parts, self._players, strict=True):
            with contextlib.suppress(BrokenPipeError):  # it has ended; its answer says why
                pipe.send((actions[part], {part.index(row): begin[row] for row in begin if row in part}))
        game = repr(self._settings.env.game)
        answers = [self._answer(pipe, process, game, "it played") for pipe, process in self._players]
        shown = np.concatenate([observation for observation, _ in answers])[self._order]
        return shown, sorted(each._replace(row=part[each.row])
                             for part, (_, ended) in zip(self._parts, answers, strict=True) for each in ended)

    def _answer(self, pipe: Connection, process: Any, game: str, doing: str) -> Any:
        """Returns the next answer of a process. Raises EnvironmentFailed if there is none within `agent_timeout`.

        Each sign of life (None) restarts the timeout.
        """
        seconds = min(self._settings.agents.agent_timeout, LONGEST_WAIT)
        while True:
            # Waits twice, as this process may have been stopped during the first wait. Waits for the sentinel, too, as
            # other processes may have inherited the pipe of a dead process.
            if not (wait([pipe, process.sentinel], seconds) or wait([pipe, process.sentinel], 0)):
                raise EnvironmentFailed(f"{game} did not answer for {seconds:g} s (agent_timeout) while {doing}")
            try:
                answer = pipe.recv() if pipe.poll() else _Failed("")
            except (EOFError, OSError):
                answer = _Failed("")
            if isinstance(answer, _Failed):
                raise EnvironmentFailed(answer.cause or f"{game} {_end_of(process)} while {doing}")
            if answer is not None:
                return answer


def _end_of(process: Any) -> str:
    process.join(CLOSE_SECONDS)
    code = process.exitcode
    if code is None:
        return "closed its pipe"
    return how_it_ended(code)


# ------------------------------------------------------------------------------------------------ in the process

def _play(pipe: Connection, settings: Settings, protocol: Protocol, limits: Limits, rows: range,
          log: str | None) -> None:
    """Entry point of a process that plays some of the rows, until the other end of the pipe is closed."""
    lead_group()
    for number in (signal.SIGINT, signal.SIGUSR1):  # programs that games start inherit a mask, but no handler
        signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})
    game, logged, code, ours = settings.env.game, _redirect(log), 1, os.getpid()
    drop_unwritable_output()
    made: list[Rows] = []

    def alive() -> None:
        _exit_if_forked(ours)
        pipe.send(None)

    def make() -> EnvSpec:
        made.append(Rows(settings, protocol, limits, rows, alive))
        return made[0].spec

    try:
        answer = _attempt(f"game: {game!r} cannot be made", make, logged)
        _exit_if_forked(ours)
        pipe.send(answer)
        while not isinstance(answer, _Failed):
            asked = pipe.recv()
            answer = _attempt(f"{game!r} failed while it played", functools.partial(made[0].turn, *asked), logged)
            _exit_if_forked(ours)
            pipe.send(answer)
    except (EOFError, BrokenPipeError):  # the other end of the pipe is closed
        code = 0
        for each in made:
            closed = _attempt(f"{game!r} failed while it was closed", each.close, logged)
            if closed is not None:  # all scores are known; this changes none
                print(f"ga3c-eval: {closed.cause}", file=sys.stderr, flush=True)
    finally:
        with contextlib.suppress(Exception):  # users' code may have closed it
            sys.stdout.flush()
        os._exit(code)  # at once, even if users' code has left threads or processes


def _exit_if_forked(pid: int) -> None:
    """Ends this process if an environment forked it from the process `pid` and then returned in the copy, too."""
    if os.getpid() != pid:
        os._exit(0)


def _redirect(log: str | None) -> bool:
    """Empties standard input. Sends output and errors to `log`, or to standard error if `log` cannot be opened.

    Returns whether they go to the log. The log also gets stack traces, which are too long for one line.
    """
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if log is not None:
        try:
            os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666), 2)
            faulthandler.enable()
        except OSError:  # another user's run may be read-only
            log = None
    os.dup2(2, 1)
    return log is not None


def _attempt(what: str, work: Callable[[], Any], logged: bool) -> Any:
    """Returns what `work` returns. If `work` raises anything at all, returns a `_Failed` with the cause."""
    try:
        return work()
    except ConfigError as error:
        return _Failed(str(error))
    except BaseException as error:  # noqa: B036  # the other process decides
        if logged:
            traceback.print_exc()
        return _Failed(f"{what}: {described(error)}")
