"""From the name of a game to its environments: `make_environment(settings, n)`."""

from __future__ import annotations

import difflib
import functools
import importlib
import operator
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ga3c.envs import toys
from ga3c.envs.atari import AtariEnvironment
from ga3c.envs.atari_games import atari_names, plain_name, played
from ga3c.envs.base import Environment, EnvSpec
from ga3c.envs.gymnasium import GymnasiumEnvironment
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings


def make_environment(settings: Settings, n_envs: int, render_mode: str | None = None) -> Environment:
    """`n_envs` environments of `settings.env.game`, not yet reset.

    `render_mode` is Gymnasium's; Atari games and toys need none. Raises ConfigError if the game is unknown, not
    supported or cannot be made.
    """
    game = settings.env.game
    wrappers = [_wrapper(name) for name in settings.env.wrappers]
    if game.startswith("toy:"):
        if game.removeprefix("toy:") not in toys.TOYS:
            raise _unknown(game)
        toy = toys.TOYS[game.removeprefix("toy:")]

        def make() -> gymnasium.Env:
            return functools.reduce(lambda env, wrap: wrap(env), wrappers, toy())

        return GymnasiumEnvironment(SyncVectorEnv([make] * n_envs, autoreset_mode=AutoresetMode.SAME_STEP), game)
    atari = played(settings.env)
    if atari:
        if wrappers:
            raise ConfigError(f"wrappers: {settings.env.wrappers[0]!r} cannot wrap {game}: Atari games are played on "
                              "the emulator itself; register a game of your own and name it as module:Id")
        return AtariEnvironment(settings.env, atari, n_envs)
    if ":" in game:
        _look_in_working_directory()
    elif not _registered(game):
        raise _unknown(game)
    drawing: dict[str, Any] = {"render_mode": render_mode} if render_mode else {}
    try:
        env = gymnasium.make_vec(game, num_envs=n_envs, vectorization_mode="sync", wrappers=wrappers,
                                 vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}, **drawing)
    except ConfigError:
        raise
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound):
        raise _unknown(game) from None
    except Exception as error:  # a user's own environment may raise anything; the mistake is told in one line
        raise ConfigError(f"game: {game!r} cannot be made: {type(error).__name__}: {error}") from error
    return GymnasiumEnvironment(env, game)


def is_foreign(settings: Settings) -> bool:
    """Whether the game may do anything: whether it is neither one of Atari's nor a toy without wrappers."""
    plain_toy = settings.env.game.startswith("toy:") and not settings.env.wrappers
    return not plain_toy and atari_id(settings.env.game) is None


def probe(settings: Settings) -> EnvSpec:
    """The spec of `settings.env.game`, found by making one environment. Other games than Atari's play one step of it.

    Raises ConfigError as `make_environment`, and if that step fails or shows something else than its space says.
    """
    environment = make_environment(settings, 1)
    try:
        if isinstance(environment, GymnasiumEnvironment):
            with warnings.catch_warnings(action="ignore"):  # the agents will give them
                environment.reset(settings.run.seed)
                environment.step(np.zeros(1, np.int64))
    except Exception as error:  # a user's own environment may raise anything
        raise ConfigError(f"game: {settings.env.game!r} fails at its first step: {type(error).__name__}: {error}; its "
                          f"space says {environment.spec.observation_dtype} {environment.spec.observation_shape}"
                          ) from error
    finally:
        environment.close()
    return environment.spec


def imported(name: str, setting: str) -> Callable[..., Any]:
    """The class or function `name`, as in my_module:MyWrapper; the working directory is searched, too.

    Raises ConfigError, which names the `setting`, whatever the import raises.
    """
    module, _, attribute = name.partition(":")
    _look_in_working_directory()
    try:
        found: Callable[..., Any] = operator.attrgetter(attribute)(importlib.import_module(module))
    except Exception as error:  # a user's own module may raise anything
        raise ConfigError(f"{setting}: {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ConfigError(f"{setting}: {name!r} is no class or function but {found!r}")
    return found


def _look_in_working_directory() -> None:
    """It is searched last: a file in it must not stand in for a module of Python's or of a package."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def _wrapper(name: str) -> Callable[..., Any]:
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


def _registered(game: str) -> bool:
    """Whether Gymnasium has such an id, with its version or without. It would take Atari's for the newest version."""
    return game in gymnasium.registry or any(
        identifier.rpartition("-v")[0] == game and not str(spec.entry_point).startswith("ale_py")
        for identifier, spec in gymnasium.registry.items())


def _unknown(game: str) -> ConfigError:
    """Names the games whose names are nearest."""
    names = {plain_name(name): name for name in
             [*atari_names()]
             + [identifier for identifier in gymnasium.registry if "/" not in identifier
                and not str(gymnasium.registry[identifier].entry_point).startswith("ale_py")]
             + [f"toy:{name}" for name in toys.TOYS]}
    near = difflib.get_close_matches(plain_name(game), names, n=3, cutoff=0.5)
    hint = ", ".join(names[name] for name in near) if near else "an Atari game, a Gymnasium id, module:Id or toy:catch"
    return ConfigError(f"game: no game is called {game!r}; nearest: {hint}")
