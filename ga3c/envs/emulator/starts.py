"""The starts of games: states that ale-py makes, imported once and copied for each episode.

ale-py resets a console with about 68 frames, in which it chooses mode and difficulty and starts the game. The state
after them is the same for every seed, so it is made once. ale-py also plays the opening of an episode, FIRE and no-ops.
There is one start for each number of no-ops.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.emulator.dump import read_dump
from ga3c.envs.emulator.judge import begin
from ga3c.envs.emulator.machine import machine_from

_NOOP, _FIRE = 0, 1  # ale-py's numbers


class Start(NamedTuple):
    """One start: machine (1,) MACHINE, packed screen, the frames that ale-py counts until then, last action."""

    machine: NDArray[np.void]
    packed: bytes
    frames: int
    last_action: int

    @property
    def screen(self) -> NDArray[np.uint8]:
        """Palette indices (lines, 160) uint8. Packed they take about 1 kB instead of 33: an agent keeps 31 starts."""
        return np.frombuffer(bytearray(zlib.decompress(self.packed)), np.uint8).reshape(-1, 160)


class Starts:
    """The starts of the game `rom`. `emulator` makes them: an ALEInterface that has loaded it and plays nothing else.

    If `fires`, FIRE takes the place of the first no-op; without no-ops, FIRE is still played. Each start is made when
    first requested. `variant` is mode and difficulty. `frames_before` is the number of frames that ale-py counts before
    the first game: it plays a few in Berzerk.
    """

    def __init__(self, emulator: Any, rom: str, fires: bool) -> None:
        self._emulator, self._rom, self._fires = emulator, rom, fires
        self._made: list[Start] = []
        self.frames_before = emulator.getFrameNumber()
        self.start(0)
        state = emulator.cloneState()
        self.variant = np.array([state.getCurrentMode(), state.getDifficulty()])

    def start(self, no_ops: int) -> Start:
        """Returns the start after `no_ops` no-ops. Raises ValueError for a console that this emulator does not know."""
        emulator = self._emulator
        while len(self._made) <= no_ops:
            if not self._made:
                emulator.reset_game()
                if self._fires:
                    self._play(_FIRE)
            elif len(self._made) > 1 or not self._fires:
                self._play(_NOOP)
            state = emulator.cloneState().serialize()
            machine = machine_from(state, self._rom)
            begin(machine, self._rom, read_dump(state))
            number = len(self._made)
            self._made.append(Start(machine, zlib.compress(emulator.getScreen(), 1), emulator.getEpisodeFrameNumber(),
                                    _FIRE if self._fires and number < 2 else _NOOP))
        return self._made[no_ops]

    def _play(self, action: int) -> None:
        self._emulator.act(action)
        if self._emulator.game_over():
            self._emulator.reset_game()
