"""Tiny worlds with a known best return, for tests and for a first look: `--game toy:catch`.

Each is a gymnasium environment whose class attribute `BEST_RETURN` is the score of a perfect player.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Step = tuple[NDArray, float, bool, bool, dict[str, Any]]


class Catch(gymnasium.Env):
    """A ball falls down a 10x5 board; catch it with a paddle on the bottom row. Reward +1 or -1 at the end."""

    BEST_RETURN: ClassVar[float] = 1.0
    ROWS, COLUMNS = 10, 5

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (self.ROWS * self.COLUMNS,), np.float32)
        self.action_space = Discrete(3)
        self._ball_row = self._ball_column = self._paddle = 0

    def _observation(self) -> NDArray[np.float32]:
        board = np.zeros((self.ROWS, self.COLUMNS), np.float32)
        board[self._ball_row, self._ball_column] = 1.0
        board[-1, self._paddle] = 1.0
        return board.ravel()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        self._ball_row, self._paddle = 0, self.COLUMNS // 2
        self._ball_column = int(self.np_random.integers(self.COLUMNS))
        return self._observation(), {}

    def step(self, action: int) -> Step:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self.COLUMNS - 1)
        self._ball_row += 1
        over = self._ball_row == self.ROWS - 1
        reward = (1.0 if self._paddle == self._ball_column else -1.0) if over else 0.0
        return self._observation(), reward, over, False, {}

    def render(self) -> NDArray[np.uint8]:
        """The board, 16 by 16 pixels a field."""
        board = self._observation().reshape(self.ROWS, self.COLUMNS)
        return np.repeat(np.kron(255 * board.astype(np.uint8), np.ones((16, 16), np.uint8))[..., None], 3, axis=2)


class LastStepReward(gymnasium.Env):
    """Seven steps; only the last action counts, and pays 1 if it repeats the symbol then shown.

    A learner that drops the terminal reward, as the original code did, learns nothing here.
    """

    BEST_RETURN: ClassVar[float] = 1.0
    LENGTH, SYMBOLS = 7, 3

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (self.LENGTH + self.SYMBOLS,), np.float32)
        self.action_space = Discrete(self.SYMBOLS)
        self._time = self._symbol = 0

    def _observation(self) -> NDArray[np.float32]:
        shown = np.zeros(self.LENGTH + self.SYMBOLS, np.float32)
        shown[min(self._time, self.LENGTH - 1)] = 1.0
        shown[self.LENGTH + self._symbol] = 1.0
        return shown

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        self._time, self._symbol = 0, int(self.np_random.integers(self.SYMBOLS))
        return self._observation(), {}

    def step(self, action: int) -> Step:
        right = int(action) == self._symbol
        self._time += 1
        over = self._time == self.LENGTH
        self._symbol = int(self.np_random.integers(self.SYMBOLS))
        return self._observation(), float(over and right), over, False, {}


class Identity(gymnasium.Env):
    """Each step shows one of four symbols and pays 1/16 for naming it; nothing to remember. Truncated after 16."""

    BEST_RETURN: ClassVar[float] = 1.0
    SYMBOLS, LENGTH = 4, 16

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (self.SYMBOLS,), np.float32)
        self.action_space = Discrete(self.SYMBOLS)
        self._time = self._symbol = 0

    def _observation(self) -> NDArray[np.float32]:
        self._symbol = int(self.np_random.integers(self.SYMBOLS))
        shown: NDArray[np.float32] = np.eye(self.SYMBOLS, dtype=np.float32)[self._symbol]
        return shown

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        self._time = 0
        return self._observation(), {}

    def step(self, action: int) -> Step:
        reward = float(int(action) == self._symbol) / self.LENGTH
        self._time += 1
        return self._observation(), reward, False, self._time == self.LENGTH, {}


class Counting(gymnasium.Env):
    """Observations that say who made them: bytes of (agent, episode, step), each a little-endian 32-bit number.

    The agent is the seed of its first reset, which the service makes different for every environment and incarnation.
    Episodes last 3 to 12 steps and end in turn by termination and truncation; the reward is the step's number. Whatever
    is lost, doubled, reordered or delivered to the wrong place on its way to a trainer shows.
    """

    BEST_RETURN: ClassVar[float] = float("nan")

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (12,), np.uint8)
        self.action_space = Discrete(2)
        self._agent = self._episode = self._time = 0

    def _observation(self) -> NDArray[np.uint8]:
        return np.array([self._agent, self._episode, self._time], "<u4").view(np.uint8)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self._agent, self._episode = seed % 2**32, 0
        else:
            self._episode += 1
        self._time = 0
        return self._observation(), {}

    @staticmethod
    def length(episode: int) -> int:
        """Steps of the given episode."""
        return 3 + episode * 7 % 10

    def step(self, action: int) -> Step:
        self._time += 1
        over = self._time == self.length(self._episode)
        terminated = over and self._episode % 2 == 0
        return self._observation(), float(self._time), terminated, over and not terminated, {}


TOYS: dict[str, Callable[[], gymnasium.Env]] = {
    "catch": Catch, "last-step-reward": LastStepReward, "identity": Identity, "counting": Counting,
}
