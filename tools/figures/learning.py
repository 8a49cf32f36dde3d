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
learning.png: the curves, a panel for each game. `ga3c-plot DIR/*/ --panels ...` draws other columns.

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from figure_runs import PUBLISHED, curve, exit_code, markdown, points, run_numbers, train

import ga3c
from ga3c.commands.train import parser as train_parser
from ga3c.learner import checkpoint
from ga3c.runs import reader
from ga3c.runs.directory import lock_directory
from ga3c.runs.figures import Group, figure_by_game
from ga3c.settings.flags import number, settings_of_run
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.settings.whole_files import write_whole

_TABLE = {"flags": str, "steps": int, "rows": list}
_ROW = {"name": str, "game": str, "seed": int, "steps": int, "flags": str}
_OWN = ("game", "minutes", "steps", "frames", "episodes", "run_dir")
_COLUMNS = {"run": "{name}", "game": "{game}", "seed": "{seed}", "score, mean": "{mean:,.1f}",
            "95 % interval": "{interval}", "human-normalised": "{human_normalised:.0%}", "GA3C paper": "{paper:,.0f}",
            "minutes to it": "{minutes_to_paper:,}", "last hundred games": "{score:,}",
            "agent steps": "{agent_steps:,}", "minutes": "{minutes:,}",
            "agent steps/s": "{steps_per_second:,}", "policy lag": "{lag:,}"}


class Row(NamedTuple):
    """One run of a table. label: of the curve over seeds. wanted: game, seed, steps and flags, as in learning.json."""

    name: str
    label: str
    wanted: dict[str, Any]
    settings: Settings


def rows_of(path: Path) -> list[Row]:
    """Reads the runs of a table. Raises ConfigError with the file, the row and the mistake."""
    try:
        table = _checked(yaml.safe_load(path.read_text(encoding="utf-8")), _TABLE, str(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    rows: list[Row] = []
    for place, line in enumerate(table.get("rows", []), 1):
        where = f"{path}: row {place}"
        row = _row({"steps": table.get("steps"), **_checked(line, _ROW, where)}, table.get("flags", ""), where)
        if row.name in {other.name for other in rows}:
            raise ConfigError(f"{where}: name: another row is {row.name!r}, too")
        rows.append(row)
    if not rows:
        raise ConfigError(f"{path}: has no rows")
    return rows


def _checked(entry: Any, kinds: dict[str, type], where: str) -> dict[str, Any]:
    """Returns `entry` if it is a mapping with known names and values of their types. Raises ConfigError if not."""
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: is to have some of {', '.join(kinds)}")
    for name, value in entry.items():
        if name not in kinds:
            raise ConfigError(f"{where}: unknown '{name}'; known are {', '.join(kinds)}")
        if type(value) is not kinds[name]:
            raise ConfigError(f"{where}: {name}: {value!r} is to be of type {kinds[name].__name__}")
    return entry


def _row(line: dict[str, Any], common: str, where: str) -> Row:
    for name in ("name", "game", "steps"):
        if line.get(name) in (None, ""):
            raise ConfigError(f"{where}: has no '{name}'")
    if Path(line["name"]).name != line["name"]:
        raise ConfigError(f"{where}: name: {line['name']!r} is to be the name of one directory")
    seed, own = line.get("seed", 0), line.get("flags", "")
    flags = f"{common} {own}".strip()
    try:
        settings = settings_of_run(train_parser(), ["--seed", str(seed), "--no-remember", *shlex.split(flags)], _OWN,
                                   game=line["game"]).changed(steps=line["steps"])
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{where} ({line['name']}): {error}") from None
    wanted = {"game": line["game"], "seed": seed, "steps": line["steps"], "flags": flags}
    return Row(line["name"], f"{line['game']} {own}".strip(), wanted, settings)


def make(table: Path, out: Path, episodes: int, interrupted: Callable[[], bool] = lambda: False) -> list[str]:
    """Trains, evaluates and shows all runs of the table. Returns the failures.

    interrupted: says whether an interrupt has come. An interrupt just as a run reaches its steps shows only here.

    Raises ConfigError if the table is wrong, or if another process trains a run; KeyboardInterrupt.
    """
    rows = rows_of(table)
    for run in filter(Path.exists, (out / row.name for row in rows)):
        os.close(lock_directory(run))  # raises if a process trains in it
    entries = _remembered(out / "learning.json", rows)
    out.mkdir(parents=True, exist_ok=True)
    failures: list[str] = []
    for row in rows:
        run = out / row.name
        if "mean" in entries.get(row.name, {}) and not run.exists():
            continue
        try:
            for report in _reports(run, row.settings, episodes, interrupted):
                if (run / "metrics.jsonl").exists():
                    entries[row.name] = {**entries.get(row.name, {}), **_origin(run), **report, **row.wanted,
                                         "run": run_numbers(run, row.wanted["game"]), "curve": curve(run)}
                write(out, rows, entries)
        except (ConfigError, ga3c.CommandFailed) as failure:
            failures.append(f"{run}: {failure}")
    write(out, rows, entries)
    print(listed(rows, entries), end="", flush=True)
    return failures


def _reports(run: Path, settings: Settings, episodes: int, interrupted: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """Trains and evaluates a run. Yields {} after the training, because the evaluation may fail, then its report."""
    try:
        train(run, settings)
    except KeyboardInterrupt:
        yield {}
        raise
    yield {}
    if interrupted():
        raise KeyboardInterrupt
    yield evaluated(run, episodes)


def _remembered(file: Path, rows: list[Row]) -> dict[str, dict[str, Any]]:
    """Reads the entries of a learning.json, by row, without those of rows that have changed. Raises ConfigError."""
    wanted = {row.name: row.wanted for row in rows}
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        return {name: entry for name, entry in known.items() if entry == {**entry, **wanted.get(name, {})}}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{file}: not as learning.py writes it; move it away ({error})") from None


def _origin(run: Path) -> dict[str, Any]:
    """Returns commit, processor and cores of a run, at its start and at each later resume."""
    starts = [json.loads((run / "versions.json").read_text(encoding="utf-8"))]
    if (run / "events.jsonl").exists():
        starts += [event["versions"] for event in reader.lasting_events(run) if isinstance(event.get("versions"), dict)]
    origin = {}
    for name in ("commit", "processor", "cores"):
        known = list(dict.fromkeys(versions[name] for versions in starts if versions.get(name)))
        origin[name] = known[0] if len(known) == 1 else ", ".join(map(str, known)) or None
    return origin


def evaluated(run: Path, episodes: int) -> dict[str, Any]:
    """Evaluates the newest checkpoint once, keeps the report in the run, and returns it."""
    file = run / "evaluation.json"
    newest = checkpoint.saved(run / "checkpoints")[:1]
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"scores": []}
    if len(report["scores"]) != episodes or [Path(report["checkpoint"]).name] != [path.name for path in newest]:
        report = ga3c.evaluate(run, episodes=episodes)
        write_whole(file, json.dumps(report, indent=1) + "\n")
    return report


def write(out: Path, rows: list[Row], entries: dict[str, dict[str, Any]]) -> None:
    """Writes the numbers, the table and the curves of the runs in `entries`."""
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in entries.items())
    write_whole(out / "learning.json", f"{{\n{lines}\n}}\n")
    write_whole(out / "learning.md", listed(rows, entries))
    if games := curves(rows, entries):
        figure_by_game(games, "score-steps").savefig(out / "learning.png", dpi=150)


def curves(rows: list[Row], entries: dict[str, dict[str, Any]]) -> dict[str, list[Group]]:
    """Returns the curves of each game's panel. All seeds form one curve."""
    runs: dict[str, dict[str, list[list[dict[str, Any]]]]] = {}
    for row in rows:
        drawn = entries.get(row.name, {}).get("curve", {"score": []})
        if drawn["score"]:
            runs.setdefault(row.wanted["game"], {}).setdefault(row.label, []).append(points(drawn))
    return {game: [Group(label if len(seeds) == 1 else f"{label} ({len(seeds)} seeds)", seeds, {}, [[]] * len(seeds))
                   for label, seeds in by_label.items()] for game, by_label in runs.items()}


def listed(rows: list[Row], entries: dict[str, dict[str, Any]]) -> str:
    """Formats a Markdown table, a line for each run."""
    lines = []
    for row in rows:
        entry = entries.get(row.name, {})
        line = {**row.wanted, **entry, **entry.get("run", {}), "name": row.name,
                "paper": PUBLISHED.get(row.wanted["game"])}
        if "mean_interval" in entry:
            line["interval"] = " - ".join(f"{bound:,.1f}" for bound in entry["mean_interval"])
        lines.append(line)
    return markdown(lines, _COLUMNS)


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

    for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(kind, interrupt)
    if options.minutes_left is not None:
        signal.setitimer(signal.ITIMER_REAL, max(1e-3, 60.0 * options.minutes_left))
    return exit_code("learning", lambda: make(options.table, options.out, options.episodes, lambda: bool(interrupts)))


if __name__ == "__main__":
    sys.exit(main())
