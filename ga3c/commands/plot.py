"""`ga3c-plot`: draws figures of recorded runs (`runs/figures.py`)."""

from __future__ import annotations

import argparse
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path

from ga3c.commands.entry import guarded
from ga3c.runs.figures import PANELS, STYLE, SUFFIXES, figure_of, grouped
from ga3c.settings.flags import Parser, number, output_file

_OVERVIEW = ("score-steps", "score-time", "workers", "pps", "tps", "lag")


def plot(argv: Sequence[str]) -> int:
    return guarded("ga3c-plot", lambda: _plot(parser().parse_args(argv)))


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "ga3c-plot", "Draw what runs recorded. Runs that differ in the seed alone become one curve with its spread.",
        "examples:\n  ga3c-plot runs/Boxing-...                            an overview, to ga3c-plot.png\n"
        "  ga3c-plot runs/Pong-*-s? --panels score-frames -o pong.svg\n"
        "  ga3c-plot RUN --panels workers tps -o figure2.pdf    the paper's figure 2\n"
        "  ga3c-plot RUN RUN --labels fast paper -o compare.png compare.svg\n\n"
        + textwrap.fill(f"panels: {', '.join(PANELS)}", 100, break_on_hyphens=False))
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run directories")
    group = parser.add_argument_group("What")
    group.add_argument("--panels", metavar="PANEL", nargs="+", choices=PANELS, default=list(_OVERVIEW),
                       help=f"what to draw, in this order [{' '.join(_OVERVIEW)}]")
    group.add_argument("--labels", metavar="NAME", nargs="+", help="names of the curves [game, and what differs]")
    group.add_argument("--smooth", metavar="SECONDS", type=number(float, 0, 1_000_000), default=30.0,
                       help="seconds that rates and lag are averaged over [%(default)g]")
    group = parser.add_argument_group("Output")
    group.add_argument("-o", "--output", metavar="FILE", nargs="+", type=output_file(*SUFFIXES),
                       default=[Path("ga3c-plot.png")], help="PNG, SVG or PDF by the name [ga3c-plot.png]")
    group.add_argument("--columns", metavar="N", type=number(int, 1, 100), default=3,
                       help="panels side by side [%(default)s]")
    return parser


def _plot(options: argparse.Namespace) -> int:
    groups = grouped(options.runs, options.labels)
    os.environ["MPLBACKEND"] = "agg"  # a notebook's back end does not exist in this process; matplotlib would fail
    figure = figure_of(groups, options.panels, options.columns, options.smooth)
    import matplotlib
    for file in options.output:
        with matplotlib.rc_context(STYLE):
            figure.savefig(file, dpi=200)
        print(f"drawn: {file}")
    return 0
