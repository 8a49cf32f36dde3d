"""The networks: the papers' shapes, folded convolutions, precision."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from batches import IMAGE, VECTOR, heads, settings

from ga3c.algorithms.networks import Bound, StridedConv2D, build_network, folded
from ga3c.envs.base import EnvSpec
from ga3c.settings.messages import ConfigError


@pytest.mark.parametrize(("network", "shapes"), [
    ("small", [(8, 8, 4, 16), (4, 4, 16, 32), (2592, 256), (256, 6), (256, 1)]),
    ("large", [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (3136, 512), (512, 6), (512, 1)]),
    ("nature", [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (3136, 512), (512, 6), (512, 1)]),
])
def test_the_networks_are_the_papers(network: str, shapes: list[tuple[int, ...]]) -> None:
    built = build_network(settings(network=network, large_stride=3 if network == "nature" else 4), IMAGE, heads(IMAGE))
    assert [tuple(w.shape) for w in built.weights if len(w.shape) > 1] == shapes
    policy, value = built(np.zeros((2, 84, 84, 4), np.uint8)).values()
    assert np.allclose(np.sum(keras.ops.convert_to_numpy(policy), axis=1), 1) and value.shape == (2, 1)
    first = built.layers[0]
    assert first.strides == (4, 4) and first.activation is keras.activations.relu


@pytest.mark.parametrize("stride", [4, 3, 2, 1])
def test_the_large_networks_first_stride_is_a_setting(stride: int) -> None:
    built = build_network(settings(network="large", large_stride=stride), IMAGE._replace(observation_shape=(36, 36, 4)),
                          heads(IMAGE))
    assert built.layers[0].strides == (stride, stride)


@pytest.mark.parametrize(("network", "spec"), [("small", VECTOR), ("dense", IMAGE)])
def test_a_network_that_does_not_fit_the_world_is_refused(network: str, spec: EnvSpec) -> None:
    with pytest.raises(ConfigError, match=f"network: '{network}' does not fit"):
        build_network(settings(network=network), spec, heads(spec))


def test_equal_seeds_give_equal_weights_and_others_do_not() -> None:
    one, same, other = (build_network(settings(seed=seed), VECTOR, heads(VECTOR)).get_weights() for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(one, other, strict=True) if a.ndim > 1)


def plain_small(built: keras.Model, observation: np.ndarray, contrast: bool) -> tuple[np.ndarray, np.ndarray]:
    """The small network in NumPy, float64, from pictures scaled to [-1, 1]."""
    weights = [np.asarray(each, np.float64) for each in built.get_weights()]
    if contrast:
        weights[0] -= weights[0].mean(axis=(0, 1, 2))
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
    monkeypatch.setattr(keras.distribution, "list_devices", lambda kind: gpus)
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
            assert layer.folded()[0].shape == (size, size // fold, 3 * fold, 5)
    for ours, ordinary in zip(*results, strict=True):
        assert ours.shape == ordinary.shape and np.abs(ours - ordinary).max() < 1e-4 * np.abs(ordinary).max()


@pytest.mark.parametrize(("contrast", "how"), [(True, "float32"), (True, "bfloat16"), (False, "float32")])
def test_with_contrast_an_even_background_counts_nothing_and_pulls_at_no_filter(contrast: bool, how: str) -> None:
    built = build_network(settings(network="small", contrast=contrast), IMAGE, heads(IMAGE), how)
    values, pulls = [], []
    for brightness in (0, 87, 255):
        with tf.GradientTape() as tape:
            value = built(np.full((1, 84, 84, 4), brightness, np.uint8))["value"]
        values.append(float(value[0, 0]))
        pulls.append(float(tf.reduce_max(tf.abs(tape.gradient(value, built.trainable_variables[0])))))
    assert (np.ptp(values) < 0.01) == contrast and (max(pulls) < 0.01) == contrast


@pytest.mark.parametrize("contrast", [True, False])
@pytest.mark.parametrize(("how", "error"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_images_reach_the_network_between_minus_1_and_1_in_either_precision(
        how: str, error: float, contrast: bool) -> None:
    rng = np.random.default_rng(0)
    observation = np.stack([np.zeros((84, 84, 4), np.uint8), np.full((84, 84, 4), 255, np.uint8),
                            rng.integers(0, 256, (84, 84, 4)).astype(np.uint8)])
    built = build_network(settings(network="small", contrast=contrast), IMAGE, heads(IMAGE), how)
    built.set_weights([each if each.ndim > 1 else rng.normal(size=each.shape) for each in built.get_weights()])
    policy, value = (keras.ops.convert_to_numpy(head) for head in built(observation).values())
    assert policy.dtype == value.dtype == np.float32 and {str(w.dtype) for w in built.weights} == {"float32"}
    expected_policy, expected_value = plain_small(built, observation, contrast)
    assert np.abs(policy - expected_policy).max() < error and np.abs(value - expected_value).max() < 4 * error


def test_without_training_a_network_of_ones_own_has_no_gradient_either() -> None:
    seen = keras.Input((3,))
    own = keras.Model(seen, {"policy": keras.layers.Dense(2, activation="softmax")(seen),
                             "value": keras.layers.Dense(1)(seen)})
    for network in (own, build_network(settings(), VECTOR, heads(VECTOR))):
        weights = [tf.constant(each) for each in folded(network)]
        for training in (True, False):
            with tf.GradientTape() as tape:
                policy, value = Bound(network, weights)(tf.ones((2, 3)), training=training).values()
                total = tf.reduce_sum(policy[:, 0]) + tf.reduce_sum(value)
            assert (tape.gradient(total, network.trainable_variables[0]) is not None) == training
