"""The episodes of an evaluation: exactly those asked for, each from its own seed, in one process or several."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import odd
import psutil
import pytest
from numpy.typing import NDArray

from ga3c.agents.loop import seeded
from ga3c.algorithms.acting import BY_POLICY, Outputs
from ga3c.envs import toys
from ga3c.envs.factory import make_environment
from ga3c.envs.containment import EnvironmentFailed
from ga3c.evaluation.episodes import Limits, Played, Predict, Protocol, play_episodes
from ga3c.evaluation.players import playing
from ga3c.settings.files import configured


def predict(action: Callable[[NDArray], int], n_actions: int) -> Predict:
    """The policy that is sure of `action(observation)`."""
    def certain(observation: NDArray) -> Outputs:
        chosen = [action(each) for each in observation]
        return {"policy": np.eye(n_actions, dtype=np.float32)[chosen]}

    return certain


def uniform(n_actions: int) -> Predict:
    def policy(observation: NDArray) -> Outputs:
        return {"policy": np.full((len(observation), n_actions), 1 / n_actions, np.float32)}

    return policy


def play(predict: Predict, game: str, protocol: Protocol, processes: int = 1, **changed: object) -> Played:
    with playing(configured(**{"game": game, **changed}), protocol, Limits(), processes) as players:
        return play_episodes(predict, BY_POLICY, players, protocol)


def equal(one: Played, other: Played) -> bool:
    return one.scores.tolist() == other.scores.tolist() and one.lengths.tolist() == other.lengths.tolist()


def follow_the_ball(observation: NDArray) -> int:
    board = observation.reshape(toys.Catch.ROWS, toys.Catch.COLUMNS)
    return 1 + int(np.sign(int(board[:-1].argmax() % toys.Catch.COLUMNS) - int(board[-1].argmax())))


def repeat_the_symbol(observation: NDArray) -> int:
    return int(observation[toys.LastStepReward.LENGTH:].argmax())


@pytest.mark.parametrize(("game", "action", "n_actions", "length"), [
    ("toy:catch", follow_the_ball, 3, 9), ("toy:last-step-reward", repeat_the_symbol, 3, 7),
    ("toy:identity", lambda observation: int(observation.argmax()), 4, 16)])
def test_a_perfect_player_has_the_best_score_in_every_episode(
        game: str, action: Callable[[NDArray], int], n_actions: int, length: int) -> None:
    played = play(predict(action, n_actions), game, Protocol(7, envs=3))
    assert played.scores.tolist() == [1.0] * 7
    assert played.lengths.tolist() == [length] * 7


@pytest.mark.parametrize("envs", [4, 64])
def test_each_episode_counts_however_long_it_is_and_has_its_own_seed(envs: int) -> None:
    sizes: list[int] = []

    def policy(observation: NDArray) -> Outputs:
        sizes.append(len(observation))
        return uniform(2)(observation)

    played = play(policy, "odd:Longer-v0", Protocol(30, seed=5, envs=envs))
    seeds = [seeded(np.random.SeedSequence(5, spawn_key=(episode,)))[0] for episode in range(30)]
    assert played.lengths.tolist() == [odd.Longer.length(seed) for seed in seeds]
    assert len(set(seeds)) == 30 and len(set(played.lengths)) > 10
    assert played.scores.tolist() == played.lengths.tolist()
    assert set(sizes) == {min(envs, 30)}, "the batch has one size, to the end"


def test_actions_are_sampled_or_the_likeliest() -> None:
    def leaning(observation: NDArray) -> Outputs:
        return {"policy": 0.6 * predict(lambda each: int(each.argmax()), 4)(observation)["policy"] + 0.1}

    sampled = play(leaning, "toy:identity", Protocol(100))
    assert abs(sampled.scores.mean() - 0.7) < 4 * math.sqrt(0.7 * 0.3 / 1600)
    assert play(leaning, "toy:identity", Protocol(10, greedy=True)).scores.tolist() == [1.0] * 10


@pytest.mark.parametrize(("processes", "envs"), [(2, 3), (1, 1)])
def test_atari_scores_whole_games(processes: int, envs: int) -> None:
    one = play(uniform(4), "Breakout", Protocol(4, seed=3, envs=3), life_loss=False)
    assert equal(one, play(uniform(4), "Breakout", Protocol(4, seed=3, envs=envs), processes, life_loss=True))
    assert one.lengths.min() > 60 and len(set(one.lengths)) > 1, "five lives, and starts that differ"


def test_the_first_episode_is_watched_to_its_end() -> None:
    protocol, seen = Protocol(5, envs=2), []
    with playing(configured(game="toy:catch"), protocol, Limits()) as players:
        play_episodes(uniform(3), BY_POLICY, players, protocol,
                      watch=lambda observation: seen.append(observation.argmax()))
    rows = [int(ball) // toys.Catch.COLUMNS for ball in seen]
    assert rows == sorted(rows) and rows[0] == 0 and len(seen) == toys.Catch.ROWS - 1


def test_several_processes_tell_the_same_as_one() -> None:
    def leaning(observation: NDArray) -> Outputs:
        return {"policy": 0.7 * predict(follow_the_ball, 3)(observation)["policy"] + 0.1}

    protocol, told = Protocol(30, envs=5), []
    for processes in (1, 2, 3):
        seen: list[bytes] = []
        ends: list[tuple[int, int]] = []
        with playing(configured(game="toy:catch"), protocol, Limits(), processes) as players:
            played = play_episodes(leaning, BY_POLICY, players, protocol, lambda *over, ends=ends: ends.append(over),
                                   lambda shown, seen=seen: seen.append(shown.tobytes()))
        told.append((played.scores.tolist(), played.lengths.tolist(), ends, seen))
    assert told[0] == told[1] == told[2]
    assert told[0][2][-1] == (30, len(told[0][2])) and len(told[0][3]) == toys.Catch.ROWS - 1
    assert len({*told[0][0]}) == 2


def test_a_toy_plays_in_the_thread_that_asks_if_one_process_is_enough() -> None:
    before = psutil.Process().children()
    with playing(configured(game="toy:catch"), Protocol(3), Limits()):
        assert psutil.Process().children() == before


def test_an_episode_cut_short_at_its_limit_of_steps_counts() -> None:
    protocol = Protocol(12, seed=4, envs=8)
    with playing(configured(game="odd:Sometimes-v0"), protocol, Limits(steps=40)) as players:
        played = play_episodes(uniform(2), BY_POLICY, players, protocol)
    endless = [episode for episode in range(12)
               if seeded(np.random.SeedSequence(4, spawn_key=(episode,)))[0] % 2]
    assert 0 < len(endless) < 12 and played.cut == endless
    assert played.lengths.tolist() == [40 if episode in endless else 5 for episode in range(12)]
    assert played.scores.tolist() == played.lengths.tolist()


def test_an_episode_that_ends_at_its_limit_is_not_cut_short() -> None:
    with playing(configured(game="odd:Plain-v0"), Protocol(3), Limits(steps=5)) as players:
        assert play_episodes(uniform(2), BY_POLICY, players, Protocol(3)).cut == []


def test_an_episode_is_cut_short_at_its_limit_of_minutes() -> None:
    with playing(configured(game="odd:Endless-v0"), Protocol(2), Limits(minutes=0.01)) as players:
        played = play_episodes(uniform(2), BY_POLICY, players, Protocol(2))
    assert played.cut == [0, 1] and played.scores.tolist() == played.lengths.tolist()
    assert 1 < played.lengths.min() and played.lengths.max() < Limits().steps


def test_scores_are_the_same_though_a_game_draws_globally() -> None:
    one, two, again, other = (play(uniform(2), "odd:Draws-v0", Protocol(20, seed, envs=5), processes)
                              for processes, seed in ((1, 0), (3, 0), (1, 0), (1, 1)))
    assert equal(one, two) and equal(one, again) and not equal(one, other)
    assert len(set(one.scores)) == 20


def test_scores_are_of_the_innermost_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_environment(configured(game="toy:catch"), 1)
    step = made.step
    monkeypatch.setattr(made, "step", lambda action: step(action)._replace(score=np.full(1, 3.0, np.float32)))
    monkeypatch.setattr("ga3c.evaluation.episodes.make_environment", lambda settings, n_envs: made)
    assert play(uniform(3), "toy:catch", Protocol(1)).scores.tolist() == [27.0]


def test_a_shot_process_is_told_and_none_knows_tensorflow() -> None:
    def shoot(observation: NDArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        players = [process for process in psutil.Process().children() if process not in before]
        assert len(players) == 2
        for player in players:
            assert "tensorflow" not in Path(f"/proc/{player.pid}/maps").read_text()
        players[0].kill()
        return uniform(3)(observation)

    before = psutil.Process().children()
    with pytest.raises(EnvironmentFailed, match="'toy:catch' was ended by SIGKILL while it played"):
        play(shoot, "toy:catch", Protocol(4), processes=2)
    assert psutil.Process().children() == before


@pytest.mark.parametrize("place", ["step", "reset"])
def test_observations_that_are_not_finite_end_an_evaluation(place: str) -> None:
    with pytest.raises(EnvironmentFailed, match="the observation is not finite after step "):
        play(uniform(2), f"odd:Blind-{place}-v0", Protocol(2, 0, False, 1))
