"""Output of a paper's table or figure: rows of JSON, a Markdown table, a figure."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from figure_runs import machine

from ga3c.settings.whole_files import write_whole


class Column(NamedTuple):
    """A column of a table: heading, name of the value in a row, format. A missing value is shown as "-"."""

    heading: str
    name: str
    form: str = "{}"


def markdown(rows: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    """Formats a Markdown table with one line for each row."""
    cells = [[column.form.format(row[column.name]) if row.get(column.name) is not None else "-" for column in columns]
             for row in rows]
    lines = [[column.heading for column in columns], ["---"] * len(columns), *cells]
    return "".join(f"|{'|'.join(line)}|\n" if line[0] == "---" else f"| {' | '.join(line)} |\n" for line in lines)


def write(options: argparse.Namespace, rows: Sequence[Mapping[str, Any]], text: str, figure: Any) -> None:
    """Writes the results of a call: rows, table and figure."""
    stem = options.out / options.what
    write_whole(stem.with_suffix(".json"), json.dumps({"machine": machine(), "flags": options.flags, "rows": rows},
                                                      indent=1) + "\n")
    write_whole(stem.with_suffix(".md"), text)
    figure.savefig(stem.with_suffix(".png"), dpi=150)


def panels(count: int) -> tuple[Any, Any]:
    """Returns a figure and its `count` panels, side by side. Needs matplotlib, but no display."""
    from matplotlib.figure import Figure
    figure = Figure(figsize=(4.2 * count, 3.4), layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]
