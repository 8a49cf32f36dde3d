"""Turns screens into observations: the brighter of two frames in grey, each pixel the mean of its area.

The pixels are those of OpenCV's `resize` with INTER_AREA, to the bit. Columns are averaged first and then rows, in
float32; halves are rounded to the even number. Rows that equal the row before are averaged once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cv2
import numpy as np
from numpy import int64
from numpy.typing import NDArray

from ga3c.envs.emulator.jit import kernel
from ga3c.envs.emulator.palette import GREY, RGB
from ga3c.envs.frames import FRAME_SIZE

_WIDTH = 160


class Area(NamedTuple):
    """The rows and columns of the screen that each pixel of the result averages, and their weights.

    Row y is the mean of as many rows as `row_weights` (rows, height) has, from `first_row` (height,) on. Columns work
    alike. Weights are 0 where there are fewer.
    """

    first_row: NDArray[np.int64]
    row_weights: NDArray[np.float32]
    first_column: NDArray[np.int64]
    column_weights: NDArray[np.float32]


def area(height: int, resized: tuple[int, int] = FRAME_SIZE) -> Area:
    """Returns the areas that resize screens (height, 160) to `resized` (height, width)."""
    return Area(*_weights(height, resized[0]), *_weights(_WIDTH, resized[1]))


def has_area(height: int, resized: tuple[int, int]) -> bool:
    """Returns whether OpenCV averages as `area` does: no side grows, and not both ratios are whole numbers."""
    ratios = height / resized[0], _WIDTH / resized[1]
    return min(ratios) >= 1 and not all(ratio.is_integer() for ratio in ratios)


def _weights(size: int, resized: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Returns first (resized,) and weights (most, resized) of pixels that share `size` evenly."""
    scale = size / resized
    shares: list[dict[int, float]] = []
    for number in range(resized):
        begin = number * scale
        end = begin + scale
        width = min(scale, size - begin)
        whole, last = min(math.ceil(begin), size - 1), min(math.floor(end), size - 1)
        share = dict.fromkeys(range(whole, last), 1 / width)
        if whole - begin > 1e-3:
            share[whole - 1] = (whole - begin) / width
        if end - last > 1e-3:
            share[last] = min(end - last, 1.0, width) / width
        shares.append(dict(sorted(share.items())))
    most = max(max(share) - min(share) + 1 for share in shares)
    first = np.array([min(min(share), size - most) for share in shares], np.int64)
    weights = np.zeros((most, resized), np.float32)
    for number, share in enumerate(shares):
        for place, weight in share.items():
            weights[place - first[number], number] = weight
    return first, weights


def scratch(resized: tuple[int, int] = FRAME_SIZE) -> NDArray[np.float32]:
    """Returns the array that `observe` needs as `lines`. Every thread has its own."""
    return np.zeros((3, max(_WIDTH, resized[1])), np.float32)


@kernel
def observe(one, other, area, lines, into):
    """Writes the brighter of two screens, resized, into `into` (height, width) uint8.

    `one` and `other` (lines, 160) uint8 hold palette indices. `area` comes from the function of this name, `lines`
    from `scratch`.
    """
    one_words, other_words = one.view(np.int64), other.view(np.int64)
    brighter, averaged, total = lines[0], lines[1], lines[2]
    height, width = into.shape
    rows, columns = len(area.row_weights), len(area.column_weights)
    done = -1
    for y in range(height):
        for place in range(rows):
            weight = area.row_weights[place, y]
            row = area.first_row[y] + place
            if weight == 0:
                if place == 0:
                    for x in range(width):
                        total[x] = 0
                continue
            if row != done:
                if done < 0 or not _same(one_words, row, done) or not _same(other_words, row, done):
                    for x in range(_WIDTH):
                        brighter[x] = max(GREY[one[row, x]], GREY[other[row, x]])
                    for x in range(width):
                        averaged[x] = brighter[area.first_column[x]] * area.column_weights[0, x]
                    for place_x in range(1, columns):
                        for x in range(width):
                            averaged[x] += brighter[area.first_column[x] + place_x] * area.column_weights[place_x, x]
                done = row
            if place == 0:
                for x in range(width):
                    total[x] = weight * averaged[x]
            else:
                for x in range(width):
                    total[x] += weight * averaged[x]
        for x in range(width):
            into[y, x] = np.uint8(np.rint(total[x]))


@kernel
def _same(words, row, other):
    difference = int64(0)
    for place in range(_WIDTH // 8):
        difference |= words[row, place] ^ words[other, place]
    return difference == 0


def resized(one: NDArray[np.uint8], other: NDArray[np.uint8], grey: bool, into: NDArray[np.uint8]) -> None:
    """Does what `observe` does, for any size and for colours: `into` is (height, width) or (height, width, 3) uint8."""
    table = GREY if grey else RGB
    cv2.resize(np.maximum(table[one], table[other]), into.shape[1::-1], into, 0, 0, cv2.INTER_AREA)
