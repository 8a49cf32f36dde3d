"""The calls of TensorFlow: compiled predictions and updates, the optimizer.

`Backend` holds the network, the optimizer and the state of the algorithm, and knows neither the version nor how
rates change; that is `learner.Learner`'s. Its functions are compiled in the constructor, before any thread exists.
Methods named by a participle, as `_acted` and `_updated`, are what TensorFlow compiles: tensors in and out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ga3c.algorithms.base import Algorithm, Rates, Tensor
from ga3c.algorithms.networks import Bound, build_network, folded, our_keras
from ga3c.algorithms.normalizing import RunningMoments, inverse_deviation, merged, scaling
from ga3c.envs.base import EnvSpec
from ga3c.learner.device import precision
from ga3c.learner.failures import fail
from ga3c.learner.optimizers import build_optimizer
from ga3c.settings.schema import Settings
from ga3c.transport.slots import Batch, Slots

Observed = NDArray | Tensor
Weights = Sequence[Tensor]
"""What predictions are made with: the network's weights, folded once an update, and the scaling of observations."""

_SHARED_FROM = 2**16  # bytes of an array of a batch; a smaller one is copied sooner than handed over


def _difference(variables: dict[str, keras.Variable], arrays: dict[str, NDArray]) -> str:
    """The first difference in name or shape; "" if there is none."""
    for name in sorted(variables.keys() | arrays.keys()):
        ours, theirs = (tuple(found[name].shape) if name in found else "missing" for found in (variables, arrays))
        if ours != theirs:
            return f"{name} is {theirs}, here {ours}"
    return ""


class Updated(NamedTuple):
    """What one update gave: means of the algorithm's metrics and of `gradient_norm` over its minibatches, `passes`, and
    what to predict with from now on. Nothing has changed if a metric is not finite.

    With `settings.run.norms` also `weight_norm`, before a step of the optimizer, and `step_norm`, of the step itself.
    All norms are Euclidean, over all trained weights together; the gradient's is from before clipping.
    """

    metrics: dict[str, float]
    weights: Weights


class Gradients(NamedTuple):
    """What an update would be made of: metrics, as of `Updated`; a gradient for each trainable variable; what the
    algorithm's variables become, by name.
    """

    metrics: dict[str, float]
    gradients: list[NDArray[np.float32]]
    state: dict[str, NDArray]


class Backend:
    """Network, optimizer and the algorithm's state on a device.

    `predict` may be called from any thread at any time. For all other methods the caller holds a lock.
    `precision`: of the network's inner layers; `device`: what computes it.

    Args:
        updates: there is `update`, of batches of any size; else there is `gradients` instead.
    """

    @our_keras()
    def __init__(self, settings: Settings, env: EnvSpec, algorithm: Algorithm, updates: bool = True) -> None:
        self.precision = precision(settings.algorithm)
        self._algorithm, self._max_grad_norm = algorithm, settings.algorithm.max_grad_norm
        self._norms = settings.run.norms
        self._network = build_network(settings, env, self.precision)
        self._optimizer = build_optimizer(settings.algorithm, self._network.trainable_variables)
        self._observations = (RunningMoments("observation", env.observation_shape)
                              if settings.algorithm.normalize_observations else None)
        self._rewards = RunningMoments("return", ()) if settings.algorithm.normalize_rewards else None
        needed = (*(("observation", "filled") if self._observations else ()),
                  *(("reward", "discounted_reward", "filled") if self._rewards else ()))
        self._reads = tuple(dict.fromkeys((*algorithm.reads, *needed)))
        # Compiled, as within an update: the same to the bit.
        self._fold = tf.function(self._folded, autograph=False)
        self._take = tf.function(self._assigned, autograph=False)
        # Operations one after the other in one thread: on processors what runs at the same time are whole calls.
        gpus = tf.config.list_logical_devices("GPU")
        self.device = gpus[0].name if gpus else "CPU"
        self._executor = "" if gpus else "SINGLE_THREADED_EXECUTOR"
        self._outputs, self._metrics = tuple(algorithm.outputs(env)), list[str]()
        self._passes, self._minibatches = settings.algorithm.passes, settings.algorithm.minibatches
        self._rows, self._kept = list[str](), list[str]()  # names of what `_prepared` returns, known once it is traced
        with tf.experimental.function_executor_type(self._executor):  # it must know a conditional when it is traced
            predict, *learn = self._compile(settings, env, self._updated if updates else self._differentiated)
        self._predict, (self._update, *self._step) = self._inline(predict), map(self._inline, learn)

    def _inline(self, function: tf.types.experimental.ConcreteFunction) -> Callable[..., list[Tensor]]:
        """Its outputs, computed in the thread that calls, where that is a processor's.

        TensorFlow's own call hands over to another thread, which costs half a millisecond when the caches are full of
        emulators.
        """
        if not self._executor:
            return lambda *inputs: tf.nest.flatten(function(*inputs))
        captured, types = function.captured_inputs, [output.dtype for output in function.outputs]
        executor = self._executor
        return lambda *inputs: tf.raw_ops.StatefulPartitionedCall(
            args=[*inputs, *captured], Tout=types, f=function, executor_type=executor)

    def _compile(self, settings: Settings, env: EnvSpec, at_once: Callable[..., list[Tensor]]
                 ) -> tuple[tf.types.experimental.ConcreteFunction, ...]:
        weights = [tf.TensorSpec(weight.shape, weight.dtype) for weight in self.weights()]
        observation = tf.TensorSpec((None, *env.observation_shape), env.observation_dtype)
        shown = Slots(env, settings.algorithm.rollout_length, settings.agents.envs_per_agent, 1,
                      outputs=self._algorithm.outputs(env), discounted=self._rewards is not None).empty_batch(1)
        batch = [tf.TensorSpec((None, *array.shape[1:]), array.dtype)
                 for array in (getattr(shown, name) for name in self._reads)]
        predict = tf.function(self._acted, input_signature=[observation, *weights], autograph=False)
        rates = tf.TensorSpec((len(Rates._fields),), tf.float32)
        if self._passes == self._minibatches == 1:  # all in one call
            update = tf.function(at_once, input_signature=[*batch, rates, *weights], autograph=False)
            return predict.get_concrete_function(), update.get_concrete_function()
        prepare = tf.function(self._prepared, input_signature=[*batch, *weights], autograph=False)
        prepared = prepare.get_concrete_function()
        rows = [tf.TensorSpec((None, *row.shape[1:]), row.dtype) for row in prepared.outputs[:len(self._rows)]]
        step = tf.function(self._stepped, autograph=False,
                           input_signature=[*rows, tf.TensorSpec((None,), tf.int32), rates, *weights])
        return predict.get_concrete_function(), prepared, step.get_concrete_function()

    def _acted(self, observation: Tensor, *weights: Tensor) -> list[Tensor]:
        outputs = self._algorithm.act(self._bound(weights), observation)
        return [outputs[name] for name in self._outputs]

    def _folded(self) -> list[Tensor]:
        """`Weights` of the variables as they are now."""
        return [*folded(self._network), *(scaling(self._observations.now()) if self._observations else ())]

    def _assigned(self, arrays: Mapping[str, Tensor]) -> list[Tensor]:
        self.assign(arrays)
        return self._folded()

    def _bound(self, weights: Sequence[Tensor]) -> Bound:
        """The network with what `_folded` gave."""
        n = len(weights) - (2 if self._observations else 0)
        return Bound(self._network, weights[:n], weights[n:])

    def _normalized(self, batch: dict[str, Tensor], weights: Sequence[Tensor]) -> tuple[
            dict[str, Tensor], Sequence[Tensor], list[Tensor]]:
        """The batch and weights that an update goes by, and what the running moments become.

        Both go by moments that the batch is in: so the first update is not made from numbers of any size.
        """
        moments: list[Tensor] = []
        if self._observations:
            seen = merged(self._observations.now(), batch["observation"], batch["filled"])
            weights = [*weights[:-2], *scaling(seen)]
            moments += seen
        if self._rewards:
            sums = merged(self._rewards.now(), batch["discounted_reward"], batch["filled"])
            batch = batch | {"reward": batch["reward"] * inverse_deviation(sums)}
            moments += sums
        return batch, weights, moments

    def _updated(self, *inputs: Tensor) -> list[Tensor]:
        """A whole update of one minibatch. Inputs: `_reads` of a batch, `Rates`, weights. Returns metrics and weights.
        """
        n = len(self._reads)
        batch, weights, moments = self._normalized(dict(zip(self._reads, inputs[:n], strict=True)), inputs[n + 1:])
        prepared = self._algorithm.prepare(self._bound(weights), batch)
        kept = {**prepared.state, **dict(zip(self._moments(), moments, strict=True))}
        return [self._descended(prepared.rows, inputs[n], weights, kept), *self._folded()]

    def _prepared(self, *inputs: Tensor) -> list[Tensor]:
        """The first part of an update. Inputs: `_reads` of a batch, weights.

        Returns the `_rows`; the numbers of those with a filled step; what variables become, `_kept`; weights.
        """
        n = len(self._reads)
        batch, weights, moments = self._normalized(dict(zip(self._reads, inputs[:n], strict=True)), inputs[n:])
        prepared = self._algorithm.prepare(self._bound(weights), batch)
        kept = {**prepared.state, **dict(zip(self._moments(), moments, strict=True))}
        self._rows, self._kept = list(prepared.rows), list(kept)
        filled = prepared.rows["filled"]
        usable = tf.where(tf.reduce_any(tf.reshape(filled, (tf.shape(filled)[0], -1)), axis=1))[:, 0]
        return [*prepared.rows.values(), tf.cast(usable, tf.int32), *kept.values(), *weights]

    def _stepped(self, *inputs: Tensor) -> list[Tensor]:
        """One minibatch. Inputs: `_rows`, the numbers of those in it, `Rates`, weights. Returns metrics and weights."""
        n = len(self._rows)
        rows = {name: tf.gather(row, inputs[n]) for name, row in zip(self._rows, inputs[:n], strict=True)}
        weights = inputs[n + 2:]
        metrics, now = self._descended(rows, inputs[n + 1], weights, {}), folded(self._network)
        return [metrics, *now, *weights[len(now):]]  # what observations are scaled with stays as it was prepared

    def _descended(self, rows: Mapping[str, Tensor], numbers: Tensor, weights: Sequence[Tensor],
                   kept: Mapping[str, Tensor]) -> Tensor:
        """Takes one step down the loss of `rows`, unless a metric is not finite, and keeps `kept`. Returns metrics."""
        variables, rates = self._network.trainable_variables, Rates(*tf.unstack(numbers))
        metrics, gradients, state = self._gradient(rows, rates, weights)

        def apply() -> Tensor:
            self._optimizer.learning_rate.assign(rates.learning_rate)
            self._optimizer.apply(gradients, variables)
            self._keep({**state, **kept})
            return tf.constant(True)

        before = [tf.convert_to_tensor(variable) for variable in variables] if self._norms else []
        # The norm holds every gradient: if one is not finite, nothing is written, of the optimizer neither.
        tf.cond(tf.reduce_all(tf.math.is_finite(metrics)), apply, lambda: tf.constant(False))
        if not before:
            return metrics
        # The step is what it changed, as each optimizer has a formula of its own.
        steps = [tf.convert_to_tensor(now) - then for now, then in zip(variables, before, strict=True)]
        self._metrics += ["weight_norm", "step_norm"]
        return tf.concat([metrics, [tf.linalg.global_norm(before), tf.linalg.global_norm(steps)]], axis=0)

    def _gradient(self, rows: Mapping[str, Tensor], rates: Rates, weights: Sequence[Tensor]) -> tuple[
            Tensor, list[Tensor], Mapping[str, Tensor]]:
        """(metrics, gradients, what the algorithm's variables become) of the loss of `rows`."""
        with tf.GradientTape() as tape:
            loss = self._algorithm.loss(self._bound(weights), rows, rates)
        gradients = tape.gradient(loss.total, self._network.trainable_variables)
        gradient_norm = tf.linalg.global_norm(gradients)
        if self._max_grad_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, self._max_grad_norm, gradient_norm)
        found = loss.metrics | {"gradient_norm": gradient_norm}
        self._metrics = list(found)
        return tf.stack(list(found.values())), gradients, loss.state

    def _differentiated(self, *inputs: Tensor) -> list[Tensor]:
        """What an update would be made of. Inputs as of `_updated`; returns metrics, gradients, algorithm's state."""
        n = len(self._reads)
        prepared = self._algorithm.prepare(self._bound(inputs[n + 1:]), dict(zip(self._reads, inputs[:n], strict=True)))
        metrics, gradients, state = self._gradient(prepared.rows, Rates(*tf.unstack(inputs[n])), inputs[n + 1:])
        kept = {**prepared.state, **state}
        self._kept = list(kept)
        whole = [tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient)
                 for gradient, variable in zip(gradients, self._network.trainable_variables, strict=True)]
        return [metrics, *whole, *kept.values()]

    def _keep(self, values: Mapping[str, Tensor]) -> None:
        """Assigns to the variables of the algorithm and of the running moments, by name."""
        variables = {**self._algorithm.variables, **self._moments()}
        for name, value in values.items():
            variables[name].assign(value)

    def weights(self) -> Weights:
        """What to predict with, from the variables as they are now."""
        found: Weights = self._fold()
        return found

    def shared(self, observation: NDArray) -> Observed:
        """For `predict`, in the place of an array that is overwritten between predictions.

        On processors it is the memory itself, looked at but once; the array where TensorFlow must copy it.
        """
        if self._executor and observation.size and observation.flags.carray and not observation.ctypes.data % 64:
            return tf.experimental.dlpack.from_dlpack(observation.__dlpack__())
        return observation

    def _tensor(self, array: Observed) -> Tensor:
        """Of what stays as it is until the call is over."""
        if isinstance(array, np.ndarray):
            array = self.shared(array)
        return tf.constant(array) if isinstance(array, np.ndarray) else array

    def predict(self, observation: Observed, weights: Weights) -> dict[str, NDArray]:
        """The outputs by name, for observations (n, *shape), `shared` or not. Raises DeviceFailed."""
        try:
            found = self._predict(self._tensor(observation), *weights)
            return {name: output.numpy() for name, output in zip(self._outputs, found, strict=True)}
        except tf.errors.OpError as error:
            fail(error, f"{len(observation)} predictions")

    def inputs(self, batch: Batch) -> list[Tensor]:
        """What `update` reads of the batch, which stays as it is until the update is over."""
        arrays = [getattr(batch, name) for name in self._reads]
        return [self._tensor(array) if array.nbytes >= _SHARED_FROM else tf.constant(array) for array in arrays]

    def update(self, inputs: list[Tensor], rates: Rates, weights: Weights, seed: Sequence[int] = (),
               over: Callable[[], bool] = lambda: False) -> Updated:
        """All passes over a batch. A minibatch one of whose metrics is not finite changes nothing.

        Rows are shuffled by `seed` before each pass, if there are several minibatches. A batch that is not full has
        fewer minibatches, so that none is much smaller than usual. `over` is asked after each whether to end early.
        """
        numbers = tf.constant(rates, tf.float32)
        if not self._step:
            metrics, *weights = self._update(*inputs, numbers, *weights)
            return Updated(self._named(metrics.numpy()) | {"passes": 1.0}, weights)
        n, shuffle, found = len(self._rows), np.random.default_rng(seed), list[NDArray]()
        prepared = self._update(*inputs, *weights)
        rows, usable, rest = prepared[:n], prepared[n].numpy(), prepared[n + 1:]
        kept, weights = rest[:len(self._kept)], rest[len(self._kept):]
        parts = min(max(1, round(self._minibatches * len(usable) / rows[0].shape[0])), len(usable))
        for number in range(self._passes * parts):
            if number % parts == 0:
                minibatches = np.array_split(shuffle.permutation(usable) if parts > 1 else usable, parts)
            metrics, *weights = self._step[0](*rows, tf.constant(minibatches[number % parts]), numbers, *weights)
            found.append(metrics.numpy())
            if over():
                break
        finite = [metrics for metrics in found if np.isfinite(metrics).all()]
        if not finite:
            return Updated(self._named(found[0]), self.weights())
        self._keep(dict(zip(self._kept, kept, strict=True)))
        passes = len(finite) / parts
        return Updated(self._named(np.mean(finite, axis=0)) | {"passes": passes}, self.weights())

    def gradients(self, inputs: list[Tensor], rates: Rates, weights: Weights) -> Gradients:
        """Of one batch, of all its rows at once. Nothing changes."""
        metrics, *found = (each.numpy() for each in self._update(*inputs, tf.constant(rates, tf.float32), *weights))
        n = len(self._network.trainable_variables)
        return Gradients(self._named(metrics), found[:n], dict(zip(self._kept, found[n:], strict=True)))

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics of an update."""
        return tuple(self._metrics)

    def statistics(self) -> list[tuple[str, ...]]:
        """For each trainable variable, in the order of `gradients`: its name in `arrays`, and those of the optimizer's
        statistics of it: the mean square, or Adam's two moments.
        """
        names = {id(variable): name for name, variable in self._variables().items()}
        trainable, optimizer = self._network.trainable_variables, self._optimizer.variables[2:]
        kinds = len(optimizer) // len(trainable)  # they stand variable by variable, after iteration and learning rate
        return [(names[id(variable)], *(names[id(each)] for each in optimizer[at * kinds:(at + 1) * kinds]))
                for at, variable in enumerate(trainable)]

    def _named(self, metrics: NDArray) -> dict[str, float]:
        return dict(zip(self._metrics, metrics.tolist(), strict=True))

    def _variables(self) -> dict[str, Any]:
        # By position: Keras numbers names by what else the process has built.
        return {f"{owner}.{number:02d}": variable
                for owner, variables in (("network", self._network.weights), ("optimizer", self._optimizer.variables))
                for number, variable in enumerate(variables)} | dict(self._algorithm.variables) | self._moments()

    def _moments(self) -> dict[str, keras.Variable]:
        """What the running moments are kept in, in the order that `_normalized` gives them."""
        return {name: variable for running in (self._observations, self._rewards) if running
                for name, variable in running.variables.items()}

    def arrays(self) -> dict[str, NDArray]:
        """A copy of all variables by name: "network.NN", "optimizer.NN", the algorithm's and the running moments'."""
        return {name: variable.numpy() for name, variable in self._variables().items()}

    def fitting(self, arrays: dict[str, NDArray], only: tuple[str, ...] = ("",)) -> dict[str, NDArray]:
        """Those of `arrays` that are of these variables, or of those whose names begin with one of `only`.

        Running moments that `arrays` has nothing of, as their setting was off, begin from nothing. Raises ValueError if
        anything else is missing, or of another shape.
        """
        variables = {name: variable for name, variable in self._variables().items() if name.startswith(only)}
        owners, theirs = ({name.split(".")[0] for name in found} for found in (variables, arrays))
        new = {name: np.zeros(variable.shape) for name, variable in self._moments().items()
               if name in variables and name.split(".")[0] not in theirs}
        arrays = {name: array for name, array in arrays.items() if name.split(".")[0] in owners} | new
        wrong = _difference(variables, arrays)
        if wrong:
            raise ValueError(f"its weights are of another network: {wrong}")
        return arrays

    def taken(self, arrays: Mapping[str, NDArray]) -> Weights:
        """Assigns a copy of `arrays`, which are all variables or some, and returns the new `weights`: in one call."""
        return list(self._take({name: tf.constant(array) for name, array in arrays.items()}))

    def assign(self, arrays: Mapping[str, NDArray]) -> None:
        """Sets the variables named in `arrays`, which are `fitting`."""
        variables = self._variables()
        for name, array in arrays.items():
            variables[name].assign(array)
