"""Draws frames: replays the logged writes to the TIA in order, and keeps positions, collisions and pixels.

A write changes a register when the frame has been drawn up to that moment, or a few colour clocks later. Most writes
change where objects are, which is in their masks: left of the beam a mask stays, right of it the new one applies. So a
line is drawn at once at its end, eight pixels at a time. It is drawn earlier only before a write that changes
more than masks.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from ga3c.envs.emulator.jit import inlined, int64, kernel
from ga3c.envs.emulator.machine import (
    COLUBK, COLUP0, COLUP1, COLUPF, CTRLPF, CXCLR, ENABL, ENAM0, ENAM1, GRP0, GRP1, HMCLR, HMOVE, HMP0, NUSIZ0,
    NUSIZ1, PF0, PF2, REFP0, REFP1, RESBL, RESM0, RESMP0, RESMP1, RESP0, RESP1, VBLANK, VDELBL, VDELP0, VDELP1, VSYNC)
from ga3c.envs.emulator.motion import MOTION
from ga3c.envs.emulator.objects import (
    BALL, COPIES, MISSILE0, MISSILE1, PLAYER0, PLAYER1, PLAYFIELD, WIDTH, WORD, refresh, span)

LOG_SIZE: Final = 4096
_LINE, _BLANK = 228, 68  # colour clocks: of a line, and of its part before the first pixel
_STALE = 1 << 6  # bit of `dirty`: recompute where objects overlap, too
_REPEATED = np.array([value * 0x0101010101010101 - (1 << 64 if value > 127 else 0) for value in range(256)], np.int64)
_BYTES = np.array([sum(0xFF << 8 * bit for bit in range(8) if value >> bit & 1) - (1 << 64 if value > 127 else 0)
                   for value in range(256)], np.int64)
# Colour clocks after which a write takes effect. The playfield's delay depends on the cycle.
_DELAY = np.zeros(64, np.int64)
_DELAY[[NUSIZ0, NUSIZ1, RESM0, RESM0 + 1]] = 8
_DELAY[[GRP0, GRP1, REFP0, REFP1, VBLANK]] = 1
_PLAYFIELD_DELAY = np.array([4, 5, 2, 3], np.int64)
# The masks that a write changes.
_DIRTY = np.zeros(64, np.int64)
_DIRTY[[NUSIZ0, NUSIZ1]] = 1 << PLAYER0 | 1 << MISSILE0, 1 << PLAYER1 | 1 << MISSILE1
_DIRTY[[REFP0, VDELP0, REFP1, VDELP1]] = [1 << PLAYER0] * 2 + [1 << PLAYER1] * 2
_DIRTY[[ENAM0, ENAM1, ENABL, VDELBL]] = 1 << MISSILE0, 1 << MISSILE1, 1 << BALL, 1 << BALL
_DIRTY[PF0:PF2 + 1] = 1 << PLAYFIELD
_DIRTY[CTRLPF] = 1 << PLAYFIELD | 1 << BALL
_DIRTY[[RESMP0, RESMP1]] = 1 << MISSILE0, 1 << MISSILE1
_DIRTY[CXCLR] = _STALE
# Registers that only keep a value.
_PLAIN = np.zeros(64, np.int64)
_PLAIN[[VSYNC, VBLANK, REFP0, REFP1, *range(COLUP0, COLUBK + 1), *range(PF0, PF2 + 1), *range(ENAM0, VDELBL + 1)]] = 1
# Registers that change more than masks, so pending pixels are drawn before the write, and registers that change
# colours. 63 is no register of the TIA: it ends the log, so that everything is drawn.
_SHOWN, _SHADES = np.zeros(64, np.int64), np.zeros(64, np.int64)
_SHOWN[[VSYNC, VBLANK, COLUBK, CTRLPF, HMOVE, CXCLR, 63]] = 1
_SHADES[[VSYNC, VBLANK, *range(COLUP0, COLUBK + 1)]] = 1
# Object, cycle of the line of an HMOVE, cycles from HMOVE to the strobe, position: six special cases of all probed.
_AFTER_HMOVE = np.array([
    [MISSILE0, 3, 20, 8], [MISSILE1, 3, 3, 3], [BALL, 3, 3, 3], [BALL, 3, 6, 5], [BALL, 3, 7, 6], [BALL, 5, 18, 10]],
    np.int64)
# The pairs of objects, in the order of the bits of `collisions`.
_PAIRS = np.array([
    [MISSILE0, PLAYER1], [MISSILE0, PLAYER0], [MISSILE1, PLAYER0], [MISSILE1, PLAYER1], [PLAYER0, PLAYFIELD],
    [PLAYER0, BALL], [PLAYER1, PLAYFIELD], [PLAYER1, BALL], [MISSILE0, PLAYFIELD], [MISSILE0, BALL],
    [MISSILE1, PLAYFIELD], [MISSILE1, BALL], [BALL, PLAYFIELD], [PLAYER0, PLAYER1], [MISSILE0, MISSILE1]], np.int64)
# By set of objects, a bit each: the bits of the pairs of these objects.
_POSSIBLE = np.array([sum(1 << bit for bit, (one, other) in enumerate(_PAIRS.tolist())
                          if touched >> one & touched >> other & 1) for touched in range(64)], np.int64)


@kernel
def replay(machine, log, entries, cycles, screen, draw, cleared):
    """Applies the first `entries` of `log` and draws up to the end of cycle `cycles`.

    `screen` (lines, 20) int64 holds eight pixels per number. It is written only if `draw`. Its indices are cut to 9 and
    5 bits, so that the compiled code need not check for negative ones. Collisions are latched after entry `cleared`,
    which clears them (-1: there is none).
    """
    tia = machine.tia
    first, stop = int64(machine.display_start), int64(machine.display_stop)
    start = int64(machine.frame_start) * 3
    at = reached = int64(machine.drawn)  # the pixels between them are still to be drawn, all of one line
    row = (at - first) // _LINE
    begin = first + row * _LINE + _BLANK  # of that line's pixels
    dirty = int64(machine.dirty) | _STALE
    mixed = 0  # masks that changed within the line
    same = int64(machine.same)  # whether the last line may be copied: 1, or 2 where HMOVE blanked pixels of it
    blank = 0
    overlap0 = overlap1 = overlap2 = 0  # overlaps whose collisions may not be latched yet
    for index in range(entries + 1):
        entry = log[index & (LOG_SIZE - 1)] if index < entries else cycles << 16 | 63 << 8
        register, value = entry >> 8 & 63, entry & 255
        clock = (entry >> 16) * 3
        target = clock + _DELAY[register]
        position = hidden = 0
        if register >= PF0 and register <= RESBL:
            if register <= PF2:
                target += _PLAYFIELD_DELAY[((entry >> 16) - int64(machine.frame_start)) & 3]
            else:
                position, hidden, longer = _strobe(machine, register - RESP0, clock)
                target += longer
        if target > stop:
            target = stop
        if target > reached:
            reached = target
        collide = index > cleared
        while at < reached:
            if at < begin:
                if at == begin - _BLANK and row and (int64(machine.hide0) | int64(machine.hide1)
                                                     | int64(machine.reflected) ^ int64(tia[CTRLPF]) & 1):
                    dirty |= _start_line(machine)
                    same = 0
                at = begin if begin < reached else reached
                continue
            x0, x1 = at - begin, reached - begin
            blank = int64(tia[VBLANK]) & 2
            if draw or collide:
                if dirty & ~_STALE and not blank:
                    refresh(machine, dirty, int64(0))
                    dirty = _STALE
                if x1 < 160 and not _shows(machine, register, x0, x1, blank, draw):
                    break
            if x1 > 160:
                x1 = 160
            comb = int64(machine.comb != 0)
            if same == 1 + comb and x1 - x0 == 160:
                if draw:
                    for group in range(20):
                        screen[row & 511, group] = screen[(row - 1) & 511, group]
            elif draw or collide:
                if collide and not blank:
                    if dirty:
                        overlap0, overlap1, overlap2 = _overlap(machine)
                        dirty = 0
                    if overlap0 | overlap1 | overlap2:
                        span0, span1, span2 = span(x0, x1)
                        if overlap0 & span0 | overlap1 & span1 | overlap2 & span2:
                            _latch(machine, overlap0 & span0, overlap1 & span1, overlap2 & span2)
                            overlap0, overlap1, overlap2 = overlap0 & ~span0, overlap1 & ~span1, overlap2 & ~span2
                if draw:
                    _paint(machine, screen, row, x0, x1, blank)
                same = 1 + comb if x1 - x0 == 160 and mixed == 0 else 0
            if x0 < 8 and x1 >= 8:
                machine.comb = 0
            if x1 < 160:
                at = reached
            else:
                at = begin + 160
                begin += _LINE
                row += 1
                dirty |= mixed
                mixed = 0
        changed = _DIRTY[register]
        if _PLAIN[register]:
            tia[register] = value
        elif register >= RESP0 and register <= RESBL:
            machine.positions[register - RESP0] = position
            changed = 1 << (register - RESP0)
            if register == RESP0:
                machine.hide0 = hidden
            elif register == RESP1:
                machine.hide1 = hidden
        elif register == HMOVE:
            changed = _move(machine, clock - start)
        elif register == GRP0:
            changed = (int64(tia[VDELP0] & 1 == 0 and tia[GRP0] != value) << PLAYER0
                       | int64(tia[VDELP1] & 1 and machine.dgrp1 != tia[GRP1]) << PLAYER1)
            tia[GRP0] = value
            machine.dgrp1 = tia[GRP1]
        elif register == GRP1:
            enabled = tia[ENABL] >> 1 & 1
            changed = (int64(tia[VDELP1] & 1 == 0 and tia[GRP1] != value) << PLAYER1
                       | int64(tia[VDELP0] & 1 and machine.dgrp0 != tia[GRP0]) << PLAYER0
                       | int64(tia[VDELBL] & 1 and machine.denabl != enabled) << BALL)
            tia[GRP1] = value
            machine.dgrp0 = tia[GRP0]
            machine.denabl = enabled
        elif register == RESMP0 or register == RESMP1:
            player = register - RESMP0
            if tia[register] & 2 and value & 2 == 0:
                shape = int64(tia[NUSIZ0 + player]) & 7
                middle = 16 if shape == 7 else 8 if shape == 5 else 4
                machine.positions[MISSILE0 + player] = (int64(machine.positions[player]) + middle) % 160
            tia[register] = value
        elif register == NUSIZ0 or register == NUSIZ1:
            tia[register] = value
            if register == NUSIZ0:
                machine.hide0 = 0
            else:
                machine.hide1 = 0
        elif register == HMCLR:
            for motion in range(5):
                tia[HMP0 + motion] = 0
        elif register == CXCLR:
            machine.collisions = 0
        elif register == CTRLPF:
            tia[CTRLPF] = value
            if (clock - start) % _LINE < _BLANK + 79:  # a later write reflects from the next line on
                machine.reflected = value & 1
        if changed:
            same = 0
            if at < reached and not blank:
                mixed |= refresh(machine, changed, reached - begin)
                dirty |= _STALE
            else:
                dirty |= changed
        elif _SHADES[register]:
            same = 0
    machine.drawn, machine.dirty, machine.same = at, (dirty | mixed) & ~_STALE, same


@inlined
def _shows(machine, register, x0, x1, blank, draw):
    """Returns whether pixels `x0` to before `x1` must be drawn first, as a write changes more in them than masks."""
    tia = machine.tia
    control = int64(tia[CTRLPF])
    if register >= COLUP0 and register <= COLUPF:
        if blank or not draw:
            return False
        masks = machine.masks
        span0, span1, span2 = span(x0, x1)
        one, other = PLAYFIELD, BALL
        if register < COLUPF:
            one, other = register - COLUP0 + PLAYER0, register - COLUP0 + MISSILE0
            if control & 2 and (masks[PLAYFIELD, 0] & span0 | masks[PLAYFIELD, 1] & span1
                                | masks[PLAYFIELD, 2] & span2):
                return True
        return ((masks[one, 0] | masks[other, 0]) & span0 | (masks[one, 1] | masks[other, 1]) & span1
                | (masks[one, 2] | masks[other, 2]) & span2) != 0
    # Where score and priority are on, colours depend on which objects are switched on.
    return _SHOWN[register] != 0 or control & 6 == 6


@kernel
def _start_line(machine):
    """Ends the effects that last to the end of a line. Returns the masks to recompute."""
    dirty = 0
    if int64(machine.hide0) | int64(machine.hide1):
        machine.hide0 = machine.hide1 = 0
        dirty = 1 << PLAYER0 | 1 << PLAYER1
    if int64(machine.reflected) != int64(machine.tia[CTRLPF]) & 1:
        machine.reflected = machine.tia[CTRLPF] & 1
        dirty |= 1 << PLAYFIELD
    return dirty


@kernel
def _strobe(machine, which, clock):
    """Returns the effect of a strobe of RESP0 to RESBL: `position`, `hidden` and `longer`.

    `position`: the object's first copy begins there, a few pixels after the strobe. `hidden`: a player does not show
    its first copy in the rest of the line, unless it begins within the first four pixels of an old copy. `longer`: the
    clocks for which old copies are still drawn, 11 if a hidden copy begins inside or close behind an old one, else 0.
    The bounds were probed with all shapes.
    """
    hpos = (clock - int64(machine.frame_start) * 3) % _LINE
    player = which <= PLAYER1
    if hpos < _BLANK:
        position = 3 if player else 2
    else:
        position = (hpos - _BLANK + (5 if player else 4)) % 160
    moved_at = (int64(machine.hmove_cycle) - int64(machine.frame_start)) % 76
    since = clock // 3 - int64(machine.hmove_cycle)
    if moved_at == 3 or moved_at == 5:
        for case in range(len(_AFTER_HMOVE)):
            if (_AFTER_HMOVE[case, 0] == which and _AFTER_HMOVE[case, 1] == moved_at
                    and _AFTER_HMOVE[case, 2] == since):
                position = _AFTER_HMOVE[case, 3]
    hidden = longer = 0
    if player:
        shape = int64(machine.tia[NUSIZ0 + which]) & 7
        old = int64(machine.positions[which])
        hidden = 1
        for copy in range(3):
            offset = COPIES[shape, copy]
            if offset >= 0:
                behind = (position - old - offset + 320) % 160
                if behind < 4:
                    hidden = 0
                elif behind < 4 + (8 << WIDTH[shape]):
                    longer = 11
        if not hidden:
            longer = 0
    return position, hidden, longer


@kernel
def _move(machine, hpos):
    """Applies HMOVE at colour clock `hpos` of the frame: moves each object by its motion register and the clock.

    Returns the masks to recompute.
    """
    cycle = hpos // 3 % 76
    dirty = int64(machine.hide0 != 0) << PLAYER0 | int64(machine.hide1 != 0) << PLAYER1
    machine.hide0 = machine.hide1 = 0
    if int64(machine.has_comb) and (cycle <= 20 or cycle == 75):
        machine.comb = 1
    for which in range(5):
        motion = MOTION[cycle, machine.tia[HMP0 + which] >> 4]
        if motion:
            moved = int64(machine.positions[which]) + motion
            machine.positions[which] = moved - 160 if moved >= 160 else moved + 160 if moved < 0 else moved
            dirty |= 1 << which
    machine.hmove_cycle = hpos // 3 + int64(machine.frame_start)
    return dirty


@inlined
def _overlap(machine):
    """Returns where two or more objects overlap, as the words of a mask."""
    masks = machine.masks
    once0 = once1 = once2 = twice0 = twice1 = twice2 = 0
    for which in range(6):
        mask0, mask1, mask2 = masks[which, 0], masks[which, 1], masks[which, 2]
        twice0, twice1, twice2 = twice0 | once0 & mask0, twice1 | once1 & mask1, twice2 | once2 & mask2
        once0, once1, once2 = once0 | mask0, once1 | mask1, once2 | mask2
    return twice0, twice1, twice2


@kernel
def _latch(machine, word0, word1, word2):
    """Latches the collisions of objects that overlap in the pixels of a mask."""
    masks = machine.masks
    found = int64(machine.collisions)
    touched = 0
    for which in range(6):
        if masks[which, 0] & word0 | masks[which, 1] & word1 | masks[which, 2] & word2:
            touched |= 1 << which
    possible = _POSSIBLE[touched] & ~found
    if possible:
        for pair in range(15):
            if possible >> pair & 1:
                one, other = _PAIRS[pair, 0], _PAIRS[pair, 1]
                if (masks[one, 0] & masks[other, 0] & word0 | masks[one, 1] & masks[other, 1] & word1
                        | masks[one, 2] & masks[other, 2] & word2):
                    found |= 1 << pair
        machine.collisions = found


@kernel
def _accompanied(machine):
    """Returns whether a player has graphics, or a missile or the ball is on."""
    tia = machine.tia
    graphics = int64(machine.dgrp0) if tia[VDELP0] & 1 else int64(tia[GRP0])
    graphics |= int64(machine.dgrp1) if tia[VDELP1] & 1 else int64(tia[GRP1])
    missiles = (tia[ENAM0] & ~tia[RESMP0] | tia[ENAM1] & ~tia[RESMP1]) & 2
    return graphics or missiles or (machine.denabl if tia[VDELBL] & 1 else tia[ENABL] & 2)


@inlined
def _paint(machine, screen, row, x0, x1, blank):
    """Writes pixels `x0` to before `x1` of line `row`."""
    masks, tia = machine.masks, machine.tia
    control = int64(tia[CTRLPF])
    background, ball = _REPEATED[tia[COLUBK] & 254], _REPEATED[tia[COLUPF] & 254]
    colour0, colour1 = _REPEATED[tia[COLUP0] & 254], _REPEATED[tia[COLUP1] & 254]
    score, above = control & 2, control & 4
    if score and above:  # both bits: the playfield takes the players' colours only where nothing else is switched on
        score = not _accompanied(machine)
    if blank:
        background = ball = colour0 = colour1 = 0
    last = (x1 + 7) >> 3
    for word in range(x0 // WORD, (x1 + WORD - 1) // WORD):
        p0, p1 = masks[PLAYER0, word] | masks[MISSILE0, word], masks[PLAYER1, word] | masks[MISSILE1, word]
        pf, bl = masks[PLAYFIELD, word], masks[BALL, word]
        low = word * 7 if word * 7 > x0 >> 3 else x0 >> 3
        high = word * 7 + 7 if word * 7 + 7 < last else last
        for group in range(low, high):
            shift = (group - word * 7) * 8
            pixels = background
            if (p0 | p1 | pf | bl) >> shift & 255:
                field, front = _BYTES[pf >> shift & 255], _BYTES[bl >> shift & 255]
                m0, m1 = _BYTES[p0 >> shift & 255], _BYTES[p1 >> shift & 255]
                colour = ball
                if score:
                    colour = colour0 if group < 10 else colour1
                pixels = pixels & ~front | ball & front
                pixels = pixels & ~field | colour & field
                pixels = pixels & ~m1 | colour1 & m1
                pixels = pixels & ~m0 | colour0 & m0
                if above and not score:
                    pixels = pixels & ~(field | front) | ball & (field | front)
                elif score and group < 10:  # as in ale-py, where player 1 covers it
                    pixels = pixels & ~(m1 & field) | colour0 & m1 & field
            if group == 0 and machine.comb:
                pixels = 0
            if group * 8 < x0 or group * 8 + 8 > x1:
                left, right = x0 - group * 8, group * 8 + 8 - x1
                span = _BYTES[(255 << (left if left > 0 else 0)) & (255 >> (right if right > 0 else 0)) & 255]
                pixels = screen[row & 511, group & 31] & ~span | pixels & span
            screen[row & 511, group & 31] = pixels
