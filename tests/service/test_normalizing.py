"""Worlds that are learned only with normalised observations or rewards; what is remembered, and where it is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from ga3c.commands.export import export
from ga3c.envs.toys import TOYS, Step, Toy
from ga3c.evaluation.episodes import Limits, Protocol, play_episodes
from ga3c.evaluation.players import playing
from ga3c.evaluation.policy import find, load_policy, write_policy
from ga3c.learner import checkpoint
from ga3c.learner.learner import Learner
from ga3c.runs.recorder import Recorder
from ga3c.service.serial import run_serial
from ga3c.service.serial_agents import PREFIX
from ga3c.service.signals import Signals
from ga3c.service.supervisor import Service
from ga3c.settings.files import configured, to_yaml

STEPS = 12_000
SETTINGS = {"serial": True, "tensorboard": False, "agents": 2, "envs_per_agent": 4, "rollout_length": 5,
            "training_batch_min": 40, "learning_rate": 2e-3, "learning_rate_final": None}


class Offset(Toy):
    """Ten steps; each shows 5,000 and one more or less, and pays for the action that the difference's sign asks for.

    Position: time, sign.
    """

    AROUND, PAYS, COSTS = 5000.0, 1.0, 0.0
    LENGTH: ClassVar[int] = 10

    def __init__(self) -> None:
        self.observation_space = Box(-1e5, 1e5, (1,), np.float32)
        self.action_space = Discrete(2)
        self.position = 0, 0

    def _observation(self) -> NDArray[np.float32]:
        return np.array([self.AROUND + 2 * self.position[1] - 1], np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        self.position = 0, int(self.np_random.integers(2))
        return self._observation(), {}

    def step(self, action: int) -> Step:
        time, sign = self.position
        self.position = time + 1, int(self.np_random.integers(2))
        reward = self.PAYS if int(action) == sign else self.COSTS
        return self._observation(), reward, time + 1 == self.LENGTH, False, {}


class Rich(Offset):
    """The same with the sign alone to be seen, and 10,000 to be won or lost in each step."""

    AROUND, PAYS, COSTS = 0.0, 10_000.0, -10_000.0


@pytest.fixture(autouse=True)
def worlds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TOYS, "offset", Offset)
    monkeypatch.setitem(TOYS, "rich", Rich)


Train = Callable[..., tuple[Recorder, Learner]]


@pytest.fixture
def train(make_run: Callable[..., Recorder], interruption: Signals) -> Train:
    """Trains in serial mode, on from the checkpoint of another run if one is given, and saves a checkpoint."""

    def train(steps: int, before: Recorder | None = None, **changes: Any) -> tuple[Recorder, Learner]:
        settings = configured(**{**SETTINGS, "steps": steps, **changes})
        run = make_run(settings)
        (run.directory / "config.yaml").write_text(to_yaml(settings))
        model, arrays = Learner(settings, run.spec), None
        if before:
            saved = checkpoint.newest(before.directory / "checkpoints")[0]
            arrays = saved.arrays
            model.restore(arrays, saved.progress["version"])
            run.statistics.agent_steps = saved.progress["agent_steps"]
        run_serial(settings, run, model, interruption, arrays)
        run.checkpoints.save(model)
        return run, model

    return train


def scored(run: Recorder, last: int = 100) -> float:
    return float(np.mean(list(run.statistics.recent_scores)[-last:]))


def arrays_of(run: Recorder) -> dict[str, np.ndarray]:
    return checkpoint.newest(run.directory / "checkpoints")[0].arrays


def test_a_small_difference_far_from_0_is_learned_only_if_it_is_normalised(train: Train) -> None:
    assert scored(train(STEPS, game="toy:offset")[0]) < 7.0, "by chance: 5"
    run, model = train(STEPS, game="toy:offset", normalize_observations=True)
    assert scored(run) > 9.5
    arrays = arrays_of(run)
    assert arrays["observation.01"] == pytest.approx(5000, abs=0.1) and arrays["observation.00"] == STEPS
    assert arrays["observation.02"] / STEPS == pytest.approx(1, abs=0.01)
    # An evaluation, with the run's directory alone, plays as well, and changes nothing.
    policy = load_policy(run.directory)
    protocol = Protocol(20, 0, False, 20)
    with playing(run.settings, protocol, Limits()) as players:
        played = play_episodes(policy.predict, policy.acting, players, protocol)
    assert played.scores.mean() > 9.5
    seen = np.array([[4999.0], [5001.0], [0.0], [1e5]], np.float32)
    outputs, _ = model.predict(seen)
    np.testing.assert_allclose(policy.predict(seen)["policy"], outputs["policy"], atol=1e-6)
    assert policy(seen[:2], greedy=True).action.tolist() == [0, 1]
    for name, array in model.state()[0].items():
        np.testing.assert_array_equal(array, arrays[name])
    # A policy file takes observations as they are, too.
    write_policy(run.directory / "mine.npz", find(run.directory))
    np.testing.assert_equal(load_policy(run.directory / "mine.npz").predict(seen), policy.predict(seen))
    # A resume goes on where it was.
    again, _ = train(STEPS + 400, run, game="toy:offset", normalize_observations=True)
    assert scored(again, 40) > 9.5


def test_an_exported_model_answers_raw_observations_as_the_policy_does(train: Train, tmp_path: Path) -> None:
    import onnxruntime
    import tensorflow as tf
    run, _ = train(400, game="toy:offset", normalize_observations=True)
    assert export([str(run.directory), str(tmp_path / "out")]) == 0
    seen = np.array([[4999.0], [5001.0], [5000.5]], np.float32)
    expected = load_policy(run.directory).predict(seen)
    assert "normalised inside the model" in (tmp_path / "out/README.md").read_text()
    saved = tf.saved_model.load(str(tmp_path / "out/saved_model")).signatures["serving_default"](tf.constant(seen))
    session = onnxruntime.InferenceSession(str(tmp_path / "out/model.onnx"))
    for (name, right), answer in zip(expected.items(), session.run([*expected], {"observation": seen}), strict=True):
        np.testing.assert_allclose(saved[name].numpy(), right, atol=1e-5)
        np.testing.assert_allclose(answer, right, atol=1e-5)


def test_rewards_of_ten_thousand_are_learned_from_unclipped(train: Train) -> None:
    run, model = train(STEPS, game="toy:rich", reward_clip=0.0, normalize_rewards=True)
    assert scored(run) > 95_000, "scores stay as they are"
    outputs, _ = model.predict(np.array([[-1.0], [1.0]], np.float32))
    assert (np.abs(outputs["value"]) < 20).all(), "a value is of rewards as they were learned from"
    assert not [name for name in arrays_of(run) if name.startswith("observation.")]


def test_agents_in_processes_add_up_their_rewards_too(make_run: Callable[..., Recorder], interruption: Signals) -> None:
    settings = configured(game="toy:catch", agents=2, envs_per_agent=2, dynamic=False, tensorboard=False, steps=2000,
                          normalize_observations=True, normalize_rewards=True)
    run = make_run(settings)
    model = Learner(settings, run.spec)
    Service(settings, run, model, interruption).run()
    state = model.state()[0]
    assert state["observation.00"] == state["return.00"] == run.statistics.agent_steps
    assert 0 < state["return.02"] / state["return.00"] < 1 and model.skips.updates == 0


@pytest.mark.parametrize("world", [pytest.param("toy:offset", marks=pytest.mark.slow), "toy:counting"])
def test_with_breaks_normalised_runs_learn_what_they_learn_without(world: str, train: Train) -> None:
    both = {"game": world, "normalize_observations": True, "normalize_rewards": True}
    whole, _ = train(1200, **both)
    part = None
    for steps in (330, 770, 1200):
        part, _ = train(steps, part, **both)
    assert part is not None
    ours, theirs = arrays_of(whole), arrays_of(part)
    assert ours.keys() == theirs.keys() and {"return.02", f"{PREFIX}places"} <= ours.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_what_was_just_turned_on_begins_anew_and_what_was_turned_off_is_left_out(train: Train) -> None:
    both = {"normalize_observations": True, "normalize_rewards": True}
    without, _ = train(400, game="toy:offset")
    turned_on, _ = train(800, without, game="toy:offset", **both)
    arrays = arrays_of(turned_on)
    assert arrays["observation.00"] == arrays["return.00"] == 400
    turned_off, _ = train(1200, turned_on, game="toy:offset")
    assert arrays_of(turned_off).keys() == arrays_of(without).keys()
    # A checkpoint is played as it was trained, whatever the run's config.yaml says by now.
    (without.directory / "config.yaml").write_text((turned_on.directory / "config.yaml").read_text())
    assert load_policy(without.directory).trained.weights.keys() == {f"network.{number:02d}" for number in range(8)}
