"""Loads the emulators of one game when the fork server imports this module, once for all agents.

A fork server accepts only names of modules to import. So the environment variable GA3C_PRELOAD gives the arguments:
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

cv2.setNumThreads(1)  # a forked process would wait for the pool's threads, which it does not have

forget_safe_path()
_n_envs, _, _settings = os.environ.pop("GA3C_PRELOAD", "").partition(":")
if _n_envs:
    with contextlib.suppress(Exception):  # an error would end the fork server; an agent reports the same error
        preload(EnvSettings.model_validate_json(_settings), int(_n_envs))

# The agents share this process's memory until they write to it. A garbage collector would write to it, and each
# agent would own a copy: 13 MB on ale-py's emulator, 30 MB on ours.
gc.freeze()
