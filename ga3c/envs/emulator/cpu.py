"""The 6507, the 6532 and the cartridge: plays a frame's instructions and logs what is written to the TIA.

An instruction adds all its cycles first and touches the memory then, as ale-py's does. Frequent opcodes with their
frequent kinds of memory come first, each on its own. Everything else passes the general part below them: address,
read, operation, write. It reads and writes the memory at one place each, which keeps the compilation short.

Zero and negative flags are kept as bytes: `z` is zero when the flag is set, `n` has it in bit 7.
"""

from __future__ import annotations

import numpy as np
from numpy import int64

from ga3c.envs.emulator import opcodes as o
from ga3c.envs.emulator.jit import kernel
from ga3c.envs.emulator.machine import (
    CXCLR, E0_WINDOW, ENABL, GRP0, GRP1, HMCLR, HMP0, KIND_E0, KIND_F6, KIND_F8, KIND_FE, ROM_SIZE, UNPLUGGED)
from ga3c.envs.emulator.tia import LOG_SIZE, replay

LONGEST_FRAME = 25_000  # instructions; after them ale-py shows what it has and goes on next time
_ROM = ROM_SIZE - 1
_IGNORED, _ONCE, _ALWAYS, _SPECIAL = range(4)
# What becomes of a write to each of the TIA's registers: those that only keep a value are logged when it is new.
_WRITES = np.array(
    [_SPECIAL, _SPECIAL, _SPECIAL, _IGNORED] + [_ONCE] * 12 + [_ALWAYS] * 5 + [_IGNORED] * 6
    + [_ALWAYS, _ALWAYS] + [_ONCE] * 3 + [_ONCE] * 10 + [_SPECIAL, _SPECIAL, _ALWAYS] + [_IGNORED] * 19, np.uint8)
assert len(_WRITES) == 64


@kernel
def run(machine, rom, log, screen, draw):
    """Plays until the frame ends or `LONGEST_FRAME` instructions have passed.

    `rom` is what `machine.cartridge` made. Writes to the TIA go to `log` (LOG_SIZE,) int64 as
    cycle << 16 | register << 8 | value. Where the program reads collisions, and when the log is full, the log is
    replayed (with pixels if `draw`). Returns the number of entries that are left to be replayed.
    """
    ram, written, kind = machine.ram, machine.written, int64(machine.kind)
    a, x, y, sp, pc = int64(machine.a), int64(machine.x), int64(machine.y), int64(machine.sp), int64(machine.pc)
    n, v, d, i, z, c = (int64(machine.n), int64(machine.v), int64(machine.d), int64(machine.i), int64(machine.z),
                        int64(machine.c))
    cycles, start = int64(machine.cycles), int64(machine.frame_start)
    last_cycle = start + int64(machine.last_line) * 76
    mask = 0x3FFF if kind == KIND_FE else 0xFFF
    base = int64(machine.bank) * 4096
    if kind == KIND_E0:
        base = E0_WINDOW
        for slot in range(4):
            for at in range(1024):
                rom[E0_WINDOW + slot * 1024 + at] = rom[int64(machine.slices[slot & 3] & 7) * 1024 + at]
    entries = 0
    cleared = -1  # the last entry that clears the collisions
    # Whether writing a player's graphics again changes nothing, as the other's delayed copy is up to date.
    fresh0 = machine.dgrp1 == written[GRP1]
    fresh1 = machine.dgrp0 == written[GRP0] and machine.denabl == (written[ENABL] >> 1 & 1)
    ended = False
    left = LONGEST_FRAME
    while left > 0:
        left -= 1
        at = base + (pc & mask)
        in_ram = pc & 0x1000 == 0
        if in_ram:
            op = int64(ram[pc & 127])
            lo = int64(ram[(pc + 1) & 127])
        else:
            op = int64(rom[at & _ROM])
            lo = int64(rom[(at + 1) & _ROM])
        store = -1
        value = 0
        # ------------------------------------------------------------------ frequent opcodes
        if in_ram:
            pass
        elif op == 0x85:  # STA zp
            pc += 2
            cycles += 3
            if lo & 0x80:
                ram[lo & 127] = a
                continue
            store = lo
            value = a
        elif op == 0xA5:  # LDA zp
            if lo & 0x80:
                a = z = n = int64(ram[lo & 127])
                pc += 2
                cycles += 3
                continue
        elif op == 0xD0:  # BNE
            pc += 2
            cycles += 2
            if z:
                target = pc + (lo ^ 128) - 128
                cycles += 1 + (((pc ^ target) >> 8) & 1)
                pc = target
            continue
        elif op == 0xF0:  # BEQ
            pc += 2
            cycles += 2
            if z == 0:
                target = pc + (lo ^ 128) - 128
                cycles += 1 + (((pc ^ target) >> 8) & 1)
                pc = target
            continue
        elif op == 0x10:  # BPL
            pc += 2
            cycles += 2
            if n & 128 == 0:
                target = pc + (lo ^ 128) - 128
                cycles += 1 + (((pc ^ target) >> 8) & 1)
                pc = target
            continue
        elif op == 0x30:  # BMI
            pc += 2
            cycles += 2
            if n & 128:
                target = pc + (lo ^ 128) - 128
                cycles += 1 + (((pc ^ target) >> 8) & 1)
                pc = target
            continue
        elif op == 0x90:  # BCC
            pc += 2
            cycles += 2
            if c == 0:
                target = pc + (lo ^ 128) - 128
                cycles += 1 + (((pc ^ target) >> 8) & 1)
                pc = target
            continue
        elif op == 0xB0:  # BCS
            pc += 2
            cycles += 2
            if c:
                target = pc + (lo ^ 128) - 128
                cycles += 1 + (((pc ^ target) >> 8) & 1)
                pc = target
            continue
        elif op == 0xA9:  # LDA imm
            a = z = n = lo
            pc += 2
            cycles += 2
            continue
        elif op == 0xA2:  # LDX imm
            x = z = n = lo
            pc += 2
            cycles += 2
            continue
        elif op == 0xA0:  # LDY imm
            y = z = n = lo
            pc += 2
            cycles += 2
            continue
        elif op == 0xCA:  # DEX
            x = z = n = (x - 1) & 255
            pc += 1
            cycles += 2
            continue
        elif op == 0x88:  # DEY
            y = z = n = (y - 1) & 255
            pc += 1
            cycles += 2
            continue
        elif op == 0xE8:  # INX
            x = z = n = (x + 1) & 255
            pc += 1
            cycles += 2
            continue
        elif op == 0xC8:  # INY
            y = z = n = (y + 1) & 255
            pc += 1
            cycles += 2
            continue
        elif op == 0xB1:  # LDA (zp),Y from the cartridge
            if lo & 0x80:
                low = int64(ram[lo & 127])
                address = (low | int64(ram[(lo + 1) & 127]) << 8) + y
                if address & 0x1000 and address & 0xFFF < 0xFE0:
                    a = z = n = int64(rom[(base + (address & mask)) & _ROM])
                    pc += 2
                    cycles += 5 + ((low + y) >> 8)
                    continue
                if address & 0x1280 == 0x80:
                    a = z = n = int64(ram[address & 127])
                    pc += 2
                    cycles += 5 + ((low + y) >> 8)
                    continue
        elif op == 0xB9:  # LDA abs,Y
            address = (lo | int64(rom[(at + 2) & _ROM]) << 8) + y
            if address & 0x1000 and address & 0xFFF < 0xFE0:
                a = z = n = int64(rom[(base + (address & mask)) & _ROM])
                pc += 3
                cycles += 4 + ((lo + y) >> 8)
                continue
            if address & 0x1280 == 0x80:
                a = z = n = int64(ram[address & 127])
                pc += 3
                cycles += 4 + ((lo + y) >> 8)
                continue
        elif op == 0xBD:  # LDA abs,X
            address = (lo | int64(rom[(at + 2) & _ROM]) << 8) + x
            if address & 0x1000 and address & 0xFFF < 0xFE0:
                a = z = n = int64(rom[(base + (address & mask)) & _ROM])
                pc += 3
                cycles += 4 + ((lo + x) >> 8)
                continue
            if address & 0x1280 == 0x80:
                a = z = n = int64(ram[address & 127])
                pc += 3
                cycles += 4 + ((lo + x) >> 8)
                continue
        elif op == 0xB5:  # LDA zp,X
            address = lo + x
            if address & 0x80:
                a = z = n = int64(ram[address & 127])
                pc += 2
                cycles += 4
                continue
        elif op == 0x95:  # STA zp,X
            pc += 2
            cycles += 4
            store = (lo + x) & 255
            value = a
            if store & 0x80:
                ram[store & 127] = a
                continue
        elif op == 0x86:  # STX zp
            pc += 2
            cycles += 3
            store = lo
            value = x
            if lo & 0x80:
                ram[lo & 127] = x
                continue
        elif op == 0x84:  # STY zp
            pc += 2
            cycles += 3
            store = lo
            value = y
            if lo & 0x80:
                ram[lo & 127] = y
                continue
        elif op == 0xA6:  # LDX zp
            if lo & 0x80:
                x = z = n = int64(ram[lo & 127])
                pc += 2
                cycles += 3
                continue
        elif op == 0xA4:  # LDY zp
            if lo & 0x80:
                y = z = n = int64(ram[lo & 127])
                pc += 2
                cycles += 3
                continue
        elif op == 0xC9:  # CMP imm
            c = int64(a >= lo)
            z = n = (a - lo) & 255
            pc += 2
            cycles += 2
            continue
        elif op == 0xE0:  # CPX imm
            c = int64(x >= lo)
            z = n = (x - lo) & 255
            pc += 2
            cycles += 2
            continue
        elif op == 0xC0:  # CPY imm
            c = int64(y >= lo)
            z = n = (y - lo) & 255
            pc += 2
            cycles += 2
            continue
        elif op == 0xC5:  # CMP zp
            if lo & 0x80:
                lo = int64(ram[lo & 127])
                c = int64(a >= lo)
                z = n = (a - lo) & 255
                pc += 2
                cycles += 3
                continue
        elif op == 0xC4:  # CPY zp
            if lo & 0x80:
                lo = int64(ram[lo & 127])
                c = int64(y >= lo)
                z = n = (y - lo) & 255
                pc += 2
                cycles += 3
                continue
        elif op == 0xE4:  # CPX zp
            if lo & 0x80:
                lo = int64(ram[lo & 127])
                c = int64(x >= lo)
                z = n = (x - lo) & 255
                pc += 2
                cycles += 3
                continue
        elif op == 0x29:  # AND imm
            a = z = n = a & lo
            pc += 2
            cycles += 2
            continue
        elif op == 0x09:  # ORA imm
            a = z = n = a | lo
            pc += 2
            cycles += 2
            continue
        elif op == 0x49:  # EOR imm
            a = z = n = a ^ lo
            pc += 2
            cycles += 2
            continue
        elif op == 0x25:  # AND zp
            if lo & 0x80:
                a = z = n = a & int64(ram[lo & 127])
                pc += 2
                cycles += 3
                continue
        elif op == 0x05:  # ORA zp
            if lo & 0x80:
                a = z = n = a | int64(ram[lo & 127])
                pc += 2
                cycles += 3
                continue
        elif op == 0x45:  # EOR zp
            if lo & 0x80:
                a = z = n = a ^ int64(ram[lo & 127])
                pc += 2
                cycles += 3
                continue
        elif op == 0x69:  # ADC imm
            if d == 0:
                total = a + lo + c
                v = (~(a ^ lo) & (a ^ total)) >> 7 & 1
                c = total >> 8
                a = z = n = total & 255
                pc += 2
                cycles += 2
                continue
        elif op == 0xE9:  # SBC imm
            if d == 0:
                total = a + (lo ^ 255) + c
                v = ((a ^ lo) & (a ^ total)) >> 7 & 1
                c = total >> 8
                a = z = n = total & 255
                pc += 2
                cycles += 2
                continue
        elif op == 0x65:  # ADC zp
            if d == 0 and lo & 0x80:
                lo = int64(ram[lo & 127])
                total = a + lo + c
                v = (~(a ^ lo) & (a ^ total)) >> 7 & 1
                c = total >> 8
                a = z = n = total & 255
                pc += 2
                cycles += 3
                continue
        elif op == 0xE5:  # SBC zp
            if d == 0 and lo & 0x80:
                lo = int64(ram[lo & 127])
                total = a + (lo ^ 255) + c
                v = ((a ^ lo) & (a ^ total)) >> 7 & 1
                c = total >> 8
                a = z = n = total & 255
                pc += 2
                cycles += 3
                continue
        elif op == 0x38:  # SEC
            c = 1
            pc += 1
            cycles += 2
            continue
        elif op == 0x18:  # CLC
            c = 0
            pc += 1
            cycles += 2
            continue
        elif op == 0xAA:  # TAX
            x = z = n = a
            pc += 1
            cycles += 2
            continue
        elif op == 0xA8:  # TAY
            y = z = n = a
            pc += 1
            cycles += 2
            continue
        elif op == 0x8A:  # TXA
            a = z = n = x
            pc += 1
            cycles += 2
            continue
        elif op == 0x98:  # TYA
            a = z = n = y
            pc += 1
            cycles += 2
            continue
        elif op == 0x4A:  # LSR A
            c = a & 1
            a = z = n = a >> 1
            pc += 1
            cycles += 2
            continue
        elif op == 0x0A:  # ASL A
            c = a >> 7
            a = z = n = (a << 1) & 255
            pc += 1
            cycles += 2
            continue
        elif op == 0x6A:  # ROR A
            low = a & 1
            a = z = n = a >> 1 | c << 7
            c = low
            pc += 1
            cycles += 2
            continue
        elif op == 0xEA:  # NOP
            pc += 1
            cycles += 2
            continue
        elif op == 0xE6:  # INC zp
            if lo & 0x80:
                z = n = (int64(ram[lo & 127]) + 1) & 255
                ram[lo & 127] = z
                pc += 2
                cycles += 5
                continue
        elif op == 0xC6:  # DEC zp
            if lo & 0x80:
                z = n = (int64(ram[lo & 127]) - 1) & 255
                ram[lo & 127] = z
                pc += 2
                cycles += 5
                continue
        elif op == 0x48:  # PHA
            if sp & 0x80:
                ram[sp & 127] = a
                sp = (sp - 1) & 255
                pc += 1
                cycles += 3
                continue
        elif op == 0x20:  # JSR
            if sp & 0x80:
                pc += 2
                ram[sp & 127] = pc >> 8 & 255
                ram[(sp - 1) & 127] = pc & 255
                sp = (sp - 2) & 255
                pc = lo | int64(rom[(at + 2) & _ROM]) << 8
                cycles += 6
                continue
        elif op == 0x60:  # RTS
            pc = (int64(ram[(sp + 1) & 127]) | int64(ram[(sp + 2) & 127]) << 8) + 1
            sp = (sp + 2) & 255
            cycles += 6
            continue
        elif op == 0x4C:  # JMP
            pc = lo | int64(rom[(at + 2) & _ROM]) << 8
            cycles += 3
            continue
        # ------------------------------------------------------------------ everything
        if store < 0:
            mode, operation = int64(o.MODE[op]), int64(o.OPERATION[op])
            hi = int64(ram[(pc + 2) & 127]) if in_ram else int64(rom[(at + 2) & _ROM])
            cycles += int64(o.CYCLES[op])
            pc += int64(o.LENGTHS[mode])
            address, bus = lo, lo
            if mode == o.ZPX:
                address = (lo + x) & 255
            elif mode == o.ZPY:
                address = (lo + y) & 255
            elif mode == o.ABS:
                address, bus = lo | hi << 8, hi
            elif mode == o.ABX:
                address, bus = (lo | hi << 8) + x, hi
                cycles += int64(o.CROSSING[op]) & (lo + x) >> 8
            elif mode == o.ABY:
                address, bus = (lo | hi << 8) + y, hi
                cycles += int64(o.CROSSING[op]) & (lo + y) >> 8
            elif mode == o.IZX:
                low, bus = int64(ram[(lo + x) & 127]), int64(ram[(lo + x + 1) & 127])
                address = low | bus << 8
            elif mode == o.IZY:
                low, bus = int64(ram[lo & 127]), int64(ram[(lo + 1) & 127])
                address = (low | bus << 8) + y
                cycles += int64(o.CROSSING[op]) & (low + y) >> 8
            elif operation == o.PLA or operation == o.PLP:
                # ------------------------------------------------------ pulls may read the TIA
                bus = int64(ram[sp & 127])
                sp = (sp + 1) & 255
                address = 0x100 | sp
            address &= 0xFFFF
            value = lo
            if (operation <= o.ISC and mode >= o.ZP) or operation == o.PLA or operation == o.PLP:
                # ------------------------------------------------------ read
                if address & 0x1000:
                    if kind and address & 0xFFF >= 0xFE0:
                        base = _switched(machine, rom, address & 0xFFF, base)
                    value = int64(rom[(base + (address & mask)) & _ROM])
                elif address & 0x80 == 0:
                    value = bus & 0x3F
                    register = address & 15
                    if register < 8:
                        replay(machine, log, entries, cycles, screen, draw, cleared)
                        entries, cleared = 0, -1
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
                        if not in_ram and mode == o.ABS and rom[(base + (pc & mask) + 1) & _ROM] == 0xFB:
                            rounds = _idle(machine, cycles, address & 1, rom[(base + (pc & mask)) & _ROM])
                            if rounds > 1 and 2 * rounds < left:
                                cycles += (rounds - 1) * (7 + (((pc + 2) ^ (pc - 3)) >> 8 & 1))
                                left -= 2 * (rounds - 1)
                        value = _timer(machine, cycles, address & 1)
                else:
                    value = int64(ram[address & 127])
            elif mode == o.IMP and operation <= o.ISC:
                value = a
            # ---------------------------------------------------------- operate
            result = value
            if operation == o.LDA or operation == o.PLA:
                a = z = n = value
            elif operation == o.LDX:
                x = z = n = value
            elif operation == o.LDY:
                y = z = n = value
            elif operation == o.LAX:
                a = x = z = n = value
            elif operation == o.BIT:
                n, v, z = value, value >> 6 & 1, a & value
            elif operation == o.STA:
                store, value = address, a
            elif operation == o.STX:
                store, value = address, x
            elif operation == o.STY:
                store, value = address, y
            elif operation == o.SAX:
                store, value = address, a & x
            elif operation == o.NOP:
                pass
            elif operation == o.CPX:
                c, z = int64(x >= value), (x - value) & 255
                n = z
            elif operation == o.CPY:
                c, z = int64(y >= value), (y - value) & 255
                n = z
            elif operation <= o.ISC and operation >= o.ASL:
                # ------------------------------------------------------ shifts, increments and what combines them
                if operation == o.ASL or operation == o.SLO:
                    c, value = value >> 7, (value << 1) & 255
                elif operation == o.LSR or operation == o.SRE:
                    c, value = value & 1, value >> 1
                elif operation == o.ROL or operation == o.RLA:
                    c, value = value >> 7, (value << 1 | c) & 255
                elif operation == o.ROR or operation == o.RRA:
                    c, value = value & 1, value >> 1 | c << 7
                elif operation == o.INC or operation == o.ISC:
                    value = (value + 1) & 255
                else:
                    value = (value - 1) & 255
                result = value
                z = n = value
                if mode == o.IMP:
                    a = value
                else:
                    store = address
            if operation == o.CMP or operation == o.DCP:
                c, z = int64(a >= result), (a - result) & 255
                n = z
            elif operation == o.ADC or operation == o.RRA:
                total = _decimal_sum(a, result, c) if d else a + result + c
                v = (~(a ^ result) & (a ^ total)) >> 7 & 1
                c = total >> 8 & 1
                a = z = n = total & 255
            elif operation == o.SBC or operation == o.ISC:
                total = a + (result ^ 255) + c
                low = a ^ result
                if d:
                    total = total & 256 | _decimal_difference(a, result, c)
                    low = ~low
                v = (low & (a ^ total)) >> 7 & 1
                c = total >> 8 & 1
                a = z = n = total & 255
            elif operation == o.ORA or operation == o.SLO:
                a = z = n = a | result
            elif operation == o.AND or operation == o.RLA:
                a = z = n = a & result
            elif operation == o.EOR or operation == o.SRE:
                a = z = n = a ^ result
            elif operation == o.ANC:
                a = z = n = a & value
                c = a >> 7
            elif operation == o.ASR:
                a &= value
                c = a & 1
                a = z = n = a >> 1
            elif operation == o.ARR:
                a &= value
                a = z = n = a >> 1 | c << 7
                c, v = a >> 6 & 1, (a >> 6 ^ a >> 5) & 1
            elif operation == o.SBX:
                c = int64((a & x) >= value)
                x = z = n = ((a & x) - value) & 255
            elif operation == o.ANE:
                a = z = n = x & value
            elif operation == o.LXA:
                a = x = z = n = a & value
            elif operation == o.LAS:
                a = x = sp = z = n = value & sp
            elif operation == o.SHA:
                store, value = address, a & x & (hi + 1)
            elif operation == o.SHX:
                store, value = address, x & (hi + 1)
            elif operation == o.SHY:
                store, value = address, y & (hi + 1)
            elif operation == o.SHS:
                sp = a & x
                store, value = address, sp & (hi + 1)
            elif operation >= o.BPL:
                # ------------------------------------------------------ jumps, stack and flags
                if operation <= o.BEQ:
                    flag = n >> 7
                    if operation >= o.BNE:
                        flag = int64(z == 0)
                    elif operation >= o.BCC:
                        flag = c
                    elif operation >= o.BVC:
                        flag = v
                    if flag == (operation - o.BPL) & 1:
                        target = pc + (lo ^ 128) - 128
                        cycles += 1 + (((pc ^ target) >> 8) & 1)
                        pc = target
                elif operation == o.PHA or operation == o.PHP:
                    value = a
                    if operation == o.PHP:
                        value = n & 128 | v << 6 | 0x30 | d << 3 | i << 2 | int64(z == 0) << 1 | c
                    store = 0x100 | sp
                    sp = (sp - 1) & 255
                elif operation == o.PLP:
                    n, v, d, i, z, c = (value, value >> 6 & 1, value >> 3 & 1, value >> 2 & 1, value & 2 ^ 2,
                                        value & 1)
                elif operation == o.JSR:
                    pc -= 1
                    if sp & 0x80:
                        ram[sp & 127] = pc >> 8 & 255
                        ram[(sp - 1) & 127] = pc & 255
                    sp = (sp - 2) & 255
                    pc = lo | hi << 8
                elif operation == o.JMP:
                    pc = lo | hi << 8
                elif operation == o.RTS:
                    pc = (int64(ram[(sp + 1) & 127]) | int64(ram[(sp + 2) & 127]) << 8) + 1
                    sp = (sp + 2) & 255
                elif operation == o.JMI:
                    address = lo | hi << 8
                    high = address & 0xFF00 | (address + 1) & 0xFF
                    if address & 0x1000:
                        pc = (int64(rom[(base + (address & mask)) & _ROM])
                              | int64(rom[(base + (high & mask)) & _ROM]) << 8)
                    else:
                        pc = int64(ram[address & 127]) | int64(ram[high & 127]) << 8
                elif operation == o.BRK or operation == o.RTI:
                    if operation == o.BRK:
                        pc += 1
                        ram[sp & 127] = pc >> 8 & 255
                        ram[(sp - 1) & 127] = pc & 255
                        ram[(sp - 2) & 127] = n & 128 | v << 6 | 0x30 | d << 3 | i << 2 | int64(z == 0) << 1 | c
                        sp = (sp - 3) & 255
                        i = 1
                        pc = (int64(rom[(base + (0xFFFE & mask)) & _ROM])
                              | int64(rom[(base + (0xFFFF & mask)) & _ROM]) << 8)
                    else:
                        value = int64(ram[(sp + 1) & 127])
                        pc = int64(ram[(sp + 2) & 127]) | int64(ram[(sp + 3) & 127]) << 8
                        sp = (sp + 3) & 255
                        n, v, d, i, z, c = (value, value >> 6 & 1, value >> 3 & 1, value >> 2 & 1, value & 2 ^ 2,
                                            value & 1)
                elif operation == o.CLC:
                    c = 0
                elif operation == o.SEC:
                    c = 1
                elif operation == o.DEX:
                    x = z = n = (x - 1) & 255
                elif operation == o.INX:
                    x = z = n = (x + 1) & 255
                elif operation == o.DEY:
                    y = z = n = (y - 1) & 255
                elif operation == o.INY:
                    y = z = n = (y + 1) & 255
                elif operation == o.TAX:
                    x = z = n = a
                elif operation == o.TAY:
                    y = z = n = a
                elif operation == o.TXA:
                    a = z = n = x
                elif operation == o.TYA:
                    a = z = n = y
                elif operation == o.CLI:
                    i = 0
                elif operation == o.SEI:
                    i = 1
                elif operation == o.CLV:
                    v = 0
                elif operation == o.CLD:
                    d = 0
                elif operation == o.SED:
                    d = 1
                elif operation == o.TXS:
                    sp = x
                elif operation == o.TSX:
                    x = z = n = sp
                elif operation == o.JAM:
                    pc -= 1
        # ------------------------------------------------------------------ write
        if store >= 0:
            store &= 0xFFFF
            if store & 0x1080 == 0:
                register = store & 63
                action = int64(_WRITES[register])
                if cycles > last_cycle:
                    ended = True
                if action == _ONCE:
                    if int64(written[register]) != value:
                        if register == ENABL:
                            fresh1 = False
                        written[register] = value
                        log[entries & (LOG_SIZE - 1)] = cycles << 16 | register << 8 | value
                        entries += 1
                elif register == GRP0:
                    same = int64(written[GRP0]) == value
                    if not (same and fresh0):
                        written[GRP0] = value
                        fresh0, fresh1 = True, fresh1 and same
                        log[entries & (LOG_SIZE - 1)] = cycles << 16 | register << 8 | value
                        entries += 1
                elif register == GRP1:
                    same = int64(written[GRP1]) == value
                    if not (same and fresh1):
                        written[GRP1] = value
                        fresh0, fresh1 = fresh0 and same, True
                        log[entries & (LOG_SIZE - 1)] = cycles << 16 | register << 8 | value
                        entries += 1
                elif action == _ALWAYS:
                    if register == CXCLR:
                        cleared = entries
                    log[entries & (LOG_SIZE - 1)] = cycles << 16 | register << 8 | value
                    entries += 1
                elif register == 2:
                    passed = (cycles - start) % 76
                    if passed:
                        cycles += 76 - passed
                elif register == 1:
                    if (int64(written[1]) ^ value) & 0x80:
                        machine.dumped = value >> 7
                        if value & 0x80 == 0:
                            machine.dump_cycle = cycles
                    written[1] = value
                    log[entries & (LOG_SIZE - 1)] = cycles << 16 | register << 8 | value
                    entries += 1
                elif register == 0:
                    if value & 2:
                        machine.vsync_finish = cycles + 76
                    elif int64(written[0]) & 2 and cycles >= int64(machine.vsync_finish):
                        machine.vsync_finish = 2**28
                        ended = True
                    written[0] = value
                    log[entries & (LOG_SIZE - 1)] = cycles << 16 | register << 8 | value
                    entries += 1
                elif action == _SPECIAL:  # HMOVE and HMCLR
                    if register == HMCLR:
                        for motion in range(5):
                            written[HMP0 + motion] = 0
                    log[entries & (LOG_SIZE - 1)] = cycles << 16 | register << 8 | value
                    entries += 1
                if entries >= LOG_SIZE:
                    replay(machine, log, entries, cycles, screen, draw, cleared)
                    entries, cleared = 0, -1
                if ended:
                    break
            elif store & 0x1000:
                if kind and store & 0xFFF >= 0xFE0:
                    base = _switched(machine, rom, store & 0xFFF, base)
            elif store & 0x200:
                _write_riot(machine, store, value, cycles)
            else:
                ram[store & 127] = value
    machine.a, machine.x, machine.y, machine.sp, machine.pc = a, x, y, sp, pc & 0xFFFF
    machine.n, machine.v, machine.d, machine.i, machine.z, machine.c = n & 128, v, d, i, z, c
    machine.cycles = cycles
    machine.partial = int64(not ended)
    machine.cleared = cleared
    return entries


@kernel
def _switched(machine, rom, address, base):
    """Where the cartridge's visible 4 KiB begin after an access to `address` (0 to 4095)."""
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
        for at in range(1024):
            rom[E0_WINDOW + slot * 1024 + at] = rom[(address & 7) * 1024 + at]
    return base


@kernel
def _collision(collisions, register):
    """The two bits that CXM0P to CXPPMM show. CXBLPF has one only, so that the last pair stands one bit lower."""
    if register == 6:
        return (collisions >> 12 & 1) << 7
    first = 13 if register == 7 else 2 * register
    return (collisions >> first & 1) << 7 | (collisions >> (first + 1) & 1) << 6


@kernel
def _paddle(machine, which, cycles):
    """Bit 7 of INPT0 to INPT3: whether the capacitor that a paddle charges has reached its threshold."""
    resistance = int64(machine.paddles[which & 3])
    if machine.dumped or resistance == UNPLUGGED:
        return 0
    reached = int64(machine.dump_cycle) + int64(1.6 * resistance * 0.01e-6 * 1.19e6)
    return 0x80 if 0 <= reached < cycles else 0  # before the frame's first cycle counts as far ahead, as in ale-py


@kernel
def _timer(machine, cycles, flags):
    """INTIM, or INSTAT if `flags`. The value of a timer that ran out depends on when it was first read after that."""
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
def _idle(machine, cycles, flags, branch):
    """How often a program that waits for the timer reads it yet in vain. `branch` follows the read and leads back to it.

    The rounds are as if the branch crossed a page, eight cycles each, so that they are rather too few.
    """
    if machine.timer_expired:
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
    return (awaited - passed) >> 3


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


@kernel
def _decimal_sum(a, value, carry):
    """The sum of two bytes of decimal digits, and 256 if it passes 99. Digits above 9 count as ale-py counts them."""
    total = _decimal(a) + _decimal(value) + carry
    return _digits((total & 255) % 100) | (256 if total > 99 else 0)


@kernel
def _decimal_difference(a, value, carry):
    total = _decimal(a) - _decimal(value) - 1 + carry
    return _digits((total + 100 if total < 0 else total) % 100)


@kernel
def _decimal(digits):
    return (digits >> 4) * 10 + (digits & 15)


@kernel
def _digits(number):
    return number // 10 << 4 | number % 10
