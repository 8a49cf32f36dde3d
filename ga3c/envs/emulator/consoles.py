"""Consoles of one game that play together. One call plays a step of all of them, in several threads if wanted.

Compiled code plays the frames and writes the observations. It does not hold Python's global lock meanwhile.
"""

from __future__ import annotations

import itertools
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ale_py import roms
from numpy.typing import NDArray

from ga3c.envs.base import State
from ga3c.envs.emulator.console import new_log, play_frame
from ga3c.envs.emulator.controls import press
from ga3c.envs.emulator.games import GAMES
from ga3c.envs.emulator.jit import kernel
from ga3c.envs.emulator.judge import judge
from ga3c.envs.emulator.machine import MACHINE, ROM_SIZE, cartridge
from ga3c.envs.emulator.observe import Area, area, has_area, observe, resized, scratch
from ga3c.envs.emulator.palette import GREY, RGB
from ga3c.envs.emulator.starts import Starts
from ga3c.envs.frames import FRAME_SIZE

_OF_A_GAME = ("first_line", "lines", "most_cycles", "has_comb", "kind")  # the same in every frame
_LAYOUT = np.array(zlib.crc32(f"{MACHINE} screens".encode()), np.int64)  # a state of another version is refused
_NO_AREA = area(210)  # a placeholder where OpenCV resizes


class _Thread(NamedTuple):
    """The data of one thread: its consoles (`first` to before `last`), its ROM and its scratch memory."""

    first: int
    last: int
    rom: NDArray[np.uint8]
    log: NDArray[np.int64]
    lines: NDArray[np.float32]
    spare: NDArray[np.int64]
    before: NDArray[np.void]


class OwnConsoles:
    """`n` consoles of the game `rom` in our own emulator. They implement `envs.atari.Consoles`.

    `emulator` is an ALEInterface that has loaded the ROM. Games begin as in `emulator`, with FIRE if `fires`. Screens
    are resized to `size` (height, width), grey or RGB. If `brighter`, each pixel is the brighter one of two frames. If
    `lost_life_ends`, a step ends with the frame in which a life was lost. `over` (n,) bool and `lives` (n,) int32 are
    those after the last `begin` or `play`.
    """

    def __init__(self, emulator: Any, rom: str, n: int, fires: bool, threads: int = 1,
                 size: tuple[int, int] = FRAME_SIZE, grey: bool = True, brighter: bool = True,
                 lost_life_ends: bool = False) -> None:
        self._game, self._brighter, self._grey, self._life_ends = GAMES[rom], brighter, grey, lost_life_ends
        self._starts = Starts(emulator, rom, fires)
        start = self._starts.start(0)
        height, image = len(start.screen), Path(roms.get_rom_path(rom)).read_bytes()
        self._fast = grey and has_area(height, size)
        self._area: Area = area(height, size) if self._fast else _NO_AREA
        self._machines = np.repeat(start.machine, n)
        self._screens = np.zeros((2 * (n + threads), height, 160), np.uint8)
        self._slots = np.arange(2 * n).reshape(n, 2)  # the screens of the last frame but one and of the last
        ends = np.linspace(0, n, threads + 1).astype(int).tolist()
        self._threads = [
            _Thread(first, last, cartridge(image, int(start.machine["kind"][0])), new_log(), scratch(size),
                    2 * (n + number) + np.arange(2), np.zeros(1, MACHINE))
            for number, (first, last) in enumerate(itertools.pairwise(ends))]
        self._pool = ThreadPoolExecutor(threads, "console") if threads > 1 else None
        self._rewards = np.zeros(n, np.int32)
        self.opening = np.zeros(n, np.int32)  # frames of each game's opening
        self.frames_before = self._starts.frames_before
        self.played = np.zeros(n, np.int32)  # frames of the last `play`: fewer where the game ended
        self._no_record = np.zeros((0, height, 160), np.uint8)
        self._shown: dict[int, NDArray[np.uint8]] = {}  # by number of no-ops: the first frame, resized

    @property
    def over(self) -> NDArray[np.bool_]:
        over: NDArray[np.bool_] = self._machines["over"] != 0
        return over

    @property
    def lives(self) -> NDArray[np.int32]:
        lives: NDArray[np.int32] = self._machines["lives"]
        return lives

    def renew(self) -> None:
        """Does nothing: every game begins in a new console."""

    def begin(self, number: int, no_ops: int, into: NDArray[np.uint8]) -> int:
        """Begins a game with `no_ops` no-ops. Writes its first frame into `into`; returns the last action played."""
        start = self._starts.start(no_ops)
        self._machines[number] = start.machine[0]
        self._screens[self._slots[number]] = start.screen
        if no_ops not in self._shown:
            self._shown[no_ops] = np.zeros_like(into)
            self._resize(start.screen, start.screen, self._shown[no_ops])
        into[:] = self._shown[no_ops]
        self.opening[number] = start.frames
        return start.last_action

    def _resize(self, one: NDArray[np.uint8], other: NDArray[np.uint8], into: NDArray[np.uint8]) -> None:
        if self._fast:
            observe(one, other, self._area, self._threads[0].lines, into)
        else:
            resized(one, other, self._grey, into)

    def play(self, actions: NDArray[np.uint8], frames: NDArray[np.int64], stacks: NDArray[np.uint8], newest: int,
             record: bool = False, shown_after: NDArray[np.int64] | None = None,
             visible: NDArray[np.int64] | None = None) -> NDArray[np.int32]:
        """Plays `frames` (n,) frames with `actions` (n, most), ale-py's numbers. Games that are over do not go on.

        `stacks` is (n, k, height, width[, 3]). `stacks[:, newest]` gets the observation, made of frame number
        `shown_after` (n,) and the frame before it. That is `frames` or more, by default the last. The frame in which
        the game ended is not shown, nor are those from index `visible` (n,) on. Where `frames` is 0 nothing changes. If
        `record`, `recorded` has every frame of the first console. Returns rewards (n,) int32; the next call overwrites
        them.
        """
        shown_after = frames if shown_after is None else shown_after
        visible = frames if visible is None else visible
        self._recorded = np.zeros((int(frames[0]), *self._no_record.shape[1:]), np.uint8) if record else self._no_record

        def run(thread: _Thread) -> None:
            _play(thread.first, thread.last, self._machines, thread.before, self._game, thread.rom, thread.log,
                  self._screens, self._slots, thread.spare, actions, frames, shown_after, visible, self._rewards,
                  self.played, self._recorded, self._brighter, self._life_ends)
            if self._fast:
                _show(thread.first, thread.last, self._screens, self._slots, frames, shown_after, self._brighter,
                      self._area, thread.lines, stacks, newest)

        if self._pool:
            list(self._pool.map(run, self._threads))
        else:
            run(self._threads[0])
        if not self._fast:
            for number in np.flatnonzero(frames).tolist():
                earlier, last = self._slots[number]
                two = self._brighter and shown_after[number] > 1
                resized(self._screens[earlier if two else last], self._screens[last], self._grey,
                        stacks[number, newest])
        return self._rewards

    @property
    def recorded(self) -> list[NDArray[np.uint8]]:
        """Every frame of the first console in the last `play` with `record`: RGB (lines, 160, 3) uint8."""
        return list(RGB[self._recorded[:self.played[0]]])

    @property
    def last_frame(self) -> NDArray[np.uint8]:
        """The last frame of the first console, RGB (lines, 160, 3) uint8."""
        shown: NDArray[np.uint8] = RGB[self._screens[self._slots[0, 1]]]
        return shown

    def state(self) -> State:
        """Returns the state of the consoles."""
        return {"machines": self._machines.view(np.uint8).reshape(len(self._machines), -1).copy(), "layout": _LAYOUT,
                "screens": self._screens[self._slots], "variant": self._starts.variant}

    def restore(self, state: State) -> None:
        """Continues from `state`. Raises ValueError if it is of another version, mode or difficulty, or damaged."""
        if state["layout"] != _LAYOUT:
            raise ValueError("the saved state is of another version of the emulator")
        if (state["variant"] != self._starts.variant).any():
            raise ValueError(
                f"the saved state is of mode and difficulty {state['variant']}, not {self._starts.variant}")
        saved, start = state["machines"].reshape(-1).view(MACHINE), self._starts.start(0).machine
        for name in _OF_A_GAME:  # compiled code trusts them without a check
            if (saved[name] != start[name]).any():
                raise ValueError(f"it is damaged: {name} is {saved[name][0]}, not {start[name][0]}")
        self._machines[:], self._screens[self._slots] = saved, state["screens"]

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown()


@kernel
def _play(first, last, machines, before, game, rom, log, screens, slots, spare, actions, frames, shown_after, visible,
          rewards, played, record, brighter, lost_life_ends):
    """Plays the consoles from `first` to before `last`. `slots` and `spare` are indices of `screens`.

    Only the frames that are seen are drawn. Below a short frame there is the frame before the last, though, which was
    not. So after a short frame the step is played again from `before`, and all of its frames are drawn in turn into the
    two spare screens, as ale-py does.

    ale-py stores the brighter of a step's two frames in place of the second. So if a step ends before its second frame,
    the observation combines three frames: the first, and both of the step before.
    """
    for number in range(first, last):
        machine = machines[number]
        before[0] = machine
        draw_all = short = False
        while True:
            reward = done = 0
            lives, ended, kept = machine.lives, machine.over != 0, 0
            for frame in range(frames[number]):
                if ended:
                    break
                done += 1
                press(machine, game, actions[number, frame])
                slot = frame - shown_after[number] + 2
                recorded = number == 0 and frame < len(record)
                seen = slot >= 0 and frame < visible[number]
                fresh = spare[slot & 1]
                play_frame(machine, rom, log, screens[fresh], seen or recorded or draw_all)
                reward += judge(machine, game)
                ended = machine.over != 0 or (lost_life_ends and machine.lives < lives)
                short = short or ((seen or recorded) and machine.rows < machine.lines)
                if recorded:
                    for row in range(record.shape[1]):
                        for x in range(record.shape[2]):
                            record[frame, row, x] = screens[fresh, row, x]
                if seen and not ended:
                    kept |= 1 << slot
            if draw_all or not short:
                break
            machines[number] = before[0]
            draw_all, oldest = True, shown_after[number] & 1
            _copy(screens[slots[number, 0]], screens[spare[oldest]])
            _copy(screens[slots[number, 1]], screens[spare[1 - oldest]])
        if shown_after[number] == 1 and kept:
            slots[number, 0], slots[number, 1] = slots[number, 1], slots[number, 0]
        for slot in range(2):
            if kept >> slot & 1:
                slots[number, slot], spare[slot] = spare[slot], slots[number, slot]
        if kept == 1 and brighter:
            _brighten(screens[slots[number, 1]], screens[spare[0]])
        rewards[number], played[number] = reward, done


@kernel
def _copy(screen, into):
    for row in range(screen.shape[0]):
        for x in range(screen.shape[1]):
            into[row, x] = screen[row, x]


@kernel
def _brighten(screen, other):
    """Keeps in `screen` the brighter pixels of two screens. Pixels are compared in grey."""
    for row in range(screen.shape[0]):
        for x in range(screen.shape[1]):
            if GREY[other[row, x]] > GREY[screen[row, x]]:
                screen[row, x] = other[row, x]


@kernel
def _show(begin, end, screens, slots, frames, shown_after, brighter, area, lines, stacks, newest):
    for number in range(begin, end):
        if frames[number] > 0:
            last = screens[slots[number, 1]]
            before = screens[slots[number, 0 if brighter and shown_after[number] > 1 else 1]]
            observe(before, last, area, lines, stacks[number, newest])


def compile_consoles() -> None:
    """Compiles the kernels of this module, or loads them from disk, by calls that play no console."""
    machines, before, screens = np.zeros(1, MACHINE), np.zeros(1, MACHINE), np.zeros((3, 210, 160), np.uint8)
    slots, spare, frames = np.zeros((1, 2), np.int64), np.zeros(2, np.int64), np.zeros(1, np.int64)
    numbers, stacks = np.zeros(1, np.int32), np.zeros((1, 1, *FRAME_SIZE), np.uint8)
    _play(0, 0, machines, before, 0, np.zeros(ROM_SIZE, np.uint8), new_log(), screens, slots, spare,
          np.zeros((1, 1), np.uint8), frames, frames, frames, numbers, numbers, screens, True, False)
    _show(0, 0, screens, slots, frames, frames, True, area(210), scratch(), stacks, 0)
