"""Generators become arrays and back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ga3c.envs.random_streams import packed, unpacked


@given(seed=st.integers(0, 2**63), drawn=st.integers(0, 9))
def test_a_generator_goes_on_where_it_was(seed: int, drawn: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(drawn):
        generator.integers(5, dtype=np.uint32)  # half of a word: the other half waits
    saved = packed(generator)
    again = unpacked(saved)
    assert saved.dtype == np.uint64 and saved.shape == (6,)
    np.testing.assert_array_equal(packed(again), saved)
    for each in (generator, again):
        each.integers(7, dtype=np.uint32)
    assert generator.random(9).tolist() == again.random(9).tolist()


def test_a_generator_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="MT19937"):
        packed(np.random.Generator(np.random.MT19937(0)))


@pytest.mark.parametrize("array", [
    np.zeros(5, np.uint64), np.zeros(6), np.full(6, 2**64 - 1, np.uint64)])
def test_what_is_no_generator_is_refused(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match="generator"):
        unpacked(array)
