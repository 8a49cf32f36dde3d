"""Plays the episodes of an evaluation, by the paper's protocol: `play_episodes`.

Episode i has a seed and a generator of actions of its own, both drawn from (seed, i), and is played to its end. So as
many episodes count as were asked for, long ones included, and the same seed plays the same episodes. Each environment
is one row of the batch that the policy is asked about, also while it has no episode: a batch of another size may round
differently.

Rows may play in processes of their own. This module imports no TensorFlow, so that such a process is as light as an
agent.
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
from ga3c.envs.base import EnvSpec
from ga3c.envs.factory import make_environment
from ga3c.settings.schema import Settings


class Protocol(NamedTuple):
    """How to play: `envs` environments at a time. `greedy`: the likeliest action instead of a sampled one.

    `seed` fixes every episode: its environment and its actions.
    """

    episodes: int = 30
    seed: int = 0
    greedy: bool = False
    envs: int = 16

    @property
    def n_rows(self) -> int:
        """Rows of the batch: no more than there are episodes."""
        return min(self.envs, self.episodes)


class Ended(NamedTuple):
    """An episode that is over: the batch's row that played it, its raw score, its length in agent steps."""

    row: int
    score: float
    length: int


class Played(NamedTuple):
    """Raw scores (episodes,) float64 and lengths (episodes,) int64 in agent steps, in the order of the seeds."""

    scores: NDArray[np.float64]
    lengths: NDArray[np.int64]


Predict = Callable[[NDArray], tuple[NDArray[np.float32], NDArray[np.float32]]]
# From the policy's probabilities (n, A) and {row: the episode it begins} to observations (n, *shape), episodes over.
Turn = Callable[[NDArray[np.float32], dict[int, int]], tuple[NDArray, list[Ended]]]


def play_episodes(predict: Predict, spec: EnvSpec, settings: Settings, protocol: Protocol, processes: int = 1,
                  on_end: Callable[[], object] = lambda: None,
                  watch: Callable[[NDArray], object] = lambda observation: None) -> Played:
    """Plays the protocol's episodes of `settings.env.game`. A lost life ends nothing.

    Args:
        predict: from observations (n, *shape) to probabilities (n, A) and values (n,).
        spec: of the game, as `probe` gives it.
        processes: in how many processes environments step, at most; scores do not depend on it.
        on_end: called after each episode.
        watch: called with each observation (*shape) of the first episode.

    Raises what an environment raises, and OSError if a process was killed.
    """
    settings = settings.changed(life_loss=False)
    left, waiting = protocol.episodes, iter(range(protocol.episodes))
    scores, lengths = np.zeros(left), np.zeros(left, np.int64)
    policy = np.zeros((protocol.n_rows, spec.n_actions), np.float32)
    begin = {row: next(waiting) for row in range(protocol.n_rows)}
    under_way = dict(begin)
    with playing(settings, protocol, processes) as turn:
        while left:
            observation, over = turn(policy, begin)
            begin = {}
            for row, score, length in over:
                scores[under_way[row]], lengths[under_way[row]] = score, length
                left -= 1
                on_end()
                episode = next(waiting, None)
                if episode is not None:
                    begin[row] = under_way[row] = episode
            if not lengths[0]:  # what is shown afterwards is the next episode's
                watch(observation[0])
            policy, _ = predict(observation)
    return Played(scores, lengths)


class Rows:
    """`n_rows` rows that play in this thread, each with an environment of `settings`.

    Raises ConfigError as `make_environment`.
    """

    def __init__(self, settings: Settings, protocol: Protocol, n_rows: int) -> None:
        self._protocol = protocol
        self._environments = [make_environment(settings, 1) for _ in range(n_rows)]
        self._rngs: list[np.random.Generator | None] = [None] * n_rows  # of an episode under way
        self._scores, self._lengths = [0.0] * n_rows, [0] * n_rows

    def turn(self, policy: NDArray[np.float32], begin: dict[int, int]) -> tuple[NDArray, list[Ended]]:
        """Each row begins the episode it is given in `begin`, or plays an agent step of the one under way.

        Args:
            policy: the probabilities (n, A) for the observations of the last turn; not read for rows in `begin`.

        Returns:
            The observations (n, *shape) to act on next, and the episodes that are over.
        """
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
        """Frees what the simulators hold."""
        for environment in self._environments:
            environment.close()


def shares(protocol: Protocol, processes: int) -> list[range]:
    """The rows that each process plays, of at most `processes`; the first has as many as any."""
    return [range(first, protocol.n_rows, processes) for first in range(min(processes, protocol.n_rows))]


@contextlib.contextmanager
def playing(settings: Settings, protocol: Protocol, processes: int) -> Iterator[Turn]:
    """Within, the turn of all rows, which play in so many `processes`, or in this thread if one is enough.

    A turn raises what an environment raises, and OSError if a process was killed.
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
            with contextlib.suppress(BrokenPipeError):  # it has ended; its answer says why
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
            held.callback(ours.close)  # that ends the process
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
    """Entry point of a process that plays some of the rows, until the other end of the pipe is closed."""
    with contextlib.suppress(EOFError, BrokenPipeError):
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
