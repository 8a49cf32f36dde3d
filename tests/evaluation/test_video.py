"""Videos have the frames they were shown, at the right rate."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ga3c.evaluation.video import Recording, clip
from ga3c.settings.messages import ConfigError


def frames(n: int) -> list[np.ndarray]:
    """Each with a square of its own."""
    made = np.zeros((n, 32, 64, 3), np.uint8)
    for i in range(n):
        made[i, :, 2 * i:2 * i + 2] = 255
    return list(made)


@pytest.mark.parametrize(("most", "kept"), [(60.0, 60.0), (50.0, 30.0), (9.0, 60 / 7)])
def test_a_recording_has_no_more_pictures_a_second_than_asked_for(tmp_path: Path, most: float, kept: float) -> None:
    assert Recording(tmp_path / "game.gif", 60.0, most)._fps == pytest.approx(kept)


@pytest.mark.parametrize("suffix", [".gif", ".webp"])
def test_a_recording_has_every_second_frame_at_half_the_rate(tmp_path: Path, suffix: str) -> None:
    recording = Recording(tmp_path / f"game{suffix}", 60.0, 30.0)
    for frame in frames(24):
        assert recording.show(frame)
    assert "(0.4 s, 12 frames" in recording.close()
    file = Image.open(tmp_path / f"game{suffix}")
    assert file.n_frames == 12 and file.info["loop"] == 0
    total = 0
    for number in range(12):
        file.seek(number)
        shown = np.asarray(file.convert("RGB"))
        assert shown[:, :, 0].mean(axis=0).argmax() in (4 * number, 4 * number + 1)
        total += file.info.get("duration", 0)
    assert total == 400


def test_a_video_has_all_frames(tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio.v2")
    pytest.importorskip("imageio_ffmpeg")
    recording = Recording(tmp_path / "game.mp4", 30.0, 30.0)
    for frame in frames(24):
        recording.show(frame)
    assert "24 frames" in recording.close()
    with imageio.get_reader(tmp_path / "game.mp4") as video:
        read = [frame for frame in video]  # its length is not known
        assert video.get_meta_data()["fps"] == 30
    assert len(read) == 24 and read[0].shape == (32, 64, 3)
    assert read[20][:, :, 0].mean(axis=0).argmax() in (40, 41)


def test_an_interrupt_while_a_film_is_written_leaves_the_earlier_one(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(image: Image.Image, path: Path, **options: object) -> None:
        path.write_bytes(b"half of it")
        raise KeyboardInterrupt

    (tmp_path / "game.gif").write_bytes(b"earlier")
    recording = Recording(tmp_path / "game.gif", 60.0, 30.0)
    for frame in frames(2):
        recording.show(frame)
    monkeypatch.setattr(Image.Image, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recording.close()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"earlier"]


def test_a_video_without_imageio_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio", None)
    with pytest.raises(ConfigError, match="needs imageio: pip install"):
        Recording(tmp_path / "game.mp4", 30.0, 30.0)


def test_a_video_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    with pytest.raises(OSError, match="ffmpeg cannot write it") as caught:
        recording = Recording(tmp_path / "nowhere" / "game.mp4", 30.0, 30.0)
        for frame in frames(24):
            recording.show(frame)
        recording.close()
    assert "\n" not in str(caught.value) and caught.value.filename == str(tmp_path / "nowhere" / "game.mp4")


def test_a_clip_shows_the_newest_frame_of_a_stack_twice_as_large() -> None:
    stack = np.zeros((84, 84, 4), np.uint8)
    stack[:, :, -1] = 200
    with Image.open(io.BytesIO(clip([stack, stack // 2], 15.0))) as file:
        assert (file.n_frames, file.size) == (2, (168, 168))
        assert np.abs(np.asarray(file.convert("L")).astype(int) - 200).max() <= 4


def test_what_pillow_cannot_write_is_one_line(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "wide.gif", 30.0, 30.0)
    for shade in (0, 200):
        recording.show(np.full((2, 70_000, 3), shade, np.uint8))
    with pytest.raises(OSError, match="Pillow cannot write it: .*wide.gif") as caught:
        recording.close()
    assert len(str(caught.value).splitlines()) == 1
