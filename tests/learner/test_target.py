"""Update and publish are two calls, and a snapshot that is kept is a target network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from batches import VECTOR, random_batch, settings

from ga3c.learner.learner import Learner
from ga3c.settings.messages import ConfigError
from ga3c.transport.fields import Field
from ga3c.transport.slots import Batch, Slots

ALGORITHM = "learner_target:OneMore"


def made(**changes: Any) -> Learner:
    return Learner(settings(algorithm=ALGORITHM, optimizer="adam", learning_rate=0.01, **changes), VECTOR)


@pytest.mark.parametrize("changes", [
    {}, {"passes": 2, "minibatches": 3}, {"normalize_observations": True}], ids=str)
def test_values_follow_a_target_that_only_the_schedule_changes(changes: dict[str, Any]) -> None:
    model, batch = made(**changes), random_batch()
    observation = batch.observation.reshape(-1, 3)
    first = model.predict(observation)[0]["value"]
    for epoch in (1, 2):
        for _ in range(150):
            assert model.update(batch, 0, 0) is not None
        assert (model.predict(observation)[0]["value"] == first).all() or epoch == 2, "nothing was published yet"
        model.publish()
        value, version = model.predict(observation)
        assert version == model.version == 150 * epoch
        np.testing.assert_allclose(value["value"], first + epoch, atol=0.25)
        model.keep_target()


def test_an_update_says_the_error_of_each_row_and_nothing_of_those_it_left_out() -> None:
    for changes in ({}, {"passes": 2, "minibatches": 3}):
        model, batch = made(**changes), random_batch()
        batch.steps[1] = 1
        update = model.update(batch, 0, 0)
        assert update is not None and update.rows["error"].shape == (24,)
        filled = np.broadcast_to(batch.filled, batch.reward.shape).ravel()
        assert np.isfinite(update.rows["error"][filled]).all()
        if changes:
            assert np.isnan(update.rows["error"][~filled]).all()
        else:  # no weight has changed before
            np.testing.assert_allclose(update.rows["error"], 1.0, atol=1e-4)


def test_a_source_states_its_fields_and_shapes_and_the_update_reads_them() -> None:
    store = Slots(VECTOR, 1, 1, 1)
    n, fields = 64, {**store.rollout_fields, "wanted": Field((), np.dtype(np.float32)),
                     "weight": Field((), np.dtype(np.float32))}
    kind = settings(algorithm="learner_target:Remembers", optimizer="adam", learning_rate=0.01)
    with pytest.raises(ConfigError, match="reads 'wanted', which its batches do not have"):
        Learner(kind, VECTOR)
    model, rng = Learner(kind, VECTOR, fields), np.random.default_rng(0)
    batch = store.empty_batch(n)
    batch.steps[:] = 1
    batch.observation[:] = rng.normal(size=batch.observation.shape)
    wanted, weight = np.full(n, 3.0, np.float32), (np.arange(n) < n // 2).astype(np.float32)
    wanted[n // 2:] = 1e6
    batch = Batch({**batch.arrays, "wanted": wanted, "weight": weight})
    for _ in range(200):
        assert model.update(batch, 0, 0) is not None
    model.publish()
    value = model.predict(batch.observation.reshape(n, 3))[0]["value"]
    np.testing.assert_allclose(value[:n // 2], 3.0, atol=0.5)


def test_a_network_that_keeps_no_snapshot_has_no_target() -> None:
    with pytest.raises(ConfigError, match="keeps no snapshot of its weights"):
        made(network="learner_target:own_network")
