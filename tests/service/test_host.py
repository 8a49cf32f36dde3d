"""The two halves of a service, each alone: a host without a trainer, a training side without agents."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from counting import CheckingModel, counting
from ports import SPEC

from ga3c.learner.learner import UpdateStats
from ga3c.learner.skips import Diverged, Skips
from ga3c.runs.recorder import Recorder
from ga3c.service.host import Host
from ga3c.service.signals import Signals
from ga3c.service.training import training_side
from ga3c.settings.files import configured
from ga3c.transport.channel import Channel
from ga3c.transport.port import SUBMIT, TAKE
from ga3c.transport.slots import Batch, Slots

MakeRun = Callable[..., Recorder]


def test_a_host_plays_without_a_trainer_and_whoever_collects_has_whole_rollouts(
        make_run: MakeRun, interruption: Signals) -> None:
    settings, model, failures = counting(agents=2), CheckingModel(), list[BaseException]()
    host = Host(settings, make_run(settings), cast(Any, model), interruption,
                lambda error, began: failures.append(error))
    host.predictors.resize(1)
    host.agents.reconcile(2)
    collected = 0
    while collected < 40:
        with host.channel.collect(3) as collection:
            batch = host.store.empty_batch(len(collection.rollouts))
            host.store.gather(collection.slots, batch, 0)
            model.checked(batch)
            collected += len(collection.rollouts)
    host.reap(2)
    assert host.agents.at_work == 2 and len(host.sentinels) == 2 and not failures
    model.assert_nothing_doubled()
    host.agents.stop_all(at_once=False)
    host.predictors.resize(0)
    assert not host.sentinels and host.predictors.join(time.monotonic() + 60)
    host.channel.close()


def test_a_host_has_its_predictors_wait_as_it_is_set(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("ga3c.service.host.run_predictor", lambda *arguments: given.extend(arguments))
    settings = counting(prediction_batch_min=7, prediction_batch_max=90)
    host = Host(settings, make_run(settings), cast(Any, CheckingModel()), interruption, lambda error, began: None)
    host.predictors.resize(1)
    assert host.predictors.join(time.monotonic() + 60)
    assert given[3] == 90 and given[5] == 7
    host.channel.close()


class FakeHost:
    """Rollouts that wait, and nobody who played them."""

    def __init__(self, rollouts: int) -> None:
        self.store = Slots(SPEC, 2, 1, 16)
        self.channel = Channel(self.store, 16)
        self._port = self.channel.open(0)
        for _ in range(rollouts):
            slot = self._port.grant((TAKE, 0, 0), self.store)
            self.store.steps[slot] = 2
            self._port.grant((SUBMIT, slot, 0), self.store)

    def close(self) -> None:
        """Ends both ends of the queue."""
        self._port.close()
        self.channel.close()


class Learns:
    """Learns nothing; diverges at its update number `last`."""

    min_valid_version = 0

    def __init__(self, last: int) -> None:
        self.skips = Skips()
        self.trained = list[int]()
        self._last = last

    def update(self, batch: Batch, *clock: int) -> Any:
        """See `Learner.update`."""
        if len(self.trained) + 1 == self._last:
            raise Diverged("at last")
        self.trained.append(batch.agent_steps)
        return UpdateStats(len(self.trained), batch.size, {})

    def publish(self) -> None:
        """See `Learner.publish`."""


@pytest.mark.parametrize("last", [2, 9])
def test_a_training_side_learns_from_any_host(last: int, make_run: MakeRun) -> None:
    settings = configured(game="toy:catch", tensorboard=False, rollout_length=2, envs_per_agent=1, agents=1,
                          training_batch_min=4, dynamic=False)
    run, host, model, failures = make_run(settings), FakeHost(9), Learns(last), list[BaseException]()
    training = training_side(settings)(settings, host, cast(Any, model), run, lambda: None,
                                       lambda error, began: failures.append(error))
    training.trainers.resize(1)
    training.trainers.resize(0)
    assert training.trainers.join(time.monotonic() + 60)
    if last == 2:
        assert [str(error) for error in failures] == ["at last"] and model.trained == [4]
        training.drop_rollouts("The trainers have failed")
        assert "The trainers have failed: 5 rollouts are not trained on." in (run.directory / "log.txt").read_text()
    else:
        assert not failures and model.trained == [4, 4, 4, 4, 2], "the last is short: the trainer was dismissed"
    host.close()
