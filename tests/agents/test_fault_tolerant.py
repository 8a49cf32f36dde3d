"""Environments that fail are replaced; what they were playing is dropped; nothing that is not finite gets through."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from ga3c.agents.fault_tolerant import RETRIES, FaultTolerantEnvironment, NotFinite
from ga3c.envs.base import EnvSpec, State, Transition
from ga3c.envs.factory import make_environment
from ga3c.settings.files import configured

SAME = Transition(np.zeros(2, np.float32), *np.zeros((3, 2), np.bool_), None)
Step = Callable[[], Transition]


class Script:
    """Two environments whose steps do what `steps` say, over all that were made; then nothing happens any more."""

    spec = EnvSpec("script", (3,), np.dtype(np.float32), 2, 1)

    def __init__(self, steps: list[Step], seeds: list[int], closed: list[int]) -> None:
        self._steps, self._seeds, self._closed = steps, seeds, closed
        self.observation = np.zeros((2, 3), np.float32)

    def reset(self, seed: int) -> None:
        self._seeds.append(seed)

    def step(self, action: NDArray[np.int64]) -> Transition:
        return self._steps.pop(0)() if self._steps else SAME

    def restart(self, number: int) -> None:
        if self._steps:
            self._steps.pop(0)()

    def show(self, into: NDArray) -> None:
        into[:] = self.observation

    def state(self) -> State | None:
        return None

    def restore(self, state: State) -> None:
        raise ValueError

    def close(self) -> None:
        self._closed.append(1)
        raise RuntimeError("what failed may fail again")


class Play:
    """What became of an environment whose steps are `steps`."""

    def __init__(self, *steps: Step) -> None:
        self.seeds, self.closed, self.failures = [], [], []
        left = list(steps)
        self.environment = FaultTolerantEnvironment(
            lambda: Script(left, self.seeds, self.closed), lambda: self.failures.append(1))
        self.environment.reset(2**31 - 2)

    def step(self) -> Transition:
        return self.environment.step(np.zeros(2, np.int64))


def crash() -> Transition:
    raise RuntimeError("the emulator lost its mind")


def rewarding(*reward: float) -> Step:
    return lambda: SAME._replace(reward=np.array(reward, np.float32))


def ending(value: float) -> Step:
    return lambda: SAME._replace(truncated=np.ones(2, np.bool_), final_observation=np.full((2, 3), value, np.float32))


@pytest.mark.parametrize("fault", [
    crash, rewarding(0, np.nan), rewarding(np.inf, 0), rewarding(0, -1e30), ending(np.nan), ending(1e30)])
def test_an_environment_that_fails_is_replaced_and_its_episodes_are_dropped(fault: Step) -> None:
    play = Play(rewarding(1, 2), fault, rewarding(3, 4))
    assert play.step().reward.tolist() == [1, 2]
    dropped = play.step()
    assert dropped.dropped and dropped.truncated.all() and dropped.final_observation is None
    assert not (dropped.terminated.any() or dropped.score_ended.any() or dropped.reward.any())
    assert len(play.failures) == len(play.closed) == 1
    assert len(set(play.seeds)) == 2 and all(0 <= seed < 2**31 for seed in play.seeds)
    assert play.step().reward.tolist() == [3, 4]


def test_an_observation_that_is_not_finite_is_a_failure_at_once_and_after_a_reset() -> None:
    play = Play()
    play.environment.observation[1, 2] = np.nan
    assert play.step().dropped and not play.step().dropped
    play.environment.observation[0, 0] = -1e25
    with pytest.raises(NotFinite, match=r"an observation after reset is not finite or too large: \[-1.*of environments "
                                        r"\[0\] of 2, counted from 0"):
        play.environment.reset(0)


def test_large_but_usable_numbers_are_no_failure() -> None:
    assert not Play(rewarding(1e18, -1e18)).step().dropped
    assert not Play(ending(1e18)).step().dropped


def test_failures_in_a_row_are_raised_and_one_good_step_between_is_enough() -> None:
    play = Play(*[crash] * RETRIES, rewarding(0, 0), *[crash] * (RETRIES + 1))
    assert [play.step().dropped for _ in range(2 * RETRIES + 1)] == [True] * RETRIES + [False] + [True] * RETRIES
    with pytest.raises(RuntimeError, match="lost its mind"):
        play.step()
    assert len(play.failures) == 2 * RETRIES


def test_what_making_it_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        FaultTolerantEnvironment(lambda: 1 / 0, lambda: None)


def test_without_failures_it_is_as_if_it_was_not_there() -> None:
    def make() -> FaultTolerantEnvironment:
        return FaultTolerantEnvironment(lambda: make_environment(configured(game="toy:counting"), 2), lambda: None)

    guarded, plain = make(), make_environment(configured(game="toy:counting"), 2)
    for environment in (guarded, plain):
        environment.reset(5)
    for _ in range(30):
        told, expected = guarded.step(np.zeros(2, np.int64)), plain.step(np.zeros(2, np.int64))
        assert [np.array_equal(one, other) for one, other in zip(told, expected, strict=True)] == [True] * len(told)
        np.testing.assert_array_equal(guarded.observation, plain.observation)
    again = make()
    again.reset(0)
    again.restore(guarded.state())
    np.testing.assert_array_equal(again.observation, plain.observation)
    for environment in (guarded, plain, again):
        environment.close()


def test_after_a_restore_the_next_ones_begin_with_the_seed_that_was_next() -> None:
    class Saves(Script):
        def state(self) -> State | None:
            return {"place": np.zeros(1)}

        def restore(self, state: State) -> None:
            assert state.keys() == {"place"}

    def fails() -> Transition:
        raise RuntimeError

    seeds = list[int]()
    first, again = (FaultTolerantEnvironment(lambda: Saves([fails], seeds, []), lambda: None) for _ in range(2))
    first.reset(5)
    first.step(np.zeros(2, np.int64))
    again.reset(5)
    again.restore(first.state() or {})
    again.step(np.zeros(2, np.int64))
    assert np.diff(seeds).tolist() == [7919, -7919, 2 * 7919]


def test_a_replacement_that_cannot_begin_is_one_more_failure_and_is_replaced_in_turn() -> None:
    begun = []

    class Reluctant(Script):
        def reset(self, seed: int) -> None:
            begun.append(seed)
            if 2 <= len(begun) <= failing:
                raise SystemExit("not now")

    for failing, raises in ((4, False), (99, True)):
        begun.clear()
        failures: list[int] = []
        steps = [crash]
        environment = FaultTolerantEnvironment(
            lambda: Reluctant(steps, [], []), lambda: failures.append(1))  # noqa: B023
        environment.reset(0)
        if raises:
            with pytest.raises(SystemExit):
                environment.step(np.zeros(2, np.int64))
            assert (environment.given_up, len(failures)) == (True, RETRIES)
        else:
            assert environment.step(np.zeros(2, np.int64)).dropped
            assert (environment.given_up, len(failures), len(set(begun))) == (False, 4, 5)


def test_an_environment_that_fails_to_begin_anew_is_replaced() -> None:
    play = Play(crash, rewarding(1, 2))
    play.environment.restart(1)
    assert len(play.failures) == 1 and len(play.seeds) == 2 and play.step().reward.tolist() == [1, 2]
