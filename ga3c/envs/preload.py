"""What the fork server makes once for all agents, when it imports this: emulators of one game.

An import is all that a fork server can be told to do, and its environment variables are all that tells it more:
GA3C_PRELOAD is game:n_envs.
"""

from __future__ import annotations

import contextlib
import os

import cv2

from ga3c.envs.factory import prepare

cv2.setNumThreads(1)  # who is forked has no pool of threads, and would wait for it

_game, _, _n_envs = os.environ.pop("GA3C_PRELOAD", "").rpartition(":")
if _game:
    with contextlib.suppress(Exception):  # it would end the fork server; an agent meets the same, and can say so
        prepare(_game, int(_n_envs))
