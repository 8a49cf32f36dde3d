"""The networks: plain Keras, observations in (bytes stay bytes until here), policy (A) and value (1) out.

A user's own, named as `network: my_module:build_network`, is a function like `build_network` below.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from ga3c.envs.base import EnvSpec
from ga3c.envs.factory import imported
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings


def share_gpus() -> None:
    """Has TensorFlow take memory of GPUs as it needs it instead of all at once. Does nothing after the first tensor."""
    with contextlib.suppress(RuntimeError):
        for device in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(device, True)


def precision(settings: Settings) -> str:
    """What `settings.algorithm.precision` comes to on this machine: bfloat16 if its processor multiplies those, else float32.

    On a GPU float32: whether small layers gain by casts there has not been measured.
    """
    if settings.algorithm.precision != "auto":
        return settings.algorithm.precision
    if tf.config.list_physical_devices("GPU"):
        return "float32"
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split()
    except OSError:
        flags = []
    return "bfloat16" if {"avx512_bf16", "amx_bf16"}.intersection(flags) else "float32"


class StridedConv2D(layers.Conv2D):  # type: ignore[misc]  # Keras has no types
    """A convolution without padding that takes as many pixels side by side as its stride for channels of one.

    The memory and the products are the same; only the shapes are others, and on processors gradients cost up to 60 %
    less. That is where the stride divides the widths of picture and kernel; elsewhere, and on a GPU, where it has not
    been measured, it is the ordinary convolution. Knows filters, size, stride and activation, and always has a bias.
    """

    def build(self, input_shape: tuple[int, ...]) -> None:
        """Once the picture's size is known."""
        super().build(input_shape)
        stride = self.strides[1]
        fits = input_shape[2] % stride == self.kernel_size[1] % stride == 0
        self._fold = stride if fits and not tf.config.list_physical_devices("GPU") else 1

    def kernel_and_bias(self) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """(kernel, bias) in the layer's compute type, the kernel for `convolve`."""
        height, width, channels, filters = self.kernel.shape
        kernel = ops.reshape(self.kernel, (height, width // self._fold, self._fold * channels, filters))
        return ops.cast(kernel, self.compute_dtype), ops.cast(self.bias, self.compute_dtype)

    def convolve(self, inputs: keras.KerasTensor, kernel: keras.KerasTensor) -> keras.KerasTensor:
        """(n, height, width, channels) -> (n, ..., filters), without bias and activation."""
        _, height, width, channels = inputs.shape
        inputs = ops.reshape(inputs, (-1, height, width // self._fold, self._fold * channels))
        down, across = self.strides
        return ops.conv(inputs, kernel, [down, across // self._fold], "valid")

    def call(self, inputs: keras.KerasTensor) -> keras.KerasTensor:
        """(n, height, width, channels) of any number type -> (n, ..., filters) in the layer's compute type."""
        kernel, bias = self.kernel_and_bias()
        return self.activation(ops.add(self.convolve(ops.cast(inputs, self.compute_dtype), kernel), bias))


class PictureConv2D(StridedConv2D):
    """A convolution of x / 127.5 - 1 where x are bytes. Its weights are scaled instead, which are fewer than pixels.

    To [-1, 1] as in the authors' code: most of a picture is background, which from 0 to 1 drowns what moves.
    """

    def kernel_and_bias(self) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """(kernel, bias) for bytes."""
        kernel, bias = super().kernel_and_bias()
        offset = ops.sum(ops.cast(kernel, "float32"), axis=(0, 1, 2))
        return kernel / 127.5, ops.cast(ops.cast(bias, "float32") - offset, self.compute_dtype)


def build_network(settings: Settings, spec: EnvSpec) -> keras.Model:
    """The network named in `settings.algorithm.network` for worlds like `spec`, its weights drawn from `settings.run.seed`.

    Weights begin orthogonal (the authors' code: uniform, which shrinks activations layer by layer and starts slowly).

    small: A3C's, as in the paper: 16 filters 8x8 stride 4, 32 filters 4x4 stride 2, 256 units.
    large: three convolutions, the first with stride `large_stride`: the paper varies it from 4 to 1 to make a network
        that is heavier without having more weights in its convolutions. Filters are 32 8x8, 64 4x4, 64 3x3, 512 units.
    dense: two layers of 64 units for vectors.
    module:function: what that function returns, called and checked by `_own_network`.

    Convolutions and the layer after them compute in `precision`; weights, policy and value are float32 always.

    Raises ConfigError if it does not fit the observations, or is not what a network must be.
    """
    return _own_network(settings, spec) if ":" in settings.algorithm.network else _ga3cs_network(settings, spec)


class Acting:
    """A network as predictions use it: `acting(observation, *weights)`, with what `weights` gave after the last update.

    The same numbers from fewer operations: weights are cast and scaled once an update instead of once a prediction,
    where casting those of the dense layer takes longer than multiplying a few observations, and they come as they are,
    not as variables that are looked up. A prediction is small, and finds nothing of what it needs in the processor's
    caches, so what it costs beyond its multiplications is the number of different things that it does.

    A user's network, which may hold anything, is called as it is, and may be met in the middle of an update.
    """

    def __init__(self, network: keras.Model, settings: Settings) -> None:
        self._network, self._own = network, ":" in settings.algorithm.network
        self._heads = [] if self._own else [network.get_layer(name) for name in ("policy", "value")]
        self._hidden = [layer for layer in network.layers if layer.weights and layer not in self._heads]

    def weights(self) -> list[tf.Tensor]:
        """Kernel and bias of each layer, as `__call__` wants them."""
        if self._own:
            return []
        pairs = [layer.kernel_and_bias() if isinstance(layer, StridedConv2D) else
                 [ops.cast(weight, layer.compute_dtype) for weight in (layer.kernel, layer.bias)]
                 for layer in (*self._hidden, *self._heads)]
        return [ops.convert_to_tensor(weight) for pair in pairs for weight in pair]

    def __call__(self, observation: tf.Tensor, *weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Policy (n, A) and value (n,), float32, of observations (n, *shape)."""
        if self._own:
            policy, value = self._network(observation, training=False)
            return policy, value[:, 0]
        pairs, n_hidden = list(zip(weights[::2], weights[1::2], strict=True)), len(self._hidden)
        hidden = tf.cast(observation, weights[0].dtype)
        for layer, (kernel, bias) in zip(self._hidden, pairs[:n_hidden], strict=True):
            if isinstance(layer, StridedConv2D):
                product = layer.convolve(hidden, kernel)
            else:
                product = tf.matmul(tf.reshape(hidden, (-1, kernel.shape[0])), kernel)
            hidden = layer.activation(tf.nn.bias_add(product, bias))
        hidden = tf.cast(hidden, tf.float32)
        policy, value = (head.activation(tf.nn.bias_add(tf.matmul(hidden, kernel), bias))
                         for head, (kernel, bias) in zip(self._heads, pairs[n_hidden:], strict=True))
        return policy, tf.reshape(value, (-1,))


def _ga3cs_network(settings: Settings, spec: EnvSpec) -> keras.Model:
    images = len(spec.observation_shape) == 3
    kind = settings.algorithm.network if settings.algorithm.network != "auto" else "small" if images else "dense"
    if images == (kind == "dense"):
        raise ConfigError(f"network: '{kind}' does not fit {spec.name}, whose observations are "
                          f"{'images: small or large' if images else 'vectors: dense'}")
    seeds = iter((np.random.SeedSequence(settings.run.seed).generate_state(16) % 2**31).tolist())

    def initial(gain: float) -> keras.initializers.Initializer:
        return keras.initializers.Orthogonal(gain, seed=next(seeds))

    inner = "mixed_bfloat16" if precision(settings) == "bfloat16" else "float32"

    def convolution(first: bool, filters: int, size: int, stride: int) -> keras.Layer:
        kind = PictureConv2D if first else StridedConv2D
        return kind(filters, size, stride, activation="relu", kernel_initializer=initial(2**0.5), dtype=inner)

    def dense(units: int, activation: str | None, gain: float, name: str | None = None,
              dtype: str = "float32") -> keras.Layer:
        return layers.Dense(units, activation=activation, name=name, kernel_initializer=initial(gain), dtype=dtype)

    observation = keras.Input(spec.observation_shape, dtype=str(spec.observation_dtype), name="observation")
    if images:
        hidden = observation
        if min(spec.observation_shape[:2]) < 36:
            raise ConfigError(f"network: images of {spec.name} are {spec.observation_shape[0]}x"
                              f"{spec.observation_shape[1]}, at least 36x36 is needed for '{kind}'")
        shape = ((16, 8, 4), (32, 4, 2)) if kind == "small" else (
            (32, 8, settings.algorithm.large_stride), (64, 4, 2), (64, 3, 1))
        for filters, size, stride in shape:
            hidden = convolution(hidden is observation, filters, size, stride)(hidden)
        hidden = layers.Flatten(dtype=inner)(hidden)
        hidden = dense(256 if kind == "small" else 512, "relu", 2**0.5, dtype=inner)(hidden)
    else:
        hidden = layers.Rescaling(1.0)(observation)
        for _ in range(2):
            hidden = dense(64, "tanh", 2**0.5)(hidden)
    policy = dense(int(spec.n_actions), "softmax", 0.01, "policy")(hidden)  # the first policy is all but uniform
    value = dense(1, None, 1.0, "value")(hidden)
    return keras.Model(observation, [policy, value], name=kind)


def _own_network(settings: Settings, spec: EnvSpec) -> keras.Model:
    """`function(settings, spec)` of the user, tried on two observations. Raises ConfigError, whatever it does wrong."""
    name = settings.algorithm.network
    function = imported(name, "network")
    keras.utils.set_random_seed(settings.run.seed)  # weights that he draws without a seed of their own repeat, too
    try:
        network = function(settings, spec)
        if not isinstance(network, keras.Model):
            raise ConfigError(f"network: {name!r} returned {network!r}; it must return a keras.Model")
        outputs = network(np.zeros((2, *spec.observation_shape), spec.observation_dtype), training=False)
        outputs = [np.asarray(keras.ops.convert_to_numpy(each)) for each in outputs] if isinstance(
            outputs, list | tuple) else []
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"network: {name!r} fails on observations {spec.observation_shape} "
                          f"{spec.observation_dtype}: {type(error).__name__}: {error}") from error
    shapes = [(each.shape, str(each.dtype)) for each in outputs]
    n_actions = int(spec.n_actions)
    if shapes != [((2, n_actions), "float32"), ((2, 1), "float32")]:
        found = ", ".join(f"{dtype} {('n', *shape[1:])}" for shape, dtype in shapes) or "no list of tensors"
        raise ConfigError(f"network: {name!r} gives {found}; it must give [policy, value], float32 (n, {n_actions}) "
                          f"and (n, 1)".replace("'n'", "n"))
    if (outputs[0] < 0).any() or not np.allclose(outputs[0].sum(axis=1), 1, atol=1e-4):
        raise ConfigError(f"network: {name!r} gives a policy that is no probabilities, {outputs[0][0]}; end it with "
                          "softmax")
    return network
