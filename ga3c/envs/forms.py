"""Supported forms of observations and rewards, and their conversion into ours. Our images are uint8, channels last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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

    `space_shape` is the shape of the environment's space; `shape` and `dtype` are ours. `arrange` turns an observation
    of `space_shape` into one of `shape`. None means that the shapes are the same. `note` is a line for the user, or "".
    """

    space_shape: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    arrange: Callable[[NDArray], NDArray] | None = None
    note: str = ""

    def take(self, observation: Any, into: NDArray) -> None:
        """Copies one observation into `into`, an array of `shape`. Raises WrongForm for a wrong shape or dtype."""
        array = np.asarray(observation)
        if array.shape != self.space_shape:
            raise WrongForm(f"an observation is {array.dtype} {array.shape}; its space says {self.space_shape}")
        try:
            np.copyto(into, self.arrange(array) if self.arrange else array,
                      casting="safe" if self.dtype == np.uint8 else "same_kind")
        except TypeError:
            raise WrongForm(f"an observation is {array.dtype} {array.shape}; it is to be {self.dtype}") from None


def form_of(name: str, space: gymnasium.Space) -> Form:
    """Returns the form of observations of `space`. Raises ConfigError if the space is not supported."""
    wrong = ConfigError(f"{name}: observations are {space}; supported: a one-dimensional Box, or a uint8 Box of "
                        "height x width x channels, also channels first, grey, or a stack of such frames")
    if not isinstance(space, gymnasium.spaces.Box):
        raise wrong
    shape = space.shape
    is_bytes = space.dtype == np.uint8
    if len(shape) == 1 and shape[0]:
        return Form(shape, shape, np.dtype(np.uint8 if is_bytes else np.float32))
    if not is_bytes or 0 in shape or not 2 <= len(shape) <= 4:
        raise wrong
    dtype = np.dtype(np.uint8)
    if len(shape) == 2:
        return Form(shape, (*shape, 1), dtype, lambda image: image[..., None])
    frames, *image_shape = shape if len(shape) == 4 else (1, *shape)
    first = _channels_first(image_shape)
    if len(shape) == 3 and not first:
        return Form(shape, shape, dtype)
    height, width, channels = (*image_shape[1:], image_shape[0]) if first else image_shape
    converted = (height, width, frames * channels)

    def arrange(observation: NDArray) -> NDArray:
        if first:
            return observation.reshape(-1, height, width).transpose(1, 2, 0)
        return observation.transpose(1, 2, 0, 3).reshape(converted)

    images = "images" if len(shape) == 3 else "stacks of images"
    note = (f"{name}: {images} of {shape} have their channels first; they are converted to {converted}" if first else
            f"{name}: {images} of {shape} are converted to images of {converted}")
    return Form(shape, converted, dtype, arrange, note)


def _channels_first(shape: Sequence[int]) -> bool:
    """Returns whether the first of three axes is the channels: it is at most `_CHANNELS` and the shortest."""
    return shape[0] <= _CHANNELS and shape[0] < min(shape[1:])


def number(what: str, value: Any) -> float:
    """Returns a reward as a float. Accepts any number, or an array of one; else raises WrongForm."""
    if type(value) is float:
        return value
    try:
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf":
            return float(array.reshape(-1)[0])
    except (TypeError, ValueError):
        pass  # no array can be made of it; reported below
    raise WrongForm(f"{what} is {_shown(value)}; it is to be one number")


def flag(what: str, value: Any) -> bool:
    """Returns an end of an episode as a bool. Accepts a bool, a number, or an array of one; else raises WrongForm."""
    if value is True or value is False:
        return value
    if isinstance(value, np.bool_ | int | float | np.number | np.ndarray) and np.size(value) == 1:
        return bool(np.asarray(value).reshape(-1)[0])
    raise WrongForm(f"{what} is {_shown(value)}; it is to be True or False")


def parts(of: str, value: Any, wanted: tuple[str, ...]) -> tuple[Any, ...]:
    """Returns `value`, the result of `reset` or `step`. Raises WrongForm unless it is a tuple as long as `wanted`."""
    if isinstance(value, tuple) and len(value) == len(wanted):
        return value
    count = f"{len(value)} values" if isinstance(value, tuple) else _shown(value)
    raise WrongForm(f"{of} returned {count}; Gymnasium wants {len(wanted)}: {', '.join(wanted)}")


def _shown(value: Any) -> str:
    try:
        text = " ".join(repr(value).split())
    except Exception:  # its own code, which may raise anything
        text = "?"
    return f"{text[:60]} ({type(value).__name__})"
