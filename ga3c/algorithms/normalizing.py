"""Running means and variances, and their uses: normalised observations, scaled rewards.

They are float64, since a mean of 5,000 and a deviation of 1 leave float32 few digits. Each training batch is merged
into them as a whole. Source: Chan, Golub and LeVeque, Updating Formulae and a Pairwise Algorithm for Computing Sample
Variances, 1979, equations 2.1.

Index order: B rollouts, T steps, E environments.
"""

from __future__ import annotations

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from ga3c.algorithms.base import Tensor

LIMIT = 10.0
"""Normalised numbers are clipped to this many deviations from the mean. One that has hardly ever changed may be
thousands of deviations away once it does."""

_EPSILON = 1e-8  # added to the variance: a number that never changes stays 0


class Moments(NamedTuple):
    """Moments of all numbers so far: count (), mean and sum of squared differences from it (*shape). All float64."""

    count: Tensor
    mean: Tensor
    squares: Tensor


class RunningMoments:
    """`Moments` that are kept from update to update, and in checkpoints as "NAME.00" to "NAME.02".

    Args:
        name: names the numbers that the moments describe.
        shape: of one number.
    """

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.variables = {f"{name}.{number:02d}": keras.Variable(np.zeros(size), dtype="float64", trainable=False)
                          for number, size in enumerate(((), shape, shape))}

    def now(self) -> Moments:
        """Returns the current moments."""
        return Moments(*(ops.convert_to_tensor(variable) for variable in self.variables.values()))


def merged(before: Moments, values: Tensor, filled: Tensor) -> Moments:
    """Returns the moments of the numbers in `before` and of the filled `values`, of which there is at least one.

    Args: values (B, T, E, *shape) of any number type; filled (B, T, 1) bool.
    """
    shape = values.shape[3:]
    filled = ops.reshape(ops.broadcast_to(filled, ops.shape(values)[:3]), (-1, *(1 for _ in shape)))
    values = ops.cast(ops.reshape(values, (-1, *shape)), "float64")
    # Rows that are not filled hold old numbers. They are replaced, since NaN times 0 is NaN.
    nothing = ops.zeros_like(values)
    count = ops.sum(ops.cast(filled, "float64"))
    mean = ops.sum(ops.where(filled, values, nothing), axis=0) / count
    squares = ops.sum(ops.where(filled, ops.square(values - mean), nothing), axis=0)
    total, away = before.count + count, mean - before.mean
    return Moments(total, before.mean + away * (count / total),
                   before.squares + squares + ops.square(away) * (before.count * count / total))


def inverse_deviation(moments: Moments) -> Tensor:
    """Returns 1 / sqrt(variance + 1e-8), (*shape) float32; 1 before the first number."""
    deviation = ops.sqrt(moments.squares / ops.maximum(moments.count, ops.ones_like(moments.count)) + _EPSILON)
    return ops.cast(ops.where(moments.count > 0, 1 / deviation, ops.ones_like(deviation)), "float32")


def scaling(moments: Moments) -> list[Tensor]:
    """Returns [mean, inverse deviation], each (*shape) float32, for `normalized`."""
    return [ops.cast(moments.mean, "float32"), inverse_deviation(moments)]


def normalized(observation: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
    """Returns (observation - mean) * inverse in [-`LIMIT`, `LIMIT`], (..., *shape) float32.

    observation: of any number type.
    """
    return ops.clip((ops.cast(observation, "float32") - mean) * inverse, -LIMIT, LIMIT)
