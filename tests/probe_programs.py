"""Cartridges of 2 KiB that try one thing, for tests of the emulator: both emulators play them."""

from __future__ import annotations

import numpy as np

from ga3c.envs.emulator import opcodes as o

_ORIGIN = 0xF800
_REGISTERS = (1, *range(4, 0x15), *range(0x1B, 0x2D))
_UNSTABLE = {"ane", "lxa", "las", "sha", "shx", "shy", "shs", "arr", "sbx"}  # hardware does not agree on them
_JUMPS = {"jam", "brk", "jsr", "rti", "rts", "jmp", "jmi", "php", "plp", "pha", "pla", "txs"}
_SAVED = (0x08, 0x85, 0xF0, 0x68, 0x85, 0xF1, 0x86, 0xF2, 0x84, 0xF3)  # flags, A, X and Y into RAM


def cartridge_of(frame: list[int]) -> bytes:
    """A cartridge that runs `frame` once between two vertical syncs, for ever."""
    begin = [0x78, 0xD8, 0xA2, 0xFF, 0x9A]
    sync = [0xA9, 2, 0x85, 0, *(3 * (0x85, 2)), 0xA9, 0, 0x85, 0]
    again = _ORIGIN + len(begin)
    code = bytes([*begin, *sync, *frame, 0x4C, again & 255, again >> 8])
    vector = bytes((_ORIGIN & 255, _ORIGIN >> 8))
    return code.ljust(2044, b"\xea") + 2 * vector


def lines(count: int) -> list[int]:
    """Waits for `count` lines to end."""
    return [0xA2, count, 0x85, 2, 0xCA, 0xD0, 0xFB]


def random_picture(seed: int) -> bytes:
    """Writes random values to random registers of the TIA at random times, and reads its collisions."""
    random = np.random.default_rng(seed)
    registers = random.choice(_REGISTERS, random.choice((5, len(_REGISTERS))))
    code = lines(30)
    while len(code) < 1700:
        kind = random.random()
        if kind < 0.12:
            code += [0x85, 2]
        elif kind < 0.25:
            code += int(random.integers(1, 7)) * [0xEA]
        elif kind < 0.3:
            code += [0xA5, int(random.integers(8)), 0x85, 0x80 + int(random.integers(100))]
        else:
            register = int(random.choice(registers))
            value = int(random.choice((0, 0, 2, 0x82))) if register == 1 else int(random.integers(256))
            code += [0xA9, value] if random.random() < 0.5 or register == 1 else [0xA5, 0x80 + value % 100]
            code += [0x85, register]
    return cartridge_of([*code, 0x85, 2])


def random_instructions(seed: int) -> bytes:
    """Runs random opcodes with random registers and flags on the RAM, and saves what they leave."""
    random = np.random.default_rng(seed)
    codes = [code for code in range(256) if o.OPERATIONS[o.OPERATION[code]] not in _UNSTABLE | _JUMPS
             and o.MODE[code] != o.REL]
    frame: list[int] = [0xA9, 0x80, 0x85, 0x80, 0xA9, 0, 0x85, 0x81]
    while len(frame) < 1750:
        code = int(random.choice(codes))
        flags, a, x, y = (int(value) for value in random.integers(256, size=4))
        mode = int(o.MODE[code])
        where = 0xA0 + int(random.integers(0x40))
        if mode in (o.ZPX, o.ABX, o.IZX):
            x = 0x10
        elif mode in (o.ZPY, o.ABY, o.IZY):
            y = 0x10
        operand: list[int] = {o.IMP: [], o.IMM: [a ^ 0x5A], o.ABS: [where, 0], o.ABX: [where, 0],
                              o.ABY: [where, 0], o.IZX: [0x70], o.IZY: [0x80]}.get(mode, [where])
        frame += [0xA9, flags & 0xFB, 0x48, 0xA0, y, 0xA2, x, 0xA9, a, 0x28, code, *operand, *_SAVED, 0xD8]
        frame += [0x45, 0xF0, 0x65, 0xF1, 0x45, 0xF2, 0x65, 0xF3, 0x85, 0xC0 + int(random.integers(0x20))]
        frame += [0xA9, 0x80, 0x85, 0x80, 0xA9, 0, 0x85, 0x81]
    return cartridge_of([*frame, *lines(20)])
