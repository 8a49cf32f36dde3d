"""One environment for display: its frames, lives and action names while it is played."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.atari import AtariEnvironment
from ga3c.envs.base import EnvSpec, Transition
from ga3c.envs.containment import EnvironmentFailed, contained, reraising
from ga3c.envs.factory import make_environment
from ga3c.envs.gymnasium import GymnasiumEnvironment
from ga3c.envs.rendered_frames import NoFrame, RenderedFrames, frames_per_second
from ga3c.envs.random_streams import GlobalStreams
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings


class Watched:
    """The environment of `make_environment(settings, 1)` with its frames for display. Lost lives end no episode.

    `frames` are those of the last `reset` or `step`, oldest first: RGB (height, width, 3) uint8, all of one size. They
    are meant to be shown at `fps` a second. If the environment renders nothing at its first reset, its observations
    are shown. If it renders nothing later, its last frame is shown again. `lives` is None for games other than Atari.
    `action_names` has one name for each action.

    User code may run in this process, because a window needs that. Its errors become a ConfigError in the constructor
    and an EnvironmentFailed of one line in every method.
    """

    def __init__(self, settings: Settings) -> None:
        settings = settings.changed(life_loss=False)
        self._game = repr(settings.env.game)
        with contained():
            try:
                self.environment = make_environment(settings, 1, "rgb_array")
            except ConfigError:  # the game takes no `render_mode`, so it renders nothing
                self.environment = make_environment(settings, 1)
        self.frames: list[NDArray[np.uint8]] = []
        self.lives: int | None = None
        self._last: list[NDArray[np.uint8]] = []  # the last frame of an episode that ended in this step
        self._rendered = RenderedFrames()
        self._renders = True
        self._streams = GlobalStreams(0)
        if isinstance(self.environment, AtariEnvironment):
            self.fps = 60.0
            self.action_names = [action.name for action in self.environment.actions]
        else:
            assert isinstance(self.environment, GymnasiumEnvironment)
            self.environment.at_end = self._keep_last
            self.fps = frames_per_second(self.environment.envs[0].metadata)
            self.action_names = [str(action) for action in range(self.environment.spec.n_actions)]

    @property
    def spec(self) -> EnvSpec:
        return self.environment.spec

    @property
    def observation(self) -> NDArray:
        """The observation to act on next: (1, *shape)."""
        return self.environment.observation

    def reset(self, seed: int) -> None:
        """Begins an episode. `seed` fixes all randomness in it, including the global random streams."""
        self._streams = GlobalStreams(seed)
        self._record()
        with contained(), reraising(f"{self._game} failed when it was reset"), self._streams:
            self.environment.reset(seed)
        self._update_watched()

    def step(self, action: NDArray[np.int64]) -> Transition:
        """Plays `action` (1,), as `Environment.step`.

        At the end of an episode, `frames` holds its last frame before the first frame of the next one. `lives` are then
        those left when the episode ended.
        """
        self._record()
        self._last = []
        lives = self.lives
        with reraising(f"{self._game} failed while it played"), self._streams:
            transition = self.environment.step(action)
        self._update_watched()
        self.frames = [*self._last, *self.frames]
        if transition.score_ended[0] and lives is not None:
            self.lives = 0 if transition.terminated[0] else lives
        return transition

    def _keep_last(self) -> None:
        with GlobalStreams(0):  # the episode's own streams are in use
            self._update_watched()
        self._last = self.frames[-1:]

    def _record(self) -> None:
        if isinstance(self.environment, AtariEnvironment):
            self.frames = []
            self.environment.recording = self.frames

    def _update_watched(self) -> None:
        """Updates `lives` of an Atari game, or `frames` of another game."""
        if isinstance(self.environment, AtariEnvironment):
            self.lives = self.environment.lives
            return
        assert isinstance(self.environment, GymnasiumEnvironment)
        # Drawing must not use the episode's own random streams, or it would change how the episode goes on.
        with reraising(f"{self._game} cannot be drawn"):
            shown = self.environment.rendered() if self._renders else None
        empty = shown is None or (isinstance(shown, list) and not shown)
        if empty and not self.frames:
            self._renders = False
        try:
            if not empty:
                self.frames = [self._rendered.frame(shown)]
            elif not self._renders:
                self.frames = [self._rendered.of_observation(self.observation[0])]
        except NoFrame as error:
            raise EnvironmentFailed(f"{self._game} cannot be drawn: {error}") from None

    def close(self) -> None:
        with reraising(f"{self._game} failed when it was closed"):
            self.environment.close()
