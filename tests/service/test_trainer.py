"""A trainer: batches of one size, none of them of weights that are gone."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from counting import busy
from ports import serve

from ga3c.envs.factory import EnvSpec
from ga3c.learner.learner import TooLarge
from ga3c.service.trainer import Spent, run_trainer
from ga3c.transport.channel import SUBMIT, TAKE, Channel, Port
from ga3c.transport.seating import Seating
from ga3c.transport.slots import Slots, Batch

SPEC = EnvSpec("test", (3,), np.dtype(np.float32), 2, 1)


class Learner:
    """Notes what it is given: steps of the rollouts, and rewards of their first step."""

    def __init__(self, oldest: int = 0) -> None:
        self.version, self.min_valid_version = 7, oldest
        self.steps: list[list[int]] = []
        self.first_rewards: list[float] = []

    def update(self, batch: Batch) -> Any:
        self.steps.append(batch.steps.tolist())
        self.first_rewards += batch.reward[batch.steps > 0, 0, 0].tolist()
        return SimpleNamespace(waited=0.0)


def handed_in(port: Port, store: Slots, slot: int, version: int) -> None:
    store.steps[slot], store.version[slot], store.reward[slot] = 2, version, slot
    store.seconds[slot] = 1.0
    serve(port, (SUBMIT, slot, 0))


@contextlib.contextmanager
def waiting(rollouts: int, version: Callable[[int], int] = lambda slot: 7) -> Iterator[tuple[Channel, Slots]]:
    """So many rollouts, of these versions, that wait for a trainer, and the word to end."""
    store = Slots(SPEC, 2, 1, 16)
    channel = Channel(store, Seating(1), 16)
    port = channel.open(0)
    for slot in range(rollouts):
        assert serve(port, (TAKE, 0, 0)) == slot
        handed_in(port, store, slot, version(slot))
    channel.dismiss_trainer()
    yield channel, store
    channel.handed_over(port)
    channel.close()


def trained(n_rollouts: int, rollouts: int, learner: Learner,
            version: Callable[[int], int] = lambda slot: 7) -> tuple[Learner, list[Batch], list[Batch]]:
    """What a trainer does with so many rollouts, of these versions, and the word to end."""
    reported: list[Batch] = []
    dropped: list[Batch] = []
    with waiting(rollouts, version) as (channel, store):
        run_trainer(channel, store, cast(Any, learner), n_rollouts,
                    lambda update, batch, spent: reported.append(batch),
                    # A copy, as the room is used again.
                    dropped=lambda batch: dropped.append(batch[np.ones(len(batch), np.bool_)]))
    return learner, reported, dropped


def test_the_last_batch_is_filled_up_with_rollouts_without_a_step() -> None:
    learner, reported, _ = trained(3, 5, Learner())
    assert learner.steps == [[2, 2, 2], [2, 2, 0]] and learner.first_rewards == [0, 1, 2, 3, 4]
    assert reported[-1].agent_steps == 4 and reported[-1].seconds.sum() == 6.0, "the third was of the batch before"


def test_nothing_is_trained_on_where_nothing_is_left() -> None:
    assert trained(3, 3, Learner())[0].steps == [[2, 2, 2]]


@pytest.mark.parametrize("n_rollouts", [1, 2])
def test_rollouts_of_weights_that_are_gone_are_not_trained_on(n_rollouts: int) -> None:
    learner, _, dropped = trained(n_rollouts, 6, Learner(oldest=6), lambda i: 5 if i in (0, 1, 2) else 6)
    assert learner.first_rewards == [3, 4, 5] and sum(batch.agent_steps for batch in dropped) == 6


def test_a_rollout_that_is_an_update_is_trained_on_in_its_slot_which_is_free_only_then() -> None:
    class Looking(Learner):
        def update(self, batch: Batch) -> Any:
            assert np.shares_memory(batch.observation, store.observation) and batch.observation.shape[:3] == (1, 2, 1)
            assert not select.select([port._replies], [], [], 0)[0], "nothing is given back yet"
            assert batch.following.tolist() == [[[9.0] * 3]] and not batch.observation.any()
            return super().update(batch)

    learner, store = Looking(), Slots(SPEC, 2, 1, 2)
    channel = Channel(store, Seating(1), 2)
    port = channel.open(0)
    store.following[0] = 9.0
    store.steps[0] = 1
    serve(port, (SUBMIT, 0, 0))
    channel.dismiss_trainer()
    run_trainer(channel, store, cast(Any, learner), 1, lambda update, batch, spent: None)
    assert learner.steps[-1] == [1] and select.select([port._replies], [], [], 0)[0]
    channel.handed_over(port)
    channel.close()


@contextlib.contextmanager
def at_play(agents: int, of: int) -> Iterator[tuple[Channel, Slots, Port]]:
    """A process of so many agents that play, two slots each, side by side; an update needs `of` rollouts."""
    store = Slots(SPEC, 2, 1, 2 * agents)
    channel = Channel(store, Seating(agents, agents), 2, rollouts_per_update=of)
    port = channel.open(0)
    channel._answered_at = [each + 1.0 for each in channel._opened_at]
    assert [port.ask(slot % agents, (TAKE, 0, 0)) for slot in range(2 * agents)] == [*range(2 * agents)]
    yield channel, store, port
    channel.handed_over(port)
    channel.close()


def hand_in(port: Port, store: Slots, slots: list[int], version: Callable[[int], int] = lambda slot: 7) -> None:
    for slot in slots:
        store.steps[slot], store.version[slot], store.reward[slot] = 2, version(slot), slot
        assert port.ask(slot % len(port.agents), (SUBMIT, slot, 0)) == 0
    port._submit()  # whatever would be in step


def test_rollouts_side_by_side_are_trained_on_where_they_lie_in_whichever_order_they_came() -> None:
    class Looking(Learner):
        def update(self, batch: Batch) -> Any:
            assert np.shares_memory(batch.observation, store.observation) and channel._lent == [4]
            return super().update(batch)

    learner = Looking()
    with at_play(4, 4) as (channel, store, port):
        hand_in(port, store, [3, 0, 2, 1])
        channel.dismiss_trainer()
        run_trainer(channel, store, cast(Any, learner), 4, lambda update, batch, spent: None)
        assert learner.first_rewards == [0, 1, 2, 3] and channel._lent == [0]


@pytest.mark.parametrize(("others_play", "rewards", "steps"), [
    (True, [4, 5, 0, 2, 6, 7, 3], [[2, 2]] * 3 + [[2, 0]]),
    (False, [4, 5, 0, 2, 3, 6, 7], [[2, 2], [2, 0], [2, 2], [2, 2]])])
def test_what_has_been_copied_is_trained_on_after_one_block(
        others_play: bool, rewards: list[int], steps: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner()
    with at_play(4, 2) as (channel, store, port):
        assert channel.only_blocks()
        monkeypatch.setattr(channel, "only_blocks", lambda: not others_play)
        hand_in(port, store, [0, 5, 4, 2, 3, 6, 7])  # the first will not be whole: who was to fill it is in the next
        channel.dismiss_trainer()
        run_trainer(channel, store, cast(Any, learner), 2, lambda update, batch, spent: None)
    assert learner.first_rewards == rewards and learner.steps == steps


def test_of_a_block_what_is_old_is_left_out_and_told() -> None:
    learner, dropped, reported = Learner(oldest=6), list[float](), list[int]()
    with at_play(2, 2) as (channel, store, port):
        hand_in(port, store, [0, 1, 2, 3], lambda slot: 5 if slot < 3 else 6)
        channel.dismiss_trainer()
        run_trainer(channel, store, cast(Any, learner), 2,
                    lambda update, batch, spent: reported.append(batch.agent_steps),
                    dropped=lambda batch: dropped.extend(batch.reward[:, 0, 0].tolist()))
    assert learner.steps == [[0, 2]] and learner.first_rewards == [3] and reported == [2] and dropped == [0, 1, 2]


def test_what_has_been_copied_is_told_when_the_update_of_a_block_fails() -> None:
    class Failing(Learner):
        def update(self, batch: Batch) -> Any:
            raise ZeroDivisionError

    dropped: list[float] = []
    with at_play(4, 2) as (channel, store, port), pytest.raises(ZeroDivisionError):
        hand_in(port, store, [0, 5, 2, 3])
        run_trainer(channel, store, cast(Any, Failing()), 2, lambda update, batch, spent: None,
                    dropped=lambda batch: dropped.extend(batch.reward[:, 0, 0].tolist()))
    assert dropped == [2, 3, 0]


@pytest.mark.parametrize("n_rollouts", [1, 2])
def test_a_slot_is_given_back_whatever_an_update_raises(n_rollouts: int) -> None:
    class Failing(Learner):
        def update(self, batch: Batch) -> Any:
            raise ZeroDivisionError

    with waiting(2) as (channel, store):
        with pytest.raises(ZeroDivisionError) as kept:  # with its traceback
            run_trainer(channel, store, cast(Any, Failing()), n_rollouts, lambda update, batch, spent: None)
        assert channel._freed[0] == n_rollouts and channel._lent == [2 - n_rollouts] and kept, "the rest is another's"


def test_rollouts_of_an_update_that_is_not_made_are_told() -> None:
    class Refusing(Learner):
        def update(self, batch: Batch) -> Any:
            return super().update(batch) if self.steps else self.steps.append([])

    _, reported, dropped = trained(2, 4, Refusing())
    assert [batch.agent_steps for batch in dropped] == [4] and len(reported) == 1


@pytest.mark.parametrize("failure", [ZeroDivisionError, TooLarge])
def test_rollouts_of_an_update_that_fails_are_told(failure: type[Exception]) -> None:
    class Failing(Learner):
        def update(self, batch: Batch) -> Any:
            if len(self.steps) == 1:
                raise failure
            return super().update(batch)

    reported: list[int] = []
    dropped: list[int] = []
    with waiting(4) as (channel, store), pytest.raises(failure):
        run_trainer(channel, store, cast(Any, Failing()), 2,
                    lambda update, batch, spent: reported.append(batch.agent_steps),
                    dropped=lambda batch: dropped.append(batch.agent_steps))
    assert (reported, dropped) == ([4], [4])


def test_the_wait_for_another_trainers_update_is_no_work() -> None:
    class Waiting(Learner):
        def update(self, batch: Batch) -> Any:
            super().update(batch)
            return SimpleNamespace(waited=-5.0)  # as if the update had taken five seconds more

    spent: list[Spent] = []
    with waiting(1) as (channel, store):
        run_trainer(channel, store, cast(Any, Waiting()), 1, lambda update, batch, time: spent.append(time))
    assert spent[0].updating > 5.0 and spent[0].waiting < -4.0


@pytest.mark.parametrize("n_rollouts", [1, 2])
def test_the_update_before_is_no_wait(n_rollouts: int) -> None:
    class Busy(Learner):
        def update(self, batch: Batch) -> Any:
            busy(0.2)
            return super().update(batch)

    spent: list[Spent] = []
    with waiting(2 * n_rollouts) as (channel, store):
        run_trainer(channel, store, cast(Any, Busy()), n_rollouts, lambda update, batch, time: spent.append(time))
    assert len(spent) == 2 and spent[1].waiting < 0.1 and spent[1].updating > 0.15


@pytest.mark.parametrize(("inside", "outside"), [(0.3, 0.0), (0.0, 0.3)])
def test_what_a_trainer_takes_outside_the_model_is_told(
        inside: float, outside: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Learner):
        def update(self, batch: Batch) -> Any:
            busy(inside)
            return super().update(batch) if self.steps else self.steps.append([])  # the first update is not made

    @contextlib.contextmanager
    def slowly(most: int, oldest: bool) -> Iterator[Any]:
        busy(outside)
        with collect(most, oldest) as found:
            yield found

    spent: list[Spent] = []
    with waiting(2) as (channel, store):
        collect = channel.collect
        monkeypatch.setattr(channel, "collect", slowly)
        run_trainer(channel, store, cast(Any, Slow()), 1, lambda update, batch, time: spent.append(time))
    told, = spent
    assert 2 * outside <= told.outside < 2 * outside + 0.2, "of both updates"
