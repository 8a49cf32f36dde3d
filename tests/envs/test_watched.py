"""What a watched environment shows is what the policy sees, in colour."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from PIL import Image

from ga3c.envs.watched import Watched
from ga3c.settings.files import configured
from ga3c.settings.schema import Settings


def seen(frames: list[np.ndarray]) -> np.ndarray:
    """As the policy sees them: the brighter of the last two in grey, 84 x 84, each pixel the mean of its area."""
    grey = np.max([frame @ np.array([0.299, 0.587, 0.114]) for frame in frames[-2:]], axis=0)
    return np.asarray(Image.fromarray(grey.astype(np.uint8)).resize((84, 84), Image.Resampling.BOX), float)


@pytest.mark.parametrize("settings", [
    configured(game="Pong", sticky_actions=0.25, max_episode_frames=400),
    configured(game="Breakout", fire_reset=True, frame_skip=3, life_loss=True),
])
def test_the_frames_of_atari_are_the_colours_of_what_the_policy_sees(settings: Settings) -> None:
    watched = Watched(settings)
    rng = np.random.default_rng(0)
    watched.reset(5)
    assert [frame.shape for frame in watched.frames] == [(210, 160, 3)]
    own, other, ended = [], [], 0
    before = watched.frames
    for _ in range(250):
        transition = watched.step(rng.integers(0, watched.spec.n_actions, 1))
        if transition.score_ended[0]:
            ended += 1
            before = watched.frames[-1:]
            continue
        assert len(watched.frames) == watched.spec.frames_per_step
        newest = watched.observation[0, :, :, -1].astype(float)
        own.append(np.abs(newest - seen(watched.frames)).mean())
        other.append(np.abs(newest - seen(before)).mean())
        before = watched.frames
    assert ended >= 1, "the game must have begun anew at least once"
    assert max(own) < 2.5, "areas are rounded a little differently"
    assert (np.array(own) <= other).all() and np.mean(own) < np.mean(other), "not the frames of the step before"
    assert watched.action_names[:2] == ["NOOP", "FIRE"] and watched.fps == 60
    watched.close()


def test_toys_and_gymnasium_games_are_drawn() -> None:
    pytest.importorskip("pygame")
    for game, shape, fps in (("toy:catch", (160, 80, 3), 10), ("CartPole-v1", (400, 600, 3), 50),
                             ("toy:identity", (16, 64, 3), 10)):
        watched = Watched(configured(game=game))
        watched.reset(3)
        frame, = watched.frames
        assert (frame.shape, frame.dtype, watched.fps, watched.lives) == (shape, np.uint8, fps, None)
        before = frame.copy()
        changed = False
        for _ in range(5):
            watched.step(np.zeros(1, np.int64))
            changed |= bool((watched.frames[0] != before).any())
        assert changed
        watched.close()


class Blind(gymnasium.Env):
    """Takes no render_mode and draws nothing."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(0, 255, (4, 6, 1), np.uint8), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.full((4, 6, 1), 7, np.uint8), {}


def test_a_game_without_a_screen_shows_what_the_agent_sees() -> None:
    gymnasium.register("Blind-v0", Blind)
    try:
        watched = Watched(configured(game="Blind-v0"))
        watched.reset(0)
        assert watched.frames[0].shape == (4, 6, 3) and (watched.frames[0] == 7).all()
        watched.close()
    finally:
        del gymnasium.registry["Blind-v0"]


def test_the_last_frame_of_an_episode_is_shown_before_the_first_of_the_next() -> None:
    watched, played = Watched(configured(game="toy:catch")), 0
    watched.reset(3)
    while True:
        transition, played = watched.step(np.ones(1, np.int64)), played + 1
        if transition.score_ended[0]:
            break
        assert len(watched.frames) == 1
        before = watched.frames[0]
    last, first = watched.frames
    assert played > 2 and not np.array_equal(last, before) and not np.array_equal(last, first)
    ball = [np.flatnonzero(frame.reshape(len(frame), -1).any(axis=1))[0] for frame in (first, before, last)]
    assert ball[0] < ball[1] < ball[2], "the ball falls to the ground"
    watched.step(np.ones(1, np.int64))
    assert len(watched.frames) == 1
    watched.close()


def test_the_step_that_loses_a_game_has_no_life_left() -> None:
    watched = Watched(configured(game="Breakout", noop_max=0))
    watched.reset(0)
    seen = []
    for _ in range(3000):
        transition = watched.step(np.ones(1, np.int64))
        seen.append(watched.lives)
        if transition.score_ended[0]:
            break
    assert transition.terminated[0] and seen[-2:] == [1, 0]
    watched.step(np.zeros(1, np.int64))
    assert watched.lives == 5
    watched.close()
