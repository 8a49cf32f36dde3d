"""What environments give: taken if there is one way to read it; else refused at the check in one line that names it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import odd
import pytest
from gymnasium.spaces import Box
from gymnasium.wrappers import TransformReward
from numpy.typing import NDArray

from ga3c.envs.factory import make_environment
from ga3c.envs.forms import Form, form_of
from ga3c.envs.gymnasium import GymnasiumEnvironment
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError


def play(game: str, steps: int = 5) -> Any:
    """All transitions, of two environments."""
    environment = make_environment(configured(game=f"odd:{game}-v0"), 2)
    environment.reset(3)
    told = [environment.step(np.zeros(2, np.int64)) for _ in range(steps)]
    environment.close()
    return told


# ------------------------------------------------------------------------------------------------ steps

@pytest.mark.parametrize("game", [
    "reward-list", "reward-float32", "reward-true", "reward-array", "ends-int", "ends-array", "info-none", "info-text",
    "info-bare", "reset-info-number", "Infos"])
def test_what_has_one_meaning_is_taken(game: str) -> None:
    told = play(game)
    assert [each.reward.tolist() for each in told] == [[1.0, 1.0]] * 5
    assert [each.terminated.tolist() for each in told] == [[False, False]] * 4 + [[True, True]]
    assert not any(each.truncated.any() for each in told)


@pytest.mark.parametrize(("game", "says"), [
    ("reward-none", "reward is None (NoneType); it is to be one number"),
    ("reward-text", "reward is '1' (str); it is to be one number"),
    ("reward-ragged", "reward is [1.0, [2.0]] (list); it is to be one number"),
    ("reward-huge", "reward is 1000"),
    ("ends-text", "terminated is 'no' (str); it is to be True or False"),
    ("four-values", "step returned 4 values; Gymnasium wants 5: observation, reward, terminated, truncated, info"),
    ("no-values", "step returned None (NoneType); Gymnasium wants 5"),
    ("observation-shape", "an observation is uint8 (3,); its space says (2,)"),
    ("observation-float", "an observation is float64 (2,); it is to be uint8"),
    ("observation-dict", "an observation is object (); its space says (2,)"),
    ("reset-no-info", "reset returned array([0, 0], dtype=uint8) (ndarray); Gymnasium wants 2: observation, info"),
    ("reset-three", "reset returned 3 values; Gymnasium wants 2"),
])
def test_what_has_none_is_named(game: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:
        play(game)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_the_last_observation_of_an_episode_is_its_own_though_all_are_one_array() -> None:
    told = play("Reuses", 9)
    assert [each.truncated.tolist() for each in told] == [[number % 4 == 3] * 2 for number in range(9)]
    for number in (3, 7):
        assert told[number].final_observation.tolist() == [[4, 4], [4, 4]]
    assert told[4].final_observation is None


# ------------------------------------------------------------------------------------------------ pictures

def arranged(shape: tuple[int, ...]) -> tuple[Form, np.ndarray, np.ndarray]:
    """The form of pictures of that shape, such a picture, and what becomes of it."""
    form = form_of("odd", Box(0, 255, shape, np.uint8))
    picture = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    into = np.zeros(form.shape, form.dtype)
    form.take(picture, into)
    return form, picture, into


def side_by_side(frames: NDArray) -> NDArray:
    return np.concatenate(list(frames), 2)


@pytest.mark.parametrize(("given", "arranged_by_hand"), [
    ((84, 80), lambda picture: picture[..., None]), ((84, 80, 3), np.array), ((7, 7, 3), np.array),
    ((210, 160, 3), np.array), ((3, 84, 80), lambda picture: np.moveaxis(picture, 0, 2)),
    ((4, 84, 80), lambda picture: np.moveaxis(picture, 0, 2)), ((1, 84, 80), lambda picture: picture[0, ..., None]),
    ((4, 84, 80, 3), side_by_side), ((4, 84, 80, 1), side_by_side),
    ((4, 3, 84, 80), lambda picture: side_by_side(np.moveaxis(picture, 1, 3)))])
def test_pictures_become_height_width_channels(
        given: tuple[int, ...], arranged_by_hand: Callable[[NDArray], NDArray]) -> None:
    form, picture, seen = arranged(given)
    expected = arranged_by_hand(picture)
    assert (form.space_shape, form.shape, form.dtype) == (given, expected.shape, np.dtype(np.uint8))
    assert np.array_equal(seen, expected)
    assert bool(form.note) == (given[0] in (1, 3, 4)), form.note


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 4), (2, 3, 4, 5, 6)])
def test_other_shapes_are_refused_with_what_is_supported(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="supported: a one-dimensional Box, or a uint8 Box"):
        form_of("odd", Box(0, 255, shape, np.uint8))


# ------------------------------------------------------------------------------------------------ scores

class Skips(gymnasium.Wrapper):
    """Three steps are one, which pays their sum."""

    def step(self, action: int) -> odd.Step:
        total = 0.0
        for _ in range(3):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated:
                break
        return observation, total, terminated, truncated, info


class Warms(gymnasium.Wrapper):
    """Plays a step before the first observation is shown."""

    def reset(self, **options: Any) -> tuple[np.ndarray, dict]:
        self.env.reset(**options)
        observation, _, _, _, info = self.env.step(0)
        return observation, info


halved = functools.partial(TransformReward, func=lambda reward: reward / 2)


@pytest.mark.parametrize(("wrap", "reward", "score"), [
    (lambda env: env, [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]),
    (halved, [.5] * 5, [1] * 5),
    (lambda env: halved(Skips(env)), [1.5, 1, 1.5, 1, 1.5], [3, 2, 3, 2, 3]),
    (lambda env: halved(Warms(env)), [.5] * 5, [1] * 5)])
def test_the_score_is_the_sum_of_the_innermost_rewards(
        wrap: Callable[[gymnasium.Env], gymnasium.Env], reward: list[float], score: list[float]) -> None:
    environment = GymnasiumEnvironment([wrap(odd.Plain())], "odd")
    environment.reset(0)
    told = [environment.step(np.zeros(1, np.int64)) for _ in range(5)]
    assert [each.reward[0] for each in told] == reward
    assert [each.scored[0] for each in told] == score


class Levels(gymnasium.Wrapper):
    """Each episode is played in another environment."""

    def reset(self, **options: Any) -> tuple[np.ndarray, dict]:
        self.env = odd.Plain()
        return self.env.reset(**options)


class TakesTurns(gymnasium.Wrapper):
    """Two environments take turns; the other one is played, too, and pays nobody."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.other = odd.Plain()

    def reset(self, **options: Any) -> tuple[np.ndarray, dict]:
        self.env, self.other = self.other, self.env
        self.other.reset()
        return self.env.reset(**options)

    def step(self, action: int) -> odd.Step:
        self.other.step(action)
        return self.env.step(action)


class Elsewhere(gymnasium.Wrapper):
    """The game is played in another process, say; what is wrapped here only tells its spaces."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._played = odd.Plain()
        self.reset, self.step = self._played.reset, self._played.step  # type: ignore[method-assign]


@pytest.mark.parametrize("wrap", [
    lambda env: halved(Levels(env)), lambda env: halved(TakesTurns(env)), lambda env: halved(halved(Elsewhere(env)))])
def test_the_score_is_of_what_is_played_now_or_of_the_wrapper(wrap: Callable[[gymnasium.Env], gymnasium.Env]) -> None:
    environment = GymnasiumEnvironment([wrap(odd.Plain())], "odd")
    environment.reset(0)
    told = [environment.step(np.zeros(1, np.int64)) for _ in range(22)]
    assert {float(each.scored[0]) for each in told} == ({1.0} if told[0].reward[0] == 0.5 else {0.25})


def test_what_cannot_be_listened_to_scores_what_its_wrapper_gives() -> None:
    environment = GymnasiumEnvironment([halved(odd.Slotted())], "odd")
    environment.reset(0)
    assert [environment.step(np.zeros(1, np.int64)).scored[0] for _ in range(5)] == [0.5] * 5
