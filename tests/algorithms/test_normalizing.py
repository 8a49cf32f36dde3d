"""Running moments against NumPy over everything at once, and what is made of them."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from ga3c.algorithms.normalizing import (LIMIT, Moments, RunningMoments, inverse_deviation, merged, normalized,
                                         scaling)

B, T, E = 4, 5, 2


def batches(shape: tuple[int, ...], n: int = 6) -> list[tuple[np.ndarray, np.ndarray]]:
    """Values about 5,000, of which most rollouts are filled in part; what is not filled is NaN."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(n):
        values = (5000 + 100 * number + rng.normal(size=(B, T, E, *shape))).astype(np.float32)
        filled = (np.arange(T) < rng.integers(1, T + 1, B)[:, None])[:, :, None]
        values[~filled[:, :, 0]] = np.nan
        made.append((values, filled))
    return made


@pytest.mark.parametrize("shape", [(), (3,)])
def test_moments_merged_batch_by_batch_are_those_of_all_filled_steps_at_once(shape: tuple[int, ...]) -> None:
    moments = RunningMoments("anything", shape).now()
    for values, filled in batches(shape):
        moments = merged(moments, values, filled)
    seen = np.concatenate([values[np.broadcast_to(filled, (B, T, E))] for values, filled in batches(shape)])
    seen = seen.astype(np.float64)
    assert float(moments.count) == len(seen) and np.asarray(moments.mean).dtype == np.float64
    np.testing.assert_allclose(moments.mean, seen.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(moments.squares, len(seen) * seen.var(axis=0), rtol=1e-9)
    np.testing.assert_allclose(inverse_deviation(moments), 1 / seen.std(axis=0), rtol=1e-6)


def test_normalized_numbers_have_mean_0_and_deviation_1_and_are_clipped() -> None:
    values, filled = batches((3,), 1)[0]
    seen = values[np.broadcast_to(filled, (B, T, E))]
    scale = scaling(merged(RunningMoments("anything", (3,)).now(), values, filled))
    found = np.asarray(normalized(seen, *scale))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, (seen - seen.mean(axis=0, dtype=np.float64)) / seen.std(axis=0), atol=2e-3)
    far = np.asarray(normalized(np.array([[0.0, 1e9, 5000.0]], np.float32), *scale))[0]
    assert far[0] == -LIMIT and far[1] == LIMIT and abs(far[2]) < LIMIT


def test_before_the_first_batch_numbers_are_only_clipped_and_what_never_changes_is_0() -> None:
    moments = RunningMoments("anything", (2,))
    assert list(moments.variables) == ["anything.00", "anything.01", "anything.02"]
    before = np.asarray(normalized(np.array([[0.5, 5000.0]], np.float32), *scaling(moments.now())))
    assert before.tolist() == [[0.5, LIMIT]]
    always = np.full((1, T, E, 2), 0.1, np.float32)
    scale = scaling(merged(moments.now(), always, np.ones((1, T, 1), np.bool_)))
    assert np.asarray(normalized(always, *scale)).any() == 0 and np.isfinite(scale[1]).all()


def test_bytes_are_normalized_as_numbers() -> None:
    values = np.array([0, 255, 255, 0], np.uint8).reshape(1, 4, 1, 1)
    scale = scaling(merged(RunningMoments("anything", (1,)).now(), values, np.ones((1, 4, 1), np.bool_)))
    np.testing.assert_allclose(np.asarray(normalized(values, *scale)).ravel(), [-1, 1, 1, -1], rtol=1e-6)


def test_moments_are_float64_and_not_trained() -> None:
    for variable in RunningMoments("anything", (2,)).variables.values():
        assert keras.backend.standardize_dtype(variable.dtype) == "float64" and not variable.trainable
    assert Moments._fields == ("count", "mean", "squares")
