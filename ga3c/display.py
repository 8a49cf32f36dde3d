"""What a person sees while a run goes on: a live panel on a terminal, plain lines elsewhere. Never stops a run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text


def _number(value: float | None, form: str = ",.0f") -> str:
    return "-" if value is None else format(value, form)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 3600}:{int(seconds) % 3600 // 60:02d}:{int(seconds) % 60:02d}"


def plain_line(row: dict[str, Any], notes: Mapping[str, str]) -> str:
    """A row of metrics, and notes such as the controller's last verdict, as one line with the field's names."""
    return (f"[Time: {_clock(row['time'])}] [Steps: {_number(row['agent_steps'])} Frames: {_number(row['frames'])}] "
            f"[Episode: {_number(row['episodes'])} Score: {_number(row['score'], '.1f')} "
            f"RScore: {_number(row['score_mean'], '.2f')}] "
            f"[PPS: {_number(row['pps'])} TPS: {_number(row['tps'], '.1f')}] "
            f"[NT: {row['trainers']} NP: {row['predictors']} NA: {row['agents']}] "
            f"[Queue: {row['training_queue']} Batch: {_number(row['prediction_batch'], '.1f')}/"
            f"{_number(row['training_batch'], '.0f')} Lag: {_number(row['lag_mean'], '.1f')}/"
            f"{_number(row['lag_p95'], '.0f')}]"
            + (f" [Best: {row['best_evaluation']:.2f}]" if "best_evaluation" in row else "")
            + "".join(f" [{name}: {note}]" for name, note in notes.items()))


def panel(title: str, row: dict[str, Any], messages: list[str], notes: Mapping[str, str]) -> Panel:
    """A row of metrics and notes as the live screen."""
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(justify="left", style="dim", no_wrap=True)
        table.add_column(justify="right", style="bold", no_wrap=True)
    lag = f"{_number(row['lag_mean'], '.1f')} (p95 {_number(row['lag_p95'], '.0f')})"
    table.add_row("Time", _clock(row["time"]), "PPS", _number(row["pps"]), "N_A", str(row["agents"]))
    table.add_row("Agent steps", _number(row["agent_steps"]), "TPS", _number(row["tps"], ".1f"),
                  "N_P", str(row["predictors"]))
    table.add_row("Frames", _number(row["frames"]), "Prediction batch", _number(row["prediction_batch"], ".1f"),
                  "N_T", str(row["trainers"]))
    table.add_row("Episodes", _number(row["episodes"]), "Training batch", _number(row["training_batch"], ".1f"),
                  "Queue", str(row["training_queue"]))
    table.add_row("Score", _number(row["score"], ".1f"), "Policy lag", lag)
    table.add_row("RScore", _number(row["score_mean"], ".2f"), "Entropy", _number(row["entropy"], ".3f"))
    if "best_evaluation" in row:
        table.add_row("Best evaluation", f"{row['best_evaluation']:.2f}")
    body = Table.grid()
    body.add_row(table)
    for name, note in notes.items():
        body.add_row(Text(f"{name}  {note}", style="dim", overflow="ellipsis", no_wrap=True))
    for message in messages[-4:]:
        body.add_row(Text(message, style="yellow", overflow="ellipsis", no_wrap=True))
    return Panel(body, title=Text(title, style="bold"), title_align="left", expand=False,
                 subtitle="Ctrl-C ends the run with a checkpoint", subtitle_align="right")


class Display:
    """Shows rows and messages on standard output; if that goes away, is silent and the run goes on."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._messages: list[str] = []
        self._gone = False
        console = Console(highlight=False)
        self._live = Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None
        self._started = False

    def show(self, row: dict[str, Any], notes: Mapping[str, str]) -> None:
        """One row of metrics, and what else is worth a line, by name."""
        if self._live is None:
            self._try(lambda: print(plain_line(row, notes), flush=True))
            return
        if not self._started:
            self._started = True
            self._try(self._live.start)
        live, shown = self._live, panel(self._title, row, self._messages, notes)
        self._try(lambda: live.update(shown, refresh=True))

    def message(self, text: str) -> None:
        """One line that is not a row: an event, a warning, the way on."""
        self._messages.append(text)
        if not self._started:
            self._try(lambda: print(text, flush=True))

    def close(self) -> None:
        """Leaves the last panel standing; later messages are plain lines."""
        if self._started and self._live is not None:
            self._try(self._live.stop)
        self._started = False

    def _try(self, write: Callable[[], object]) -> None:
        if self._gone:
            return
        try:
            write()
        except (OSError, ValueError, SystemExit):  # closed pipe, terminal gone (rich then exits): the log has it all
            self._gone = True
            sys.stdout = None  # so that the interpreter does not flush it at exit either
