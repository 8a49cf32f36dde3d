"""Pictures as a file: what `ga3c-play` records, and the clip of an evaluation."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ga3c.settings.messages import ConfigError

SUFFIXES = (".gif", ".webp", ".mp4")


class Recording:
    """Pictures as a file: GIF and WebP by Pillow, MP4 by imageio and its ffmpeg."""

    def __init__(self, file: Path, fps: float, most: float) -> None:
        self._file, self._every = file, max(1, round(fps / most))
        self._fps = fps / self._every
        self._seen = self._kept = 0
        self._pictures: list[Any] = []
        self._writer: Any = None
        if file.suffix.lower() == ".mp4":
            try:
                import imageio.v2 as imageio
                self._writer = imageio.get_writer(file, fps=self._fps, macro_block_size=2, quality=8)
            except ImportError:
                raise ConfigError(f"--record: {file.name} needs imageio: pip install 'imageio[ffmpeg]'; .gif and .webp "
                                  "do not") from None

    def show(self, picture: NDArray[np.uint8]) -> bool:
        self._seen += 1
        if (self._seen - 1) % self._every:
            return True
        self._kept += 1
        if self._writer is not None:
            self._writer.append_data(picture)
            return True
        from PIL import Image
        image = Image.fromarray(picture)
        # The palette of a game is small; a quarter of the memory, and none of GIF's dithering.
        self._pictures.append(image.quantize(256, dither=Image.Dither.NONE) if self._file.suffix.lower() == ".gif"
                              else image)
        return True

    def close(self) -> str:
        if self._writer is not None:
            self._writer.close()
        elif self._pictures:
            first, *others = self._pictures
            # GIF counts in hundredths of a second: what one picture is too short, another is longer.
            ends = np.round(np.arange(self._kept + 1) * 100 / self._fps).astype(int) * 10
            options: dict[str, Any] = {"quality": 80} if self._file.suffix.lower() == ".webp" else {"disposal": 1}
            first.save(self._file, save_all=True, append_images=others, duration=np.diff(ends).tolist(), loop=0,
                       **options)
        if not self._kept:
            return "nothing was recorded"
        return (f"recorded: {self._file} ({self._kept / self._fps:.1f} s, {self._kept:,} pictures, "
                f"{self._file.stat().st_size / 2**20:.1f} MB)")


def clip(observations: Sequence[NDArray[np.uint8]], fps: float) -> bytes:
    """An animated GIF of observations (height, width, channels), twice as large: RGB, or the newest of other planes."""
    with tempfile.TemporaryDirectory() as scratch:
        recording = Recording(Path(scratch) / "clip.gif", fps, 30.0)
        for observation in observations:
            picture = observation if observation.shape[2] == 3 else observation[:, :, -1]
            recording.show(picture.repeat(2, axis=0).repeat(2, axis=1))
        recording.close()
        return (Path(scratch) / "clip.gif").read_bytes()
