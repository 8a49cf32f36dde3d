"""`ship_policy.py`: what it does to weights, and a user's mistakes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import tool_here
from ship_policy import rounded


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False), min_size=1))
def test_a_rounded_weight_is_the_nearest_of_ten_bits(numbers: list[float]) -> None:
    weights = np.array(numbers, np.float32)
    found = rounded(weights)
    assert (np.abs(found - weights) <= np.abs(weights) * 2.0**-11).all()
    assert not (found.view(np.uint32) & 0x1FFF).any()
    assert np.array_equal(rounded(found), found)


@pytest.mark.parametrize(("arguments", "told"), [
    (("pong", "Pong!"), "NAME: 'Pong!' is to be small letters"),
    (("nothing-here", "pong"), "nothing-here is not a run"),
    (("boxing", "pong"), "NAME: boxing plays Boxing, so that it is to be boxing")])
def test_a_mistake_is_one_line(arguments: tuple[str, str], told: str) -> None:
    done = tool_here("release/ship_policy", *arguments)
    assert done.returncode == 2 and told in done.stderr.splitlines()[-1]
