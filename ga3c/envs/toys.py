"""Tiny environments with a known best return, for tests and for a first look: `--game toy:catch`.

Each is a Gymnasium environment whose class attribute `BEST_RETURN` is the score of a perfect player.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from ga3c.envs.base import State
from ga3c.envs.random_streams import packed, unpacked

Step = tuple[NDArray, float, bool, bool, dict[str, Any]]


class Toy(gymnasium.Env):
    """A toy environment whose state is its `position`, a few integers, and its random generator: `SavesState`."""

    position: tuple[int, ...]

    def save_state(self) -> State:
        return {"position": np.array(self.position, np.int64), "generator": packed(self.np_random)}

    def restore_state(self, state: State) -> None:
        self.np_random = unpacked(state["generator"])
        self.position = tuple(state["position"].tolist())


class Catch(Toy):
    """A ball falls down a 10 x 5 board; catch it with a paddle on the bottom row. Reward +1 or -1 at the end.

    Position: row and column of the ball, column of the paddle.
    """

    BEST_RETURN: ClassVar[float] = 1.0
    ROWS = 10
    COLUMNS = 5

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (self.ROWS * self.COLUMNS,), np.float32)
        self.action_space = Discrete(3)
        self.position = 0, 0, 0

    def _observation(self) -> NDArray[np.float32]:
        ball_row, ball_column, paddle = self.position
        board = np.zeros((self.ROWS, self.COLUMNS), np.float32)
        board[ball_row, ball_column] = 1.0
        board[-1, paddle] = 1.0
        return board.ravel()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        self.position = 0, int(self.np_random.integers(self.COLUMNS)), self.COLUMNS // 2
        return self._observation(), {}

    def step(self, action: int) -> Step:
        ball_row, ball_column, paddle = self.position
        ball_row += 1
        paddle = min(max(paddle + int(action) - 1, 0), self.COLUMNS - 1)
        self.position = ball_row, ball_column, paddle
        over = ball_row == self.ROWS - 1
        reward = (1.0 if paddle == ball_column else -1.0) if over else 0.0
        return self._observation(), reward, over, False, {}

    def render(self) -> NDArray[np.uint8]:
        """Returns the board as RGB (160, 80, 3) uint8, 16 x 16 pixels a field."""
        board = self._observation().reshape(self.ROWS, self.COLUMNS)
        return np.repeat(np.kron(255 * board.astype(np.uint8), np.ones((16, 16), np.uint8))[..., None], 3, axis=2)


class _Symbols(Toy):
    """A toy that shows one of `SYMBOLS` symbols in each step. Position: time, symbol."""

    SYMBOLS: ClassVar[int]

    def _observation(self) -> NDArray[np.float32]:
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        self.position = 0, int(self.np_random.integers(self.SYMBOLS))
        return self._observation(), {}


class LastStepReward(_Symbols):
    """Episodes of seven steps. Only the last action counts: it pays 1 if it names the symbol shown.

    A learner that drops the terminal reward, as the original code did, learns nothing here.
    """

    BEST_RETURN: ClassVar[float] = 1.0
    LENGTH = 7
    SYMBOLS = 3

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (self.LENGTH + self.SYMBOLS,), np.float32)
        self.action_space = Discrete(self.SYMBOLS)
        self.position = 0, 0

    def _observation(self) -> NDArray[np.float32]:
        time, symbol = self.position
        shown = np.zeros(self.LENGTH + self.SYMBOLS, np.float32)
        shown[min(time, self.LENGTH - 1)] = 1.0
        shown[self.LENGTH + symbol] = 1.0
        return shown

    def step(self, action: int) -> Step:
        time, symbol = self.position
        over = time + 1 == self.LENGTH
        self.position = time + 1, int(self.np_random.integers(self.SYMBOLS))
        return self._observation(), float(over and int(action) == symbol), over, False, {}


class Identity(_Symbols):
    """Each step shows one of four symbols and pays 1/16 for naming it. Needs no memory. Truncated after 16 steps."""

    BEST_RETURN: ClassVar[float] = 1.0
    LENGTH = 16
    SYMBOLS = 4

    def __init__(self) -> None:
        self.observation_space = Box(0.0, 1.0, (self.SYMBOLS,), np.float32)
        self.action_space = Discrete(self.SYMBOLS)
        self.position = 0, 0

    def _observation(self) -> NDArray[np.float32]:
        shown: NDArray[np.float32] = np.eye(self.SYMBOLS, dtype=np.float32)[self.position[1]]
        return shown

    def step(self, action: int) -> Step:
        time, symbol = self.position
        self.position = time + 1, int(self.np_random.integers(self.SYMBOLS))
        return self._observation(), float(int(action) == symbol) / self.LENGTH, False, time + 1 == self.LENGTH, {}


class Counting(Toy):
    """Observations that name their origin: bytes of (agent, episode, step), each a little-endian 32-bit number.

    The agent number is the seed of the first reset, which differs for every environment and generation. Episodes last 3
    to 12 steps and end alternately by termination and truncation. The reward is the step's number. So a test can see
    observations that are lost, doubled, reordered or misplaced on their way to a trainer. Position: the three numbers.
    """

    BEST_RETURN: ClassVar[float] = float("nan")

    def __init__(self) -> None:
        self.observation_space = Box(0, 255, (12,), np.uint8)
        self.action_space = Discrete(2)
        self.position = 0, 0, 0

    def _observation(self) -> NDArray[np.uint8]:
        return np.array(self.position, "<u4").view(np.uint8)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        agent, episode, _ = self.position
        self.position = (agent, episode + 1, 0) if seed is None else (seed % 2**32, 0, 0)
        return self._observation(), {}

    @staticmethod
    def length(episode: int) -> int:
        """Returns the number of steps of an episode."""
        return 3 + episode * 7 % 10

    def step(self, action: int) -> Step:
        agent, episode, time = self.position
        self.position = agent, episode, time + 1
        over = time + 1 == self.length(episode)
        terminated = over and episode % 2 == 0
        return self._observation(), float(time + 1), terminated, over and not terminated, {}


TOYS: dict[str, Callable[[], gymnasium.Env]] = {
    "catch": Catch, "last-step-reward": LastStepReward, "identity": Identity, "counting": Counting,
}
