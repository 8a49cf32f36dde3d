"""Gymnasium's environments: every fact an agent gets, against gymnasium played directly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from numpy.typing import NDArray
from plain import Plain, Step
from scripted import Make, play_alike, refusal, transitions

from ga3c.envs import toys
from ga3c.envs.factory import make_environment
from ga3c.envs.gymnasium import GymnasiumEnvironment
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError


# ------------------------------------------------------------------------------------------------ spaces

@pytest.mark.parametrize(("game", "told"), [
    ("Pendulum-v1", "Pendulum-v1: actions are Box(-2.0, 2.0, (1,), float32); supported: Discrete"),
    ("FrozenLake-v1", "FrozenLake-v1: observations are Discrete(16); supported: a one-dimensional Box, "
                      "or a uint8 Box of height x width x channels")])
def test_an_unsupported_space_is_told_with_what_is_supported(game: str, told: str) -> None:
    assert told in refusal(game)


@pytest.mark.parametrize("unsupported", [
    {"space": Box(0, 1, (4, 4), np.float32)}, {"space": Dict({"a": Box(0, 1, (3,))})},
    {"actions": MultiDiscrete([2, 2])}])
def test_other_unsupported_spaces_are_refused(
        register: Callable[..., str], unsupported: dict[str, gymnasium.Space]) -> None:
    with pytest.raises(ConfigError, match="supported: "):
        make_environment(configured(game=register(**unsupported)), 1)


@pytest.mark.parametrize(("space", "dtype"), [
    (Box(-1, 1, (3,), np.float64), "float32"), (Box(0, 9, (3,), np.int64), "float32"),
    (Box(0, 255, (3,), np.uint8), "uint8"), (Box(0, 255, (40, 50, 3), np.uint8), "uint8")])
def test_vectors_become_float32_unless_they_are_bytes(
        register: Callable[..., str], make: Make, space: Box, dtype: str) -> None:
    environment = make(register(space=space), 2)
    environment.reset(0)
    environment.step(np.array([0, 0]))
    assert environment.spec.observation_shape == space.shape
    assert environment.spec.observation_dtype == environment.observation.dtype == np.dtype(dtype)
    assert (environment.observation == 1).all()


def test_actions_count_from_where_the_space_begins(register: Callable[..., str], make: Make) -> None:
    environment = make(register(actions=Discrete(3, start=-1)), 3)
    environment.reset(0)
    environment.step(np.array([0, 1, 2]))
    assert environment.spec.n_actions == 3
    assert environment.observation[:, 0].tolist() == [1 - 10, 1, 1 + 10]


class Strict(Plain):
    """Takes only actions that its space holds."""

    def __init__(self, **arguments: object) -> None:
        super().__init__()
        self.action_space = Discrete(3, start=-1, dtype=np.int32)

    def step(self, action: int) -> Step:
        assert self.action_space.contains(action)
        return super().step(action)


def test_actions_have_the_dtype_of_their_space() -> None:
    made = GymnasiumEnvironment([Strict()], "strict")
    made.reset(0)
    for action in range(3):
        made.step(np.array([action]))


class Starts(gymnasium.Wrapper):
    """An episode begins with some random steps, and shows a random observation."""

    def reset(self, **options: Any) -> tuple[np.ndarray, dict]:
        self.env.reset(**options)
        for _ in range(3):
            self.env.step(self.env.action_space.sample())
        return self.observation_space.sample(), {}


def test_what_is_sampled_from_spaces_is_fixed_by_the_seed_too() -> None:
    shown = []
    for seed in (1, 1, 2):
        made = GymnasiumEnvironment([Starts(Plain()) for _ in range(2)], "starts")
        for _ in range(2):
            made.reset(seed)
            shown.append(made.observation.tolist())
    assert shown[0] == shown[1] == shown[2] == shown[3] != shown[4] and shown[0][0] != shown[0][1]


class OfItsClass(Plain):
    """Its spaces are its class's, and it draws from one."""

    action_space, observation_space = Discrete(2), Box(0, 255, (2,), np.uint8)

    def __init__(self) -> None:
        self.render_mode, self.time = None, 0

    def seen(self) -> np.ndarray:
        return self.observation_space.sample()


class OfItsModule(Plain):
    """All environments have the same spaces, and draw from one."""

    SPACES = Discrete(2), Box(0, 255, (2,), np.uint8)

    def __init__(self) -> None:
        super().__init__()
        self.action_space, self.observation_space = self.SPACES

    def seen(self) -> np.ndarray:
        return self.observation_space.sample()


class Spaceless(gymnasium.Env):
    """Only its wrapper says what its spaces are."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(2, np.uint8), {}

    def step(self, action: int) -> Step:
        return np.zeros(2, np.uint8), 1.0, False, False, {}


class SaysSpaces(gymnasium.Wrapper):
    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.action_space, self.observation_space = Discrete(2), Box(0, 255, (2,), np.uint8)


@pytest.mark.parametrize("kind", [OfItsClass, OfItsModule])
def test_each_environment_draws_from_spaces_of_its_own_where_it_has_any(kind: Callable[[], gymnasium.Env]) -> None:
    both, alone = GymnasiumEnvironment([kind(), kind()], "both"), GymnasiumEnvironment([kind()], "alone")
    shown = []
    for made in (both, alone):
        made.reset(1)
        seen = [made.observation[0].tolist()]
        for _ in range(3):
            made.step(np.zeros(len(made.envs), np.int64))
            seen.append(made.observation[0].tolist())
        shown.append(seen)
    assert shown[0] == shown[1]
    GymnasiumEnvironment([SaysSpaces(Spaceless())], "spaceless").reset(1)


@pytest.mark.parametrize(("attribute", "space", "told"), [
    ("action_space", Discrete(3), r"actions are Discrete\(2\) in one environment and Discrete\(3\) in another"),
    ("observation_space", Box(0.0, 255.0, (2,), np.float32), "observations are Box")])
def test_environments_that_differ_are_refused(attribute: str, space: gymnasium.Space, told: str) -> None:
    envs = [Plain(), Plain()]
    setattr(envs[1], attribute, space)
    with pytest.raises(ConfigError, match=f"^odd: {told}"):
        GymnasiumEnvironment(envs, "odd")


def test_all_are_closed_though_one_fails_to() -> None:
    closed = []

    class Closes(Plain):
        def close(self) -> None:
            closed.append(self)
            if len(closed) < 3:
                raise BrokenPipeError(f"number {len(closed)}")

    made = GymnasiumEnvironment([Closes() for _ in range(3)], "closes")
    with pytest.raises(BrokenPipeError, match="number 1"):
        made.close()
    assert closed == made.envs


# ------------------------------------------------------------------------------------------------ playing

def balance(observation: NDArray) -> int:
    return int(observation[2] + 0.5 * observation[3] + 0.01 * observation[0] + 0.05 * observation[1] > 0)


def test_a_truncated_cart_pole_hands_out_its_last_observation(make: Make) -> None:
    environment, plain = make("CartPole-v1", 2), gymnasium.make("CartPole-v1")
    environment.reset(20)
    observation, _ = plain.reset(seed=20)
    for step in range(1, 501):
        np.testing.assert_array_equal(environment.observation[0], observation)
        action = balance(observation)
        observation, _, terminated, truncated, _ = plain.step(action)
        told = environment.step(np.array([action, balance(environment.observation[1])]))
        assert not terminated
        assert told.truncated[0] == told.score_ended[0] == truncated == (step == 500)
    assert told.final_observation is not None
    np.testing.assert_array_equal(told.final_observation[0], observation)
    assert np.abs(environment.observation[0]).max() <= 0.05


@pytest.mark.parametrize(("terminates", "truncates"), [(True, True), (True, False), (False, True)])
def test_an_episode_that_also_terminates_is_not_truncated(
        register: Callable[..., str], make: Make, terminates: bool, truncates: bool) -> None:
    environment = make(register(terminates=terminates, truncates=truncates), 2)
    environment.reset(0)
    told = [environment.step(np.array([1, 0])) for _ in range(4)][-1]
    assert told.terminated.tolist() == [terminates] * 2
    assert told.truncated.tolist() == [truncates and not terminates] * 2
    assert told.score_ended.tolist() == [True, True]
    assert environment.observation.tolist() == [[0, 0], [0, 0]]
    if terminates:
        assert told.final_observation is None
    else:
        assert told.final_observation is not None
        assert told.final_observation.tolist() == [[14, 14], [4, 4]]


# ------------------------------------------------------------------------------------------------ state

@pytest.mark.parametrize("toy", toys.TOYS)
def test_toys_save_their_state_and_go_on_in_another_object_to_the_bit(make: Make, toy: str) -> None:
    one, other = make(f"toy:{toy}", 3), make(f"toy:{toy}", 3)
    one.reset(5)
    other.reset(6)
    transitions(one, 100)
    saved = one.state()
    assert saved is not None and all(array.dtype.kind in "iuf" for array in saved.values())
    other.restore(saved)
    play_alike(one, other, 100, 1)


def test_any_other_environment_has_no_state_to_save(
        make: Make, monkeypatch: pytest.MonkeyPatch, register: Callable[..., str]) -> None:
    monkeypatch.setattr(toys, "TOYS", {**toys.TOYS, "wrapped": lambda: gymnasium.wrappers.TimeLimit(toys.Catch(), 9)})
    for game in ("CartPole-v1", register(), "toy:wrapped"):
        environment = make(game, 2)
        environment.reset(0)
        assert environment.state() is None
        with pytest.raises(ValueError, match="cannot be restored"):
            environment.restore({})


@pytest.mark.parametrize(("change", "told"), [
    (lambda saved: saved.pop("observation"), "its arrays are"),
    (lambda saved: saved.update(observation=saved["observation"].astype(np.float64)), "observation is float64"),
    (lambda saved: saved.update({"environments.position": np.zeros((3, 2), np.int64)}), "instead of int64"),
    (lambda saved: saved.update({"environments.generator": saved["environments.generator"].astype(np.int64)}),
     "instead of uint64")])
def test_a_state_that_is_not_of_these_environments_is_refused(
        make: Make, change: Callable[[dict], object], told: str) -> None:
    environment = make("toy:catch", 3)
    environment.reset(0)
    saved = environment.state()
    change(saved)
    with pytest.raises(ValueError, match=told):
        environment.restore(saved)
