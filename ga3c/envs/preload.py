"""What the fork server imports, once for all agents: it loads the emulators of one game.

A fork server can only be told what to import. Its environment variable GA3C_PRELOAD says the rest: game:n_envs.
"""

from __future__ import annotations

import contextlib
import os

import cv2

from ga3c.envs.atari import preload
from ga3c.settings.imports import forget_safe_path

cv2.setNumThreads(1)  # a forked process would wait for a pool of threads that it does not have

forget_safe_path()
_game, _, _n_envs = os.environ.pop("GA3C_PRELOAD", "").rpartition(":")
if _game:
    with contextlib.suppress(Exception):  # it would end the fork server; an agent meets the same, and can say so
        preload(_game, int(_n_envs))
