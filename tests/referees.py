"""The emulator's rules beside ale-py's: reward, lives and game over, frame by frame.

Three ways, each against ale-py's answers after every frame: random play; random play while random bytes of the
console's memory are overwritten; and a console that stands still, whose CPU waits in a loop of four bytes, so that the
whole memory is ours to write. The last reaches scores and endings that random play never sees.

"Illegal Instruction" is ale-py's, about a game whose memory was spoiled.
"""

from __future__ import annotations

import struct

import ale_py
import numpy as np
from ale_py import roms
from numpy.typing import NDArray

from ga3c.envs.emulator.dump import NO, read_dump
from ga3c.envs.emulator.games import GAMES, RULES
from ga3c.envs.emulator.judge import begin, judge
from ga3c.envs.emulator.machine import MACHINE

_LOOP = (0x85, 0x02, 0x10, 0xFC)  # waits for the end of the line, forever
_SHOWN = 3  # most differences printed for each game


class Referees:
    """A game in ale-py, and our rules, which read its memory."""

    def __init__(self, game: str, seed: int) -> None:
        self._ale, self.game = ale_py.ALEInterface(), game
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("random_seed", seed)
        self._ale.loadROM(roms.get_rom_path(game))
        self._machine = np.zeros(1, MACHINE)
        self.actions = self._ale.getMinimalActionSet()
        self.different = 0
        self._still: ale_py.ALEState | None = None
        self.restart()

    @property
    def over(self) -> bool:
        over: bool = self._ale.game_over()
        return over

    @property
    def ram(self) -> NDArray[np.uint8]:
        ram: NDArray[np.uint8] = self._ale.getRAM()
        return ram

    def restart(self) -> None:
        """Starts a new episode, or restores the still console."""
        if self._still is None:
            self._ale.reset_game()
        else:
            self._ale.restoreState(self._still)
        self._machine["ram"] = self.ram
        begin(self._machine, self.game, read_dump(self._ale.cloneState(include_rng=False).serialize()))

    def stand_still(self, at: int) -> None:
        """Keeps the CPU in a loop of four bytes, which starts at index `at` of the memory."""
        state = bytearray(self._ale.cloneState(include_rng=False).serialize())
        registers = state.index(b"M6502Low") + 8
        struct.pack_into("<i", state, registers + 20, 128 + at)
        struct.pack_into("<i", state, registers + 24, NO)  # the negative flag
        self._still = ale_py.ALEState.__new__(ale_py.ALEState)
        self._still.__setstate__(bytes(state))  # type: ignore[arg-type]
        self.restart()

    def poke(self, ram: NDArray[np.uint8]) -> None:
        for index, value in enumerate(ram.tolist()):
            self._ale.setRAM(index, value)

    def step(self, action: ale_py.Action) -> None:
        """Plays one frame in ale-py and judges it. Prints a difference and restarts the rules from ale-py's state."""
        reward = self._ale.act(action)
        theirs = reward, self._ale.lives(), self._ale.game_over()
        self._machine["ram"] = self.ram
        reward = judge(self._machine[0], GAMES[self.game])
        ours = int(reward), int(self._machine["lives"][0]), bool(self._machine["over"][0])
        if theirs == ours:
            return
        self.different += 1
        if self.different <= _SHOWN:
            bytes_read = " ".join(f"{128 + index:02x}={self.ram[index]:02x}" for index in _read(self.game))
            print(f"  {self.game}: reward, lives, over are {theirs}, ours {ours}, with {bytes_read}")
        begin(self._machine, self.game, read_dump(self._ale.cloneState(include_rng=False).serialize()))


def _read(game: str) -> list[int]:
    """Returns the RAM indices of the bytes that a game's rules read."""
    rules = RULES[game]
    tests = [test.address for end in rules.ends for test in end]
    return sorted({address & 127 for address in [*(term.address for term in (*rules.score, *rules.lives)), *tests]})


def play(referees: Referees, rng: np.random.Generator, frames: int, poked: bool) -> int:
    """Plays at random and returns the number of ended episodes. poked: a byte changes about every 30th frame."""
    ended, left, read = 0, 0, _read(referees.game)
    for _ in range(frames):
        if left == 0:
            action, left = referees.actions[rng.integers(len(referees.actions))], int(rng.integers(1, 24))
        left -= 1
        if poked and rng.integers(30) == 0:
            ram = referees.ram.copy()
            ram[rng.choice(read) if read and rng.integers(2) else rng.integers(128)] = rng.integers(256)
            referees.poke(ram)
        referees.step(action)
        if referees.over:
            ended += 1
            referees.restart()
    return ended


def stand_still(referees: Referees, rng: np.random.Generator, pokes: int) -> int:
    """Plays frames in which only the memory changes; returns how many ended a game.

    The console stands still afterwards, too. This cannot be undone.
    """
    ended, read = 0, np.array(_read(referees.game) or [0])
    values = {test.address & 127: test.value for end in RULES[referees.game].ends for test in end}
    at = next(at for at in range(124, -1, -4) if not set(range(at, at + 4)) & set(read))
    referees.restart()
    referees.stand_still(at)
    first, noop = referees.ram.copy(), referees.actions[0]
    ram = first.copy()
    for _ in range(pokes):
        match rng.integers(8):
            case 0:
                ram[:] = first
            case 1:
                ram[:] = rng.integers(256, size=128)
            case 2:
                ram[read] = rng.integers(10, size=len(read)) * 16 + rng.integers(10, size=len(read))
            case _:
                for index in rng.choice(read, rng.integers(1, 4)):
                    likely = (0, 255, int(ram[index]) + 1, int(ram[index]) - 1, rng.integers(256), values.get(index, 1))
                    ram[index] = likely[rng.integers(len(likely))] & 255
                ram[rng.integers(128)] = rng.integers(256)
        ram[at:at + 4] = _LOOP
        referees.poke(ram)
        referees.step(noop)
        if referees.over:
            ended += 1
            referees.restart()
            ram[:] = first
    return ended
