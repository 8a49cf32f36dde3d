"""Plays one frame as ale-py's `act` does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.emulator.cpu import run
from ga3c.envs.emulator.jit import int64, kernel
from ga3c.envs.emulator.machine import NEVER
from ga3c.envs.emulator.tia import LOG_SIZE, replay


def new_log() -> NDArray[np.int64]:
    """Returns the array that `play_frame` needs as `log`. Every thread has its own."""
    return np.zeros(LOG_SIZE, np.int64)


@kernel
def play_frame(machine: Any, rom: Any, log: Any, screen: Any, draw: Any) -> None:
    """Plays one frame: from the end of the last one to the next vertical sync.

    `machine` is a record of MACHINE with its inputs set. `rom` (ROM_SIZE,) uint8 comes from `cartridge`, `log` from
    `new_log`. If `draw`, `screen` (lines, 160) uint8 gets palette indices as ale-py's `getScreen` has them. A short
    frame writes only its first `machine.rows` lines. ale-py draws into two screens in turn, so the lines below still
    show the frame before the last.
    """
    pixels = screen.view(np.int64)
    if int64(machine.partial) == 0:
        _begin(machine)
    entries = run(machine, rom, log, pixels, draw)
    replay(machine, log, entries, int64(machine.cycles), pixels, draw, int64(machine.cleared))
    machine.rows = (int64(machine.drawn) - int64(machine.display_start) + 227) // 228


@kernel
def _begin(machine: Any) -> None:
    """Makes all times relative to the new frame, which begins at cycle 0. The position in the line is kept."""
    ended = int64(machine.cycles)
    passed = (ended - int64(machine.frame_start)) % 76
    machine.timer_set -= ended
    machine.timer_read -= ended
    machine.dump_cycle -= ended
    machine.hmove_cycle -= ended
    if int64(machine.vsync_finish) < NEVER:
        machine.vsync_finish -= ended
    machine.cycles = 0
    machine.frame_start = -passed
    machine.display_start = 3 * (int64(machine.first_line) * 76 - passed)
    machine.display_stop = int64(machine.display_start) + 228 * int64(machine.lines)
    machine.drawn = machine.display_start
    machine.same = 0
