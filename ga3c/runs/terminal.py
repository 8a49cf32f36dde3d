"""The display of a run: a live panel on a terminal, plain lines elsewhere. A failure here never stops a run.

`ga3c-top` shows the same panel for any run from another terminal.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO, cast

from rich.console import Console
from rich.constrain import Constrain
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ga3c.runs.nonblocking import NonBlocking

_PANEL_COLUMNS, _CURVE_COLUMNS, _CURVE_ROWS, _BAR_COLUMNS = 74, 60, 3, 28
_CURVE_POINTS = 1024  # if the score's curve has more, every second point is dropped
_RECENT = 60          # rows to compute the speed towards a limit from
_MESSAGES = 4         # shown in the panel
_SMOOTH = 10          # rows to compute `pps_limit` from
_TOTALS = ("time", "agent_steps", "frames", "episodes", "trainings", "score", "score_mean")
_LIMITS = {"steps": "agent_steps", "frames": "frames", "minutes": "time", "episodes": "episodes"}


def _number(value: float | None, form: str = ",.0f") -> str:
    return "-" if value is None else format(value, form)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 3600}:{int(seconds) % 3600 // 60:02d}:{int(seconds) % 60:02d}"


def plain_line(row: Mapping[str, Any], notes: Mapping[str, str]) -> str:
    """Returns a row of metrics as one line, with notes by name, such as the controller's last decision."""
    return (f"[Time: {_clock(row['time'])}] [Steps: {_number(row['agent_steps'])} Frames: {_number(row['frames'])}] "
            f"[Episode: {_number(row['episodes'])} Score: {_number(row['score'], '.1f')} "
            f"RScore: {_number(row['score_mean'], '.2f')}] "
            f"[PPS: {_number(row['pps'])} TPS: {_number(row['tps'], '.1f')}] "
            f"[NT: {row['trainers']} NP: {row['predictors']} NA: {row['agents']}] "
            f"[Queue: {row['training_queue']} Batch: {_number(row['prediction_batch'], '.1f')}/"
            f"{_number(row['training_batch'], '.0f')} {'Age' if 'intensity' in row else 'Lag'}: "
            f"{_number(row['lag_mean'], '.1f')}/{_number(row['lag_p95'], '.0f')}]"
            + (f" [Replay: {row['replay_filled']:.0%} Uses: {row['intensity']:.2f}]" if "intensity" in row else "")
            + (f" [Best: {row['best_evaluation']:.2f}]" if "best_evaluation" in row else "")
            + "".join(f" [{name}: {note}]" for name, note in notes.items()))


def block_curve(values: Sequence[float], columns: int, rows: int) -> list[str]:
    """Returns `values` as a filled curve of block characters, top row first. A column shows the mean of its values."""
    n = min(columns, len(values))
    bounds = [len(values) * i // n for i in range(n + 1)]
    means = [sum(values[low:high]) / (high - low) for low, high in zip(bounds, bounds[1:], strict=False)]
    low, high = min(means), max(means)
    heights = [1 + round((8 * rows - 1) * (mean - low) / (high - low)) if high > low else 1 for mean in means]
    return ["".join(" ▁▂▃▄▅▆▇█"[min(8, max(0, height - 8 * row))] for height in heights)
            for row in reversed(range(rows))]


class View:
    """The panel of a run, made from its rows of metrics.

    Args:
        limits: the settings of the run; `steps`, `frames`, `minutes` and `episodes` limit it if they are numbers.
        cores: usable cores of the run's machine; None if not known.
    """

    def __init__(self, title: str, limits: Mapping[str, Any], cores: int | None) -> None:
        self._title = title
        self.cores = cores
        self._limits = {name: limits[name] for name in _LIMITS
                        if isinstance(limits.get(name), int | float) and 0 < limits[name] < 1e15}
        self._recent: deque[Mapping[str, Any]] = deque(maxlen=_RECENT)
        self._scores: list[float] = []
        self._stride = 1  # rows for each point of the curve
        self._skipped = 0

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a row of metrics. Only the totals are used of the last row, which has no workers of any kind."""
        if self._recent and not any(row[kind] for kind in ("agents", "predictors", "trainers")):
            row = {**self._recent[-1], **{name: row[name] for name in _TOTALS}}
        if self._recent and row["time"] < self._recent[-1]["time"]:  # resumed from an older checkpoint
            self._recent.clear()
        self._recent.append(row)
        if row["score_mean"] is None:
            return
        self._skipped += 1
        if self._skipped >= self._stride:
            self._skipped = 0
            self._scores.append(row["score_mean"])
        if len(self._scores) > _CURVE_POINTS:
            self._scores = self._scores[::2]
            self._stride *= 2

    def pps_limit(self) -> float | None:
        """Returns the PPS if agents and model had all cores; None if the processor time was not measured."""
        rows = [row for row in list(self._recent)[-_SMOOTH:] if row["pps"] and row.get("cpu_agents")]
        busy = sum(row["cpu_agents"] + (row.get("cpu_server") or 0.0) for row in rows)
        return sum(row["pps"] for row in rows) * self.cores / busy if self.cores and busy else None

    def remaining(self) -> tuple[str, float, float | None] | None:
        """Returns the limit that will end the run first: its flag, the share done, seconds left (None if not known).

        Returns None if the run has no limit, or no row yet.
        """
        if not self._limits or not self._recent:
            return None
        first, row = self._recent[0], self._recent[-1]
        seconds = row["time"] - first["time"]
        limits = []
        for name, limit in self._limits.items():
            whole = 60.0 * limit if name == "minutes" else float(limit)
            done, before = row[_LIMITS[name]], first[_LIMITS[name]]
            rate = 1.0 if name == "minutes" else (done - before) / seconds if seconds else 0.0
            text = f"--{name} {limit:,g}" if name == "minutes" else f"--{name} {limit:,}"
            left = max(0.0, whole - done) / rate if rate else None
            limits.append((text, min(1.0, done / whole), left))
        return min(limits, key=lambda limit: (limit[2] is None, limit[2] or 0.0))

    def panel(self, messages: Iterable[str], notes: Mapping[str, str], footer: str) -> Panel:
        """Draws the newest row, the score's curve, notes by name, and the last messages."""
        row = self._recent[-1]
        body = Table.grid()
        body.add_column(min_width=_PANEL_COLUMNS)  # so that the width stays when a note changes
        body.add_row(self._curve())
        body.add_row(self._numbers(row))
        left = self.remaining()
        if left is not None:
            flag, share, seconds = left
            progress = Table.grid(padding=(0, 2))
            bar = ProgressBar(total=1.0, completed=share, width=_BAR_COLUMNS, complete_style="green",
                              finished_style="green")
            progress.add_row(Text(flag, style="dim"), bar, Text(f"{share:.0%}", style="bold"),
                             "" if seconds is None else Text(f"{_clock(seconds)} left", style="dim"))
            body.add_row(progress)
        for name, note in notes.items():
            body.add_row(Text(f"{name}  {note}", style="dim"))
        for message in deque(messages, _MESSAGES):
            body.add_row(Text(message, style="yellow", overflow="ellipsis", no_wrap=True))
        return Panel(body, title=Text(self._title, style="bold"), title_align="left", expand=False,
                     subtitle=Text(footer), subtitle_align="right")

    def _curve(self) -> Table | Text:
        if len(self._scores) < 2:
            return Text("RScore: no episode has ended yet" if not self._scores else "", style="dim")
        newest = self._recent[-1]["score_mean"]  # None if the run was resumed from before its first episode ended
        scores = self._scores if newest is None else [*self._scores, newest]
        low, high = min(scores), max(scores)
        labels = [f"{high:,.1f}", "RScore", f"{low:,.1f}"]
        grid = Table.grid(padding=(0, 1))
        grid.add_column(justify="right", style="dim")
        grid.add_column(style="green", no_wrap=True)
        for label, line in zip(labels, block_curve(scores, _CURVE_COLUMNS, _CURVE_ROWS), strict=True):
            grid.add_row(label, line)
        return grid

    def _numbers(self, row: Mapping[str, Any]) -> Table:
        table = Table.grid(padding=(0, 2))
        for _ in range(3):
            table.add_column(justify="left", style="dim", no_wrap=True)
            table.add_column(justify="right", style="bold", no_wrap=True)
        lag = f"{_number(row['lag_mean'], '.1f')} (p95 {_number(row['lag_p95'], '.0f')})"
        table.add_row("Time", _clock(row["time"]), "PPS", _number(row["pps"]), "N_A", str(row["agents"]))
        table.add_row("Agent steps", _number(row["agent_steps"]), "PPS at most", _number(self.pps_limit()),
                      "N_P", str(row["predictors"]))
        table.add_row("Frames", _number(row["frames"]), "TPS", _number(row["tps"], ".1f"), "N_T", str(row["trainers"]))
        table.add_row("Episodes", _number(row["episodes"]), "Prediction batch", _number(row["prediction_batch"], ".1f"),
                      "Queue", str(row["training_queue"]))
        kind, name = ("Mean Q", "q_mean") if "q_mean" in row else ("Entropy", "entropy")
        table.add_row("Score", _number(row["score"], ".1f"), "Training batch", _number(row["training_batch"], ".1f"),
                      kind, _number(row.get(name), ".3f"))
        table.add_row("RScore", _number(row["score_mean"], ".2f"), "Age" if "intensity" in row else "Policy lag", lag)
        if "intensity" in row:
            table.add_row("Epsilon", _number(row.get("exploration"), ".3f"),
                          "Uses of a step", f"{row['intensity']:.2f}", "Replay", f"{row['replay_filled']:.0%}")
        if row.get("dropped_steps"):
            table.add_row("Dropped steps", _number(row["dropped_steps"]))
        if row.get("skipped_updates") or row.get("skipped_minibatches"):
            table.add_row("Skipped updates", _number(row["skipped_updates"]),
                          "Skipped minibatches", _number(row["skipped_minibatches"]))
        if "best_evaluation" in row:
            table.add_row("Best evaluation", f"{row['best_evaluation']:.2f}")
        return table


def can_show_panel(console: Console) -> bool:
    """Whether the panel can be drawn in place: on a terminal that moves its cursor and has block characters."""
    return console.is_terminal and not console.is_dumb_terminal and console.encoding.startswith("utf")


class Display:
    """The rows and messages on standard output. If it is closed or not read, the run goes on without them."""

    def __init__(self, title: str, limits: Mapping[str, Any], cores: int | None) -> None:
        self._view = View(title, limits, cores)
        self._messages: deque[str] = deque(maxlen=_MESSAGES)
        self._unseen: list[str] = []  # messages since the panel was last drawn
        self._gone = False
        self._screen: NonBlocking | None = None
        try:
            self._screen = NonBlocking(sys.stdout)
        except (OSError, ValueError, AttributeError):  # a file, an object of a test or notebook, or None
            pass
        console = Console(highlight=False, file=cast(TextIO, self._screen))
        self._live = Live(console=console, auto_refresh=False, transient=False) if can_show_panel(console) else None
        self._started = False

    def show(self, row: Mapping[str, Any], notes: Mapping[str, str], diagnosis: object = None) -> None:
        """Shows a row of metrics, with notes by name. The panel shows the whole `diagnosis` as the note Bottleneck."""
        if self._live is None:
            self._line(plain_line(row, notes))
            return
        self._view.add(row)
        if not self._started:
            self._started = True
            self._try(self._live.start)
        live = self._live

        def update() -> None:
            shown = self._view.panel(self._messages, {**notes, "Bottleneck": str(diagnosis)} if diagnosis else notes,
                                     "Ctrl-C ends the run with a checkpoint")
            # A terminal echoes ^C beside the panel. Without room there, a new line would leave a stale panel behind.
            live.update(Constrain(shown, live.console.width - 3), refresh=True)

        self._unseen.clear()
        self._try(update)

    def message(self, text: str) -> None:
        """Shows a line that is not a row, such as an event, a warning, or how to resume."""
        self._messages.append(text)
        if self._started:
            self._unseen.append(text)
        else:
            self._line(text)

    def _line(self, text: str) -> None:
        self._try(lambda: print(text, file=self._screen, flush=True))

    def leave_panel(self) -> None:
        """Stops updating the panel, which stays visible. Messages that it has not shown, and later ones, are lines."""
        if self._started and self._live is not None:
            self._try(self._live.stop)
        self._started = False
        for text in self._unseen:
            self._line(text)
        self._unseen.clear()

    def close(self) -> None:
        """Leaves the panel and closes the output."""
        self.leave_panel()
        if self._screen is not None:
            self._try(self._screen.close)
            self._gone = True

    def _try(self, write: Callable[[], object]) -> None:
        if self._gone:
            return
        try:
            write()
        except (OSError, ValueError, SystemExit):  # closed pipe, or terminal gone (rich then exits); log.txt has all
            self._gone = True
            sys.stdout = None  # so that the interpreter does not flush it at exit
