"""The sum tree, and what is drawn by priority."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ga3c.envs.base import EnvSpec
from ga3c.replay.kernels import find
from ga3c.replay.ring import Ring
from ga3c.replay.samplers import Prioritised, Uniform
from ga3c.replay.sum_tree import SumTree

SPEC = EnvSpec("vectors", (1,), np.dtype(np.float32), 2, 1)


@examples(max_examples=60)
@given(st.integers(1, 70), st.lists(st.tuples(st.integers(0, 10_000), st.floats(0.0, 1e9)), min_size=1, max_size=80))
def test_the_sum_is_that_of_the_leaves_and_no_empty_leaf_is_drawn_at_any_size(
        size: int, changes: list[tuple[int, float]]) -> None:
    tree, leaves = SumTree(size), np.zeros(size)
    for number, priority in changes:
        tree.assign(np.array([number % size]), np.array([priority]))
        leaves[number % size] = priority
    assert tree.priorities.tolist() == leaves.tolist()
    assert tree.total == pytest.approx(leaves.sum(), rel=1e-12)
    if tree.total:
        drawn = tree.draw(200, np.random.default_rng(0))
        assert (leaves[drawn] > 0).all()


def test_after_a_million_changes_the_root_is_still_the_sum_of_the_leaves() -> None:
    rng, tree = np.random.default_rng(0), SumTree(1000)
    for _ in range(100):
        tree.assign(rng.integers(1000, size=10_000), rng.random(10_000) * 10.0 ** rng.integers(-6, 6, size=10_000))
    assert tree.total == pytest.approx(float(tree.priorities.sum()), rel=1e-12)


def test_numbers_are_drawn_as_often_as_their_priority_says() -> None:
    tree = SumTree(5)
    tree.assign(np.arange(5), np.array([1.0, 0.0, 3.0, 4.0, 2.0]))
    drawn = np.bincount(tree.draw(10_000, np.random.default_rng(1)), minlength=5)
    np.testing.assert_allclose(drawn / 10_000, [0.1, 0.0, 0.3, 0.4, 0.2], atol=0.001)


def test_a_point_that_rounding_puts_at_the_very_end_finds_the_last_leaf_that_is_not_empty() -> None:
    sums, found = np.array([0.0, 6.0, 6.0, 0.0, 2.0, 4.0, 0.0, 0.0]), np.zeros(1, np.int64)
    find(sums, np.array([6.0]), found)
    assert found.tolist() == [1]


def filled() -> Ring:
    """Four streams of 20 rows, the newest of which has no successor yet."""
    ring = Ring(SPEC, 4, 100, 1, 0.9)
    for stream in range(4):
        ring.append(stream, {
            "observation": np.arange(20, dtype=np.float32)[:, None] + 100 * stream, "action": np.zeros(20, int),
            "reward": np.ones(20), "terminated": np.zeros(20, bool), "truncated": np.zeros(20, bool),
            "version": np.arange(20)}, np.zeros(1))
    return ring


def test_uniform_draws_every_transition_alike() -> None:
    drawn = Uniform(filled()).draw(76_000, 0.4, np.random.default_rng(0))
    counts = np.bincount(20 * drawn.sampled.stream + drawn.sampled.serial, minlength=80).reshape(4, 20)
    assert (counts[:, -1] == 0).all() and (drawn.weight == 1).all()
    np.testing.assert_allclose(counts[:, :-1], 1000, rtol=0.15)


def test_an_error_raises_the_chance_whatever_its_sign_and_the_weight_undoes_it() -> None:
    ring = filled()
    prioritised = Prioritised(ring, alpha=0.5)
    for stream in range(4):
        prioritised.appended(stream, 20)
    every = np.arange(76)
    stream, serial = every // 19, every % 19
    error = np.where(stream == 0, -16.0, np.where(stream == 1, 16.0, 1.0)).astype(np.float32)
    prioritised.report(stream, serial, error)
    drawn = prioritised.draw(100_000, 1.0, np.random.default_rng(0))
    shares = np.bincount(drawn.sampled.stream, minlength=4) / 100_000
    np.testing.assert_allclose(shares, [0.4, 0.4, 0.1, 0.1], atol=0.01)
    weights = [drawn.weight[drawn.sampled.stream == number].mean() for number in range(4)]
    np.testing.assert_allclose(weights, [0.25, 0.25, 1.0, 1.0], rtol=1e-3)


def test_an_error_of_a_row_that_was_overwritten_since_changes_nothing() -> None:
    ring = filled()
    prioritised = Prioritised(ring, alpha=1.0)
    prioritised.appended(0, 20)
    drawn = prioritised.draw(8, 0.4, np.random.default_rng(0)).sampled
    more = {"observation": np.zeros((25, 1)), "action": np.zeros(25, int), "reward": np.ones(25),
            "terminated": np.zeros(25, bool), "truncated": np.zeros(25, bool), "version": np.arange(25)}
    prioritised.appended(0, ring.append(0, more, np.zeros(1)))
    before = prioritised._tree.priorities.copy()
    prioritised.report(drawn.stream, drawn.serial, np.full(8, 100.0, np.float32))
    assert (prioritised._tree.priorities == before).all()


@pytest.mark.parametrize("kind", [Uniform, lambda ring: Prioritised(ring, 0.5)])
def test_an_empty_ring_says_that_it_is(kind) -> None:
    with pytest.raises(ValueError, match="the ring has no transition"):
        kind(Ring(SPEC, 4, 100, 1, 0.9)).draw(4, 0.4, np.random.default_rng(0))
