"""Ours and another program after the same time on machines of one size: a table, and the curves as a picture.

    python tools/figures/equal_time.py OURS.json THEIRS.json -o PICTURE.png [--minutes 45]

OURS.json: numbers of `learning.py`; seeds are one curve, of which the first counts in the table. THEIRS.json: by game
an object with `program` (a name, then what it was asked after a comma), `processor`, and the lists `agent_steps`,
`minutes` and `score`, a point of the curve each. A score is the mean of the last hundred games.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from figure_output import Column, markdown
from figure_runs import points

from ga3c.runs.figures import SUFFIXES, Group, figure_by_game
from ga3c.settings.flags import output_file
from ga3c.settings.messages import ConfigError

_COLUMNS = (
    Column("game", "game"), Column("ours, on", "processor"), Column("score", "score", "{:,.1f}"),
    Column("agent steps", "agent_steps", "{:,}"), Column("minutes", "minutes", "{:.1f}"),
    Column("theirs, on", "their_processor"), Column("score", "their_score", "{:,.1f}"),
    Column("agent steps", "their_agent_steps", "{:,}"), Column("minutes", "their_minutes", "{:.1f}"))


def rows_of(curve: Mapping[str, list[Any]], minutes: float) -> list[dict[str, Any]]:
    """Returns the points of the first `minutes` of a curve, as rows of metrics."""
    return [row for row in points(curve) if row["time"] <= 60 * minutes]


def compared(ours: Mapping[str, Any], theirs: Mapping[str, Any], minutes: float) -> tuple[
        list[dict[str, Any]], dict[str, list[Group]]]:
    """Returns (table rows, curves by game) of the games in both files. Raises ConfigError if there is none."""
    rows, curves = list[dict[str, Any]](), dict[str, list[Group]]()
    for game, their in theirs.items():
        seeds = [run for run in ours.values() if run["game"] == game and run["curve"]["score"]]
        if not seeds:
            continue
        if len({(run.get("flags"), run.get("steps")) for run in seeds}) > 1:
            raise ConfigError(f"{game}: OURS has runs of several settings; one curve is of one setting")
        drawn, their_drawn = [rows_of(run["curve"], minutes) for run in seeds], rows_of(their, minutes)
        if not all([*drawn, their_drawn]):
            raise ConfigError(f"{game}: a curve has no point within {minutes:g} minutes")
        row = {"game": game, "processor": seeds[0]["processor"], "their_processor": their["processor"]}
        for whose, point in (("", drawn[0][-1]), ("their_", their_drawn[-1])):
            row |= {f"{whose}score": point["score_mean"], f"{whose}agent_steps": point["agent_steps"],
                    f"{whose}minutes": point["time"] / 60}
        rows.append(row)
        name = their["program"].partition(",")[0]
        curves[game] = [Group("ours", drawn, {}, [[]] * len(drawn)), Group(name, [their_drawn], {}, [[]])]
    if not rows:
        raise ConfigError("no game is in both files")
    return rows, curves


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", type=Path)
    parser.add_argument("theirs", type=Path)
    parser.add_argument("-o", "--output", type=output_file(*SUFFIXES), required=True, help="picture")
    parser.add_argument("--minutes", type=float, default=45.0, help="of training that count [%(default)g]")
    options = parser.parse_args()
    try:
        ours, theirs = (json.loads(file.read_text(encoding="utf-8")) for file in (options.ours, options.theirs))
        rows, curves = compared(ours, theirs, options.minutes)
    except (OSError, ValueError, ConfigError) as error:
        print(f"equal_time.py: {error}", file=sys.stderr)
        return 2
    except (LookupError, TypeError, AttributeError) as error:
        print("equal_time.py: OURS is to be as learning.py writes it, THEIRS as docs/results/cleanrl-45-minutes.json "
              f"is: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(markdown(rows, _COLUMNS), end="")
    figure_by_game(curves, "score-time").savefig(options.output, dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main())
