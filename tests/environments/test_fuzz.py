"""Environments drawn at random, in serial mode: any exception is one the service knows; what slots get can be learned.

GA3C_FUZZ says how many cases there are, 400 without it.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from effects import EFFECTS
from given import RESETS, STEPS
from gymnasium import spaces
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ga3c.algorithms.acting import BY_POLICY
from ga3c.envs.base import Environment
from ga3c.envs.containment import EnvironmentFailed, ProcessState
from ga3c.envs.gymnasium import GymnasiumEnvironment
from ga3c.service import serial_agents
from ga3c.service.agent_pool import AgentsLost
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field
from ga3c.transport.slots import Batch

CASES = int(os.environ.get("GA3C_FUZZ", "400"))
SETTINGS = configured(serial=True, agents=2, envs_per_agent=2, rollout_length=3, training_batch_min=6)

# Most of what is drawn can be played, or little else would be tried.
shapes = st.sampled_from([(3, 8, 8), (8, 8), (2, 8, 8, 3)]) | st.lists(st.integers(0, 5), max_size=5).map(tuple)
boxes = st.builds(lambda shape, dtype: spaces.Box(0, 1, shape, dtype), shapes, st.sampled_from(
    [np.uint8, np.float32, np.float64, np.int64, np.bool_]))
vectors = st.integers(1, 4).map(lambda n: spaces.Box(0, 100, (n,), np.float32))
observations = st.sampled_from([vectors] * 6 + [boxes] * 3 + [st.sampled_from(
    [spaces.Discrete(3), spaces.Dict({"a": spaces.Discrete(2)}), spaces.MultiBinary(3)])]).flatmap(lambda drawn: drawn)
discrete = st.integers(1, 5).map(spaces.Discrete) | st.builds(
    lambda start: spaces.Discrete(3, start=start), st.integers(-3, 3))
actions = st.sampled_from([discrete] * 14 + [st.just(spaces.MultiDiscrete([2, 2]))]).flatmap(lambda drawn: drawn)
numbers = st.floats(width=32) | st.floats(-100, 100)
errors = st.sampled_from([RuntimeError("of\ntwo lines"), SystemExit(0), GeneratorExit(), StopIteration(), MemoryError(),
                          AssertionError(), KeyError(None), BaseException("all"), OSError(9, "bad"), ConfigError("no")])
HARMLESS = ("seterr", "warnings", "umask", "sigmask", "stdout", "stderr", "bare-except", "recursion")
calls = (st.tuples(st.just("give"), st.sampled_from(sorted(STEPS))) | st.tuples(st.just("see"), numbers)
         | st.tuples(st.just("pay"), numbers) | st.tuples(st.just("raise"), errors)
         | st.tuples(st.just("act"), st.sampled_from(HARMLESS))
         | st.tuples(st.sampled_from(["end", "cut", "both", "play", "play", "play"]), st.none()))
resets = st.sampled_from(["right"] * 30 + sorted(RESETS) + ["raise"])


class Drawn(gymnasium.Env):
    """Steps and resets are as the lists say, in turn, over all environments of the case."""

    def __init__(self, observed: gymnasium.Space, acted: gymnasium.Space, steps: list, begins: list,
                 turn: dict[str, int]) -> None:
        self.observation_space, self.action_space = observed, acted
        self.steps, self.begins, self.turn = steps, begins, turn

    def _next(self, name: str, calls: list) -> Any:
        self.turn[name] += 1
        return calls[self.turn[name] % len(calls)]

    def _seen(self, value: float = 1.0) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.full(self.observation_space.shape or (), value, np.float64).astype(self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        super().reset(seed=seed)
        how = self._next("reset", self.begins)
        if how == "raise":
            raise RuntimeError("no beginning")
        return RESETS.get(how, tuple)((self._seen(), {}))

    def step(self, action: Any) -> Any:
        WRONG_ACTIONS.extend([] if self.action_space.contains(action) else [action])  # an error here is the game's own
        how, what = self._next("step", self.steps)
        if how == "raise":
            raise what
        if how == "act":
            EFFECTS[what]()
        right = (self._seen(what if how == "see" else 2.0), what if how == "pay" else 1.0, how in ("end", "both"),
                 how in ("cut", "both"), {})
        return STEPS[what](right) if how == "give" else right


def learnable(batch: Batch) -> None:
    """Whether the rollouts of a batch obey envs/base.py."""
    for rollout, steps in enumerate(batch.steps.tolist()):
        rows = (rollout, slice(0, steps))
        for array in (batch.observation[rows], batch.reward[rows], batch.following[rollout]):
            assert np.isfinite(array).all()
        ended, cut = batch.terminated[rows], batch.truncated[rows]
        assert not (ended & cut).any()
        scored = batch.episode_length[rows] > 0
        assert not (scored & ~(ended | cut)).any() and np.isfinite(batch.score[rows][scored]).all()
        assert np.isfinite(batch.final_value[rows][cut]).all()


WRONG_ACTIONS: list[Any] = []
LEARNED: list[bool] = []  # of each case: whether a step could be learned from


def test_whatever_environments_do_slots_get_what_can_be_learned() -> None:
    LEARNED.clear()
    play_a_case()
    assert not WRONG_ACTIONS
    assert sum(LEARNED) >= len(LEARNED) / 3 or CASES < 100, "else little was tried"


@examples(deadline=None, max_examples=CASES, suppress_health_check=list(HealthCheck))
@given(observed=observations, acted=actions, steps=st.lists(calls, min_size=1, max_size=12),
       begins=st.lists(resets, min_size=1, max_size=5))
def play_a_case(observed: gymnasium.Space, acted: gymnasium.Space, steps: list, begins: list) -> None:
    LEARNED.append(False)
    turn = {"step": 0, "reset": 0}

    def make(settings: Settings, n_envs: int) -> Environment:
        return GymnasiumEnvironment([Drawn(observed, acted, steps, begins, turn) for _ in range(n_envs)], "drawn")

    try:
        spec = make(SETTINGS, 1).spec
    except ConfigError as error:
        assert "supported: " in str(error) and "\n" not in str(error)
        return
    outputs = {"policy": Field((spec.n_actions,), np.float32), "value": Field((), np.float32)}
    model = SimpleNamespace(outputs=outputs, acting=BY_POLICY)

    def predict(observation: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
        assert observation.dtype == spec.observation_dtype and np.isfinite(observation).all()
        n = len(observation)
        return {"policy": np.full((n, spec.n_actions), 1 / spec.n_actions, np.float32),
                "value": np.zeros(n, np.float32)}, 0

    class Learning:
        def submitted(self, rollout: Batch, agent: int) -> bool:
            return False

        def update(self, rollouts: Batch) -> None:
            learnable(rollouts)
            LEARNED[-1] = LEARNED[-1] or bool(rollouts.steps.any())

    kept, agents, patched = ProcessState(), None, pytest.MonkeyPatch()
    patched.setattr(serial_agents, "make_environment", make)
    try:
        agents = serial_agents.Agents(SETTINGS, spec, model, 0)
        for _ in range(30):
            agents.go_on(predict, Learning(), lambda: False)
            kept.put_back()
    except (AgentsLost, EnvironmentFailed) as error:
        assert "\n" not in str(error)
    except AssertionError as error:
        if agents is None or agents.given_up is None or error.args:
            raise
    except BaseException:
        if agents is None or agents.given_up is None:
            raise
    finally:
        kept.put_back()
        patched.undo()
        if agents is not None:
            agents.close()
