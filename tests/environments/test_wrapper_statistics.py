"""Wrappers that keep running statistics: merged over agents, in checkpoints and policies, used by evaluations."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from command_line import Command
from gymnasium.spaces import Box, Discrete
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from hypothesis import given
from hypothesis import strategies as st

from ga3c.agents.fault_tolerant import FaultTolerantEnvironment
from ga3c.envs.gymnasium import GymnasiumEnvironment
from ga3c.envs.wrapper_statistics import (
    SAVED, Statistics, WrapperStatistics, cannot_be_kept, count_numbers, freeze, merged, since,
    unsaved_attributes, wrapper_names)
from ga3c.learner import checkpoint
from ga3c.settings.messages import ConfigError

numbers = st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=20)


def seen(values: list[float]) -> Statistics:
    return np.array([[len(values), np.mean(values), np.var(values) * len(values)]])


@given(numbers, numbers)
def test_merged_statistics_are_those_of_all_that_was_seen(first: list[float], second: list[float]) -> None:
    np.testing.assert_allclose(merged(seen(first), seen(second)), seen(first + second), rtol=1e-6, atol=1e-3)


@given(numbers, numbers)
def test_what_was_seen_since_is_what_the_second_saw(first: list[float], second: list[float]) -> None:
    np.testing.assert_allclose(since(seen(first + second), seen(first)), seen(second), rtol=1e-6, atol=1e-1)


class Far(gymnasium.Env):
    """Observations 5,000 + 1 or - 1."""

    observation_space, action_space = Box(-np.inf, np.inf, (1,), np.float32), Discrete(2)

    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        super().reset(seed=seed)
        return self.look(), {}

    def look(self) -> np.ndarray:
        return np.array([5000 + self.np_random.choice([-1, 1])], np.float32)

    def step(self, action):  # type: ignore[no-untyped-def]
        return self.look(), 1.0, bool(self.np_random.random() < 0.1), False, {}


def environment(n: int = 3) -> GymnasiumEnvironment:
    return GymnasiumEnvironment([NormalizeReward(NormalizeObservation(Far())) for _ in range(n)], "far")


def played(made: GymnasiumEnvironment, steps: int, seed: int) -> None:
    made.reset(seed)
    for _ in range(steps):
        made.step(np.zeros(len(made.envs), np.int64))


def test_statistics_of_two_agents_are_merged_and_given_to_a_third() -> None:
    agents = []
    for seed in (1, 2):
        agent, made = WrapperStatistics(), environment()
        agent.follow(made)
        played(made, 50, seed)
        agents.append(agent.seen())
    whole = functools.reduce(merged, agents)
    assert count_numbers(environment()) == len(whole) == 2
    assert wrapper_names(environment()) == ["NormalizeReward", "NormalizeObservation"]
    assert whole[1, 0] == pytest.approx(2 * 3 * 51, rel=0.2)  # and an observation for each episode that began
    assert whole[1, 1] == pytest.approx(5000, abs=0.3) and whole[1, 2] / whole[1, 0] == pytest.approx(1, abs=0.1)
    third = WrapperStatistics(whole)
    made = environment()
    third.follow(made)
    made.reset(3)
    assert 0.5 < np.abs(made.observation).min() and np.abs(made.observation).max() < 1.5  # normalised at once
    assert third.seen()[1, 0] == 3  # only what it saw itself


def test_environments_that_are_replaced_are_not_forgotten() -> None:
    agent = WrapperStatistics()
    for seed in (1, 2):
        made = environment(1)
        agent.follow(made)
        played(made, 20, seed)
    assert agent.seen()[1, 0] >= 42


def test_frozen_wrappers_learn_nothing() -> None:
    made, statistics = environment(), np.array([[9.0, 0.0, 9.0], [9.0, 5000.0, 9.0]])
    freeze(made, statistics)
    played(made, 30, 1)
    kept = made.envs[0].env.env.obs_rms  # type: ignore[attr-defined]
    assert kept.count == 9 and kept.mean == 5000
    assert set(np.abs(made.observation).ravel().tolist()) == {1.0}


def test_statistics_of_other_wrappers_are_refused() -> None:
    with pytest.raises(ConfigError, match="statistics of 7 numbers were saved"):
        freeze(environment(), np.ones((7, 3)))


class Scales(gymnasium.RewardWrapper):
    """Divides rewards by the largest so far."""

    largest, last = 1e-9, 0.0

    def reset(self, **kwargs):  # type: ignore[no-untyped-def]
        self.largest, self.last = max(self.largest, self.last), 0.0
        return super().reset(**kwargs)

    def reward(self, reward):  # type: ignore[no-untyped-def]
        self.last = float(reward)
        return reward / max(self.largest, reward)


def test_what_a_wrapper_carries_on_and_nobody_saves_is_found() -> None:
    assert unsaved_attributes(GymnasiumEnvironment([Scales(Far())], "far"), 1) == ["Scales.largest"]
    assert unsaved_attributes(environment(1), 1) == []


@pytest.mark.parametrize("serial", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_run_keeps_them_in_checkpoints_and_its_evaluation_uses_them(
        tmp_path: Path, train_here: Command, evaluate_here: Command, serial: bool) -> None:
    run = tmp_path / "run"
    trained = train_here(
        "--game", "odd:Signs-v0", "--wrappers", "gymnasium.wrappers:NormalizeObservation", "--run-dir", str(run),
        "--seed", "1", "--steps", "12000", "--agents", "2", "--envs-per-agent", "4", "--no-tensorboard",
        "--no-remember", "--learning-rate", "0.002", "--learning-rate-final", "null", "--training-batch-min", "40",
        "--rollout-length", "5", "--serial" if serial else "--no-dynamic")
    assert trained.returncode == 0, trained.stderr
    assert "NormalizeObservation keeps running statistics" in trained.stdout
    count, mean, squares = checkpoint.newest(run / "checkpoints")[0].arrays[SAVED][0]
    assert count > 12_000 and mean == pytest.approx(5000, abs=0.1) and squares / count == pytest.approx(1, abs=0.05)
    scored = evaluate_here(str(run), "--json", "--episodes", "10")
    assert scored.returncode == 0, scored.stderr
    assert json.loads(scored.stdout)["mean"] > 8
    if serial:
        return
    resumed = train_here("--resume", str(run), "--steps", "14000")
    assert resumed.returncode == 0, resumed.stderr
    assert checkpoint.newest(run / "checkpoints")[0].arrays[SAVED][0, 0] > count + 1000


@pytest.mark.parametrize(("normalize", "which"), [(NormalizeObservation, 0), (NormalizeReward, 1)])
def test_one_number_that_is_not_finite_is_not_in_the_statistics(normalize: type, which: int) -> None:
    class Once(Far):
        """One step of all gives an observation, or a reward, that is no number."""

        steps = 0

        def step(self, action):  # type: ignore[no-untyped-def]
            Once.steps += 1
            found = list(super().step(action))
            if Once.steps == 50:
                found[which] = found[which] * np.float32("nan")
            return tuple(found)

    def make() -> GymnasiumEnvironment:
        made = GymnasiumEnvironment([normalize(Once()) for _ in range(2)], "once")
        statistics.follow(made)
        return made

    faults, statistics = [], WrapperStatistics()
    agent = FaultTolerantEnvironment(make, lambda: faults.append(1))
    agent.reset(0)
    dropped = 0
    for _ in range(100):
        before = statistics.seen()[0, 0]
        dropped += agent.step(np.zeros(2, np.int64)).dropped
        assert np.isfinite(statistics.seen()).all() and statistics.seen()[0, 0] >= before
    assert dropped == len(faults) == 1 and statistics.seen()[0, 0] >= 190


class Counts:
    """A running mean and variance of a user's own, which learns by `push`."""

    def __init__(self) -> None:
        self.mean, self.var, self.count = np.zeros(1), np.ones(1), 1e-4

    def push(self, value: np.ndarray) -> None:
        self.count += 1
        self.mean = self.mean + (value - self.mean) / self.count


class Slotted:
    """Takes no other attributes."""

    __slots__ = ("count", "mean", "var")
    __init__, push = Counts.__init__, Counts.push


class Scalar(Counts):
    """Has the form of what it sees only once it has seen it."""

    def __init__(self) -> None:
        self.mean, self.var, self.count = 0.0, 1.0, 1e-4  # type: ignore[assignment]

    def push(self, value: np.ndarray) -> None:
        super().push(np.repeat(value, 4))
        self.var = np.ones(4)


class Welford(Counts):
    """Computes its variance."""

    def __init__(self) -> None:
        self.mean, self.squares, self.count = np.zeros(1), np.ones(1), 1.0

    @property
    def var(self) -> np.ndarray:  # type: ignore[override]
        return self.squares / self.count


class Counting(gymnasium.ObservationWrapper):
    def __init__(self, env: gymnasium.Env, kind: type[Counts], lazy: bool = False) -> None:
        super().__init__(env)
        self.kept, self.kind = None if lazy else kind(), kind

    def observation(self, observation):  # type: ignore[no-untyped-def]
        self.kept = self.kept or self.kind()
        self.kept.push(observation)
        return observation


def counting(kind: type[Counts], lazy: bool = False) -> GymnasiumEnvironment:
    return GymnasiumEnvironment([Counting(Far(), kind, lazy)], "far")


@pytest.mark.parametrize(("kind", "lazy", "why_not"), [
    (Counts, False, ""), (Slotted, False, ""), (Scalar, False, "get their shape only after the first step"),
    (Counts, True, "get their shape only after the first step")])
def test_what_agents_could_not_begin_with_is_not_kept(kind: type[Counts], lazy: bool, why_not: str) -> None:
    made = counting(kind, lazy)
    played(made, 3, 1)
    assert count_numbers(made) and cannot_be_kept(made, count_numbers(counting(kind, lazy))) == why_not
    if not why_not:
        WrapperStatistics(np.zeros((1, 3))).follow(counting(kind))


def test_a_variance_that_is_computed_is_none_that_can_be_kept() -> None:
    made = counting(Welford)
    played(made, 3, 1)
    assert count_numbers(made) == 0
    freeze(made, None)


@pytest.mark.parametrize("kind", [Counts, Slotted])
def test_whatever_their_way_to_learn_frozen_wrappers_do_not(kind: type[Counts]) -> None:
    made = counting(kind)
    kept = made.envs[0].kept  # type: ignore[attr-defined]
    freeze(made, np.array([[9.0, 5000.0, 9.0]]))
    played(made, 30, 1)
    assert (kept.count, kept.mean.tolist(), kept.var.tolist()) == (9, [5000], [1])
