"""The 6507: plays a frame's instructions and logs the writes to the TIA.

An instruction first adds all its cycles and then accesses memory, as in ale-py. Frequent opcodes on their frequent
kinds of memory come first, with a branch each. All others take the general part: address, read, operation, write. That
part reads memory at one place and writes it at one place, which keeps compilation short.

Zero and negative flags are kept as bytes: `z` is zero when the flag is set, `n` has it in bit 7.
"""

from __future__ import annotations

from ga3c.envs.emulator import opcodes as o
from ga3c.envs.emulator.general import added, addressed, branched, compared, operated, plain, pointed
from ga3c.envs.emulator.jit import int64, kernel
from ga3c.envs.emulator.machine import ENABL, GRP0, GRP1, KIND_E0, KIND_FE, ROM_SIZE
from ga3c.envs.emulator.memory import read, waited, window, write

LONGEST_FRAME = 25_000  # instructions; after them ale-py shows the unfinished frame and continues it next time
_ROM = ROM_SIZE - 1


@kernel
def run(machine, rom, log, screen, draw):
    """Plays until the frame ends or `LONGEST_FRAME` instructions have passed.

    `rom` comes from `machine.cartridge`. Writes to the TIA go to `log` (LOG_SIZE,) int64 as
    cycle << 16 | register << 8 | value. The log is replayed (with pixels if `draw`) when the program reads collisions
    and when the log is full. Returns the number of entries that are left to be replayed.
    """
    ram, written, kind = machine.ram, machine.written, int64(machine.kind)
    a, x, y, sp, pc = int64(machine.a), int64(machine.x), int64(machine.y), int64(machine.sp), int64(machine.pc)
    n, v, d, i, z, c = (int64(machine.n), int64(machine.v), int64(machine.d), int64(machine.i), int64(machine.z),
                        int64(machine.c))
    cycles = int64(machine.cycles)
    mask = 0x3FFF if kind == KIND_FE else 0xFFF
    base = int64(machine.bank) * 4096
    if kind == KIND_E0:
        base = window(machine, rom)
    machine.cleared = -1
    # A bit per player: repeating a write of its graphics changes nothing, as the other's delayed copy is up to date.
    fresh = (int64(machine.dgrp1 == written[GRP1])
             | int64(machine.dgrp0 == written[GRP0] and machine.denabl == (written[ENABL] >> 1 & 1)) << 1)
    entries, ended, left = 0, 0, LONGEST_FRAME
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
        store, value = -1, 0
        if in_ram:
            pass
        elif op == 0x85:  # STA zp
            pc, cycles = pc + 2, cycles + 3
            if lo & 0x80:
                ram[lo & 127] = a
                continue
            store, value = lo, a
        elif op == 0xA5:  # LDA zp
            if lo & 0x80:
                a = z = n = int64(ram[lo & 127])
                pc, cycles = pc + 2, cycles + 3
                continue
        elif op == 0xD0:  # BNE
            pc, cycles = pc + 2, cycles + 2
            if z:
                pc, cycles = branched(pc, lo, cycles)
            continue
        elif op == 0xF0:  # BEQ
            pc, cycles = pc + 2, cycles + 2
            if z == 0:
                pc, cycles = branched(pc, lo, cycles)
            continue
        elif op == 0x10:  # BPL
            pc, cycles = pc + 2, cycles + 2
            if n & 128 == 0:
                pc, cycles = branched(pc, lo, cycles)
            continue
        elif op == 0x30:  # BMI
            pc, cycles = pc + 2, cycles + 2
            if n & 128:
                pc, cycles = branched(pc, lo, cycles)
            continue
        elif op == 0x90:  # BCC
            pc, cycles = pc + 2, cycles + 2
            if c == 0:
                pc, cycles = branched(pc, lo, cycles)
            continue
        elif op == 0xB0:  # BCS
            pc, cycles = pc + 2, cycles + 2
            if c:
                pc, cycles = branched(pc, lo, cycles)
            continue
        elif op == 0xA9:  # LDA imm
            a = z = n = lo
            pc, cycles = pc + 2, cycles + 2
            continue
        elif op == 0xA2:  # LDX imm
            x = z = n = lo
            pc, cycles = pc + 2, cycles + 2
            continue
        elif op == 0xA0:  # LDY imm
            y = z = n = lo
            pc, cycles = pc + 2, cycles + 2
            continue
        elif op == 0xCA:  # DEX
            x = z = n = (x - 1) & 255
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0x88:  # DEY
            y = z = n = (y - 1) & 255
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0xE8:  # INX
            x = z = n = (x + 1) & 255
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0xC8:  # INY
            y = z = n = (y + 1) & 255
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0xB1 or op == 0x51:  # LDA and EOR (zp),Y
            if lo & 0x80:
                low = int64(ram[lo & 127])
                value = plain(ram, rom, base, mask, (low | int64(ram[(lo + 1) & 127]) << 8) + y)
                if value >= 0:
                    a = z = n = value ^ a if op == 0x51 else value
                    pc, cycles = pc + 2, cycles + 5 + ((low + y) >> 8)
                    continue
        elif op == 0xA1:  # LDA (zp,X)
            value = plain(ram, rom, base, mask, int64(ram[(lo + x) & 127]) | int64(ram[(lo + x + 1) & 127]) << 8)
            if value >= 0:
                a = z = n = value
                pc, cycles = pc + 2, cycles + 6
                continue
        elif op == 0xB9 or op == 0xBE:  # LDA and LDX abs,Y
            value = plain(ram, rom, base, mask, (lo | int64(rom[(at + 2) & _ROM]) << 8) + y)
            if value >= 0:
                z = n = value
                if op == 0xB9:
                    a = value
                else:
                    x = value
                pc, cycles = pc + 3, cycles + 4 + ((lo + y) >> 8)
                continue
        elif op == 0xBD or op == 0xBC or op == 0x3D:  # LDA, LDY and AND abs,X
            value = plain(ram, rom, base, mask, (lo | int64(rom[(at + 2) & _ROM]) << 8) + x)
            if value >= 0:
                if op == 0xBD:
                    a = value
                elif op == 0xBC:
                    y = value
                else:
                    a = value = value & a
                z = n = value
                pc, cycles = pc + 3, cycles + 4 + ((lo + x) >> 8)
                continue
        elif op == 0xAD:  # LDA abs
            value = plain(ram, rom, base, mask, lo | int64(rom[(at + 2) & _ROM]) << 8)
            if value >= 0:
                a = z = n = value
                pc, cycles = pc + 3, cycles + 4
                continue
        elif op == 0x8D:  # STA abs
            store, value = lo | int64(rom[(at + 2) & _ROM]) << 8, a
            pc, cycles = pc + 3, cycles + 4
        elif op == 0x99:  # STA abs,Y
            store, value = (lo | int64(rom[(at + 2) & _ROM]) << 8) + y, a
            pc, cycles = pc + 3, cycles + 5
        elif op == 0xB5:  # LDA zp,X
            address = lo + x
            if address & 0x80:
                a = z = n = int64(ram[address & 127])
                pc, cycles = pc + 2, cycles + 4
                continue
        elif op == 0x95:  # STA zp,X
            pc, cycles = pc + 2, cycles + 4
            store, value = (lo + x) & 255, a
            if store & 0x80:
                ram[store & 127] = a
                continue
        elif op == 0x86:  # STX zp
            pc, cycles = pc + 2, cycles + 3
            store, value = lo, x
            if lo & 0x80:
                ram[lo & 127] = x
                continue
        elif op == 0x84:  # STY zp
            pc, cycles = pc + 2, cycles + 3
            store, value = lo, y
            if lo & 0x80:
                ram[lo & 127] = y
                continue
        elif op == 0xA6:  # LDX zp
            if lo & 0x80:
                x = z = n = int64(ram[lo & 127])
                pc, cycles = pc + 2, cycles + 3
                continue
        elif op == 0xA4:  # LDY zp
            if lo & 0x80:
                y = z = n = int64(ram[lo & 127])
                pc, cycles = pc + 2, cycles + 3
                continue
        elif op == 0xC9:  # CMP imm
            c, z, n = compared(a, lo)
            pc, cycles = pc + 2, cycles + 2
            continue
        elif op == 0xE0 or op == 0xC0:  # CPX and CPY imm
            c, z, n = compared(x if op == 0xE0 else y, lo)
            pc, cycles = pc + 2, cycles + 2
            continue
        elif op == 0xC5:  # CMP zp
            if lo & 0x80:
                c, z, n = compared(a, int64(ram[lo & 127]))
                pc, cycles = pc + 2, cycles + 3
                continue
        elif op == 0xE4 or op == 0xC4:  # CPX and CPY zp
            if lo & 0x80:
                c, z, n = compared(x if op == 0xE4 else y, int64(ram[lo & 127]))
                pc, cycles = pc + 2, cycles + 3
                continue
        elif op == 0x29:  # AND imm
            a = z = n = a & lo
            pc, cycles = pc + 2, cycles + 2
            continue
        elif op == 0x09:  # ORA imm
            a = z = n = a | lo
            pc, cycles = pc + 2, cycles + 2
            continue
        elif op == 0x49:  # EOR imm
            a = z = n = a ^ lo
            pc, cycles = pc + 2, cycles + 2
            continue
        elif op == 0x25:  # AND zp
            if lo & 0x80:
                a = z = n = a & int64(ram[lo & 127])
                pc, cycles = pc + 2, cycles + 3
                continue
        elif op == 0x05:  # ORA zp
            if lo & 0x80:
                a = z = n = a | int64(ram[lo & 127])
                pc, cycles = pc + 2, cycles + 3
                continue
        elif op == 0x45:  # EOR zp
            if lo & 0x80:
                a = z = n = a ^ int64(ram[lo & 127])
                pc, cycles = pc + 2, cycles + 3
                continue
        elif op == 0x69 or op == 0xE9:  # ADC and SBC imm
            if d == 0:
                v, c, a = added(a, lo if op == 0x69 else lo ^ 255, c)
                z = n = a
                pc, cycles = pc + 2, cycles + 2
                continue
        elif op == 0x65 or op == 0xE5:  # ADC and SBC zp
            if d == 0 and lo & 0x80:
                lo = int64(ram[lo & 127])
                v, c, a = added(a, lo if op == 0x65 else lo ^ 255, c)
                z = n = a
                pc, cycles = pc + 2, cycles + 3
                continue
        elif op == 0x38 or op == 0x18:  # SEC and CLC
            c = int64(op == 0x38)
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0xAA:  # TAX
            x = z = n = a
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0xA8:  # TAY
            y = z = n = a
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0x8A:  # TXA
            a = z = n = x
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0x98:  # TYA
            a = z = n = y
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0x4A:  # LSR A
            c = a & 1
            a = z = n = a >> 1
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0x0A:  # ASL A
            c = a >> 7
            a = z = n = (a << 1) & 255
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0x6A:  # ROR A
            low = a & 1
            a = z = n = a >> 1 | c << 7
            c = low
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0xEA:  # NOP
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0xE6 or op == 0xC6:  # INC and DEC zp
            if lo & 0x80:
                z = n = (int64(ram[lo & 127]) + (1 if op == 0xE6 else 255)) & 255
                ram[lo & 127] = z
                pc, cycles = pc + 2, cycles + 5
                continue
        elif op == 0x24:  # BIT zp
            if lo & 0x80:
                n = int64(ram[lo & 127])
                v, z = n >> 6 & 1, a & n
                pc, cycles = pc + 2, cycles + 3
                continue
        elif op == 0xD5:  # CMP zp,X
            if (lo + x) & 0x80:
                c, z, n = compared(a, int64(ram[(lo + x) & 127]))
                pc, cycles = pc + 2, cycles + 4
                continue
        elif op == 0x9A:  # TXS
            sp = x
            pc, cycles = pc + 1, cycles + 2
            continue
        elif op == 0x68:  # PLA
            if (sp + 1) & 0x80:
                sp = (sp + 1) & 255
                a = z = n = int64(ram[sp & 127])
                pc, cycles = pc + 1, cycles + 4
                continue
        elif op == 0x08:  # PHP
            store = 0x100 | sp
            value = n & 128 | v << 6 | 0x30 | d << 3 | i << 2 | int64(z == 0) << 1 | c
            sp = (sp - 1) & 255
            pc, cycles = pc + 1, cycles + 3
        elif op == 0x48:  # PHA
            if sp & 0x80:
                ram[sp & 127] = a
                sp = (sp - 1) & 255
                pc, cycles = pc + 1, cycles + 3
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
        elif op == 0x6C:  # JMP indirect
            pc = pointed(ram, rom, base, mask, lo, int64(rom[(at + 2) & _ROM]))
            cycles += 5
            continue
        if store < 0:
            mode, operation = int64(o.MODE[op]), int64(o.OPERATION[op])
            hi = int64(ram[(pc + 2) & 127]) if in_ram else int64(rom[(at + 2) & _ROM])
            cycles += int64(o.CYCLES[op])
            pc += int64(o.LENGTHS[mode])
            address, bus, crossed = addressed(ram, mode, operation, lo, hi, x, y, sp)
            cycles += crossed & int64(o.CROSSING[op])
            value = lo
            if operation == o.PLA or operation == o.PLP:
                sp = (sp + 1) & 255
            if operation <= o.ISC and mode >= o.ZP or operation == o.PLA or operation == o.PLP:
                if address & 0x1284 == 0x284 and mode == o.ABS and not in_ram:
                    rounds = waited(machine, rom, base + (pc & mask), cycles, address & 1)
                    if 0 < rounds and 2 * rounds < left:
                        cycles += rounds * (7 + (((pc + 2) ^ (pc - 3)) >> 8 & 1))
                        left -= 2 * rounds
                value, base, entries = read(machine, rom, log, screen, draw, address, bus, cycles, base, mask, entries)
            elif mode == o.IMP and operation <= o.ISC:
                value = a
            store, value, a, x, y, sp, n, v, d, i, z, c, pc, cycles = operated(
                ram, rom, base, mask, mode, operation, address, lo, hi, value,
                a, x, y, sp, n, v, d, i, z, c, pc, cycles)
        if store >= 0:
            cycles, base, entries, fresh, ended = write(
                machine, rom, log, screen, draw, store & 0xFFFF, value, cycles, base, entries, fresh)
            if ended:
                break
    machine.a, machine.x, machine.y, machine.sp, machine.pc = a, x, y, sp, pc & 0xFFFF
    machine.n, machine.v, machine.d, machine.i, machine.z, machine.c = n & 128, v, d, i, z, c
    machine.cycles = cycles
    machine.partial = 1 - ended
    return entries
