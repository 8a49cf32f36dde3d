"""The TIA's six objects in a line, as masks of 160 bits.

A mask is three int64 of 56, 56 and 48 bits; bit 0 of the first is the leftmost pixel. So a word holds whole groups of
eight pixels and never sets its sign bit. `masks` (6, 3) int64 has the rows `PLAYER0` to `PLAYFIELD`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ga3c.envs.emulator.jit import inlined, int64, kernel
from ga3c.envs.emulator.machine import (
    CTRLPF, ENABL, ENAM0, GRP0, NUSIZ0, PF0, PF1, PF2, REFP0, RESMP0, VDELBL, VDELP0)

PLAYER0, PLAYER1, MISSILE0, MISSILE1, BALL, PLAYFIELD = range(6)
WORD: Final = 56
_FULL = (1 << WORD) - 1
_LAST = (1 << 48) - 1
_EXPANDED_BITS = 7

REVERSED: Final = np.array([int(f"{value:08b}"[::-1], 2) for value in range(256)], np.int64)
# A player's byte as pixels from the leftmost on, for pixels of width 1, 2 and 4.
_WIDE = np.array([[sum(((1 << width) - 1) << width * bit for bit in range(8) if value >> bit & 1)
                   for value in range(256)] for width in (1, 2, 4)], np.int64)
# Seven cells of the playfield, four pixels each.
_CELLS = np.array([sum(15 << 4 * bit for bit in range(_EXPANDED_BITS) if value >> bit & 1) for value in range(128)],
                  np.int64)
# By the low three bits of NUSIZ: the starts of the copies, in pixels (-1: no copy).
COPIES: Final = np.array(
    [[0, -1, -1], [0, 16, -1], [0, 32, -1], [0, 16, 32], [0, 64, -1], [0, -1, -1], [0, 32, 64], [0, -1, -1]], np.int64)
WIDTH: Final = np.array([0, 0, 0, 0, 0, 1, 0, 2], np.int64)  # log2 of a player's pixel width


@inlined
def _placed(pattern: Any, position: Any) -> Any:
    """Returns the mask of `pattern` (up to 32 bits) at `position` (0 to 319). It wraps at the right edge."""
    position -= 160 if position >= 160 else 0
    if position < WORD:
        return (pattern << position) & _FULL, pattern >> (WORD - position), 0
    if position < 2 * WORD:
        return 0, (pattern << (position - WORD)) & _FULL, pattern >> (2 * WORD - position)
    return pattern >> (160 - position), 0, (pattern << (position - 2 * WORD)) & _LAST


@inlined
def _below(x: Any) -> Any:
    """Returns a word's pixels left of `x`, which may lie outside the word."""
    return (1 << (0 if x < 0 else WORD if x > WORD else x)) - 1


@inlined
def span(x0: Any, x1: Any) -> Any:
    """Returns pixels `x0` to before `x1` as the words of a mask."""
    return (_below(x1) & ~_below(x0), _below(x1 - WORD) & ~_below(x0 - WORD),
            _below(x1 - 2 * WORD) & ~_below(x0 - 2 * WORD))


@inlined
def refresh(machine: Any, dirty: Any, x: Any) -> Any:
    """Recomputes the masks of the objects whose bits are set in `dirty`, from pixel `x` on. Left of it they stay.

    Returns the bits of the objects whose masks left of `x` differ from the new ones.
    """
    mixed = 0
    if dirty & (1 << PLAYFIELD) - 1:
        mixed = _refresh_objects(machine, dirty, x)
    if dirty >> PLAYFIELD & 1:
        mixed |= _refresh_playfield(machine, x)
    return mixed


@kernel
def _refresh_objects(machine: Any, dirty: Any, x: Any) -> Any:
    masks, tia, positions = machine.masks, machine.tia, machine.positions
    kept0, kept1, kept2 = span(0, x)
    mixed = 0
    for which in range(5):
        if dirty >> which & 1:
            pattern = first = second = third = 0
            shape, hidden = 0, 0
            position = int64(positions[which])
            if which <= PLAYER1:
                shape = int64(tia[NUSIZ0 + which]) & 7
                if tia[VDELP0 + which] & 1:
                    pattern = int64(machine.dgrp0) if which == PLAYER0 else int64(machine.dgrp1)
                else:
                    pattern = int64(tia[GRP0 + which])
                if pattern:
                    if tia[REFP0 + which] & 8 == 0:
                        pattern = REVERSED[pattern & 255]
                    pattern = _WIDE[WIDTH[shape], pattern & 255]
                    position += 1 if WIDTH[shape] else 0
                    hidden = int64(machine.hide0) if which == PLAYER0 else int64(machine.hide1)
            elif which <= MISSILE1:
                player = which - MISSILE0
                shape = int64(tia[NUSIZ0 + player]) & 7
                if tia[ENAM0 + player] & 2 and tia[RESMP0 + player] & 2 == 0:
                    pattern = (1 << (1 << (int64(tia[NUSIZ0 + player]) >> 4 & 3))) - 1
            elif (int64(machine.denabl) if tia[VDELBL] & 1 else int64(tia[ENABL]) >> 1 & 1):
                pattern = (1 << (1 << (int64(tia[CTRLPF]) >> 4 & 3))) - 1
            if pattern:
                for copy in range(hidden, 3):
                    if COPIES[shape, copy] >= 0:
                        words = _placed(pattern, position + COPIES[shape, copy])
                        first, second, third = first | words[0], second | words[1], third | words[2]
            mixed |= _replace(masks, which, first, second, third, kept0, kept1, kept2)
    return mixed


@kernel
def _refresh_playfield(machine: Any, x: Any) -> Any:
    tia = machine.tia
    kept0, kept1, kept2 = span(0, x)
    left = int64(tia[PF0]) >> 4 | REVERSED[tia[PF1]] << 4 | int64(tia[PF2]) << 12
    right = left
    if int64(machine.reflected):
        right = int64(tia[PF0]) >> 4
        right = (REVERSED[tia[PF2]] | int64(tia[PF1]) << 8 | REVERSED[right] << 12) & 0xFFFFF
    cells = left | right << 20
    first = _CELLS[cells & 127] | _CELLS[cells >> 7 & 127] << 28
    second = _CELLS[cells >> 14 & 127] | _CELLS[cells >> 21 & 127] << 28
    third = _CELLS[cells >> 28 & 127] | _CELLS[cells >> 35 & 127] << 28
    return _replace(machine.masks, PLAYFIELD, first, second, third, kept0, kept1, kept2)


@inlined
def _replace(masks: Any, which: Any, first: Any, second: Any, third: Any, kept0: Any, kept1: Any, kept2: Any) -> Any:
    """Replaces a mask except for the kept pixels. Returns the object's bit if they differ from the new mask."""
    kept0, kept1, kept2 = (masks[which, 0] ^ first) & kept0, (masks[which, 1] ^ second) & kept1, (
        masks[which, 2] ^ third) & kept2
    masks[which, 0], masks[which, 1], masks[which, 2] = first ^ kept0, second ^ kept1, third ^ kept2
    return int64(kept0 | kept1 | kept2 != 0) << which
