"""The rows of a batch: steps of all environments in one axis, their mask and their weights.

Index order: B rollouts, T steps, E environments; N = B T E samples.
"""

from __future__ import annotations

from keras import ops

from ga3c.algorithms.base import Tensor


def flat(array: Tensor, axes: int) -> Tensor:
    """Returns (n, *shape): merges the first `axes` axes into one."""
    return ops.reshape(array, (-1, *array.shape[axes:]))


def filled_samples(filled: Tensor, shape: Tensor) -> Tensor:
    """Returns (N,) bool for the samples of rollouts: `filled` (B, T, 1) for all environments. shape: (B, T, E)."""
    return ops.reshape(ops.broadcast_to(filled, shape), (-1,))


def sample_weights(filled: Tensor) -> Tensor:
    """Returns (n,) float32: equal where filled (n,), 0 elsewhere. Their sum is 1."""
    weight = ops.cast(filled, "float32")
    return weight / ops.sum(weight)
