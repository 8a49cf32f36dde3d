"""`ga3c-top`: shows the live panel of a run in another terminal, while the run trains or after its end.

The command only reads the run's files. Between two rows it sleeps and waits for a key.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ga3c.commands.entry import guarded
from ga3c.learner.checkpoint import saved
from ga3c.runs import reader as record
from ga3c.settings.flags import Parser
from ga3c.settings.messages import for_shell
from ga3c.settings.schema import Settings
from ga3c.tuning.bottleneck import Diagnoser, Diagnosis

SILENT = 10.0   # seconds without a row after which a run counts as silent; a run writes one row every second
GIVEN_UP = 600.0  # seconds without a row after which the command ends, if no key can end it
PAUSE = 1.0     # seconds between two reads of the files


def top(argv: Sequence[str]) -> int:
    return guarded("ga3c-top", lambda: _top(parser().parse_args(argv)))


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "ga3c-top", "Show a run as its own terminal does: score, speed, workers, policy lag, what limits it.",
        "examples:\n  ga3c-top                     the run in runs/ that was written to last\n"
        "  ga3c-top runs/Boxing-...     this one, alive or ended\n"
        "  ga3c-top RUN --once          its state now, for a script or a look\n\n"
        "q leaves; the run goes on.")
    parser.add_argument("run", metavar="RUN", nargs="?", type=Path, help="run directory [the newest in runs/]")
    group = parser.add_argument_group("Output")
    group.add_argument("--once", action="store_true", help="print the panel once and end")
    return parser


class Followed:
    """A run as read from its files: its panel `view`, and `ended`, the reason of its end (None while it runs)."""

    def __init__(self, run: Path) -> None:
        from ga3c.runs.terminal import View
        self._run = run
        self._rows = record.rows(run)
        self._events = record.events(run)
        known = record.settings(run)
        cores = _cores(run)
        self.view = View(f"GA3C  {known.get('game', '')}  {run}".replace("    ", "  "), known, cores)
        envs = known.get("envs_per_agent")
        self._envs = envs if isinstance(envs, int) else Settings().agents.envs_per_agent
        max_lag = known.get("max_lag") if known.get("dynamic") else None
        self._max_lag = max_lag if isinstance(max_lag, float | int) else None
        self._diagnoser = Diagnoser(cores, self._envs, self._max_lag) if cores else None
        self._diagnosis: Diagnosis | None = None
        self._tuning = ""
        self._messages: list[str] = []
        self.rows = 0
        self.ended: str | None = None
        self._trained = False

    def look(self) -> list[dict[str, Any]]:
        """Reads what the run has written since the last call. Returns the new rows. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):  # a user may keep a record without its events
            for event in self._events.new():
                with contextlib.suppress(LookupError, TypeError, ValueError, ArithmeticError):  # of another version
                    self._note(event)
        new = self._rows.new()
        for row in new:
            self.view.add(row)
            if self._diagnoser and row["agents"]:
                self._diagnosis = self._diagnoser.observe(row)
        self.rows += len(new)
        return new

    def _note(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        at = f"{event['time']:,.0f} s: "
        if kind == "start":
            self.ended = None
            self._trained = False
            cores: Any = (event.get("versions") or {}).get("cores")
            if record.is_number(cores) and cores >= 1 and cores != self.view.cores:  # resumed on another machine
                self.view.cores = int(cores)
                self._diagnoser = Diagnoser(int(cores), self._envs, self._max_lag)
        elif kind == "last_evaluation":
            self._trained = True
        elif kind == "end":
            self.ended = f"ended by {event['reason']}"
        elif kind == "trial":
            decision = event["decision"]
            compared = event["rate_from"] and event["seconds"] and decision not in ("aborted", "given up")
            gain = f" {event['rate'] / event['rate_from'] - 1:+.0%}" if compared else ""
            self._tuning = f"{event['to']} {decision}{gain}"
        elif kind == "search" and event["over"]:
            self._tuning = f"{event['setting']} found"
        elif kind == "agent_died":
            self._messages.append(f"{at}agent {event['agent']} died, exit code {event['exitcode']}")
        elif kind == "checkpoint":
            self._messages.append(f"{at}{event['path']} written")
        elif kind == "evaluation":
            self._messages.append(f"{at}evaluation: mean {event['mean']:.2f} of {len(event['scores'])} episodes")
        elif kind == "evaluation_failed":
            self._messages.append(f"{at}an evaluation failed: {event['cause']}")

    def notes(self) -> dict[str, str]:
        """Returns the controller's last decision, the bottleneck and the command to resume an ended run, if known."""
        resumable = self.ended is not None and saved(self._run / "checkpoints")
        notes = {"Tuning": self._tuning, "Bottleneck": str(self._diagnosis or ""),
                 "Resume with": f"ga3c-train --resume {for_shell(self._run)}" if resumable else ""}
        return {name: note for name, note in notes.items() if note}

    def state(self) -> str:
        """Says in a few words whether the run is training, silent or ended."""
        if self.ended:
            return self.ended
        if self._trained:
            return "training is over, its last checkpoint is evaluated"
        return f"no row for {self.silence:,.0f} s: killed, or stuck" if self.silence > SILENT else "at work"

    @property
    def silence(self) -> float:
        """Seconds since the last row or event; 0 if the run has ended or its last checkpoint is evaluated."""
        if self.ended or self._trained:
            return 0.0
        written = [(self._run / name).stat().st_mtime for name in ("metrics.jsonl", "events.jsonl")
                   if (self._run / name).exists()]
        return time.time() - max(written)

    def panel(self, hint: str = "") -> Any:
        """Returns the panel to show; `hint` follows the state of a run that has not ended."""
        from rich.text import Text
        if not self.rows:
            return Text(f"{self._run}: no second of training yet, {self.state()}")
        return self.view.panel(self._messages, self.notes(), self.ended or self.state() + hint)


def _cores(run: Path) -> int | None:
    """Reads the usable cores from the run's record; None if they are not recorded."""
    try:
        cores = json.loads((run / "versions.json").read_text(encoding="utf-8"))["cores"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    return int(cores) if record.is_number(cores) and cores >= 1 else None


def _top(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.live import Live

    from ga3c.runs.terminal import can_show_panel, plain_line
    followed = Followed(record.find_run(options.run))
    console = Console(highlight=False)
    rows = followed.look()[-1:]  # not all that there are, for as long as the command runs
    if options.once or (followed.ended and rows):
        console.print(followed.panel())
        return 0
    if not can_show_panel(console):
        silent = False
        while True:
            for row in rows:
                console.print(plain_line(row, followed.notes()), soft_wrap=True, markup=False)
            if followed.ended:
                console.print(followed.ended, markup=False)
                return 0
            if not silent and followed.silence > SILENT:
                console.print(followed.state(), markup=False)
            silent = followed.silence > SILENT
            if followed.silence > GIVEN_UP:
                return 0
            time.sleep(PAUSE)
            rows = followed.look()
    hint = "; q leaves"
    try:
        with _keys() as pressed, Live(followed.panel(hint), console=console, auto_refresh=False) as live:
            while not followed.ended and not pressed(PAUSE):
                followed.look()
                live.update(followed.panel(hint), refresh=True)
    finally:
        console.show_cursor()  # an interrupt while the panel starts leaves it hidden
    return 0


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Yields a function that waits some seconds for a key and returns whether it was q. Restores the terminal."""
    if not sys.stdin.isatty():
        yield time.sleep  # no key can come
        return
    before = termios.tcgetattr(sys.stdin)

    def pressed(seconds: float) -> bool:
        if not select.select([sys.stdin], [], [], seconds)[0]:
            return False
        typed = os.read(sys.stdin.fileno(), 64)
        return not typed or b"q" in typed.lower()

    tty.setcbreak(sys.stdin)
    try:
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
