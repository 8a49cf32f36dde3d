"""A wrapper whose steps take as long as they like."""

from __future__ import annotations

import random
import time
from typing import Any

import gymnasium


class Sleepy(gymnasium.Wrapper):
    """Sleeps up to 4 ms before a step, usually not at all. What it does then is the same."""

    def step(self, action: Any) -> Any:
        if random.random() < 0.2:
            time.sleep(0.004 * random.random())
        return super().step(action)
