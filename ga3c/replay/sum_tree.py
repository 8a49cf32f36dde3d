"""A tree of sums: draws a number with the probability of its priority, in the logarithm of their count.

Nodes are float64 and recomputed from their children. So the sum at the root stays that of the leaves, however often
they change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ga3c.replay.kernels import assign, find


class SumTree:
    """Priorities of the numbers 0 to size - 1, at first all 0."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._sums = np.zeros(2 << max(0, size - 1).bit_length())

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._sums[1])

    @property
    def priorities(self) -> NDArray[np.float64]:
        """The priorities (size,), as a view not to be written to."""
        first = len(self._sums) // 2
        return self._sums[first:first + self._size]

    def assign(self, numbers: NDArray[np.int64], priorities: NDArray[np.float64]) -> None:
        """Sets the priorities (n,), at least 0, of these numbers (n,). Of a number that is twice there the last."""
        assign(self._sums, numbers, priorities)

    def draw(self, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """Draws n numbers (n,), one from each n-th of the sum (stratified: Schaul et al., 2016). The total is not 0."""
        points = (np.arange(n) + rng.random(n)) * (self.total / n)
        numbers = np.empty(n, np.int64)
        find(self._sums, np.minimum(points, np.nextafter(self.total, 0.0)), numbers)
        return numbers
