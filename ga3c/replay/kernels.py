"""Compiled functions of the replay. They run without the interpreter's lock, so agents are answered meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(function: _F) -> _F:
    made: _F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return made


@_compiled
def stack(frames: Any, rows: Any, into: Any) -> None:
    """Puts planes side by side. frames (R, P): planes. rows (n, k): the planes of each stack. into (n, P, k)."""
    n, pixels, k = into.shape
    for i in range(n):
        for pixel in range(pixels):
            for plane in range(k):
                into[i, pixel, plane] = frames[rows[i, plane], pixel]


@_compiled
def stack_four(frames: Any, rows: Any, into: Any) -> None:
    """Does the same for four planes of bytes, with a number for the four bytes of a pixel: into (n, P) uint32."""
    n, pixels = into.shape
    for i in range(n):
        first, second = frames[rows[i, 0]], frames[rows[i, 1]]
        third, fourth = frames[rows[i, 2]], frames[rows[i, 3]]
        stacks = into[i]
        for pixel in range(pixels):
            stacks[pixel] = (numba.uint32(first[pixel]) | numba.uint32(second[pixel]) << 8
                             | numba.uint32(third[pixel]) << 16 | numba.uint32(fourth[pixel]) << 24)


@_compiled
def assign(sums: Any, leaves: Any, values: Any) -> None:
    """Sets leaves of a binary tree of sums, and recomputes the nodes above them from their children.

    sums (2 L,): node i has the children 2 i and 2 i + 1, and the leaf number j is node L + j.
    """
    first = len(sums) // 2
    for i in range(len(leaves)):
        node = first + leaves[i]
        sums[node] = values[i]
        node //= 2
        while node:
            sums[node] = sums[2 * node] + sums[2 * node + 1]
            node //= 2


@_compiled
def find(sums: Any, points: Any, into: Any) -> None:
    """Writes the leaf that each point in [0, sums[1]) falls on. A leaf of 0 is never found, whatever is rounded."""
    first = len(sums) // 2
    for i in range(len(points)):
        point, node = points[i], 1
        while node < first:
            node *= 2
            if point >= sums[node] and sums[node + 1] > 0.0:
                point -= sums[node]
                node += 1
            elif sums[node] == 0.0:
                node += 1
        into[i] = node - first
