"""Compiles the emulator before its first use, with a message: that takes half a minute, once on each machine."""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ga3c.envs.child_process import Caller, ChildProcess
from ga3c.envs.emulator.consoles import compile_consoles
from ga3c.envs.emulator.jit import CACHE
from ga3c.envs.emulator.observe import area, observe, scratch

_MONTH = 30 * 86_400  # seconds


def is_compiled() -> bool:
    """Returns whether the machine code is kept on disk."""
    return CACHE is not None and (CACHE / "compiled").exists()


@functools.cache
def compile_kernels() -> None:
    """Loads the machine code of the functions that agents call, once in a process.

    Compiles it if it is not kept on disk, with a line on stderr. The exception of a signal handler ends that soon.
    """
    done = is_compiled()
    began = time.monotonic()
    if not done:
        once = ", once on this machine" if CACHE is not None else ""
        print(f"Compiling the emulator{once}", end=" ... ", file=sys.stderr, flush=True)
    try:
        if not done and CACHE is not None:
            _compile_in_own_process()
        # The compiler calls Python back, and there a signal handler's exception in this thread would be lost.
        other_thread = ThreadPoolExecutor(1)
        try:
            other_thread.submit(_load).result()
        except BaseException:
            other_thread.shutdown(wait=False)
            raise
        other_thread.shutdown()
    except BaseException:
        if not done:
            print(file=sys.stderr)
        raise
    if not done:
        where = f"kept in {CACHE}" if CACHE else "not kept: the cache directory cannot be written"
        print(f"{time.monotonic() - began:.0f} s, {where}", file=sys.stderr, flush=True)
    if CACHE is not None:
        with contextlib.suppress(OSError):
            (CACHE / "compiled").touch()
        if not done:
            _forget_old(CACHE)


def _load() -> None:
    screen, frame = np.zeros((210, 160), np.uint8), np.zeros((84, 84), np.uint8)
    observe(screen, screen, area(210), scratch(), frame)
    compile_consoles()


def _compile_in_own_process() -> None:
    """Compiles to disk in a process that can be killed. If it fails, what it left out is compiled when it is loaded."""
    try:
        child = ChildProcess("ga3c.envs.emulator.compiled:load")
    except (OSError, TypeError):  # no process, or one of a user's own sys.path that cannot be handed on
        return
    with child:
        child.join()


def load(caller: Caller) -> None:
    """Compiles the functions, in a child process."""
    _load()


def _forget_old(cache: Path) -> None:
    """Removes the caches of other installations beside `cache` that were not used for a month."""
    for marker in cache.parent.glob("emulator-*/compiled"):
        with contextlib.suppress(OSError):
            if time.time() - marker.stat().st_mtime > _MONTH:
                shutil.rmtree(marker.parent, ignore_errors=True)
