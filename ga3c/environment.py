"""The worlds an agent plays, behind one small protocol: `make_environment(settings, n)` -> `Environment`.

Everything goes through gymnasium's vector interface with SAME_STEP autoreset: `step` never swallows an action, and the
observation that ended an episode is handed out beside the first one of the next. Atari runs in ale-py's C++ vector
environment. This is the only module that knows ALE.

Supported: discrete actions; images (uint8, height x width x channels) and vectors (any one-dimensional Box).
"""

from __future__ import annotations

import difflib
import functools
import importlib
import operator
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import ale_py
import gymnasium
import numpy as np
from ale_py import roms
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from ga3c import toys
from ga3c.config import ConfigError, Settings

gymnasium.register_envs(ale_py)


class EnvironmentSpec(NamedTuple):
    """What the rest of the service must know of a world: `observation_shape` is one environment's, channels last."""

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype
    n_actions: int
    frames_per_step: int


class Transition(NamedTuple):
    """The facts of one agent step of E environments. `score_ended` marks episodes whose score is complete; one that is
    `truncated` without that was cut short by us, and its score does not count.

    reward (E,) float32, raw; terminated, truncated, score_ended (E,) bool; final_observation (E, *shape), to be read
    where `truncated`, None if no environment was. `dropped`: the environments failed, all episodes end here and their
    scores do not count; there is no final observation.
    """

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    score_ended: NDArray[np.bool_]
    final_observation: NDArray | None
    dropped: bool = False


class Environment(Protocol):
    """E environments that step together. `observation` (E, *shape) is the one to act on next; do not keep it."""

    spec: EnvironmentSpec
    observation: NDArray

    def reset(self, seed: int) -> None:
        """Begins an episode in every environment; `seed` fixes everything random in them."""

    def step(self, action: NDArray[np.int64]) -> Transition:
        """Plays `action` (E,); ended episodes have begun anew when this returns."""

    def close(self) -> None:
        """Gives back what the simulator holds."""


class AtariEnvironment:
    """ale-py's C++ vector environment with the newest frame packed into a channels-last stack.

    The four 84x84 planes of an observation are the four bytes of one 84x84 plane of little-endian 32-bit words: a
    shift advances the stack for a tenth of what interleaving planes costs.

    Environments that begin together go on in step, as long as episodes are of one length (Boxing's are, until somebody
    is knocked out): an update would see one moment of the game, many times. So all environments but the first cut one
    early episode short, at times spread over two minutes of play, which the seed moves so that agents differ.
    """

    _STACK = 4
    _SPREAD = 1800  # agent steps

    def __init__(self, settings: Settings, game: str, n_envs: int) -> None:
        self._life_loss = settings.life_loss
        self._env = gymnasium.make_vec(
            game, num_envs=n_envs, vectorization_mode="vector_entry_point",
            autoreset_mode=AutoresetMode.SAME_STEP, num_threads=1, stack_num=self._STACK, grayscale=True, maxpool=True,
            frameskip=settings.frame_skip, noop_max=_noops_below(settings.noop_max), reward_clipping=False,
            repeat_action_probability=settings.sticky_actions, use_fire_reset=settings.fire_reset,
            full_action_space=settings.full_action_space, life_loss_info=settings.life_loss,
            max_num_frames_per_episode=settings.max_episode_frames)
        space, action_space = self._env.single_observation_space, self._env.single_action_space
        assert isinstance(space, gymnasium.spaces.Box) and isinstance(action_space, gymnasium.spaces.Discrete)
        height, width = space.shape[1:]
        self.spec = EnvironmentSpec(
            game.removeprefix("ALE/").rsplit("-", 1)[0], (height, width, self._STACK), np.dtype(np.uint8),
            int(action_space.n), settings.frame_skip)
        self._packed = np.zeros((n_envs, height, width), "<u4")
        self.observation = self._unpacked(self._packed)
        self._lives = np.zeros(n_envs, np.int32)
        self._age = 0
        self._cuts: dict[int, int] = {}

    def _unpacked(self, packed: NDArray[np.uint32]) -> NDArray[np.uint8]:
        return packed.view(np.uint8).reshape(*packed.shape, self._STACK)

    def reset(self, seed: int) -> None:
        planes, info = self._env.reset(seed=seed % (2**31 - len(self._packed)))  # ALE counts up from it, in 31 bits
        self.observation[:] = np.moveaxis(planes, 1, -1)
        self._lives, self._age = info["lives"], 0
        n_envs, earlier = len(self._packed), float(np.random.default_rng(seed).random())
        self._cuts = {1 + int(self._SPREAD * (number - earlier) / n_envs): number for number in range(1, n_envs)}

    def step(self, action: NDArray[np.int64]) -> Transition:
        planes, reward, terminated, truncated, info = self._env.step(action)
        self._packed >>= 8
        self.observation[..., -1] = planes[:, -1]
        ended = score_ended = terminated | truncated
        final = None
        if np.count_nonzero(ended):
            if truncated.any():
                final = np.moveaxis(info["final_obs"], 1, -1)
            self.observation[ended] = np.moveaxis(planes[ended], 1, -1)
        if self._life_loss:  # a lost life is "terminated" while the game goes on; a new game has all lives again
            score_ended = ended & ~(terminated & (info["lives"] < self._lives))
        self._lives, self._age = info["lives"], self._age + 1
        cut = self._cuts.get(self._age)
        if cut is not None and not ended[cut]:
            final, truncated = self._cut_short(cut, final), truncated.copy()
            truncated[cut] = True
        return Transition(reward.astype(np.float32), terminated, truncated, score_ended, final)

    def _cut_short(self, number: int, final: NDArray | None) -> NDArray:
        """Begins that environment's next episode; `final` with its last observation."""
        if final is None:
            final = self.observation.copy()
        final[number] = self.observation[number]
        planes, info = self._env.reset(options={"reset_mask": np.arange(len(self.observation)) == number})
        self._lives = info["lives"]
        self.observation[number] = np.moveaxis(planes[number], 0, -1)
        return final

    def close(self) -> None:
        self._env.close()


class GymnasiumEnvironment:
    """Any gymnasium vector environment in SAME_STEP mode; vectors become float32 unless they are bytes."""

    def __init__(self, env: VectorEnv, name: str) -> None:
        self._env = env
        space, dtype = _supported(name, env.single_observation_space, env.single_action_space)
        self._first_action = int(env.single_action_space.start)  # type: ignore[attr-defined]
        n_actions = int(env.single_action_space.n)  # type: ignore[attr-defined]
        self.spec = EnvironmentSpec(name, tuple(space.shape), dtype, n_actions, 1)
        self.observation = np.zeros((env.num_envs, *space.shape), dtype)

    def reset(self, seed: int) -> None:
        observation, _ = self._env.reset(seed=seed)
        self.observation[:] = observation

    def step(self, action: NDArray[np.int64]) -> Transition:
        observation, reward, terminated, truncated, info = self._env.step(action + self._first_action)
        self.observation[:] = observation
        # An episode that terminates needs no value of its last observation, even if its time is up as well.
        truncated = truncated & ~terminated
        final = None
        if truncated.any():
            final = self.observation.copy()
            for index in np.flatnonzero(truncated):
                final[index] = info["final_obs"][index]
        return Transition(np.asarray(reward, np.float32), terminated, truncated, terminated | truncated, final)

    def close(self) -> None:
        self._env.close()

    def screen(self) -> NDArray[np.uint8]:
        """What the first environment shows: RGB (height, width, 3); of one that shows nothing, its observation."""
        try:
            shown = self._env.render()
        except NotImplementedError:
            shown = None
        if shown is not None and np.ndim(shown[0]) == 3:
            return np.asarray(shown[0], np.uint8)
        seen = self.observation[0]
        if seen.ndim == 3:
            return np.repeat(seen[..., -1:], 3, axis=2) if seen.shape[2] != 3 else seen.copy()
        grey = np.clip((seen if seen.dtype == np.uint8 else 255 * seen), 0, 255).astype(np.uint8)
        return np.repeat(np.repeat(grey, 16)[None, :, None], 16, axis=0).repeat(3, axis=2)

    @property
    def screens_per_second(self) -> float:
        """How fast it is meant to be seen."""
        return float(self._env.metadata.get("render_fps") or 10)


def _supported(name: str, space: gymnasium.Space, action: gymnasium.Space) -> tuple[gymnasium.spaces.Box, np.dtype]:
    if not isinstance(action, gymnasium.spaces.Discrete):
        raise ConfigError(f"{name}: actions are {action}; supported: Discrete")
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and space.shape[0]:
        return space, np.dtype(np.uint8 if space.dtype == np.uint8 else np.float32)
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8:
        return space, np.dtype(np.uint8)
    raise ConfigError(f"{name}: observations are {space}; supported: a one-dimensional Box, "
                      "or a uint8 Box of height x width x channels")


def atari_roms() -> tuple[int, int]:
    """(how many Atari games are there to be played, how many ale-py knows)."""
    known = roms.get_all_rom_ids()
    return sum(roms.get_rom_path(rom) is not None for rom in known), len(known)


def _atari_games() -> dict[str, str]:
    """Name, as in "Boxing" -> gymnasium id."""
    return {identifier.removeprefix("ALE/").removesuffix("-v5"): identifier
            for identifier in gymnasium.registry if identifier.startswith("ALE/") and identifier.endswith("-v5")}


def _noops_below(most: int) -> int:
    """What ale-py is to be told so that an episode opens with 0 to `most` no-ops, each as likely as another."""
    return most + 1 if most else 0


def atari_id(game: str) -> str | None:
    """The gymnasium id of an Atari game named as people name it ('boxing', 'Boxing', 'ALE/Boxing-v5'), else None."""
    spec = gymnasium.registry.get(game)
    if spec is not None and not str(spec.entry_point).startswith("ale_py"):
        return None
    stem = game.removeprefix("ALE/").split("-v")[0]
    known = {_plain(name): identifier for name, identifier in _atari_games().items()}
    return known.get(_plain(stem.removesuffix("NoFrameskip").removesuffix("Deterministic")))


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").replace(" ", "").lower()


def _unknown(game: str) -> ConfigError:
    names = {_plain(name): name for name in
             [*_atari_games()]
             + [identifier for identifier in gymnasium.registry if "/" not in identifier
                and not str(gymnasium.registry[identifier].entry_point).startswith("ale_py")]
             + [f"toy:{name}" for name in toys.TOYS]}
    near = difflib.get_close_matches(_plain(game), names, n=3, cutoff=0.5)
    hint = ", ".join(names[name] for name in near) if near else "an Atari game, a Gymnasium id, module:Id or toy:catch"
    return ConfigError(f"game: no game is called {game!r}; nearest: {hint}")


def imported(name: str, setting: str) -> Callable[..., Any]:
    """What `name`, as in my_module:MyWrapper, names; looked for where the user stands, too. Raises ConfigError."""
    module, _, attribute = name.partition(":")
    _look_here()
    try:
        found: Callable[..., Any] = operator.attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # a user's own module may raise anything
        raise ConfigError(f"{setting}: {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{setting}: {name!r} is no class or function but {found!r}")
    return found


def _look_here() -> None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _wrapped(name: str) -> Callable[..., Any]:
    wrapper = imported(name, "wrappers")

    def wrap(env: gymnasium.Env) -> Any:
        try:
            wrapped = wrapper(env)
        except Exception as error:
            raise ConfigError(f"wrappers: {name!r} cannot wrap {env}: {type(error).__name__}: {error}") from error
        if not isinstance(wrapped, gymnasium.Env):
            raise ConfigError(f"wrappers: {name!r} made no gymnasium.Env of {env} but {wrapped!r}")
        return wrapped

    return wrap


def make_environment(settings: Settings, n_envs: int, render_mode: str | None = None) -> Environment:
    """`n_envs` environments of `settings.game`. Raises ConfigError if it is unknown, unsupported or cannot be made."""
    game = settings.game
    wrappers = [_wrapped(name) for name in settings.wrappers]
    if game.startswith("toy:"):
        if game.removeprefix("toy:") not in toys.TOYS:
            raise _unknown(game)
        toy = toys.TOYS[game.removeprefix("toy:")]

        def make() -> gymnasium.Env:
            return functools.reduce(lambda env, wrap: wrap(env), wrappers, toy())

        return GymnasiumEnvironment(SyncVectorEnv([make] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP), game)
    atari = atari_id(game)
    if atari:
        if wrappers:
            raise ConfigError(f"wrappers: {settings.wrappers[0]!r} cannot wrap {game}: Atari games run in ale-py's own "
                              "vector environment; register a game of your own and name it as module:Id")
        return AtariEnvironment(settings, atari, n_envs)
    if ":" in game:
        _look_here()
    drawing: dict[str, Any] = {"render_mode": render_mode} if render_mode else {}
    try:
        env = gymnasium.make_vec(game, num_envs=n_envs, vectorization_mode="sync", wrappers=wrappers,
                                 vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}, **drawing)
    except ConfigError:
        raise
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound):
        raise _unknown(game) from None
    except Exception as error:  # a user's own environment may raise anything; it is his mistake, told in one line
        raise ConfigError(f"game: {game!r} cannot be made: {type(error).__name__}: {error}") from error
    return GymnasiumEnvironment(env, game)


def probe(settings: Settings) -> EnvironmentSpec:
    """The spec of `settings.game`, found by making it once; one that is not Atari's plays a step, to see that it can.

    Raises ConfigError as `make_environment`, and if the step fails or shows something else than its space says.
    """
    environment = make_environment(settings, 1)
    try:
        if isinstance(environment, GymnasiumEnvironment):
            with warnings.catch_warnings(action="ignore"):  # agents will give them
                environment.reset(settings.seed)
                environment.step(np.zeros(1, np.int64))
    except Exception as error:  # a user's own environment may raise anything
        raise ConfigError(f"game: {settings.game!r} fails at its first step: {type(error).__name__}: {error}; its "
                          f"space says {environment.spec.observation_dtype} {environment.spec.observation_shape}"
                          ) from error
    finally:
        environment.close()
    return environment.spec


class Watched:
    """One environment to look at while it is played: the world of `make_environment(settings, 1)`, and its screen.

    `frames` are the pictures that the last `reset` or `step` showed, oldest first, RGB (height, width, 3) uint8, to be
    seen `fps` a second; `lives` None where there are none; `action_names` one for each action.

    An Atari policy is shown small grey pictures, and the emulator that makes them has no other. So a second one plays
    the same game beside it, from the same seed and by the same actions, frame by frame and in colour.
    """

    def __init__(self, settings: Settings) -> None:
        settings = settings.model_copy(update={"life_loss": False})
        try:
            self.environment = make_environment(settings, 1, "rgb_array")
        except ConfigError:  # its maker takes no such argument: it has no screen
            self.environment = make_environment(settings, 1)
        self.frames: list[NDArray[np.uint8]] = []
        self.lives: int | None = None
        self.action_names = [str(action) for action in range(self.environment.spec.n_actions)]
        self._frame_skip = settings.frame_skip
        self._colour: gymnasium.vector.VectorEnv | None = None
        game = atari_id(settings.game)
        if not isinstance(self.environment, AtariEnvironment):
            assert isinstance(self.environment, GymnasiumEnvironment)
            self.fps = self.environment.screens_per_second
        elif game:
            self.fps = 60.0
            self._colour = gymnasium.make_vec(
                game, num_envs=1, vectorization_mode="vector_entry_point", autoreset_mode=AutoresetMode.SAME_STEP,
                num_threads=1, stack_num=1, grayscale=False, img_height=210, img_width=160, maxpool=False, frameskip=1,
                noop_max=_noops_below(settings.noop_max), reward_clipping=False,
                repeat_action_probability=settings.sticky_actions, use_fire_reset=settings.fire_reset,
                full_action_space=settings.full_action_space,
                max_num_frames_per_episode=settings.max_episode_frames)
            self.action_names = [action.name for action in self._colour.ale.get_action_set()]  # type: ignore

    @property
    def spec(self) -> EnvironmentSpec:
        """Of the environment."""
        return self.environment.spec

    @property
    def observation(self) -> NDArray:
        """(1, *shape), what to act on next."""
        return self.environment.observation

    def reset(self, seed: int) -> None:
        """Begins an episode; `seed` fixes everything random in it."""
        self.environment.reset(seed)
        if self._colour is None:
            self._show()
            return
        picture, info = self._colour.reset(seed=seed % (2**31 - 1))
        self.frames, self.lives = [picture[0, 0]], int(info["lives"][0])

    def step(self, action: NDArray[np.int64]) -> Transition:
        """Plays `action` (1,), as `Environment.step`; at the end of an episode `frames` has its last picture, too."""
        transition = self.environment.step(action)
        if self._colour is None:
            self._show()
            return transition
        self.frames, reward = [], 0.0
        for _ in range(self._frame_skip):
            picture, gained, terminated, truncated, info = self._colour.step(action)
            reward += float(gained[0])
            ended = bool(terminated[0] or truncated[0])
            self.frames += [info["final_obs"][0, 0], picture[0, 0]] if ended else [picture[0, 0]]
            if ended:
                break
        self.lives = int(info["lives"][0])
        if (reward, ended) != (float(transition.reward[0]), bool(transition.score_ended[0])):
            raise RuntimeError("the picture shows another game than the one that is played")
        return transition

    def _show(self) -> None:
        assert isinstance(self.environment, GymnasiumEnvironment)
        self.frames = [self.environment.screen()]

    def close(self) -> None:
        """Gives back what the simulators hold."""
        self.environment.close()
        if self._colour is not None:
            self._colour.close()
