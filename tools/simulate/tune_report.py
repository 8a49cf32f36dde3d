r"""Reports what the controller did in runs: trials, time to the best rate, and the paper's figure 2.

    for setting in 2/1/1 3/1/1 4/1/1 6/1/1 8/1/1 4/2/1 8/2/1 4/1/2 8/1/2 4/2/2 8/2/2; do
        IFS=/ read agents predictors trainers <<< $setting;
        counts="--agents $agents --predictors $predictors --trainers $trainers";
        ga3c-train --game Pong --no-dynamic $counts --minutes 1 --run-dir sweep/${setting//\//-};
    done
    common="--game Pong --start 1/1/1 --no-remember --minutes 20";
    ga3c-train $common --run-dir fast;
    ga3c-train $common --controller paper --max-lag null --run-dir paper;
    python tools/simulate/tune_report.py fast paper --sweep sweep/* --plot tuning.png

A rate is the agent steps trained per second. A setting of the sweep may have several runs; its rate is the median over
their second halves. "95 %" is reached when the mean of half a minute reaches it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from ga3c.runs import reader
from ga3c.settings.flags import output_file
from ga3c.settings.messages import ConfigError
from ga3c.tuning.measurement import name as counts_name

HALF_MINUTE = 30
SWEPT = 20  # shortest run of the sweep, in seconds
ACCEPTED = ("accepted", "kept")  # since version 0.9, before


def pace(rows: list[dict[str, Any]], seconds: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns the time and the rate over the `seconds` before it, of each row that has that much time before it.

    Both are (n,); the rate is in agent steps trained per second. It uses the rows' times, since rows may be more than a
    second apart.
    """
    time, steps = (np.array([row[name] for row in rows], float) for name in ("time", "agent_steps"))
    at = time[time >= time[0] + seconds]
    return at, (np.interp(at, time, steps) - np.interp(at - seconds, time, steps)) / seconds


def training_rows(run: Path, least: float = HALF_MINUTE) -> list[dict[str, Any]]:
    """Returns the rows with agents; the row written at the end of a run has none.

    Raises OSError; ConfigError if the rows span less than `least` seconds.
    """
    rows = reader.lasting([row for row in reader.rows(run).new() if row["agents"] > 0])
    if not rows or rows[-1]["time"] - rows[0]["time"] < least:
        raise ConfigError(f"{run} has less than {least:g} seconds of training")
    return rows


def second_half(rows: list[dict[str, Any]]) -> float:
    """Returns the mean rate of the second half of a run."""
    return float(pace(rows, (rows[-1]["time"] - rows[0]["time"]) / 2)[1][-1])


def workers(row: dict[str, Any]) -> str:
    """Returns N_A/N_P/N_T of the row."""
    return counts_name([row[kind] for kind in ("agents", "predictors", "trainers")])


def summary(run: Path, best: float | None) -> list[str]:
    """Returns the cells of a run: name, last setting, trials (accepted), mean rate of the second half.

    If `best` is known, also shares of it: the rate, and the worst minute and ten minutes after the seconds to 95 %.
    """
    rows = training_rows(run)
    trials = [event for event in reader.lasting_events(run) if event["event"] == "trial"]
    accepted = sum(trial.get("decision", trial.get("verdict")) in ACCEPTED for trial in trials)
    last, half = rows[-1], second_half(rows)
    cells = [run.name, workers(last), f"{len(trials)} ({accepted})", f"{half:,.0f}"]
    if best is None:
        return cells
    cells.append(f"{half / best:.0%}")
    time, rate = pace(rows, HALF_MINUTE)
    there = time[rate >= 0.95 * best]
    if not len(there):
        return [*cells, "never", "-", "-"]
    cells.append(f"{there[0]:.0f}")
    for length in (60, 600):
        _, after = pace([row for row in rows if row["time"] >= there[0]], length)
        cells.append(f"{after.min() / best:.0%}" if len(after) else "-")
    return cells


def swept(runs: list[Path]) -> dict[str, list[float]]:
    """Returns the sorted second-half rates of each setting's runs; the setting with the highest median comes first."""
    found: dict[str, list[float]] = {}
    for run in runs:
        rows = training_rows(run, SWEPT)
        found.setdefault(workers(rows[-1]), []).append(second_half(rows))
    return {setting: sorted(rates) for setting, rates in
            sorted(found.items(), key=lambda each: -float(np.median(each[1])))}


def plot(runs: list[Path], best: float | None, file: Path) -> None:
    """Draws the rate, N_A, N_P and N_T over time, each run in its own colour."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(3, 1, figsize=(9, 8), sharex=True, constrained_layout=True, height_ratios=(3, 2, 2))
    for number, run in enumerate(runs):
        rows, color = training_rows(run), f"C{number % 10}"
        for seconds, width, label in ((1, 0.4, None), (HALF_MINUTE, 1.5, run.name)):
            time, rate = pace(rows, seconds)
            axes[0].plot(time / 60, rate, linewidth=width, alpha=1 if label else 0.3, color=color, label=label)
        minutes = [row["time"] / 60 for row in rows]
        for axis, name, style in ((axes[1], "agents", "-"), (axes[2], "predictors", "-"), (axes[2], "trainers", ":")):
            axis.step(minutes, [row[name] for row in rows], linewidth=1.2, where="post", color=color, linestyle=style)
    if best is not None:
        axes[0].axhline(best, color="grey", linestyle="--", linewidth=0.8, label="best of the sweep")
    for axis, title in zip(axes, ("agent steps trained per second, and its mean of half a minute", "N_A",
                                  "N_P, and N_T (dotted)"), strict=True):
        axis.set_title(title, fontsize=10)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    axes[2].set_xlabel("minutes", fontsize=9)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description="Report and plot what the controller did in runs.")
    parser.add_argument("runs", nargs="+", metavar="RUN", type=Path)
    parser.add_argument("--sweep", nargs="+", metavar="RUN", type=Path, default=[],
                        help="runs of fixed counts (--no-dynamic), to compare with the best of them")
    parser.add_argument("--plot", type=output_file(".png", ".svg"), metavar="FILE",
                        help="also draw, as PNG or SVG by its name")
    options = parser.parse_args()
    try:
        sweep = swept(options.sweep)
        best = max((float(np.median(rates)) for rates in sweep.values()), default=None)
        if best is not None and best <= 0:
            raise ConfigError("the sweep trained nothing in the second half of its runs")
        if best is not None:
            print(f"best of the sweep: {best:,.0f} agent steps/s")
        for setting, rates in sweep.items():
            print(f"  {setting}: {np.median(rates):,.0f} agent steps/s, median of {len(rates)} "
                  f"({rates[0]:,.0f} to {rates[-1]:,.0f})")
        table = Table()
        head = ["run", "N_A/N_P/N_T", "trials (accepted)", "steps/s, second half"]
        if best is not None:
            head += ["of the best", "s to 95 %", "worst minute then", "worst 10 min then"]
        for word in head:
            table.add_column(word)
        for run in options.runs:
            table.add_row(*summary(run, best))
        Console().print(table)
        if options.plot:
            plot(options.runs, best, options.plot)
            print(f"drawn: {options.plot}")
    except OSError as error:
        print(f"tune_report: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    except ConfigError as error:
        print(f"tune_report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
