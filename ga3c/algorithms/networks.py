"""The networks: observations in (bytes stay bytes until here), the algorithm's heads out, by name.

A layer folds its weights into the form that it multiplies with. Learning folds them within every update, so that
gradients reach the variables. Acting uses the weights folded after the last update. The forward pass is the same
function.

A user's own network, named as `network: my_module:build_network`, is a function like `build_network` below.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from ga3c.algorithms.base import Head, Tensor
from ga3c.algorithms.fitting import fitting_network
from ga3c.algorithms.normalizing import normalized
from ga3c.envs.base import EnvSpec
from ga3c.envs.containment import contained, described
from ga3c.envs.factory import import_callable
from ga3c.envs.random_streams import GlobalStreams
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

Folded = tuple[Tensor, Tensor]
"""Kernel and bias of a layer, cast, scaled and folded as `call_with` takes them."""


@contextlib.contextmanager
def our_keras() -> Iterator[None]:
    """Sets Keras to float32 and to images with the channels last within the context. Restores its settings afterwards.

    A user may have set something else in ~/.keras/keras.json, or in the process that loads a policy.
    """
    config = keras.config
    floats, images, epsilon, policy = (
        config.floatx(), config.image_data_format(), config.epsilon(), config.dtype_policy())
    config.set_floatx("float32")
    config.set_image_data_format("channels_last")
    config.set_epsilon(1e-7)
    config.set_dtype_policy("float32")
    try:
        yield
    finally:
        config.set_floatx(floats)
        config.set_image_data_format(images)
        config.set_epsilon(epsilon)
        config.set_dtype_policy(policy)


def _activated(product: Tensor, bias: Tensor, activation: Any, normalises: bool) -> Tensor:
    """Returns activation(product + bias). With `normalises` the product has mean 0 and deviation 1 over its units.

    The bias then follows the normalisation. So it stands for the offset that a layer normalisation usually has (Ba et
    al., 2016). Its gain is left out, since the weights of the next layer may take it.
    """
    if normalises:
        product = product - ops.mean(product, axis=-1, keepdims=True)
        product = product * ops.rsqrt(ops.mean(ops.square(product), axis=-1, keepdims=True) + 1e-5)
    return activation(ops.add(product, bias))


class FoldedDense(layers.Dense):  # type: ignore[misc]  # Keras has no types
    """A dense layer over its flattened inputs, whatever their shape. Always has a bias.

    normalises: see `_activated`.
    """

    def __init__(self, *args: Any, normalises: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self._normalises = normalises

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Makes the weights for inputs (n, *shape)."""
        super().build((None, math.prod(side for side in input_shape[1:] if side)))

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Returns (n, units)."""
        return (input_shape[0], self.units)

    def folded(self) -> Folded:
        """Returns kernel and bias in the layer's compute type."""
        return ops.cast(self.kernel, self.compute_dtype), ops.cast(self.bias, self.compute_dtype)

    def call_with(self, inputs: Tensor, weights: Folded) -> Tensor:
        """Maps (n, *shape) of any number type to (n, units) in the weights' type."""
        kernel, bias = weights
        inputs = ops.reshape(ops.cast(inputs, kernel.dtype), (-1, kernel.shape[0]))
        return _activated(ops.matmul(inputs, kernel), bias, self.activation, self._normalises)

    def call(self, inputs: Tensor) -> Tensor:
        """Calls `call_with` with the current weights."""
        return self.call_with(inputs, self.folded())


class StridedConv2D(layers.Conv2D):  # type: ignore[misc]
    """A convolution without padding that folds as many neighbouring pixels as its stride into the channels of one.

    The memory and the products are the same; only the shapes differ. On processors gradients cost up to 60 % less. It
    folds only where the stride divides the widths of image and kernel. Elsewhere it is the ordinary convolution; so it
    is on a GPU, where folding has not been measured. Takes filters, size, stride and activation, and always has a bias.
    normalises: see `_activated`.
    """

    def __init__(self, *args: Any, normalises: bool = False, **options: Any) -> None:
        super().__init__(*args, **options)
        self._normalises = normalises

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Makes the weights for images (n, height, width, channels)."""
        super().build(input_shape)
        stride, width = self.strides[1], input_shape[2]
        fits = width and width % stride == self.kernel_size[1] % stride == 0
        self._fold = stride if fits and not keras.distribution.list_devices("gpu") else 1

    def folded(self) -> Folded:
        """Returns kernel (height, width / fold, fold * channels, filters) and bias in the layer's compute type."""
        height, width, channels, filters = self.kernel.shape
        kernel = ops.reshape(self._filters(), (height, width // self._fold, self._fold * channels, filters))
        return ops.cast(kernel, self.compute_dtype), ops.cast(self.bias, self.compute_dtype)

    def _filters(self) -> Tensor:
        """Returns (height, width, channels, filters), which the images are multiplied with."""
        return self.kernel

    def call_with(self, inputs: Tensor, weights: Folded) -> Tensor:
        """Maps (n, height, width, channels) of any number type to (n, ..., filters) in the weights' type."""
        kernel, bias = weights
        _, height, width, channels = inputs.shape
        inputs = ops.cast(inputs, kernel.dtype)
        inputs = ops.reshape(inputs, (-1, height, width // self._fold, self._fold * channels))
        down, across = self.strides
        product = ops.conv(inputs, kernel, [down, across // self._fold], "valid", "channels_last")
        return _activated(product, bias, self.activation, self._normalises)

    def call(self, inputs: Tensor) -> Tensor:
        """Calls `call_with` with the current weights."""
        return self.call_with(inputs, self.folded())


class ByteConv2D(StridedConv2D):
    """A convolution of x / 127.5 - 1 where x are bytes. It scales its weights instead, which are fewer than pixels.

    The range is [-1, 1] as in the authors' code. Most of an image is background, which in [0, 1] would drown what
    moves.

    Args:
        contrast: a filter is its weights minus their mean. Then an even background counts nothing, however bright it
            is. Without contrast, a background that is not 0 pulls at all weights of a filter alike. With a high
            learning rate that switches filters off for good.
    """

    def __init__(self, *args: Any, contrast: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self._contrast = contrast

    def _filters(self) -> Tensor:
        kernel = ops.convert_to_tensor(self.kernel)
        return kernel - ops.mean(kernel, axis=(0, 1, 2), keepdims=True) if self._contrast else kernel

    def folded(self) -> Folded:
        """Returns kernel and bias for bytes."""
        kernel, bias = super().folded()
        offset = ops.sum(ops.cast(kernel, "float32"), axis=(0, 1, 2))  # 0 with contrast, except for rounding
        return kernel / 127.5, ops.cast(ops.cast(bias, "float32") - offset, self.compute_dtype)


class HeadedNetwork(keras.Model):  # type: ignore[misc]
    """Layers in a row, the trunk, then heads over the last one's outputs. A call returns (n, units) by head.

    A head may be a stream, with a layer of its own before it. The gradient of k streams enters the trunk times k^-1/2
    (Wang et al., 2016, section 4.2).
    """

    def __init__(self, name: str, observation_shape: tuple[int, ...], trunk: Sequence[FoldedDense | StridedConv2D],
                 heads: Sequence[Sequence[FoldedDense]]) -> None:
        """heads: the layers of each; the last one has the head's name."""
        super().__init__(name=name)
        self._trunk = list(trunk)
        self._heads = [list(head) for head in heads]
        self._layers_in_order = [*self._trunk, *(layer for head in self._heads for layer in head)]
        shape: tuple[int | None, ...] = (None, *observation_shape)
        for layer in self._trunk:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)
        for head in self._heads:
            beyond = shape
            for layer in head:
                layer.build(beyond)
                beyond = layer.compute_output_shape(beyond)
        self.built = True

    def folded(self) -> list[Tensor]:
        """Returns the current kernel and bias of each layer, for `forward`."""
        return [ops.convert_to_tensor(weight) for layer in self._layers_in_order for weight in layer.folded()]

    def forward(self, observation: Tensor, weights: Sequence[Tensor]) -> dict[str, Tensor]:
        """Returns (n, units) float32 by head, for observations (n, *shape) and `folded` weights."""
        pairs = iter(zip(weights[::2], weights[1::2], strict=True))
        hidden = observation
        for layer in self._trunk:
            hidden = layer.call_with(hidden, next(pairs))
        if len(self._heads[0]) > 1:
            hidden += (len(self._heads)**-0.5 - 1.0) * (hidden - ops.stop_gradient(hidden))
        outputs = {}
        for head in self._heads:
            output = hidden
            for layer in head:
                output = layer.call_with(output, next(pairs))
            outputs[head[-1].name] = output
        return outputs

    def call(self, observation: Tensor, training: bool | None = None) -> dict[str, Tensor]:
        """Calls `forward` with the current weights."""
        return self.forward(observation, self.folded())


def folded(network: keras.Model) -> list[Tensor]:
    """Returns the current weights for `Bound`. Returns [] for a user's network, which may hold anything."""
    return network.folded() if isinstance(network, HeadedNetwork) else []


class Bound:
    """A network with the weights that it acts with: the `base.Network` of one prediction or update.

    Casting and scaling the weights of a dense layer takes longer than multiplying a few observations with them. So a
    prediction takes them `folded`. A user's network is called with its variables, which an update may be changing.

    Args:
        scaling: what observations are `normalized` with before they reach the network; empty: they are not.
        target: the network bound to the target's weights, if there is one.
    """

    def __init__(self, network: keras.Model, weights: Sequence[Tensor], scaling: Sequence[Tensor] = (),
                 target: Bound | None = None) -> None:
        self._network = network
        self._weights = weights
        self._scaling = scaling
        self._target = target

    def target(self, observation: Tensor) -> Mapping[str, Tensor]:
        """Returns (n, units) by head, of the target's weights."""
        assert self._target is not None, "an algorithm that calls `target` has `reads_target`"
        return self._target(observation)

    def __call__(self, observation: Tensor, training: bool = False) -> Mapping[str, Tensor]:
        """Returns (n, units) by head. training: from the variables, with a gradient."""
        if self._scaling:
            observation = normalized(observation, *self._scaling)
        if self._weights and not training:
            heads: Mapping[str, Tensor] = self._network.forward(observation, self._weights)
            return heads
        heads = self._network(observation, training=training)
        return heads if training else {name: ops.stop_gradient(head) for name, head in heads.items()}


@our_keras()
def build_network(settings: Settings, spec: EnvSpec, heads: Mapping[str, Head],
                  precision: str = "float32") -> keras.Model:
    """Builds the network named in `settings.algorithm.network` for environments like `spec`, with these heads.

    Its weights are drawn from `settings.run.seed` and are orthogonal. The authors' code draws them uniformly, which
    shrinks activations layer by layer and starts slowly.

    small: A3C's, as in the paper: 16 filters 8x8 stride 4, 32 filters 4x4 stride 2, 256 units.
    large: 32 filters 8x8, 64 4x4 stride 2, 64 3x3, 512 units. The first layer's stride is `large_stride`. The paper
        varies it from 4 to 1 for a network that is heavier without more weights in its convolutions.
    nature: large with stride 4, the network of Mnih et al., Human-level control through deep reinforcement learning,
        2015.
    dense: two layers of 64 units for vectors.
    module:function: what that function returns, called and checked by `_own_network`.

    precision: "float32" or "bfloat16", for convolutions and the layer after them. Weights and heads are always float32.

    With `normalize_observations` the network takes normalised observations, which are always float32.

    Raises ConfigError if the network does not fit the observations, or is not a valid network.
    """
    kind = fitting_network(settings.algorithm, spec)
    if settings.algorithm.normalize_observations:
        spec = spec._replace(observation_dtype=np.dtype(np.float32))
    if ":" in kind:
        return _own_network(settings, spec, heads)
    return _headed_network(settings, spec, kind, heads, precision)


def _headed_network(settings: Settings, spec: EnvSpec, kind: str, heads: Mapping[str, Head],
                    precision: str) -> HeadedNetwork:
    shape = spec.observation_shape
    images = len(shape) == 3
    seeds = iter((np.random.SeedSequence(settings.run.seed).generate_state(16) % 2**31).tolist())

    normalises = {"normalises": settings.algorithm.layer_norm}

    def options(activation: str | None, gain: float, dtype: str) -> dict[str, Any]:
        return {"activation": activation, "dtype": dtype,
                "kernel_initializer": keras.initializers.Orthogonal(gain, seed=next(seeds))}

    inner, trunk = "mixed_bfloat16" if precision == "bfloat16" else "float32", list[FoldedDense | StridedConv2D]()
    if images:
        sizes = ((16, 8, 4), (32, 4, 2)) if kind == "small" else (
            (32, 8, 4 if kind == "nature" else settings.algorithm.large_stride), (64, 4, 2), (64, 3, 1))
        # Without contrast the first layer would shift its bias, which a normalised layer adds after normalising.
        contrast = settings.algorithm.contrast or settings.algorithm.layer_norm
        for filters, size, stride in sizes:
            how = options("relu", 2**0.5, inner) | normalises
            trunk.append(StridedConv2D(filters, size, stride, **how) if trunk else
                         ByteConv2D(filters, size, stride, contrast=contrast, **how))
        last: Callable[[], FoldedDense] = lambda: FoldedDense(
            256 if kind == "small" else 512, **options("relu", 2**0.5, inner), **normalises)
    else:
        last = lambda: FoldedDense(64, **options("tanh", 2**0.5, "float32"), **normalises)  # noqa: E731
        trunk.append(last())
    if not any(head.own_layer for head in heads.values()):
        trunk.append(last())
    return HeadedNetwork(kind, shape, trunk, [
        [*([last()] if head.own_layer else []),
         FoldedDense(head.units, name=name, **options(head.activation, head.gain, "float32"))]
        for name, head in heads.items()])


def _own_network(settings: Settings, spec: EnvSpec, heads: Mapping[str, Head]) -> keras.Model:
    """Calls the user's `function(settings, spec)` and tries the network on two observations.

    It must return a dictionary with all `heads`.

    Raises ConfigError on any error. `random` and `np.random` keep their state: in a worker of A3C the games draw from
    them.
    """
    name = settings.algorithm.network
    doing = "cannot be imported"
    with contained(), GlobalStreams(settings.run.seed):
        try:
            function = import_callable(name, "network")
            doing = f"fails on observations {spec.observation_shape} {spec.observation_dtype}"
            keras.utils.set_random_seed(settings.run.seed)  # weights drawn without a seed of their own repeat, too
            network = function(settings, spec)
            if not isinstance(network, keras.Model):
                raise ConfigError(f"network: {name!r} returned {network!r}; it must return a keras.Model")
            outputs = network(np.zeros((2, *spec.observation_shape), spec.observation_dtype), training=False)
            returned = {name: np.asarray(ops.convert_to_numpy(output)) for name, output in outputs.items()} if (
                isinstance(outputs, Mapping)) else {}
        except ConfigError:
            raise
        except BaseException as error:  # noqa: B036  # a user's own code may raise anything, as sys.exit() does
            raise ConfigError(f"network: {name!r} {doing}: {described(error)}") from error
    wanted = {name: ((2, head.units), "float32") for name, head in heads.items()}
    shapes = {name: (output.shape, str(output.dtype)) for name, output in returned.items()}
    if shapes != wanted:
        raise ConfigError(f"network: {name!r} gives {_shown(shapes) or 'no dictionary of tensors'}; the algorithm "
                          f"needs {_shown(wanted)}")
    for head, output in returned.items():
        if heads[head].activation == "softmax" and (
                (output < 0).any() or not np.allclose(output.sum(axis=1), 1, atol=1e-4)):
            raise ConfigError(f"network: {name!r} returns a {head} that is not probabilities, {output[0]}; end it with "
                              "softmax")
    return network


def _shown(shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> str:
    return ", ".join(f"{name} ({', '.join(map(str, ('n', *shape[1:])))}) {dtype}"
                     for name, (shape, dtype) in shapes.items())
