"""The one model of the service: predict, train, weights. Owns network, optimiser, update lock and version.

With `losses` and `network` the only module that knows TensorFlow. Its functions are compiled in the constructor, before
any thread exists. Predictions do not wait for an update to end, as in the paper; updates take turns.

Next hop of an observation, after `predict`: `channel.Channel.answer`. After `train` there is none.
"""

from __future__ import annotations

import os
import threading
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from numpy.typing import NDArray

from ga3c import losses
from ga3c.config import Settings
from ga3c.environment import EnvironmentSpec
from ga3c.losses import Tensor
from ga3c.network import build_network
from ga3c.rollout import TrainingBatch


class Update(NamedTuple):
    """What one training did. `version` and `agent_steps` are totals after it; losses and entropy are means per agent
    step; `lag` (filled rows,) is the policy lag of each step in updates.
    """

    version: int
    agent_steps: int
    batch_steps: int
    policy_loss: float
    value_loss: float
    entropy: float
    learning_rate: float
    lag: NDArray[np.int64]


class Diverged(Exception):
    """An update had a loss that is not finite; the weights are not worth keeping."""


def start_tensorflow(settings: Settings) -> None:
    """Device and thread options; before the first tensor of the process."""
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)
    threads = 1 if settings.serial else settings.device_threads or max(1, (os.cpu_count() or 1) // 2)
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if settings.serial:
        tf.config.experimental.enable_op_determinism()


def scheduled(start: float, end: float | None, progress: float) -> float:
    """Linear from `start` to `end` as `progress` goes from 0 to 1, then constant; constant if `end` is None."""
    return start if end is None else start + (end - start) * min(progress, 1.0)


class Model:
    """Network, optimiser and counters. `predict` and `train` may be called from any thread.

    `version`: updates so far. `agent_steps`: agent steps trained on so far; the schedules follow it.
    """

    def __init__(self, settings: Settings, spec: EnvironmentSpec) -> None:
        self.version = 0
        self.agent_steps = 0
        self._settings = settings
        self._network = build_network(settings, spec)
        # Non-centred, epsilon inside the root, one set of statistics for all trainers (A3C, equation S2).
        self._optimizer = keras.optimizers.RMSprop(
            settings.learning_rate, rho=settings.rmsprop_decay, epsilon=settings.rmsprop_epsilon)
        self._optimizer.build(self._network.trainable_variables)
        for mean_square in self._optimizer.variables[2:]:  # after iteration and learning rate
            # From 1 as in the authors' TensorFlow; from 0 the first updates are ten times too large.
            mean_square.assign(np.ones(mean_square.shape, np.float32))
        self._update_lock = threading.Lock()
        self._predict, self._train = self._compile(spec)

    def _compile(self, spec: EnvironmentSpec) -> tuple[tf.types.experimental.ConcreteFunction, ...]:
        T = self._settings.t_max
        observation = tf.TensorSpec((None, *spec.observation_shape), spec.observation_dtype)
        steps = (None, T, None)

        batch = [observation, tf.TensorSpec(steps, tf.int32), tf.TensorSpec(steps, tf.float32),
                 tf.TensorSpec(steps, tf.bool), tf.TensorSpec(steps, tf.bool), tf.TensorSpec((None, T, 1), tf.bool),
                 tf.TensorSpec(steps, tf.float32), tf.TensorSpec((None, None), tf.float32)]
        predict = tf.function(self._infer, input_signature=[observation], autograph=False)
        train = tf.function(self._update, input_signature=[*batch, tf.TensorSpec((2,), tf.float32)], autograph=False)
        return predict.get_concrete_function(), train.get_concrete_function()

    def _infer(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        policy, value = self._network(observation, training=False)
        return policy, value[:, 0]

    def _update(self, observation: Tensor, action: Tensor, reward: Tensor, terminated: Tensor, truncated: Tensor,
                filled: Tensor, final_value: Tensor, bootstrap_value: Tensor, rates: Tensor) -> Tensor:
        """One update; `rates` is (learning rate, beta). Returns mean policy loss, value loss and entropy, (3,)."""
        s = self._settings
        if s.reward_clip:
            reward = ops.clip(reward, -s.reward_clip, s.reward_clip)
        returns = losses.n_step_returns(
            reward, terminated, truncated, filled, final_value, bootstrap_value, s.gamma)
        weight = ops.reshape(ops.broadcast_to(ops.cast(filled, "float32"), ops.shape(returns)), (-1,))
        returns, action = ops.reshape(returns, (-1,)), ops.reshape(action, (-1,))
        with tf.GradientTape() as tape:
            policy, value = self._network(observation, training=True)
            value = value[:, 0]
            policy_loss = ops.sum(weight * losses.policy_loss(policy, action, returns - value, s.log_epsilon))
            value_loss = ops.sum(weight * losses.value_loss(value, returns))
            entropy = ops.sum(weight * losses.entropy(policy, s.log_epsilon))
            loss = policy_loss + s.value_loss_factor * value_loss - rates[1] * entropy
        variables = self._network.trainable_variables
        gradients = tape.gradient(loss, variables)
        if s.gradient_clip_norm:
            gradients, _ = tf.clip_by_global_norm(gradients, s.gradient_clip_norm)
        self._optimizer.learning_rate.assign(rates[0])
        self._optimizer.apply(gradients, variables)
        return ops.stack([policy_loss, value_loss, entropy]) / ops.sum(weight)

    def predict(self, observation: NDArray) -> tuple[NDArray[np.float32], NDArray[np.float32], int]:
        """Policy (n, A), value (n,) and the version that made them, for observations (n, *shape)."""
        version = self.version
        policy, value = self._predict(tf.constant(observation))
        return policy.numpy(), value.numpy(), version

    def train(self, batch: TrainingBatch) -> Update:
        """One update from all filled steps of `batch` (losses summed over them). Raises Diverged."""
        s, filled = self._settings, batch.filled
        observation = batch.observation.reshape(-1, *batch.observation.shape[3:])
        tensors = [tf.constant(array) for array in (
            observation, batch.action, batch.reward, batch.terminated, batch.truncated, filled,
            batch.final_value, batch.bootstrap_value)]
        with self._update_lock:
            progress = self.agent_steps / s.anneal_steps
            learning_rate = scheduled(s.learning_rate, s.learning_rate_end, progress)
            rates = np.array([learning_rate, scheduled(s.beta, s.beta_end, progress)], np.float32)
            lag = (self.version - batch.version)[filled[:, :, 0]]
            policy_loss, value_loss, entropy = self._train(*tensors, tf.constant(rates)).numpy().tolist()
            if not np.isfinite([policy_loss, value_loss, entropy]).all():
                raise Diverged(f"update {self.version + 1} has losses {policy_loss}, {value_loss}, {entropy} (policy, "
                               "value, entropy); a lower learning_rate or a gradient_clip_norm helps")
            self.version += 1
            self.agent_steps += batch.agent_steps
            return Update(self.version, self.agent_steps, batch.agent_steps,
                          policy_loss, value_loss, entropy, learning_rate, lag)

    def _variables(self) -> dict[str, keras.Variable]:
        # By position: Keras numbers names by what else the process has built.
        return {f"{owner}.{number:02d}": variable
                for owner, variables in (("network", self._network.weights), ("optimizer", self._optimizer.variables))
                for number, variable in enumerate(variables)}

    def state(self) -> tuple[dict[str, NDArray], int, int]:
        """(weights and optimiser by name, version, agent_steps), taken between two updates."""
        with self._update_lock:
            return {name: v.numpy() for name, v in self._variables().items()}, self.version, self.agent_steps

    def restore(self, arrays: dict[str, NDArray], version: int, agent_steps: int) -> None:
        """Goes on from `state`. Raises ValueError, changing nothing, if it is another network's."""
        variables = self._variables()
        if {name: v.shape for name, v in variables.items()} != {name: a.shape for name, a in arrays.items()}:
            raise ValueError("its weights are of another network")
        with self._update_lock:
            for name, variable in variables.items():
                variable.assign(arrays[name])
            self.version, self.agent_steps = version, agent_steps
