"""Atari 2600 games: `AtariEnvironment` on ale-py's emulators or on our own, and `preload` for its processes."""

from __future__ import annotations

from typing import Protocol

import ale_py
import cv2
import numpy as np
from numpy.typing import NDArray

from ga3c.envs.ale import AleConsoles, choose, emulators, preload_emulators
from ga3c.envs.atari_games import AtariGame, atari_game_of, is_own
from ga3c.envs.base import EnvSpec, State, Transition, check_same_layout
from ga3c.envs.frames import FRAME_SIZE
from ga3c.envs.random_streams import packed, unpacked
from ga3c.envs.sticky import held_actions
from ga3c.settings.schema import EnvSettings


class Consoles(Protocol):
    """E consoles of one game that play together. Actions are ale-py's numbers."""

    @property
    def over(self) -> NDArray[np.bool_]:
        """Whether each console's game is over, (E,)."""

    @property
    def lives(self) -> NDArray[np.int32]:
        """The lives left on each console, (E,)."""

    @property
    def recorded(self) -> list[NDArray[np.uint8]]:
        """The first console's frames in the last `play`, RGB (height, width, 3) uint8; empty without `record`."""

    @property
    def last_frame(self) -> NDArray[np.uint8]:
        """The last frame of the first console, RGB (height, width, 3) uint8."""

    def renew(self) -> None:
        """Makes all consoles forget earlier games."""

    def begin(self, number: int, no_ops: int, into: NDArray[np.uint8]) -> int:
        """Begins a game on console `number` with `no_ops` no-ops. If the consoles fire, FIRE replaces the first no-op.

        FIRE is then played even if `no_ops` is 0. Writes the first frame into `into`, contiguous (84, 84) uint8.
        Returns the last action played, NOOP if there was none.
        """

    def play(self, actions: NDArray[np.uint8], frames: NDArray[np.int64], stacks: NDArray[np.uint8], newest: int,
             record: bool = False) -> NDArray[np.int32]:
        """Plays `frames` (E,), each at least 1, with `actions` (E, most). A console stops when its game is over.

        Writes the brighter of the last two frames, pixel by pixel, into `stacks[:, newest]`. `stacks` is (E, k, 84, 84)
        uint8. Returns the rewards (E,).
        """

    def state(self) -> State:
        """Returns all that the consoles' next frames depend on."""

    def restore(self, state: State) -> None:
        """Continues from `state`. Raises ValueError if `state` is of other consoles or damaged."""

    def close(self) -> None:
        """Frees the emulators' resources."""


def preload(settings: EnvSettings, n_envs: int) -> None:
    """Loads the emulators of an agent for the processes forked from this one. Does nothing for other games than Atari.

    Raises ConfigError if there is no ROM.
    """
    game = atari_game_of(settings)
    if game is None:
        return
    own = is_own(settings, game)
    preload_emulators(game.rom, 1 if own else n_envs)
    if own:
        from ga3c.envs.emulator.compiled import compile_kernels
        compile_kernels()


def compile_emulator(settings: EnvSettings) -> None:
    """Compiles our emulator, if it plays this game and its machine code is not kept on disk yet.

    Call it before several processes begin to play, as each would compile.
    """
    game = atari_game_of(settings)
    if game is not None and is_own(settings, game):
        from ga3c.envs.emulator.compiled import compile_kernels, is_compiled
        if not is_compiled():
            compile_kernels()


class AtariEnvironment:
    """E consoles of one game, one after the other in the agent's own thread, as Mnih et al. (2015) describe it.

    An agent step plays its action for `frame_skip` frames. For some ids this number is drawn for each step. The frame
    of a step is the brighter of its last two frames, pixel by pixel, in grey, resized to 84 x 84. An observation is the
    last four of them, (84, 84, 4) uint8, black before an episode's first one. They are stored one by one, and OpenCV
    interleaves them when an observation is needed. That takes half the time of advancing and copying whole
    observations.

    The setting `emulator` chooses our emulator or ale-py's. A seed gives the same frames on both, up to the first end
    of an episode. After that, ale-py's consoles remember earlier games in some games; ours never do.

    This class draws all that is random: the no-ops that open an episode, the sticky actions (Machado et al., 2018), and
    the number of frames of a step.

    Episodes of equal length, common in Boxing, would keep environments that begin together at the same moment of the
    game. An update would then see that moment many times. So each environment except the first cuts one early episode
    short, at times spread over two minutes of play. The seed shifts these times, so that agents differ, too.

    Raises ConfigError if there is no ROM, or if the game has no such mode or difficulty.
    """

    _STACK = 4
    _SPREAD = 1800  # agent steps

    def __init__(self, settings: EnvSettings, game: AtariGame, n_envs: int) -> None:
        self._least_frames, self._most_frames = game.frame_skip
        self._noop_max = settings.noop_max
        self._sticky = game.sticky_actions
        self._life_loss = settings.life_loss
        self._max_frames = settings.max_episode_frames
        self._rom = game.rom
        own = is_own(settings, game)
        loaded = emulators(self._rom, 1 if own else n_envs)
        choose(loaded, settings, game.name)
        self.actions = loaded[0].getLegalActionSet() if settings.full_action_space else loaded[0].getMinimalActionSet()
        self._numbers = np.array([action.value for action in self.actions], np.uint8)
        fires = settings.fire_reset and ale_py.Action.FIRE in self.actions
        if own:
            from ga3c.envs.emulator.compiled import compile_kernels  # imported here, because they need Numba
            from ga3c.envs.emulator.consoles import OwnConsoles
            compile_kernels()
            self._consoles: Consoles = OwnConsoles(loaded[0], self._rom, n_envs, fires)
        else:
            self._consoles = AleConsoles(loaded, fires)
        self.spec = EnvSpec(
            game.name, (*FRAME_SIZE, self._STACK), np.dtype(np.uint8), len(self.actions), game.frames_per_step,
            self._STACK)
        self._stacks = np.zeros((n_envs, self._STACK, *FRAME_SIZE), np.uint8)  # ring buffers that advance together
        self._newest = 0  # index of the newest frame in each ring buffer
        self._parts = [list(stack) for stack in self._stacks]
        self._none = np.zeros(n_envs, np.bool_)
        self._none.flags.writeable = False  # many transitions share it
        self._frames = np.zeros(n_envs, np.int64)
        self._lives = np.zeros(n_envs, np.int32)
        self._held = np.zeros(n_envs, np.uint8)
        self._rng = np.random.default_rng()
        self._age = 0  # agent steps since the reset
        self._cuts: dict[int, int] = {}  # age -> the environment whose episode is cut short
        self.recording: list[NDArray[np.uint8]] | None = None  # gets every frame of the first environment, RGB

    @property
    def lives(self) -> int:
        """The lives left in the first environment."""
        return int(self._consoles.lives[0])

    def reset(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._age = 0
        n_envs = len(self._stacks)
        earlier = float(self._rng.random())
        self._cuts = {1 + int(self._SPREAD * (number - earlier) / n_envs): number for number in range(1, n_envs)}
        self._consoles.renew()
        for number in range(n_envs):
            self.restart(number)

    def restart(self, number: int) -> None:
        self._stacks[number] = 0
        no_ops = int(self._rng.integers(self._noop_max + 1))
        self._held[number] = self._consoles.begin(number, no_ops, self._stacks[number, self._newest])
        self._frames[number] = 0
        self._lives[number] = self._consoles.lives[number]
        if self.recording is not None and number == 0:
            self.recording.append(self._consoles.last_frame)

    @property
    def observation(self) -> NDArray:
        """A new array (E, 84, 84, 4) uint8."""
        observation = np.empty((len(self._stacks), *self.spec.observation_shape), np.uint8)
        self.show(observation)
        return observation

    def show(self, into: NDArray) -> None:
        oldest = self._newest + 1
        for parts, observation in zip(self._parts, into, strict=True):
            cv2.merge(parts[oldest:] + parts[:oldest], observation)

    def step(self, action: NDArray[np.int64]) -> Transition:
        self._age += 1
        cut = self._cuts.get(self._age)
        frames = self._frames_to_play()
        self._frames += frames
        self._newest = (self._newest + 1) % self._STACK
        reward = self._consoles.play(
            self._actions_of_frames(action, frames), frames, self._stacks, self._newest, self.recording is not None)
        if self.recording is not None:
            self.recording += self._consoles.recorded
        over = self._consoles.over
        lost = self._none
        if self._life_loss:  # with the last life the game is over, in some games a little later
            before = self._lives
            self._lives = self._consoles.lives.copy()
            lost = (self._lives < before) & (self._lives > 0) & ~over
        timed_out = self._frames >= self._max_frames
        if cut is None and not (over | lost | timed_out).any():
            return Transition(reward.astype(np.float32), self._none, self._none, self._none, None)
        return self._ended(reward.astype(np.float32), over, lost, timed_out, cut)

    def _frames_to_play(self) -> NDArray[np.int64]:
        frames = self._max_frames - self._frames
        if self._least_frames == self._most_frames:
            return np.minimum(frames, self._least_frames)
        return np.minimum(frames, self._rng.integers(self._least_frames, self._most_frames + 1, len(frames)))

    def _actions_of_frames(self, action: NDArray[np.int64], frames: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Returns the action of each frame after sticky actions: (E, most frames), ale-py's numbers."""
        wanted = self._numbers[action]
        if not self._sticky:
            return np.repeat(wanted[:, None], self._most_frames, 1)
        sticks = self._rng.random((len(wanted), self._most_frames)) < self._sticky
        actions = held_actions(wanted, self._held, sticks)
        self._held = actions[np.arange(len(wanted)), frames - 1]
        return actions

    def _ended(self, reward: NDArray[np.float32], over: NDArray[np.bool_], lost: NDArray[np.bool_],
               timed_out: NDArray[np.bool_], cut: int | None) -> Transition:
        """Returns the transition of a step in which an episode ended, and begins new games where needed.

        `over` (game over), `lost` (life lost) and `timed_out` are (E,); the episode of environment `cut` is cut short.
        """
        score_ended = over | timed_out
        terminated = over | lost
        truncated = score_ended & ~terminated
        if cut is not None and not terminated[cut]:
            truncated[cut] = True
        final = self.observation if truncated.any() else None
        for number in np.flatnonzero(score_ended | truncated).tolist():
            self.restart(number)
        return Transition(reward, terminated, truncated, score_ended, final)

    def state(self) -> State:
        order = np.arange(self._newest + 1, self._newest + 1 + self._STACK) % self._STACK
        return {
            "rom": np.frombuffer(self._rom.encode(), np.uint8), **self._consoles.state(),
            "stacks": self._stacks[:, order],  # oldest first
            "frames": self._frames.copy(), "lives": self._lives.astype(np.int64),
            "held_actions": self._held.astype(np.int64),
            "generator": packed(self._rng), "age": np.array(self._age, np.int64),
            "cuts": np.array(list(self._cuts.items()), np.int64).reshape(-1, 2)}

    def restore(self, state: State) -> None:
        check_same_layout(state, self.state(), ("emulators", "cuts"))
        if state["rom"].tobytes() != self._rom.encode():
            raise ValueError(f"it is not of {self._rom}")
        for number in state["held_actions"].tolist():
            ale_py.Action(number)
        if (state["frames"] >= self._max_frames).any():
            raise ValueError(f"an episode is longer than max_episode_frames {self._max_frames}")
        rng = unpacked(state["generator"])
        self._consoles.restore({name: state[name] for name in self._consoles.state()})
        self._stacks[:] = state["stacks"]
        self._newest = self._STACK - 1
        self._frames = state["frames"].copy()
        self._lives = state["lives"].astype(np.int32)
        self._held = state["held_actions"].astype(np.uint8)
        self._rng = rng
        self._age = int(state["age"])
        self._cuts = dict(state["cuts"].tolist())

    def close(self) -> None:
        self._consoles.close()
