"""The choice of actions: an agent draws them from the outputs of the model."""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray


def sample(policy: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draws actions (n,) int64 from the probabilities `policy` (n, A), by inverse transform sampling."""
    actions = []
    for probabilities, uniform in zip(policy.tolist(), rng.random(len(policy)).tolist(), strict=True):
        cumulative = list(accumulate(probabilities))
        # Scaled by the sum, so that rounding cannot pick an action out of range.
        actions.append(bisect(cumulative, uniform * cumulative[-1], 0, len(cumulative) - 1))
    return np.array(actions)
