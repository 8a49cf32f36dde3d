"""What becomes of a batch: an update in one call or in several passes, or its gradients alone.

Methods named by a participle, as `_updated`, are what TensorFlow compiles: tensors in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ga3c.algorithms.base import Rates, Tensor
from ga3c.algorithms.networks import folded
from ga3c.learner.compiler import Compiler
from ga3c.learner.variables import Variables, Weights
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

_RATES = tf.TensorSpec((len(Rates._fields),), tf.float32)


class Signature(NamedTuple):
    """Shapes and types of what an update is given: the `Variables.reads` of a batch, and `Weights`."""

    batch: list[tf.TensorSpec]
    weights: list[tf.TensorSpec]


class Updated(NamedTuple):
    """What one update gave: means of the algorithm's metrics and of `gradient_norm` over its minibatches, `passes`, and
    what to predict with from now on. Nothing has changed if a metric is not finite. skipped: minibatches that were not
    finite, of an update that was made of the others.

    With `settings.run.norms` also `weight_norm`, before a step of the optimizer, and `step_norm`, of the step itself.
    All norms are Euclidean, over all trained weights together; the gradient's is from before clipping.
    """

    metrics: dict[str, float]
    weights: Weights
    skipped: int = 0


class Gradients(NamedTuple):
    """What an update would be made of: metrics, as of `Updated`; a gradient for each trainable variable; what other
    variables become, by name.
    """

    metrics: dict[str, float]
    gradients: list[NDArray[np.float32]]
    state: dict[str, NDArray]


class Update(Protocol):
    """How an update is made."""

    def __call__(self, inputs: list[Tensor], rates: Rates, weights: Weights, seed: Sequence[int],
                 over: Callable[[], bool]) -> Updated:
        """All passes over a batch. A minibatch one of whose metrics is not finite changes nothing.

        Rows are shuffled by `seed` before each pass, if there are several minibatches. A batch that is not full has
        fewer minibatches, so that none is much smaller than usual. `over` is asked after each whether to end early.
        """


class _Descent:
    """One step down the loss of some rows. metrics: their names, known once a step was compiled."""

    def __init__(self, variables: Variables, settings: Settings) -> None:
        self._variables, self._norms = variables, settings.run.norms
        self._max_grad_norm = settings.algorithm.max_grad_norm
        self.metrics: list[str] = []

    def gradient(self, rows: Mapping[str, Tensor], rates: Rates, weights: Sequence[Tensor]) -> tuple[
            Tensor, list[Tensor], Mapping[str, Tensor]]:
        """(metrics, gradients, what the algorithm's variables become) of the loss of `rows`."""
        v = self._variables
        with tf.GradientTape() as tape:
            loss = v.algorithm.loss(v.bound(weights), rows, rates)
        gradients = tape.gradient(loss.total, v.network.trainable_variables)
        if all(gradient is None for gradient in gradients):
            raise ConfigError("algorithm: the loss depends on no weight of the network; `network(observation, "
                              "training=True)` gives what does")
        gradient_norm = tf.linalg.global_norm(gradients)
        if self._max_grad_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self._max_grad_norm, gradient_norm)
        found = loss.metrics | {"gradient_norm": gradient_norm}
        self.metrics = list(found)
        return tf.stack(list(found.values())), gradients, loss.state

    def step(self, rows: Mapping[str, Tensor], numbers: Tensor, weights: Sequence[Tensor],
             kept: Mapping[str, Tensor]) -> Tensor:
        """Takes the step, unless a metric is not finite, and keeps `kept`. numbers: `Rates`. Returns metrics."""
        v, variables, rates = self._variables, self._variables.network.trainable_variables, Rates(*tf.unstack(numbers))
        metrics, gradients, state = self.gradient(rows, rates, weights)

        def apply() -> Tensor:
            v.optimizer.learning_rate.assign(rates.learning_rate)
            v.optimizer.apply(gradients, variables)
            v.keep({**state, **kept})
            return tf.constant(True)

        before = [tf.convert_to_tensor(variable) for variable in variables] if self._norms else []
        # The norm holds every gradient: if one is not finite, nothing is written, of the optimizer neither.
        tf.cond(tf.reduce_all(tf.math.is_finite(metrics)), apply, lambda: tf.constant(False))
        if not before:
            return metrics
        # The step is what it changed, as each optimizer has a formula of its own.
        steps = [tf.convert_to_tensor(now) - then for now, then in zip(variables, before, strict=True)]
        self.metrics += ["weight_norm", "step_norm"]
        return tf.concat([metrics, [tf.linalg.global_norm(before), tf.linalg.global_norm(steps)]], axis=0)

    def named(self, metrics: NDArray) -> dict[str, float]:
        """By their names."""
        return dict(zip(self.metrics, metrics.tolist(), strict=True))


class OneStep:
    """An update of one pass over one minibatch, in one call."""

    def __init__(self, variables: Variables, compiler: Compiler, settings: Settings, signature: Signature) -> None:
        self._variables, self._descent = variables, _Descent(variables, settings)
        self._update, _ = compiler.compiled(self._updated, [*signature.batch, _RATES, *signature.weights])

    def __call__(self, inputs: list[Tensor], rates: Rates, weights: Weights, seed: Sequence[int],
                 over: Callable[[], bool]) -> Updated:
        """As of any update."""
        metrics, *weights = self._update(*inputs, tf.constant(rates, tf.float32), *weights)
        return Updated(self._descent.named(metrics.numpy()) | {"passes": 1.0}, weights)

    def _updated(self, *inputs: Tensor) -> list[Tensor]:
        """Inputs: `reads` of a batch, rates, weights. Returns metrics and weights."""
        n = len(self._variables.reads)
        prepared, weights, kept = self._variables.prepared(inputs[:n], inputs[n + 1:])
        return [self._descent.step(prepared.rows, inputs[n], weights, kept), *self._variables.folded()]


class Passes:
    """An update of several passes or minibatches: one call that prepares it, then one call for each minibatch."""

    def __init__(self, variables: Variables, compiler: Compiler, settings: Settings, signature: Signature) -> None:
        self._variables, self._descent = variables, _Descent(variables, settings)
        self._passes, self._minibatches = settings.algorithm.passes, settings.algorithm.minibatches
        self._rows, self._kept = list[str](), list[str]()  # names in what `_prepared` returns, known then
        self._prepare, outputs = compiler.compiled(self._prepared, [*signature.batch, *signature.weights])
        rows = [tf.TensorSpec((None, *row.shape[1:]), row.dtype) for row in outputs[:len(self._rows)]]
        self._step, _ = compiler.compiled(
            self._stepped, [*rows, tf.TensorSpec((None,), tf.int32), _RATES, *signature.weights])

    def __call__(self, inputs: list[Tensor], rates: Rates, weights: Weights, seed: Sequence[int],
                 over: Callable[[], bool]) -> Updated:
        """As of any update."""
        numbers, n, shuffle = tf.constant(rates, tf.float32), len(self._rows), np.random.default_rng(seed)
        prepared, found = self._prepare(*inputs, *weights), list[NDArray]()
        rows, usable, rest = prepared[:n], prepared[n].numpy(), prepared[n + 1:]
        kept, weights = rest[:len(self._kept)], rest[len(self._kept):]
        parts = min(max(1, round(self._minibatches * len(usable) / rows[0].shape[0])), len(usable))
        for number in range(self._passes * parts):
            if number % parts == 0:
                minibatches = np.array_split(shuffle.permutation(usable) if parts > 1 else usable, parts)
            metrics, *weights = self._step(*rows, tf.constant(minibatches[number % parts]), numbers, *weights)
            found.append(metrics.numpy())
            if over():
                break
        finite = [metrics for metrics in found if np.isfinite(metrics).all()]
        if not finite:
            return Updated(self._descent.named(found[0]), self._variables.weights())
        self._variables.keep(dict(zip(self._kept, kept, strict=True)))
        metrics = self._descent.named(np.mean(finite, axis=0)) | {"passes": len(finite) / parts}
        return Updated(metrics, self._variables.weights(), len(found) - len(finite))

    def _prepared(self, *inputs: Tensor) -> list[Tensor]:
        """Inputs: `reads` of a batch, weights.

        Returns the `_rows`; the numbers of those with a filled step; what variables become, `_kept`; weights.
        """
        n = len(self._variables.reads)
        prepared, weights, kept = self._variables.prepared(inputs[:n], inputs[n:])
        self._rows, self._kept = list(prepared.rows), list(kept)
        filled = prepared.rows["filled"]
        usable = tf.where(tf.reduce_any(tf.reshape(filled, (tf.shape(filled)[0], -1)), axis=1))[:, 0]
        return [*prepared.rows.values(), tf.cast(usable, tf.int32), *kept.values(), *weights]

    def _stepped(self, *inputs: Tensor) -> list[Tensor]:
        """One minibatch. Inputs: `_rows`, the numbers of those in it, rates, weights. Returns metrics and weights."""
        n = len(self._rows)
        rows = {name: tf.gather(row, inputs[n]) for name, row in zip(self._rows, inputs[:n], strict=True)}
        weights = inputs[n + 2:]
        metrics, now = self._descent.step(rows, inputs[n + 1], weights, {}), folded(self._variables.network)
        return [metrics, *now, *weights[len(now):]]  # what observations are scaled with stays as it was prepared


class GradientsOf:
    """The gradients of one batch, of all its rows at once. No trainable variable changes."""

    def __init__(self, variables: Variables, compiler: Compiler, settings: Settings, signature: Signature) -> None:
        self._variables, self._descent = variables, _Descent(variables, settings)
        self._kept = list[str]()
        self._gradients, _ = compiler.compiled(self._differentiated, [*signature.batch, _RATES, *signature.weights])

    @property
    def metrics(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self._descent.metrics)

    def __call__(self, inputs: list[Tensor], rates: Rates, weights: Weights) -> Gradients:
        metrics, *found = (each.numpy() for each in self._gradients(*inputs, tf.constant(rates, tf.float32), *weights))
        n = len(self._variables.network.trainable_variables)
        return Gradients(self._descent.named(metrics), found[:n], dict(zip(self._kept, found[n:], strict=True)))

    def _differentiated(self, *inputs: Tensor) -> list[Tensor]:
        """Inputs as of `OneStep`; returns metrics, gradients, what else of the variables changes."""
        n = len(self._variables.reads)
        prepared, weights, kept = self._variables.prepared(inputs[:n], inputs[n + 1:])
        rates = Rates(*tf.unstack(inputs[n]))
        metrics, gradients, state = self._descent.gradient(prepared.rows, rates, weights)
        kept |= {**state, **self._variables.untrained()}  # as the forward pass has left them
        self._kept = list(kept)
        whole = [tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient)
                 for gradient, variable in zip(gradients, self._variables.network.trainable_variables, strict=True)]
        return [metrics, *whole, *kept.values()]
