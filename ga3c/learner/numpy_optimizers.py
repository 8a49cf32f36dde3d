"""Steps of the optimizers in NumPy, for weights outside a graph. `optimizers` has the same steps for TensorFlow.

Each works in place, array by array. So it overwrites little of what other processes do meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_BETA_1, _BETA_2 = 0.9, 0.999  # of Adam


def rmsprop(weights: NDArray, mean_square: NDArray, gradient: NDArray, rate: float, decay: float,
            epsilon: float, epsilon_outside_root: bool = False) -> None:
    """g <- decay g + (1 - decay) gradient^2; weights <- weights - rate gradient / sqrt(g + epsilon) (A3C, S2, S3).

    epsilon_outside_root: epsilon is outside the root, as in `optimizers.PyTorchRMSprop`.
    """
    mean_square *= decay
    mean_square += (1 - decay) * np.square(gradient)
    root = np.sqrt(mean_square) + epsilon if epsilon_outside_root else np.sqrt(mean_square + epsilon)
    weights -= rate * gradient / root


def adam(weights: NDArray, mean: NDArray, mean_square: NDArray, gradient: NDArray, rate: float, epsilon: float,
         step: int) -> None:
    """Makes step number `step`, counted from 1, as `optimizers.Adam` does."""
    mean += (1 - _BETA_1) * (gradient - mean)
    mean_square += (1 - _BETA_2) * (np.square(gradient) - mean_square)
    weights -= _scale(rate, step) * mean / (np.sqrt(mean_square) + epsilon)


def _scale(rate: float, step: int) -> float:
    return rate * float((1 - _BETA_2**step)**0.5 / (1 - _BETA_1**step))


class MultiStepAdam:
    """Steps of Adam that one of several learners takes alone, then adds to the shared weights.

    Source: Stooke and Abbeel, 2018, appendix A. If no other learner adds anything meanwhile, the result equals as many
    steps of Adam.

    Args:
        weights: the learner's own, which each step changes in place.
        means, mean_squares: Adam's moments of each weight when the learner pulled; they stay as they are.
        step: the optimizer's steps up to the pull, of all learners.
        epsilon: outside the root.

    taken: steps so far.
    """

    def __init__(self, weights: Sequence[NDArray], means: Sequence[NDArray], mean_squares: Sequence[NDArray], step: int,
                 epsilon: float) -> None:
        self._weights = weights
        self._means = means
        self._mean_squares = mean_squares
        self._step = step
        self._epsilon = epsilon
        self._gradients, self._squares, self._moved = ([np.zeros_like(array) for array in weights] for _ in range(3))
        self.taken = 0

    def step(self, gradients: Sequence[NDArray], rate: float) -> None:
        """Takes one step by these gradients, in the order of the weights."""
        self.taken += 1
        scale = _scale(rate, self._step + self.taken)
        for at, gradient in enumerate(gradients):
            self._gradients[at] = _BETA_1 * self._gradients[at] + gradient
            self._squares[at] = _BETA_2 * self._squares[at] + np.square(gradient)
            mean = _BETA_1**self.taken * self._means[at] + (1 - _BETA_1) * self._gradients[at]
            mean_square = _BETA_2**self.taken * self._mean_squares[at] + (1 - _BETA_2) * self._squares[at]
            moved = scale * mean / (np.sqrt(mean_square) + self._epsilon)
            self._weights[at] -= moved
            self._moved[at] += moved

    def add(self, at: int, part: slice, weights: NDArray, mean: NDArray, mean_square: NDArray) -> None:
        """Adds all steps to `part` of the flat array `at`: to the shared weights and both shared moments."""
        weights -= self._moved[at].reshape(-1)[part]
        mean *= _BETA_1**self.taken
        mean += (1 - _BETA_1) * self._gradients[at].reshape(-1)[part]
        mean_square *= _BETA_2**self.taken
        mean_square += (1 - _BETA_2) * self._squares[at].reshape(-1)[part]
