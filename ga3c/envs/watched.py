"""One environment to look at while it is played, with its screen."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.atari import AtariEnvironment
from ga3c.envs.base import EnvSpec, Transition
from ga3c.envs.factory import make_environment
from ga3c.envs.gymnasium import GymnasiumEnvironment
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings


class Watched:
    """The environment of `make_environment(settings, 1)`, without ends at lost lives, and what it shows.

    `frames` are what the last `reset` or `step` showed, oldest first: RGB (height, width, 3) uint8, to be seen `fps` a
    second. `lives` is None where there are none. `action_names` has one for each action. Raises ConfigError as
    `make_environment`.
    """

    def __init__(self, settings: Settings) -> None:
        settings = settings.changed(life_loss=False)
        try:
            self.environment = make_environment(settings, 1, "rgb_array")
        except ConfigError:  # it takes no such argument, so it renders nothing
            self.environment = make_environment(settings, 1)
        self.frames: list[NDArray[np.uint8]] = []
        self.lives: int | None = None
        if isinstance(self.environment, AtariEnvironment):
            self.fps = 60.0
            self.action_names = [action.name for action in self.environment.actions]
        else:
            assert isinstance(self.environment, GymnasiumEnvironment)
            self.fps = self.environment.screens_per_second
            self.action_names = [str(action) for action in range(self.environment.spec.n_actions)]

    @property
    def spec(self) -> EnvSpec:
        """Of the environment."""
        return self.environment.spec

    @property
    def observation(self) -> NDArray:
        """What to act on next: (1, *shape)."""
        return self.environment.observation

    def reset(self, seed: int) -> None:
        """Begins an episode; `seed` fixes everything random in it."""
        with self._watching():
            self.environment.reset(seed)

    def step(self, action: NDArray[np.int64]) -> Transition:
        """Plays `action` (1,), as `Environment.step`. At the end of an episode `frames` has its last frame, too."""
        with self._watching():
            return self.environment.step(action)

    @contextlib.contextmanager
    def _watching(self) -> Iterator[None]:
        """Keeps in `frames` what is shown meanwhile."""
        if isinstance(self.environment, AtariEnvironment):
            self.environment.recording = self.frames = []
            yield
            self.lives = self.environment.lives
        else:
            yield
            assert isinstance(self.environment, GymnasiumEnvironment)
            self.frames = [self.environment.screen()]

    def close(self) -> None:
        """Frees what the simulator holds."""
        self.environment.close()
