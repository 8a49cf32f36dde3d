"""The players of an evaluation's rows: this thread, or other processes. Start with `playing`, which chooses.

Users' code always plays in child processes. Their output goes to the log of the run, or to standard error if there is
no log.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ga3c.envs.atari import compile_emulator
from ga3c.envs.base import EnvSpec
from ga3c.envs.child_process import START_SECONDS, Caller, ChildEnded, ChildFailed, ChildProcess, ChildSilent
from ga3c.envs.containment import EnvironmentFailed, described
from ga3c.envs.factory import runs_user_code
from ga3c.evaluation.episodes import Limits, Players, Protocol, Rows, Turn
from ga3c.settings.machine import LONGEST_WAIT
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

CLOSE_SECONDS = 5.0  # time for the environments to close after the last episode
_STANDARD_ERROR = 2  # its descriptor


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
    # No process has more rows than the first.
    parts = [range(first, protocol.n_rows, processes) for first in range(min(processes, protocol.n_rows))]
    if len(parts) == 1 and not runs_user_code(settings):
        with contextlib.closing(Rows(settings, protocol, limits, parts[0])) as rows:
            yield rows
        return
    if len(parts) > 1:
        compile_emulator(settings.env)
    with contextlib.ExitStack() as held:
        output = None
        if log is not None:
            with contextlib.suppress(OSError):  # another user's run may be read-only
                output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
                held.callback(os.close, output)
        children = [held.enter_context(ChildProcess(
            "ga3c.evaluation.players:play_rows", settings, protocol, limits, part, output is not None,
            output=_STANDARD_ERROR if output is None else output)) for part in parts]
        yield _Processes(settings, parts, children)
        for child in children:
            child.hang_up()
        deadline = time.monotonic() + CLOSE_SECONDS
        for child in children:
            child.join(max(0.0, deadline - time.monotonic()))


class _Processes:
    """The child processes that play `parts` of the rows. They make environments while this process does other work."""

    def __init__(self, settings: Settings, parts: list[range], children: list[ChildProcess]) -> None:
        self._settings = settings
        self._parts = parts
        self._children = children
        self._order = np.argsort([row for part in parts for row in part])

    @functools.cached_property
    def spec(self) -> EnvSpec:
        """The spec of the game. Waits for all environments; raises ConfigError if one fails."""
        game = f"game: {self._settings.env.game!r}"
        try:
            specs: list[EnvSpec] = [self._answer(child, game, "it was made") for child in self._children]
        except EnvironmentFailed as error:
            raise ConfigError(str(error)) from None
        return specs[0]

    def turn(self, actions: NDArray[np.int64], begin: dict[int, int]) -> Turn:
        """Does what `Players.turn` does. Raises EnvironmentFailed, and ConfigError as `spec` does."""
        _ = self.spec  # waits until all environments are made
        for part, child in zip(self._parts, self._children, strict=True):
            child.send((actions[part], {part.index(row): begin[row] for row in begin if row in part}))
        game = repr(self._settings.env.game)
        answers = [self._answer(child, game, "it played") for child in self._children]
        shown = np.concatenate([observation for observation, _ in answers])[self._order]
        return shown, sorted(episode._replace(row=part[episode.row])
                             for part, (_, ended) in zip(self._parts, answers, strict=True) for episode in ended)

    def _answer(self, child: ChildProcess, game: str, doing: str) -> Any:
        """Returns the next answer of a process. Raises EnvironmentFailed if `agent_timeout` passes without any sign."""
        try:
            return child.receive(min(self._settings.agents.agent_timeout, LONGEST_WAIT), starting=START_SECONDS)
        except ChildFailed as error:
            raise EnvironmentFailed(str(error)) from None
        except ChildEnded as error:
            raise EnvironmentFailed(f"{game} {error} while {doing}") from None
        except ChildSilent as error:
            raise EnvironmentFailed(f"{game} did not answer for {error.seconds:g} s (agent_timeout) while {doing}"
                                    if error.begun else f"{game}: its process {error}") from None


# ------------------------------------------------------------------------------------------------ in the process

def play_rows(caller: Caller, settings: Settings, protocol: Protocol, limits: Limits, rows: range,
              logged: bool) -> None:
    """Plays some of the rows in a child process until the caller hangs up.

    logged: whether the output goes to a log, which also gets stack traces. They are too long for one line.
    """
    cv2.setNumThreads(1)  # each core has a process
    game = settings.env.game
    caller.tracebacks = logged
    if logged:
        faulthandler.enable()
    players: Rows | None = None
    try:
        players = caller.attempt(f"game: {game!r} cannot be made",
                                 lambda: Rows(settings, protocol, limits, rows, caller.alive))
        caller.send(players.spec)
        while True:
            turn = functools.partial(players.turn, *caller.receive())
            caller.send(caller.attempt(f"{game!r} failed while it played", turn))
    except (EOFError, ConnectionError):  # the caller has hung up
        pass
    try:
        if players is not None:
            players.close()
    except BaseException as error:  # noqa: B036  # all scores are known; this changes none
        if logged:
            traceback.print_exc()
        print(f"ga3c-eval: {game!r} failed while it was closed: {described(error)}", file=sys.stderr)
