"""The backends of TensorFlow, see `learner.backend`. Everything is compiled in the constructor, before any thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf
from numpy.typing import NDArray

from ga3c.algorithms.base import Algorithm, Rates, Tensor
from ga3c.algorithms.fitting import fitting_network
from ga3c.algorithms.networks import our_keras
from ga3c.envs.base import EnvSpec
from ga3c.learner.backend import Gradients, Inputs, Observed, Updated, Weights
from ga3c.learner.tensorflow.compiler import Compiler
from ga3c.learner.tensorflow.device import precision
from ga3c.learner.tensorflow.failures import fail, on_device
from ga3c.learner.tensorflow.updates import GradientsOf, OneStep, Passes, Signature, Update
from ga3c.learner.tensorflow.variables import Variables
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field
from ga3c.transport.slots import Batch

_CHECKPOINT = "a checkpoint"


class TensorFlowBackend:
    """Variables on a device, and predictions: the `Backend` that the two below have in common."""

    @our_keras()
    def __init__(self, settings: Settings, env: EnvSpec, algorithm: Algorithm, fields: Mapping[str, Field]) -> None:
        dense = fitting_network(settings.algorithm, env) == "dense"
        self.precision = "float32" if dense else precision(settings.algorithm)
        self._variables = Variables(settings, env, algorithm, self.precision)
        self._outputs = tuple(algorithm.outputs(env))
        self._compiler = Compiler()
        self.device = self._compiler.device
        self._weights: Weights | None = self._variables.weights()  # None: the variables have changed since
        if algorithm.reads_target and not self._variables.folds:
            raise ConfigError(f"network: {settings.algorithm.network!r} keeps no snapshot of its weights, which "
                              f"--algorithm {settings.algorithm.algorithm} needs as its target; take a built-in one")
        weights = [tf.TensorSpec(weight.shape, weight.dtype) for weight in self.publish()]
        observation = tf.TensorSpec((None, *env.observation_shape), env.observation_dtype)
        self._predict, _ = self._compiler.compiled(self._acted, [observation, *weights])
        for name in self._variables.reads:
            if name not in fields:
                raise ConfigError(f"algorithm: {settings.algorithm.algorithm!r} reads {name!r}, which "
                                  "its batches do not have")
        batch = [tf.TensorSpec((None, *fields[name].shape), fields[name].dtype) for name in self._variables.reads]
        self._compile(settings, Signature(batch, weights, weights if algorithm.reads_target else []))

    def _compile(self, settings: Settings, signature: Signature) -> None:
        """Compiles the functions that take a batch."""
        raise NotImplementedError

    def _acted(self, observation: Tensor, *weights: Tensor) -> list[Tensor]:
        outputs = self._variables.algorithm.act(self._variables.bound(weights), observation)
        return [outputs[name] for name in self._outputs]

    def shared(self, observation: NDArray) -> Observed:
        """See `Compiler.shared`."""
        return self._compiler.shared(observation)

    def predict(self, observation: Observed, weights: Weights) -> dict[str, NDArray]:
        """See `Backend.predict`."""
        try:
            outputs = self._predict(self._compiler.tensor(observation), *weights)
            return {name: output.numpy() for name, output in zip(self._outputs, outputs, strict=True)}
        except tf.errors.OpError as error:
            fail(error, f"{len(observation)} predictions")

    def publish(self) -> Weights:
        """See `Backend.publish`."""
        if self._weights is None:
            with on_device(_CHECKPOINT):
                self._weights = self._variables.weights()
        return self._weights

    def inputs(self, batch: Batch) -> Inputs:
        """See `Backend.inputs`."""
        with on_device(f"an update of {batch.size} agent steps"):
            return Inputs(self._compiler.tensors([getattr(batch, name) for name in self._variables.reads]), batch.size)

    def arrays(self) -> dict[str, NDArray]:
        """See `Backend.arrays`."""
        with on_device(_CHECKPOINT):
            return self._variables.arrays()

    def assign(self, arrays: Mapping[str, NDArray]) -> None:
        """See `Backend.assign`."""
        self._weights = None
        with on_device(_CHECKPOINT):
            self._variables.assign(arrays)

    def matching_arrays(self, arrays: Mapping[str, NDArray], only: tuple[str, ...] = ("",)) -> dict[str, NDArray]:
        """See `Backend.matching_arrays`."""
        return self._variables.matching_arrays(arrays, only)

    def statistics(self) -> list[tuple[str, ...]]:
        """See `Backend.statistics`."""
        return self._variables.statistics()


class Updating(TensorFlowBackend):
    """The `UpdatingBackend`: an update is one call, or several passes."""

    def _compile(self, settings: Settings, signature: Signature) -> None:
        s = settings.algorithm
        self._reads_target = bool(signature.target)
        self._update: Update = (OneStep if s.passes == s.minibatches == 1 else Passes)(
            self._variables, self._compiler, settings, signature)

    def update(self, inputs: Inputs, rates: Rates, target: Weights = (), seed: Sequence[int] = (),
               over: Callable[[], bool] = lambda: False) -> Updated:
        """See `UpdatingBackend.update`."""
        weights = self.publish()
        self._weights = None  # if it fails, earlier minibatches have changed the variables
        with on_device(f"an update of {inputs.agent_steps} agent steps"):
            updated, self._weights = self._update(
                inputs.fields, rates, weights, target if self._reads_target else (), seed, over)
        return updated


class Differentiating(TensorFlowBackend):
    """The `DifferentiatingBackend`."""

    def _compile(self, settings: Settings, signature: Signature) -> None:
        self._gradients = GradientsOf(self._variables, self._compiler, settings, signature)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics of an update."""
        return self._gradients.metrics

    def assign(self, arrays: Mapping[str, NDArray]) -> None:
        """See `Backend.assign`. Workers do this after each rollout, so it is one call with the publication."""
        self._weights = self._variables.assign_and_fold(arrays)

    def gradients(self, inputs: Inputs, rates: Rates) -> Gradients:
        """See `DifferentiatingBackend.gradients`."""
        return self._gradients(inputs.fields, rates, self.publish())
