"""Environments whose `render` gives what it should not, or what is rare. `odd.py` registers them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from plain import Plain


class Grows(Plain):
    def render(self) -> Any:
        return np.full((8 + self.time, 12 + 2 * self.time, 3), 200, np.uint8)


class ChannelsFirst(Plain):
    def render(self) -> Any:
        picture = np.zeros((3, 8, 12), np.uint8)
        picture[0] = 200
        return picture


class Floats(Plain):
    def render(self) -> Any:
        return np.full((8, 12, 3), 0.5, np.float32)


class Bools(Plain):
    def render(self) -> Any:
        return np.ones((8, 12), np.bool_)


class Lists(Plain):
    def render(self) -> Any:
        return [np.full((8, 12, 3), 10, np.uint8), np.full((8, 12, 3), 200, np.uint8)]


class Text(Plain):
    def render(self) -> Any:
        return "a board"


class Nothing(Plain):
    def render(self) -> Any:
        return None


class NoModes(Plain):
    """Supports no render_mode and says nonsense of its rate."""

    metadata: ClassVar[dict] = {"render_modes": [], "render_fps": "fast"}

    def __init__(self, render_mode: str | None = None) -> None:
        assert render_mode is None, "no mode is supported"
        super().__init__()

    def render(self) -> Any:
        raise NotImplementedError


class FailsToDraw(Plain):
    def render(self) -> Any:
        raise ImportError("no library to draw with")
