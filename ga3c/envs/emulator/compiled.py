"""Compiles the emulator before its first use, with a message: that takes half a minute, once on each machine."""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
import time
from pathlib import Path

import numpy as np

from ga3c.envs.emulator.consoles import compile_consoles
from ga3c.envs.emulator.jit import CACHE
from ga3c.envs.emulator.observe import area, observe, scratch

_MONTH = 30 * 86_400  # seconds


@functools.cache
def compile_kernels() -> None:
    """Loads the machine code of the functions that agents call, once in a process.

    Compiles it if it is not kept on disk, with a line on stderr.
    """
    done = CACHE is not None and (CACHE / "compiled").exists()
    began = time.monotonic()
    if not done:
        once = ", once on this machine" if CACHE is not None else ""
        print(f"Compiling the emulator{once}", end=" ... ", file=sys.stderr, flush=True)
    screen, frame = np.zeros((210, 160), np.uint8), np.zeros((84, 84), np.uint8)
    observe(screen, screen, area(210), scratch(), frame)
    compile_consoles()
    if not done:
        where = f"kept in {CACHE}" if CACHE else "not kept: the cache directory cannot be written"
        print(f"{time.monotonic() - began:.0f} s, {where}", file=sys.stderr, flush=True)
    if CACHE is not None:
        with contextlib.suppress(OSError):
            (CACHE / "compiled").touch()
        if not done:
            _forget_old(CACHE)


def _forget_old(cache: Path) -> None:
    """Removes the caches of other installations beside `cache` that were not used for a month."""
    for marker in cache.parent.glob("emulator-*/compiled"):
        with contextlib.suppress(OSError):
            if time.time() - marker.stat().st_mtime > _MONTH:
                shutil.rmtree(marker.parent, ignore_errors=True)
