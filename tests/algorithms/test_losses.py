"""The losses of the papers, against NumPy and a page of arithmetic."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from ga3c.algorithms.losses import entropy, policy_loss, value_loss

EPSILON = 1e-6

policies = st.integers(2, 18).flatmap(lambda A: arrays.arrays(
    np.float32, st.tuples(st.integers(1, 6), st.just(A)), elements=st.floats(0.0, 1.0, width=32)).filter(
        lambda weights: weights.sum(axis=1).min() > 0.01)).map(lambda w: w / w.sum(axis=1, keepdims=True))


@examples(deadline=None, max_examples=80)
@given(policies, st.data())
def test_losses_are_those_of_the_paper(policy: NDArray, data: st.DataObject) -> None:
    n, n_actions = policy.shape
    action = data.draw(arrays.arrays(np.int32, n, elements=st.integers(0, n_actions - 1)))
    value, returns = (data.draw(arrays.arrays(np.float32, n, elements=st.floats(-9, 9, width=32))) for _ in range(2))
    wide = policy.astype(np.float64)
    np.testing.assert_allclose(
        policy_loss(tf.constant(policy), tf.constant(action), tf.constant(returns - value), EPSILON),
        [-np.log(wide[i, action[i]] + EPSILON) * (returns[i] - value[i]) for i in range(n)], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(entropy(tf.constant(policy), EPSILON),
                               [-sum(p * np.log(p + EPSILON) for p in row) for row in wide], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(value_loss(tf.constant(value), tf.constant(returns)), (returns - value)**2,
                               rtol=1e-5, atol=1e-5)


def test_entropy_is_log_of_the_actions_where_all_are_alike_and_nothing_where_one_is_certain() -> None:
    policy = tf.constant([[0.25] * 4, [0.0, 1.0, 0.0, 0.0]])
    np.testing.assert_allclose(entropy(policy, EPSILON), [np.log(4), 0.0], atol=1e-4)


def test_where_the_policy_vanished_the_gradient_is_bounded_by_one_over_epsilon() -> None:
    policy, advantage = tf.Variable([[0.0, 1.0], [1.0, 0.0]]), tf.constant([3.0, -2.0])
    with tf.GradientTape() as tape:
        loss = policy_loss(policy, tf.constant([0, 1]), advantage, EPSILON)
    np.testing.assert_allclose(tape.gradient(loss, policy), [[-3 / EPSILON, 0], [0, 2 / EPSILON]], rtol=1e-4)
    with tf.GradientTape() as tape:
        uncertainty = entropy(policy, EPSILON)
    gradient = tape.gradient(uncertainty, policy).numpy()
    np.testing.assert_allclose(gradient, [[-np.log(EPSILON), -1], [-1, -np.log(EPSILON)]], rtol=1e-4)


def test_a_good_step_makes_its_action_likelier_and_a_bad_one_less_likely() -> None:
    policy = tf.Variable([[0.5, 0.5], [0.5, 0.5]])
    with tf.GradientTape() as tape:
        loss = policy_loss(policy, tf.constant([0, 0]), tf.constant([1.0, -1.0]), EPSILON)
    np.testing.assert_allclose(tape.gradient(loss, policy), [[-2, 0], [2, 0]], rtol=1e-4)


def test_the_policy_loss_does_not_teach_the_value_and_the_value_loss_does_not_teach_the_returns() -> None:
    value, returns = tf.Variable([1.0, 5.0]), tf.Variable([3.0, 2.0])
    with tf.GradientTape(persistent=True) as tape:
        acting = policy_loss(tf.constant([[0.5, 0.5]] * 2), tf.constant([0, 1]), returns - value, EPSILON)
        judging = value_loss(value, returns)
    assert tape.gradient(acting, [value, returns]) == [None, None]
    assert tape.gradient(judging, returns) is None
    assert tape.gradient(judging, value).numpy().tolist() == [-4.0, 6.0]
