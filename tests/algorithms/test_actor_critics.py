"""A2C, PPO and asynchronous PPO: against slow NumPy, against each other, and the clip by a worked example."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf
from batches import DESCENT, VECTOR, learn, random_batch, settings, slow_targets, weights
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ga3c.algorithms.a2c import A2C
from ga3c.algorithms.base import Network
from ga3c.algorithms.losses import clipped_loss
from ga3c.algorithms.ppo import PPO
from ga3c.learner.learner import Learner
from ga3c.transport.slots import Batch

NOTHING = cast(Network, None)  # for algorithms that do not ask it


def played(model: Learner, seed: int = 0, n: int = 4) -> Batch:
    """A batch as the model itself would have played it: its policies and values stand in it."""
    batch = random_batch(n, seed=seed)
    outputs, version = model.predict(batch.observation.reshape(-1, 3))
    batch.policy[:], batch.value[:] = (outputs[name].reshape(getattr(batch, name).shape) for name in outputs)
    batch.bootstrap_value[:] = model.predict(batch.following.reshape(-1, 3))[0]["value"].reshape(n, 2)
    batch.version[:] = version
    return batch


def learner(algorithm: str, **changes: Any) -> Learner:
    return Learner(settings(algorithm=algorithm, **{**DESCENT, **changes}), VECTOR)


def test_the_clip_by_hand() -> None:
    ratio = tf.Variable([1.5, 1.5, 0.5, 0.5, 1.1])
    advantage = tf.constant([1.0, -1.0, 1.0, -1.0, 2.0])
    with tf.GradientTape() as tape:
        loss = clipped_loss(ratio, advantage, 0.2)
    np.testing.assert_allclose(loss, [-1.2, 1.5, -0.5, 0.8, -2.2], rtol=1e-6)
    # Where moving on would only gain what the clip does not count, there is no gradient.
    np.testing.assert_allclose(tape.gradient(loss, ratio), [0.0, 1.0, -1.0, 0.0, -2.0])


@examples(max_examples=100)
@given(st.lists(st.tuples(st.floats(0.0, 5.0, width=32), st.floats(-9, 9, width=32)), min_size=1, max_size=9),
       st.floats(0.0, 0.75, width=32))
def test_the_clip_never_promises_more_than_the_ratio_and_is_it_within_the_range(
        pairs: list[tuple[float, float]], clip: float) -> None:
    ratio, advantage = np.array(pairs, np.float32).T
    loss = clipped_loss(tf.constant(ratio), tf.constant(advantage), clip).numpy()
    wide = ratio.astype(np.float64) * advantage
    expected = [-min(w, float(np.clip(r, 1 - clip, 1 + clip)) * a) for w, r, a in zip(wide, ratio, advantage)]
    np.testing.assert_allclose(loss, expected, rtol=1e-4, atol=1e-5)
    assert (loss >= -wide - 1e-4).all()
    free = clipped_loss(tf.constant(ratio), tf.constant(advantage), float("inf"))
    np.testing.assert_allclose(free, -wide, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("algorithm", ["a2c", "ppo", "appo"])
@pytest.mark.parametrize("cut", [False, True])
def test_the_first_pass_has_the_loss_of_slow_numpy(algorithm: str, cut: bool) -> None:
    model = learner(algorithm)
    batch = played(model, seed=5)
    if cut:
        batch.steps[:] = [3, 1, 2, 3]
    s = model_settings = settings(algorithm=algorithm, **DESCENT)
    ratio = np.ones(batch.reward.shape)
    if algorithm == "appo":  # it was played by another policy, with other values
        rng = np.random.default_rng(1)
        behaviour = rng.random(batch.policy.shape) + 0.1
        pi = np.take_along_axis(batch.policy, batch.action[..., None], -1)[..., 0]
        value, following = batch.value.copy(), batch.bootstrap_value.copy()
        batch.policy[:] = behaviour / behaviour.sum(axis=-1, keepdims=True)
        mu = np.take_along_axis(batch.policy, batch.action[..., None], -1)[..., 0]
        ratio = np.minimum(1.0, pi / (mu + model_settings.actor_critic.log_epsilon))
        assert 0.2 < (ratio < 1).mean() < 0.8
        batch.value[:], batch.bootstrap_value[:] = 77.0, 77.0  # nobody looks at them
    else:
        value, following = batch.value, batch.bootstrap_value
    returns, advantage = slow_targets(s, batch, value, following, ratio)
    filled = np.broadcast_to(batch.filled, returns.shape)
    chosen = np.take_along_axis(learner(algorithm).predict(batch.observation.reshape(-1, 3))[0]["policy"].reshape(
        batch.policy.shape), batch.action[..., None], -1)[..., 0]
    metrics = learn(model, batch).metrics
    expected = -np.log(chosen + s.actor_critic.log_epsilon) * advantage if algorithm == "a2c" else -advantage
    assert metrics["policy_loss"] == pytest.approx(expected[filled].mean(), rel=1e-4, abs=1e-5)
    assert metrics["value_loss"] == pytest.approx((advantage**2)[filled].mean(), rel=1e-4)
    assert metrics["explained_variance"] == pytest.approx(
        1 - (advantage**2)[filled].mean() / returns[filled].var(), rel=1e-3, abs=1e-4)
    if algorithm != "a2c":
        assert (metrics["clip_fraction"], metrics["kl"]) == (0.0, pytest.approx(0.0, abs=1e-5))


def same_updates(one: Learner, other: Learner, updates: int = 3) -> None:
    """Both learn the same from what each has played of the same worlds; and they learn."""
    before = weights(one)
    for seed in range(updates):
        assert learn(one, played(one, seed)) is not None and learn(other, played(other, seed)) is not None
    moved = max(np.abs(array - before[name]).max() for name, array in weights(one).items())
    for name, array in weights(one).items():
        np.testing.assert_allclose(array, weights(other)[name], atol=1e-4 * moved, err_msg=name)
    assert moved > 1e-3


@pytest.mark.parametrize(("kind", "least", "most"), [(PPO, 0.99, 1.01), (A2C, 0.01, 0.02)])
def test_ppo_divides_advantages_by_their_own_deviation_when_they_have_become_small_too(
        kind: type[PPO | A2C], least: float, most: float) -> None:
    algorithm = kind(settings(normalize_advantages=True, reward_clip=0.0))
    for scale in (100.0, 1.0):
        batch = random_batch(4)
        arrays = {name: tf.constant(getattr(batch, name)) for name in algorithm.reads}
        rows, state = algorithm.prepare(NOTHING, arrays | {"reward": scale * arrays["reward"]})
        algorithm.variables["advantage.00"].assign(state["advantage.00"])
    assert least < float(tf.math.reduce_std(rows["advantage"])) < most


@pytest.mark.parametrize("normalized", [False, True])
def test_asynchronous_ppo_without_lag_is_ppo_whatever_the_passes(normalized: bool) -> None:
    same_updates(*(learner(name, passes=3, minibatches=4, normalize_advantages=normalized, clip_range=0.05)
                   for name in ("appo", "ppo")))


def test_the_clip_holds_the_policy_back_and_its_metrics_say_so() -> None:
    metrics, reached = {}, {}
    for clip in (0.0, 0.05):
        model = learner("ppo", passes=50, clip_range=clip, learning_rate=2e2, value_coef=0.0, entropy_coef=0.0)
        batch = played(model)
        metrics[clip] = learn(model, batch).metrics
        after = model.predict(batch.observation.reshape(-1, 3))[0]["policy"].reshape(batch.policy.shape)
        ratio = np.take_along_axis(after / batch.policy, batch.action[..., None], -1)
        reached[clip] = np.abs(ratio - 1).mean()
    assert reached[0.05] < 0.5 * reached[0.0]
    assert 0.0 < metrics[0.05]["clip_fraction"] < 1.0 == 1.0 - metrics[0.0]["clip_fraction"]
    assert 0.0 < metrics[0.05]["kl"] < metrics[0.0]["kl"]


def test_clip_fraction_and_kl_are_of_the_filled_steps_by_hand() -> None:
    policy = np.array([[0.5, 0.5], [0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]], np.float32)
    rows = {"observation": policy, "action": np.array([0, 1, 1, 0, 0]), "returns": np.zeros(5, np.float32),
            "advantage": np.ones(5, np.float32), "proximal": np.array([0.5, 0.4, 0.7, 0.5, 0.9], np.float32),
            "filled": np.array([True, True, True, True, False])}
    given = settings(algorithm="ppo", clip_range=0.9)
    metrics = PPO(given).loss(
        cast(Network, lambda observation, training: {"policy": observation, "value": tf.zeros((5, 1))}), rows,
        {"entropy_coef": 0.01, "clip_range": 0.15}).metrics
    ratio = np.array([1.0, 0.25, 8 / 7, 1.2])  # 8/7 is within 15 %
    assert metrics["clip_fraction"].numpy() == pytest.approx(2 / 4)
    assert metrics["kl"].numpy() == pytest.approx((ratio - 1 - np.log(ratio)).mean(), rel=1e-4)


@pytest.mark.parametrize("algorithm", ["a3c", "a2c", "ppo", "appo"])
def test_what_an_earlier_rollout_left_in_rows_that_are_not_filled_changes_nothing(algorithm: str) -> None:
    chosen = settings(algorithm=algorithm, normalize_advantages=True, correction="vtrace", loss_reduction="mean")
    one, other, clean, dirty = Learner(chosen, VECTOR), Learner(chosen, VECTOR), random_batch(), random_batch()
    clean.steps[:] = dirty.steps[:] = [3, 1, 0, 2]
    for rollout, steps in enumerate(dirty.steps.tolist()):
        dirty.policy[rollout, steps:], dirty.value[rollout, steps:] = np.nan, np.inf
        dirty.observation[rollout, steps:], dirty.terminated[rollout, steps:] = 50.0, True
        dirty.reward[rollout, steps:], dirty.final_value[rollout, steps:] = -np.inf, np.nan
    dirty.bootstrap_value[2] = np.inf
    assert learn(one, clean) is not None and learn(other, dirty) is not None
    for name, array in weights(one).items():
        assert np.array_equal(array, weights(other)[name]), name
