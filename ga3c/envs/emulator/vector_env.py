"""`AtariVectorEnv`: Gymnasium's vector environment on our own emulator, with the options of ale-py's class.

After `reset(seed=s)` it gives what `ale_py.AtariVectorEnv` gives, to the bit: observations, rewards, ends and infos. In
some games ale-py's later episodes depend on earlier ones; here every episode begins in a new console. Sticky actions
are as likely as ale-py's, but drawn from other random numbers.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import numpy as np
from ale_py import roms
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from ga3c.envs.emulator.consoles import OwnConsoles
from ga3c.envs.emulator.games import GAMES
from ga3c.envs.sticky import held_actions
from ga3c.settings.machine import usable_cores

Info = dict[str, Any]


class AtariVectorEnv(gymnasium.vector.VectorEnv):
    """`num_envs` environments of the game `game`, the name of its ROM, as in ms_pacman.

    Args:
        batch_size: must be 0 or `num_envs`.
        num_threads: threads that play; 0 means as many as there are cores. At most `num_envs`.
        thread_affinity_offset: must be -1.
        max_num_frames_per_episode: frames after which an episode is truncated, not counting its opening.
        repeat_action_probability: probability that a frame repeats the action of the frame before.
        full_action_space: all 18 actions instead of the game's own.
        continuous: must be False.
        continuous_action_threshold: has no effect.
        autoreset_mode: NEXT_STEP or SAME_STEP.
        img_height, img_width, grayscale, stack_num: of an observation, (stack_num, height, width[, 3]) uint8.
        frameskip: frames of a step. An observation is the last, or with `maxpool` the brighter of the last two.
        noop_max: an episode opens with fewer no-ops than this.
        use_fire_reset: FIRE takes the place of the first no-op, if the game has FIRE.
        episodic_life: a lost life ends the episode, and the game.
        life_loss_info: a lost life ends the episode, and the game goes on.
        reward_clipping: rewards are -1, 0 or 1.

    Raises ValueError for an unknown game or an unsupported option.
    """

    def __init__(
            self, game: str, num_envs: int, *, batch_size: int = 0, num_threads: int = 0,
            thread_affinity_offset: int = -1, max_num_frames_per_episode: int = 108_000,
            repeat_action_probability: float = 0.0, full_action_space: bool = False, continuous: bool = False,
            continuous_action_threshold: float = 0.5, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
            img_height: int = 84, img_width: int = 84, grayscale: bool = True, stack_num: int = 4, frameskip: int = 4,
            maxpool: bool = True, noop_max: int = 30, episodic_life: bool = False, life_loss_info: bool = False,
            reward_clipping: bool = True, use_fire_reset: bool = True) -> None:
        for name, holds, wanted in (
                ("game", game in GAMES, "the ROM's name of a game that this emulator knows, as in ms_pacman"),
                ("num_envs", num_envs > 0, "at least 1"), ("batch_size", batch_size in (0, num_envs), "0 or num_envs"),
                ("thread_affinity_offset", thread_affinity_offset == -1, "-1"),
                ("continuous", not continuous, "False"), ("frameskip", frameskip > 0, "at least 1"),
                ("stack_num", stack_num > 0, "at least 1"), ("img_height", img_height > 0, "at least 1"),
                ("img_width", img_width > 0, "at least 1"),
                ("repeat_action_probability", 0 <= repeat_action_probability < 1, "at least 0 and below 1")):
            if not holds:
                raise ValueError(f"{name} must be {wanted}")
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        if self.autoreset_mode == AutoresetMode.DISABLED:
            raise ValueError("autoreset_mode must be NextStep or SameStep")
        self.metadata = {"autoreset_mode": self.autoreset_mode}
        path = roms.get_rom_path(game)
        if path is None:
            raise ValueError(f"there is no ROM of {game}")
        emulator = ale_py.ALEInterface()
        emulator.setFloat("repeat_action_probability", 0.0)
        emulator.loadROM(path)
        actions = emulator.getLegalActionSet() if full_action_space else emulator.getMinimalActionSet()
        self._actions = np.array([action.value for action in actions], np.uint8)
        size, colours = (img_height, img_width), () if grayscale else (3,)
        threads = min(num_envs, num_threads or usable_cores())
        self._consoles = OwnConsoles(emulator, game, num_envs, use_fire_reset and ale_py.Action.FIRE in actions,
                                     threads, size, grayscale, maxpool, episodic_life)
        self.num_envs = num_envs
        self.single_observation_space = Box(0, 255, (stack_num, *size, *colours), np.uint8)
        self.single_action_space = Discrete(len(actions))
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self._limit, self._frameskip, self._noop_max = max_num_frames_per_episode, frameskip, noop_max
        self._sticky, self._clips = repeat_action_probability, reward_clipping
        self._life_ends_game, self._life_ends_episode = episodic_life, episodic_life or life_loss_info
        self._stacks = np.zeros((num_envs, stack_num, *size, *colours), np.uint8)  # ring buffers that advance together
        self._newest = 0
        self._no_ops: list[np.random.RandomState] = []  # as in ale-py, one stream for each environment
        self._keys, self._drawn = np.zeros(num_envs, np.uint64), np.zeros(num_envs, np.uint64)
        self._held = np.zeros(num_envs, np.uint8)
        self._over = np.zeros(num_envs, np.bool_)
        self._frames, self._episode_frames, self._played = (np.zeros(num_envs, np.int64) for _ in range(3))
        self._shown_after = np.full(num_envs, frameskip)

    def reset(self, *, seed: int | NDArray | None = None, options: dict[str, Any] | None = None) -> tuple[
            NDArray[np.uint8], Info]:
        """Begins episodes in all environments, or where `options["reset_mask"]` (num_envs,) bool is true.

        `seed` is an array with one seed for each of these, or the first of consecutive seeds. An environment with no
        seed or a negative one goes on with its random numbers. Raises TypeError and ValueError for other options.
        """
        chosen = np.flatnonzero(self._mask((options or {}).get("reset_mask")))
        seeds = self._seeds(seed, len(chosen))
        if not self._no_ops:
            if len(chosen) < self.num_envs:
                raise ValueError("the first reset must reset every environment")
            self._no_ops = [np.random.RandomState() for _ in range(self.num_envs)]
            self._keys[:] = np.random.default_rng().integers(2**63, size=self.num_envs)
            self._frames[:] = self._consoles.frames_before
        for number, each in zip(chosen.tolist(), seeds, strict=True):
            if each >= 0:
                self._no_ops[number] = np.random.RandomState(each)
                self._keys[number], self._drawn[number] = each, 0
                self._frames[number] = self._consoles.frames_before
            self._begin(number)
        return self._observation(), self._info()

    def _mask(self, mask: Any) -> NDArray[np.bool_]:
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"reset_mask must be a boolean array, got {type(mask).__name__}")
        if mask.shape != (self.num_envs,):
            raise ValueError(f"reset_mask must have shape ({self.num_envs},), got {mask.shape}")
        return mask

    @staticmethod
    def _seeds(seed: int | NDArray | None, n: int) -> list[int]:
        if seed is None:
            return [-1] * n
        if isinstance(seed, np.ndarray) and np.issubdtype(seed.dtype, np.integer):
            seeds = seed
        elif isinstance(seed, int | np.integer):
            seeds = np.arange(seed, seed + n)
        else:
            raise TypeError(f"seed must be an integer or an array of integers, got {type(seed).__name__}")
        if seeds.shape != (n,):
            raise ValueError(f"seed must have shape ({n},), got {seeds.shape}")
        if n and seeds.max() >= 2**31:
            raise ValueError("seed must be below 2**31")
        given: list[int] = seeds.tolist()
        return given

    def _begin(self, number: int) -> None:
        stack = self._stacks[number]
        stack[:] = 0
        no_ops = _below(self._no_ops[number], self._noop_max) if self._noop_max > 1 else 0
        self._held[number] = self._consoles.begin(number, no_ops, stack[self._newest])
        opening = self._consoles.opening[number]
        self._frames[number] += opening
        self._episode_frames[number], self._played[number] = opening, 0
        self._over[number] = False

    def step(self, actions: NDArray[np.int64]) -> tuple[
            NDArray[np.uint8], NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """Plays `actions` (num_envs,). Returns (observations, rewards, terminated, truncated, infos) as ale-py does.

        With SAME_STEP, infos has `final_obs` if an episode ended: the last observations where a new game begins, zeros
        elsewhere. Raises ValueError for other actions, ResetNeeded before the first `reset`.
        """
        chosen = np.asarray(actions)
        if chosen.shape != (self.num_envs,) or not np.issubdtype(chosen.dtype, np.integer):
            raise ValueError(f"actions must be {self.num_envs} integers, got {chosen.dtype} {chosen.shape}")
        if chosen.min() < 0 or chosen.max() >= len(self._actions):
            raise ValueError(f"actions must be at least 0 and below {len(self._actions)}")
        if not self._no_ops:
            raise gymnasium.error.ResetNeeded("step was called before reset")
        begins = self._over
        frames = np.where(begins, 0, np.minimum(self._frameskip, np.maximum(self._limit - self._played, 0)))
        lives = self._consoles.lives.copy()
        self._newest = (self._newest + 1) % self._stacks.shape[1]
        rewards = self._consoles.play(self._frame_actions(chosen), frames, self._stacks, self._newest,
                                      shown_after=self._shown_after,
                                      visible=frames - (self._played + frames >= self._limit)).copy()
        for counted in (self._frames, self._episode_frames, self._played):
            counted += self._consoles.played
        terminated = self._consoles.over & ~begins
        timed_out = (self._played >= self._limit) & ~begins
        game_ended = terminated | timed_out
        if self._life_ends_episode:
            lost = (self._consoles.lives < lives) & ~begins
            terminated |= lost
            if self._life_ends_game:
                game_ended |= lost
        truncated = timed_out & ~terminated
        if self._clips:
            np.clip(rewards, -1, 1, out=rewards)
        for number in np.flatnonzero(begins).tolist():
            self._begin(number)
        self._over = game_ended
        final = {}
        if self.autoreset_mode == AutoresetMode.SAME_STEP and (terminated | truncated).any():
            final = {"final_obs": self._observation()}
            final["final_obs"][~game_ended] = 0
            for number in np.flatnonzero(game_ended).tolist():
                self._begin(number)
        return self._observation(), rewards, terminated, truncated, self._info() | final

    def _frame_actions(self, chosen: NDArray) -> NDArray[np.uint8]:
        """Returns the action of each frame: (num_envs, frameskip), ale-py's numbers."""
        wanted = self._actions[chosen]
        if not self._sticky:
            return np.repeat(wanted[:, None], self._frameskip, 1)
        drawn = np.add.outer(self._drawn, np.arange(self._frameskip, dtype=np.uint64))
        self._drawn += np.uint64(self._frameskip)
        played = held_actions(wanted, self._held, _uniform(self._keys[:, None], drawn) < self._sticky)
        self._held = played[:, -1].copy()
        return played

    def _observation(self) -> NDArray[np.uint8]:
        n = self._stacks.shape[1]
        order = np.arange(self._newest + 1, self._newest + 1 + n) % n
        seen: NDArray[np.uint8] = np.take(self._stacks, order, 1)
        return seen

    def _info(self) -> Info:
        return {"env_id": np.arange(self.num_envs, dtype=np.int32), "lives": self._consoles.lives.astype(np.int32),
                "frame_number": self._frames.astype(np.int32),
                "episode_frame_number": self._episode_frames.astype(np.int32)}

    def send(self, actions: NDArray[np.int64]) -> None:
        """Plays a step. `recv` returns its result."""
        self._sent = self.step(actions)

    def recv(self) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.bool_], NDArray[np.bool_], Info]:
        """Returns the result of the last `send`."""
        return self._sent

    def close_extras(self, **kwargs: Any) -> None:
        """Ends the threads."""
        self._consoles.close()


def _below(stream: np.random.RandomState, n: int) -> int:
    """Draws the next whole number below `n` as C++'s library does from a Mersenne twister (Lemire's method)."""
    while True:
        product = int.from_bytes(stream.bytes(4), "little") * n
        if product % 2**32 >= 2**32 % n:
            return product >> 32


def _uniform(keys: NDArray[np.uint64], counters: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Returns numbers in [0, 1), each from a key and a counter: SplitMix64 of Steele, Lea and Flood (2014), twice."""
    mixed = _mixed(_mixed(keys) + counters * np.uint64(0x9E3779B97F4A7C15))
    return (mixed >> np.uint64(11)) / 2.0**53


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ words >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ words >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return words ^ words >> np.uint64(31)
