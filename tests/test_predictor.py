"""A predictor: what it counts."""

from __future__ import annotations

import time
from typing import Any, cast

import numpy as np
import pytest
from counting import busy

from ga3c.channel import Channel
from ga3c.environment import EnvironmentSpec
from ga3c.predictor import PredictionCount, run_predictor
from ga3c.rollout import RolloutStore

SPEC = EnvironmentSpec("test", (3,), np.dtype(np.float32), 2, 1)


class Uniform:
    """Answers at once."""

    def predict(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        n = len(observation)
        return np.full((n, 2), 0.5, np.float32), np.zeros(n, np.float32), 0


def test_a_request_of_an_agent_that_has_died_has_waited_for_nothing() -> None:
    store = RolloutStore(SPEC, 2, 1, 4)
    channel, count = Channel(store, 2, 2), PredictionCount()
    dead, alive = channel.open(0), channel.open(1)
    for port in (dead, alive):
        store.asked[port.first_slot, 0] = time.monotonic() - 0.5
        channel._predictions.put(port.agent, port.first_slot, 0, port.incarnation)
    channel.hang_up(0)
    channel.open(0)  # its successor has asked for nothing yet
    channel.dismiss_predictor()
    run_predictor(channel, store, cast(Any, Uniform()), 8, count)
    assert count.requests == 2 and 0.5 <= count.queued < 5.0
    channel.close()


@pytest.mark.parametrize(("inside", "outside"), [(0.3, 0.0), (0.0, 0.3)])
def test_what_a_predictor_takes_outside_the_model_is_told(
        inside: float, outside: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Uniform):
        def predict(self, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
            busy(inside)
            return super().predict(observation)

    def look(*args: Any) -> np.ndarray:
        busy(outside)
        return looked(*args)

    store = RolloutStore(SPEC, 2, 1, 2)
    looked = store.look
    monkeypatch.setattr(store, "look", look)
    channel, count = Channel(store, 1, 2), PredictionCount()
    port = channel.open(0)
    channel._predictions.put(port.agent, port.first_slot, 0, port.incarnation)
    channel.dismiss_predictor()
    run_predictor(channel, store, cast(Any, Slow()), 8, count)
    assert outside <= count.outside < outside + 0.2
    channel.handed_over(port)
    channel.close()
