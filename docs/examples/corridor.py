"""A game of one's own: walk to the door at one end of a corridor; a lamp says which end it is."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Corridor(gymnasium.Env):
    """Observation: place and lamp, each from -1 to 1. Actions: left, right. The right door pays 1, the wrong one -1."""

    LENGTH = 4

    def __init__(self):
        self.observation_space = Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = Discrete(2)

    def _observation(self):
        return np.array([self._place / self.LENGTH, self._lamp], np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._place, self._lamp = 0, int(self.np_random.choice([-1, 1]))
        return self._observation(), {}

    def step(self, action):
        self._place += 1 if action == 1 else -1
        over = abs(self._place) == self.LENGTH
        reward = float(np.sign(self._place) * self._lamp) if over else 0.0
        return self._observation(), reward, over, False, {}


gymnasium.register("Corridor-v0", Corridor, max_episode_steps=50)
