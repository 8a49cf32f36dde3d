"""The account of playing and training: the intensity holds, however fast either of them is."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ga3c.replay.ledger import Ledger


@examples(max_examples=100)
@given(st.sampled_from([0.5, 1.0, 3.2, 4.0, 8.0]), st.sampled_from([32, 256]), st.integers(1, 64),
       st.integers(0, 2000), st.integers(0, 99))
def test_the_intensity_holds_whoever_is_slow(
        intensity: float, batch: int, steps: int, start: int, seed: int) -> None:
    slack = 2 * max(steps, -(-int(batch / intensity) // 1))
    ledger = Ledger(start, intensity, slack)
    chance = random.Random(seed)
    slow = chance.random()
    while ledger.appended < start + 5_000:
        may_play, may_train = ledger.may_play(steps), ledger.may_train(batch)
        assert may_play or may_train, "both are held back"
        if may_train and (not may_play or chance.random() > slow):
            ledger.used += batch
        else:
            ledger.appended += steps
        assert abs(ledger.owed) <= intensity * slack + 1e-6 or ledger.appended < start + steps
    uses = ledger.used / (ledger.appended - start)
    assert uses == pytest.approx(intensity, abs=intensity * slack / 5_000)


def test_nothing_is_trained_before_the_start_and_then_what_is_owed() -> None:
    ledger = Ledger(start=100, intensity=4.0, slack=0)
    ledger.appended = 99
    assert not ledger.may_train(32) and ledger.updates_due(32) == 0 and ledger.may_play(1)
    ledger.appended = 108
    assert ledger.owed == 32.0 and ledger.updates_due(32) == 1 and ledger.may_train(32) and not ledger.may_play(1)
    ledger.used += 32
    assert ledger.updates_due(32) == 0 and not ledger.may_train(32)
