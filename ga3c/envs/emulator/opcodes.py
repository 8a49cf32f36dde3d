"""The 6507's 256 opcodes as tables: operation, addressing mode, cycles and use of memory."""

from __future__ import annotations

from typing import Final

import numpy as np

MODES: Final = ("imp", "imm", "zp", "zpx", "zpy", "abs", "abx", "aby", "izx", "izy", "rel")
IMP, IMM, ZP, ZPX, ZPY, ABS, ABX, ABY, IZX, IZY, REL = range(11)
LENGTHS: Final = np.array([1, 2, 2, 2, 2, 3, 3, 3, 2, 2, 2], np.uint8)

# Opcodes in numerical order, eight a line: operation and addressing mode. Undocumented ones have their usual names.
_ROWS = """
brk.imp ora.izx jam.imp slo.izx nop.zp  ora.zp  asl.zp  slo.zp
php.imp ora.imm asl.imp anc.imm nop.abs ora.abs asl.abs slo.abs
bpl.rel ora.izy jam.imp slo.izy nop.zpx ora.zpx asl.zpx slo.zpx
clc.imp ora.aby nop.imp slo.aby nop.abx ora.abx asl.abx slo.abx
jsr.abs and.izx jam.imp rla.izx bit.zp  and.zp  rol.zp  rla.zp
plp.imp and.imm rol.imp anc.imm bit.abs and.abs rol.abs rla.abs
bmi.rel and.izy jam.imp rla.izy nop.zpx and.zpx rol.zpx rla.zpx
sec.imp and.aby nop.imp rla.aby nop.abx and.abx rol.abx rla.abx
rti.imp eor.izx jam.imp sre.izx nop.zp  eor.zp  lsr.zp  sre.zp
pha.imp eor.imm lsr.imp asr.imm jmp.abs eor.abs lsr.abs sre.abs
bvc.rel eor.izy jam.imp sre.izy nop.zpx eor.zpx lsr.zpx sre.zpx
cli.imp eor.aby nop.imp sre.aby nop.abx eor.abx lsr.abx sre.abx
rts.imp adc.izx jam.imp rra.izx nop.zp  adc.zp  ror.zp  rra.zp
pla.imp adc.imm ror.imp arr.imm jmi.abs adc.abs ror.abs rra.abs
bvs.rel adc.izy jam.imp rra.izy nop.zpx adc.zpx ror.zpx rra.zpx
sei.imp adc.aby nop.imp rra.aby nop.abx adc.abx ror.abx rra.abx
nop.imm sta.izx nop.imm sax.izx sty.zp  sta.zp  stx.zp  sax.zp
dey.imp nop.imm txa.imp ane.imm sty.abs sta.abs stx.abs sax.abs
bcc.rel sta.izy jam.imp sha.izy sty.zpx sta.zpx stx.zpy sax.zpy
tya.imp sta.aby txs.imp shs.aby shy.abx sta.abx shx.aby sha.aby
ldy.imm lda.izx ldx.imm lax.izx ldy.zp  lda.zp  ldx.zp  lax.zp
tay.imp lda.imm tax.imp lxa.imm ldy.abs lda.abs ldx.abs lax.abs
bcs.rel lda.izy jam.imp lax.izy ldy.zpx lda.zpx ldx.zpy lax.zpy
clv.imp lda.aby tsx.imp las.aby ldy.abx lda.abx ldx.aby lax.aby
cpy.imm cmp.izx nop.imm dcp.izx cpy.zp  cmp.zp  dec.zp  dcp.zp
iny.imp cmp.imm dex.imp sbx.imm cpy.abs cmp.abs dec.abs dcp.abs
bne.rel cmp.izy jam.imp dcp.izy nop.zpx cmp.zpx dec.zpx dcp.zpx
cld.imp cmp.aby nop.imp dcp.aby nop.abx cmp.abx dec.abx dcp.abx
cpx.imm sbc.izx nop.imm isc.izx cpx.zp  sbc.zp  inc.zp  isc.zp
inx.imp sbc.imm nop.imp sbc.imm cpx.abs sbc.abs inc.abs isc.abs
beq.rel sbc.izy jam.imp isc.izy nop.zpx sbc.zpx inc.zpx isc.zpx
sed.imp sbc.aby nop.imp isc.aby nop.abx sbc.abx inc.abx isc.abx
"""
_CYCLES = """
7 6 2 8 3 3 5 5 3 2 2 2 4 4 6 6
2 5 2 8 4 4 6 6 2 4 2 7 4 4 7 7
6 6 2 8 3 3 5 5 4 2 2 2 4 4 6 6
2 5 2 8 4 4 6 6 2 4 2 7 4 4 7 7
6 6 2 8 3 3 5 5 3 2 2 2 3 4 6 6
2 5 2 8 4 4 6 6 2 4 2 7 4 4 7 7
6 6 2 8 3 3 5 5 4 2 2 2 5 4 6 6
2 5 2 8 4 4 6 6 2 4 2 7 4 4 7 7
2 6 2 6 3 3 3 3 2 2 2 2 4 4 4 4
2 6 2 6 4 4 4 4 2 5 2 5 5 5 5 5
2 6 2 6 3 3 3 3 2 2 2 2 4 4 4 4
2 5 2 5 4 4 4 4 2 4 2 4 4 4 4 4
2 6 2 8 3 3 5 5 2 2 2 2 4 4 6 6
2 5 2 8 4 4 6 6 2 4 2 7 4 4 7 7
2 6 2 8 3 3 5 5 2 2 2 2 4 4 6 6
2 5 2 8 4 4 6 6 2 4 2 7 4 4 7 7
"""

OPERATIONS: Final = (
    # read memory
    "ora", "and", "eor", "adc", "sbc", "cmp", "cpx", "cpy", "bit", "lda", "ldx", "ldy", "lax", "las", "nop",
    "anc", "asr", "arr", "ane", "lxa", "sbx",
    # read memory and write it back
    "asl", "rol", "lsr", "ror", "inc", "dec", "slo", "rla", "sre", "rra", "dcp", "isc",
    # write memory
    "sta", "stx", "sty", "sax", "sha", "shx", "shy", "shs",
    # name no memory
    "bpl", "bmi", "bvc", "bvs", "bcc", "bcs", "bne", "beq",
    "brk", "jsr", "rti", "rts", "jmp", "jmi", "php", "plp", "pha", "pla", "clc", "sec", "cli", "sei", "clv", "cld",
    "sed", "dey", "iny", "dex", "inx", "txa", "tya", "tay", "tax", "txs", "tsx", "jam")
(ORA, AND, EOR, ADC, SBC, CMP, CPX, CPY, BIT, LDA, LDX, LDY, LAX, LAS, NOP, ANC, ASR, ARR, ANE, LXA, SBX,
 ASL, ROL, LSR, ROR, INC, DEC, SLO, RLA, SRE, RRA, DCP, ISC, STA, STX, STY, SAX, SHA, SHX, SHY, SHS,
 BPL, BMI, BVC, BVS, BCC, BCS, BNE, BEQ, BRK, JSR, RTI, RTS, JMP, JMI, PHP, PLP, PHA, PLA, CLC, SEC, CLI, SEI, CLV,
 CLD, SED, DEY, INY, DEX, INX, TXA, TYA, TAY, TAX, TXS, TSX, JAM) = range(len(OPERATIONS))

_PAIRS = [word.split(".") for word in _ROWS.split()]
OPERATION: Final = np.array([OPERATIONS.index(name) for name, _ in _PAIRS], np.uint8)
MODE: Final = np.array([MODES.index(mode) for _, mode in _PAIRS], np.uint8)
CYCLES: Final = np.array(_CYCLES.split(), np.uint8)
# Whether an indexed access that crosses a page takes one cycle more: only reads do.
CROSSING: Final = np.array([int(mode in ("abx", "aby", "izy") and OPERATIONS.index(name) <= LXA)
                            for name, mode in _PAIRS], np.uint8)
