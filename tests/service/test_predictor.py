"""A predictor: what it counts."""

from __future__ import annotations

import time
from typing import Any, cast

import numpy as np
import pytest
from counting import busy

from ga3c.envs.base import EnvSpec
from ga3c.runs.statistics import PredictionCount, Statistics
from ga3c.service.conductor import Conductor
from ga3c.service.predictor import Predictor, run_predictor
from ga3c.service.rounds import Update
from ga3c.settings.schedule import Schedule
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Slots

SPEC = EnvSpec("test", (3,), np.dtype(np.float32), 2, 1)


class Uniform:
    """Answers at once."""

    def shared(self, observation: np.ndarray) -> np.ndarray:
        return observation

    def predict(self, observation: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
        n = len(observation)
        return {"policy": np.full((n, 2), 0.5, np.float32), "value": np.zeros(n, np.float32)}, 0


def test_a_request_of_an_agent_that_has_died_has_waited_for_nothing() -> None:
    store = Slots(SPEC, 2, 1, 4, 2)
    channel, count = Channel(store, 2), PredictionCount()
    dead, alive = channel.open(0), channel.open(1)
    for port in (dead, alive):
        first = 2 * port.agent
        store.requested_at[first, 0] = time.monotonic() - 0.5
        channel._predictions.put(port.agent, first, 0, port.generation)
    channel.hang_up(0)
    channel.open(0)  # its successor has asked for nothing yet
    channel.dismiss_predictor()
    run_predictor(channel, store, cast(Any, Uniform()), 8, count)
    assert count.requests == 2 and 0.5 <= count.queued < 60.0
    channel.close()


def test_what_the_same_thread_takes_for_updates_is_not_outside_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        version = min_valid_version = 0

        def update(self, batch: Any, *clock: int) -> None:
            busy(0.3)

    store = Slots(SPEC, 1, 1, 2)
    channel, count = Channel(store, 2), PredictionCount()
    predictor = Predictor(channel, store, cast(Any, Uniform()), 1, count)
    conductor = Conductor(channel, store, cast(Any, Busy()), Schedule(1), 1, cast(Any, None), Statistics(1),
                          lambda: False)
    due = iter([Update([]), None])
    monkeypatch.setattr(conductor._rounds, "due", lambda present: next(due))
    port = channel.open(0)
    conductor._work(predictor)
    channel._predictions.put(0, 0, 0, port.generation)
    channel.dismiss_predictor()
    predictor.answer(next(channel.requests(1)))
    assert count.outside < 0.3
    port.close()
    channel.close()


@pytest.mark.parametrize(("inside", "outside"), [(0.3, 0.0), (0.0, 0.3)])
def test_what_a_predictor_takes_outside_the_model_is_counted(
        inside: float, outside: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Uniform):
        def predict(self, observation: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
            busy(inside)
            return super().predict(observation)

    def look(*args: Any) -> np.ndarray:
        busy(outside)
        return looked(*args)

    store = Slots(SPEC, 2, 1, 2)
    looked = store.observations
    monkeypatch.setattr(store, "observations", look)
    channel, count = Channel(store, 2), PredictionCount()
    port = channel.open(0)
    channel._predictions.put(0, 0, 0, port.generation)
    channel.dismiss_predictor()
    run_predictor(channel, store, cast(Any, Slow()), 8, count)
    assert outside <= count.outside < outside + 0.3
    port.close()
    channel.close()


@pytest.mark.parametrize(("n_envs", "batch_min", "batch_max", "asked"), [
    (1, 12, 128, (128, 12)), (4, 12, 128, (32, 3)), (5, 12, 128, (25, 2)),
    (16, 24, 128, (8, 1)), (16, 12, 128, (8, 1)), (1, 12, 4, (4, 4))])
def test_it_waits_for_as_many_agents_as_have_so_many_observations(
        n_envs: int, batch_min: int, batch_max: int, asked: tuple[int, int]) -> None:
    class Asked:
        def requests(self, most: int, least: int) -> Any:
            assert (most, least) == asked
            return iter(())

    store = Slots(SPEC, 2, n_envs, 2)
    run_predictor(cast(Any, Asked()), store, cast(Any, Uniform()), batch_max, PredictionCount(), batch_min)
