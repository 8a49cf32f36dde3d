"""Actions become the joysticks, buttons and paddles that a console in ale-py reads."""

from __future__ import annotations

import struct

import ale_py
import numpy as np
import pytest
from ale_py import roms

from ga3c.envs.emulator.controls import PADDLES, WITHOUT_FIRE, connect, press
from ga3c.envs.emulator.dump import read_dump
from ga3c.envs.emulator.games import GAMES
from ga3c.envs.emulator.machine import MACHINE

# A program that stores port A, both buttons and port B at $E0 to $E3, for ever. It stands in the RAM at $C0.
_PROGRAM = (0xAD, 0x80, 0x02, 0x85, 0xE0, 0xA5, 0x0C, 0x85, 0xE1, 0xA5, 0x0D, 0x85, 0xE2, 0xAD, 0x82, 0x02, 0x85, 0xE3,
            0x85, 0x02, 0x4C, 0xC0, 0x00)


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> None:
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def _console(game: str, difficulty: int = 0) -> ale_py.ALEInterface:
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path(game))
    ale.setDifficulty(difficulty)
    ale.reset_game()
    return ale


def _state(ale: ale_py.ALEInterface) -> bytes:
    state: bytes = ale.cloneState(include_rng=False).serialize()
    return state


def _reads_its_ports(ale: ale_py.ALEInterface) -> None:
    """From now on the console runs the program above instead of its game."""
    state = bytearray(_state(ale))
    struct.pack_into("<i", state, state.index(b"M6502Low") + 8 + 20, 0xC0)
    restored = ale_py.ALEState.__new__(ale_py.ALEState)
    restored.__setstate__(bytes(state))
    ale.restoreState(restored)
    for index, value in enumerate(_PROGRAM):
        ale.setRAM(0x40 + index, value)


@pytest.mark.parametrize("game", [
    "alien", "surround", "wizard_of_wor", *sorted(WITHOUT_FIRE), *sorted(set(PADDLES) & set(GAMES))])
def test_actions_are_read_as_in_ale_py(game: str) -> None:
    ale, machine = _console(game), np.zeros(1, MACHINE)
    connect(machine, game, read_dump(_state(ale)))
    _reads_its_ports(ale)
    for action in range(18):
        ale.act(ale_py.Action(action))
        press(machine[0], GAMES[game], action)
        port_a, *buttons, port_b = ale.getRAM()[0x60:0x64]
        assert (port_a, buttons[0] & 128, buttons[1] & 128, port_b) == (
            machine["joysticks"][0], *machine["fire"][0], machine["switches"][0])


@pytest.mark.parametrize("game", sorted(set(PADDLES) & set(GAMES)))
def test_paddles_move_and_stop_as_in_ale_py(game: str) -> None:
    ale, machine = _console(game), np.zeros(1, MACHINE)
    connect(machine, game, read_dump(_state(ale)))
    for action in [3] * 40 + [4] * 40 + [11, 12, 6, 2, 9]:
        ale.act(ale_py.Action(action))
        press(machine[0], GAMES[game], action)
        left, right = read_dump(_state(ale)).header[:2]
        assert (machine["paddles"][0, PADDLES[game]], machine["paddles"][0, 1 - PADDLES[game]]) == (left, right)


@pytest.mark.parametrize("difficulty", range(4))
def test_switches_show_the_difficulty(difficulty: int) -> None:
    ale, machine = _console("pong", difficulty), np.zeros(1, MACHINE)
    _reads_its_ports(ale)
    ale.act(ale_py.Action.NOOP)
    connect(machine, "pong", read_dump(_state(ale)))
    assert ale.getRAM()[0x63] == machine["switches"][0]
