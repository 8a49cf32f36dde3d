"""Makes the environments of a game from its name: `make_environment(settings, n)`."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import operator
import os
import sys
from collections.abc import Callable
from typing import Any

import gymnasium

from ga3c.envs import toys
from ga3c.envs.atari import AtariEnvironment
from ga3c.envs.atari_games import atari_game_of, atari_id, atari_names, plain_name
from ga3c.envs.base import Environment
from ga3c.envs.containment import reraising
from ga3c.envs.gymnasium import GymnasiumEnvironment, close_all, refuse_normalizing
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings


def make_environment(settings: Settings, n_envs: int, render_mode: str | None = None,
                     alive: Callable[[], None] = lambda: None) -> Environment:
    """Returns `n_envs` environments of `settings.env.game`, not yet reset.

    `render_mode` is Gymnasium's; Atari games and toys need none. `alive` is called after each environment is made or
    reset, because that may take seconds; Atari games do not call it. Raises ConfigError if the game is unknown, not
    supported or cannot be made, whatever user code raises.
    """
    game = settings.env.game
    atari = atari_game_of(settings.env)
    if atari:
        if settings.env.wrappers:
            raise ConfigError(f"wrappers: {settings.env.wrappers[0]!r} cannot wrap {game}: Atari games are played on "
                              "the emulator itself; register a game of your own and name it as module:Id")
        return AtariEnvironment(settings.env, atari, n_envs)
    wrappers = [_wrapper(name) for name in settings.env.wrappers]
    make = maker(game, render_mode)
    with reraising(f"game: {game!r} cannot be made", ConfigError):
        envs = list[gymnasium.Env]()
        try:
            for _ in range(n_envs):
                envs.append(functools.reduce(lambda env, wrap: wrap(env), wrappers, make()))
                alive()
            return GymnasiumEnvironment(envs, game, alive)
        except BaseException:
            with contextlib.suppress(BaseException):  # the first error is more useful
                close_all(envs)
            raise


def maker(game: str, render_mode: str | None) -> Callable[[], gymnasium.Env]:
    """Returns a function that makes one environment of a toy or of a game that Gymnasium knows.

    Raises ConfigError if the game is unknown. For a name like module:Id the returned function raises it.
    """
    if game.startswith("toy:"):
        toy = toys.TOYS.get(game.removeprefix("toy:"))
        if toy is None:
            raise _unknown(game)
        return toy
    if ":" in game:
        _look_in_working_directory()
    elif not _registered(game):
        raise _unknown(game)
    drawing: dict[str, Any] = {"render_mode": render_mode} if render_mode else {}

    def make() -> gymnasium.Env:
        try:
            # Gymnasium's checker warns of harmless things. `forms.py` reports the harmful ones.
            return gymnasium.make(game, disable_env_checker=True, **drawing)
        except gymnasium.error.UnregisteredEnv:
            if _registered(game.rpartition(":")[2]):  # another game, which this one makes, is missing
                raise
            raise _unknown(game) from None

    return make


def runs_user_code(settings: Settings) -> bool:
    """Returns whether the game may run user code: it is neither an Atari game nor a toy without wrappers."""
    plain_toy = settings.env.game.startswith("toy:") and not settings.env.wrappers
    return not plain_toy and atari_id(settings.env.game) is None


def import_callable(name: str, setting: str) -> Callable[..., Any]:
    """Returns the class or function `name`, as in my_module:MyWrapper. Searches the working directory, too.

    Raises ConfigError, which names the `setting`, whatever the import raises, and if `name` is not callable.
    """
    module, _, attribute = name.partition(":")
    _look_in_working_directory()
    with reraising(f"{setting}: {name!r} cannot be imported", ConfigError):
        value: Callable[..., Any] = operator.attrgetter(attribute)(importlib.import_module(module))
    if not callable(value):
        raise ConfigError(f"{setting}: {name!r} must be a class or function, but is {value!r}")
    return value


def _look_in_working_directory() -> None:
    """Appends the working directory to `sys.path`. It comes last, so that its files hide no module of a package."""
    with contextlib.suppress(FileNotFoundError):  # a game has removed the directory
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())


def _wrapper(name: str) -> Callable[..., Any]:
    wrapper = import_callable(name, "wrappers")
    if isinstance(wrapper, type):  # one for vectors of environments would fail with another error
        refuse_normalizing("wrappers", [wrapper])

    def wrap(env: gymnasium.Env) -> Any:
        with reraising(f"wrappers: {name!r} cannot wrap {env}", ConfigError):
            wrapped = wrapper(env)
        if not isinstance(wrapped, gymnasium.Env):
            raise ConfigError(f"wrappers: {name!r} made no gymnasium.Env of {env} but {wrapped!r}")
        return wrapped

    return wrap


def _registered(game: str) -> bool:
    """Returns whether Gymnasium has this id, with or without its version.

    Atari ids without version do not count, because Gymnasium would make the newest version of them.
    """
    return game in gymnasium.registry or game in {identifier.rpartition("-v")[0] for identifier in _not_of_ale_py()}


def _not_of_ale_py() -> list[str]:
    """Returns Gymnasium's ids without those that ale-py registers."""
    return [identifier for identifier, spec in gymnasium.registry.items()
            if not str(spec.entry_point).startswith("ale_py")]


def _unknown(game: str) -> ConfigError:
    """Returns the error for an unknown game. Its message names the most similar games."""
    known = [*atari_names(), *(identifier for identifier in _not_of_ale_py() if "/" not in identifier),
             *(f"toy:{name}" for name in toys.TOYS)]
    names = {plain_name(name): name for name in known}
    near = difflib.get_close_matches(plain_name(game), names, n=3, cutoff=0.5)
    hint = ", ".join(names[name] for name in near) if near else "an Atari game, a Gymnasium id, module:Id or toy:catch"
    return ConfigError(f"game: no game is called {game!r}; nearest: {hint}")
