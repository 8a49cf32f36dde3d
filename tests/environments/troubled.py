"""Environments that are slow, or in trouble with what is around them; `odd` registers them."""

from __future__ import annotations

import signal
import subprocess
import time

from plain import Plain, Step


class SlowToMake(Plain):
    """Takes 2.5 seconds to make, and fails after 40 steps, so that it is made again."""

    def __init__(self, render_mode: str | None = None) -> None:
        time.sleep(2.5)
        super().__init__(render_mode)
        self.steps = 0

    def step(self, action: int) -> Step:
        self.steps += 1
        if self.steps == 40:
            raise RuntimeError("made once more")
        return super().step(action)


class SlowToPlay(Plain):
    """A step takes a second."""

    def step(self, action: int) -> Step:
        time.sleep(1.0)
        return super().step(action)


class RaisesInNoText(Plain):
    """An exception with a file's name that is no UTF-8, in the third step."""

    def step(self, action: int) -> Step:
        if self.time == 2:
            raise RuntimeError("level \udce9 is broken")
        return super().step(action)


class StopsItsHelper(Plain):
    """Has a helper, which it stops as one does in a terminal; fails in the third step."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.helper = subprocess.Popen(["sleep", "600"])

    def step(self, action: int) -> Step:
        if self.time == 2:
            raise RuntimeError("the helper is lost")
        return super().step(action)

    def close(self) -> None:
        self.helper.send_signal(signal.SIGINT)
        self.helper.wait(30)
