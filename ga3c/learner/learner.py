"""The one model of the service: predict, train, weights. Owns network, optimiser, update lock and version.

In a run only this, `losses` and `network` know TensorFlow. Its functions are compiled in the constructor, before
any thread exists. Predictions do not wait for an update to end, as in the paper; updates take turns.

Next hop of an observation, after `predict`: `channel.Channel.answer`. After `update` there is none.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from numpy.typing import NDArray

from ga3c.algorithms import losses
from ga3c.algorithms.losses import Tensor
from ga3c.algorithms.networks import Acting, build_network, precision, share_gpus
from ga3c.envs.base import EnvSpec
from ga3c.settings.machine import usable_cores
from ga3c.settings.schema import Settings
from ga3c.transport.slots import Batch


class UpdateStats(NamedTuple):
    """What one update did.

    version, agent_steps: totals after it. batch_steps: agent steps in its batch. metrics: what the algorithm measured,
    means per agent step, and `learning_rate`, `gradient_norm` (before clipping). waited: seconds for another trainer's
    update to end.
    """

    version: int
    agent_steps: int
    batch_steps: int
    metrics: dict[str, float]
    waited: float = 0.0


Observed = NDArray | Tensor
Outputs = dict[str, NDArray[np.float32]]
"""What the network says of n observations, by name: "policy" (n, A), probabilities; "value" (n,)."""

_MEANS = ("policy_loss", "value_loss", "entropy", "gradient_norm", "explained_variance")


PATIENCE = 5.0  # seconds that a checkpoint waits for the end of an update
SKIPS = 10  # updates in a row that were not finite, and skipped, before it counts as divergence


class Diverged(Exception):
    """Update after update is not finite. Each was skipped, but the weights lead nowhere."""


class DeviceFailed(Exception):
    """The device is lost, stuck, or cannot do what is asked of it; the message is one line with a way on."""


class TooLarge(DeviceFailed):
    """The device has no memory for so much at once. An update that raises it is taken not to have been made."""


def stuck(seconds: float) -> DeviceFailed:
    """What to raise when an update has not ended for so long."""
    return DeviceFailed(f"an update has not ended in {seconds:g} s: the device is stuck, or the update too large; "
                        "ga3c-doctor tries each device; a smaller --training-batch-min, or --envs-per-agent, makes "
                        "updates smaller")


# What a device raises, as against a mistake in what it was given; and how a copy to it, or cuDNN, says so.
_LOST = (tf.errors.InternalError, tf.errors.UnavailableError, tf.errors.UnknownError, tf.errors.AbortedError,
         tf.errors.UnimplementedError, tf.errors.NotFoundError, tf.errors.DataLossError,
         tf.errors.FailedPreconditionError)
_FULL, _NO_CUDNN = "Dst tensor is not initialized", "DNN"


def _fail(error: tf.errors.OpError, what: str) -> NoReturn:
    """Raises TooLarge or DeviceFailed if the error is the device's failure at `what`, else the error."""
    if isinstance(error, tf.errors.ResourceExhaustedError) or _FULL in error.message:
        raise TooLarge(f"the device has no memory for {what}; end other programs on it, or give a smaller "
                       "--training-batch-min, --envs-per-agent or --prediction-batch-max") from error
    if not isinstance(error, _LOST) and _NO_CUDNN not in error.message:
        raise error
    cause = " ".join(error.message.split())[:200]
    raise DeviceFailed(f"the device failed at {what}: {cause}; ga3c-doctor tries each device, and with "
                       "CUDA_VISIBLE_DEVICES=-1 the processors do the work") from error


@contextlib.contextmanager
def _on_device(what: str) -> Iterator[None]:
    """Names the failures of the device: TooLarge, DeviceFailed."""
    try:
        yield
    except tf.errors.OpError as error:
        _fail(error, what)


def start_tensorflow(settings: Settings) -> None:
    """Device and thread options; before the first tensor of the process."""
    share_gpus()
    threads = 1 if settings.run.serial else settings.run.device_threads or max(1, usable_cores() // 2)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    # A call that is not `_inline` holds one of these until it ends, the condition within an update always one more.
    # With fewer than that, predictions wait for updates, and with one an update waits for itself. Each keeps buffers
    # of its own for every size of batch it has met, so there are no more.
    predictors, trainers = settings.thread_capacity
    tf.config.threading.set_inter_op_parallelism_threads(predictors + 2 * trainers)
    if settings.run.serial:
        tf.config.experimental.enable_op_determinism()


class Adam(keras.optimizers.Adam):  # type: ignore[misc]  # Keras has no types
    """Kingma and Ba (2015), algorithm 1 in the order of section 2's end, as Keras has it: its epsilon is beside the
    uncorrected root. Each weight is read and written once, by TensorFlow's own operation, where Keras' goes over all of
    them a dozen times. Without Keras' AMSGrad.
    """

    def update_step(self, gradient: Tensor, variable: tf.Variable, learning_rate: Tensor) -> None:
        """One variable's step; its gradient may be sparse."""
        number, dtype = self._get_variable_index(variable), variable.dtype
        beta_1, beta_2, epsilon, rate, step = (
            tf.cast(each, dtype) for each in (self.beta_1, self.beta_2, self.epsilon, learning_rate,
                                              self.iterations + 1))
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=self._momentums[number].value.handle, v=self._velocities[number].value.handle,
            beta1_power=beta_1**step, beta2_power=beta_2**step, lr=rate, beta1=beta_1, beta2=beta_2, epsilon=epsilon,
            grad=tf.cast(gradient, dtype))


def _build_optimizer(settings: Settings) -> keras.optimizers.Optimizer:
    if settings.algorithm.optimizer == "adam":
        return Adam(settings.algorithm.learning_rate, epsilon=settings.algorithm.adam_epsilon)
    # Non-centred, epsilon inside the root, one set of statistics for all trainers (A3C, equation S2).
    return keras.optimizers.RMSprop(
        settings.algorithm.learning_rate, rho=settings.algorithm.rmsprop_decay, epsilon=settings.algorithm.rmsprop_epsilon)


def scheduled(start: float, end: float | None, progress: float) -> float:
    """Linear from `start` to `end` as `progress` goes from 0 to 1, then constant; constant if `end` is None."""
    return start if end is None else start + (end - start) * min(progress, 1.0)


def _difference(variables: dict[str, keras.Variable], arrays: dict[str, NDArray]) -> str:
    """The first difference in name or shape; "" if there is none."""
    for name in sorted(variables.keys() | arrays.keys()):
        ours, theirs = (tuple(found[name].shape) if name in found else "missing" for found in (variables, arrays))
        if ours != theirs:
            return f"{name} is {theirs}, here {ours}"
    return ""


class Learner:
    """Network, optimiser and counters. `predict` and `update` may be called from any thread.

    `version`: updates so far. `agent_steps`: agent steps trained on so far; the schedules follow it. `min_valid_version`: the
    first version of these weights' line; rollouts of earlier ones are not to be trained on. `precision`: of the
    network's inner layers; `device`: what computes it.
    """

    def __init__(self, settings: Settings, spec: EnvSpec) -> None:
        self.version = self.min_valid_version = 0
        self.agent_steps = 0
        self._settings = settings
        self.precision = precision(settings)
        self._network = build_network(settings, spec)
        self._acting = Acting(self._network, settings)
        # Compiled, as within an update: the same to the bit.
        self._acting_weights = tf.function(self._acting.weights, autograph=False)
        self._answers_with = self.version, self._acting_weights()  # replaced at once: a policy is one version's
        self._optimizer = _build_optimizer(settings)
        self._optimizer.build(self._network.trainable_variables)
        if settings.algorithm.optimizer == "rmsprop":
            for mean_square in self._optimizer.variables[2:]:  # after iteration and learning rate
                # From 1 as in the authors' TensorFlow; from 0 the first updates are ten times too large.
                mean_square.assign(np.ones(mean_square.shape, np.float32))
        # Decayed sums of the squared advantages and of their weights; decayed alike, their ratio has no bias.
        self._advantage_square = keras.Variable(np.zeros(2, np.float32), trainable=False)
        self._update_lock = threading.Lock()
        self.learning_rate_factor = 1.0
        self.skipped = self._skipped_in_a_row = 0  # updates that were not finite
        # Operations one after the other in one thread: on processors what runs at the same time are whole calls.
        gpus = tf.config.list_logical_devices("GPU")
        self.device = gpus[0].name if gpus else "CPU"
        self._executor = "" if gpus else "SINGLE_THREADED_EXECUTOR"
        with tf.experimental.function_executor_type(self._executor):  # it must know a conditional when it is traced
            predict, train = self._compile(spec)
        self._predict, self._train = self._inline(predict), self._inline(train)

    def _inline(self, function: tf.types.experimental.ConcreteFunction) -> Callable[..., list[Tensor]]:
        """Its outputs, computed in the thread that calls, where that is a processor's: TensorFlow's own call hands over
        to another thread, which costs half a millisecond when the caches are full of emulators.
        """
        if not self._executor:
            return lambda *inputs: tf.nest.flatten(function(*inputs))
        captured, types = function.captured_inputs, [output.dtype for output in function.outputs]
        executor = self._executor
        return lambda *inputs: tf.raw_ops.StatefulPartitionedCall(
            args=[*inputs, *captured], Tout=types, f=function, executor_type=executor)

    def _compile(self, spec: EnvSpec) -> tuple[tf.types.experimental.ConcreteFunction, ...]:
        T = self._settings.algorithm.rollout_length
        observation = tf.TensorSpec((None, *spec.observation_shape), spec.observation_dtype)
        weights = [tf.TensorSpec(weight.shape, weight.dtype) for weight in self._answers_with[1]]
        steps = (None, T, None)

        batch = [observation, tf.TensorSpec((*steps, int(spec.n_actions)), tf.float32),
                 tf.TensorSpec(steps, tf.int32), tf.TensorSpec(steps, tf.float32),
                 tf.TensorSpec(steps, tf.bool), tf.TensorSpec(steps, tf.bool), tf.TensorSpec((None, T, 1), tf.bool),
                 tf.TensorSpec(steps, tf.float32), tf.TensorSpec((None, None), tf.float32), observation]
        predict = tf.function(self._acting, input_signature=[observation, *weights], autograph=False)
        train = tf.function(self._update, input_signature=[*batch, tf.TensorSpec((2,), tf.float32), *weights],
                            autograph=False)
        return predict.get_concrete_function(), train.get_concrete_function()

    def _update(self, observation: Tensor, behaviour: Tensor, action: Tensor, reward: Tensor, terminated: Tensor,
                truncated: Tensor, filled: Tensor, final_value: Tensor, bootstrap_value: Tensor, following: Tensor,
                rates: Tensor, *weights: Tensor) -> list[Tensor]:
        """One update; `rates` is (learning rate, beta), `weights` are what predictions are made with. Returns the means
        named in `_MEANS` and what predictions are to be made with from now on.
        """
        s = self._settings
        if s.algorithm.correction != "none":  # as the steps' values, so that an old rollout is judged by one set of weights
            bootstrap_value = ops.reshape(self._acting(following, *weights)[1], ops.shape(bootstrap_value))
        if s.algorithm.reward_clip:
            reward = ops.clip(reward, -s.algorithm.reward_clip, s.algorithm.reward_clip)
        steps = ops.shape(reward)
        weight = ops.reshape(ops.broadcast_to(ops.cast(filled, "float32"), steps), (-1,))
        weight = weight / ops.sum(weight)
        action, behaviour = ops.reshape(action, (-1,)), ops.reshape(behaviour, (-1, behaviour.shape[-1]))
        square = self._advantage_square
        with tf.GradientTape() as tape:
            policy, value = self._network(observation, training=True)
            value = value[:, 0]
            ratio = (ops.ones_like(value) if s.algorithm.correction == "none" else
                     losses.importance_ratio(policy, behaviour, action, s.algorithm.log_epsilon))
            returns = ops.stop_gradient(ops.reshape(losses.vtrace_returns(
                reward, terminated, truncated, filled, ops.reshape(value, steps), final_value, bootstrap_value,
                ops.reshape(ratio if s.algorithm.correction == "vtrace" else ops.ones_like(ratio), steps),
                s.algorithm.gamma, s.algorithm.gae_lambda), (-1,)))
            advantage = returns - value
            if s.algorithm.correction == "clipped-is":
                advantage = ratio * advantage
            if s.algorithm.normalize_advantages:
                # A mean that is not 0 would make all that was done likelier, and what is likely likelier still.
                advantage = ops.stop_gradient(losses.centred(advantage, ratio, weight))
                square = self._advantage_squares(advantage, weight)
                advantage = advantage / (ops.sqrt(square[0] / square[1]) + 1e-8)
            policy_loss = ops.sum(weight * losses.policy_loss(policy, action, advantage, s.algorithm.log_epsilon))
            value_loss = ops.sum(weight * losses.value_loss(value, returns))
            entropy = ops.sum(weight * losses.entropy(policy, s.algorithm.log_epsilon))
            loss = policy_loss + s.algorithm.value_coef * value_loss - rates[1] * entropy
            if s.algorithm.loss_reduction == "sum":
                loss = loss * ops.cast(ops.sum(ops.cast(filled, "int32")) * steps[2], "float32")
        variables = self._network.trainable_variables
        gradients = tape.gradient(loss, variables)
        gradient_norm = tf.linalg.global_norm(gradients)
        if s.algorithm.max_grad_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, s.algorithm.max_grad_norm, gradient_norm)
        spread = ops.sum(weight * ops.square(returns - ops.sum(weight * returns)))
        explained_variance = 1.0 - value_loss / ops.maximum(spread, 1e-8)
        means = ops.stack([policy_loss, value_loss, entropy, gradient_norm, explained_variance])

        def apply() -> Tensor:
            self._optimizer.learning_rate.assign(rates[0])
            self._optimizer.apply(gradients, variables)
            self._advantage_square.assign(square)
            return tf.constant(True)

        # The norm holds every gradient: if one is not finite, nothing is written, of the optimiser neither.
        tf.cond(tf.reduce_all(tf.math.is_finite(means)), apply, lambda: tf.constant(False))
        return [means, *self._acting.weights()]

    def _advantage_squares(self, advantage: Tensor, weight: Tensor) -> Tensor:
        """Decaying sums over the last hundred or so updates: of mean squared advantages, and of their weights."""
        now = ops.stack([ops.sum(weight * ops.square(advantage)), ops.ones(())])
        return 0.99 * self._advantage_square + 0.01 * now

    def shared(self, observation: NDArray) -> Observed:
        """For `predict`, again and again, in the place of an array that is written to anew between predictions: on
        processors the memory itself, looked at but once; the array where TensorFlow must copy it.
        """
        if self._executor and observation.size and observation.flags.carray and not observation.ctypes.data % 64:
            return tf.experimental.dlpack.from_dlpack(observation.__dlpack__())
        return observation

    def _observed(self, observation: Observed) -> Tensor:
        """Of what stays as it is until the call is over."""
        if isinstance(observation, np.ndarray):
            observation = self.shared(observation)
        return tf.constant(observation) if isinstance(observation, np.ndarray) else observation

    def predict(self, observation: Observed) -> tuple[Outputs, int]:
        """Outputs for observations (n, *shape), `shared` or not, and the version that made them.

        Raises DeviceFailed.
        """
        version, weights = self._answers_with
        try:
            policy, value = self._predict(self._observed(observation), *weights)
            return {"policy": policy.numpy(), "value": value.numpy()}, version
        except tf.errors.OpError as error:
            _fail(error, f"{len(observation)} predictions")

    def update(self, batch: Batch) -> UpdateStats | None:
        """One update from all filled steps of `batch`; None if it is not finite, or has waited here while the weights
        that played it were given up: then nothing has changed.

        Raises Diverged after `SKIPS` of those in a row, TooLarge and DeviceFailed.
        """
        s, filled = self._settings, batch.filled
        observation = batch.observation.reshape(-1, *batch.observation.shape[3:])
        following = batch.following.reshape(-1, *observation.shape[1:])
        what = f"an update of {batch.agent_steps} agent steps"
        with _on_device(what):
            tensors = [self._observed(observation), *(tf.constant(array) for array in (
                batch.policy, batch.action, batch.reward, batch.terminated, batch.truncated, filled,
                batch.final_value, batch.bootstrap_value)), self._observed(following)]
        before = time.monotonic()
        with _on_device(what), self._update_lock:
            waited = time.monotonic() - before
            if (batch.version[batch.steps > 0, 0] < self.min_valid_version).any():
                return None
            progress = self.agent_steps / s.algorithm.anneal_steps
            learning_rate = self.learning_rate_factor * scheduled(s.algorithm.learning_rate, s.algorithm.learning_rate_final, progress)
            rates = np.array([learning_rate, scheduled(s.algorithm.entropy_coef, s.algorithm.entropy_coef_final, progress)], np.float32)
            computed, *weights = self._train(*tensors, tf.constant(rates), *self._answers_with[1])
            means = dict(zip(_MEANS, computed.numpy().tolist(), strict=True))
            finite = np.isfinite(list(means.values())).all()
            self._skipped_in_a_row = 0 if finite else self._skipped_in_a_row + 1
            if not finite:
                self.skipped += 1
                if self._skipped_in_a_row < SKIPS:
                    return None
                self._skipped_in_a_row = 0
                shown = ", ".join(f"{name} {value}" for name, value in means.items())
                raise Diverged(f"update {self.version + 1} is not finite: {shown}; a lower learning_rate or a "
                               "max_grad_norm helps")
            self.version += 1
            self._answers_with = self.version, weights
            self.agent_steps += batch.agent_steps
            return UpdateStats(self.version, self.agent_steps, batch.agent_steps,
                               means | {"learning_rate": learning_rate}, waited)

    def _variables(self) -> dict[str, keras.Variable]:
        # By position: Keras numbers names by what else the process has built.
        return {f"{owner}.{number:02d}": variable
                for owner, variables in (("network", self._network.weights), ("optimizer", self._optimizer.variables),
                                         ("advantage", [self._advantage_square]))
                for number, variable in enumerate(variables)}

    @contextlib.contextmanager
    def _between_updates(self) -> Iterator[None]:
        if not self._update_lock.acquire(timeout=PATIENCE):
            raise stuck(PATIENCE)
        try:
            yield
        finally:
            self._update_lock.release()

    def state(self) -> tuple[dict[str, NDArray], int, int]:
        """(weights and optimiser by name, version, agent_steps), taken between two updates.

        Raises DeviceFailed, also if an update takes so long that it will hardly end.
        """
        with self._between_updates(), _on_device("a checkpoint"):
            return {name: v.numpy() for name, v in self._variables().items()}, self.version, self.agent_steps

    def readable(self) -> bool:
        """Whether `state` can be had: no update is stuck, and the weights can be read from their device."""
        if not self._update_lock.acquire(timeout=0.5):
            return False
        self._update_lock.release()
        try:
            self.state()
        except DeviceFailed:
            return False
        return True

    def start_from(self, arrays: dict[str, NDArray]) -> None:
        """Takes the network's weights out of a `state`. Raises ValueError, changing nothing, if they do not fit."""
        variables = {name: variable for name, variable in self._variables().items() if name.startswith("network.")}
        wrong = _difference(variables, {name: array for name, array in arrays.items() if name in variables})
        if wrong:
            raise ValueError(f"its weights are of another network: {wrong}")
        for name, variable in variables.items():
            variable.assign(arrays[name])
        self._answers_with = self.version, self._acting_weights()

    def restore(self, arrays: dict[str, NDArray], version: int, agent_steps: int) -> None:
        """Goes on from `state`; arrays of other owners are left out.

        Raises ValueError, changing nothing, if it is another network's; DeviceFailed, as `state` does.
        """
        arrays = self._fitting(arrays)
        with self._between_updates(), _on_device("a checkpoint"):
            self.agent_steps = agent_steps
            self._go_on_from(arrays, version)

    def go_back(self, arrays: dict[str, NDArray]) -> None:
        """Takes weights and optimiser of an earlier `state`; counters go on. What the present ones have predicted is
        told by its version: it is before `min_valid_version`. Raises as `restore`.
        """
        arrays = self._fitting(arrays)
        with self._between_updates(), _on_device("a checkpoint"):
            self._go_on_from(arrays, self.version + 1)
            self.min_valid_version = self.version

    def _fitting(self, arrays: dict[str, NDArray]) -> dict[str, NDArray]:
        """Without those of other owners. Raises ValueError if they are not this network's."""
        variables = self._variables()
        owners = {name.split(".")[0] for name in variables}
        arrays = {name: array for name, array in arrays.items() if name.split(".")[0] in owners}
        wrong = _difference(variables, arrays)
        if wrong:
            raise ValueError(f"its weights are of another network: {wrong}")
        return arrays

    def _go_on_from(self, arrays: dict[str, NDArray], version: int) -> None:
        for name, variable in self._variables().items():
            variable.assign(arrays[name])
        self.version = version
        self._answers_with = version, self._acting_weights()
        self._skipped_in_a_row = 0
