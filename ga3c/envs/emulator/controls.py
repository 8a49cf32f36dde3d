"""Turns actions into what the console reads: joystick, button and paddles of the first player.

An action is one of ale-py's 18. Joysticks are bits of port A that are 0 when pushed. A paddle is a resistance that
moves a step each frame while an action holds left or right. Its button is a bit of port A.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.emulator.dump import Dump
from ga3c.envs.emulator.games import GAMES
from ga3c.envs.emulator.jit import kernel
from ga3c.envs.emulator.machine import UNPLUGGED

SWAPPED: Final = frozenset({"surround", "wizard_of_wor"})  # the first player sits on the right
WITHOUT_FIRE: Final = frozenset({"lost_luggage", "skiing"})  # in these games all actions that fire are no-ops
# The number of the first player's paddle.
PADDLES: Final = {"backgammon": 0, "blackjack": 0, "breakout": 0, "casino": 0, "kaboom": 0, "pong": 1}

# The resistance of a paddle, as ale-py counts it: its bounds and how far it moves in a frame.
PADDLE_LIMITS: Final = 27_450, 790_196
OTHER_LIMITS: Final = {"backgammon": (27_450, 1_000_000), "blackjack": (27_450, 795_000)}
PADDLE_STEP: Final = 23_000
_SWITCHES: Final = 0x3F  # colour television, neither select nor reset; bits 6 and 7 are the players' difficulties

_UP, _DOWN, _LEFT, _RIGHT, _FIRE = 1, 2, 4, 8, 16
# ale-py's actions: noop, fire, up, right, left, down, the four diagonals, then these eight with fire.
_DIRECTIONS: Final = (_UP, _RIGHT, _LEFT, _DOWN, _UP | _RIGHT, _UP | _LEFT, _DOWN | _RIGHT, _DOWN | _LEFT)
_HELD: Final = np.array((0, _FIRE, *_DIRECTIONS, *(held | _FIRE for held in _DIRECTIONS), *(14 * (0,))), np.int32)

_JOYSTICK, _SWAPPED_JOYSTICK, _PADDLE, _SECOND_PADDLE = range(4)
_DEVICE: Final = np.array([_PADDLE + PADDLES[game] if game in PADDLES else _SWAPPED_JOYSTICK if game in SWAPPED
                           else _JOYSTICK for game in GAMES], np.int32)
_FIRES: Final = np.array([game not in WITHOUT_FIRE for game in GAMES], np.bool_)
_LIMITS: Final = np.array([OTHER_LIMITS.get(game, PADDLE_LIMITS) for game in GAMES], np.int32)


def connect(machine: NDArray[np.void], game: str, dump: Dump) -> None:
    """Sets the switches and paddles of `machine` (1,) as in ale-py's state `dump`. Releases joysticks and buttons."""
    left, right, _, _, _, difficulty = dump.header
    machine["switches"] = _SWITCHES | difficulty << 6
    machine["joysticks"], machine["fire"], machine["paddles"] = 0xFF, 0x80, UNPLUGGED
    if game in PADDLES:
        number = PADDLES[game]
        machine["paddles"][0, number], machine["paddles"][0, 1 - number] = left, right
        if number == 1:
            machine["paddles"][0, 2:] = 0  # as ale-py reads the other port when the players are swapped


@kernel
def press(machine: Any, game: int, action: int) -> None:
    """Presses `action`, one of ale-py's 18, for the next frame: sets `joysticks`, `fire` and `paddles`."""
    held, device = _HELD[action & 31], _DEVICE[game]
    if held & _FIRE and not _FIRES[game]:
        held = 0
    machine.fire[0] = machine.fire[1] = 0x80
    machine.joysticks = 0xFF
    if device >= _PADDLE:
        number = device - _PADDLE
        step = ((held & _LEFT) // _LEFT - (held & _RIGHT) // _RIGHT) * PADDLE_STEP
        machine.paddles[number] = min(max(machine.paddles[number] + step, _LIMITS[game, 0]), _LIMITS[game, 1])
        if held & _FIRE:
            machine.joysticks = 0xFF ^ (0x80 >> number)
    elif device == _SWAPPED_JOYSTICK:
        machine.joysticks = 0xFF ^ (held & 15)
        machine.fire[1] = 0x80 ^ (held & _FIRE) * 8
    else:
        machine.joysticks = 0xFF ^ (held & 15) << 4
        machine.fire[0] = 0x80 ^ (held & _FIRE) * 8
