"""Several passes over a batch, in minibatches: each row as often, targets fixed, what is not finite left out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from batches import FIELDS, VECTOR, learn, random_batch, settings, weights

from ga3c.algorithms.base import Head, Loss, Network, Prepared, Rates, Tensor
from ga3c.envs.base import EnvSpec
from ga3c.learner.tensorflow.backend import Updating
from ga3c.learner.learner import Diverged, Learner, TooLarge
from ga3c.settings.annealing import Annealed
from ga3c.settings.messages import ConfigError
from ga3c.transport.fields import Field

ROWS = 24
PPO = {"algorithm": "ppo", "loss_reduction": "mean", "normalize_advantages": True, "optimizer": "adam"}


class Counting:
    """Counts in its state how often each row was in a minibatch, and sums the targets fixed before the first pass."""

    reads = ("reward", "observation", "filled")
    rates: dict[str, Annealed] = {}
    reads_target = False

    def __init__(self) -> None:
        self.variables = {"counted.00": keras.Variable(np.zeros(ROWS), trainable=False, dtype="float32"),
                          "counted.01": keras.Variable(0.0, trainable=False, dtype="float32")}

    def heads(self, env: EnvSpec) -> dict[str, Head]:
        return {"value": Head(1)}

    def outputs(self, env: EnvSpec) -> dict[str, Field]:
        return {"value": Field((), np.float32)}

    def act(self, network: Network, observation: Tensor) -> dict[str, Tensor]:
        return {"value": network(observation)["value"][:, 0]}

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        ops = keras.ops
        observation = ops.reshape(batch["observation"], (-1, 3))
        filled = ops.reshape(ops.broadcast_to(batch["filled"], ops.shape(batch["reward"])), (-1,))
        return Prepared({"observation": observation, "number": ops.arange(ROWS), "filled": filled,
                         "target": network(observation)["value"][:, 0] + ops.reshape(batch["reward"], (-1,))},
                        {"counted.01": ops.convert_to_tensor(self.variables["counted.01"]) + 1.0})

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        ops = keras.ops
        value = network(rows["observation"], training=True)["value"][:, 0]
        error = ops.mean((value - rows["target"])**2)
        counted = self.variables["counted.00"] + ops.sum(ops.one_hot(rows["number"], ROWS), axis=0)
        return Loss(error, {"error": error, "target": ops.mean(rows["target"]),
                            "size": ops.cast(ops.shape(rows["number"])[0], "float32")}, {"counted.00": counted})


@pytest.mark.parametrize(("passes", "minibatches", "steps"), [
    (1, 1, [3] * 4), (3, 1, [3] * 4), (1, 6, [3] * 4), (3, 5, [3] * 4), (2, 4, [3, 1, 2, 3]), (2, 100, [3, 1, 2, 3])])
def test_each_filled_row_is_in_one_minibatch_of_each_pass_and_targets_stay_as_they_were(
        passes: int, minibatches: int, steps: list[int]) -> None:
    counting = Counting()
    backend = Updating(settings(optimizer="adam", passes=passes, minibatches=minibatches), VECTOR, counting, FIELDS)
    batch, weights = random_batch(), backend.publish()
    batch.steps[:] = steps
    filled = np.broadcast_to(batch.filled, batch.reward.shape).ravel()
    value = backend.predict(batch.observation.reshape(-1, 3), weights)["value"]
    updated = backend.update(backend.inputs(batch), {"learning_rate": 0.01}, (), (0, 0))
    counts = backend.arrays()["counted.00"]
    if passes * minibatches > 1:  # in one call of everything rows are not picked: the loss weighs them
        assert counts.tolist() == np.where(filled, passes, 0).tolist()
        parts = min(max(1, round(minibatches * filled.sum() / ROWS)), filled.sum())
        assert updated.metrics["size"] == pytest.approx(filled.sum() / parts)
        if filled.sum() % parts == 0:
            assert updated.metrics["target"] == pytest.approx((value + batch.reward.ravel())[filled].mean(), rel=1e-4)
    assert backend.arrays()["counted.01"] == 1.0 and updated.metrics["passes"] == passes
    now, then = (backend.predict(batch.observation.reshape(-1, 3), each)["value"]
                 for each in (backend.publish(), weights))
    assert np.abs(now - then).max() > 1e-3 and np.array_equal(then, value), "a snapshot never changes"


def test_the_same_seed_and_version_shuffle_alike_and_others_do_not() -> None:
    def after(updates: int, **changes: Any) -> bytes:
        model = Learner(settings(**{**PPO, "minibatches": 4, "passes": 2, **changes}), VECTOR)
        start = Learner(settings(**PPO), VECTOR).state()[0]
        model.restore(start, 0)
        for _ in range(updates):
            learn(model, random_batch())
        return b"".join(array.tobytes() for array in weights(model).values())

    assert after(3) == after(3) and after(3) != after(3, seed=1)


def test_rows_are_shuffled_anew_in_each_pass_of_each_update() -> None:
    model, picked = Learner(settings(**PPO, passes=2, minibatches=2), VECTOR), list[list[int]]()
    step = model._backend._update._step

    def noting(*inputs: Any) -> list[Tensor]:
        picked.append(inputs[-len(inputs) + len(model._backend._update._rows)].numpy().tolist())
        return step(*inputs)

    model._backend._update._step = noting
    for _ in range(2):
        learn(model, random_batch())
    orders = [first + second for first, second in zip(picked[::2], picked[1::2], strict=True)]
    assert all(sorted(order) == list(range(ROWS)) for order in orders) and len(orders) == 4
    assert len({tuple(order) for order in orders}) == 4


def test_an_update_of_several_passes_is_one_version_and_counts_its_steps_once() -> None:
    model = Learner(settings(**PPO, passes=3, minibatches=2), VECTOR)
    for number in (1, 2):
        update = learn(model, random_batch(seed=number))
        assert (update.version, update.batch_steps) == (number, 24)
        assert update.metrics["passes"] == 3.0 and {"clip_fraction", "kl"} <= update.metrics.keys()
    assert int(model.state()[0]["optimizer.00"]) == 12


def test_a_minibatch_that_is_not_finite_is_left_out_and_a_batch_of_them_changes_nothing() -> None:
    options = PPO | {"normalize_advantages": False, "passes": 3, "minibatches": 24}
    model = Learner(settings(**options), VECTOR)
    batch = random_batch()
    batch.reward[2, 0, 1], batch.terminated[2, 0, 1] = np.nan, True
    before = model.state()[0]
    update = learn(model, batch)
    assert update.metrics["passes"] == pytest.approx(3 * 23 / 24) and all(map(np.isfinite, update.metrics.values()))
    assert (model.skips.updates, model.skips.minibatches) == (0, 3)
    assert model.skips.last == "3 minibatches of update 1 are not finite"
    after = weights(model)
    assert any((array != before[name]).any() for name, array in after.items())
    assert all(np.isfinite(array).all() for array in after.values())
    batch.observation[:] = np.nan
    assert learn(model, batch) is None and model.skips.updates == 1
    assert all(np.array_equal(array, after[name]) for name, array in weights(model).items())
    with pytest.raises(Diverged):
        for _ in range(9):
            learn(model, batch)


@pytest.mark.parametrize(("steps", "minibatches"), [
    ([3, 3, 3, 3], 8), ([3, 2, 3, 3], 7), ([1, 1, 1, 0], 2), ([1, 0, 0, 0], 1)])
def test_a_batch_that_is_not_full_has_fewer_minibatches_of_the_usual_size(steps: list[int], minibatches: int) -> None:
    model, batch = Learner(settings(**PPO, passes=3, minibatches=8), VECTOR), random_batch()
    batch.steps[:] = steps
    metrics = learn(model, batch).metrics
    assert int(model.state()[0]["optimizer.00"]) == 3 * minibatches
    assert metrics["passes"] == 3.0 and metrics["explained_variance"] >= -1.0


def test_an_update_in_a_hurry_ends_after_the_minibatch_it_is_in() -> None:
    model = Learner(settings(**PPO, passes=3, minibatches=4), VECTOR)
    step, calls = model._backend._update._step, list[int]()

    def hurrying(*inputs: Any) -> list[Tensor]:
        calls.append(model.version)
        model.ending_early = len(calls) == 5
        return step(*inputs)

    model._backend._update._step = hurrying
    update = learn(model, random_batch())
    assert len(calls) == 5 and update.metrics["passes"] == 1.25 and update.version == 1
    assert learn(model, random_batch()) is None and (model.version, len(calls)) == (1, 5), "no other one begins"
    policy = model.predict(random_batch().observation[0, 0])[0]["policy"]
    model.restore(*model.state())
    np.testing.assert_array_equal(model.predict(random_batch().observation[0, 0])[0]["policy"], policy)


def test_after_a_failure_between_minibatches_one_acts_with_the_weights_that_there_are() -> None:
    model = Learner(settings(**PPO, passes=3, minibatches=4), VECTOR)
    step, calls = model._backend._update._step, list[int]()

    def failing(*inputs: Any) -> list[Tensor]:
        calls.append(model.version)
        if len(calls) == 5:
            raise tf.errors.ResourceExhaustedError(None, None, "it is full")
        return step(*inputs)

    model._backend._update._step = failing
    with pytest.raises(TooLarge):
        learn(model, random_batch())
    policy = model.predict(random_batch().observation[0, 0])[0]["policy"]
    assert model.version == 0 and int(model.state()[0]["optimizer.00"]) == 4
    model.restore(*model.state())
    np.testing.assert_array_equal(model.predict(random_batch().observation[0, 0])[0]["policy"], policy)


def test_rows_that_are_not_filled_change_nothing() -> None:
    models = [Learner(settings(**PPO, passes=2, minibatches=3), VECTOR) for _ in range(2)]
    for model, dirt in zip(models, (0.0, np.nan), strict=True):
        batch = random_batch(seed=1)
        batch.steps[:] = [3, 1, 2, 0]
        batch.observation[1, 1:] += dirt
        batch.observation[3] += dirt
        learn(model, batch)
    for name, array in weights(models[0]).items():
        np.testing.assert_array_equal(array, weights(models[1])[name])


@pytest.mark.parametrize("algorithm", ["a3c", "ppo"])
def test_normalised_observations_and_rewards_are_merged_once_an_update(algorithm: str) -> None:
    s = settings(**PPO | {"algorithm": algorithm}, passes=3, minibatches=2, normalize_observations=True,
                 normalize_rewards=True)
    model, batch = Learner(s, VECTOR), random_batch(discounted=True)
    assert learn(model, batch) is not None
    arrays = model.state()[0]
    assert arrays["observation.00"] == arrays["return.00"] == 24
    np.testing.assert_allclose(arrays["observation.01"], batch.observation.reshape(-1, 3).mean(axis=0), rtol=1e-5)
    assert model.predict(batch.observation[0, 0])[0]["policy"].shape == (2, 4)


_OWN = '''
from ga3c.algorithms.a2c import A2C


class Mine(A2C):
    def loss(self, network, rows, rates):
        found = super().loss(network, rows, rates)
        return found._replace(metrics=found.metrics | {"mine": found.total})


class Broken:
    def __init__(self, settings):
        raise SystemExit("no")
'''


def test_an_algorithm_is_one_file_also_a_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_algorithm.py").write_text(_OWN)
    monkeypatch.syspath_prepend(tmp_path)
    assert "mine" in learn(Learner(settings(algorithm="own_algorithm:Mine"), VECTOR), random_batch()).metrics
    for name, told in (("Broken", "cannot be made: SystemExit: the code 'no'"), ("Missing", "cannot be imported")):
        with pytest.raises(ConfigError, match=told):
            Learner(settings(algorithm=f"own_algorithm:{name}"), VECTOR)
    listed = "a3c, appo, a2c, ppo, pqn, dqn, c51, qr, a3c-cpu or module:Class"
    with pytest.raises(ConfigError, match=f"{listed}.*did you mean.*ppo"):
        settings(algorithm="pppo")
