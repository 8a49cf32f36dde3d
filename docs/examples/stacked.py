"""Pong through Gymnasium's own wrappers: four grey frames of 84 x 84, channels first, at the second difficulty."""

import ale_py
import gymnasium
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

gymnasium.register_envs(ale_py)


def stacked(render_mode=None):
    """`frameskip=1`, as the wrapper skips the frames."""
    game = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0, mode=0, difficulty=1,
                          render_mode=render_mode)
    return FrameStackObservation(AtariPreprocessing(game), 4)


gymnasium.register("StackedPong-v0", stacked)
