"""Whatever `render()` gives becomes a right picture, or one line that says what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from ga3c.envs.rendered_frames import NoFrame, RenderedFrames, frames_per_second

RGB = np.random.default_rng(0).integers(0, 256, (10, 14, 3), np.uint8)
GREY = RGB[:, :, 0]


@pytest.mark.parametrize(("shown", "expected"), [
    (RGB, RGB), (np.moveaxis(RGB, 2, 0), RGB), (RGB / 255, RGB), ((RGB / 255).astype(np.float32), RGB),
    (RGB.astype(np.float64), RGB), (RGB.astype(np.int64), RGB), (np.dstack([RGB, GREY]), RGB),
    (GREY, np.dstack([GREY] * 3)), (GREY[:, :, None], np.dstack([GREY] * 3)), (GREY[None], np.dstack([GREY] * 3)),
    (GREY > 99, np.dstack([(GREY > 99) * np.uint8(255)] * 3)), ([RGB[::-1], RGB], RGB), ((RGB,), RGB),
    (np.stack([RGB[::-1], RGB]), RGB), (RGB.tolist(), RGB), (np.asfortranarray(RGB), RGB),
    (np.where(RGB == RGB[0, 0], np.nan, RGB / 255), np.where(RGB == RGB[0, 0], 0, RGB))])
def test_a_picture_is_rgb(shown: object, expected: NDArray) -> None:
    picture = RenderedFrames().frame(shown)
    assert picture.dtype == np.uint8 and picture.flags.c_contiguous
    np.testing.assert_array_equal(picture, expected)


def test_a_picture_is_an_array_of_its_own() -> None:
    shown = RGB.copy()
    picture = RenderedFrames().frame(shown)
    shown[:] = 0
    np.testing.assert_array_equal(picture, RGB)


def test_pictures_have_the_first_ones_size() -> None:
    pictures = RenderedFrames()
    pictures.frame(np.zeros((8, 12, 3), np.uint8))
    for size in ((16, 24), (4, 6), (9, 300)):
        picture = pictures.frame(np.full((*size, 3), 200, np.uint8))
        assert picture.shape == (8, 12, 3) and (picture == 200).all()


def test_floats_up_to_255_are_not_taken_for_bright_where_the_game_is_dark() -> None:
    pictures = RenderedFrames()
    assert (pictures.frame(np.full((4, 4), 0.5)) == 128).all()
    assert (pictures.frame(np.full((4, 4), 200.0)) == 200).all()
    assert (pictures.frame(np.full((4, 4), 1.0)) == 1).all()


@pytest.mark.parametrize(("shown", "told"), [
    ("a board", "a str; right is (height, width, 3)"), (None, "a NoneType; right is"), ({}, "a dict; right is"),
    (np.zeros(5, np.uint8), "shape (5,)"), (np.zeros((2, 0, 3), np.uint8), "shape (2, 0, 3)"),
    (np.zeros((6, 7, 2), np.uint8), "shape (6, 7, 2)"), ([[1, 2], [3]], "no array"), ([], "shape (0,)"),
    (np.full((4, 4), 300), "numbers from 300 to 300; right is 0 to 255"), (np.zeros((4, 4), complex), "complex128")])
def test_what_is_no_picture_is_one_line(shown: object, told: str) -> None:
    with pytest.raises(NoFrame) as caught:
        RenderedFrames().frame(shown)
    assert told in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("shape", "shown"), [
    ((6, 8, 3), lambda seen: seen), ((3, 16, 8), lambda seen: np.moveaxis(seen, 0, 2)),
    ((1, 16, 8), lambda seen: np.dstack([seen[0]] * 3)), ((6, 8, 1), lambda seen: np.dstack([seen] * 3)),
    ((6, 8, 4), lambda seen: np.dstack([seen[:, :, 3]] * 3)), ((6, 8, 2), lambda seen: np.dstack([seen[:, :, 1]] * 3))])
def test_an_observation_of_an_image_is_its_colours_or_its_newest_frame(shape: tuple, shown: object) -> None:
    seen = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    np.testing.assert_array_equal(RenderedFrames().of_observation(seen), shown(seen))  # type: ignore[operator]


def test_an_observation_of_numbers_is_a_row_of_squares() -> None:
    picture = RenderedFrames().of_observation(np.array([0.0, 1.0, np.inf, -3.0], np.float32))
    assert picture.shape == (16, 64, 3) and picture[:, 16:48].min() == 255 and picture[:, :16].max() == 0
    assert picture[:, 48:].max() == 0


@pytest.mark.parametrize(("metadata", "fps"), [
    ({"render_fps": 50}, 50.0), ({}, 10.0), (None, 10.0), ({"render_fps": "fast"}, 10.0), ({"render_fps": 0}, 10.0),
    ({"render_fps": float("nan")}, 10.0), ({"render_fps": 10**9}, 1000.0)])
def test_the_rate_is_what_the_metadata_say_if_that_is_one(metadata: object, fps: float) -> None:
    assert frames_per_second(metadata) == fps


@pytest.mark.parametrize(("numbers", "height", "width"), [(1, 16, 16), (17, 32, 256),
                                                          (1000, 32 * 16, 32 * 16)])
def test_a_vector_of_any_length_is_a_picture_one_can_look_at(numbers: int, height: int, width: int) -> None:
    shown = RenderedFrames().of_observation(np.linspace(0.0, 1.0, numbers, dtype=np.float32))
    assert shown.shape == (height, width, 3) and shown.max() == (255 if numbers > 1 else 0)
    squares = shown[8::16, 8::16, 0].reshape(-1)[:numbers].astype(int)
    assert (np.diff(squares) >= 0).all() and not shown[8::16, 8::16, 0].reshape(-1)[numbers:].any()
