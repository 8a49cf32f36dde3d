"""ale-py's emulators: loaded, preloaded for forked processes, and several that play together."""

from __future__ import annotations

from collections.abc import Callable

import ale_py
import numpy as np
from ale_py import roms
from numpy.typing import NDArray

from ga3c.envs.base import State
from ga3c.envs.frames import RESIZED_AT_ONCE, FrameResizer
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import EnvSettings

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)

_NOOP = ale_py.Action.NOOP.value
_FIRE = ale_py.Action.FIRE.value
_preloaded: dict[str, list[ale_py.ALEInterface]] = {}  # by ROM


# ------------------------------------------------------------------------------------------------ emulators

def preload_emulators(rom: str, n: int) -> None:
    """Loads `n` emulators for the processes forked from this one. Raises ConfigError if there is no ROM.

    An emulator takes 70 ms to load, so an agent with 16 emulators would otherwise need a second.
    """
    _preloaded[rom] = [_load(rom) for _ in range(n)]


def emulators(rom: str, n: int) -> list[ale_py.ALEInterface]:
    """Returns `n` emulators, preloaded ones first, each only once. Raises ConfigError if there is no ROM."""
    preloaded = _preloaded.get(rom, [])
    _preloaded[rom] = preloaded[n:]
    return preloaded[:n] + [_load(rom) for _ in range(n - len(preloaded))]


def _load(rom: str) -> ale_py.ALEInterface:
    path = roms.get_rom_path(rom)
    if path is None:
        raise ConfigError(f"game: {rom!r} has no ROM here; `pip install --force-reinstall ale-py` brings it")
    emulator = ale_py.ALEInterface()
    emulator.setInt("random_seed", 0)  # nothing is drawn from it: `AtariEnvironment` draws all that is random
    emulator.setFloat("repeat_action_probability", 0.0)
    emulator.loadROM(path)
    return emulator


def choose(emulators: list[ale_py.ALEInterface], settings: EnvSettings, name: str) -> None:
    """Sets mode and difficulty if the settings give them. They take effect when a game begins.

    Raises ConfigError if the game has no such mode or difficulty.
    """
    for setting, value, offered, change in (
            ("mode", settings.mode, ale_py.ALEInterface.getAvailableModes, ale_py.ALEInterface.setMode),
            ("difficulty", settings.difficulty, ale_py.ALEInterface.getAvailableDifficulties,
             ale_py.ALEInterface.setDifficulty)):
        if value is None:
            continue
        allowed = sorted(offered(emulators[0]))
        if value not in allowed:
            raise ConfigError(f"{setting}: {value} is not allowed: {name} has {', '.join(map(str, allowed))}")
        for emulator in emulators:
            change(emulator, value)


def _restore_emulator(emulator: ale_py.ALEInterface, serialized: bytes) -> None:
    """Makes `emulator` continue from the serialised state of another one of the same ROM.

    Raises ValueError if the state is damaged. ale-py up to 0.12.1 does not save whether the last emulated frame was
    complete. A frame of another length may then follow, as in Qbert and Tetris right after a game's start. So the
    emulator first plays up to 10 frames of a new game. In Yars' Revenge the first frame may show a sprite elsewhere.
    """
    try:
        state = ale_py.ALEState(serialized)
        emulator.reset_game()
        for _ in range(min(state.getEpisodeFrameNumber(), 10)):
            emulator.act(_NOOP)
        emulator.restoreState(state)
    except (SystemError, RuntimeError, ValueError):  # ale-py's exceptions of a damaged state cannot be translated
        restored = False
    else:
        # The cartridge is not compared: reading its memory may change it, as in Miniature Golf.
        restored = _serialized(emulator).partition(b"Cartridge")[0] == serialized.partition(b"Cartridge")[0]
    if not restored:
        raise ValueError("the state of an emulator is damaged")


def _variant(state: ale_py.ALEState) -> str:
    return f"mode {state.getCurrentMode()}, difficulty {state.getDifficulty()}"


def _serialized(emulator: ale_py.ALEInterface) -> bytes:
    return bytes(emulator.cloneState(include_rng=True).serialize())


# ------------------------------------------------------------------------------------------------ playing together

class AleConsoles:
    """ale-py's `emulators` of one game as `atari.Consoles`. They play one after the other in the caller's thread."""

    def __init__(self, emulators: list[ale_py.ALEInterface], fires: bool) -> None:
        self._emulators = emulators
        self._fires = fires
        self._new = emulators[0].cloneState(include_rng=True)
        height, width = emulators[0].getScreenDims()
        self._last_but_one = np.zeros((height, width), np.uint8)
        self._resizer = FrameResizer(height, width)
        numbers = range(len(emulators))
        self._at_once = [numbers[first:first + RESIZED_AT_ONCE] for first in numbers[::RESIZED_AT_ONCE]]
        self.recorded: list[NDArray[np.uint8]] = []

    @property
    def over(self) -> NDArray[np.bool_]:
        return np.array([emulator.game_over() for emulator in self._emulators])

    @property
    def lives(self) -> NDArray[np.int32]:
        return np.array([emulator.lives() for emulator in self._emulators], np.int32)

    @property
    def last_frame(self) -> NDArray[np.uint8]:
        frame: NDArray[np.uint8] = self._emulators[0].getScreenRGB()
        return frame

    def renew(self) -> None:
        for emulator in self._emulators:
            emulator.restoreState(self._new)  # after a mere reset, a console remembers earlier episodes

    def begin(self, number: int, no_ops: int, into: NDArray[np.uint8]) -> int:
        emulator = self._emulators[number]
        emulator.reset_game()
        opening: list[int] = [_NOOP] * no_ops
        if self._fires:
            opening[:1] = [_FIRE]
        for action in opening:
            emulator.act(action)
            if emulator.game_over():
                emulator.reset_game()
        emulator.getScreenGrayscale(self._resizer.screens[0])
        self._resizer.resize([into])
        return opening[-1] if opening else _NOOP

    def play(self, actions: NDArray[np.uint8], frames: NDArray[np.int64], stacks: NDArray[np.uint8], newest: int,
             record: bool = False) -> NDArray[np.int32]:
        self.recorded = []
        rewards = []
        played = [row[:n] for row, n in zip(actions.tolist(), frames.tolist(), strict=True)]
        for numbers in self._at_once:
            for number in numbers:
                act = self._act_and_record if record and number == 0 else self._emulators[number].act
                rewards.append(self._play(number, act, played[number]))
            self._resizer.resize([stacks[number, newest] for number in numbers])
        return np.array(rewards, np.int32)

    def _play(self, number: int, act: Callable[[int], int], actions: list[int]) -> int:
        """Plays the frames of one agent step and returns their reward. An emulator stops when its game is over.

        Writes the brighter of the last two frames, pixel by pixel, to the environment's screen of the resizer.
        """
        emulator = self._emulators[number]
        last = self._resizer.screens[number % RESIZED_AT_ONCE]
        reward = 0
        if len(actions) > 1:
            reward = sum(map(act, actions[:-1]))
            emulator.getScreenGrayscale(self._last_but_one)
        reward += act(actions[-1])
        emulator.getScreenGrayscale(last)
        if len(actions) > 1:
            np.maximum(last, self._last_but_one, out=last)
        return int(reward)

    def _act_and_record(self, action: int) -> int:
        emulator = self._emulators[0]
        if emulator.game_over():
            return 0
        reward = int(emulator.act(action))
        self.recorded.append(emulator.getScreenRGB())
        return reward

    def state(self) -> State:
        states = [_serialized(emulator) for emulator in self._emulators]
        return {"emulators": np.frombuffer(b"".join(states), np.uint8),
                "emulator_bytes": np.array([len(state) for state in states], np.int64)}

    def restore(self, state: State) -> None:
        ends = np.cumsum(state["emulator_bytes"])
        if ends[-1] != len(state["emulators"]):
            raise ValueError("an emulator's state is cut short")
        for emulator, serialized in zip(self._emulators, np.split(state["emulators"], ends[:-1]), strict=True):
            _restore_emulator(emulator, serialized.tobytes())
            if _variant(emulator.cloneState()) != _variant(self._new):
                raise ValueError(f"the saved state is of {_variant(emulator.cloneState())}, not {_variant(self._new)}")

    def close(self) -> None:
        self._emulators = []
