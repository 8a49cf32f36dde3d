"""Prints the records of runs: PPS, TPS, batches, queues, lag, memory, score. Compares runs side by side.

    python tools/bench/profile_log.py RUN [RUN ...] [--last-minutes 5]

PPS and TPS are medians over the seconds of the window, with the quartiles beside them. steps/s: agent steps trained per
second over the whole window.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ga3c.runs import reader

_SPREAD = ("pps", "tps", "prediction_batch", "training_batch", "lag_mean", "lag_p95", "lag_in_flight",
           "lag_queued", "lag_in_flight_ms", "lag_queued_ms", "prediction_queue", "training_queue",
           "wait_ms", "queue_ms", "service_ms", "reply_ms", "slot_wait_ms", "play_ms", "predict_ms", "gather_ms",
           "update_ms", "predictor_busy", "trainer_busy", "cpu_agents", "cpu_server", "cpu_outside", "cpu_machine")


def window(rows: list[dict[str, Any]], last_minutes: float | None) -> list[dict[str, Any]]:
    """Returns the rows of the last minutes, without the row written while the run was ending."""
    rows = [row for row in rows if row["agents"] > 0]
    if last_minutes is None or not rows:
        return rows
    return [row for row in rows if row["time"] >= rows[-1]["time"] - 60 * last_minutes]


def summary(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the numbers of a run as text, by name."""
    first, last = rows[0], rows[-1]
    seconds = last["time"] - first["time"]
    times, memory = (reader.column(rows, name) for name in ("time", "memory_mb"))
    known = ~np.isnan(memory)
    result = {
        "agent steps": f"{last['agent_steps']:,}", "minutes": f"{last['time'] / 60:.1f}",
        "steps/s": f"{(last['agent_steps'] - first['agent_steps']) / seconds:,.0f}" if seconds else "-",
        "N_A/N_P/N_T": f"{last['agents']}/{last['predictors']}/{last['trainers']}",
    }
    for name in _SPREAD:
        values = [row[name] for row in rows if row.get(name) is not None]  # older runs recorded less
        if values:
            low, middle, high = np.percentile(values, (25, 50, 75))
            result[name] = f"{middle:,.1f} ({low:,.1f} - {high:,.1f})"
    if known.sum() > 2:
        slope = np.polyfit(times[known] / 60, memory[known], 1)[0]
        result["memory MB"] = f"{memory[known][-1]:,.0f} ({slope:+.2f} per minute)"
    if dropped := last.get("dropped_steps"):
        result["dropped steps"] = f"{dropped:,} ({dropped / (dropped + last['agent_steps']):.1%} of all played)"
    found = Counter(row["bottleneck"] for row in rows if row.get("bottleneck"))
    if found:
        result["bottleneck"] = ", ".join(f"{part} {count / found.total():.0%}" for part, count in found.most_common())
    result["agent deaths"] = "-" if last["agent_deaths"] is None else f"{last['agent_deaths']:,}"
    result["score (last 100)"] = "-" if last["score_mean"] is None else f"{last['score_mean']:.2f}"
    return result


def table(runs: dict[str, list[dict[str, Any]]]) -> Table:
    """Builds a table with a column for each run."""
    made = Table()
    made.add_column("")
    columns = {name: summary(rows) for name, rows in runs.items()}
    for name in columns:
        made.add_column(name, justify="right")
    for key in dict.fromkeys(key for column in columns.values() for key in column):  # older runs recorded less
        made.add_row(key, *[column.get(key, "-") for column in columns.values()])
    return made


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description="Summarise and compare runs.")
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path)
    parser.add_argument("--last-minutes", type=float, metavar="M",
                        help="only the last M minutes of each run")
    options = parser.parse_args()
    windows = {}
    for run in options.runs:
        name = str(run) if [other.name for other in options.runs].count(run.name) > 1 else run.name
        try:
            windows[name] = window(reader.lasting(reader.rows(run).new()), options.last_minutes)
        except OSError as error:
            print(f"profile_log: {run} is not a run: {error.filename}: {error.strerror}", file=sys.stderr)
            return 2
        if not windows[name]:
            print(f"profile_log: {run} has no row of training in its metrics.jsonl", file=sys.stderr)
            return 2
    Console().print(table(windows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
