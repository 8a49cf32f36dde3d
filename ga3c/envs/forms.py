"""Supported forms of observations and rewards, and their conversion into ours. Our images are uint8, channels last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from numpy.typing import NDArray

from ga3c.settings.messages import ConfigError

_CHANNELS = 16  # the most channels of a channels-first image: a longer first axis is more likely its rows


class WrongForm(ValueError):
    """The error of an environment whose output does not match its space or Gymnasium's interface."""


class Form(NamedTuple):
    """The conversion of an environment's observations into the service's.

    `given` is the shape of the environment's space; `shape` and `dtype` are ours. `arrange` turns one observation of
    shape `given` into one of `shape`. None means that the shapes are the same. `note` is a line for the user, or "".
    """

    given: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    arrange: Callable[[NDArray], NDArray] | None = None
    note: str = ""

    def take(self, observation: Any, into: NDArray) -> None:
        """Copies one observation into `into`, an array of `shape`. Raises WrongForm for a wrong shape or dtype."""
        seen = np.asarray(observation)
        if seen.shape != self.given:
            raise WrongForm(f"an observation is {seen.dtype} {seen.shape}; its space says {self.given}")
        try:
            np.copyto(into, self.arrange(seen) if self.arrange else seen,
                      casting="safe" if self.dtype == np.uint8 else "same_kind")
        except TypeError:
            raise WrongForm(f"an observation is {seen.dtype} {seen.shape}; it is to be {self.dtype}") from None


def form_of(name: str, space: gymnasium.Space) -> Form:
    """Returns the form of observations of `space`. Raises ConfigError if the space is not supported."""
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
                    f"{name}: images of {shape} have their channels first; they are converted to {ours}")
    frames, rest = shape[0], shape[1:]
    if _channels_first(rest):
        ours = (*rest[1:], frames * rest[0])
        return Form(shape, ours, dtype, lambda seen: seen.reshape(frames * rest[0], *rest[1:]).transpose(1, 2, 0),
                    f"{name}: stacks of images of {shape} have their channels first; they are converted to {ours}")
    ours = (*rest[:2], frames * rest[2])
    return Form(shape, ours, dtype, lambda seen: seen.transpose(1, 2, 0, 3).reshape(ours),
                f"{name}: stacks of images of {shape} are converted to images of {ours}")


def _channels_first(shape: tuple[int, ...]) -> bool:
    """Returns whether the first of three axes is the channels: it is at most `_CHANNELS` and the shortest."""
    return shape[0] <= _CHANNELS and shape[0] < min(shape[1:])


def number(what: str, given: Any) -> float:
    """Returns a reward as a float. Accepts any number, or an array of one; else raises WrongForm."""
    if type(given) is float:
        return given
    try:
        array = np.asarray(given)
        if array.size == 1 and array.dtype.kind in "biuf":
            return float(array.reshape(-1)[0])
    except (TypeError, ValueError):
        pass  # no array can be made of it; reported below
    raise WrongForm(f"{what} is {_shown(given)}; it is to be one number")


def flag(what: str, given: Any) -> bool:
    """Returns an end of an episode as a bool. Accepts a bool, a number, or an array of one; else raises WrongForm."""
    if given is True or given is False:
        return given
    if isinstance(given, np.bool_ | int | float | np.number | np.ndarray) and np.size(given) == 1:
        return bool(np.asarray(given).reshape(-1)[0])
    raise WrongForm(f"{what} is {_shown(given)}; it is to be True or False")


def parts(of: str, given: Any, wanted: tuple[str, ...]) -> tuple[Any, ...]:
    """Returns `given`, the result of `reset` or `step`. Raises WrongForm unless it is a tuple as long as `wanted`."""
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
