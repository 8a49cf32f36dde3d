"""How an action becomes what the console reads: joystick, button and paddles of the player on the left.

An action is one of ale-py's 18. Joysticks are bits of port A that are 0 when pushed. A paddle is a resistance that
moves a step each frame while an action holds left or right; its button is a bit of port A.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.emulator.games import GAMES
from ga3c.envs.emulator.jit import kernel

SWAPPED: Final = frozenset({"surround", "wizard_of_wor"})  # the first player sits on the right
PADDLES: Final = frozenset({"backgammon", "blackjack", "breakout", "casino", "kaboom", "pong"})

# The resistance of a paddle, as ale-py counts it.
PADDLE_LEAST, PADDLE_MOST, PADDLE_STEP = 27_450, 790_196, 23_000
PADDLE_MIDDLE: Final = (PADDLE_LEAST + PADDLE_MOST) // 2

_UP, _DOWN, _LEFT, _RIGHT, _FIRE = 1, 2, 4, 8, 16
# ale-py's actions: noop, fire, up, right, left, down, the four diagonals, then these eight with fire.
_DIRECTIONS: Final = (_UP, _RIGHT, _LEFT, _DOWN, _UP | _RIGHT, _UP | _LEFT, _DOWN | _RIGHT, _DOWN | _LEFT)
_HELD: Final = np.array((0, _FIRE, *_DIRECTIONS, *(held | _FIRE for held in _DIRECTIONS)), np.int32)

_JOYSTICK, _SWAPPED_JOYSTICK, _PADDLE = range(3)
_DEVICE: Final = np.array([_PADDLE if game in PADDLES else _SWAPPED_JOYSTICK if game in SWAPPED else _JOYSTICK
                           for game in GAMES], np.int32)


@kernel
def press(machine, game, action):
    """Holds `action`, one of ale-py's 18, for the next frame: sets `joysticks`, `fire` and `paddles`."""
    held, device = _HELD[action & 31], _DEVICE[game]
    machine.fire[0] = machine.fire[1] = 0x80
    machine.joysticks = 0xFF
    if device == _PADDLE:
        step = ((held & _LEFT) // _LEFT - (held & _RIGHT) // _RIGHT) * PADDLE_STEP
        machine.paddles[0] = min(max(machine.paddles[0] + step, PADDLE_LEAST), PADDLE_MOST)
        if held & _FIRE:
            machine.joysticks = 0x7F
        return
    if device == _SWAPPED_JOYSTICK:
        machine.joysticks = 0xFF ^ (held & 15)
        machine.fire[1] = 0x80 ^ (held & _FIRE) * 8
    else:
        machine.joysticks = 0xFF ^ (held & 15) << 4
        machine.fire[0] = 0x80 ^ (held & _FIRE) * 8
