"""Running means and variances that wrappers keep, as Gymnasium's NormalizeObservation and NormalizeReward do.

Each environment has its own wrappers, so each sees only a part of the data. This module merges the parts (Chan et al.,
1979). New environments, evaluations and commands that show the policy use the merged statistics.

Statistics are arrays (n, 3) float64. They hold count, mean and sum of squared deviations of each of n numbers, over all
wrappers of one environment.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ga3c.envs.base import Environment
from ga3c.envs.containment import described
from ga3c.envs.gymnasium import layers
from ga3c.settings.messages import ConfigError

Statistics = NDArray[np.float64]
SAVED = "wrappers.statistics"
"""The name of wrappers' statistics in checkpoints and policy files."""


def merged(a: Statistics, b: Statistics) -> Statistics:
    """Returns the statistics of the data of `a` and `b` together."""
    count = a[:, 0] + b[:, 0]
    whole = np.maximum(count, 1e-300)  # avoids a division by 0 where nothing was seen
    apart = b[:, 1] - a[:, 1]
    return np.stack([count, a[:, 1] + apart * b[:, 0] / whole,
                     a[:, 2] + b[:, 2] + apart**2 * a[:, 0] * b[:, 0] / whole], axis=1)


def since(now: Statistics, before: Statistics) -> Statistics:
    """Returns the statistics of the data seen after `before`. Merged with `before`, they give `now`."""
    count = np.maximum(now[:, 0] - before[:, 0], 0.0)
    new = np.maximum(count, 1e-300)
    mean = now[:, 1] + (now[:, 1] - before[:, 1]) * before[:, 0] / new
    apart = (mean - before[:, 1])**2 * before[:, 0] * count / np.maximum(now[:, 0], 1e-300)
    squares = now[:, 2] - before[:, 2] - apart
    found = np.stack([count, mean, np.maximum(squares, 0.0)], axis=1)
    return np.where(count[:, None] > 0, found, 0.0)


class WrapperStatistics:
    """The statistics of one agent's environments.

    Args:
        base: statistics of all agents so far, with which new environments begin; None if there are none yet.
    """

    def __init__(self, base: Statistics | None = None) -> None:
        self._base = base
        self._before: Statistics | None = None      # of environments that were replaced
        self._kept: list[list[Any]] = []            # by environment
        self._began: list[Statistics] = []
        self._parts: list[Statistics] = []          # the last finite `since` of each environment

    def follow(self, environment: Environment) -> None:
        """Replaces the followed environments by these. Their wrappers begin with all statistics known so far."""
        self._before = self.seen() if self._kept else None
        self._kept = [_kept(env) for env in _environments_of(environment)]
        known = [each for each in (self._base, self._before) if each is not None]
        for kept in self._kept:
            _set_statistics(kept, functools.reduce(merged, known) if known else None)
        self._began = [_statistics_of(kept) for kept in self._kept]
        self._parts = [np.zeros_like(began) for began in self._began]

    def seen(self) -> Statistics:
        """Returns the statistics of these environments and of those they replaced, without `base`.

        If an environment's statistics are no longer finite, those of the last call that were finite count.
        """
        with np.errstate(all="ignore"):
            now = [since(_statistics_of(kept), began) for kept, began in zip(self._kept, self._began, strict=True)]
        self._parts = [new if np.isfinite(new).all() else old for new, old in zip(now, self._parts, strict=True)]
        return functools.reduce(merged, self._parts if self._before is None else [self._before, *self._parts])


def count_numbers(environment: Environment) -> int:
    """Returns how many numbers the wrappers of one environment keep statistics of; 0 if no wrapper does."""
    inside = _environments_of(environment)
    return len(_statistics_of(_kept(inside[0]))) if inside else 0


def cannot_be_kept(environment: Environment, size_before: int) -> str:
    """Returns why these environments' statistics cannot be given to environments that have not played, or "".

    size_before: `count_numbers` of these environments before they played. The call overwrites their statistics.
    """
    kept = _kept(_environments_of(environment)[0])
    if len(_statistics_of(kept)) != size_before:
        return "get their shape only after the first step"
    try:
        _set_statistics(kept, np.tile([1.0, 0.0, 1.0], (size_before, 1)))
    except Exception as error:  # of users
        return f"cannot be set, {described(error)}"
    return ""


def freeze(environment: Environment, statistics: Statistics | None) -> None:
    """Gives the wrappers these statistics and stops their learning.

    `statistics` is None if they could not be kept. Then each wrapper goes on learning. Raises ConfigError if the
    statistics are of other wrappers.
    """
    envs = _environments_of(environment) if statistics is not None else []
    for number, env in enumerate(envs):
        if kept := _kept(env):
            _set_statistics(kept, statistics)
            envs[number] = _Frozen(env, kept)


class _Frozen(gymnasium.Wrapper):
    """A wrapper that restores the statistics of the objects `kept` after each reset and step."""

    def __init__(self, env: gymnasium.Env, kept: list[Any]) -> None:
        super().__init__(env)
        self._counted = [(each, each.mean, each.var, each.count) for each in kept]
        for each in kept:
            with contextlib.suppress(AttributeError):  # a class with slots; `_put_back` covers it
                each.update = _learn_nothing

    def reset(self, **options: Any) -> Any:
        """Resets the environment, then restores the statistics."""
        return self._put_back(self.env.reset(**options))

    def step(self, action: Any) -> Any:
        """Steps the environment, then restores the statistics."""
        return self._put_back(self.env.step(action))

    def _put_back(self, returned: Any) -> Any:
        for each, mean, var, count in self._counted:
            each.mean, each.var, each.count = np.copy(mean), np.copy(var), count
        return returned


def wrapper_names(environment: Environment) -> list[str]:
    """Returns the names of the wrappers that keep statistics, outermost first."""
    inside = _environments_of(environment)
    return [type(each).__name__ for each in layers(inside[0]) if _running_statistics_of(each)] if inside else []


def unsaved_attributes(environment: Environment, seed: int) -> list[str]:
    """Returns what else user wrappers carry from one episode to the next, as "Wrapper.attribute".

    Checkpoints do not save it. The function finds it by beginning the same episode twice, with a step between.
    """
    others = [each for env in _environments_of(environment)[:1] for each in layers(env)[:-1]
              if not type(each).__module__.startswith("gymnasium.")]
    if not others:
        return []
    environment.reset(seed)
    before = [_numbers(each) for each in others]
    environment.step(np.zeros(len(_environments_of(environment)), np.int64))
    environment.reset(seed)
    return [f"{type(wrapper).__name__}.{name}" for wrapper, first in zip(others, before, strict=True)
            for name, value in first.items() if value != _numbers(wrapper).get(name)]


def _numbers(wrapper: gymnasium.Env) -> dict[str, bytes]:
    """Returns the wrapper's attributes that are numbers or arrays of numbers, as bytes."""
    return {name: np.asarray(value).tobytes() for name, value in vars(wrapper).items()
            if isinstance(value, int | float | np.number | np.ndarray) and np.asarray(value).dtype.kind in "biuf"}


def _learn_nothing(*seen: object, **named: object) -> None:
    pass


def _environments_of(environment: Environment) -> list[gymnasium.Env]:
    return getattr(environment, "envs", [])


def _kept(env: gymnasium.Env) -> list[Any]:
    """Returns the objects of all wrappers that keep a running mean and variance, outermost first."""
    return [each for wrapper in layers(env) for each in _running_statistics_of(wrapper)]


def _running_statistics_of(wrapper: gymnasium.Env) -> list[Any]:
    return [each for each in vars(wrapper).values() if _is_running(each)] if hasattr(wrapper, "__dict__") else []


def _is_running(value: Any) -> bool:
    """Returns whether `value` looks like Gymnasium's RunningMeanStd: `mean` and `var` of one shape, and a `count`."""
    found: list[Any] = [getattr(value, name, None) for name in ("mean", "var", "count")]
    numbers = all(isinstance(each, np.ndarray | np.number | float | int) for each in found)
    computed = any(isinstance(getattr(type(value), name, None), property) for name in ("mean", "var", "count"))
    return numbers and not computed and np.shape(found[0]) == np.shape(found[1]) and np.size(found[2]) == 1


def _statistics_of(kept: list[Any]) -> Statistics:
    parts = [np.zeros((0, 3))]
    for each in kept:
        mean, count = np.asarray(each.mean, np.float64).reshape(-1), float(each.count)
        variance = np.asarray(each.var, np.float64).reshape(-1)
        parts.append(np.stack([np.full(len(mean), count), mean, variance * count], axis=1))
    return np.concatenate(parts)


def _set_statistics(kept: list[Any], statistics: Statistics | None) -> None:
    """Puts `statistics` into the objects as float64, because float32 loses small additions in long runs."""
    at = 0
    if statistics is not None and len(statistics) != len(_statistics_of(kept)):
        raise ConfigError(f"wrappers: statistics of {len(statistics)} numbers were saved, but these wrappers keep "
                          f"{len(_statistics_of(kept))}; use the wrappers of the training")
    for each in kept:
        shape, n = np.shape(each.mean), np.size(each.mean)
        part = None if statistics is None else statistics[at:at + n]
        at += n
        if part is None or not part[:, 0].all():
            each.mean, each.var = np.array(each.mean, np.float64), np.array(each.var, np.float64)
        else:
            each.mean = part[:, 1].reshape(shape).copy()
            each.var, each.count = (part[:, 2] / part[:, 0]).reshape(shape), float(part[0, 0])
