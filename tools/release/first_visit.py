"""Draws the screens of the quickstart: types its commands into terminals, in a fresh clone and environment.

    python tools/release/first_visit.py --out docs/first-visit

This takes about seven minutes and needs tmux and the extra `test`. The tool installs the package and runs the doctor.
It trains CartPole for a minute with `ga3c-top` beside it. It stops, resumes, evaluates, records and plots that run.
Then it trains Boxing for two minutes. Images are drawn from the text that tmux holds. If a command fails, the tool
prints the screen and ends with exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLUMNS, ROWS, SIZE = 100, 34, 15  # size of a terminal; height of its letters in pixels
COLOURS = {"default": "#d8d8d8", "red": "#f4645f", "green": "#5fd38d", "brown": "#e5c07b", "yellow": "#e5c07b",
           "blue": "#61afef", "magenta": "#c678dd", "cyan": "#56b6c2", "white": "#ffffff", "brightblack": "#808080"}


class Failed(Exception):
    """A command ended with a wrong exit code, or did not end in time."""


class Terminal:
    """A shell in tmux."""

    def __init__(self, name: str, directory: Path) -> None:
        self._name, self._directory = f"first-visit-{name}", directory
        self._tmux("new-session", "-d", "-s", self._name, "-x", str(COLUMNS), "-y", str(ROWS), "-c", str(directory),
                   "env", "PS1=$ ", "PROMPT_COMMAND=", "bash", "--norc", "--noprofile")
        # "; e" follows each command. Text typed later would show in the panel that the command draws.
        self._type(f"e() {{ echo $? > .code; tmux wait-for -S {self._name}; }}")

    @staticmethod
    def _tmux(*arguments: str, timeout: float = 30.0) -> str:
        return subprocess.run(["tmux", *arguments], check=True, capture_output=True, text=True, timeout=timeout).stdout

    def _type(self, line: str) -> None:
        self._tmux("send-keys", "-t", self._name, "-l", line)
        self._tmux("send-keys", "-t", self._name, "Enter")

    def begin(self, command: str) -> None:
        """Types a command after clearing the screen, and does not wait for its end."""
        self._type("clear")
        time.sleep(0.3)
        self._type(f"{command}; e")

    def press(self, key: str) -> None:
        """Presses a key, by its name in tmux."""
        self._tmux("send-keys", "-t", self._name, key)

    def end(self, seconds: float, codes: tuple[int, ...] = (0,)) -> None:
        """Waits for the command's end. Raises Failed."""
        try:
            self._tmux("wait-for", self._name, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"not over after {seconds:.0f} s:\n{self.text()}") from None
        code = int((self._directory / ".code").read_text(encoding="ascii"))
        if code not in codes:
            raise Failed(f"exit code {code}:\n{self.text()}")

    def run(self, command: str, seconds: float = 120.0) -> str:
        """Types a command, waits for its end and returns the screen. Raises Failed."""
        print("$", command, flush=True)
        self.begin(command)
        self.end(seconds)
        return self.text()

    def text(self, colours: bool = False) -> str:
        """Returns the text of the screen."""
        return self._tmux("capture-pane", "-t", self._name, "-p", *(["-e"] if colours else []))

    def screenshot(self, file: Path) -> None:
        """Draws the screen, without the text typed after the command."""
        import matplotlib
        import pyte
        from PIL import Image, ImageDraw, ImageFont
        screen = pyte.Screen(COLUMNS, ROWS)
        kept = self.text(colours=True).rstrip("\n").split("\n")
        kept[0] = kept[0].removesuffix("; e")
        while kept and kept[-1].strip() in ("", "$"):
            kept.pop()
        pyte.Stream(screen).feed("\r\n".join(kept))
        fonts = Path(matplotlib.__file__).parent / "mpl-data/fonts/ttf"
        plain, bold = (ImageFont.truetype(str(fonts / f"DejaVuSansMono{kind}.ttf"), SIZE) for kind in ("", "-Bold"))
        width, height = round(plain.getlength("M")), SIZE + 4
        image = Image.new("RGB", (width * COLUMNS + 16, height * len(kept) + 16), "#1c1c1c")
        draw = ImageDraw.Draw(image)
        for y in range(len(kept)):
            for x in range(COLUMNS):
                cell = screen.buffer[y][x]
                if cell.data.strip():
                    colour = COLOURS.get(cell.fg, f"#{cell.fg}" if len(cell.fg) == 6 else COLOURS["default"])
                    draw.text((8 + x * width, 8 + y * height), cell.data, colour, bold if cell.bold else plain)
        image.quantize(32, dither=Image.Dither.NONE).save(file, optimize=True)  # takes a quarter of the bytes

    def close(self) -> None:
        """Ends the shell and its commands."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self._tmux("kill-session", "-t", self._name)


@contextlib.contextmanager
def terminal(name: str, directory: Path) -> Iterator[Terminal]:
    """Opens a terminal with the virtual environment's commands on its path."""
    made = Terminal(name, directory)
    try:
        made.run("source .venv/bin/activate && PS1='$ '")
        yield made
    finally:
        made.close()


def visit(clone: Path, out: Path) -> None:
    """Types all commands in a clone with a virtual environment. Raises Failed."""
    with terminal("1", clone) as first, terminal("2", clone) as second:
        began = time.monotonic()
        first.run("pip install --quiet -e '.[play]'", 900.0)
        print(f"  installed in {time.monotonic() - began:.0f} s")
        first.run("ga3c-doctor")
        first.screenshot(out / "doctor.png")

        print("$ ga3c-train --game CartPole-v1 --minutes 1 --reward-clip 0.1")
        first.begin("ga3c-train --game CartPole-v1 --minutes 1 --reward-clip 0.1")
        time.sleep(40.0)
        second.begin("ga3c-top")
        time.sleep(5.0)
        second.screenshot(out / "top.png")
        second.press("q")
        second.end(10.0)
        first.press("C-c")
        first.end(30.0, (130,))
        first.screenshot(out / "stopped.png")
        run = next((clone / "runs").glob("CartPole-*")).relative_to(clone)
        first.run(f"ga3c-train --resume {run} --minutes 1")
        first.run(f"ga3c-eval {run}")
        first.screenshot(out / "evaluated.png")
        first.run(f"ga3c-play {run} --record cartpole.gif --overlay --zoom 1 --seconds 4 --fps 25")
        first.run(f"ga3c-plot {run} -o overview.png")

        print("$ ga3c-train --game Boxing --minutes 2")
        first.begin("ga3c-train --game Boxing --minutes 2")
        time.sleep(100.0)
        first.screenshot(out / "boxing-training.png")
        first.end(120.0)
        first.run("ga3c-play --game Pong --pretrained --record pong.gif --seconds 6 --fps 15 --zoom 2 --overlay")
    for name in ("cartpole.gif", "overview.png", "pong.gif"):
        shutil.copy(clone / name, out / name)


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description="Draw the screens of the quickstart.")
    parser.add_argument("--out", type=Path, required=True, help="directory for the images")
    options = parser.parse_args()
    if shutil.which("tmux") is None:
        print("first_visit: tmux is not installed; with a package manager: apt install tmux", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        clone = Path(directory) / "ga3c"
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        subprocess.run([sys.executable, "-m", "venv", clone / ".venv"], check=True)
        try:
            visit(clone, options.out)
        except Failed as error:
            print(f"first_visit: {error}", file=sys.stderr)
            return 1
    print(f"images are in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
