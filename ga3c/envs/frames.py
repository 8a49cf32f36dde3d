"""Screens of emulators to pictures of 84 x 84, each pixel the mean of its area.

Pixel for pixel what OpenCV's `resize` does by INTER_AREA, in 40 % of the time, or half where there are fewer than four:
a channel of four of 16 bits takes less than a third of what a screen of bytes takes. So four screens become channels of
one, or four bands of a single screen.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

PICTURE = (84, 84)
TOGETHER = 4  # for more channels there is no `resize`
# Of 210 rows five become two, so these begin and end where rows of the picture do; the last two overlap.
_BAND_ROWS, _BANDS_AT = 55, (0, 55, 110, 155)


class _Fourfold:
    """Shrinks four images of one size at once."""

    def __init__(self, size: tuple[int, int], shrunk: tuple[int, int]) -> None:
        self._bytes, self._wide = (np.zeros((*size, TOGETHER), kind) for kind in (np.uint8, np.uint16))
        self._shrunk, self._shrunk_wide = (np.zeros((*shrunk, TOGETHER), kind) for kind in (np.uint8, np.uint16))

    def __call__(self, images: Sequence[NDArray[np.uint8]], into: Sequence[NDArray[np.uint8]]) -> None:
        """Four each; arrays of `into` are of the shrunk size, without gaps."""
        cv2.merge(images, self._bytes)
        self._wide[:] = self._bytes
        cv2.resize(self._wide, self._shrunk.shape[1::-1], self._shrunk_wide, 0, 0, cv2.INTER_AREA)
        self._shrunk[:] = self._shrunk_wide
        cv2.split(self._shrunk, into)


class Shrinker:
    """Shrinks screens of one game: `screens` are four, of (height, width) bytes, to be filled from the first on."""

    def __init__(self, height: int, width: int) -> None:
        self.screens = list(np.zeros((TOGETHER, height, width), np.uint8))
        self._whole = _Fourfold((height, width), PICTURE)
        self._bands = None
        if height == 210:
            self._bands = _Fourfold((_BAND_ROWS, width), (_BAND_ROWS * 2 // 5, PICTURE[1]))

    def shrink(self, pictures: Sequence[NDArray[np.uint8]]) -> None:
        """Shrinks the first of `screens` into `pictures`, one to four of (84, 84) without gaps."""
        if len(pictures) == TOGETHER:
            self._whole(self.screens, pictures)
            return
        for screen, picture in zip(self.screens, pictures, strict=False):
            if self._bands is not None:
                self._bands([screen[row:row + _BAND_ROWS] for row in _BANDS_AT],
                            [picture[row * 2 // 5:(row + _BAND_ROWS) * 2 // 5] for row in _BANDS_AT])
            else:
                cv2.resize(screen, PICTURE, picture, 0, 0, cv2.INTER_AREA)
