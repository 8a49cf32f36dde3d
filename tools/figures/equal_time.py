"""Ours and another program after the same time on machines of one size: a table, and the curves as a picture.

    python tools/figures/equal_time.py OURS.json OTHER.json -o PICTURE.png [--minutes 45]

OURS.json: numbers of `learning.py`; seeds are one curve, of which the first counts in the table. OTHER.json: by game
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

from figure_runs import markdown, points

from ga3c.runs.figures import SUFFIXES, Group, figure_by_game
from ga3c.settings.flags import output_file
from ga3c.settings.messages import ConfigError

_COLUMNS = {
    "game": "{game}", "GA3C, on": "{processor}", "score": "{score:,.1f}", "agent steps": "{agent_steps:,}",
    "minutes": "{minutes:.1f}", "other, on": "{other_processor}", "its score": "{other_score:,.1f}",
    "its agent steps": "{other_agent_steps:,}", "its minutes": "{other_minutes:.1f}"}


def compared(ours: Mapping[str, Any], others: Mapping[str, Any], minutes: float) -> tuple[
        list[dict[str, Any]], dict[str, list[Group]]]:
    """Returns (table rows, curves by game) of the games in both files. Raises ConfigError if there is none."""
    rows, curves = list[dict[str, Any]](), dict[str, list[Group]]()
    for game, other in others.items():
        seeds = [run for run in ours.values() if run["game"] == game and run["curve"]["score"]]
        if not seeds:
            continue
        if len({(run.get("flags"), run.get("steps")) for run in seeds}) > 1:
            raise ConfigError(f"{game}: OURS has runs of several settings; one curve is of one setting")
        drawn = [[row for row in points(curve) if row["time"] <= 60 * minutes]
                 for curve in (*(run["curve"] for run in seeds), other)]
        if not all(drawn):
            raise ConfigError(f"{game}: a curve has no point within {minutes:g} minutes")
        row = {"game": game, "processor": seeds[0]["processor"], "other_processor": other["processor"]}
        for whose, point in (("", drawn[0][-1]), ("other_", drawn[-1][-1])):
            row |= {f"{whose}score": point["score_mean"], f"{whose}agent_steps": point["agent_steps"],
                    f"{whose}minutes": point["time"] / 60}
        rows.append(row)
        name = other["program"].partition(",")[0]
        curves[game] = [Group("ours", drawn[:-1], {}, [[]] * len(seeds)), Group(name, drawn[-1:], {}, [[]])]
    if not rows:
        raise ConfigError("no game is in both files")
    return rows, curves


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("ours", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("-o", "--output", type=output_file(*SUFFIXES), required=True, help="picture")
    parser.add_argument("--minutes", type=float, default=45.0, help="of training that count [%(default)g]")
    options = parser.parse_args()
    try:
        ours, others = (json.loads(file.read_text(encoding="utf-8")) for file in (options.ours, options.other))
        rows, curves = compared(ours, others, options.minutes)
    except (OSError, ValueError, ConfigError) as error:
        print(f"equal_time.py: {error}", file=sys.stderr)
        return 2
    except (LookupError, TypeError, AttributeError) as error:
        print("equal_time.py: OURS is to be as learning.py writes it, OTHER as docs/results/cleanrl-45-minutes.json "
              f"is: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(markdown(rows, _COLUMNS), end="")
    figure_by_game(curves, "score-time").savefig(options.output, dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main())
