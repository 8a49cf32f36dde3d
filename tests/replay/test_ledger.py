"""The account of playing and training: the intensity holds, however fast either of them is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ga3c.replay.ledger import Ledger


@examples(max_examples=100)
@given(st.sampled_from([0.5, 1.0, 3.2, 4.0, 8.0]), st.sampled_from([32, 256]), st.integers(1, 64),
       st.integers(0, 2000))
def test_the_intensity_holds_if_updates_are_made_when_they_are_due(
        intensity: float, batch: int, steps: int, start: int) -> None:
    ledger = Ledger(start, intensity)
    while ledger.appended < start + 5_000:
        if ledger.updates_due(batch):
            ledger.used += batch
        else:
            ledger.appended += steps
        assert -1e-6 <= ledger.owed < batch + intensity * steps
    assert ledger.used / (ledger.appended - start) == pytest.approx(intensity, abs=(batch + intensity * steps) / 5_000)


def test_nothing_is_trained_before_the_start_and_then_what_is_owed() -> None:
    ledger = Ledger(start=100, intensity=4.0)
    ledger.appended = 99
    assert ledger.updates_due(32) == 0 and ledger.owed == 0.0
    ledger.appended = 108
    assert ledger.owed == 32.0 and ledger.updates_due(32) == 1
    ledger.used += 32
    assert ledger.updates_due(32) == 0
