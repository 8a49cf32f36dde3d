"""A trainer: batches of one size, none of them of weights that are gone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from counting import busy

from ga3c.envs.base import EnvSpec
from ga3c.learner.learner import TooLarge
from ga3c.runs.statistics import Statistics, TrainerTime
from ga3c.service.batches import RolloutQueue
from ga3c.service.trainer import UpdateSize, run_trainer
from ga3c.transport.channel import Channel
from ga3c.transport.port import SUBMIT, TAKE, Port
from ga3c.transport.slots import Batch, Slots

SPEC = EnvSpec("test", (3,), np.dtype(np.float32), 2, 1)


class Learner:
    """Notes what it is given: steps of the rollouts, and rewards of their first step."""

    def __init__(self, oldest: int = 0) -> None:
        self.min_valid_version = oldest
        self.steps: list[list[int]] = []
        self.first_rewards: list[float] = []

    def update(self, batch: Batch, *clock: int) -> Any:
        self.steps.append(batch.steps.tolist())
        self.first_rewards += batch.reward[batch.steps > 0, 0, 0].tolist()
        return SimpleNamespace(waited=0.0)

    def publish(self) -> None:
        pass


def submit(port: Port, store: Slots, version: int) -> None:
    slot = port.grant((TAKE, 0, 0), store)
    store.steps[slot], store.version[slot], store.reward[slot] = 2, version, slot
    store.seconds[slot] = 1.0
    port.grant((SUBMIT, slot, 0), store)


@contextlib.contextmanager
def waiting(rollouts: int, version: Callable[[int], int] = lambda slot: 7) -> Iterator[tuple[Channel, Slots]]:
    """So many rollouts, of these versions, that wait for a trainer, and its dismissal."""
    store = Slots(SPEC, 2, 1, 16)
    channel = Channel(store, 16)
    port = channel.open(0)
    for number in range(rollouts):
        submit(port, store, version(number))
    channel.dismiss_trainer()
    yield channel, store
    port.close()
    channel.close()


def run(channel: Channel, store: Slots, learner: Any, n_rollouts: int,
        report: Callable[..., object] = lambda update, batch, spent: None, **more: Any) -> Statistics:
    """A trainer over the queue. Returns what was counted, whatever it raises."""
    statistics = more.pop("statistics", None) or Statistics(1)
    run_trainer(RolloutQueue(channel, store, n_rollouts, learner, statistics), learner, statistics, cast(Any, report),
                more.pop("size", UpdateSize()))
    statistics.drain()
    return statistics


def trained(n_rollouts: int, rollouts: int, learner: Learner,
            version: Callable[[int], int] = lambda slot: 7) -> tuple[Learner, list[Batch], int]:
    """What a trainer does with so many rollouts, of these versions, and its dismissal; agent steps that it dropped."""
    reported: list[Batch] = []
    with waiting(rollouts, version) as (channel, store):
        counted = run(channel, store, learner, n_rollouts, lambda update, batch, spent: reported.append(batch))
    assert counted.agent_steps == 2 * rollouts, "collected, whatever became of them"
    return learner, reported, counted.dropped_steps


def test_the_last_batch_is_filled_up_with_rollouts_without_a_step() -> None:
    learner, reported, _ = trained(3, 5, Learner())
    assert learner.steps == [[2, 2, 2], [2, 2, 0]] and learner.first_rewards == [0, 1, 2, 3, 4]
    assert reported[-1].agent_steps == 4 and reported[-1].seconds.sum() == 6.0, "the third was of the batch before"


def test_nothing_is_trained_on_where_nothing_is_left() -> None:
    assert trained(3, 3, Learner())[0].steps == [[2, 2, 2]]


@pytest.mark.parametrize("n_rollouts", [1, 2])
def test_rollouts_of_weights_that_are_gone_are_not_trained_on(n_rollouts: int) -> None:
    learner, _, dropped = trained(n_rollouts, 6, Learner(oldest=6), lambda i: 5 if i in (0, 1, 2) else 6)
    assert learner.first_rewards == [3, 4, 5] and dropped == 6


def test_a_rollout_that_is_an_update_is_trained_on_in_its_slot_which_is_free_only_then() -> None:
    class Looking(Learner):
        def update(self, batch: Batch, *clock: int) -> Any:
            assert np.shares_memory(batch.observation, store.observation) and batch.observation.shape[:3] == (1, 2, 1)
            assert not port._replied.poll(0), "nothing is released yet"
            assert batch.following.tolist() == [[[9.0] * 3]] and not batch.observation.any()
            return super().update(batch, *clock)

    learner, store = Looking(), Slots(SPEC, 2, 1, 2)
    channel = Channel(store, 2)
    port = channel.open(0)
    store.following[0] = 9.0
    submit(port, store, 7)
    channel.dismiss_trainer()
    run(channel, store, learner, 1)
    assert learner.steps[-1] == [2] and port._replied.poll(0)
    port.close()
    channel.close()


@pytest.mark.parametrize("n_rollouts", [1, 2])
def test_a_slot_is_released_whatever_an_update_raises(n_rollouts: int) -> None:
    class Failing(Learner):
        def update(self, batch: Batch, *clock: int) -> Any:
            raise ZeroDivisionError

    with waiting(2) as (channel, store):
        with pytest.raises(ZeroDivisionError) as kept:  # with its traceback
            run(channel, store, Failing(), n_rollouts)
        assert channel._ends[0].collected == 0 and kept
        assert channel.training_queue == 3 - n_rollouts, "the rest, and the dismissal, are another's"


def test_the_half_of_a_batch_without_a_step_is_not_trained_on() -> None:
    class Small(Learner):
        def update(self, batch: Batch, *clock: int) -> Any:
            if len(batch) > 2:
                raise TooLarge("the device has no memory")
            return super().update(batch, *clock)

    learner, halved = Small(), list[tuple[int, int]]()
    with waiting(5) as (channel, store):
        run(channel, store, learner, 4, size=UpdateSize(lambda most, n_rollouts: halved.append((most, n_rollouts))))
    assert learner.steps == [[2, 2], [2, 2], [2, 0]] and halved == [(2, 4)]


def test_a_batch_with_old_rollouts_is_cleaned_and_not_refused() -> None:
    learner, _, dropped = trained(2, 6, Learner(oldest=6), lambda i: 5 if i in (1, 2) else 6)
    assert learner.steps == [[2, 0], [0, 2], [2, 2]] and learner.first_rewards == [0, 3, 4, 5]
    assert dropped == 4


def test_rollouts_of_an_update_that_is_not_made_are_reported() -> None:
    class Refusing(Learner):
        def update(self, batch: Batch, *clock: int) -> Any:
            return super().update(batch, *clock) if self.steps else self.steps.append([])

    _, reported, dropped = trained(2, 4, Refusing())
    assert dropped == 4 and len(reported) == 1


@pytest.mark.parametrize("failure", [ZeroDivisionError, TooLarge])
def test_rollouts_of_an_update_that_fails_are_reported(failure: type[Exception]) -> None:
    class Failing(Learner):
        def update(self, batch: Batch, *clock: int) -> Any:
            if len(self.steps) == 1:
                raise failure
            return super().update(batch, *clock)

    reported: list[int] = []
    counted = Statistics(1)
    with waiting(4) as (channel, store), pytest.raises(failure):
        run(channel, store, Failing(), 2, lambda update, batch, spent: reported.append(batch.agent_steps),
            statistics=counted)
    counted.drain()
    assert (reported, counted.dropped_steps) == ([4], 4)


def test_the_wait_for_another_trainers_update_is_no_work() -> None:
    class Waiting(Learner):
        def update(self, batch: Batch, *clock: int) -> Any:
            super().update(batch, *clock)
            return SimpleNamespace(waited=-5.0)  # as if the update had taken five seconds more

    spent: list[TrainerTime] = []
    with waiting(1) as (channel, store):
        run(channel, store, Waiting(), 1, lambda update, batch, time: spent.append(time))
    assert spent[0].updating > 5.0


def test_the_update_before_is_no_gathering() -> None:
    class Busy(Learner):
        def update(self, batch: Batch, *clock: int) -> Any:
            busy(0.5)
            return super().update(batch, *clock)

    spent: list[TrainerTime] = []
    with waiting(4) as (channel, store):
        run(channel, store, Busy(), 2, lambda update, batch, time: spent.append(time))
    assert len(spent) == 2 and spent[1].gathering < 0.5 and spent[1].updating > 0.4


@pytest.mark.parametrize(("inside", "outside"), [(0.3, 0.0), (0.0, 0.3)])
def test_what_a_trainer_takes_outside_the_model_is_reported(
        inside: float, outside: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Learner):
        def update(self, batch: Batch, *clock: int) -> Any:
            busy(inside)
            # The first update is not made.
            return super().update(batch, *clock) if self.steps else self.steps.append([])

    @contextlib.contextmanager
    def slowly(most: int) -> Iterator[Any]:
        busy(outside)
        with collect(most) as found:
            yield found

    spent: list[TrainerTime] = []
    with waiting(2) as (channel, store):
        collect = channel.collect
        monkeypatch.setattr(channel, "collect", slowly)
        run(channel, store, Slow(), 1, lambda update, batch, time: spent.append(time))
    told, = spent
    assert 2 * outside <= told.outside < 2 * outside + 0.3, "of both updates"


def test_a_source_hears_what_each_update_says_of_its_rows() -> None:
    class Rows(Learner):
        def update(self, batch: Batch, *clock: int) -> Any:
            super().update(batch, *clock)
            return SimpleNamespace(waited=0.0, rows={"error": batch.reward[:, 0, 0] + 1.0})

    class Hearing(RolloutQueue):
        def learned(self, batch: Batch, update: Any) -> None:
            heard.append((batch.reward[:, 0, 0].tolist(), update.rows["error"].tolist()))

    heard: list[tuple[list[float], list[float]]] = []
    learner, statistics = cast(Any, Rows()), Statistics(1)
    with waiting(4) as (channel, store):
        run_trainer(Hearing(channel, store, 2, learner, statistics), learner, statistics, lambda *report: None,
                    UpdateSize())
    assert heard == [([0.0, 1.0], [1.0, 2.0]), ([2.0, 3.0], [3.0, 4.0])]


def test_a_source_states_the_fields_of_its_rollouts() -> None:
    store = Slots(SPEC, 2, 1, 16)
    source = RolloutQueue(cast(Any, None), store, 3, cast(Any, None), Statistics(1))
    batch = store.empty_batch(3)
    assert {name: (field.shape, field.dtype) for name, field in source.fields.items()} == {
        name: (array.shape[1:], array.dtype) for name, array in {**batch.arrays, "filled": batch.filled}.items()}
