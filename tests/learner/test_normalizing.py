"""Normalised observations and rewards in the learner: against batches that NumPy has normalised, and in snapshots."""

from __future__ import annotations

import sys
from types import ModuleType

import keras
import numpy as np
import pytest
from batches import IMAGE, VECTOR, learn, random_batch, settings, weights
from keras import layers

from ga3c.envs.base import EnvSpec
from ga3c.learner.learner import Learner
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.transport.slots import Batch

BOTH = {"normalize_observations": True, "normalize_rewards": True}


def batch_of(seed: int, around: float = 0.0) -> Batch:
    batch = random_batch(seed=seed, discounted=True)
    batch.steps[:] = [3, 1, 2, 3]
    for seen in (batch.observation, batch.following):
        seen *= [1.0, 10.0, 0.1]
        seen += around
    return batch


def filled(batch: Batch) -> np.ndarray:
    return np.broadcast_to(batch.filled, batch.reward.shape)


@pytest.mark.parametrize("correction", ["none", "vtrace"])
def test_an_update_is_that_of_a_batch_normalised_by_all_batches_so_far(correction: str) -> None:
    # With a rate of 0 the weights stay, so that every update can be compared with one from the same weights.
    s = settings(correction=correction, normalize_advantages=True, learning_rate=1e-30, reward_clip=1.0)
    model, plain = Learner(s.changed(**BOTH), VECTOR), Learner(s, VECTOR)
    seen, sums = [], []
    for seed in range(4):
        batch, by_hand = batch_of(seed, 50.0), batch_of(seed, 50.0)
        mask = filled(batch)
        seen.append(batch.observation[mask].astype(np.float64))
        sums.append(batch.discounted_reward[mask].astype(np.float64))
        mean, deviation = np.concatenate(seen).mean(axis=0), np.concatenate(seen).std(axis=0)
        for array in (by_hand.observation, by_hand.following):
            array[:] = np.clip((array - mean) / deviation, -10, 10)
        by_hand.reward[:] = by_hand.reward / np.concatenate(sums).std()
        one, other = learn(model, batch), learn(plain, by_hand)
        assert one is not None and other is not None and one.metrics == pytest.approx(other.metrics, rel=1e-3, abs=1e-5)
        predicted = model.predict(batch.observation.reshape(-1, 3))[0]
        np.testing.assert_allclose(predicted["policy"], plain.predict(by_hand.observation.reshape(-1, 3))[0]["policy"],
                                   atol=1e-5)
    state = model.state()[0]
    assert state["observation.00"] == state["return.00"] == len(np.concatenate(seen))
    np.testing.assert_allclose(state["observation.01"], mean)
    np.testing.assert_allclose(state["return.02"], state["return.00"] * np.concatenate(sums).var())


def test_one_setting_alone_keeps_its_own_moments_alone() -> None:
    for name, owner in (("normalize_observations", "observation"), ("normalize_rewards", "return")):
        model = Learner(settings(**{name: True}), VECTOR)
        assert learn(model, batch_of(0)) is not None
        found = [key for key in model.state()[0] if key.split(".")[0] in ("observation", "return")]
        assert found == [f"{owner}.{number:02d}" for number in range(3)]


def test_a_snapshot_keeps_the_moments_that_belong_to_its_weights() -> None:
    model, observation = Learner(settings(**BOTH), VECTOR), np.ones((2, 3), np.float32)
    learn(model, batch_of(0))
    first, before = model.snapshot(), model.predict(observation)[0]
    learn(model, batch_of(1, 500.0))
    np.testing.assert_equal(model._backend.predict(observation, first.weights), before)
    assert not np.array_equal(model.predict(observation)[0]["value"], before["value"])


def test_an_update_that_is_not_finite_leaves_the_moments_as_they_are() -> None:
    model, bad = Learner(settings(**BOTH), VECTOR), batch_of(1)
    learn(model, batch_of(0))
    before = model.state()[0]
    bad.bootstrap_value[0] = np.nan
    assert learn(model, bad) is None
    assert all(array.tobytes() == before[name].tobytes() for name, array in model.state()[0].items())


def test_a_restored_model_goes_on_exactly_and_one_gone_back_without_moments_begins_anew() -> None:
    s = settings(**BOTH)
    one, other, observation = Learner(s, VECTOR), Learner(s.changed(seed=1), VECTOR), np.ones((2, 3), np.float32)
    learn(one, batch_of(0, 50.0))
    other.restore(*one.state())
    np.testing.assert_equal(other.predict(observation), one.predict(observation))
    for model in (one, other):
        learn(model, batch_of(1, 50.0))
    np.testing.assert_equal(other.state(), one.state())
    without = Learner(settings(), VECTOR).state()[0]
    one.go_back(without)
    assert {name: array.any() for name, array in one.state()[0].items() if name[:6] in ("observ", "return")} == {
        f"{owner}.{number:02d}": np.False_ for owner in ("observation", "return") for number in range(3)}
    with pytest.raises(ValueError, match="observation.01 is missing"):
        one.restore({name: array for name, array in other.state()[0].items() if name != "observation.01"}, 0)


def test_who_begins_with_the_weights_of_another_takes_the_moments_of_its_observations_too() -> None:
    s = settings(**BOTH)
    one, other, observation = Learner(s, VECTOR), Learner(s.changed(seed=1), VECTOR), np.ones((2, 3), np.float32)
    learn(one, batch_of(0, 50.0))
    other.start_from(one.state()[0])
    np.testing.assert_equal(other.predict(observation)[0], one.predict(observation)[0])
    assert other.state()[0]["return.00"] == 0
    Learner(settings(seed=2), VECTOR).start_from(one.state()[0])
    other.start_from(Learner(settings(), VECTOR).state()[0])
    assert other.state()[0]["observation.00"] == 0


def test_a_users_network_gets_normalised_numbers_also_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    module, dtypes = ModuleType("normalised_network"), []

    def build(settings: Settings, spec: EnvSpec) -> keras.Model:
        dtypes.append(spec.observation_dtype)
        observation = keras.Input(spec.observation_shape, dtype=str(spec.observation_dtype))
        policy = layers.Dense(spec.n_actions, activation="softmax", kernel_initializer="zeros")(observation)
        value = layers.Dense(1, kernel_initializer="ones")(observation)
        return keras.Model(observation, {"policy": policy, "value": value})

    module.build = build  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "normalised_network", module)
    spec = VECTOR._replace(observation_dtype=np.dtype(np.uint8))
    model = Learner(settings(network="normalised_network:build", normalize_observations=True, learning_rate=1e-30),
                    spec)
    batch = random_batch(spec=spec)
    learn(model, batch)
    seen = batch.observation.reshape(-1, 3).astype(np.float64)
    expected = ((seen - seen.mean(axis=0)) / seen.std(axis=0)).sum(axis=1)
    found = model.predict(batch.observation.reshape(-1, 3))[0]["value"]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert dtypes == [np.float32]


def test_images_are_not_normalised_and_one_line_says_so() -> None:
    with pytest.raises(ConfigError, match="normalize_observations: true does not fit image, whose observations are "
                                          r"images \(84, 84, 4\); only vectors are normalised: leave it false"):
        Learner(settings(normalize_observations=True), IMAGE)
    model = Learner(settings(normalize_rewards=True), IMAGE)
    assert learn(model, random_batch(spec=IMAGE, discounted=True)) is not None and weights(model)
