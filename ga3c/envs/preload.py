"""What the fork server imports, once for all agents: it loads the emulators of one game.

A fork server can only be told what to import. Its environment variable GA3C_PRELOAD says the rest:
n_envs:EnvSettings as JSON.
"""

from __future__ import annotations

import contextlib
import gc
import os

import cv2

from ga3c.envs.atari import preload
from ga3c.settings.imports import forget_safe_path
from ga3c.settings.schema import EnvSettings

cv2.setNumThreads(1)  # a forked process would wait for a pool of threads that it does not have

forget_safe_path()
_n_envs, _, _settings = os.environ.pop("GA3C_PRELOAD", "").partition(":")
if _n_envs:
    with contextlib.suppress(Exception):  # it would end the fork server; an agent meets the same, and can say so
        preload(EnvSettings.model_validate_json(_settings), int(_n_envs))

# What stands here is shared with the agents until they write to it. A collector that looked at it would write, and each
# agent would own a copy: 13 MB on ale-py's emulator, 30 MB on ours.
gc.freeze()
