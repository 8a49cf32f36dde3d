"""Plays our emulator beside ale-py and compares them after every frame.

    python tools/release/emulator_check.py                              all games with rules, 20,000 frames, three seeds
    python tools/release/emulator_check.py --frames 500 --seeds 1 pong  one game, quickly
    python tools/release/emulator_check.py --modes --frames 500 pong    in each mode and difficulty that ale-py has
    python tools/release/emulator_check.py --write                      and writes the games found exact

Compared are RAM, reward, lives, game over and every pixel, and every `--registers` frames the 6507, timer, TIA,
cartridge and colours. Actions are random and held for four frames; an episode's end begins another. A
difference prints the game, mode and difficulty if they are set, seed and frame, what differs, and the program counter
at the frame's begin. Exit code 1 if anything differs. A game of 20,000 frames takes about 4 s a seed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
from ga3c.envs.emulator.palette import GREY, RGB
from ga3c.settings.flags import number

PROVEN = Path(__file__).parents[2] / "ga3c" / "envs" / "emulator" / "proven.txt"
_HELD = 4  # frames
# Used bits of the TIA's registers. The other bits have no effect, so ale-py does not keep them.
_BITS = np.full(64, 0xFF, np.uint8)
_BITS[[0, 0x1D, 0x1E, 0x1F, 0x28, 0x29]] = 2
_BITS[[0x0B, 0x0C]] = 8
_BITS[6:10], _BITS[0x0D], _BITS[0x20:0x25], _BITS[0x25:0x28] = 0xFE, 0xF0, 0xF0, 1
_BITS[[2, 3, *range(0x10, 0x1B), *range(0x2A, 64)]] = 0
# Fields of a machine that ale-py's state also has, in the order in which differences are printed.
FIELDS = ("ram", "a", "x", "y", "sp", "pc", "n", "v", "d", "i", "z", "c", "cycles", "timer", "shift", "timer_set",
          "timer_expired", "timer_read", "frame_start", "vsync_finish", "hmove_cycle", "drawn", "tia", "dgrp0",
          "dgrp1", "denabl", "collisions", "positions", "comb", "bank", "slices")


class Variant(NamedTuple):
    """A mode and a difficulty of a game; None: ale-py's default."""

    mode: int | None = None
    difficulty: int | None = None

    def __str__(self) -> str:
        return "" if self == (None, None) else f"mode {self.mode}, difficulty {self.difficulty}, "


DEFAULT = Variant()


class Pair:
    """One game in both emulators. image: a file that replaces the game's cartridge."""

    def __init__(self, game: str, seed: int, image: Path | None = None, variant: Variant = DEFAULT) -> None:
        path = image or roms.get_rom_path(game)
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale, self.game, self.frame = ale_py.ALEInterface(), game, 0
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(path)
        if variant.mode is not None:
            self.ale.setMode(variant.mode)
        if variant.difficulty is not None:
            self.ale.setDifficulty(variant.difficulty)
        if variant != DEFAULT:
            self.ale.reset_game()
        self.actions = list(self.ale.getLegalActionSet())
        self._number, self._log = GAMES[game], new_log()
        self.take_over()
        self._rom = cartridge(Path(path).read_bytes(), int(self.machine["kind"][0]))

    def take_over(self) -> None:
        """Copies ale-py's state to our emulator."""
        state = self.ale.cloneState(include_rng=True).serialize()
        self.machine = machine_from(state, self.game)
        begin(self.machine, self.game, read_dump(state))
        self._screens = [self.ale.getScreen() for _ in range(2)]  # ale-py draws into two in turn

    def play(self, action: ale_py.Action, registers: bool = True) -> list[str]:
        """Plays one frame in both emulators. Returns the differences, one line each."""
        if self.ale.game_over():
            self.ale.reset_game()
            self.take_over()
        self.frame += 1
        began = int(self.machine["pc"][0])
        screen = self._screens[self.frame & 1]
        reward = self.ale.act(action)
        record = self.machine[0]
        if not record["over"]:  # in some modes a game is over at its start, and ale-py plays no frame
            press(record, self._number, action.value)
            play_frame(record, self._rom, self._log, screen, True)
        found = [*self._answers(reward, judge(record, self._number)), *self._pixels(screen)]
        if registers:
            found += self._colours(screen)
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

    def _colours(self, screen: NDArray[np.uint8]) -> list[str]:
        found = []
        for name, theirs, mine in (("grey", self.ale.getScreenGrayscale(), GREY[screen]),
                                   ("colours", self.ale.getScreenRGB(), RGB[screen])):
            if not np.array_equal(theirs, mine):
                y, x = (int(places[0]) for places in np.nonzero(theirs != mine)[:2])
                found.append(f"{name}: of {screen[y, x]:02x} ale-py {theirs[y, x]}, ours {mine[y, x]}")
        return found

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


def random_actions(pair: Pair, seed: int) -> Iterator[ale_py.Action]:
    """Yields random actions of all 18, each held for four frames."""
    random = np.random.default_rng(seed)
    while True:
        yield from itertools.repeat(pair.actions[random.integers(len(pair.actions))], _HELD)


def check(game: str, seed: int, frames: int, registers: int, variant: Variant = DEFAULT) -> str:
    """Returns the first difference of a game as text; "" if there is none."""
    pair = Pair(game, seed, variant=variant)
    for frame, action in enumerate(itertools.islice(random_actions(pair, seed), frames)):
        if found := pair.play(action, frame % registers == 0):
            return f"{variant}seed {seed}, frame {frame}: " + "; ".join(found[:6])
    return ""


def variants(game: str) -> list[Variant]:
    """Returns all modes and difficulties that ale-py has for a game."""
    ale = Pair(game, 0).ale
    return [Variant(*each) for each in itertools.product(
        sorted(ale.getAvailableModes()), sorted(ale.getAvailableDifficulties()))]


def proven_exact(exact: list[str], checked: list[str], command: str) -> str:
    """Returns the text of proven.txt: the games `exact`, and earlier results of `command` for games not `checked`."""
    title, *before = PROVEN.read_text().splitlines() if PROVEN.exists() else [""]
    wanted = f"# Games whose every frame was ale-py's, as found by: {command}"
    kept = set(before) - set(checked) if title == wanted else set()
    return "".join(f"{line}\n" for line in [wanted, *sorted(kept | set(exact))])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", help="names of ale-py's ROMs")
    parser.add_argument("--frames", type=number(int, 1, 10**9), default=20_000, help="of each seed")
    parser.add_argument("--seeds", type=number(int, 1, 10**6), default=3, help="how many, from 1 on")
    parser.add_argument("--registers", type=number(int, 1, 10**9), default=50,
                        help="compare all registers every so many frames")
    parser.add_argument("--modes", action="store_true", help="in each mode and difficulty that ale-py has")
    parser.add_argument("--write", action="store_true",
                        help=f"write the games found exact to {PROVEN.name}, where those not checked stay")
    options = parser.parse_args()
    if options.write and options.modes:
        parser.error("--write is of random actions in the default mode, as `auto` takes the games that it lists")
    games = options.games or list(GAMES)
    if unknown := sorted(set(games) - set(GAMES)):
        parser.error(f"{unknown[0]!r} has no rules in games.py")
    exact = []
    for game in games:
        begun, differences = time.perf_counter(), []
        played_in = variants(game) if options.modes else [DEFAULT]
        for variant, seed in itertools.product(played_in, range(1, options.seeds + 1)):
            if difference := check(game, seed, options.frames, options.registers, variant):
                differences.append(difference)
        exact += [] if differences else [game]
        found = "; ".join(differences) or "exact" + (f" in {len(played_in)} variants" if options.modes else "")
        print(f"{game}: {found} ({time.perf_counter() - begun:.0f} s)", flush=True)
    print(f"{len(exact)} of {len(games)} exact over {options.frames:,} frames, {options.seeds} seeds")
    if options.write:
        command = f"python tools/release/emulator_check.py --frames {options.frames} --seeds {options.seeds} --write"
        before = PROVEN.read_text().splitlines()[1:] if PROVEN.exists() else []
        written = proven_exact(exact, games, command)
        PROVEN.write_text(written)
        if dropped := set(before) - set(games) - set(written.splitlines()):
            print(f"{len(dropped)} games that another command had found are not in {PROVEN.name} any more")
    return int(len(exact) < len(games))


if __name__ == "__main__":
    sys.exit(main())
