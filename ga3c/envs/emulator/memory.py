"""The 6507's memory: cartridge, RAM, the 6532's ports and timer, and the TIA, whose writes are logged."""

from __future__ import annotations

import numpy as np

from ga3c.envs.emulator.jit import inlined, int64, kernel
from ga3c.envs.emulator.machine import (
    CXCLR, E0_WINDOW, ENABL, GRP0, GRP1, HMCLR, HMP0, KIND_E0, KIND_F6, KIND_F8, NEVER, ROM_SIZE, UNPLUGGED, VBLANK,
    VSYNC, WSYNC)
from ga3c.envs.emulator.tia import LOG_SIZE, replay

_ROM = ROM_SIZE - 1
_IGNORED, _ONCE, _ALWAYS, _SPECIAL = range(4)
# How a write to each TIA register is handled. Registers that only keep a value are logged when the value is new.
_WRITES = np.array(
    [_SPECIAL, _SPECIAL, _SPECIAL, _IGNORED] + [_ONCE] * 12 + [_ALWAYS] * 5 + [_IGNORED] * 6
    + [_SPECIAL, _SPECIAL] + [_ONCE] * 13 + [_ALWAYS, _SPECIAL, _SPECIAL] + [_IGNORED] * 19, np.uint8)


@inlined
def read(machine, rom, log, screen, draw, address, bus, cycles, base, mask, entries):
    """Returns the byte at `address`, the bank and the log's length. `bus` gives the bits that the TIA does not."""
    ram = machine.ram
    if address & 0x1000:
        if machine.kind and address & 0xFFF >= 0xFE0:
            base = _switched(machine, rom, address & 0xFFF, base)
        value = int64(rom[(base + (address & mask)) & _ROM])
    elif address & 0x80 == 0:
        value = bus & 0x3F
        register = address & 15
        if register < 8:
            replay(machine, log, entries, cycles, screen, draw, int64(machine.cleared))
            entries, machine.cleared = 0, -1
            value |= _collision(int64(machine.collisions), register)
        elif register < 12:
            value |= _paddle(machine, register & 3, cycles)
        elif register < 14:
            value |= int64(machine.fire[register & 1])
    elif address & 0x200:
        if address & 4 == 0:
            if address & 3 == 0:
                value = int64(machine.joysticks)
            elif address & 3 == 1:
                value = int64(machine.ddra)
            elif address & 3 == 2:
                value = int64(machine.switches)
            else:
                value = int64(machine.ddrb)
        else:
            value = _timer(machine, cycles, address & 1)
    else:
        value = int64(ram[address & 127])
    return value, base, entries


@inlined
def write(machine, rom, log, screen, draw, address, value, cycles, base, entries, fresh):
    """Writes a byte. Returns cycles, bank, the log's length, which graphics are fresh, and 1 if the frame ended."""
    ended = 0
    if address & 0x1080 == 0:
        written = machine.written
        register = address & 63
        passed = cycles - int64(machine.frame_start)
        ended = int64(passed >= int64(machine.most_cycles))
        if register == WSYNC:
            passed %= 76
            cycles += 76 - passed if passed else 0
        else:
            action = _WRITES[register]
            logged = action != _IGNORED
            if action == _ONCE:
                logged = int64(written[register]) != value
                if register == ENABL and logged:
                    fresh &= 1
            elif register == GRP0 or register == GRP1:
                mine = 1 << (register - GRP0)
                same = int64(written[register]) == value
                logged = not (same and fresh & mine)
                fresh = fresh | mine if same else mine
            elif register == CXCLR:
                machine.cleared = entries
            elif register == HMCLR:
                for motion in range(5):
                    written[HMP0 + motion] = 0
            elif register == VBLANK:
                if (int64(written[VBLANK]) ^ value) & 0x80:
                    machine.dumped = value >> 7
                    if value & 0x80 == 0:
                        machine.dump_cycle = cycles
            elif register == VSYNC:
                if value & 2:
                    machine.vsync_finish = cycles + 76
                elif written[VSYNC] & 2 and cycles >= int64(machine.vsync_finish):
                    machine.vsync_finish = NEVER
                    ended = 1
            if logged:
                written[register] = value
                log[entries & (LOG_SIZE - 1)] = cycles << 16 | register << 8 | value
                entries += 1
                if entries >= LOG_SIZE:
                    replay(machine, log, entries, cycles, screen, draw, int64(machine.cleared))
                    entries, machine.cleared = 0, -1
    elif address & 0x1000:
        if machine.kind and address & 0xFFF >= 0xFE0:
            base = _switched(machine, rom, address & 0xFFF, base)
    elif address & 0x200:
        _write_riot(machine, address, value, cycles)
    else:
        machine.ram[address & 127] = value
    return cycles, base, entries, fresh, ended


@kernel
def _switched(machine, rom, address, base):
    """Returns where the cartridge's visible 4 KiB begin after an access to `address` (0 to 4095)."""
    kind = int64(machine.kind)
    if kind == KIND_F8 and address >= 0xFF8 and address <= 0xFF9:
        machine.bank = address - 0xFF8
        return (address - 0xFF8) * 4096
    if kind == KIND_F6 and address >= 0xFF6 and address <= 0xFF9:
        machine.bank = address - 0xFF6
        return (address - 0xFF6) * 4096
    if kind == KIND_E0 and address >= 0xFE0 and address < 0xFF8:
        slot = (address - 0xFE0) >> 3
        machine.slices[slot & 3] = address & 7
        _slide(rom, slot, address & 7)
    return base


@kernel
def _slide(rom, slot, number):
    """Copies slice `number` of an E0 cartridge to place `slot` (0 to 3) of the window."""
    for at in range(1024):
        rom[E0_WINDOW + slot * 1024 + at] = rom[number * 1024 + at]


@kernel
def window(machine, rom):
    """Copies the chosen slices of an E0 cartridge into its window. Returns where the window begins."""
    for slot in range(4):
        _slide(rom, slot, int64(machine.slices[slot] & 7))
    return E0_WINDOW


@kernel
def _collision(collisions, register):
    """Returns the two bits of CXM0P to CXPPMM. CXBLPF has only one, so the last pair stands one bit lower."""
    if register == 6:
        return (collisions >> 12 & 1) << 7
    first = 13 if register == 7 else 2 * register
    return (collisions >> first & 1) << 7 | (collisions >> (first + 1) & 1) << 6


@kernel
def _paddle(machine, which, cycles):
    """Returns bit 7 of INPT0 to INPT3: whether the capacitor that a paddle charges has reached its threshold."""
    resistance = int64(machine.paddles[which & 3])
    if machine.dumped or resistance == UNPLUGGED:
        return 0
    reached = int64(machine.dump_cycle) + int64(1.6 * resistance * 0.01e-6 * 1.19e6)
    return 0x80 if 0 <= reached < cycles else 0  # a time before the frame began counts as far ahead, as in ale-py


@kernel
def _timer(machine, cycles, flags):
    """Returns INTIM, or INSTAT if `flags`. After the timer ran out, its value depends on when it was first read."""
    passed = cycles - 1 - int64(machine.timer_set)
    late = passed - (int64(machine.timer) << int64(machine.shift))
    value = int64(machine.timer) - (passed >> int64(machine.shift)) - 1
    if flags:
        return 0x80 if late >= 0 else 0
    if late < 0:
        return value & 255
    if machine.timer_expired:
        late = int64(machine.timer_read) - 1 - int64(machine.timer_set) - (int64(machine.timer) << int64(machine.shift))
    elif late > 0:
        machine.timer_expired = 1
        machine.timer_read = cycles
    return (value - late) & 255


@kernel
def waited(machine, rom, at, cycles, flags):
    """Returns how many rounds of a loop that only waits for the timer can be skipped.

    The loop has just read INTIM or INSTAT. `at` is the index of the loop's branch in `rom`. A round counts as eight
    cycles, as if the branch crossed a page, and one round is left out. So the skip is rather too short, and the program
    leaves the loop by itself.
    """
    branch = rom[at & _ROM]
    if rom[(at + 1) & _ROM] != 0xFB or machine.timer_expired:
        return 0
    passed = cycles - 1 - int64(machine.timer_set)
    timer, shift = int64(machine.timer), int64(machine.shift)
    value = timer - (passed >> shift) - 1
    awaited = 0
    if branch == 0x10 and (flags or value < 128):  # BPL: until it runs out
        awaited = timer << shift
    elif branch == 0xD0 and not flags:  # BNE: until it is 0
        awaited = (timer - 1) << shift
    elif branch == 0x30 and not flags and value >= 128:  # BMI: until it is 127
        awaited = (timer - 128) << shift
    return (awaited - passed) // 8 - 1


@kernel
def _write_riot(machine, address, value, cycles):
    if address & 0x14 == 0x14:
        machine.timer = value
        step = address & 3
        machine.shift = 10 if step == 3 else 3 * step
        machine.timer_set = cycles
        machine.timer_expired = 0
    elif address & 7 == 1:
        machine.ddra = value
    elif address & 7 == 3:
        machine.ddrb = value
