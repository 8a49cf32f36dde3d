"""Environments by name: known, unknown, a user's own; and what all of them keep."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scripted import Make, refusal, transitions

from ga3c.agents.fault_tolerant import FaultTolerantEnvironment
from ga3c.envs.base import Environment
from ga3c.envs.factory import make_environment
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError


# ------------------------------------------------------------------------------------------------ names

@pytest.mark.parametrize(("wrong", "right"), [
    ("Brakeout", "Breakout"), ("ALE/Pongg-v5", "ALE/Pong-v5"), ("CartPole-v99", "CartPole-v1"), ("catch", "toy:catch")])
def test_the_nearest_game_comes_first_when_a_name_is_wrong(wrong: str, right: str) -> None:
    assert refusal(wrong).split("nearest: ")[1].split(", ")[0] == right


def test_a_name_like_no_other_is_told_what_kinds_there_are() -> None:
    assert refusal("zzzzzz") == ("game: no game is called 'zzzzzz'; nearest: "
                                 "an Atari game, a Gymnasium id, module:Id or toy:catch")


@pytest.mark.parametrize("name", ["Q*bert", ":", "/", "nowhere:Id-v0", "CartPole-v1:x"])
def test_a_name_that_is_none_is_refused_in_one_line(name: str) -> None:
    assert repr(name) in refusal(name)


# ------------------------------------------------------------------------------------------------ what all of them keep

@pytest.mark.parametrize("game", ["Pong", "toy:catch", "CartPole-v1"])
@pytest.mark.parametrize("guarded", [False, True])
def test_an_observation_is_shown_where_it_is_wanted_and_nowhere_else(make: Make, game: str, guarded: bool) -> None:
    environment = FaultTolerantEnvironment(lambda: make(game, 3), lambda: None) if guarded else make(game, 3)
    environment.reset(1)
    rows = np.full((3, *environment.observation.shape), 77, environment.observation.dtype)
    for _ in range(5):
        environment.step(np.zeros(3, np.int64))
        environment.show(rows[1])
        np.testing.assert_array_equal(rows[1], environment.observation)
        assert (rows[[0, 2]] == 77).all()


def played(environment: Environment, seed: int) -> bytes:
    environment.reset(seed)
    first = environment.observation.tobytes()
    told = transitions(environment, 150)
    return first + environment.observation.tobytes() + b"".join(t.reward.tobytes() for t in told)


@pytest.mark.parametrize("game", ["Pong", "CartPole-v1", "toy:catch"])
def test_the_same_seed_plays_the_same_episode_and_another_does_not(make: Make, game: str) -> None:
    first, second = make(game, 2), make(game, 2)
    assert played(first, 5) == played(second, 5)
    assert played(first, 6) != played(second, 5)


@pytest.mark.parametrize("game", ["Berzerk", "Kaboom", "CartPole-v1"])  # the first two remember
def test_an_episode_is_fixed_by_its_seed_whatever_was_played_before(make: Make, game: str) -> None:
    environment, fresh = make(game), make(game)
    environment.reset(6)
    transitions(environment, 200)
    assert played(environment, 5) == played(fresh, 5)


@pytest.mark.parametrize("game", ["Pong", "CartPole-v1", "toy:catch"])
def test_every_seed_an_agent_may_draw_can_be_played(make: Make, game: str) -> None:
    for seed in (2**31 - 1, 2**32 - 1):
        make(game, 4).reset(seed)


# ------------------------------------------------------------------------------------------------ a user's own

OWN = """
import gymnasium, numpy
class Own(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (3,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self):
        {init}
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(3, numpy.float32), {{}}
    def step(self, action):
        return numpy.full(3, 0.5, numpy.float32), 2.5, False, False, {{}}
gymnasium.register("Own-v0", Own)
"""


def test_an_environment_in_a_file_where_the_user_stands_can_be_played(user_directory: Path, make: Make) -> None:
    (user_directory / "own_world.py").write_text(OWN.format(init="pass"))
    environment = make("own_world:Own-v0", 2)
    environment.reset(0)
    assert environment.step(np.array([0, 1])).reward.tolist() == [2.5, 2.5]
    assert environment.observation.tolist() == [[0.5] * 3] * 2


@pytest.mark.parametrize("init", ["1 / 0", "raise KeyError('first\\nsecond')"])
def test_an_environment_that_cannot_be_made_is_told_in_one_line(user_directory: Path, init: str) -> None:
    (user_directory / "broken_world.py").write_text(OWN.format(init=init))
    assert refusal("broken_world:Own-v0").startswith("game: 'broken_world:Own-v0' cannot be made: ")


# ------------------------------------------------------------------------------------------------ what fails half way

def test_what_was_made_before_one_failed_is_closed(user_directory: Path) -> None:
    (user_directory / "halves.py").write_text(
        "import gymnasium\nfrom gymnasium.spaces import Box, Discrete\nmade, closed = [], []\n"
        "class Halves(gymnasium.Env):\n    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)\n"
        "    def __init__(self):\n        made.append(self)\n        assert len(made) < 3, 'no third one'\n"
        "    def close(self):\n        closed.append(self)\n"
        "gymnasium.register('Halves-v0', Halves)\n")
    with pytest.raises(ConfigError, match="game: 'halves:Halves-v0' cannot be made: AssertionError: no third one"):
        make_environment(configured(game="halves:Halves-v0"), 4)
    import halves  # type: ignore[import-not-found]
    assert halves.closed == halves.made[:2]
