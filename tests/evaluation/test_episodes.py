"""The episodes of an evaluation: exactly those asked for, each from its own seed, in one process or several."""

from __future__ import annotations

import math
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from ga3c.agents.loop import seeded
from ga3c.envs import toys
from ga3c.envs.base import EnvSpec
from ga3c.envs.factory import probe
from ga3c.evaluation.episodes import Played, Predict, Protocol, play_episodes
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError


def predict(action: Callable[[NDArray], int], n_actions: int) -> Predict:
    """The policy that is sure of `action(observation)`."""
    def certain(observation: NDArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        chosen = [action(each) for each in observation]
        return np.eye(n_actions, dtype=np.float32)[chosen], np.zeros(len(chosen), np.float32)

    return certain


def uniform(n_actions: int) -> Predict:
    def policy(observation: NDArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return np.full((len(observation), n_actions), 1 / n_actions, np.float32), np.zeros(len(observation), np.float32)

    return policy


def play(predict: Predict, game: str, protocol: Protocol, processes: int = 1, **changed: object) -> Played:
    settings = configured(**{"game": game, **changed})
    return play_episodes(predict, probe(settings), settings, protocol, processes)


def equal(one: Played, other: Played) -> bool:
    return one.scores.tolist() == other.scores.tolist() and one.lengths.tolist() == other.lengths.tolist()


def follow_the_ball(observation: NDArray) -> int:
    board = observation.reshape(toys.Catch.ROWS, toys.Catch.COLUMNS)
    return 1 + int(np.sign(int(board[:-1].argmax() % toys.Catch.COLUMNS) - int(board[-1].argmax())))


def repeat_the_symbol(observation: NDArray) -> int:
    return int(observation[toys.LastStepReward.LENGTH:].argmax())


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("envs", [1, 3, 16])
@pytest.mark.parametrize(("game", "action", "n_actions", "length"), [
    ("toy:catch", follow_the_ball, 3, 9), ("toy:last-step-reward", repeat_the_symbol, 3, 7),
    ("toy:identity", lambda observation: int(observation.argmax()), 4, 16)])
def test_a_perfect_player_has_the_best_score_in_every_episode(
        game: str, action: Callable[[NDArray], int], n_actions: int, length: int, envs: int, greedy: bool) -> None:
    played = play(predict(action, n_actions), game, Protocol(7, 0, greedy, envs))
    assert played.scores.tolist() == [1.0] * 7
    assert played.lengths.tolist() == [length] * 7


class Longer(gymnasium.Env):
    """An episode lasts as long as its seed says and scores its length; the observation is the time."""

    observation_space = gymnasium.spaces.Box(0, 255, (1,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    @staticmethod
    def length(seed: int) -> int:
        return 1 + seed % 40

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        self.time, self.end = 0, self.length(seed) if seed is not None else 1
        return np.zeros(1, np.uint8), {}

    def step(self, action: int) -> tuple[NDArray, float, bool, bool, dict]:
        self.time += 1
        return np.full(1, self.time, np.uint8), 1.0, self.time == self.end, False, {}


gymnasium.register("Longer-v0", Longer)


@pytest.mark.parametrize("envs", [1, 4, 30, 64])
def test_each_episode_counts_however_long_it_is_and_has_its_own_seed(envs: int) -> None:
    sizes: list[int] = []

    def policy(observation: NDArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        sizes.append(len(observation))
        return uniform(2)(observation)

    played = play(policy, "Longer-v0", Protocol(30, seed=5, envs=envs))
    seeds = [seeded(np.random.SeedSequence(5, spawn_key=(episode,)))[0] for episode in range(30)]
    assert played.lengths.tolist() == [Longer.length(seed) for seed in seeds]
    assert len(set(seeds)) == 30 and len(set(played.lengths)) > 10
    assert played.scores.tolist() == played.lengths.tolist()
    assert set(sizes) == {min(envs, 30)}, "the batch has one size, to the end"


def test_the_same_seed_plays_the_same_and_another_does_not() -> None:
    one, again, other = (play(uniform(3), "toy:catch", Protocol(40, seed, envs=8)) for seed in (0, 0, 1))
    assert equal(one, again) and not equal(one, other)


def test_a_sampled_action_is_as_likely_as_the_policy_says_and_a_greedy_one_is_the_likeliest() -> None:
    def leaning(observation: NDArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        policy, value = predict(lambda each: int(each.argmax()), 4)(observation)
        return 0.6 * policy + 0.1, value

    sampled = play(leaning, "toy:identity", Protocol(100))
    assert abs(sampled.scores.mean() - 0.7) < 4 * math.sqrt(0.7 * 0.3 / 1600)
    assert play(leaning, "toy:identity", Protocol(10, greedy=True)).scores.tolist() == [1.0] * 10


def test_cartpole_is_played() -> None:
    played = play(predict(lambda observation: int(observation[2] + observation[3] > 0), 2), "CartPole-v1", Protocol(5))
    assert played.scores.min() > 150 and played.scores.max() <= 500 and equal(
        played, Played(played.scores, played.scores.astype(np.int64)))


@pytest.mark.parametrize(("processes", "envs"), [(2, 3), (8, 3), (1, 1)])
def test_atari_scores_whole_games_whatever_the_processes_and_the_life_loss_of_training(
        processes: int, envs: int) -> None:
    one = play(uniform(4), "Breakout", Protocol(4, seed=3, envs=3))
    assert equal(one, play(uniform(4), "Breakout", Protocol(4, seed=3, envs=envs), processes, life_loss=True))
    assert one.lengths.min() > 60 and len(set(one.lengths)) > 1, "five lives, and starts that differ"


def test_the_first_episode_is_watched_from_its_first_observation_to_the_last_one_acted_on() -> None:
    settings, seen = configured(game="toy:catch"), []
    play_episodes(uniform(3), probe(settings), settings, Protocol(5, envs=2),
                  watch=lambda observation: seen.append(observation.argmax()))
    rows = [int(ball) // toys.Catch.COLUMNS for ball in seen]
    assert rows == sorted(rows) and rows[0] == 0 and len(seen) == toys.Catch.ROWS - 1


def test_several_processes_tell_the_same_as_one() -> None:
    def leaning(observation: NDArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        policy, value = predict(follow_the_ball, 3)(observation)
        return 0.7 * policy + 0.1, value

    settings = configured(game="toy:catch")
    told = []
    for processes in (1, 2, 3):
        seen: list[bytes] = []
        ends: list[int] = []
        played = play_episodes(leaning, probe(settings), settings, Protocol(30, envs=5), processes,
                               lambda ends=ends: ends.append(1), lambda shown, seen=seen: seen.append(shown.tobytes()))
        told.append((played.scores.tolist(), played.lengths.tolist(), len(ends), seen))
    assert told[0] == told[1] == told[2]
    assert told[0][2] == 30 and len(told[0][3]) == toys.Catch.ROWS - 1 and len({*told[0][0]}) == 2


def test_what_one_process_plays_is_played_in_the_thread_that_asks() -> None:
    gymnasium.register("Bound-v0", Bound)
    try:
        play(uniform(2), "Bound-v0", Protocol(3, envs=2))
    finally:
        del gymnasium.registry["Bound-v0"]


class Bound(Longer):
    """Like a simulator that may be used only by the thread that made it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def step(self, action: int) -> tuple[NDArray, float, bool, bool, dict]:
        assert threading.get_ident() == self.thread
        return super().step(action)


FAILING = """
import gymnasium
import numpy as np

class Failing(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(0, 255, (1,), np.uint8), gymnasium.spaces.Discrete(2)
    def METHOD(self, *args, seed=None, options=None):
        raise ZeroDivisionError("of the world")
    def OTHER(self, *args, seed=None, options=None):
        return np.zeros(1, np.uint8), {}

gymnasium.register("Failing-v0", Failing)
"""


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(("method", "told"), [
    ("reset", "of the world"), ("step", "of the world"), ("__init__", "Failing-v0' cannot be made")])
def test_what_a_world_raises_is_raised_wherever_it_is_played(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, told: str, processes: int) -> None:
    (tmp_path / "failing_world.py").write_text(
        FAILING.replace("METHOD", method).replace("OTHER", "reset" if method != "reset" else "other"))
    monkeypatch.syspath_prepend(str(tmp_path))
    settings, spec = configured(game="failing_world:Failing-v0"), EnvSpec("", (1,), np.dtype(np.uint8), 2, 1)
    try:
        with pytest.raises((ZeroDivisionError, ConfigError), match=told):
            play_episodes(uniform(2), spec, settings, Protocol(4), processes)
    finally:
        gymnasium.registry.pop("Failing-v0", None)
        sys.modules.pop("failing_world", None)
    assert not multiprocessing.active_children()


def test_a_process_that_is_shot_is_told_and_those_that_play_know_no_tensorflow() -> None:
    def shoot(observation: NDArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        players = multiprocessing.active_children()
        assert len(players) == 2
        for player in players:
            assert "tensorflow" not in Path(f"/proc/{player.pid}/maps").read_text()
        players[0].kill()
        return uniform(3)(observation)

    with pytest.raises(OSError, match="was ended by SIGKILL while it played") as caught:
        play(shoot, "toy:catch", Protocol(4), processes=2)
    assert caught.value.filename == "a process of the evaluation"
    assert not multiprocessing.active_children()


ORPHANS = """
import os
import time
import numpy as np
import psutil
from ga3c.envs.factory import probe
from ga3c.evaluation.episodes import Protocol, play_episodes
from ga3c.settings.files import configured

def predict(observation):
    server, = [child for child in psutil.Process().children() if child.children()]
    print(*[child.pid for child in server.children()], flush=True)
    time.sleep(600)

if __name__ == "__main__":
    settings = configured(game="Pong")
    play_episodes(predict, probe(settings), settings, Protocol(4), 2)
"""


def test_processes_that_play_end_with_the_one_they_play_for(tmp_path: Path) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as evaluating:
        assert evaluating.stdout is not None
        players = [psutil.Process(int(pid)) for pid in evaluating.stdout.readline().split()]
        evaluating.kill()
    assert len(players) == 2
    assert not psutil.wait_procs(players, timeout=20)[1]
