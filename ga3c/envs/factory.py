"""The worlds an agent plays, behind one small protocol: `make_environment(settings, n)` -> `Environment`.

`step` never swallows an action, and the observation that ended an episode is handed out beside the first one of the
next: what gymnasium's vector interface calls SAME_STEP autoreset. Atari is played on ale-py's emulators, all else
through that interface. This is the only module that knows ALE.

Supported: discrete actions; images (uint8, height x width x channels) and vectors (any one-dimensional Box).
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import itertools
import operator
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import ale_py
import cv2
import gymnasium
import numpy as np
from ale_py import roms
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from ga3c.envs import toys
from ga3c.envs.frames import PICTURE, TOGETHER, Shrinker
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

gymnasium.register_envs(ale_py)
ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)

_prepared: dict[str, list[ale_py.ALEInterface]] = {}  # by ROM


class EnvSpec(NamedTuple):
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
    """E environments that step together."""

    spec: EnvSpec

    @property
    def observation(self) -> NDArray:
        """What to act on next, (E, *shape); do not keep it."""

    def reset(self, seed: int) -> None:
        """Begins an episode in every environment; `seed` fixes everything random in them."""

    def step(self, action: NDArray[np.int64]) -> Transition:
        """Plays `action` (E,); ended episodes have begun anew when this returns."""

    def show(self, into: NDArray) -> None:
        """Writes `observation` into the contiguous `into` (E, *shape), which may be sooner done than copying it."""

    def close(self) -> None:
        """Gives back what the simulator holds."""


def _load(rom: str) -> ale_py.ALEInterface:
    path = roms.get_rom_path(rom)
    if path is None:
        raise ConfigError(f"game: {rom!r} has no ROM here; `pip install --force-reinstall ale-py` brings it")
    emulator = ale_py.ALEInterface()
    emulator.setInt("random_seed", 0)  # of nothing: what is random is drawn in `AtariEnvironment`
    emulator.setFloat("repeat_action_probability", 0.0)
    emulator.loadROM(path)
    return emulator


def prepare(game: str, n_envs: int) -> None:
    """Loads emulators for whoever is forked from this process. 70 ms each, so an agent with 16 would need a second."""
    identifier = atari_id(game)
    if identifier:
        rom = _rom(identifier)
        _prepared[rom] = [_load(rom) for _ in range(n_envs)]


def _emulators(rom: str, n_envs: int) -> list[ale_py.ALEInterface]:
    prepared = _prepared.get(rom, [])
    ready, _prepared[rom] = prepared[:n_envs], prepared[n_envs:]  # whoever comes next does not get the same
    return ready + [_load(rom) for _ in range(n_envs - len(ready))]


class AtariEnvironment:
    """ale-py's emulators, one after the other in the agent's own thread, seen as Mnih et al. (2015) describe it.

    An agent step plays the action for `frame_skip` frames; its picture is the brighter of the last two, grey, shrunk to
    84 x 84, each pixel the mean of its area. An observation is the last four pictures, black before an episode's first;
    they are kept one by one and interleaved where the observation is wanted, by OpenCV, for half of what advancing and
    copying whole observations costs.

    What is random, no-ops that open an episode and actions that stick (Machado et al., 2018), is drawn here.

    Environments that begin together go on in step, as long as episodes are of one length (Boxing's are, until somebody
    is knocked out): an update would see one moment of the game, many times. So all environments but the first cut one
    early episode short, at times spread over two minutes of play, which the seed moves so that agents differ.
    """

    _STACK = 4
    _SPREAD = 1800  # agent steps

    def __init__(self, settings: Settings, game: str, n_envs: int) -> None:
        self._frame_skip, self._max_frames = settings.env.frame_skip, settings.env.max_episode_frames
        self._noop_max, self._sticky, self._life_loss = settings.env.noop_max, settings.env.sticky_actions, settings.env.life_loss
        self._emulators = _emulators(_rom(game), n_envs)
        emulator = self._emulators[0]
        self.actions = emulator.getLegalActionSet() if settings.env.full_action_space else emulator.getMinimalActionSet()
        self._fires = settings.env.fire_reset and ale_py.Action.FIRE in self.actions
        self.spec = EnvSpec(
            game.removeprefix("ALE/").rsplit("-", 1)[0], (*PICTURE, self._STACK), np.dtype(np.uint8),
            len(self.actions), self._frame_skip)
        self._new = emulator.cloneState(include_rng=True)
        self._pictures = [list(np.zeros((self._STACK, *PICTURE), np.uint8)) for _ in range(n_envs)]  # oldest first
        height, width = emulator.getScreenDims()
        self._last_but_one = np.zeros((height, width), np.uint8)
        self._shrinker = Shrinker(height, width)
        self._together = [range(first, min(n_envs, first + TOGETHER)) for first in range(0, n_envs, TOGETHER)]
        self._none = np.zeros(n_envs, np.bool_)
        self._none.flags.writeable = False  # many transitions have it
        self._frames, self._lives, self._held = [0] * n_envs, [0] * n_envs, [ale_py.Action.NOOP] * n_envs
        self._rng = np.random.default_rng()
        self._age = 0
        self._cuts: dict[int, int] = {}
        self.film: list[NDArray[np.uint8]] | None = None  # gets every frame of the first environment, in colour

    @property
    def lives(self) -> int:
        """What is left to the first environment."""
        return int(self._emulators[0].lives())

    def reset(self, seed: int) -> None:
        self._rng, self._age = np.random.default_rng(seed), 0
        n_envs, earlier = len(self._emulators), float(self._rng.random())
        self._cuts = {1 + int(self._SPREAD * (number - earlier) / n_envs): number for number in range(1, n_envs)}
        for number, emulator in enumerate(self._emulators):
            emulator.restoreState(self._new)  # a console that is reset keeps its memory, and the episodes before in it
            self._begin(number)

    def _begin(self, number: int) -> None:
        emulator = self._emulators[number]
        emulator.reset_game()
        opening = [ale_py.Action.NOOP] * int(self._rng.integers(self._noop_max + 1))
        if self._fires:
            opening[:1] = [ale_py.Action.FIRE]
        for action in opening:
            emulator.act(action)
            if emulator.game_over():
                emulator.reset_game()
        self._held[number] = opening[-1] if opening else ale_py.Action.NOOP
        self._frames[number], self._lives[number] = 0, emulator.lives()
        if self.film is not None and number == 0:
            self.film.append(emulator.getScreenRGB())
        emulator.getScreenGrayscale(self._shrinker.screens[0])
        for picture in self._pictures[number]:
            picture[:] = 0
        self._draw(range(number, number + 1))

    def _draw(self, numbers: range) -> None:
        """Makes pictures of as many of the shrinker's screens, each in the place of its environment's oldest."""
        new = []
        for number in numbers:
            pictures = self._pictures[number]
            new.append(pictures.pop(0))
            pictures.append(new[-1])
        self._shrinker.shrink(new)

    def _play(self, number: int, action: Any) -> int:
        """The frames of one agent step, the brighter of the last two on its screen of the shrinker; their reward."""
        emulator, last = self._emulators[number], self._shrinker.screens[number % TOGETHER]
        frames = min(self._frame_skip, self._max_frames - self._frames[number])
        self._frames[number] += frames
        plain = not self._sticky and self.film is None
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
        """One frame, in which the action may not be taken; its reward."""
        emulator = self._emulators[number]
        if emulator.game_over():
            return 0
        if not self._sticky or self._rng.random() >= self._sticky:
            self._held[number] = action
        reward = int(emulator.act(self._held[number]))
        if self.film is not None and number == 0:
            self.film.append(emulator.getScreenRGB())
        return reward

    @property
    def observation(self) -> NDArray:
        """A new array (E, 84, 84, 4) of bytes."""
        seen = np.empty((len(self._pictures), *self.spec.observation_shape), np.uint8)
        self.show(seen)
        return seen

    def show(self, into: NDArray) -> None:
        for pictures, seen in zip(self._pictures, into, strict=True):
            cv2.merge(pictures, seen)

    def step(self, action: NDArray[np.int64]) -> Transition:
        self._age += 1
        cut = self._cuts.get(self._age)
        rewards, lost, over, eventful, chosen = [], [], [], cut is not None, action.tolist()
        for numbers in self._together:
            for number in numbers:
                emulator = self._emulators[number]
                rewards.append(self._play(number, self.actions[chosen[number]]))
                if emulator.game_over():
                    over.append(number)
                elif self._frames[number] >= self._max_frames:
                    eventful = True
                if self._life_loss:  # with the last one the game is over, in some a little later
                    before, self._lives[number] = self._lives[number], emulator.lives()
                    if 0 < self._lives[number] < before:
                        lost.append(number)
            self._draw(numbers)
        reward = np.array(rewards, np.float32)
        if not (over or lost or eventful):
            return Transition(reward, self._none, self._none, self._none, None)
        return self._after(reward, over, lost, cut)

    def _after(self, reward: NDArray[np.float32], over: list[int], lost: list[int], cut: int | None) -> Transition:
        """Of a step with which something ended: games that are `over`, lives `lost`, time, the episode to be `cut`."""
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

    def close(self) -> None:
        self._emulators = []


class GymnasiumEnvironment:
    """Any gymnasium vector environment in SAME_STEP mode; vectors become float32 unless they are bytes."""

    def __init__(self, env: VectorEnv, name: str) -> None:
        self._env = env
        space, dtype = _supported(name, env.single_observation_space, env.single_action_space)
        self._first_action = int(env.single_action_space.start)  # type: ignore[attr-defined]
        n_actions = int(env.single_action_space.n)  # type: ignore[attr-defined]
        self.spec = EnvSpec(name, tuple(space.shape), dtype, n_actions, 1)
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

    def show(self, into: NDArray) -> None:
        into[:] = self.observation

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


def _rom(identifier: str) -> str:
    return str(gymnasium.spec(identifier).kwargs["game"])


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
    """`n_envs` environments of `settings.env.game`. Raises ConfigError if it is unknown, unsupported or cannot be made."""
    game = settings.env.game
    wrappers = [_wrapped(name) for name in settings.env.wrappers]
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
            raise ConfigError(f"wrappers: {settings.env.wrappers[0]!r} cannot wrap {game}: Atari games are played on "
                              "the emulator itself; register a game of your own and name it as module:Id")
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


def probe(settings: Settings) -> EnvSpec:
    """The spec of `settings.env.game`, found by making it once; one that is not Atari's plays a step, to see that it can.

    Raises ConfigError as `make_environment`, and if the step fails or shows something else than its space says.
    """
    environment = make_environment(settings, 1)
    try:
        if isinstance(environment, GymnasiumEnvironment):
            with warnings.catch_warnings(action="ignore"):  # agents will give them
                environment.reset(settings.run.seed)
                environment.step(np.zeros(1, np.int64))
    except Exception as error:  # a user's own environment may raise anything
        raise ConfigError(f"game: {settings.env.game!r} fails at its first step: {type(error).__name__}: {error}; its "
                          f"space says {environment.spec.observation_dtype} {environment.spec.observation_shape}"
                          ) from error
    finally:
        environment.close()
    return environment.spec


class Watched:
    """One environment to look at while it is played: the world of `make_environment(settings, 1)`, and its screen.

    `frames` are the pictures that the last `reset` or `step` showed, oldest first, RGB (height, width, 3) uint8, to be
    seen `fps` a second; `lives` None where there are none; `action_names` one for each action.
    """

    def __init__(self, settings: Settings) -> None:
        settings = settings.changed(**{"life_loss": False})
        try:
            self.environment = make_environment(settings, 1, "rgb_array")
        except ConfigError:  # its maker takes no such argument: it has no screen
            self.environment = make_environment(settings, 1)
        self.frames: list[NDArray[np.uint8]] = []
        self.lives: int | None = None
        if isinstance(self.environment, AtariEnvironment):
            self.fps = 60.0
            self.action_names = [action.name for action in self.environment.actions]
        else:
            assert isinstance(self.environment, GymnasiumEnvironment)
            self.fps = self.environment.screens_per_second
            self.action_names = [str(action) for action in range(self.environment.spec.n_actions)]

    @property
    def spec(self) -> EnvSpec:
        """Of the environment."""
        return self.environment.spec

    @property
    def observation(self) -> NDArray:
        """(1, *shape), what to act on next."""
        return self.environment.observation

    def reset(self, seed: int) -> None:
        """Begins an episode; `seed` fixes everything random in it."""
        with self._shown():
            self.environment.reset(seed)

    def step(self, action: NDArray[np.int64]) -> Transition:
        """Plays `action` (1,), as `Environment.step`; at the end of an episode `frames` has its last picture, too."""
        with self._shown():
            return self.environment.step(action)

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        """Keeps what is shown meanwhile."""
        if isinstance(self.environment, AtariEnvironment):
            self.environment.film = self.frames = []
            yield
            self.lives = self.environment.lives
        else:
            yield
            assert isinstance(self.environment, GymnasiumEnvironment)
            self.frames = [self.environment.screen()]

    def close(self) -> None:
        """Gives back what the simulators hold."""
        self.environment.close()
