"""Rows of an evaluation's batch: environments that play one episode after the other, here or in processes of their own.

Knows no TensorFlow, so that such a process is as light as an agent.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.agents.heads import sample
from ga3c.agents.loop import seeded
from ga3c.agents.process import forkserver_running
from ga3c.envs.factory import make_environment
from ga3c.settings.schema import Settings


class Protocol(NamedTuple):
    """How to play. `envs` environments play at a time; `greedy`: the likeliest action instead of a sampled one."""

    episodes: int = 30
    seed: int = 0
    greedy: bool = False
    envs: int = 16

    @property
    def n_rows(self) -> int:
        """Of the batch: environments that have an episode to play."""
        return min(self.envs, self.episodes)


class Ended(NamedTuple):
    """An episode is over: in which row of the batch, its raw score, its length in agent steps."""

    row: int
    score: float
    length: int


# From what the policy says of each row, (n, A), and {row: episode that it shall begin}, to observations (n, *shape).
Turn = Callable[[NDArray[np.float32], dict[int, int]], tuple[NDArray, list[Ended]]]


class Rows:
    """Rows that take their turns in this thread; the world is that of `settings`."""

    def __init__(self, settings: Settings, protocol: Protocol, n_rows: int) -> None:
        self._protocol = protocol
        self._environments = [make_environment(settings, 1) for _ in range(n_rows)]
        self._rngs: list[np.random.Generator | None] = [None] * n_rows  # of an episode under way
        self._scores, self._lengths = [0.0] * n_rows, [0] * n_rows

    def turn(self, policy: NDArray[np.float32], begin: dict[int, int]) -> tuple[NDArray, list[Ended]]:
        """Each row begins the episode it is given, or plays an agent step of the one under way."""
        ended = []
        for row, environment in enumerate(self._environments):
            rng = self._rngs[row]
            if row in begin:
                seed, self._rngs[row] = seeded(np.random.SeedSequence(self._protocol.seed, spawn_key=(begin[row],)))
                environment.reset(seed)
                self._scores[row], self._lengths[row] = 0.0, 0
            elif rng is not None:
                said = policy[row:row + 1]
                transition = environment.step(said.argmax(axis=1) if self._protocol.greedy else sample(said, rng))
                self._scores[row] += float(transition.reward[0])
                self._lengths[row] += 1
                if transition.score_ended[0]:
                    ended.append(Ended(row, self._scores[row], self._lengths[row]))
                    self._rngs[row] = None
        return np.concatenate([environment.observation for environment in self._environments]), ended

    def close(self) -> None:
        """Gives back what the simulators hold."""
        for environment in self._environments:
            environment.close()


def shares(protocol: Protocol, processes: int) -> list[range]:
    """The rows that each of at most so many processes plays; the first has as many as any."""
    return [range(first, protocol.n_rows, processes) for first in range(min(processes, protocol.n_rows))]


@contextlib.contextmanager
def playing(settings: Settings, protocol: Protocol, processes: int) -> Iterator[Turn]:
    """The turn of all rows, which with several `processes` play beside each other.

    A turn raises what a world raises, and OSError if a process has been ended by others.
    """
    parts = shares(protocol, processes)
    if len(parts) == 1:
        with contextlib.closing(Rows(settings, protocol, len(parts[0]))) as rows:
            yield rows.turn
        return
    context = multiprocessing.get_context("forkserver")
    players: list[tuple[Connection, Any]] = []
    order = np.argsort([row for part in parts for row in part])

    def turn(policy: NDArray[np.float32], begin: dict[int, int]) -> tuple[NDArray, list[Ended]]:
        for part, (pipe, _) in zip(parts, players, strict=True):
            with contextlib.suppress(BrokenPipeError):  # it has ended, and said why or not
                pipe.send((policy[part], {part.index(row): begin[row] for row in begin if row in part}))
        answers = [_answer(pipe, process) for pipe, process in players]
        shown = np.concatenate([observation for observation, _ in answers])[order]
        return shown, sorted(each._replace(row=part[each.row])
                             for part, (_, ended) in zip(parts, answers, strict=True) for each in ended)

    with contextlib.ExitStack() as held:
        for part in parts:
            ours, theirs = context.Pipe()
            process = context.Process(target=_play, args=(theirs, settings, protocol, len(part)), daemon=True)
            with theirs, forkserver_running(settings.env.game, len(parts[0])):
                process.start()
            held.callback(process.join)
            held.callback(ours.close)  # which is what ends it
            players.append((ours, process))
        yield turn


def _answer(pipe: Connection, process: Any) -> tuple[NDArray, list[Ended]]:
    try:
        answer = pipe.recv()
    except (EOFError, ConnectionResetError):
        process.join()
        code = process.exitcode
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise ChildProcessError(errno.ECHILD, f"{how} while it played", "a process of the evaluation") from None
    if isinstance(answer, Exception):
        raise answer
    return answer  # type: ignore[no-any-return]


def _play(pipe: Connection, settings: Settings, protocol: Protocol, n_rows: int) -> None:
    """Entry point of a process that plays some of the rows, for as long as turns are asked for."""
    with contextlib.suppress(EOFError, BrokenPipeError):  # nobody asks any more
        try:
            rows = Rows(settings, protocol, n_rows)
        except Exception as error:
            pipe.send(error)
            return
        while True:
            asked = pipe.recv()
            try:
                answer: Any = rows.turn(*asked)
            except Exception as error:
                answer = error
            pipe.send(answer)
