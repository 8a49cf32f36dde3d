"""The model: what one update does to its weights, schedules, concurrency, restoring."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from ga3c.algorithms.networks import StridedConv2D, build_network, precision
from ga3c.envs.base import EnvSpec
from ga3c.learner.learner import Adam, DeviceFailed, Diverged, Learner, TooLarge, scheduled
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError
from ga3c.settings.presets import PRESETS
from ga3c.settings.schema import Settings
from ga3c.transport.slots import Slots, Batch, aligned

VECTOR = EnvSpec("vector", (3,), np.dtype(np.float32), 4, 1)
IMAGE = EnvSpec("image", (84, 84, 4), np.dtype(np.uint8), 6, 4)


def settings(**changes: object) -> Settings:
    """The paper's, for tiny worlds."""
    return configured(**{**PRESETS["paper"], "rollout_length": 3, "envs_per_agent": 2, **changes})


def random_batch(n: int = 4, rollout_length: int = 3, seed: int = 0, spec: EnvSpec = VECTOR) -> Batch:
    rng = np.random.default_rng(seed)
    store = Slots(spec, rollout_length, 2, n)
    shape = (n, rollout_length + 1, 2, *spec.observation_shape)
    seen = rng.integers(0, 256, shape) if spec.observation_dtype == np.uint8 else rng.normal(size=shape)
    store.observation[:], store.following[:] = seen[:, :-1], seen[:, -1]
    store.action[:] = rng.integers(0, spec.n_actions, store.action.shape)
    store.reward[:] = rng.normal(scale=2, size=store.reward.shape)
    store.terminated[:] = rng.random(store.terminated.shape) < 0.2
    store.truncated[:] = (rng.random(store.truncated.shape) < 0.2) & ~store.terminated
    store.final_value[:] = rng.normal(size=store.final_value.shape)
    store.bootstrap_value[:] = rng.normal(size=store.bootstrap_value.shape)
    store.steps[:] = rollout_length
    batch = store.empty_batch(n)
    store.gather(range(n), batch, 0)
    return batch


def weights(model: Learner) -> dict[str, np.ndarray]:
    return {name: array for name, array in model.state()[0].items() if name.startswith("network")}


def numpy_loss(model: Learner, s: Settings, batch: Batch) -> float:
    """Equation 5 and the value loss over the filled steps, written out one step at a time."""
    total = 0.0
    for i, steps in enumerate(batch.steps.tolist()):
        for e in range(2):
            following = float(batch.bootstrap_value[i, e])
            for t in reversed(range(steps)):
                reward = float(np.clip(batch.reward[i, t, e], -s.algorithm.reward_clip, s.algorithm.reward_clip))
                if batch.terminated[i, t, e]:
                    following = 0.0
                elif batch.truncated[i, t, e]:
                    following = float(batch.final_value[i, t, e])
                following = reward + s.algorithm.gamma * following
                outputs, _ = model.predict(batch.observation[i, t, e][None])
                policy, value = outputs["policy"], outputs["value"]
                pi = policy[0].astype(np.float64)
                advantage = following - float(value[0])
                total -= np.log(pi[batch.action[i, t, e]] + s.algorithm.log_epsilon) * advantage
                total += s.algorithm.value_coef * advantage ** 2
                total += s.algorithm.entropy_coef * float(pi @ np.log(pi + s.algorithm.log_epsilon))
    return total


@pytest.mark.parametrize("cut", [False, True])
def test_one_update_is_one_rmsprop_step_down_the_papers_loss(cut: bool) -> None:
    s = settings(learning_rate=1e-3, rmsprop_epsilon=0.1)
    model = Learner(s, VECTOR)
    batch = random_batch()
    if cut:
        batch.steps[:] = [3, 1, 2, 3]
    before = weights(model)
    losses = numpy_loss(model, s, batch)
    n, measured = batch.agent_steps, model.update(batch).metrics
    assert losses == pytest.approx(
        n * (measured["policy_loss"] + s.algorithm.value_coef * measured["value_loss"]
             - s.algorithm.entropy_coef * measured["entropy"]), rel=1e-4)
    # Only the value head's bias has a gradient that is easy by hand: d/db 0.5 (R - V)^2 = -(R - V).
    bias = next(name for name, array in before.items() if array.shape == (1,))
    probe = Learner(s, VECTOR)
    gradient = 0.0
    for i, steps in enumerate(batch.steps.tolist()):
        for e in range(2):
            following = float(batch.bootstrap_value[i, e])
            for t in reversed(range(steps)):
                after = (0.0 if batch.terminated[i, t, e] else
                         float(batch.final_value[i, t, e]) if batch.truncated[i, t, e] else following)
                following = float(np.clip(batch.reward[i, t, e], -1, 1)) + s.algorithm.gamma * after
                gradient -= following - float(probe.predict(batch.observation[i, t, e][None])[0]["value"][0])
    # The mean square starts at 1.
    expected = -s.algorithm.learning_rate * gradient / np.sqrt(0.99 + 0.01 * gradient ** 2 + s.algorithm.rmsprop_epsilon)
    assert weights(model)[bias] - before[bias] == pytest.approx(expected, rel=1e-3)


def test_rows_that_are_not_filled_change_nothing() -> None:
    one, other = Learner(settings(), VECTOR), Learner(settings(), VECTOR)
    clean, dirty = random_batch(seed=1), random_batch(seed=1)
    for batch in (clean, dirty):
        batch.steps[:] = [3, 1, 2, 3]
    dirty.reward[1, 1:], dirty.observation[2, 2:], dirty.terminated[1, 1:] = 1e3, 50.0, True
    one.update(clean)
    other.update(dirty)
    for name, array in weights(one).items():
        assert np.array_equal(array, weights(other)[name])


def test_a_clipped_gradient_has_the_given_norm() -> None:
    model = Learner(settings(max_grad_norm=1e-3, rmsprop_epsilon=1e6, learning_rate=1e6), VECTOR)
    before = weights(model)
    model.update(random_batch())
    after = weights(model)
    # With a huge epsilon RMSProp is plain descent with learning_rate / sqrt(epsilon) = 1e3.
    norm = np.sqrt(sum(((after[name] - before[name]) ** 2).sum() for name in before)) / 1e3
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_the_mean_loss_has_the_gradient_of_the_summed_loss_over_the_filled_steps() -> None:
    batch = random_batch()
    batch.steps[:] = [3, 1, 2, 3]
    summed, mean = (Learner(settings(loss_reduction=how), VECTOR).update(batch).metrics for how in ("sum", "mean"))
    assert summed["gradient_norm"] == pytest.approx(batch.agent_steps * mean["gradient_norm"], rel=1e-5)
    assert summed | {"gradient_norm": 0} == mean | {"gradient_norm": 0}


def test_the_first_step_of_adam_is_the_learning_rate_in_every_weight_that_has_a_gradient() -> None:
    model = Learner(settings(optimizer="adam", adam_epsilon=1e-12, learning_rate=1e-3), VECTOR)
    before = weights(model)
    model.update(random_batch())
    moved = [abs(after - before[name]) for name, after in weights(model).items()]
    assert np.concatenate([step.ravel() for step in moved]) == pytest.approx(1e-3, rel=1e-3)


def test_adam_takes_the_steps_of_its_paper_also_where_a_gradient_is_sparse() -> None:
    rng = np.random.default_rng(0)
    variables = [keras.Variable(rng.normal(size=shape).astype(np.float32)) for shape in ((3, 2), (4,))]
    expected = [variable.numpy().astype(np.float64) for variable in variables]
    mean, square = [np.zeros_like(x) for x in expected], [np.zeros_like(x) for x in expected]
    optimizer = Adam(0.01, epsilon=0.1)
    optimizer.build(variables)
    for step in range(1, 6):
        optimizer.learning_rate.assign(0.01 * step)
        gradients = [rng.normal(size=x.shape).astype(np.float32) for x in expected]
        gradients[0][1] = 0
        sparse = tf.IndexedSlices(tf.constant(gradients[0][[0, 2]]), tf.constant([0, 2]), tf.constant([3, 2]))
        optimizer.apply([sparse, tf.constant(gradients[1])], variables)
        for number, gradient in enumerate(gradients):
            mean[number] = 0.9 * mean[number] + 0.1 * gradient
            square[number] = 0.999 * square[number] + 0.001 * gradient.astype(np.float64) ** 2
            rate = 0.01 * step * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            expected[number] -= rate * mean[number] / (np.sqrt(square[number]) + 0.1)
    for variable, should_be in zip(variables, expected, strict=True):
        assert variable.numpy() == pytest.approx(should_be, rel=1e-4)
    assert int(optimizer.iterations) == 5


def test_normalized_advantages_have_mean_0_and_deviation_1_whatever_the_rewards() -> None:
    for size in (1.0, 100.0):
        batch = random_batch(rollout_length=1)
        batch.terminated[:], batch.truncated[:] = True, False
        batch.reward *= size
        s = settings(rollout_length=1, normalize_advantages=True, reward_clip=0.0)
        model = Learner(s, VECTOR)
        outputs, _ = model.predict(batch.observation.reshape(-1, 3))
        policy, value = outputs["policy"], outputs["value"]
        advantage = batch.reward.ravel() - value
        advantage = (advantage - advantage.mean()) / advantage.std()
        likelihood = np.log(policy[np.arange(len(policy)), batch.action.ravel()] + s.algorithm.log_epsilon)
        assert model.update(batch).metrics["policy_loss"] == pytest.approx(-(likelihood * advantage).mean(), rel=1e-4)


@pytest.mark.parametrize("spec", [VECTOR, IMAGE])
def test_rollouts_without_a_step_change_nothing(spec: EnvSpec) -> None:
    s = settings(normalize_advantages=True, correction="vtrace", loss_reduction="mean")
    alone, filled_up = Learner(s, spec), Learner(s, spec)
    filled_up.restore(*alone.state())
    batch, some = random_batch(5, seed=3, spec=spec), random_batch(5, seed=3, spec=spec)[:2]
    batch.empty(slice(2, None))
    one, two = alone.update(some), filled_up.update(batch)
    assert one is not None and two is not None
    assert one.batch_steps == two.batch_steps == 12
    assert one.metrics == pytest.approx(two.metrics, rel=1e-4, abs=1e-6)
    for name, array in weights(alone).items():
        assert np.allclose(array, weights(filled_up)[name], atol=1e-5), name


def test_going_back_marks_what_the_weights_that_are_gone_have_predicted() -> None:
    model = Learner(settings(), VECTOR)
    arrays, _, _ = model.state()
    for _ in range(3):
        model.update(random_batch())
    _, before = model.predict(np.zeros((1, 3), np.float32))
    model._skipped_in_a_row = 9
    model.go_back(arrays)
    _, after = model.predict(np.zeros((1, 3), np.float32))
    assert before < model.min_valid_version <= after and model.agent_steps == 72 and model._skipped_in_a_row == 0
    assert all(np.array_equal(array, arrays[name]) for name, array in weights(model).items())


def test_an_update_that_waited_while_the_weights_were_given_up_is_not_made() -> None:
    model, batch = Learner(settings(), VECTOR), random_batch()
    arrays, _, _ = model.state()
    batch.version[:] = model.version
    model.go_back(arrays)
    assert model.update(batch) is None and model.version == 1 and model.skipped == 0
    assert all(np.array_equal(array, arrays[name]) for name, array in weights(model).items())
    batch.version[:] = model.version
    assert model.update(batch) is not None


def test_the_scale_of_advantages_is_remembered_across_updates_and_restored() -> None:
    s = settings(normalize_advantages=True)
    model, other = Learner(s, VECTOR), Learner(s, VECTOR)
    model.update(random_batch(seed=1))
    other.restore(*model.state())
    one, two = (m.update(random_batch(seed=2)) for m in (model, other))
    assert one.metrics == two.metrics
    fresh = Learner(s, VECTOR)
    fresh.restore({**fresh.state()[0], **weights(model)}, 0, 0)
    assert fresh.update(random_batch(seed=2)).metrics["policy_loss"] != one.metrics["policy_loss"]


@pytest.mark.parametrize("correction", ["clipped-is", "vtrace"])
def test_corrections_do_nothing_on_policy_and_something_under_lag(correction: str) -> None:
    batch = random_batch()
    plain, corrected, lagging = (Learner(settings(correction=how), VECTOR) for how in ("none", correction, correction))
    played, following = (plain.predict(each.reshape(-1, 3))[0] for each in (batch.observation, batch.following))
    batch.policy[:] = played["policy"].reshape(batch.policy.shape)
    batch.bootstrap_value[:] = following["value"].reshape(batch.bootstrap_value.shape)
    plain.update(batch)
    corrected.update(batch)
    for name, array in weights(plain).items():
        assert weights(corrected)[name] == pytest.approx(array, abs=1e-6)
    batch.policy[:] = [0.97, 0.01, 0.01, 0.01]
    lagging.update(batch)
    assert any(abs(array - weights(lagging)[name]).max() > 1e-5 for name, array in weights(plain).items())


@pytest.mark.parametrize("correction", ["none", "clipped-is", "vtrace"])
def test_a_correction_takes_the_value_of_what_follows_from_the_weights_of_today(correction: str) -> None:
    one, other = Learner(settings(correction=correction), VECTOR), Learner(settings(correction=correction), VECTOR)
    batch = random_batch()
    one.update(batch)
    batch.bootstrap_value += 5.0  # as recorded, long ago
    other.update(batch)
    alike = all(np.array_equal(array, weights(other)[name]) for name, array in weights(one).items())
    assert alike == (correction != "none")


def test_explained_variance_of_the_best_constant_value_is_0() -> None:
    batch = random_batch(rollout_length=1)
    batch.terminated[:], batch.truncated[:], batch.reward[:] = True, False, np.clip(batch.reward, -1, 1)
    model = Learner(settings(rollout_length=1), VECTOR)
    names = [name for name, array in weights(model).items() if array.shape in ((64, 1), (1,))]
    state, _, _ = model.state()
    for name in names:
        state[name] = np.zeros_like(state[name])
    state[next(name for name in names if state[name].shape == (1,))][:] = batch.reward.mean()
    model.restore(state, 0, 0)
    assert model.update(batch).metrics["explained_variance"] == pytest.approx(0.0, abs=1e-5)


def test_rewards_beyond_the_clip_count_as_the_clip_unless_it_is_off() -> None:
    large, clipped = random_batch(seed=2), random_batch(seed=2)
    clipped.reward[:] = np.clip(clipped.reward, -1, 1)
    results = {}
    for clip in (1.0, 0.0):
        for name, batch in (("large", large), ("clipped", clipped)):
            model = Learner(settings(reward_clip=clip), VECTOR)
            results[clip, name] = model.update(batch).metrics["value_loss"]
    assert results[1.0, "large"] == results[1.0, "clipped"] == results[0.0, "clipped"] != results[0.0, "large"]


def test_version_steps_and_schedules_count_on() -> None:
    model = Learner(settings(learning_rate=1.0, learning_rate_final=0.0, anneal_steps=48), VECTOR)
    batch = random_batch()
    rates = []
    for number in range(1, 5):
        update = model.update(batch)
        assert (update.version, update.agent_steps, update.batch_steps) == (number, 24 * number, 24)
        rates.append(update.metrics["learning_rate"])
    assert rates == [1.0, 0.5, 0.0, 0.0]
    assert scheduled(2.0, None, 0.7) == 2.0


def test_updates_from_many_threads_are_all_made() -> None:
    model = Learner(settings(learning_rate=1e-5), VECTOR)
    stop = threading.Event()
    predictions = []

    def predict() -> None:
        while not stop.is_set():
            predictions.append(model.predict(np.zeros((2, 3), np.float32))[1])

    reader = threading.Thread(target=predict)
    reader.start()
    with ThreadPoolExecutor(3) as pool:
        updates = pool.map(lambda seed: model.update(random_batch(seed=seed)), range(90))
        versions = [update.version for update in updates]
    stop.set()
    reader.join()
    assert sorted(versions) == list(range(1, 91)) and model.agent_steps == 90 * 24
    assert int(model.state()[0]["optimizer.00"]) == 90
    assert predictions == sorted(predictions)


def test_a_restored_model_goes_on_exactly() -> None:
    whole, first, second = (Learner(settings(seed=seed), VECTOR) for seed in (0, 0, 1))
    for seed in range(6):
        whole.update(random_batch(seed=seed))
    for seed in range(3):
        first.update(random_batch(seed=seed))
    second.restore(*first.state())
    for seed in range(3, 6):
        second.update(random_batch(seed=seed))
    assert second.version == 6
    for name, array in whole.state()[0].items():
        assert np.array_equal(array, second.state()[0][name]), name


def test_weights_of_another_network_are_refused_and_change_nothing() -> None:
    model, other = Learner(settings(), VECTOR), Learner(settings(), VECTOR._replace(n_actions=5))
    before = model.state()[0]
    with pytest.raises(ValueError, match="another network"):
        model.restore(*other.state())
    assert all(np.array_equal(array, before[name]) for name, array in model.state()[0].items())


@pytest.mark.parametrize(("network", "shapes"), [
    ("small", [(8, 8, 4, 16), (4, 4, 16, 32), (2592, 256), (256, 6), (256, 1)]),
    ("large", [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (3136, 512), (512, 6), (512, 1)]),
])
def test_the_networks_are_the_papers(network: str, shapes: list[tuple[int, ...]]) -> None:
    built = build_network(settings(network=network), IMAGE)
    assert [tuple(w.shape) for w in built.weights if len(w.shape) > 1] == shapes
    policy, value = built(np.zeros((2, 84, 84, 4), np.uint8))
    assert np.allclose(np.sum(keras.ops.convert_to_numpy(policy), axis=1), 1) and value.shape == (2, 1)
    first = built.layers[1]
    assert first.strides == (4, 4) and first.activation is keras.activations.relu


@pytest.mark.parametrize("stride", [4, 3, 2, 1])
def test_the_large_networks_first_stride_is_a_setting(stride: int) -> None:
    built = build_network(settings(network="large", large_stride=stride), IMAGE._replace(observation_shape=(36, 36, 4)))
    assert built.layers[1].strides == (stride, stride)


@pytest.mark.parametrize(("network", "spec"), [("small", VECTOR), ("dense", IMAGE)])
def test_a_network_that_does_not_fit_the_world_is_refused(network: str, spec: EnvSpec) -> None:
    with pytest.raises(ConfigError, match=f"network: '{network}' does not fit"):
        build_network(settings(network=network), spec)


def test_equal_seeds_give_equal_weights_and_others_do_not() -> None:
    one, same, other = (build_network(settings(seed=seed), VECTOR).get_weights() for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(one, other, strict=True) if a.ndim > 1)


def plain_small(built: keras.Model, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The small network in NumPy, float64, from pictures scaled to [-1, 1]."""
    weights = [np.asarray(each, np.float64) for each in built.get_weights()]
    hidden = observation / 127.5 - 1.0
    for stride, (kernel, bias) in ((4, weights[0:2]), (2, weights[2:4])):
        size = kernel.shape[0]
        windows = np.lib.stride_tricks.sliding_window_view(hidden, (size, size), axis=(1, 2))[:, ::stride, ::stride]
        hidden = np.maximum(np.einsum("nyxcij,ijcf->nyxf", windows, kernel) + bias, 0.0)
    hidden = np.maximum(hidden.reshape(len(hidden), -1) @ weights[4] + weights[5], 0.0)
    logits = hidden @ weights[6] + weights[7]
    policy = np.exp(logits - logits.max(axis=1, keepdims=True))
    return policy / policy.sum(axis=1, keepdims=True), hidden @ weights[8] + weights[9]


@pytest.mark.parametrize(("width", "size", "stride", "gpus", "fold"), [
    (84, 8, 4, [], 4), (20, 4, 2, [], 2), (9, 3, 1, [], 1), (21, 8, 4, [], 1), (12, 5, 3, [], 1), (12, 6, 3, [], 3),
    (84, 8, 4, ["a GPU"], 1)])
def test_pixels_taken_for_channels_give_the_same_convolution_and_gradients(
        width: int, size: int, stride: int, gpus: list[str], fold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    observation = tf.constant(rng.normal(size=(2, width + 1, width, 3)).astype(np.float32))
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus)
    results = []
    for kind in (StridedConv2D, keras.layers.Conv2D):
        layer = kind(5, size, stride, activation="relu", bias_initializer="ones")
        layer.build(observation.shape)
        layer.kernel.assign(np.random.default_rng(1).normal(size=layer.kernel.shape))
        with tf.GradientTape() as tape:
            tape.watch(observation)
            output = layer(observation)
            loss = tf.reduce_sum(output * np.random.default_rng(2).normal(size=output.shape).astype(np.float32))
        results.append([output, *tape.gradient(loss, [observation, layer.kernel.value, layer.bias.value])])
        if kind is StridedConv2D:
            assert layer.kernel_and_bias()[0].shape == (size, size // fold, 3 * fold, 5)
    for ours, ordinary in zip(*results, strict=True):
        assert ours.shape == ordinary.shape and np.abs(ours - ordinary).max() < 1e-4 * np.abs(ordinary).max()


@pytest.mark.parametrize(("how", "error"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_images_reach_the_network_between_minus_1_and_1_in_either_precision(how: str, error: float) -> None:
    rng = np.random.default_rng(0)
    observation = np.stack([np.zeros((84, 84, 4), np.uint8), np.full((84, 84, 4), 255, np.uint8),
                            rng.integers(0, 256, (84, 84, 4)).astype(np.uint8)])
    built = build_network(settings(network="small", precision=how), IMAGE)
    built.set_weights([each if each.ndim > 1 else rng.normal(size=each.shape) for each in built.get_weights()])
    policy, value = (keras.ops.convert_to_numpy(each) for each in built(observation))
    assert policy.dtype == value.dtype == np.float32 and {str(w.dtype) for w in built.weights} == {"float32"}
    expected_policy, expected_value = plain_small(built, observation)
    assert np.abs(policy - expected_policy).max() < error and np.abs(value - expected_value).max() < 4 * error


def test_updates_in_bfloat16_go_the_way_of_those_in_float32() -> None:
    models = [Learner(settings(precision=how), IMAGE) for how in ("float32", "bfloat16")]
    before = weights(models[0])
    for model in models:
        model.update(random_batch(spec=IMAGE))
    moves = [np.concatenate([(array - before[name]).ravel() for name, array in weights(model).items()])
             for model in models]
    cosine = moves[0] @ moves[1] / np.linalg.norm(moves[0]) / np.linalg.norm(moves[1])
    assert cosine > 0.99 and not np.array_equal(*moves)


@pytest.mark.parametrize(("flags", "found"), [("fma avx512_bf16 sse", "bfloat16"), ("amx_bf16", "bfloat16"),
                                              ("avx512f avx2", "float32"), (None, "float32")])
def test_auto_is_bfloat16_where_the_processor_has_products_of_them(
        flags: str | None, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path, **encoding: str) -> str:
        if flags is None:
            raise FileNotFoundError(path)
        return f"flags : {flags}"

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    assert precision(settings(precision="auto")) == found
    assert precision(settings(precision="float32")) == "float32"
    assert precision(settings(precision="bfloat16")) == "bfloat16"
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["a GPU"])
    assert precision(settings(precision="auto")) == "float32"


def test_an_update_that_is_not_finite_changes_nothing_and_ten_in_a_row_are_divergence() -> None:
    model = Learner(settings(normalize_advantages=True, optimizer="adam"), VECTOR)
    good, bad = random_batch(), random_batch()
    bad.bootstrap_value[0] = np.nan
    model.update(good)
    before, version, steps = model.state()
    for _ in range(2):
        for _ in range(9):
            assert model.update(bad) is None
        after = model.state()
        assert (after[1], after[2]) == (version, steps)
        assert all(array.tobytes() == before[name].tobytes() for name, array in after[0].items())
        assert model.update(good) is not None, "nine are not ten"
        before, version, steps = model.state()
    assert model.skipped == 18
    with pytest.raises(Diverged, match="update 4 is not finite: policy_loss nan"):
        for _ in range(10):
            model.update(bad)


def test_a_new_model_may_begin_with_the_weights_of_another_but_not_of_another_shape() -> None:
    one, other = Learner(settings(seed=1), VECTOR), Learner(settings(seed=2), VECTOR)
    one.update(random_batch())
    other.start_from(one.state()[0])
    ours, theirs = one.state(), other.state()
    assert (theirs[1], theirs[2]) == (0, 0)
    for name, array in ours[0].items():
        assert (array.tobytes() == theirs[0][name].tobytes()) or not name.startswith("network.")
    before = other.state()[0]
    with pytest.raises(ValueError, match=r"another network: network.0. is \("):
        other.start_from({name: array[:1] for name, array in ours[0].items() if array.ndim})
    assert all(array.tobytes() == before[name].tobytes() for name, array in other.state()[0].items())


_DURING_AN_UPDATE = """
import threading
import time
import numpy as np
from ga3c.settings.files import configured
from ga3c.envs.factory import probe
from ga3c.learner.learner import Learner, start_tensorflow
from ga3c.transport.slots import Slots

settings = configured(game="Pong", device_threads=1)
start_tensorflow(settings)
spec = probe(settings)
model = Learner(settings, spec)
store = Slots(spec, settings.algorithm.rollout_length, settings.agents.envs_per_agent, 4)
store.steps[:] = settings.algorithm.rollout_length
batch = store.empty_batch(4)
store.gather(range(4), batch, 0)
model.update(batch)
large = np.zeros((128, *spec.observation_shape), np.uint8)
model.predict(large)
ours, all_threads = time.thread_time(), time.process_time()
for _ in range(10):
    model.predict(large)
print((time.thread_time() - ours) / (time.process_time() - all_threads))
observation = np.zeros((1, *spec.observation_shape), np.uint8)
model.predict(observation)
updating = 0
operation = model._train


def watched(*tensors):
    global updating
    updating = model.version + 1
    try:
        return operation(*tensors)
    finally:
        updating = 0


model._train = watched
updates = threading.Thread(target=lambda: [model.update(batch) for _ in range(3)])
updates.start()
during = 0
while updates.is_alive():
    before = updating
    model.predict(observation)
    during += 0 < before == updating
updates.join()
print(during)
"""


def test_predictions_are_made_in_the_thread_that_asks_and_do_not_wait_for_an_update_to_end() -> None:
    done = subprocess.run([sys.executable, "-c", _DURING_AN_UPDATE], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, check=True)
    share_of_the_caller, during = done.stdout.split()
    assert float(share_of_the_caller) > 0.7 and int(during) > 30, done.stdout


@pytest.mark.parametrize(("raised", "message", "told"), [
    (tf.errors.ResourceExhaustedError, "OOM when allocating:\n it is full", TooLarge),
    (tf.errors.InternalError, "Failed copying:\nDst tensor is not initialized.", TooLarge),
    (tf.errors.InternalError, "CUDA_ERROR:\n it is gone", DeviceFailed),
    (tf.errors.UnavailableError, "it is gone", DeviceFailed),
    (tf.errors.FailedPreconditionError, "DNN library initialization failed.", DeviceFailed),
    (tf.errors.InvalidArgumentError, "No DNN in stream executor.", DeviceFailed),
    (tf.errors.InvalidArgumentError, "Matrix size-incompatible", tf.errors.InvalidArgumentError)])
def test_failures_of_the_device_are_named_and_change_nothing(
        monkeypatch: pytest.MonkeyPatch, raised: type[Exception], message: str, told: type[Exception]) -> None:
    model = Learner(settings(), VECTOR)
    before = model.state()

    def fail(*arguments: object) -> None:
        raise raised(None, None, message)

    with monkeypatch.context() as patch:
        patch.setattr(model, "_train", fail)
        patch.setattr(model, "_predict", fail)
        for call, what in ((lambda: model.update(random_batch()), "an update of 24 agent steps"),
                           (lambda: model.predict(random_batch().observation[0, 0]), "2 predictions")):
            with pytest.raises(told, match=what if issubclass(told, DeviceFailed) else message) as caught:
                call()
            assert len(str(caught.value).splitlines()) == 1
    after = model.state()
    assert after[1:] == before[1:] and all(np.array_equal(before[0][name], after[0][name]) for name in before[0])
    assert model.update(random_batch()) is not None, "the lock is free again"


def test_a_checkpoint_does_not_wait_for_ever_for_an_update_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ga3c.learner.learner.PATIENCE", 0.1)
    model = Learner(settings(), VECTOR)
    assert model.readable()
    with model._update_lock, pytest.raises(DeviceFailed, match="an update has not ended in 0.1 s"):
        model.state()
    with model._update_lock:
        assert not model.readable()
    assert model.state()


@pytest.mark.parametrize("spec", [VECTOR, IMAGE])
def test_aligned_observations_are_used_as_they_stand_and_others_copied(spec: EnvSpec) -> None:
    model = Learner(settings(game="toy:catch"), spec)
    given = np.random.default_rng(0).integers(0, 200, (5, *spec.observation_shape)).astype(spec.observation_dtype)
    ours, odd = aligned(given.shape, given.dtype), aligned((1 + given.size,), given.dtype)[1:].reshape(given.shape)
    ours[:] = odd[:] = given
    assert ours.ctypes.data % 64 == 0 and odd.ctypes.data % 64
    expected = model.predict(odd)[0]
    np.testing.assert_equal(model.predict(ours)[0], expected)
    for array, shared in ((ours, True), (odd, False), (ours[:, ::-1], False), (ours[:0], False)):
        tensor = model._observed(array)
        before = tensor.numpy().copy()
        array += 1
        assert np.array_equal(tensor.numpy(), array if shared else before) and tensor.shape == array.shape


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["small", "large", "dense"])
def test_predictions_are_the_networks_own_after_updates_and_restoring(kind: str, precision: str) -> None:
    spec = VECTOR if kind == "dense" else IMAGE
    s = settings(game="toy:catch", network=kind, precision=precision, optimizer="adam", learning_rate=0.01)
    model, other = Learner(s, spec), Learner(s.changed(**{"seed": 1}), spec)
    observation = np.random.default_rng(0).integers(0, 256, (5, *spec.observation_shape)).astype(spec.observation_dtype)
    # The order of roundings is all that may differ.
    close = {"rtol": 0, "atol": 1e-3 if precision == "bfloat16" and kind != "dense" else 1e-5}

    def own(of: Learner) -> list[np.ndarray]:
        compiled = tf.function(lambda given: of._network(given, training=False), autograph=False)
        return [each.numpy() for each in compiled(tf.constant(observation))]

    before = np.zeros(())
    for _ in range(3):
        outputs, version = model.predict(observation)
        policy, value = outputs["policy"], outputs["value"]
        assert version == model.version and np.abs(policy - before).max() > 5 * close["atol"], "no update is in them"
        np.testing.assert_allclose(policy, own(model)[0], **close)
        np.testing.assert_allclose(value, own(model)[1][:, 0], rtol=0, atol=20 * close["atol"])
        before = policy
        assert model.update(random_batch(spec=spec)) is not None
    other.restore(*model.state())
    np.testing.assert_equal(other.predict(observation), model.predict(observation), "versions, too")
    other = Learner(s.changed(**{"seed": 1}), spec)
    other.start_from(model.state()[0])
    np.testing.assert_equal(other.predict(observation)[0], model.predict(observation)[0])
    assert not np.array_equal(policy, model.predict(observation)[0]["policy"]), "the last update is in them"
    other.go_back(Learner(s, spec).state()[0])
    assert other.predict(observation)[1] == other.version == other.min_valid_version == 1
    np.testing.assert_allclose(other.predict(observation)[0]["policy"], own(other)[0], **close)


def test_a_policy_is_of_the_version_that_it_is_said_to_be_of() -> None:
    model, observation = Learner(settings(learning_rate=0.01, optimizer="adam"), VECTOR), np.ones((1, 3), np.float32)
    by_version = {0: model.predict(observation)[0]["policy"]}
    seen: list[tuple[int, np.ndarray]] = []
    ended = threading.Event()

    def predict() -> None:
        while not ended.is_set():
            outputs, version = model.predict(observation)
            seen.append((version, outputs["policy"]))

    thread = threading.Thread(target=predict)
    thread.start()
    for version in range(1, 40):
        assert model.update(random_batch()) is not None
        by_version[version] = model.predict(observation)[0]["policy"]
    ended.set()
    thread.join()
    assert all(np.array_equal(policy, by_version[version]) for version, policy in seen)
    assert len({policy.tobytes() for policy in by_version.values()}) == 40
