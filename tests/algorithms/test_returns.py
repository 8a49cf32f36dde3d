"""Returns and importance ratios, against slow loops and a page of arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from ga3c.algorithms.returns import centred, importance_ratio, vtrace_returns

EPSILON = 1e-6
NEVER = [False, False, False]
MIDDLE = [False, True, False]


def returns_of(reward: Any, terminated: Any, truncated: Any, steps: Any, final_value: Any, bootstrap_value: Any,
               gamma: float, value: Any = 0.0, ratio: Any = 1.0, lam: float = 1.0) -> NDArray:
    reward = np.asarray(reward, np.float32)
    filled = (np.arange(reward.shape[1]) < np.asarray(steps)[:, None])[:, :, None]
    value, ratio = (np.broadcast_to(np.asarray(facts, np.float32), reward.shape) for facts in (value, ratio))
    return np.asarray(vtrace_returns(
        tf.constant(reward), tf.constant(terminated, tf.bool), tf.constant(truncated, tf.bool), tf.constant(filled),
        tf.constant(value), tf.constant(final_value, tf.float32), tf.constant(bootstrap_value, tf.float32),
        tf.constant(ratio), gamma, lam))


def slow_vtrace(reward: NDArray, terminated: NDArray, truncated: NDArray, final_value: NDArray, value: NDArray,
                ratio: NDArray, bootstrap_value: float, gamma: float, lam: float) -> list[float]:
    """One environment, filled rows only: IMPALA's equation 1 as it stands there, a sum of discounted differences."""
    T, returns = len(reward), []
    following = [*value[1:], bootstrap_value]
    for begin in range(T):
        total, weight = float(value[begin]), 1.0
        for t in range(begin, T):
            after = 0.0 if terminated[t] else final_value[t] if truncated[t] else following[t]
            total += weight * ratio[t] * (reward[t] + gamma * after - value[t])
            if terminated[t] or truncated[t]:
                break
            weight *= gamma * lam * ratio[t]
        returns.append(total)
    return returns


@st.composite
def rollouts(draw: st.DrawFn) -> dict[str, Any]:
    B, T, E = draw(st.integers(1, 3)), draw(st.integers(1, 20)), draw(st.integers(1, 4))
    numbers = st.floats(-10, 10, width=32)
    return {
        "reward": draw(arrays.arrays(np.float32, (B, T, E), elements=numbers)),
        "terminated": draw(arrays.arrays(np.bool_, (B, T, E))), "truncated": draw(arrays.arrays(np.bool_, (B, T, E))),
        "steps": draw(arrays.arrays(np.int32, B, elements=st.integers(1, T))),
        "final_value": draw(arrays.arrays(np.float32, (B, T, E), elements=numbers)),
        "bootstrap_value": draw(arrays.arrays(np.float32, (B, E), elements=numbers)), "gamma": draw(st.floats(0, 1)),
        "value": draw(arrays.arrays(np.float32, (B, T, E), elements=numbers)),
    }


@examples(deadline=None, max_examples=150)
@given(rollouts(), st.data())
def test_vtrace_is_that_of_a_slow_sum_over_every_environment(rollout: dict[str, Any], data: st.DataObject) -> None:
    ratio = data.draw(arrays.arrays(np.float32, rollout["reward"].shape, elements=st.floats(0, 1, width=32)))
    lam = data.draw(st.floats(0, 1) | st.just(1.0))
    returns = returns_of(**rollout, ratio=ratio, lam=lam)
    assert returns.dtype == np.float32
    for b, steps in enumerate(rollout["steps"]):
        for e in range(returns.shape[2]):
            facts = [rollout[name][b, :steps, e]
                     for name in ("reward", "terminated", "truncated", "final_value", "value")]
            expected = slow_vtrace(*facts, ratio[b, :steps, e], rollout["bootstrap_value"][b, e], rollout["gamma"], lam)
            np.testing.assert_allclose(returns[b, :steps, e], expected, rtol=1e-4, atol=1e-4)


def test_lambda_returns_worked_by_hand() -> None:
    # gamma 1/2, lambda 1/2, values 4, 2, 6, bootstrap value 8:
    #   4 + 8/2 = 8      2 + (6 + 8)/2/2 = 5.5      1 + (2 + 5.5)/2/2 = 2.875
    worked = returns_of([[[1], [2], [4]]], [[[False]] * 3], [[[False]] * 3], [3], np.zeros((1, 3, 1)), [[8.0]], 0.5,
                        value=[[[4], [2], [6]]], lam=0.5)
    assert worked[0, :, 0].tolist() == [2.875, 5.5, 8]


def test_vtrace_worked_by_hand() -> None:
    # As above with lambda 1 and the middle action half as likely now:
    #   4 + 8/2 = 8      2 + 1/2 (2 + 8/2 - 2) = 4      1 + 4/2 = 3
    worked = returns_of([[[1], [2], [4]]], [[[False]] * 3], [[[False]] * 3], [3], np.zeros((1, 3, 1)), [[8.0]], 0.5,
                        value=[[[4], [2], [6]]], ratio=[[[1], [0.5], [1]]])
    assert worked[0, :, 0].tolist() == [3, 4, 8]


def test_the_ratio_is_that_of_the_chosen_action_and_at_most_1() -> None:
    policy, behaviour = tf.constant([[0.2, 0.8], [0.2, 0.8], [0.5, 0.5]]), tf.constant([[0.4, 0.6], [0.4, 0.6], [1, 0]])
    ratio = importance_ratio(policy, tf.cast(behaviour, tf.float32), tf.constant([0, 1, 0]), EPSILON)
    np.testing.assert_allclose(ratio, [0.5, 1.0, 0.5], rtol=1e-5)


@pytest.mark.parametrize(("reward", "terminated", "truncated", "steps", "worked"), [
    # goes on:       4 + 8/2 = 8      2 + 8/2 = 6        1 + 6/2 = 4
    pytest.param([1, 2, 4], NEVER, NEVER, 3, [4, 6, 8], id="goes on"),
    # terminated:    4 + 8/2 = 8      2                  1 + 2/2 = 2
    pytest.param([1, 2, 4], MIDDLE, NEVER, 3, [2, 2, 8], id="terminated"),
    # truncated:     4 + 8/2 = 8      2 + 10/2 = 7       1 + 7/2 = 4.5
    pytest.param([1, 2, 4], NEVER, MIDDLE, 3, [4.5, 7, 8], id="truncated"),
    # both at once:  4 + 8/2 = 8      2                  1 + 2/2 = 2
    pytest.param([1, 2, 4], MIDDLE, MIDDLE, 3, [2, 2, 8], id="both"),
    # cut after 2:                    2 + 8/2 = 6        1 + 6/2 = 4
    pytest.param([1, 2, 99], NEVER, NEVER, 2, [4, 6], id="cut"),
    # cut after its end:              2                  1 + 2/2 = 2
    pytest.param([1, 2, 99], MIDDLE, NEVER, 2, [2, 2], id="cut after its end"),
])
def test_returns_worked_by_hand_with_gamma_one_half_final_value_10_and_bootstrap_value_8(
        reward: list[float], terminated: list[bool], truncated: list[bool], steps: int, worked: list[float]) -> None:
    column = [[[value] for value in values] for values in (reward, terminated, truncated)]
    returns = returns_of([column[0]], [column[1]], [column[2]], [steps], np.full((1, 3, 1), 10.0), [[8.0]], 0.5)
    assert returns[0, :steps, 0].tolist() == worked


@examples(deadline=None, max_examples=80)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(*(arrays.arrays(np.float64, n, elements=st.floats(*bounds))
                                                       for bounds in ((-9, 9), (0.01, 1), (0.01, 1))))),
       st.floats(-9, 9))
def test_what_advantages_have_in_common_is_taken_off_as_they_are_weighed(
        drawn: tuple[NDArray, NDArray, NDArray], common: float) -> None:
    own, ratio, weight = drawn[0], drawn[1], drawn[2] / drawn[2].sum()
    without, shifted = (centred(ratio * advantage, ratio, weight) for advantage in (own, own + common))
    np.testing.assert_allclose(np.sum(weight * without), 0.0, atol=1e-5)
    np.testing.assert_allclose(shifted, without, atol=1e-4)
