"""The TensorFlow calls: compiled predictions and updates.

A backend holds the variables. `learner.Learner` holds the version and the schedules of the rates. Everything is
compiled in the constructor, before any thread exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ga3c.algorithms.base import Algorithm, Rates, Tensor
from ga3c.algorithms.fitting import fitting_network
from ga3c.algorithms.networks import our_keras
from ga3c.envs.base import EnvSpec
from ga3c.learner.compiler import Compiler, Observed
from ga3c.learner.device import precision
from ga3c.learner.failures import fail
from ga3c.learner.updates import Gradients, GradientsOf, OneStep, Passes, Signature, Update, Updated
from ga3c.learner.variables import Variables, Weights
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.transport.slots import Batch, Slots


class Backend:
    """Variables on a device, and predictions.

    `predict` may be called from any thread at any time. For all other methods the caller holds a lock. variables: by
    name. precision: of the network's inner layers, if it is one of ours. device: what computes it.
    """

    @our_keras()
    def __init__(self, settings: Settings, env: EnvSpec, algorithm: Algorithm) -> None:
        dense = fitting_network(settings.algorithm, env) == "dense"
        self.precision = "float32" if dense else precision(settings.algorithm)
        self.variables = Variables(settings, env, algorithm, self.precision)
        self._compiler, self._outputs = Compiler(), tuple(algorithm.outputs(env))
        self.device = self._compiler.device
        weights = [tf.TensorSpec(weight.shape, weight.dtype) for weight in self.variables.weights()]
        observation = tf.TensorSpec((None, *env.observation_shape), env.observation_dtype)
        self._predict, _ = self._compiler.compiled(self._acted, [observation, *weights])
        shown = Slots(env, settings.algorithm.rollout_length, settings.agents.envs_per_agent, 1,
                      outputs=algorithm.outputs(env), discounted=settings.algorithm.normalize_rewards).empty_batch(1)
        for name in self.variables.reads:
            if not isinstance(getattr(shown, name, None), np.ndarray):
                raise ConfigError(f"algorithm: {settings.algorithm.algorithm!r} reads {name!r}, which no rollout has")
        batch = [tf.TensorSpec((None, *array.shape[1:]), array.dtype)
                 for array in (getattr(shown, name) for name in self.variables.reads)]
        self._compile(settings, Signature(batch, weights))

    def _compile(self, settings: Settings, signature: Signature) -> None:
        """Compiles the functions that take a batch."""
        raise NotImplementedError

    def _acted(self, observation: Tensor, *weights: Tensor) -> list[Tensor]:
        outputs = self.variables.algorithm.act(self.variables.bound(weights), observation)
        return [outputs[name] for name in self._outputs]

    def shared(self, observation: NDArray) -> Observed:
        """Wraps an array that is overwritten between predictions, once, for `predict`. See `Compiler.shared`."""
        return self._compiler.shared(observation)

    def predict(self, observation: Observed, weights: Weights) -> dict[str, NDArray]:
        """Returns the outputs by name for observations (n, *shape), `shared` or not. Raises DeviceFailed."""
        try:
            found = self._predict(self._compiler.tensor(observation), *weights)
            return {name: output.numpy() for name, output in zip(self._outputs, found, strict=True)}
        except tf.errors.OpError as error:
            fail(error, f"{len(observation)} predictions")

    def inputs(self, batch: Batch) -> list[Tensor]:
        """Returns the fields that an update reads, as tensors. `batch` must not change until the update has ended."""
        return self._compiler.tensors([getattr(batch, name) for name in self.variables.reads])


class UpdatingBackend(Backend):
    """A backend that makes updates: in one call, or in several passes."""

    def _compile(self, settings: Settings, signature: Signature) -> None:
        s = settings.algorithm
        self._update: Update = (OneStep if s.passes == s.minibatches == 1 else Passes)(
            self.variables, self._compiler, settings, signature)

    def update(self, inputs: list[Tensor], rates: Rates, weights: Weights, seed: Sequence[int] = (),
               over: Callable[[], bool] = lambda: False) -> Updated:
        """Makes an update, see `Update`."""
        return self._update(inputs, rates, weights, seed, over)


class GradientBackend(Backend):
    """A backend that computes gradients. Its caller makes the updates."""

    def _compile(self, settings: Settings, signature: Signature) -> None:
        self._gradients = GradientsOf(self.variables, self._compiler, settings, signature)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics of an update."""
        return self._gradients.metrics

    def gradients(self, inputs: list[Tensor], rates: Rates, weights: Weights) -> Gradients:
        """Returns the gradients of one batch, over all its rows at once. No trainable variable changes."""
        return self._gradients(inputs, rates, weights)
