"""What observations and rewards may look like, and how they become ours. Pictures are uint8, channels last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ga3c.settings.messages import ConfigError

_CHANNELS = 16  # a picture has at most so many where they come first: more are more likely rows


class WrongForm(ValueError):
    """An environment gave something else than its space or Gymnasium's interface says."""


class Form(NamedTuple):
    """How an environment's observations become the service's.

    `given` is the shape that its space says; `shape` and `dtype` are ours. `arrange` brings one observation from the
    one shape to the other, without a copy; None: they are the same. `note`: what a person should know of it, or "".
    """

    given: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    arrange: Callable[[NDArray], NDArray] | None = None
    note: str = ""

    def take(self, observation: Any, into: NDArray) -> None:
        """Copies one observation of the environment `into` an array of `shape`. Raises WrongForm."""
        seen = np.asarray(observation)
        if seen.shape != self.given:
            raise WrongForm(f"an observation is {seen.dtype} {seen.shape}; its space says {self.given}")
        try:
            np.copyto(into, self.arrange(seen) if self.arrange else seen,
                      casting="safe" if self.dtype == np.uint8 else "same_kind")
        except TypeError:
            raise WrongForm(f"an observation is {seen.dtype} {seen.shape}; it is to be {self.dtype}") from None


def form_of(name: str, space: gymnasium.Space) -> Form:
    """The form of observations of `space`. Raises ConfigError if it is not supported."""
    wrong = ConfigError(f"{name}: observations are {space}; supported: a one-dimensional Box, or a uint8 Box of "
                        "height x width x channels, also channels first, grey, or a stack of such frames")
    if not isinstance(space, gymnasium.spaces.Box):
        raise wrong
    shape, is_bytes = space.shape, space.dtype == np.uint8
    if len(shape) == 1 and shape[0]:
        return Form(shape, shape, np.dtype(np.uint8 if is_bytes else np.float32))
    if not is_bytes or 0 in shape or not 2 <= len(shape) <= 4:
        raise wrong
    dtype = np.dtype(np.uint8)
    if len(shape) == 2:
        return Form(shape, (*shape, 1), dtype, lambda seen: seen[..., None])
    if len(shape) == 3 and not _channels_first(shape):
        return Form(shape, shape, dtype)
    ours: tuple[int, ...]
    if len(shape) == 3:
        ours = (*shape[1:], shape[0])
        return Form(shape, ours, dtype, lambda seen: seen.transpose(1, 2, 0),
                    f"{name}: pictures of {shape} have their channels first; they are turned into {ours}")
    frames, rest = shape[0], shape[1:]
    if _channels_first(rest):
        ours = (*rest[1:], frames * rest[0])
        return Form(shape, ours, dtype, lambda seen: seen.reshape(frames * rest[0], *rest[1:]).transpose(1, 2, 0),
                    f"{name}: stacks of pictures of {shape} have their channels first; they are turned into {ours}")
    ours = (*rest[:2], frames * rest[2])
    return Form(shape, ours, dtype, lambda seen: seen.transpose(1, 2, 0, 3).reshape(ours),
                f"{name}: stacks of pictures of {shape} are turned into pictures of {ours}")


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Whether the first of three dimensions is that of the channels: small, and the smallest."""
    return shape[0] <= _CHANNELS and shape[0] < min(shape[1:])


def number(what: str, given: Any) -> float:
    """A reward as a float: any number, or an array of one. Raises WrongForm."""
    if type(given) is float:
        return given
    try:
        array = np.asarray(given)
        if array.size == 1 and array.dtype.kind in "biuf":
            return float(array.reshape(-1)[0])
    except (TypeError, ValueError):
        pass  # no array can be made of it; said below
    raise WrongForm(f"{what} is {_shown(given)}; it is to be one number")


def flag(what: str, given: Any) -> bool:
    """Whether an episode ended, as a bool: True, False, 0, 1, or an array of one. Raises WrongForm."""
    if given is True or given is False:
        return given
    if isinstance(given, np.bool_ | int | float | np.number | np.ndarray) and np.size(given) == 1:
        return bool(np.asarray(given).reshape(-1)[0])
    raise WrongForm(f"{what} is {_shown(given)}; it is to be True or False")


def parts(of: str, given: Any, wanted: tuple[str, ...]) -> tuple[Any, ...]:
    """What `reset` or `step` returned, if it has as many parts as Gymnasium says. Raises WrongForm."""
    if isinstance(given, tuple) and len(given) == len(wanted):
        return given
    count = f"{len(given)} values" if isinstance(given, tuple) else _shown(given)
    raise WrongForm(f"{of} returned {count}; Gymnasium wants {len(wanted)}: {', '.join(wanted)}")


def _shown(given: Any) -> str:
    try:
        text = " ".join(repr(given).split())
    except Exception:  # its own code, which may raise anything
        text = "?"
    return f"{text[:60]} ({type(given).__name__})"
