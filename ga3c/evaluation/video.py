"""Videos: the recordings of `ga3c-play` and the clip of an evaluation."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.rendered_frames import RenderedFrames
from ga3c.settings.messages import ConfigError

SUFFIXES = (".gif", ".webp", ".mp4")


class Recording:
    """A video of frames. Pillow writes GIF and WebP; imageio with its ffmpeg writes MP4.

    Args:
        file: the file to write. Its suffix, one of `SUFFIXES`, gives the format.
        fps: frames per second as they are shown.
        max_fps: above this rate, only every second, third ... frame is kept.

    Raises ConfigError if imageio is missing.
    """

    def __init__(self, file: Path, fps: float, max_fps: float) -> None:
        self._file = file
        self._every = math.ceil(fps / max_fps)
        self._aside = file.with_name(f".{os.getpid()}.{file.name}")  # an interrupt leaves an earlier film whole
        self._fps = fps / self._every
        self._seen = 0
        self._kept = 0
        self._frames: list[Any] = []
        self._writer: Any = None
        if file.suffix.lower() == ".mp4":
            try:
                import imageio.v2 as imageio
                with self._writing():
                    self._writer = imageio.get_writer(self._aside, fps=self._fps, macro_block_size=2, quality=8)
            except ImportError:
                raise ConfigError(f"--record: {file.name} needs imageio: pip install 'imageio[ffmpeg]'; .gif and .webp "
                                  "do not") from None

    def show(self, frame: NDArray[np.uint8]) -> bool:
        """Takes the next frame, RGB (height, width, 3) uint8. Always returns True: the recording goes on."""
        self._seen += 1
        if (self._seen - 1) % self._every:
            return True
        self._kept += 1
        if self._writer is not None:
            with self._writing():
                self._writer.append_data(frame)
            return True
        from PIL import Image
        image = Image.fromarray(frame)
        # A game has few colours. A palette takes a quarter of the memory, and avoids GIF's dithering.
        self._frames.append(image.quantize(256, dither=Image.Dither.NONE) if self._file.suffix.lower() == ".gif"
                            else image)
        return True

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turns a failure to write into an OSError of one line, as ffmpeg's own message fills a page."""
        try:
            yield
        except (OSError, RuntimeError, ValueError, OverflowError, struct.error) as error:
            message = " ".join(str(error).split())[:200]
            program = "ffmpeg" if self._file.suffix.lower() == ".mp4" else "Pillow"
            raise OSError(errno.EIO, f"{program} cannot write it: {message}", str(self._file)) from error

    def close(self) -> str:
        """Writes the file, if there was a frame, and returns one line about it. Raises OSError."""
        try:
            self._write()
            if not self._kept:
                return "nothing was recorded"
            with self._writing():
                self._aside.replace(self._file)
        finally:
            self._aside.unlink(missing_ok=True)
        return (f"recorded: {self._file} ({self._kept / self._fps:.1f} s, {self._kept:,} frames, "
                f"{self._file.stat().st_size / 2**20:.1f} MB)")

    def _write(self) -> None:
        if self._writer is not None:
            with self._writing():
                self._writer.close()
                if self._kept and not self._aside.stat().st_size:
                    raise OSError("it has written nothing")
        elif self._frames:
            first, *others = self._frames
            # GIF counts in hundredths of a second. Some frames are shown longer, so that the total time is right.
            ends = np.round(np.arange(self._kept + 1) * 100 / self._fps).astype(int) * 10
            options: dict[str, Any] = {"quality": 80} if self._file.suffix.lower() == ".webp" else {"disposal": 1}
            with self._writing():
                first.save(self._aside, save_all=True, append_images=others, duration=np.diff(ends).tolist(), loop=0,
                           **options)


def clip(observations: Sequence[NDArray[np.uint8]], fps: float) -> bytes:
    """Returns an animated GIF of observations at twice their size: colour images, or each stack's newest frame."""
    rendered = RenderedFrames()
    with tempfile.TemporaryDirectory() as scratch:
        recording = Recording(Path(scratch) / "clip.gif", fps, 30.0)
        for observation in observations:
            frame = rendered.of_observation(observation)
            recording.show(frame.repeat(2, axis=0).repeat(2, axis=1))
        recording.close()
        return (Path(scratch) / "clip.gif").read_bytes()
