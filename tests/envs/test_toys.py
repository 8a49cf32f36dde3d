"""The toy worlds: a perfect player earns what they promise, chance does not."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.typing import NDArray

from ga3c.envs.toys import TOYS, Catch, Counting, Identity, LastStepReward

Player = Callable[[NDArray], int]


def episode(world: gymnasium.Env, player: Player, seed: int) -> list[float]:
    observation, _ = world.reset(seed=seed)
    rewards, over = [], False
    while not over:
        observation, reward, terminated, truncated, _ = world.step(player(observation))
        rewards.append(float(reward))
        over = terminated or truncated
    return rewards


def catcher(observation: NDArray) -> int:
    board = observation.reshape(Catch.ROWS, Catch.COLUMNS)
    ball, paddle = board[:-1].max(axis=0).argmax(), board[-1].argmax()
    return 1 + int(np.sign(ball - paddle))


def repeats_symbol(observation: NDArray) -> int:
    return int(observation[-LastStepReward.SYMBOLS:].argmax())


def names_symbol(observation: NDArray) -> int:
    return int(observation.argmax())


PERFECT = [(Catch, catcher), (LastStepReward, repeats_symbol), (Identity, names_symbol)]


@pytest.mark.parametrize(("world", "player"), PERFECT)
@examples(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**31 - 1))
def test_a_perfect_player_always_earns_the_best_return(world: type[gymnasium.Env], player: Player, seed: int) -> None:
    assert sum(episode(world(), player, seed)) == world.BEST_RETURN


@examples(deadline=None, max_examples=20)
@given(agent=st.integers(0, 2**32 - 1))
def test_counting_says_who_which_episode_and_which_step(agent: int) -> None:
    world = Counting()
    observation, _ = world.reset(seed=agent)
    for number in range(12):
        time, terminated, truncated = 0, False, False
        while not (terminated or truncated):
            assert observation.view("<u4").tolist() == [agent, number, time]
            observation, reward, terminated, truncated, _ = world.step(0)
            time += 1
            assert reward == time
        assert time == Counting.length(number)
        assert (terminated, truncated) == (number % 2 == 0, number % 2 == 1)
        observation, _ = world.reset()


@pytest.mark.parametrize("name", TOYS)
def test_a_toy_keeps_the_gymnasium_interface(name: str) -> None:
    check_env(TOYS[name](), skip_render_check=True)
