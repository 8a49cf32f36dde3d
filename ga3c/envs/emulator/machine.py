"""The state of one console as one NumPy record, and its conversion from a state that ale-py saved.

A copy of the record is a saved state. Times are CPU cycles since the frame began; a cycle is three colour clocks.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.emulator.dump import Dump, read_dump

KIND_PLAIN, KIND_F8, KIND_F6, KIND_E0, KIND_FE = range(5)
KINDS: Final = {"Cartridge2K": KIND_PLAIN, "Cartridge4K": KIND_PLAIN, "CartridgeF8": KIND_F8, "CartridgeF6": KIND_F6,
                "CartridgeE0": KIND_E0, "CartridgeFE": KIND_FE}
ROM_SIZE: Final = 16384  # of the array that the kernels read; index masks rely on it
NEVER: Final = 2**28  # a cycle that never comes
UNPLUGGED: Final = 2**31 - 1  # the resistance of a paddle that is not connected
E0_WINDOW: Final = 8192  # index in that array of an E0 cartridge's four visible slices

_NUMBERS = (
    # the 6507: zero and negative flags are kept as the bytes they come from, so `z` is 0 when the flag is set
    "a", "x", "y", "sp", "pc", "n", "v", "d", "i", "z", "c", "cycles", "partial",
    # the 6532: the value written, log2 of the interval, when it was written, and the first read after it ran out
    "timer", "shift", "timer_set", "timer_read", "timer_expired", "ddra", "ddrb",
    # the TIA: when line 0 began, when VSYNC may end the frame, the last HMOVE; whether paddles are dumped, until when
    "frame_start", "vsync_finish", "hmove_cycle", "dumped", "dump_cycle",
    # up to which colour clock it has drawn, and the window that is drawn
    "drawn", "display_start", "display_stop", "rows",
    # its computed values
    "dgrp0", "dgrp1", "denabl", "collisions", "comb", "cosmic", "cosmic_step", "hide0", "hide1",
    # state of the drawing: whether the playfield's right half is reflected, the masks to recompute, whether the last
    # line may be copied (see tia.replay), the last entry of the log that clears collisions
    "reflected", "dirty", "same", "cleared",
    # the game: first line shown, how many, when a write to the TIA ends a frame, whether HMOVE blanks eight pixels
    "first_line", "lines", "most_cycles", "has_comb",
    "kind", "bank",
    # for the rules in games.py
    "score", "lives", "frame",
)
MACHINE: Final = np.dtype(
    [(name, np.int32) for name in _NUMBERS]
    + [("masks", np.int64, (6, 3)), ("positions", np.int32, (5,)), ("slices", np.int32, (4,)),
       ("memory", np.int32, (4,)), ("paddles", np.int32, (4,)),
       ("ram", np.uint8, (128,)), ("tia", np.uint8, (64,)), ("written", np.uint8, (64,)),
       ("joysticks", np.uint8), ("switches", np.uint8), ("fire", np.uint8, (2,)),
       ("over", np.uint8), ("started", np.uint8)], align=True)

# Registers of the TIA, by their addresses.
VSYNC, VBLANK, WSYNC, RSYNC, NUSIZ0, NUSIZ1, COLUP0, COLUP1, COLUPF, COLUBK, CTRLPF, REFP0, REFP1 = range(13)
PF0, PF1, PF2, RESP0, RESP1, RESM0, RESM1, RESBL = range(13, 21)
GRP0, GRP1, ENAM0, ENAM1, ENABL, HMP0, HMP1, HMM0, HMM1, HMBL = range(0x1B, 0x25)
VDELP0, VDELP1, VDELBL, RESMP0, RESMP1, HMOVE, HMCLR, CXCLR = range(0x25, 0x2D)

# By ale-py's ROM name: the first line that ale-py shows, and the games whose HMOVE blanks no pixels.
_FIRST_LINES = {"carnival": 26, "pooyan": 26, "up_n_down": 30, "qbert": 40}
_WITHOUT_COMB = {"asteroids", "battle_zone", "darkchambers", "ms_pacman"}


def cartridge(image: bytes, kind: int) -> NDArray[np.uint8]:
    """Returns the array (ROM_SIZE,) uint8 from which the kernels read an image of 2, 4, 8 or 16 KiB.

    `kind` is the `kind` of the machine. Threads may share the array, except for E0 cartridges: their visible slices
    are copied inside it. Raises ValueError for other sizes.
    """
    if len(image) not in (2048, 4096, 8192, 16384):
        raise ValueError(f"the ROM image has {len(image)} bytes; it must have 2,048, 4,096, 8,192 or 16,384")
    rom = np.zeros(ROM_SIZE, np.uint8)
    data = np.frombuffer(image if len(image) > 2048 else image * 2, np.uint8)
    if kind == KIND_FE:  # address line 13 chooses the bank
        rom[0x3000:], rom[0x1000:0x2000] = data[:4096], data[4096:]
    else:
        rom[:len(data)] = data
    return rom


def machine_from(state: bytes, game: str) -> NDArray[np.void]:
    """Returns the machine (1,) MACHINE that ale-py saved as `state`.

    `state` is `ale.cloneState().serialize()`, with or without random numbers. `game` is ale-py's name of the ROM.
    Raises ValueError for a cartridge or a state that this emulator does not know.
    """
    dump = read_dump(state)
    if dump.cartridge not in KINDS:
        raise ValueError(f"{game} has a {dump.cartridge}, which is not emulated")
    machine = np.zeros(1, MACHINE)
    for name, value in dump.machine().items():
        machine[name] = value
    _add_setting(machine, dump, game)
    return machine


def _add_setting(machine: NDArray[np.void], dump: Dump, game: str) -> None:
    machine["kind"] = KINDS[dump.cartridge]
    machine["written"] = machine["tia"]
    machine["reflected"], machine["dirty"] = machine["tia"][0, CTRLPF] & 1, 63
    machine["joysticks"], machine["switches"] = 0xFF, 0x3F
    machine["fire"] = 0x80
    machine["first_line"] = _FIRST_LINES.get(game, 34)
    machine["lines"] = (dump.tia[2] - dump.tia[1]) // 228
    machine["most_cycles"] = 76 * (291 if machine["lines"][0] == 210 else 343)
    machine["has_comb"] = game not in _WITHOUT_COMB
    machine["paddles"] = UNPLUGGED
    machine["frame"] = dump.header[3]
