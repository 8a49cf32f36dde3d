"""Parses the output of `ale.cloneState().serialize()`. Comparing such states showed the place of each number."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

YES, NO = 0xFAB1FAB2 - 2**32, 0xBAD1BAD2 - 2**32
_CPU = ("a", "x", "y", "sp", "instruction", "pc", "n", "v", "b", "d", "i", "not_z", "c", "status")
_RIOT_AFTER_RAM = ("timer", "shift", "timer_set", "timer_read", "timer_expired", "ddra", "ddrb")
_TIA = (
    "frame_start", "display_start", "display_stop", "drawn", "clocks_left", "lines", "most_lines", "vsync_finish",
    "enabled", "vsync", "vblank", "nusiz0", "nusiz1", "colup0", "colup1", "colupf", "colubk", "ctrlpf", "priority",
    "refp0", "refp1", "pf", "grp0", "grp1", "dgrp0", "dgrp1", "enam0", "enam1", "enabl", "denabl", "hmp0", "hmp1",
    "hmm0", "hmm1", "hmbl", "vdelp0", "vdelp1", "vdelbl", "resmp0", "resmp1", "collisions", "posp0", "posp1",
    "posm0", "posm1", "posbl", "shown0", "shown1", "hmove", "comb", "cosmic", "cosmic_step", "dumped", "dump_cycle")
# Registers that the dump keeps as they were written (some shifted, see `_SHIFTED`), with their TIA addresses.
_WRITTEN: Final = {
    "vsync": 0, "vblank": 1, "nusiz0": 4, "nusiz1": 5, "colup0": 6, "colup1": 7, "colupf": 8, "colubk": 9, "ctrlpf": 10,
    "refp0": 11, "refp1": 12, "grp0": 0x1B, "grp1": 0x1C, "enam0": 0x1D, "enam1": 0x1E, "enabl": 0x1F, "hmp0": 0x20,
    "hmp1": 0x21, "hmm0": 0x22, "hmm1": 0x23, "hmbl": 0x24, "vdelp0": 0x25, "vdelp1": 0x26, "vdelbl": 0x27,
    "resmp0": 0x28, "resmp1": 0x29}
_SHIFTED: Final = {"refp0": 3, "refp1": 3, "enam0": 1, "enam1": 1, "enabl": 1, "hmp0": 4, "hmp1": 4, "hmm0": 4,
                   "hmm1": 4, "hmbl": 4, "resmp0": 1, "resmp1": 1}


@dataclass(frozen=True)
class Dump:
    """A state saved by ale-py, split into parts. Flags among the numbers are 0 and 1."""

    header: list[int]  # resistance left and right, frame, frame of the episode, mode, difficulty
    cycles: int
    cpu: list[int]
    ram: list[int]
    riot: list[int]
    tia: list[int]
    cartridge: str
    bank: list[int]
    rules: list[int]  # the saved numbers of the game's rules, from score on
    paddles: list[int]

    def machine(self) -> dict[str, int | list[int]]:
        """Returns the values of the fields of `machine.MACHINE` that the dump holds."""
        cpu, tia = dict(zip(_CPU, self.cpu, strict=True)), dict(zip(_TIA, self.tia, strict=True))
        riot = dict(zip(_RIOT_AFTER_RAM, self.riot, strict=True))
        registers = [0] * 64
        for name, address in _WRITTEN.items():
            registers[address] = (tia[name] << _SHIFTED.get(name, 0)) & 0xFF
        registers[13:16] = (tia["pf"] & 15) << 4, tia["pf"] >> 4 & 255, tia["pf"] >> 12 & 255
        return {
            **{name: cpu[name] for name in ("a", "x", "y", "sp", "pc", "v", "d", "i", "c")},
            "n": cpu["n"] << 7, "z": cpu["not_z"], "cycles": self.cycles, "partial": 1 - cpu["status"],
            **riot, "ram": self.ram, "tia": registers,
            "frame_start": tia["frame_start"] // 3, "vsync_finish": min(tia["vsync_finish"] // 3, 2**28),
            "hmove_cycle": tia["hmove"] // 3, "dumped": tia["dumped"], "dump_cycle": tia["dump_cycle"],
            "drawn": tia["drawn"], "display_start": tia["display_start"], "display_stop": tia["display_stop"],
            **{name: tia[name] for name in ("dgrp0", "dgrp1", "denabl", "collisions", "comb", "cosmic", "cosmic_step")},
            "positions": [tia[name] for name in ("posp0", "posp1", "posm0", "posm1", "posbl")],
            "bank": self.bank[0] if self.cartridge in ("CartridgeF8", "CartridgeF6") else 0,
            "slices": self.bank[1:] if self.cartridge == "CartridgeE0" else [0] * 4}


class _Reader:
    def __init__(self, state: bytes) -> None:
        self._state, self.at = state, 0

    def number(self) -> int:
        value: int = struct.unpack_from("<i", self._state, self.at)[0]
        self.at += 4
        return 1 if value == YES else 0 if value == NO else value

    def numbers(self, count: int) -> list[int]:
        return [self.number() for _ in range(count)]

    def text(self) -> str:
        length = self.number()
        if not 0 <= length <= len(self._state) - self.at:
            raise ValueError(f"not a saved state of ale-py: a text of {length} bytes at byte {self.at}")
        self.at += length
        return self._state[self.at - length:self.at].decode("latin-1")

    def expect(self, name: str) -> None:
        if (text := self.text()) != name:
            raise ValueError(f"not a saved state of ale-py: {text[:20]!r} instead of {name}")


def read_dump(state: bytes) -> Dump:
    """Parses a serialised state of ale-py 0.11 or 0.12. Raises ValueError if `state` is something else."""
    try:
        return _read(state)
    except struct.error as error:
        raise ValueError(f"not a saved state of ale-py: {error}") from None


def _read(state: bytes) -> Dump:
    reader = _Reader(state)
    header = reader.numbers(6)
    end = reader.number() + reader.at  # the console's part is a text of its own
    reader.text()  # md5 of the image
    reader.expect("System")
    cycles = reader.number()
    reader.text()  # its random numbers
    reader.expect("M6502Low")
    cpu = reader.numbers(len(_CPU))
    reader.expect("M6532")
    ram = reader.numbers(reader.number())
    riot = reader.numbers(len(_RIOT_AFTER_RAM))
    reader.expect("TIA")
    tia = reader.numbers(len(_TIA))
    reader.expect("TIASound")
    reader.numbers(7)
    cartridge = reader.text()
    bank = reader.numbers({"CartridgeF8": 1, "CartridgeF6": 1, "CartridgeE0": 5}.get(cartridge, 0))
    rules = []
    while reader.at < end:
        number = reader.number()
        if number > 1000 and number == end - reader.at:
            break  # the random numbers of `include_rng=True`, a text
        rules.append(number)
    reader.at = end
    return Dump(header, cycles, cpu, ram, riot, tia, cartridge, bank, rules[:-1], reader.numbers(2))
