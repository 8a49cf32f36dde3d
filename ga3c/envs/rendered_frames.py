"""Frames made from results of `render()` and from observations: RGB (height, width, 3) uint8, all of one size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FPS = 10.0
_MOST_FPS = 1000.0
_ROW = 16  # numbers of a vector in one row of squares


class NoFrame(Exception):
    """The error of a `render()` whose result is no frame. The message is one line."""


class RenderedFrames:
    """A converter for the frames of one recording, which all have the size of the first one.

    Accepts grey, RGB and RGBA, channels last or first. Values may be bool, bytes, integers from 0 to 255, or floats.
    Floats range from 0 to 1, or to 255 after one was larger than 1. Takes the newest of a list of frames.
    """

    def __init__(self) -> None:
        self._size: tuple[int, int] | None = None  # height and width
        self._scale = 255.0                        # of floats

    def frame(self, shown: object) -> NDArray[np.uint8]:
        """Returns the result of `render()` as a frame, in a new array. Raises NoFrame."""
        rgb = _rgb(self._bytes(_array(shown)))
        if self._size is None:
            self._size = rgb.shape[0], rgb.shape[1]
        if rgb.shape[:2] == self._size:
            return rgb
        import cv2  # imported here to keep the commands' help fast
        resized: NDArray[np.uint8] = cv2.resize(rgb, self._size[::-1], interpolation=cv2.INTER_AREA)  # type: ignore
        return resized

    def of_observation(self, observation: NDArray) -> NDArray[np.uint8]:
        """Returns an observation as a frame.

        Shows an image in colour, or the newest image of a stack. Shows each number of a vector as one square, long
        vectors in several rows.
        """
        if observation.ndim == 3:
            colour = observation.shape[2] == 3 or (observation.shape[2] > 4 and observation.shape[0] in (1, 3))
            return self.frame(observation if colour else observation[:, :, -1])
        row = observation if observation.dtype == np.uint8 else np.clip(np.nan_to_num(observation), 0.0, 1.0)
        columns = len(row) if len(row) <= _ROW else max(_ROW, math.ceil(math.sqrt(len(row))))
        squares = np.pad(row, (0, -len(row) % columns)).reshape(-1, columns)
        return self.frame(squares.repeat(16, axis=0).repeat(16, axis=1))

    def _bytes(self, array: NDArray) -> NDArray[np.uint8]:
        if array.dtype == np.uint8:
            return array
        if array.dtype == np.bool_:
            return array.astype(np.uint8) * np.uint8(255)
        if array.dtype.kind in "iu":
            if array.min() < 0 or array.max() > 255:
                raise NoFrame(f"render() gives numbers from {array.min()} to {array.max()}; right is 0 to 255")
            return array.astype(np.uint8)
        if array.dtype.kind == "f":
            finite = np.nan_to_num(array.astype(np.float64), nan=0.0, posinf=0.0, neginf=0.0)
            if finite.max() > 1.0:
                self._scale = 1.0
            return np.clip(np.rint(self._scale * finite), 0.0, 255.0).astype(np.uint8)
        raise NoFrame(f"render() gives an array of {array.dtype}; right is uint8, or floats from 0 to 1")


def _array(shown: object) -> NDArray:
    """Returns the newest frame in the result of `render()`. Raises NoFrame if there is none."""
    while isinstance(shown, list | tuple) and shown and isinstance(shown[-1], np.ndarray) and shown[-1].ndim >= 2:
        shown = shown[-1]
    try:
        array = np.asarray(shown)
    except ValueError as error:  # rows of different lengths
        raise NoFrame(f"render() gives a {type(shown).__name__} that is no array: {error}") from None
    if array.ndim == 4 and len(array):
        array = array[-1]
    if array.ndim not in (2, 3) or not array.size:
        what = f"an array of shape {array.shape}" if array.ndim else f"a {type(shown).__name__}"
        raise NoFrame(f"render() gives {what}; right is (height, width, 3), as with render_mode \"rgb_array\"")
    return array


def _rgb(array: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if array.ndim == 2:
        array = array[:, :, None]
    elif array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        array = np.moveaxis(array, 0, 2)
    if array.shape[2] == 1:
        return np.repeat(array, 3, axis=2)
    if array.shape[2] not in (3, 4):
        raise NoFrame(f"render() gives an array of shape {array.shape}; right is (height, width, 3)")
    return np.array(array[:, :, :3], order="C")


def frames_per_second(metadata: object) -> float:
    """Returns the frames a second at which an environment is shown, by its metadata; 10 if that has no valid rate."""
    rate: Any = metadata.get("render_fps") if isinstance(metadata, Mapping) else None
    if isinstance(rate, int | float | np.number) and math.isfinite(rate) and 0.0 < rate:
        return min(float(rate), _MOST_FPS)
    return _FPS
