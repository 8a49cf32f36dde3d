"""Trains the runs of a table one after the other, evaluates each, and prints what they learned.

    python tools/figures/learning.py TABLE.yaml --out DIR [--minutes-left 50] [--episodes 30]

A table is YAML: `flags` of ga3c-train for all runs, and `rows`. A row has a `name` and a `game`, `steps` where the
table has none for all, and if wanted a `seed` (0) and `flags` of its own, which come last:

    flags: --agents 2
    steps: 5000000
    rows:
      - {name: qbert, game: Qbert}
      - {name: qbert-nature, game: Qbert, seed: 1, flags: --network nature}

A run is DIR/NAME. A second call goes on where the first one stopped: a run that was interrupted is resumed, one that
has its steps is left alone, and a checkpoint is evaluated once. With `--minutes-left` the call ends in time: the run
under way makes a checkpoint. So does Ctrl-C, or SIGTERM. The same call then goes on. A run that fails is left out, and
told.

It writes three files to DIR, after each run and when it is interrupted:

learning.md: a line for each run. It is printed, too.
learning.json: the numbers, a hundred points of each curve, and the commit and the machine of each run.
learning.png: the curves, a panel for each game.

The numbers outlive the runs: what stands complete in learning.json is not trained again when its run has been deleted,
or was made on another machine. To train it again, delete its line.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from figure_runs import Variant, curve, exit_code, points, run_numbers, settings_for, train
from learning_figures import evaluated, goal

import ga3c
from ga3c.runs import reader
from ga3c.runs.directory import lock_directory
from ga3c.runs.figures import Group, figure_by_game
from ga3c.settings.flags import number
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.settings.whole_files import write_whole

_ROW = {"name": str, "game": str, "seed": int, "steps": int, "flags": str}
_TABLE = {"flags": str, "steps": int, "rows": list}


class Row(NamedTuple):
    """One run of a table. label: of the curve over seeds. asked: game, seed, steps and flags, as in learning.json."""

    name: str
    game: str
    label: str
    asked: dict[str, Any]
    settings: Settings


def rows_of(path: Path) -> list[Row]:
    """Reads the runs of a table. Raises ConfigError with the file, the row and the mistake."""
    try:
        table = _checked(yaml.safe_load(path.read_text(encoding="utf-8")), _TABLE, str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    found: list[Row] = []
    for place, given in enumerate(table.get("rows", []), 1):
        where = f"{path}: row {place}"
        row = {"steps": table.get("steps"), "seed": 0, "flags": "", **_checked(given, _ROW, where)}
        for name in ("name", "game", "steps"):
            if row.get(name) in (None, ""):
                raise ConfigError(f"{where}: has no '{name}'")
        if Path(row["name"]).name != row["name"] or row["name"] in {each.name for each in found}:
            raise ConfigError(f"{where}: name: {row['name']!r} is to be the name of one directory, and no other row's")
        try:
            variant = Variant(row["name"], row["name"], tuple(shlex.split(row["flags"])))
            settings = settings_for(variant, row["game"], row["seed"], shlex.split(table.get("flags", "")), None,
                                    row["steps"])
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"{where} ({row['name']}): {error}") from None
        found.append(Row(row["name"], row["game"], f"{row['game']} {row['flags']}".strip(), {
            "game": row["game"], "seed": row["seed"], "steps": row["steps"],
            "flags": f"{table.get('flags', '')} {row['flags']}".strip()}, settings))
    if not found:
        raise ConfigError(f"{path}: has no rows")
    return found


def _checked(given: Any, kinds: dict[str, type], where: str) -> dict[str, Any]:
    """Returns `given` if it is a mapping with known names and values of their types. Raises ConfigError if not."""
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: is to have some of {', '.join(kinds)}")
    for name, value in given.items():
        if name not in kinds:
            raise ConfigError(f"{where}: unknown '{name}'; known are {', '.join(kinds)}")
        if type(value) is not kinds[name]:
            raise ConfigError(f"{where}: {name}: {value!r} is to be of type {kinds[name].__name__}")
    return given


def make(table: Path, out: Path, episodes: int, stopped: Callable[[], bool] = lambda: False) -> list[str]:
    """Trains, evaluates and shows all runs of the table. Returns the failures.

    stopped: returns whether an interrupt has come. An interrupt just as a run reaches its steps shows only here.

    Raises ConfigError if the table is wrong, or if another process trains a run; KeyboardInterrupt.
    """
    rows = rows_of(table)
    for run in filter(Path.exists, (out / row.name for row in rows)):
        os.close(lock_directory(run))  # raises if a process trains in it
    found = remembered(out, rows)
    out.mkdir(parents=True, exist_ok=True)
    failures: list[str] = []
    for row in rows:
        run = out / row.name
        if not run.exists() and "mean" in found.get(row.name, {}):
            continue
        try:
            train(run, row.settings)
            if "mean" not in found.get(row.name, {}):
                found[row.name] = entry_of(row, run, {"run": run_numbers(run, goal(row.game))})
                write(out, rows, found)  # the evaluation may fail
            if stopped():
                raise KeyboardInterrupt
            found[row.name] = entry_of(row, run, evaluated(run, episodes))
        except (ConfigError, ga3c.CommandFailed) as failure:
            failures.append(f"{run}: {failure}")
            continue
        except SystemExit:  # the run was interrupted and has a checkpoint
            if (run / "metrics.jsonl").exists() and (played := run_numbers(run, goal(row.game))):
                found[row.name] = entry_of(row, run, {"run": played})
                write(out, rows, found)
            raise KeyboardInterrupt from None
        write(out, rows, found)
    write(out, rows, found)
    print(listed(rows, found), end="", flush=True)
    return failures


def remembered(out: Path, rows: list[Row]) -> dict[str, dict[str, Any]]:
    """Reads the reports in learning.json, by row name, without those of changed rows. Raises ConfigError."""
    file = out / "learning.json"
    asked = {row.name: row.asked for row in rows}
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        return {name: report for name, report in known.items() if _is_of(report, asked.get(name, {}))}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: not as learning.py writes it; move it away ({error})") from None


def _is_of(report: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Says whether the report is of the run `asked`. The report's `asked` has the game as the table spelled it."""
    known = {**report, "game": report.get("asked", report.get("game"))}
    return {**known, **asked} == known


def entry_of(row: Row, run: Path, report: dict[str, Any]) -> dict[str, Any]:
    """Returns the entry of a run in learning.json."""
    made = {}
    for name in ("commit", "processor", "cores"):
        known = list(dict.fromkeys(each[name] for each in _versions(run) if each.get(name)))
        made[name] = known[0] if len(known) == 1 else ", ".join(map(str, known)) or None
    found = {**row.asked, **made, **report, "curve": curve(run)}
    return found if found["game"] == row.asked["game"] else {**found, "asked": row.asked["game"]}


def _versions(run: Path) -> list[dict[str, Any]]:
    """Returns the versions at the start of a run and at each later resume."""
    first = json.loads((run / "versions.json").read_text(encoding="utf-8"))
    starts = reader.lasting_events(run) if (run / "events.jsonl").exists() else []
    return [first, *(event["versions"] for event in starts if isinstance(event.get("versions"), dict))]


def write(out: Path, rows: list[Row], found: dict[str, dict[str, Any]]) -> None:
    """Writes the numbers, the table and the curves of the runs in `found`."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(report)}" for name, report in found.items())
    write_whole(out / "learning.json", f"{{\n{lines}\n}}\n")
    write_whole(out / "learning.md", listed(rows, found))
    if games := curves(rows, found):
        figure_by_game(games, "score-steps").savefig(out / "learning.png", dpi=150)


def curves(rows: list[Row], found: dict[str, dict[str, Any]]) -> dict[str, list[Group]]:
    """Returns the curves of each game's panel. All seeds form one curve."""
    runs: dict[str, dict[str, list[list[dict[str, Any]]]]] = {}
    for row in rows:
        drawn = found.get(row.name, {}).get("curve", {"score": []})
        if drawn["score"]:
            runs.setdefault(row.game, {}).setdefault(row.label, []).append(points(drawn))
    return {game: [Group(label if len(seeds) == 1 else f"{label} ({len(seeds)} seeds)", seeds, {}, [[]] * len(seeds))
                   for label, seeds in by_label.items()] for game, by_label in runs.items()}


def listed(rows: list[Row], found: dict[str, dict[str, Any]]) -> str:
    """Formats a Markdown table, a line per run. found: by row name, the values of `evaluated`, or only some of them."""
    lines = ["| run | game | seed | score, mean | 95 % interval | human-normalised | last hundred games | agent steps "
             "| minutes | agent steps/s | policy lag |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in rows:
        report = found.get(row.name, {})
        cells = ["-", "-", "-"]
        if "mean" in report:
            low, high = report["mean_interval"]
            normalised = report.get("human_normalised")
            cells = [f"{report['mean']:,.1f}", f"{low:,.1f} - {high:,.1f}",
                     "-" if normalised is None else f"{normalised:.0%}"]
        ran = report.get("run", {})
        cells += ["-" if ran.get(name) is None else f"{ran[name]:,}"
                  for name in ("score", "agent_steps", "minutes", "steps_per_second", "lag")]
        lines.append("| " + " | ".join([row.name, row.game, str(row.settings.run.seed), *cells]) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("table", type=Path, metavar="TABLE.yaml")
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="of runs and of what is written")
    parser.add_argument("--minutes-left", type=float, metavar="MINUTES", help="the call ends after these [no limit]")
    parser.add_argument("--episodes", type=number(int, 1, 100_000), default=30, help="of each evaluation [%(default)s]")
    options = parser.parse_args()
    interrupts: list[int] = []

    def interrupt(number: int, frame: object) -> None:
        interrupts.append(number)
        # `ga3c.train` passes the interrupt on, and the current run ends with a checkpoint. A second interrupt ends the
        # run at once. Only Ctrl-C has that meaning.
        if len(interrupts) == 1 or number == signal.SIGINT:
            raise KeyboardInterrupt

    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(each, interrupt)
    if options.minutes_left is not None:
        signal.setitimer(signal.ITIMER_REAL, max(1e-3, 60.0 * options.minutes_left))
    return exit_code("learning", lambda: make(options.table, options.out, options.episodes, lambda: bool(interrupts)),
                     "some runs are missing")


if __name__ == "__main__":
    sys.exit(main())
