"""Checks of a game before a run: `check`, and `probe` for its spec alone.

A game that may run user code is made and played for one step in a child process, which is then killed. The facts about
the game come back as plain data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from ga3c.envs.base import Environment, EnvSpec
from ga3c.envs.child_process import START_SECONDS, Caller, ChildEnded, ChildFailed, ChildProcess, ChildSilent
from ga3c.envs.containment import described, reraising
from ga3c.envs.factory import make_environment, runs_user_code
from ga3c.envs.gymnasium import GymnasiumEnvironment, layers
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

_CLOSE_SECONDS = 10.0  # for an environment to be closed


Find = Callable[[Settings, Callable[[], None]], tuple[Environment, Any]]
"""Makes a game, and returns it with facts about it. The second argument is a function that shows a sign of life."""


class Checked(NamedTuple):
    """The facts about a game: its spec, and notes for the user at the start, one line each."""

    spec: EnvSpec
    notes: list[str]


def probe(settings: Settings) -> EnvSpec:
    """Returns the spec of `settings.env.game`. Raises as `check`."""
    return check(settings).spec


def check(settings: Settings) -> Checked:
    """Makes one environment of `settings.env.game`. Plays one step if the game may run user code.

    Raises ConfigError as `make_environment`. Also raises it if the step fails, if an observation does not match its
    space, and if one of these takes more than `agent_timeout` seconds.
    """
    if runs_user_code(settings):
        checked: Checked
        checked, closing = examine(settings, _first_step, "made and played its first step")
        if closing:
            checked.notes.append(f"{checked.spec.name} fails when it is closed, which harms nothing: {closing}")
        return checked
    environment = make_environment(settings, 1)
    environment.close()
    return Checked(environment.spec, [])


def examine(settings: Settings, find: Find, what: str) -> tuple[Any, str]:
    """Returns the facts that `find` finds in a child process, and what went wrong when the game was closed, or "".

    `find` is a function of a module. `what` completes the error messages: what the game should have done. Raises
    ConfigError if the process fails, ends without facts, or shows no sign of life for `agent_timeout` seconds.
    """
    game = f"game: {settings.env.game!r}"
    with ChildProcess("ga3c.envs.check:send_facts", settings, find) as child:
        try:
            facts = child.receive(settings.agents.agent_timeout, starting=START_SECONDS)
        except ChildFailed as error:
            raise ConfigError(str(error)) from None
        except ChildEnded as error:
            raise ConfigError(f"{game} {error} before it had {what}") from None
        except ChildSilent as error:
            raise ConfigError(f"{game} blocked for {error.seconds:g} s (agent_timeout) before it had {what}"
                              if error.begun else
                              f"game: the process that checks {settings.env.game!r} {error}") from None
        try:
            closing = child.receive(_CLOSE_SECONDS)
        except ChildEnded:
            closing = "it ended its process"
        except ChildSilent as error:
            closing = f"it takes more than {error.seconds:g} s"
    return facts, closing


# ------------------------------------------------------------------------------------------------ in the process

def send_facts(caller: Caller, settings: Settings, find: Find) -> None:
    """Sends the facts that `find` finds. Then closes the game, and sends a line that says why this failed, or ""."""
    environment, facts = caller.attempt(f"game: {settings.env.game!r} cannot be made",
                                        lambda: find(settings, caller.alive))
    caller.send(facts)
    closing = ""
    try:
        environment.close()
    except BaseException as error:  # noqa: B036  # the game can be played nevertheless
        closing = described(error)
    caller.send(closing)


def _first_step(settings: Settings, alive: Callable[[], None]) -> tuple[Environment, Checked]:
    game = settings.env.game
    environment = make_environment(settings, 1, alive=alive)
    notes = [environment.note] if isinstance(environment, GymnasiumEnvironment) and environment.note else []
    with reraising(f"game: {game!r} fails at its first step", ConfigError):
        environment.reset(settings.run.seed)
        before = _numbers_of_wrappers(environment)
        environment.step(np.zeros(1, np.int64))
    alive()
    carried: list[str] = []
    if before:
        with contextlib.suppress(Exception):  # the agents will meet the same failure
            environment.reset(settings.run.seed)
            after = _numbers_of_wrappers(environment)
            carried = [name for name, value in before.items() if value != after.get(name)]
    if carried:
        notes.append(f"{game}: kept from episode to episode, but not saved: {', '.join(carried)}; a resumed run and an "
                     "evaluation begin without it")
    return environment, Checked(environment.spec, notes)


def _numbers_of_wrappers(environment: Environment) -> dict[str, bytes]:
    """Returns the numbers that user wrappers hold, by "Wrapper.attribute". An episode's beginning should set them."""
    wrappers = layers(environment.envs[0])[:-1] if isinstance(environment, GymnasiumEnvironment) else []
    return {f"{type(wrapper).__name__}.{name}": value for wrapper in wrappers
            if not type(wrapper).__module__.startswith("gymnasium.") for name, value in _numbers(wrapper).items()}


def _numbers(holder: object, within: bool = True) -> dict[str, bytes]:
    """Returns the attributes that are numbers or arrays of numbers, as bytes; if `within`, also those of attributes."""
    numbers = dict[str, bytes]()
    for name, value in vars(holder).items():
        if isinstance(value, int | float | np.number | np.ndarray):
            array = np.asarray(value)
            numbers |= {name: array.tobytes()} if array.dtype.kind in "biuf" else {}
        elif within and hasattr(value, "__dict__") and not isinstance(value, gymnasium.Env):
            numbers |= {f"{name}.{inner}": data for inner, data in _numbers(value, within=False).items()}
    return numbers
