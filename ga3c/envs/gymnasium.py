"""Gymnasium environments, which step one after the other in the agent's own thread.

Gymnasium's vector wrappers are not used. The values that `step` returns are copied at once; `info` is not read.
Supported: discrete actions, and the observations of `forms.py`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit, vector
from numpy.typing import NDArray

from ga3c.envs.base import Environment, EnvSpec, SavesState, State, Transition, check_same_layout
from ga3c.envs.forms import flag, form_of, number, parts
from ga3c.settings.messages import ConfigError, flag as option

_RESET = ("observation", "info")
_STEP = ("observation", "reward", "terminated", "truncated", "info")
_SPACES = ("action_space", "observation_space")
_LEAVE_REWARDS = (OrderEnforcing, PassiveEnvChecker, TimeLimit)
_NORMALIZING = {gymnasium.wrappers.NormalizeObservation: "normalize_observations",
                gymnasium.wrappers.NormalizeReward: "normalize_rewards",
                vector.NormalizeObservation: "normalize_observations", vector.NormalizeReward: "normalize_rewards"}
"""The setting that takes the place of a wrapper of Gymnasium."""


class GymnasiumEnvironment:
    """E Gymnasium environments of one kind. Vector observations become float32 unless they are bytes.

    The state can be saved if each environment is a `SavesState`. The score is the sum of the innermost environments'
    rewards, before wrappers change them. `at_end` is called when an episode has ended, before the next one begins.
    `alive` is called after each environment that was reset, also at an episode's end. Raises ConfigError if
    observations or actions are not supported, or not the same in each environment, or if a wrapper is refused
    (`refuse_normalizing`).
    """

    def __init__(self, envs: Sequence[gymnasium.Env], name: str, alive: Callable[[], None] = lambda: None) -> None:
        self.envs = list(envs)
        self._alive = alive
        taken = set[int]()
        for env in self.envs:
            refuse_normalizing(name, map(type, _within(env)))
            _own_spaces(env, taken)
        self.at_end: Callable[[], None] = lambda: None
        first = self.envs[0]
        if not isinstance(first.action_space, gymnasium.spaces.Discrete):
            raise ConfigError(f"{name}: actions are {first.action_space}; supported: Discrete")
        self._form = form_of(name, first.observation_space)
        self.note = self._form.note
        self._first_action = int(first.action_space.start)
        self._action = first.action_space.dtype.type
        for env in self.envs[1:]:
            for kind, space, wanted in (("actions", env.action_space, first.action_space),
                                        ("observations", env.observation_space, first.observation_space)):
                if not _alike(space, wanted):
                    raise ConfigError(f"{name}: {kind} are {wanted} in one environment and {space} in another")
        self.spec = EnvSpec(name, self._form.shape, self._form.dtype, int(first.action_space.n), 1)
        self.observation = np.zeros((len(self.envs), *self._form.shape), self._form.dtype)
        self._inner = [InnerRewards(env) for env in self.envs] if any(map(_changes_rewards, self.envs)) else []

    def reset(self, seed: int) -> None:
        for index, env in enumerate(self.envs):
            _seed_spaces(env, (seed + index) % 2**31)
            self._begin(index, env.reset(seed=(seed + index) % 2**31))
            self._alive()

    def restart(self, number: int) -> None:
        self._begin(number, self.envs[number].reset())

    def _begin(self, index: int, returned: Any) -> None:
        observation, _ = parts("reset", returned, _RESET)
        self._form.take(observation, self.observation[index])
        if self._inner:
            self._inner[index].begin()  # a wrapper's own steps before the first observation do not count

    def step(self, action: NDArray[np.int64]) -> Transition:
        n = len(self.envs)
        reward = np.empty(n, np.float32)
        score = np.empty(n, np.float32) if self._inner else None
        terminated = np.zeros(n, np.bool_)
        truncated = np.zeros(n, np.bool_)
        final = None
        for index, (env, chosen) in enumerate(zip(self.envs, action + self._first_action, strict=True)):
            observation, outer, ends, cut, _ = parts("step", env.step(self._action(chosen)), _STEP)
            outer = number("reward", outer)
            reward[index] = outer
            if score is not None:
                score[index] = self._inner[index].take(outer)
            self._form.take(observation, self.observation[index])
            if flag("terminated", ends):
                terminated[index] = True
            elif flag("truncated", cut):
                truncated[index] = True
                # Before the reset: many environments write all observations into one array of theirs.
                final = np.zeros_like(self.observation) if final is None else final
                final[index] = self.observation[index]
            else:
                continue
            self.at_end()
            self._begin(index, env.reset())
            self._alive()
        return Transition(reward, terminated, truncated, terminated | truncated, final, score=score)

    def show(self, into: NDArray) -> None:
        into[:] = self.observation

    def state(self) -> State | None:
        saving = self._saving()
        if not saving:
            return None
        states = [env.save_state() for env in saving]
        return {"observation": self.observation.copy(),
                **{f"environments.{name}": np.stack([state[name] for state in states]) for name in states[0]}}

    def restore(self, state: State) -> None:
        own = self.state()
        if own is None:
            raise ValueError(f"{self.spec.name} cannot be restored")
        check_same_layout(state, own)
        for index, env in enumerate(self._saving()):
            env.restore_state({name.removeprefix("environments."): array[index]
                               for name, array in state.items() if name.startswith("environments.")})
        self.observation[:] = state["observation"]

    def _saving(self) -> list[SavesState]:
        """Returns the environments if all of them save their state, else an empty list."""
        saving: list[SavesState] = [env for env in self.envs if isinstance(env, SavesState)]
        return saving if len(saving) == len(self.envs) else []

    def close(self) -> None:
        close_all(self.envs)

    def rendered(self) -> object:
        """Returns the result of the first environment's `render()`, or None if it draws nothing."""
        try:
            return self.envs[0].render()
        except NotImplementedError:
            return None


def close_all(environments: Iterable[Environment | gymnasium.Env]) -> None:
    """Closes each environment, even if another one fails. Then raises the first exception."""
    failed: BaseException | None = None
    for environment in environments:
        try:
            environment.close()
        except BaseException as error:  # noqa: B036  # of users
            failed = failed or error
    if failed is not None:
        raise failed


def layers(env: gymnasium.Env) -> list[gymnasium.Env]:
    """Returns the environment and all environments within it, outermost first."""
    envs = [env]
    while isinstance(envs[-1], gymnasium.Wrapper):
        envs.append(envs[-1].env)
    return envs


def refuse_normalizing(name: str, kinds: Iterable[type]) -> None:
    """Raises ConfigError if one of these classes is a normalising wrapper of Gymnasium, or derived from one.

    Each environment would keep statistics of its own, and no checkpoint would hold them.
    """
    settings = {kind.__name__: setting for kind in kinds for wrapper, setting in _NORMALIZING.items()
                if issubclass(kind, wrapper)}
    if settings:
        raise ConfigError(f"{name}: {' and '.join(settings)} would keep statistics that no checkpoint holds; use "
                          f"{' and '.join(map(option, dict.fromkeys(settings.values())))} instead")


def _within(env: gymnasium.Env) -> Iterator[gymnasium.Env | gymnasium.vector.VectorEnv]:
    """Yields the environment and all that it holds, as wrappers and vectors of environments do."""
    seen = set[int]()
    waiting: list[Any] = [env]
    while waiting:
        holder = waiting.pop()
        if isinstance(holder, list | tuple):
            waiting.extend(holder)
        elif isinstance(holder, gymnasium.Env | gymnasium.vector.VectorEnv) and id(holder) not in seen:
            seen.add(id(holder))
            yield holder
            waiting.extend(vars(holder).values())


def _alike(space: gymnasium.Space, other: gymnasium.Space) -> bool:
    """Returns whether two spaces have the same values. Bounds of observations may differ."""
    if isinstance(space, gymnasium.spaces.Box):
        return isinstance(other, gymnasium.spaces.Box) and (space.shape, space.dtype) == (other.shape, other.dtype)
    return space == other


def _own_spaces(env: gymnasium.Env, taken: set[int]) -> None:
    """Copies the spaces that the innermost environment shares with its class or with others: `taken`, by id.

    Otherwise the seed of another environment would reach them. A space of its own stays, as it may have it twice.
    """
    inner = env.unwrapped
    for name in _SPACES:
        space = getattr(inner, name, None)
        if isinstance(space, gymnasium.Space) and (id(space) in taken or getattr(type(inner), name, None) is space):
            with contextlib.suppress(Exception):  # a class with slots, a property, a space that cannot be copied
                setattr(inner, name, copy.deepcopy(space))
        taken.add(id(space))


def _seed_spaces(env: gymnasium.Env, seed: int) -> None:
    """Seeds the spaces of all wrappers, too, because samples from an unseeded space differ from run to run."""
    for layer in layers(env):
        for name in _SPACES:
            space = getattr(layer, name, None)
            if isinstance(space, gymnasium.Space):
                space.seed(seed)


def _changes_rewards(env: gymnasium.Env) -> bool:
    """Returns whether a wrapper may change the rewards of the innermost environment."""
    while type(env) in _LEAVE_REWARDS:  # a class derived from one of them may change them
        env = env.env  # type: ignore[attr-defined]
    return env is not env.unwrapped


class InnerRewards:
    """The sum of the innermost environment's rewards, recorded by a function in place of its `step`.

    `begin` records the current innermost environment. If its rewards cannot be recorded or are not finite numbers, the
    outermost wrapper's reward counts.
    """

    def __init__(self, env: gymnasium.Env) -> None:
        self._env = env
        self._sum = 0.0
        self._depth = 0
        self._stepped = False  # whether a step was ever recorded; none is if it plays in another process
        self._inner: gymnasium.Env | None = None
        self._own: Any = None  # `step` among the innermost one's instance attributes, if it is there
        self.begin()

    def begin(self) -> None:
        """Begins an episode: records the innermost environment, which may be a new one, and sets the sum to 0.

        A wrapper may already have played some steps of the episode.
        """
        inner = self._env.unwrapped
        if inner is not self._inner:
            with contextlib.suppress(AttributeError):  # a class with slots
                self._leave()
                self._inner = inner
                self._stepped = False
                self._own = vars(inner).get("step")
                inner.step = functools.partial(self._listen, inner.step)  # type: ignore[method-assign]
        self._sum = 0.0

    def _leave(self) -> None:
        """Restores `step` of the environment recorded so far. It may be played again, or beside the current one."""
        if self._inner is not None and self._own is not None:
            self._inner.step = self._own  # type: ignore[method-assign]
        elif self._inner is not None:
            del self._inner.step

    def _listen(self, step: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        self._depth += 1  # `step` may call itself
        try:
            returned = step(*arguments, **named)
        finally:
            self._depth -= 1
        if not self._depth:
            self._stepped = True
            try:
                self._sum += number("reward", returned[1])
            except Exception:  # only the wrappers turn it into a number
                self._sum = math.nan
        return returned

    def take(self, outer: float) -> float:
        """Returns the sum of rewards since the last call.

        Returns `outer`, the outermost wrapper's reward, if no step was recorded or the sum is not finite.
        """
        total = self._sum
        self._sum = 0.0
        return total if self._stepped and math.isfinite(total) else outer
