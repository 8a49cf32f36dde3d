"""Random steps before learning begins: each environment its own number, counted nowhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from counting import decode, successor
from hypothesis import given
from hypothesis import strategies as st

from ga3c.agents.random_start import play_randomly
from ga3c.envs.factory import make_environment
from ga3c.settings.files import configured


def seed() -> np.random.SeedSequence:
    return np.random.SeedSequence(3, spawn_key=(1, 1, 0))


def after(moment: tuple[int, int], steps: int) -> tuple[int, int]:
    for _ in range(steps):
        moment = successor(moment)
    return moment


@given(st.integers(1, 5), st.integers(0, 40))
def test_each_environment_takes_its_own_number_of_steps_in_the_end(n_envs: int, most: int) -> None:
    numbers = [int(np.random.default_rng(child).integers(most + 1)) for child in seed().spawn(n_envs)]
    environment, signs = make_environment(configured(game="toy:counting"), n_envs), list[int]()
    environment.reset(7)
    mixed = play_randomly(environment, n_envs, most, seed(), lambda: signs.append(1))
    for index, (number, stands) in enumerate(zip(numbers, decode(environment.observation).tolist(), strict=True)):
        episode, _ = after((0, 0), max(numbers) - number)
        begun = (0, 0) if number == max(numbers) else (episode + 1, 0)  # it began anew, whatever it had played
        assert stands == [7 + index, *after(begun, number)]
        assert mixed[index] == (stands[2] > 0), "a whole episode counts"
    assert len(signs) > max(numbers)


@pytest.mark.parametrize("game", ["toy:catch", "Pong"])
def test_the_same_seed_gives_the_same_start_and_environments_differ(game: str) -> None:
    def start() -> Any:
        # Not our emulator: it would be compiled here, which takes half a minute.
        environment = make_environment(configured(game=game, noop_max=0, emulator="ale"), 3)
        environment.reset(5)
        play_randomly(environment, 3, 60, seed())
        return environment.observation

    one, other = start(), start()
    np.testing.assert_array_equal(one, other)
    assert any((one[0] != each).any() for each in one[1:])


def test_actions_are_those_there_are_and_drawn_anew() -> None:
    environment = make_environment(configured(game="toy:catch"), 2)
    environment.reset(0)
    step, seen = environment.step, list[Any]()
    environment.step = lambda action: (seen.append(action), step(action))[1]  # type: ignore[method-assign]
    play_randomly(environment, 2, 300, seed())
    last = np.array(seen[-30:])
    assert set(last.ravel().tolist()) == {0, 1, 2} and (last[:, 0] != last[:, 1]).any()
