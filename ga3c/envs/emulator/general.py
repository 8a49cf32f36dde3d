"""The 6507's general path for any opcode: the address to read, and the operation itself."""

from __future__ import annotations

from ga3c.envs.emulator import opcodes as o
from ga3c.envs.emulator.jit import inlined, int64, kernel
from ga3c.envs.emulator.machine import ROM_SIZE

_ROM = ROM_SIZE - 1


@inlined
def addressed(ram, mode, operation, lo, hi, x, y, sp):
    """Returns the address, the last byte on the bus before the read, and whether indexing crosses a page (0 or 1)."""
    address, bus, crossed = lo, lo, 0
    if mode == o.ZPX:
        address = (lo + x) & 255
    elif mode == o.ZPY:
        address = (lo + y) & 255
    elif mode == o.ABS:
        address, bus = lo | hi << 8, hi
    elif mode == o.ABX:
        address, bus, crossed = (lo | hi << 8) + x, hi, (lo + x) >> 8
    elif mode == o.ABY:
        address, bus, crossed = (lo | hi << 8) + y, hi, (lo + y) >> 8
    elif mode == o.IZX:
        low, bus = int64(ram[(lo + x) & 127]), int64(ram[(lo + x + 1) & 127])
        address = low | bus << 8
    elif mode == o.IZY:
        low, bus = int64(ram[lo & 127]), int64(ram[(lo + 1) & 127])
        address, crossed = (low | bus << 8) + y, (low + y) >> 8
    elif operation == o.PLA or operation == o.PLP:  # pulls from below $80 read the TIA
        address, bus = 0x100 | (sp + 1) & 255, int64(ram[sp & 127])
    return address & 0xFFFF, bus, crossed


@inlined
def plain(ram, rom, base, mask, address):
    """Returns the byte at an address in RAM, or in the cartridge where no bank is switched; else -1."""
    if address & 0x1000:
        return int64(rom[(base + (address & mask)) & _ROM]) if address & 0xFFF < 0xFE0 else -1
    return int64(ram[address & 127]) if address & 0x280 == 0x80 else -1


@inlined
def pointed(ram, rom, base, mask, lo, hi):
    """Returns the target of an indirect jump. The pointer's second byte is in the same page as its first."""
    address = lo | hi << 8
    high = address & 0xFF00 | (address + 1) & 0xFF
    if address & 0x1000:
        return int64(rom[(base + (address & mask)) & _ROM]) | int64(rom[(base + (high & mask)) & _ROM]) << 8
    return int64(ram[address & 127]) | int64(ram[high & 127]) << 8


@inlined
def branched(pc, offset, cycles):
    """Returns target and cycles of a taken branch: one cycle more, or two off the page. `pc`: the next instruction."""
    target = pc + (offset ^ 128) - 128
    return target, cycles + 1 + ((pc ^ target) >> 8 & 1)


@inlined
def compared(register, value):
    """Returns the carry, zero and negative flags of a comparison."""
    difference = (register - value) & 255
    return int64(register >= value), difference, difference


@inlined
def added(a, value, carry):
    """Returns overflow, carry and sum. A difference is the sum with the complement."""
    total = a + value + carry
    return (~(a ^ value) & (a ^ total)) >> 7 & 1, total >> 8, total & 255


@inlined
def operated(ram, rom, base, mask, mode, operation, address, lo, hi, value, a, x, y, sp, n, v, d, i, z, c, pc, cycles):
    """Performs an operation on `value`. Returns the address to write (-1: none), the byte, all registers, cycles."""
    store = -1
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
        # ------------------------------------------------------ shifts, increments and their combinations
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
            pc = pointed(ram, rom, base, mask, lo, hi)
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
    return store, value, a, x, y, sp, n, v, d, i, z, c, pc, cycles


@kernel
def _decimal_sum(a, value, carry):
    """Returns the sum of two bytes of decimal digits, plus 256 if it passes 99. Digits above 9 count as in ale-py."""
    total = _decimal(a) + _decimal(value) + carry
    return _digits((total & 255) % 100) | (256 if total > 99 else 0)


@kernel
def _decimal_difference(a, value, carry):
    """Returns the difference. If digits above 9 make it less than -100, ale-py converts from digits, not to digits."""
    total = _decimal(a) - _decimal(value) - 1 + carry
    total += 100 if total < 0 else 0
    return _decimal(total & 255) if total < 0 else _digits(total % 100)


@kernel
def _decimal(digits):
    return (digits >> 4) * 10 + (digits & 15)


@kernel
def _digits(number):
    return number // 10 << 4 | number % 10
