"""States of ale-py read, cartridges laid out, masks against a slow painter."""

from __future__ import annotations

import ale_py
import numpy as np
import pytest
from ale_py import roms

from ga3c.envs.emulator.dump import read_dump
from ga3c.envs.emulator.machine import (
    CTRLPF, ENABL, GRP0, KIND_F8, KIND_FE, MACHINE, NUSIZ0, NUSIZ1, PF2, cartridge, machine_from)
from ga3c.envs.emulator.motion import MOTION
from ga3c.envs.emulator.objects import COPIES, PLAYER0, REVERSED, WIDTH, WORD, refresh


@pytest.fixture(scope="module")
def state() -> bytes:
    ale = ale_py.ALEInterface()
    ale.loadROM(roms.get_rom_path("boxing"))
    saved: bytes = ale.cloneState().serialize()
    return saved


def test_machine_has_what_the_state_says(state: bytes) -> None:
    machine, dump = machine_from(state, "boxing"), read_dump(state)
    assert machine["ram"][0].tolist() == dump.ram and machine["pc"] == dump.cpu[5] and machine["lines"] == 210


@pytest.mark.parametrize("cut", (0, 30, 200, 7000))
def test_what_is_no_state_is_refused(state: bytes, cut: int) -> None:
    with pytest.raises(ValueError, match="not a saved state of ale-py"):
        read_dump(state[:cut])


def test_unknown_cartridge_is_refused(state: bytes) -> None:
    with pytest.raises(ValueError, match="not emulated"):
        machine_from(state.replace(b"Cartridge2K", b"CartridgeXY"), "boxing")


def test_cartridges_are_laid_out() -> None:
    image = bytes(range(256)) * 8
    assert bytes(cartridge(image, 0)[2048:4096]) == image
    two = bytes(4096) + bytes([1]) * 4096
    assert cartridge(two, KIND_F8)[4096] == 1 and cartridge(two, KIND_FE)[0x1000] == 1
    with pytest.raises(ValueError, match="3 bytes"):
        cartridge(b"abc", 0)


@pytest.mark.parametrize("shape", range(8))
def test_player_is_where_a_slow_painter_puts_it(shape: int) -> None:
    machine = np.zeros(1, MACHINE)
    random = np.random.default_rng(shape)
    for position in range(0, 160, 3):
        graphics = int(random.integers(1, 256))
        machine["tia"][0, [4, 0x1B]] = shape, graphics
        machine["positions"][0, PLAYER0] = position
        refresh(machine[0], 1 << PLAYER0, 0)
        expected = np.zeros(160, bool)
        wide = 1 << WIDTH[shape]
        for copy in COPIES[shape]:
            for pixel in range(8 * wide if copy >= 0 else 0):
                if graphics >> 7 - pixel // wide & 1:
                    expected[(position + copy + pixel + (wide > 1)) % 160] = True
        words = machine["masks"][0, PLAYER0]
        assert [bool(words[x // WORD] >> x % WORD & 1) for x in range(160)] == expected.tolist()


def shown(machine: np.ndarray) -> np.ndarray:
    """The masks as (6, 160) bool."""
    words = machine["masks"][0]
    return np.array([words[:, x // WORD] >> x % WORD & 1 for x in range(160)]).T.astype(bool)


def test_a_mask_that_changes_within_a_line_stays_left_of_the_change_and_says_so() -> None:
    random = np.random.default_rng(1)
    registers = [*range(NUSIZ0, NUSIZ1 + 1), *range(CTRLPF, PF2 + 1), *range(GRP0, ENABL + 1)]
    some = 0
    for x in range(161):
        before, after = (np.zeros(1, MACHINE) for _ in range(2))
        for machine in (before, after):
            machine["tia"][0, registers] = random.integers(256, size=len(registers))
            machine["positions"] = random.integers(160, size=5)
            refresh(machine[0], 63, 0)
        spliced = after.copy()
        spliced["masks"] = before["masks"]
        mixed = refresh(spliced[0], 63, x)
        left = np.arange(160) < x
        assert (shown(spliced) == np.where(left, shown(before), shown(after))).all()
        differ = ((shown(before) != shown(after)) & left).any(1)
        assert [mixed >> which & 1 for which in range(6)] == differ.tolist()
        some += int(differ.sum())
    assert 161 < some < 6 * 160  # neither none nor all


def test_tables_are_the_hardware_s() -> None:
    assert REVERSED[0b00010011] == 0b11001000
    assert MOTION[3].tolist() == [0, -1, -2, -3, -4, -5, -6, -7, 8, 7, 6, 5, 4, 3, 2, 1]
    assert not MOTION[21:55].any()
