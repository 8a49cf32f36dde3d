"""Screens become the frames that OpenCV makes of each alone."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ga3c.envs.frames import FrameResizer


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@given(height=st.sampled_from([210, 210, 250, 214, 220, 230]), brightest=st.integers(1, 255),
       seed=st.integers(0, 2**32 - 1), values=st.sampled_from([2, 3, 256]))
def test_frames_are_those_that_opencv_makes_of_each_screen(
        n: int, height: int, brightest: int, seed: int, values: int) -> None:
    resizer, rng = FrameResizer(height, 160), np.random.default_rng(seed)
    for screen in resizer.screens:
        screen[:] = rng.integers(values, size=screen.shape) * brightest // (values - 1)
    frames = list(np.zeros((n, 84, 84), np.uint8))
    resizer.resize(frames)
    for screen, frame in zip(resizer.screens, frames, strict=False):
        np.testing.assert_array_equal(frame, cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA))
