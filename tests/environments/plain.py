"""What odd environments are made of: a plain one."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

Step = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


class Plain(gymnasium.Env):
    """Episodes of five steps, each of which pays 1. The observation is the time."""

    LENGTH = 5
    metadata: ClassVar[dict] = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space, self.action_space = Box(0, 255, (2,), np.uint8), Discrete(2)
        self.render_mode, self.time = render_mode, 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.time = 0
        return self.seen(), {}

    def step(self, action: int) -> Step:
        self.time += 1
        return self.seen(), 1.0, self.time == self.LENGTH, False, {}

    def seen(self) -> np.ndarray:
        return np.full(2, self.time % 256, np.uint8)

    def render(self) -> Any:
        return np.full((8, 12, 3), 40 * (self.time % 6), np.uint8)
