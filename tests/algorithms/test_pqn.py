"""PQN: lambda-returns of Q by hand, exploration of an agent's own, and toys that it learns."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf
from batches import IMAGE, VECTOR, settings
from command_line import Command

from ga3c.algorithms.acting import epsilon_greedy
from ga3c.algorithms.base import Head, Network
from ga3c.algorithms.networks import build_network, folded
from ga3c.algorithms.pqn import PQN
from ga3c.evaluation.policy import load_policy
from ga3c.settings.effects import without_effect
from ga3c.settings.files import configured
from ga3c.settings.presets import PRESETS
from ga3c.settings.schema import ALL

NOTHING = cast(Network, None)


def rollout(**changed: Any) -> dict[str, tf.Tensor]:
    """Three steps of two environments. The actions taken are not the greedy ones: their value is in no target."""
    fields: dict[str, Any] = {
        "observation": np.zeros((1, 3, 2, 3), np.float32), "action": np.array([[[0, 1], [1, 1], [0, 0]]], np.int32),
        "reward": np.array([[[1, 0], [0, 2], [0, -1]]], np.float32), "terminated": np.zeros((1, 3, 2), bool),
        "truncated": np.zeros((1, 3, 2), bool), "filled": np.ones((1, 3, 1), bool),
        "value": np.array([[[5, 4], [3, 2], [1, 6]]], np.float32), "final_value": np.zeros((1, 3, 2), np.float32),
        "bootstrap_value": np.array([[8, 7]], np.float32)}
    return {name: tf.constant(array) for name, array in {**fields, **changed}.items()}


def returns(lam: float, **changed: Any) -> np.ndarray:
    """(T, E), of rewards clipped to 1 and gamma 0.5."""
    algorithm = PQN(settings(algorithm="pqn", gamma=0.5, reward_clip=1.0, td_lambda=lam))
    return algorithm.prepare(NOTHING, rollout(**changed)).rows["returns"].numpy().reshape(3, 2)


def test_returns_of_one_step_of_all_steps_and_between_by_hand() -> None:
    one_step = [[1 + 0.5 * 3, 0.5 * 2], [0.5 * 1, 1 + 0.5 * 6], [0.5 * 8, -1 + 0.5 * 7]]
    np.testing.assert_allclose(returns(0.0), one_step)
    last = np.array([4.0, 2.5])
    middle = np.array([0.0, 1.0]) + 0.5 * last
    np.testing.assert_allclose(returns(1.0), [np.array([1.0, 0.0]) + 0.5 * middle, middle, last])
    middle = np.array([0.0, 1.0]) + 0.5 * (0.5 * np.array([1.0, 6.0]) + 0.5 * last)
    first = np.array([1.0, 0.0]) + 0.5 * (0.5 * np.array([3.0, 2.0]) + 0.5 * middle)
    np.testing.assert_allclose(returns(0.5), [first, middle, last])


def test_returns_end_with_an_episode_and_go_on_from_the_final_value_where_it_was_cut() -> None:
    ended = np.zeros((1, 3, 2), bool)
    ended[0, 1] = True, False
    cut = np.zeros((1, 3, 2), bool)
    cut[0, 1] = False, True
    final = np.full((1, 3, 2), 9.0, np.float32)
    found = returns(1.0, terminated=ended, truncated=cut, final_value=final)
    np.testing.assert_allclose(found[1], [0.0, 1 + 0.5 * 9])
    np.testing.assert_allclose(found[0], [1.0, 0.5 * 5.5])


def test_only_the_actions_taken_have_a_gradient_and_padding_has_none() -> None:
    q = tf.Variable([[1.0, 2.0], [4.0, 3.0], [7.0, 7.0]])
    rows = {"observation": q, "action": tf.constant([0, 1, 0]), "returns": tf.constant([3.0, 5.0, np.inf]),
            "filled": tf.constant([True, True, False])}
    rows["returns"] = tf.where(rows["filled"], rows["returns"], 0.0)
    with tf.GradientTape() as tape:
        loss = PQN(settings(algorithm="pqn")).loss(
            cast(Network, lambda observation, training: {"q": 1.0 * observation}), rows, {})
    np.testing.assert_allclose(loss.total, 0.5 * np.mean([4.0, 4.0]))
    np.testing.assert_allclose(tape.gradient(loss.total, q), [[-1, 0], [0, -1], [0, 0]])
    assert loss.metrics["q_mean"].numpy() == pytest.approx(3.0)


def test_epsilon_falls_with_an_agents_own_steps_until_all_have_played_so_many() -> None:
    chosen = configured(algorithm="pqn", agents=4, envs_per_agent=5, epsilon=1.0, epsilon_final=0.2, epsilon_steps=2000)
    acting = pickle.loads(pickle.dumps(PQN(chosen).acting))  # as it reaches an agent's process
    epsilons = [acting.explore(steps, 3, 5).tolist() for steps in (0, 50, 100, 999)]
    np.testing.assert_allclose(epsilons, [[1.0] * 5, [0.6] * 5, [0.2] * 5, [0.2] * 5])


def test_an_action_at_random_is_any_action_as_often_as_epsilon_says() -> None:
    outputs = {"q": np.tile(np.array([0.0, 2.0, 1.0, -1.0]), (40_000, 1))}
    epsilon = np.repeat([0.0, 0.4, 1.0, 0.4], 10_000)
    drawn = epsilon_greedy(outputs, np.random.default_rng(0), epsilon).reshape(4, -1)
    assert (drawn[0] == 1).all()
    shares = np.array([np.bincount(actions, minlength=4) for actions in drawn]) / 10_000
    np.testing.assert_allclose(shares[[1, 3]], [[0.1, 0.7, 0.1, 0.1]] * 2, atol=0.02)
    np.testing.assert_allclose(shares[2], [0.25] * 4, atol=0.02)


@pytest.mark.parametrize(("spec", "network"), [(VECTOR, "dense"), (IMAGE, "small")])
def test_a_normalised_layer_passes_on_what_does_not_depend_on_the_size_of_its_weights(spec: Any, network: str) -> None:
    built = build_network(settings(network=network, layer_norm=True), spec, {"q": Head(3)})
    rng = np.random.default_rng(0)
    observation = (rng.integers(0, 256, (2, *spec.observation_shape)).astype(spec.observation_dtype)
                   if spec is IMAGE else rng.normal(size=(2, *spec.observation_shape)).astype(np.float32))
    before = built.forward(observation, folded(built))["q"].numpy()
    for layer in built.layers[:-1]:
        layer.kernel.assign(10.0 * layer.kernel)
    after = built.forward(observation, folded(built))["q"].numpy()
    assert np.abs(before).max() > 0.01
    np.testing.assert_allclose(after, before, rtol=1e-3, atol=1e-4)
    hidden = built.layers[0](observation).numpy()
    assert hidden.shape[-1] in (16, 64) and np.isfinite(hidden).all()


def test_it_begins_with_its_preset_and_actor_critics_settings_have_no_effect() -> None:
    chosen = configured(algorithm="pqn").flat()
    assert {name: chosen[name] for name in PRESETS["pqn"]} == PRESETS["pqn"]
    assert [ALL[name].group for name in ("epsilon", "td_lambda")] == ["value", "pqn"]
    note, = without_effect(configured(algorithm="pqn", entropy_coef=0.5, clip_range=0.2, correction="none"),
                           ["entropy_coef", "clip_range", "correction"], False)
    assert note == "No effect: --entropy-coef, --correction, --clip-range; --algorithm pqn has none"
    note, = without_effect(configured(epsilon=0.5), ["epsilon"], False)
    assert note == "No effect: --epsilon; --algorithm appo has none"


@pytest.mark.parametrize("mode", [["--serial"], ["--schedule", "synchronous"], ["--schedule", "queues"]], ids=str)
def test_it_learns_a_toy_in_each_kind_of_schedule(
        mode: list[str], train_here: Command, evaluate_here: Command, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = train_here("--game", "toy:identity", "--algorithm", "pqn", "--steps", "40000", "--run-dir", "run",
                      "--epsilon-steps", "10000", "--rollout-length", "8", "--agents", "2", "--training-batch-min",
                      "256", "--learning-rate", "3e-3", "--gamma", "0.5", "--no-dynamic",
                      "--anneal-steps", "40000", "--no-tensorboard", *mode)
    assert done.returncode == 0, done.stderr
    row = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert row["exploration"] == pytest.approx(0.01) and 0.1 < row["q_mean"] < 0.15
    assert json.loads(evaluate_here("run", "--json", "--greedy").stdout)["mean"] > 0.95, "0.25 by chance"
    policy = load_policy("run")
    assert policy(np.eye(4, dtype=np.float32), greedy=True).action.tolist() == [0, 1, 2, 3]
