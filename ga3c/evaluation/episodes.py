"""Plays the episodes of an evaluation by the paper's protocol. Start with `play_episodes`.

Episode i has its own seed and its own generator of actions, both drawn from (seed, i). It is played to its end. So
exactly the requested number of episodes counts, long ones included, and the same seed plays the same episodes.

Each environment is one row of the policy's batch, even while it has no episode. The batch size never changes, because a
batch of another size may round differently. Rows may play in other processes (`players.py`). This module imports no
TensorFlow, so these processes are as light as an agent.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple
from typing import Protocol as Interface

import numpy as np
from numpy.typing import NDArray

from ga3c.agents.loop import seeded
from ga3c.algorithms.acting import Acting, Outputs
from ga3c.envs.base import EnvSpec
from ga3c.envs.factory import make_environment, runs_user_code
from ga3c.envs.gymnasium import close_all
from ga3c.envs.random_streams import GlobalStreams
from ga3c.settings.schema import Settings


class Protocol(NamedTuple):
    """The options of an evaluation. `envs` environments play at a time.

    With `greedy` the policy takes the most likely action instead of sampling. `seed` fixes every episode: its
    environment and its actions.
    """

    episodes: int = 30
    seed: int = 0
    greedy: bool = False
    envs: int = 16

    @property
    def n_rows(self) -> int:
        """Rows of the batch: `envs`, but no more than there are episodes."""
        return min(self.envs, self.episodes)


class Limits(NamedTuple):
    """The limits of an episode, in agent steps and in minutes. An episode cut short counts with its score so far.

    An Atari game ends by itself after 108,000 frames: 27,000 agent steps, or 108,000 if no frame is skipped.
    """

    steps: int = 108_000
    minutes: float = 30.0


class Ended(NamedTuple):
    """An ended episode: its row of the batch, raw score, length in agent steps, and whether it was cut short."""

    row: int
    score: float
    length: int
    cut: bool = False


class Played(NamedTuple):
    """Raw scores (episodes,) float64 and lengths (episodes,) int64 in agent steps, in the order of the seeds.

    `cut` holds the numbers of the episodes that were cut short.
    """

    scores: NDArray[np.float64]
    lengths: NDArray[np.int64]
    cut: Sequence[int] = ()


Predict = Callable[[NDArray], Outputs]
"""Maps observations (n, *shape) to the model's outputs by name."""
Turn = tuple[NDArray, list[Ended]]
"""Observations (n, *shape) to act on next, and the episodes that are over."""


class Players(Interface):
    """All rows of an evaluation."""

    @property
    def spec(self) -> EnvSpec:
        """The spec of the game. May wait for its environments to be made."""

    def turn(self, actions: NDArray[np.int64], begin: dict[int, int]) -> Turn:
        """Starts the episodes in `begin` (row -> episode). Plays one agent step in all other rows with an episode.

        `actions` (n,) follow the observations of the last turn. Rows in `begin` ignore theirs.
        """


def seeds_of(seed: int, episode: int) -> tuple[int, np.random.Generator]:
    """Returns the environment's seed and the generator of actions of episode `episode` of `seed`."""
    return seeded(np.random.SeedSequence(seed, spawn_key=(episode,)))


def play_episodes(predict: Predict, acting: Acting, players: Players, protocol: Protocol,
                  on_turn: Callable[[int, int], object] = lambda over, turns: None,
                  watch: Callable[[NDArray], object] = lambda observation: None) -> Played:
    """Plays the protocol's episodes and returns their scores and lengths.

    Args:
        predict, acting: the policy.
        players: the rows that play, as `players.playing` gives them.
        on_turn: called after each turn with the numbers of ended episodes and of turns.
        watch: called with each observation (*shape) of the first episode.

    Raises whatever `players.turn` raises.
    """
    over = 0
    turns = 0
    waiting = iter(range(protocol.episodes))
    scores = np.zeros(protocol.episodes)
    lengths = np.zeros(protocol.episodes, np.int64)
    cut = []
    actions = np.zeros(protocol.n_rows, np.int64)
    begin = {row: next(waiting) for row in range(protocol.n_rows)}
    rngs: dict[int, np.random.Generator] = {}
    under_way = dict(begin)
    while over < protocol.episodes:
        observation, ended = players.turn(actions, begin)
        for row, episode in begin.items():
            _, rngs[row] = seeds_of(protocol.seed, episode)
        begin = {}
        turns += 1
        for row, score, length, cut_short in ended:
            episode = under_way[row]
            scores[episode] = score
            lengths[episode] = length
            if cut_short:
                cut.append(episode)
            over += 1
            following = next(waiting, None)
            if following is not None:
                begin[row] = following
        under_way |= begin
        if not lengths[0]:  # after its end, row 0 shows another episode
            watch(observation[0])
        on_turn(over, turns)
        outputs = predict(observation)
        if protocol.greedy:
            actions = acting.best(outputs)
        else:
            for row, rng in rngs.items():
                of_row = {name: output[row:row + 1] for name, output in outputs.items()}
                actions[row] = acting.choose(of_row, rng, np.full(1, acting.in_evaluation))[0]
    return Played(scores, lengths, sorted(cut))


class Rows:
    """Some or all rows of an evaluation. They play in this thread, each with its own environment of `settings`.

    Users' code may draw from `random` and `np.random`. So each row has its own copy of these streams, seeded for each
    episode. That takes 0.2 ms a step. Atari games and toys draw nothing there, so they do without.

    Args:
        rows: their numbers in the batch.
        alive: called after an environment is made or starts an episode, and about once a second during play.

    Raises ConfigError, as `make_environment` does.
    """

    def __init__(self, settings: Settings, protocol: Protocol, limits: Limits, rows: Sequence[int],
                 alive: Callable[[], object] = lambda: None) -> None:
        self._protocol = protocol
        self._limits = limits
        self._alive = alive
        self._user_code = runs_user_code(settings)
        self._environments = []
        self._streams = []
        for row in rows:
            seed = int(np.random.SeedSequence((protocol.seed, row)).generate_state(1)[0])
            self._streams.append(self._drawing(seed))
            with self._streams[-1]:
                self._environments.append(make_environment(settings, 1))
            alive()
        self._reported_at = time.monotonic()
        self.spec = self._environments[0].spec
        self._playing = [False] * len(rows)  # whether an episode is under way
        self._scores = [0.0] * len(rows)
        self._lengths = [0] * len(rows)
        self._began = [0.0] * len(rows)

    def _report_alive(self) -> None:
        self._alive()
        self._reported_at = time.monotonic()

    def _drawing(self, seed: int) -> AbstractContextManager[None]:
        return GlobalStreams(seed) if self._user_code else contextlib.nullcontext()

    def turn(self, actions: NDArray[np.int64], begin: dict[int, int]) -> Turn:
        """Does what `Players.turn` does, for these rows alone, numbered from 0.

        Raises what an environment raises, and ValueError if a reward or an observation is not finite.
        """
        ended = []
        for row, environment in enumerate(self._environments):
            if row in begin:
                seed, _ = seeds_of(self._protocol.seed, begin[row])
                self._playing[row] = True
                self._streams[row] = self._drawing(seed)
                self._scores[row] = 0.0
                self._lengths[row] = 0
                self._began[row] = time.monotonic()
                with self._streams[row]:
                    environment.reset(seed)
                self._check_observation(row)
                self._report_alive()
            elif self._playing[row]:
                with self._streams[row]:
                    transition = environment.step(actions[row:row + 1])
                if time.monotonic() - self._reported_at > 1.0:
                    self._report_alive()
                reward = float(transition.scored[0])
                if not math.isfinite(reward):
                    raise ValueError(f"the reward is {reward} in step {self._lengths[row] + 1}")
                self._scores[row] += reward
                self._lengths[row] += 1
                self._check_observation(row)
                cut = not transition.score_ended[0] and self._too_long(row)
                if transition.score_ended[0] or cut:
                    ended.append(Ended(row, self._scores[row], self._lengths[row], cut))
                    self._playing[row] = False
        return np.concatenate([environment.observation for environment in self._environments]), ended

    def _check_observation(self, row: int) -> None:
        """Raises ValueError if the row's observation is not finite: no policy was trained on that."""
        observation = self._environments[row].observation
        if observation.dtype.kind == "f" and not np.isfinite(observation).all():
            raise ValueError(f"the observation is not finite after step {self._lengths[row]}")

    def _too_long(self, row: int) -> bool:
        return (self._lengths[row] >= self._limits.steps
                or time.monotonic() - self._began[row] >= 60.0 * self._limits.minutes)

    def close(self) -> None:
        close_all(self._environments)
