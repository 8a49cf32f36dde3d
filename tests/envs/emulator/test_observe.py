"""Observations, against OpenCV and against ale-py's screens."""

from __future__ import annotations

import ale_py
import cv2
import numpy as np
import pytest
from ale_py import roms
from numpy.typing import NDArray

from ga3c.envs.emulator.observe import area, has_area, observe, resized, scratch
from ga3c.envs.emulator.palette import GREY, RGB


def screens(lines: int, seed: int) -> NDArray[np.uint8]:
    """Two of palette indices. Some rows are those above, as in games."""
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 256, (2, lines, 160), np.uint8) & 0xFE
    rows = np.maximum.accumulate(np.where(rng.random(lines) < 0.5, np.arange(lines), 0))
    return np.ascontiguousarray(made[:, rows])


@pytest.mark.parametrize("lines", [210, 250])
@pytest.mark.parametrize("size", [(84, 84), (64, 64), (110, 84), (42, 42), (100, 160), (210, 84), (84, 160)])
def test_the_mean_of_areas_is_opencvs_to_the_bit(lines: int, size: tuple[int, int]) -> None:
    assert has_area(lines, size)
    table, lines_of_numbers = area(lines, size), scratch(size)
    for seed in range(20):
        one, other = screens(lines, seed)
        seen, slowly = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        observe(one, other, table, lines_of_numbers, seen)
        brighter = np.maximum(GREY[one], GREY[other])
        np.testing.assert_array_equal(seen, cv2.resize(brighter, size[::-1], interpolation=cv2.INTER_AREA))
        resized(one, other, True, slowly)
        np.testing.assert_array_equal(seen, slowly)


@pytest.mark.parametrize(("lines", "size"), [(210, (105, 80)), (210, (210, 160)), (210, (211, 84)), (250, (50, 40))])
def test_other_sizes_are_left_to_opencv(lines: int, size: tuple[int, int]) -> None:
    assert not has_area(lines, size)


@pytest.mark.parametrize("game", ["pong", "breakout", "ms_pacman", "boxing"])
def test_grey_and_colours_are_ale_pys(game: str) -> None:
    emulator = ale_py.ALEInterface()
    emulator.loadROM(roms.get_rom_path(game))
    for frame in range(200):
        emulator.act(frame // 4 % 6)
        if frame % 10 == 0:
            screen = emulator.getScreen()
            np.testing.assert_array_equal(GREY[screen], emulator.getScreenGrayscale().reshape(screen.shape))
            np.testing.assert_array_equal(RGB[screen], emulator.getScreenRGB())
