"""For tests of environments: one whose episodes are as the test wants them, and what plays and probes any."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from ga3c.envs.base import Environment, Transition
from ga3c.envs.check import probe
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError

Make = Callable[..., Environment]


class Scripted(gymnasium.Env):
    """Episodes of four steps; how they end, what is seen and what may be done is up to the test."""

    def __init__(self, terminates: bool = False, truncates: bool = False, space: gymnasium.Space | None = None,
                 actions: gymnasium.Space | None = None) -> None:
        self.observation_space = space or Box(-100.0, 100.0, (2,), np.float64)
        self.action_space = actions or Discrete(2)
        self.terminates, self.truncates = terminates, truncates
        self.time = self.action = 0

    def observation(self) -> NDArray:
        return np.full(self.observation_space.shape, self.time + 10 * self.action, self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        self.time = self.action = 0
        return self.observation(), {}

    def step(self, action: int) -> tuple[NDArray, float, bool, bool, dict]:
        self.time, self.action = self.time + 1, int(action)
        over = self.time == 4
        return self.observation(), 0.0, over and self.terminates, over and self.truncates, {}


def refusal(game: str) -> str:
    """The one line with which `game` is refused."""
    with pytest.raises(ConfigError) as caught:
        probe(configured(game=game))
    message = str(caught.value)
    assert message.splitlines() == [message]
    return message


def transitions(environment: Environment, n: int, seed: int = 0) -> list[Transition]:
    """What `n` steps of random actions give."""
    rng = np.random.default_rng(seed)
    n_envs = len(environment.observation)
    return [environment.step(rng.integers(environment.spec.n_actions, size=n_envs)) for _ in range(n)]


def same(one: Transition, other: Transition) -> bool:
    """Whether two transitions are equal to the bit."""
    def plain(transition: Transition) -> list[object]:
        return [field.tobytes() if isinstance(field, np.ndarray) else field for field in transition]

    return plain(one) == plain(other)


def play_alike(one: Environment, other: Environment, steps: int, seed: int = 0) -> None:
    """Two environments give and show the same to the bit, from now on and in each step of random actions."""
    rng = np.random.default_rng(seed)
    np.testing.assert_array_equal(one.observation, other.observation)
    for step in range(steps):
        action = rng.integers(one.spec.n_actions, size=len(one.observation))
        assert same(one.step(action), other.step(action)), step
        np.testing.assert_array_equal(one.observation, other.observation, f"step {step}")


def goes_on_elsewhere(make: Make, game: str, n_envs: int, before: int, after: int, **changed: object) -> None:
    """A new Atari environment that is given the state goes on to the bit as the one that gave it."""
    one, other = make(game, n_envs, **changed), make(game, n_envs, **changed)
    one.reset(3)
    other.reset(77)
    transitions(other, 3)
    transitions(one, before)
    saved = one.state()
    other.restore(saved)
    assert all(array.dtype.kind in "iu" for array in saved.values())
    for name, array in other.state().items():
        if (game, name) != ("MiniatureGolf", "emulators"):  # reading its cartridge changes it
            np.testing.assert_array_equal(array, saved[name], name)
    play_alike(one, other, after, 1)
    assert (one.lives, one.state().keys()) == (other.lives, saved.keys())
