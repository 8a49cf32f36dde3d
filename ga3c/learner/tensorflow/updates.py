"""Turns a batch into an update (one call or several passes), or into gradients only.

TensorFlow compiles the methods that are named by a participle, such as `_updated`. They take and return tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ga3c.algorithms.base import Loss, Rates, Tensor, annealed
from ga3c.algorithms.networks import folded
from ga3c.learner.backend import Gradients, Updated, Weights
from ga3c.learner.tensorflow.compiler import Compiler
from ga3c.learner.tensorflow.variables import Variables
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings


class Signature(NamedTuple):
    """Shapes and dtypes of an update's inputs: the `Variables.reads` of a batch, `Weights`, and those of the target.

    target: [] if the algorithm does not read it.
    """

    batch: list[tf.TensorSpec]
    weights: list[tf.TensorSpec]
    target: list[tf.TensorSpec]

    def split(self, weights: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Splits inputs into (weights, the target's)."""
        return weights[:len(self.weights)], weights[len(self.weights):]


class Update(Protocol):
    """The interface of an update."""

    def __call__(self, inputs: list[Tensor], rates: Rates, weights: Weights, target: Weights, seed: Sequence[int],
                 over: Callable[[], bool]) -> tuple[Updated, Weights]:
        """Makes the update, see `UpdatingBackend.update`. weights: before the update. Returns those after it, too.

        target: the target's weights, [] if the algorithm does not read them.
        """


class _Numbers:
    """The rates of an update as one tensor, of this `spec`."""

    def __init__(self, variables: Variables, settings: Settings) -> None:
        self._names = tuple(annealed(settings.algorithm, variables.algorithm))
        self.spec = tf.TensorSpec((len(self._names),), tf.float32)

    def tensor(self, rates: Rates) -> Tensor:
        """Returns the tensor of these rates."""
        return tf.constant([rates[name] for name in self._names], tf.float32)

    def rates(self, numbers: Tensor) -> Rates:
        """Returns the rates in such a tensor."""
        return dict(zip(self._names, tf.unstack(numbers), strict=True))


class _Descent:
    """One step down the loss of some rows. metrics, rows: names of `Loss.metrics` and `rows`, once it was compiled."""

    def __init__(self, variables: Variables, settings: Settings) -> None:
        self._variables = variables
        self._norms = settings.run.norms
        self._max_grad_norm = settings.algorithm.max_grad_norm
        self.numbers = _Numbers(variables, settings)
        self.metrics: list[str] = []
        self.rows: list[str] = []

    def gradient(self, rows: Mapping[str, Tensor], rates: Rates, weights: Sequence[Tensor],
                 target: Sequence[Tensor]) -> tuple[Tensor, list[Tensor], Loss]:
        """Returns (metrics, gradients, the loss) of `rows`."""
        v = self._variables
        with tf.GradientTape() as tape:
            loss = v.algorithm.loss(v.bound(weights, target), rows, rates)
        gradients = tape.gradient(loss.total, v.network.trainable_variables)
        if all(gradient is None for gradient in gradients):
            raise ConfigError("algorithm: the loss depends on no weight of the network; `network(observation, "
                              "training=True)` gives what does")
        gradient_norm = tf.linalg.global_norm(gradients)
        if self._max_grad_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self._max_grad_norm, gradient_norm)
        metrics = loss.metrics | {"gradient_norm": gradient_norm}
        self.metrics = list(metrics)
        self.rows = list(loss.rows)
        return tf.stack(list(metrics.values())), gradients, loss

    def step(self, rows: Mapping[str, Tensor], numbers: Tensor, weights: Sequence[Tensor], target: Sequence[Tensor],
             kept: Mapping[str, Tensor]) -> list[Tensor]:
        """Takes the step and assigns `kept`, unless a metric is not finite. numbers: `Rates`.

        Returns the metrics, then `Loss.rows`.
        """
        v, variables, rates = self._variables, self._variables.network.trainable_variables, self.numbers.rates(numbers)
        metrics, gradients, loss = self.gradient(rows, rates, weights, target)

        def apply() -> Tensor:
            v.optimizer.learning_rate.assign(rates["learning_rate"])
            v.optimizer.apply(gradients, variables)
            v.assign_state({**loss.state, **kept})
            return tf.constant(True)

        before = [tf.convert_to_tensor(variable) for variable in variables] if self._norms else []
        # The norm covers every gradient: if one is not finite, neither weights nor optimizer change.
        tf.cond(tf.reduce_all(tf.math.is_finite(metrics)), apply, lambda: tf.constant(False))
        about_rows = list(loss.rows.values())
        if not before:
            return [metrics, *about_rows]
        # The step is measured as a difference, since each optimizer has its own formula.
        steps = [tf.convert_to_tensor(now) - then for now, then in zip(variables, before, strict=True)]
        self.metrics += ["weight_norm", "step_norm"]
        norms = [tf.linalg.global_norm(before), tf.linalg.global_norm(steps)]
        return [tf.concat([metrics, norms], axis=0), *about_rows]

    def named(self, metrics: NDArray) -> dict[str, float]:
        """Returns the metrics by name."""
        return dict(zip(self.metrics, metrics.tolist(), strict=True))


class OneStep:
    """An update of one pass over one minibatch, in one call."""

    def __init__(self, variables: Variables, compiler: Compiler, settings: Settings, signature: Signature) -> None:
        self._variables = variables
        self._descent = _Descent(variables, settings)
        self._numbers = self._descent.numbers
        self._signature = signature
        self._update, _ = compiler.compiled(
            self._updated, [*signature.batch, self._numbers.spec, *signature.weights, *signature.target])

    def __call__(self, inputs: list[Tensor], rates: Rates, weights: Weights, target: Weights, seed: Sequence[int],
                 over: Callable[[], bool]) -> tuple[Updated, Weights]:
        """Makes the update, see `Update`."""
        metrics, *rest = self._update(*inputs, self._numbers.tensor(rates), *weights, *target)
        n = len(self._descent.rows)
        rows = {name: numbers.numpy() for name, numbers in zip(self._descent.rows, rest[:n], strict=True)}
        return Updated(self._descent.named(metrics.numpy()) | {"passes": 1.0}, rows=rows), rest[n:]

    def _updated(self, *inputs: Tensor) -> list[Tensor]:
        """Inputs: `reads` of a batch, rates, weights, the target's. Returns metrics, `Loss.rows`, weights."""
        n = len(self._variables.reads)
        weights, target = self._signature.split(inputs[n + 1:])
        prepared, weights, kept = self._variables.prepared(inputs[:n], weights, target)
        return [*self._descent.step(prepared.rows, inputs[n], weights, target, kept), *self._variables.folded()]


class Passes:
    """An update of several passes or minibatches. One call prepares the batch, then each minibatch is one call."""

    def __init__(self, variables: Variables, compiler: Compiler, settings: Settings, signature: Signature) -> None:
        self._variables = variables
        self._descent = _Descent(variables, settings)
        self._numbers = self._descent.numbers
        self._passes = settings.algorithm.passes
        self._minibatches = settings.algorithm.minibatches
        self._rows, self._kept = list[str](), list[str]()  # names of outputs of `_prepared`, set when it is compiled
        self._signature = signature
        self._prepare, outputs = compiler.compiled(
            self._prepared, [*signature.batch, *signature.weights, *signature.target])
        rows = [tf.TensorSpec((None, *row.shape[1:]), row.dtype) for row in outputs[:len(self._rows)]]
        self._step, _ = compiler.compiled(self._stepped, [
            *rows, tf.TensorSpec((None,), tf.int32), self._numbers.spec, *signature.weights, *signature.target])

    def __call__(self, inputs: list[Tensor], rates: Rates, weights: Weights, target: Weights, seed: Sequence[int],
                 over: Callable[[], bool]) -> tuple[Updated, Weights]:
        """Makes the update, see `Update`."""
        numbers, n, shuffle = self._numbers.tensor(rates), len(self._rows), np.random.default_rng(seed)
        prepared, measured = self._prepare(*inputs, *weights, *target), list[NDArray]()
        rows, usable, rest = prepared[:n], prepared[n].numpy(), prepared[n + 1:]
        kept, weights = rest[:len(self._kept)], rest[len(self._kept):]
        parts = min(max(1, round(self._minibatches * len(usable) / rows[0].shape[0])), len(usable))
        about_rows = {name: np.full(rows[0].shape[0], np.nan, np.float32) for name in self._descent.rows}
        for number in range(self._passes * parts):
            if number % parts == 0:
                minibatches = np.array_split(shuffle.permutation(usable) if parts > 1 else usable, parts)
            picked = minibatches[number % parts]
            metrics, *weights = self._step(*rows, tf.constant(picked), numbers, *weights, *target)
            for values in about_rows.values():
                values[picked] = weights.pop(0).numpy()
            measured.append(metrics.numpy())
            if over():
                break
        finite = [metrics for metrics in measured if np.isfinite(metrics).all()]
        if not finite:
            return Updated(self._descent.named(measured[0])), self._variables.weights()
        self._variables.assign_state(dict(zip(self._kept, kept, strict=True)))
        metrics = self._descent.named(np.mean(finite, axis=0)) | {"passes": len(finite) / parts}
        return Updated(metrics, len(measured) - len(finite), len(measured), about_rows), self._variables.weights()

    def _prepared(self, *inputs: Tensor) -> list[Tensor]:
        """Inputs: `reads` of a batch, weights, the target's.

        Returns the `_rows`; the indices of rows with a filled step; new values of the variables `_kept`; weights.
        """
        n = len(self._variables.reads)
        prepared, weights, kept = self._variables.prepared(inputs[:n], *self._signature.split(inputs[n:]))
        self._rows = list(prepared.rows)
        self._kept = list(kept)
        filled = prepared.rows["filled"]
        usable = tf.where(tf.reduce_any(tf.reshape(filled, (tf.shape(filled)[0], -1)), axis=1))[:, 0]
        return [*prepared.rows.values(), tf.cast(usable, tf.int32), *kept.values(), *weights]

    def _stepped(self, *inputs: Tensor) -> list[Tensor]:
        """Trains on one minibatch. Inputs: `_rows`, indices of its rows, rates, weights, the target's.

        Returns metrics, `Loss.rows`, weights.
        """
        n = len(self._rows)
        rows = {name: tf.gather(row, inputs[n]) for name, row in zip(self._rows, inputs[:n], strict=True)}
        weights, target = self._signature.split(inputs[n + 2:])
        measured, now = self._descent.step(rows, inputs[n + 1], weights, target, {}), folded(self._variables.network)
        return [*measured, *now, *weights[len(now):]]  # the scaling of observations stays as prepared


class GradientsOf:
    """The gradients of one batch, computed over all its rows at once. No trainable variable changes."""

    def __init__(self, variables: Variables, compiler: Compiler, settings: Settings, signature: Signature) -> None:
        self._variables = variables
        self._descent = _Descent(variables, settings)
        self._numbers = self._descent.numbers
        self._kept = list[str]()
        self._gradients, _ = compiler.compiled(
            self._differentiated, [*signature.batch, self._numbers.spec, *signature.weights])

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics."""
        return tuple(self._descent.metrics)

    def __call__(self, inputs: list[Tensor], rates: Rates, weights: Weights) -> Gradients:
        """Computes them, see `DifferentiatingBackend.gradients`."""
        metrics, *measured = (each.numpy() for each in self._gradients(*inputs, self._numbers.tensor(rates), *weights))
        n = len(self._variables.network.trainable_variables)
        return Gradients(self._descent.named(metrics), measured[:n], dict(zip(self._kept, measured[n:], strict=True)))

    def _differentiated(self, *inputs: Tensor) -> list[Tensor]:
        """Inputs as of `OneStep`. Returns metrics, gradients, and new values of other variables."""
        n = len(self._variables.reads)
        prepared, weights, kept = self._variables.prepared(inputs[:n], inputs[n + 1:])
        rates = self._numbers.rates(inputs[n])
        metrics, gradients, loss = self._descent.gradient(prepared.rows, rates, weights, ())
        kept |= {**loss.state, **self._variables.untrained_state()}  # the forward pass may have changed them
        self._kept = list(kept)
        whole = [tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient)
                 for gradient, variable in zip(gradients, self._variables.network.trainable_variables, strict=True)]
        return [metrics, *whole, *kept.values()]
