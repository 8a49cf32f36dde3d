"""The sizes of a prediction's batch, in requests."""

from __future__ import annotations

import bisect


def batch_sizes(most: int) -> list[int]:
    """Returns the sizes of a prediction's batch, in requests: 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on, and `most`.

    There are few, because TensorFlow keeps buffers for every size it has met, in each of its threads.
    """
    regular = {size for power in range(most.bit_length()) for size in (2**power, 3 * 2**power)}
    return sorted({size for size in regular if size < most} | {most})


def largest_size(sizes: list[int], waiting: int) -> int:
    """Returns the largest of the sorted `sizes` that `waiting` requests fill. The first size is 1."""
    return sizes[bisect.bisect(sizes, waiting) - 1]


def nearest_size(sizes: list[int], wanted: int) -> int:
    """Returns the one of `sizes` that is nearest to `wanted`; the larger of two equally near ones."""
    return min(reversed(sizes), key=lambda size: abs(size - wanted))
