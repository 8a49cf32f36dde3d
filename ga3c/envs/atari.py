"""Atari 2600 games on ale-py's emulators: preloaded emulators, `AtariEnvironment`.

This module and `atari_games` are the only ones that import ale_py.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import ale_py
import cv2
import numpy as np
from ale_py import roms
from numpy.typing import NDArray

from ga3c.envs.atari_games import AtariGame, named
from ga3c.envs.base import EnvSpec, State, Transition, check_form
from ga3c.envs.frames import FRAME_SIZE, RESIZED_AT_ONCE, FrameResizer
from ga3c.envs.random_streams import packed, unpacked
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import EnvSettings

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)

_NOOP = ale_py.Action.NOOP
_preloaded: dict[str, list[ale_py.ALEInterface]] = {}  # by ROM


# ------------------------------------------------------------------------------------------------ emulators

def preload(game: str, n_envs: int) -> None:
    """Loads emulators for the processes forked from this one; nothing if `game` is not Atari's.

    An emulator takes 70 ms to load, so an agent with 16 would need a second. Raises ConfigError if there is no ROM.
    """
    found = named(game)
    if found:
        _preloaded[found.rom] = [_load(found.rom) for _ in range(n_envs)]


def _emulators(rom: str, n_envs: int) -> list[ale_py.ALEInterface]:
    """Preloaded ones first; each is given out once."""
    preloaded = _preloaded.get(rom, [])
    ready, _preloaded[rom] = preloaded[:n_envs], preloaded[n_envs:]
    return ready + [_load(rom) for _ in range(n_envs - len(ready))]


def _load(rom: str) -> ale_py.ALEInterface:
    path = roms.get_rom_path(rom)
    if path is None:
        raise ConfigError(f"game: {rom!r} has no ROM here; `pip install --force-reinstall ale-py` brings it")
    emulator = ale_py.ALEInterface()
    emulator.setInt("random_seed", 0)  # nothing is drawn from it: `AtariEnvironment` draws all that is random
    emulator.setFloat("repeat_action_probability", 0.0)
    emulator.loadROM(path)
    return emulator


def _restore_emulator(emulator: ale_py.ALEInterface, serialized: bytes) -> None:
    """Has `emulator` go on from the state that another of the same ROM serialised. Raises ValueError.

    ale-py up to 0.12.1 does not save whether the last emulated frame was complete; a frame of another length may then
    follow. This is so in Qbert and Tetris, right after a game's start. So the emulator first plays a start, too.
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
        # Without the cartridge: reading its memory may change it, as in Miniature Golf.
        restored = _serialized(emulator).partition(b"Cartridge")[0] == serialized.partition(b"Cartridge")[0]
    if not restored:
        raise ValueError("the state of an emulator is damaged")


def _choose(emulators: list[ale_py.ALEInterface], settings: EnvSettings, name: str) -> None:
    """Sets mode and difficulty, where they are given. They take effect when a game begins.

    Raises ConfigError if the game has none such.
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


def _variant(state: ale_py.ALEState) -> str:
    return f"mode {state.getCurrentMode()}, difficulty {state.getDifficulty()}"


def _serialized(emulator: ale_py.ALEInterface) -> bytes:
    return bytes(emulator.cloneState(include_rng=True).serialize())


# ------------------------------------------------------------------------------------------------ the environment

class AtariEnvironment:
    """E emulators of one game, one after the other in the agent's own thread, as Mnih et al. (2015) describe it.

    An agent step plays the action for `frame_skip` frames. Some ids have their number drawn for each step. Its frame is
    the brighter of the last two, pixel by pixel, in grey, resized to 84 x 84. An observation is the last four frames,
    black before an episode's first: (84, 84, 4) uint8. Frames are kept one by one and interleaved by OpenCV where the
    observation is wanted. That takes half the time of advancing and copying whole observations.

    All that is random is drawn here: no-ops that open an episode, actions that stick (Machado et al., 2018), and frames
    of a step.

    Episodes of one length, as Boxing's often are, would keep environments that begin together at the same moment of the
    game. An update would then see that moment many times. So each environment but the first cuts one early episode
    short, at times spread over two minutes of play. The seed moves these times, so that agents differ, too.

    Raises ConfigError if there is no ROM, or if the game has no such mode or difficulty.
    """

    _STACK = 4
    _SPREAD = 1800  # agent steps

    def __init__(self, settings: EnvSettings, game: AtariGame, n_envs: int) -> None:
        self._least_frames, self._most_frames = game.frame_skip
        self._noop_max, self._sticky, self._life_loss = settings.noop_max, game.sticky_actions, settings.life_loss
        self._max_frames, self._rom = settings.max_episode_frames, game.rom
        self._emulators = _emulators(self._rom, n_envs)
        _choose(self._emulators, settings, game.name)
        emulator = self._emulators[0]
        self.actions = emulator.getLegalActionSet() if settings.full_action_space else emulator.getMinimalActionSet()
        self._fires = settings.fire_reset and ale_py.Action.FIRE in self.actions
        self.spec = EnvSpec(
            game.name, (*FRAME_SIZE, self._STACK), np.dtype(np.uint8), len(self.actions), game.frames_per_step)
        self._new = emulator.cloneState(include_rng=True)
        self._stacks = [list(np.zeros((self._STACK, *FRAME_SIZE), np.uint8)) for _ in range(n_envs)]  # oldest first
        height, width = emulator.getScreenDims()
        self._last_but_one = np.zeros((height, width), np.uint8)
        self._resizer = FrameResizer(height, width)
        self._at_once = [range(first, min(n_envs, first + RESIZED_AT_ONCE))
                         for first in range(0, n_envs, RESIZED_AT_ONCE)]
        self._none = np.zeros(n_envs, np.bool_)
        self._none.flags.writeable = False  # many transitions share it
        self._frames, self._lives, self._held = [0] * n_envs, [0] * n_envs, [_NOOP] * n_envs
        self._rng = np.random.default_rng()
        self._age = 0  # agent steps since the reset
        self._cuts: dict[int, int] = {}  # age -> the environment whose episode is cut short
        self.recording: list[NDArray[np.uint8]] | None = None  # gets every frame of the first environment, RGB

    @property
    def lives(self) -> int:
        """Lives left to the first environment."""
        return int(self._emulators[0].lives())

    def reset(self, seed: int) -> None:
        self._rng, self._age = np.random.default_rng(seed), 0
        n_envs, earlier = len(self._emulators), float(self._rng.random())
        self._cuts = {1 + int(self._SPREAD * (number - earlier) / n_envs): number for number in range(1, n_envs)}
        for number, emulator in enumerate(self._emulators):
            emulator.restoreState(self._new)  # a console that is only reset remembers the episodes before
            self._begin(number)

    def _begin(self, number: int) -> None:
        emulator = self._emulators[number]
        emulator.reset_game()
        opening = [_NOOP] * int(self._rng.integers(self._noop_max + 1))
        if self._fires:
            opening[:1] = [ale_py.Action.FIRE]
        for action in opening:
            emulator.act(action)
            if emulator.game_over():
                emulator.reset_game()
        self._held[number] = opening[-1] if opening else _NOOP
        self._frames[number], self._lives[number] = 0, emulator.lives()
        if self.recording is not None and number == 0:
            self.recording.append(emulator.getScreenRGB())
        emulator.getScreenGrayscale(self._resizer.screens[0])
        for frame in self._stacks[number]:
            frame[:] = 0
        self._resize(range(number, number + 1))

    def _resize(self, numbers: range) -> None:
        """Resizes as many of the resizer's screens; each frame takes the place of its environment's oldest."""
        newest = []
        for number in numbers:
            stack = self._stacks[number]
            newest.append(stack.pop(0))
            stack.append(newest[-1])
        self._resizer.resize(newest)

    def _play(self, number: int, action: Any) -> int:
        """Plays the frames of one agent step; returns their reward.

        The brighter of the last two frames stands on the environment's screen of the resizer.
        """
        emulator, last = self._emulators[number], self._resizer.screens[number % RESIZED_AT_ONCE]
        frames = self._least_frames
        if frames < self._most_frames:
            frames = int(self._rng.integers(frames, self._most_frames + 1))
        frames = min(frames, self._max_frames - self._frames[number])
        self._frames[number] += frames
        plain = not self._sticky and self.recording is None
        act = emulator.act if plain else functools.partial(self._act, number)
        if frames == 1:
            reward = act(action)
            emulator.getScreenGrayscale(last)
            return reward
        reward = sum(map(act, itertools.repeat(action, frames - 1)))  # once a game is over the emulator plays no more
        emulator.getScreenGrayscale(self._last_but_one)
        reward += act(action)
        emulator.getScreenGrayscale(last)
        np.maximum(last, self._last_but_one, out=last)
        return reward

    def _act(self, number: int, action: Any) -> int:
        """Plays one frame, in which the action may stick or the frame be recorded; returns its reward."""
        emulator = self._emulators[number]
        if emulator.game_over():
            return 0
        if not self._sticky or self._rng.random() >= self._sticky:
            self._held[number] = action
        reward = int(emulator.act(self._held[number]))
        if self.recording is not None and number == 0:
            self.recording.append(emulator.getScreenRGB())
        return reward

    @property
    def observation(self) -> NDArray:
        """A new array (E, 84, 84, 4) uint8."""
        seen = np.empty((len(self._stacks), *self.spec.observation_shape), np.uint8)
        self.show(seen)
        return seen

    def show(self, into: NDArray) -> None:
        for stack, seen in zip(self._stacks, into, strict=True):
            cv2.merge(stack, seen)

    def step(self, action: NDArray[np.int64]) -> Transition:
        self._age += 1
        cut = self._cuts.get(self._age)
        rewards, lost, over, eventful, chosen = [], [], [], cut is not None, action.tolist()
        for numbers in self._at_once:
            for number in numbers:
                emulator = self._emulators[number]
                rewards.append(self._play(number, self.actions[chosen[number]]))
                if emulator.game_over():
                    over.append(number)
                elif self._frames[number] >= self._max_frames:
                    eventful = True
                if self._life_loss:  # with the last life the game is over, in some games a little later
                    before, self._lives[number] = self._lives[number], emulator.lives()
                    if 0 < self._lives[number] < before:
                        lost.append(number)
            self._resize(numbers)
        reward = np.array(rewards, np.float32)
        if not (over or lost or eventful):
            return Transition(reward, self._none, self._none, self._none, None)
        return self._ended(reward, over, lost, cut)

    def _ended(self, reward: NDArray[np.float32], over: list[int], lost: list[int], cut: int | None) -> Transition:
        """The transition of a step in which games were `over`, lives `lost`, time was up or an episode is `cut`."""
        terminated = np.zeros(len(reward), np.bool_)
        terminated[over] = True
        score_ended = terminated | (np.array(self._frames) >= self._max_frames)
        terminated[lost] = True
        truncated = score_ended & ~terminated
        if cut is not None and not terminated[cut]:
            truncated[cut] = True
        final = self.observation if np.count_nonzero(truncated) else None
        for number in np.flatnonzero(score_ended | truncated).tolist():
            self._begin(number)
        return Transition(reward, terminated, truncated, score_ended, final)

    def state(self) -> State:
        emulators = [_serialized(emulator) for emulator in self._emulators]
        return {
            "rom": np.frombuffer(self._rom.encode(), np.uint8),
            "emulators": np.frombuffer(b"".join(emulators), np.uint8),
            "emulator_bytes": np.array([len(each) for each in emulators], np.int64),
            "stacks": np.array(self._stacks, np.uint8),
            "frames": np.array(self._frames, np.int64), "lives": np.array(self._lives, np.int64),
            "held_actions": np.array([action.value for action in self._held], np.int64),
            "generator": packed(self._rng), "age": np.array(self._age, np.int64),
            "cuts": np.array(list(self._cuts.items()), np.int64).reshape(-1, 2)}

    def restore(self, state: State) -> None:
        check_form(state, self.state(), ("emulators", "cuts"))
        ends = np.cumsum(state["emulator_bytes"])
        if state["rom"].tobytes() != self._rom.encode() or ends[-1] != len(state["emulators"]):
            raise ValueError(f"it is not of {self._rom}")
        held = [ale_py.Action(value) for value in state["held_actions"].tolist()]
        rng = unpacked(state["generator"])
        for emulator, serialized in zip(self._emulators, np.split(state["emulators"], ends[:-1]), strict=True):
            _restore_emulator(emulator, serialized.tobytes())
            if _variant(emulator.cloneState()) != _variant(self._new):
                raise ValueError(f"it is of {_variant(emulator.cloneState())} instead of {_variant(self._new)}")
        for stack, frames in zip(self._stacks, state["stacks"], strict=True):
            for frame, saved in zip(stack, frames, strict=True):
                frame[:] = saved
        self._frames, self._lives, self._held = state["frames"].tolist(), state["lives"].tolist(), held
        self._rng, self._age, self._cuts = rng, int(state["age"]), dict(state["cuts"].tolist())

    def close(self) -> None:
        self._emulators = []
