"""The optimizers: Adam in one pass over the weights, RMSProp as in A3C, and RMSProp as in PyTorch."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from ga3c.algorithms.base import Tensor
from ga3c.settings.schema import AlgorithmSettings


class Adam(keras.optimizers.Adam):  # type: ignore[misc]  # Keras has no types
    """Kingma and Ba (2015), algorithm 1 in the order given at the end of section 2, without Keras' AMSGrad.

    As in Keras, epsilon is beside the uncorrected root. TensorFlow's own operation reads and writes each weight once.
    Keras' operations go over all weights a dozen times.
    """

    def update_step(self, gradient: Tensor, variable: tf.Variable, learning_rate: Tensor) -> None:
        """Updates one variable. Its gradient may be sparse."""
        number, dtype = self._get_variable_index(variable), variable.dtype
        beta_1, beta_2, epsilon, rate, step = (
            tf.cast(each, dtype) for each in (self.beta_1, self.beta_2, self.epsilon, learning_rate,
                                              self.iterations + 1))
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle, m=self._momentums[number].value.handle, v=self._velocities[number].value.handle,
            beta1_power=beta_1**step, beta2_power=beta_2**step, lr=rate, beta1=beta_1, beta2=beta_2, epsilon=epsilon,
            grad=tf.cast(gradient, dtype))


class PyTorchRMSprop(keras.optimizers.RMSprop):  # type: ignore[misc]
    """g <- decay g + (1 - decay) gradient^2; weight <- weight - rate gradient / (sqrt(g) + epsilon); g begins at 0.

    A3C's RMSProp has epsilon inside the root: there an epsilon of 1e-5 keeps the divisor at 3e-3 or more.
    """

    def update_step(self, gradient: Tensor, variable: tf.Variable, learning_rate: Tensor) -> None:
        """Updates one variable."""
        mean_square, dtype = self._velocities[self._get_variable_index(variable)], variable.dtype
        gradient = tf.cast(tf.convert_to_tensor(gradient), dtype)
        decay, epsilon, rate = (tf.cast(each, dtype) for each in (self.rho, self.epsilon, learning_rate))
        mean_square.assign(decay * mean_square + (1 - decay) * tf.square(gradient))
        variable.assign_sub(rate * gradient / (tf.sqrt(mean_square.value) + epsilon))


class CentredRMSprop(keras.optimizers.RMSprop):  # type: ignore[misc]
    """RMSProp after Graves (2013), equations 38 to 40 without momentum, as in DQN (Mnih et al., 2015).

    m <- decay m + (1 - decay) gradient; g alike of its square; weight <- weight - rate gradient / sqrt(g - m^2 +
    epsilon). Both begin at 0.
    """

    def update_step(self, gradient: Tensor, variable: tf.Variable, learning_rate: Tensor) -> None:
        """Updates one variable."""
        number, dtype = self._get_variable_index(variable), variable.dtype
        mean_square, mean = self._velocities[number], self._average_gradients[number]
        gradient = tf.cast(tf.convert_to_tensor(gradient), dtype)
        decay, epsilon, rate = (tf.cast(each, dtype) for each in (self.rho, self.epsilon, learning_rate))
        mean.assign(decay * mean + (1 - decay) * gradient)
        mean_square.assign(decay * mean_square + (1 - decay) * tf.square(gradient))
        variance = tf.maximum(mean_square.value - tf.square(mean.value), 0.0)  # rounding may make it negative
        variable.assign_sub(rate * gradient / tf.sqrt(variance + epsilon))


def build_optimizer(settings: AlgorithmSettings, variables: list[keras.Variable]) -> keras.optimizers.Optimizer:
    """Builds the optimizer named in the settings, for these variables."""
    if settings.optimizer == "adam":
        optimizer = Adam(settings.learning_rate, epsilon=settings.adam_epsilon)
        optimizer.build(variables)
        return optimizer
    how = {"rho": settings.rmsprop_decay, "epsilon": settings.rmsprop_epsilon}
    if settings.optimizer in ("rmsprop-pytorch", "rmsprop-centred"):
        optimizer = (CentredRMSprop(settings.learning_rate, centered=True, **how)
                     if settings.optimizer == "rmsprop-centred" else PyTorchRMSprop(settings.learning_rate, **how))
        optimizer.build(variables)
        return optimizer
    # Non-centred, epsilon inside the root, one set of statistics for all trainers (A3C, equation S2).
    optimizer = keras.optimizers.RMSprop(settings.learning_rate, **how)
    optimizer.build(variables)
    for mean_square in optimizer.variables[2:]:  # after iteration and learning rate
        # Begins at 1 as in the authors' TensorFlow. From 0 the first updates would be ten times too large.
        mean_square.assign(np.ones(mean_square.shape, np.float32))
    return optimizer
