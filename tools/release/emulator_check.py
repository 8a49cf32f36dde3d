"""Plays our emulator beside ale-py and compares them after every frame.

    python tools/release/emulator_check.py                              all games with rules, 20,000 frames, three seeds
    python tools/release/emulator_check.py --frames 500 --seeds 1 pong  one game, quickly
    python tools/release/emulator_check.py --write                      and writes the list of games found exact

Compared are RAM, reward, lives, game over and every pixel, and every `--registers` frames the 6507, timer, TIA and
cartridge. Actions are random and held for four frames; an episode's end begins another. A difference prints the game,
seed and frame, what differs, and the program counter at the frame's begin. Exit code 1 if anything differs.
A game of 20,000 frames takes about 4 s a seed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import ale_py
import numpy as np
from ale_py import roms
from numpy.typing import NDArray

from ga3c.envs.emulator.console import new_log, play_frame
from ga3c.envs.emulator.controls import press
from ga3c.envs.emulator.dump import read_dump
from ga3c.envs.emulator.games import GAMES
from ga3c.envs.emulator.judge import begin, judge
from ga3c.envs.emulator.machine import cartridge, machine_from

PROVEN = Path(__file__).parents[2] / "ga3c" / "envs" / "emulator" / "proven.txt"
_HELD = 4  # frames
# Registers of the TIA whose other bits do nothing, so that ale-py does not keep them.
_BITS = np.full(64, 0xFF, np.uint8)
_BITS[[0, 0x1D, 0x1E, 0x1F, 0x28, 0x29]] = 2
_BITS[[0x0B, 0x0C]] = 8
_BITS[6:10], _BITS[0x0D], _BITS[0x20:0x25], _BITS[0x25:0x28] = 0xFE, 0xF0, 0xF0, 1
_BITS[[2, 3, *range(0x10, 0x1B), *range(0x2A, 64)]] = 0
# Fields of a machine that ale-py's state has too, in the order in which differences are told.
FIELDS = ("ram", "a", "x", "y", "sp", "pc", "n", "v", "d", "i", "z", "c", "cycles", "timer", "shift", "timer_set",
          "timer_expired", "timer_read", "frame_start", "vsync_finish", "hmove_cycle", "drawn", "tia", "dgrp0",
          "dgrp1", "denabl", "collisions", "positions", "comb", "bank", "slices")


class Pair:
    """One game in both emulators. `image` replaces the game's cartridge by another file."""

    def __init__(self, game: str, seed: int, image: Path | None = None) -> None:
        path = image or roms.get_rom_path(game)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale, self.game, self.frame = ale_py.ALEInterface(), game, 0
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(path)
        self.actions = list(self.ale.getLegalActionSet())
        self._number, self._log = GAMES[game], new_log()
        self.take_over()
        self._rom = cartridge(Path(path).read_bytes(), int(self.machine["kind"][0]))

    def take_over(self) -> None:
        """Has ours go on from where ale-py stands."""
        state = self.ale.cloneState(include_rng=True).serialize()
        self.machine = machine_from(state, self.game)
        begin(self.machine, self.game, read_dump(state))
        self._screens = [self.ale.getScreen() for _ in range(2)]  # ale-py draws into two in turn

    def play(self, action: ale_py.Action, registers: bool = True) -> list[str]:
        """Plays a frame in both. Returns what differs then, one line each."""
        if self.ale.game_over():
            self.ale.reset_game()
            self.take_over()
        self.frame += 1
        began = int(self.machine["pc"][0])
        screen = self._screens[self.frame & 1]
        reward = self.ale.act(action)
        record = self.machine[0]
        press(record, self._number, action.value)
        play_frame(record, self._rom, self._log, screen, True)
        found = [*self._answers(reward, judge(record, self._number)), *self._pixels(screen)]
        if registers or found or not np.array_equal(self.ale.getRAM(), self.machine["ram"][0]):
            found = self._fields() + found
        return [f"{line} (from PC {began:04x})" for line in found]

    def _answers(self, reward: float, ours: int) -> list[str]:
        pairs = (("reward", reward, ours), ("lives", self.ale.lives(), int(self.machine["lives"][0])),
                 ("over", self.ale.game_over(), bool(self.machine["over"][0])))
        return [f"{name}: ale-py {theirs}, ours {mine}" for name, theirs, mine in pairs if theirs != mine]

    def _pixels(self, screen: NDArray[np.uint8]) -> list[str]:
        theirs = self.ale.getScreen()
        if np.array_equal(theirs, screen):
            return []
        ys, xs = np.nonzero(theirs != screen)
        y, x = int(ys[0]), int(xs[0])
        return [f"screen: {len(ys)} pixels, first line {y} column {x}: ale-py {theirs[y, x]:02x}, "
                f"ours {screen[y, x]:02x}"]

    def _fields(self) -> list[str]:
        theirs = read_dump(self.ale.cloneState().serialize()).machine()
        found = []
        for name in FIELDS:
            expected, mine = np.atleast_1d(theirs[name]), np.atleast_1d(self.machine[name][0])
            if name == "tia":
                expected, mine = expected & _BITS, mine & _BITS
            elif name == "z":
                expected, mine = expected != 0, mine != 0
            found += [f"{name}{f'[{place:02x}]' if len(expected) > 1 else ''}: ale-py {expected[place]:x}, "
                      f"ours {mine[place]:x}" for place in np.nonzero(expected != mine)[0]]
        return found


def check(game: str, seed: int, frames: int, registers: int) -> str:
    """The first difference of a game, or an empty text."""
    pair, random = Pair(game, seed), np.random.default_rng(seed)
    action = pair.actions[0]
    for frame in range(frames):
        if frame % _HELD == 0:
            action = pair.actions[random.integers(len(pair.actions))]
        if found := pair.play(action, frame % registers == 0):
            return f"frame {frame}: " + "; ".join(found[:6])
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", default=list(GAMES), help="names of ale-py's ROMs")
    parser.add_argument("--frames", type=int, default=20_000, help="of each seed")
    parser.add_argument("--seeds", type=int, default=3, help="how many, from 1 on")
    parser.add_argument("--registers", type=int, default=50, help="compare all registers every so many frames")
    parser.add_argument("--write", action="store_true", help=f"write the games found exact to {PROVEN.name}")
    options = parser.parse_args()
    exact = []
    for game in options.games:
        begun, differences = time.perf_counter(), []
        for seed in range(1, options.seeds + 1):
            if difference := check(game, seed, options.frames, options.registers):
                differences.append(f"seed {seed}, {difference}")
        exact += [] if differences else [game]
        print(f"{game}: {'; '.join(differences) or 'exact'} ({time.perf_counter() - begun:.0f} s)", flush=True)
    print(f"{len(exact)} of {len(options.games)} exact over {options.frames:,} frames, {options.seeds} seeds")
    if options.write:
        command = f"python tools/release/emulator_check.py --frames {options.frames} --seeds {options.seeds} --write"
        PROVEN.write_text(f"# Games whose every frame was ale-py's, as found by: {command}\n" + "".join(
            f"{game}\n" for game in sorted(exact)))
    return int(len(exact) < len(options.games))


if __name__ == "__main__":
    sys.exit(main())
