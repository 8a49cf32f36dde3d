"""Sticky actions, as Machado et al. (2018) define them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def held_actions(wanted: NDArray[np.uint8], held: NDArray[np.uint8], sticks: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Returns the action of each frame, (n, frames). `wanted` (n,) are the chosen actions.

    `held` (n,) are the actions of the frame before. Where `sticks` (n, frames), a frame repeats the action of the frame
    before it.
    """
    return np.where(np.logical_or.accumulate(~sticks, 1), wanted[:, None], held[:, None])
