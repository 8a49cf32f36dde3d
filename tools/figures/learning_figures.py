"""Reproduces the GA3C paper's learning figures and its table of scores: trains what is missing, then draws.

    python tools/figures/learning_figures.py figure5 --out DIR --games Pong --seeds 0 --minutes 30 [-- FLAGS]

    python tools/figures/learning_figures.py figure6 --out DIR --games Boxing Pong --seeds 0 1 --minutes 60
    python tools/figures/learning_figures.py figure7 --out DIR --games Pong --batches 5 20 40 80 160

    python tools/figures/learning_figures.py lag --out DIR --games toy:catch --seeds 0 1 2 --steps 350000

    python tools/figures/learning_figures.py alternatives --out DIR --games CartPole-v1 --seeds 0 1 2 --steps 100000

    python tools/figures/learning_figures.py table3 --out DIR --games Boxing Pong --seeds 0 1 --steps 10000000

figure5: score over time with 1/1/1 workers, with 16/1/1, with the best known counts, and tuned from 1/1/1. Runs of one
    seed begin with the same weights. The legend has the frames of each run. The paper's agents have one environment
    each: `-- --envs-per-agent 1`.
figure6: each game with two learning rates; seeds form a band.
figure7: the least training batch, of rollouts of five steps of one environment. 5 means one update per rollout.
    Workers and learning rate stay the same.
lag: not in the paper. Score by agent steps for the three corrections of policy lag, in serial mode. Rollouts are
    trained on at once, or `--delays` updates later.
alternatives: not in the paper. The settings as they are, and with each `--change='FLAGS'`, one at a time. It writes
    alternatives.json and alternatives.md. For Atari add `--change='--no-life-loss' --change='--noop-max 0'`.
table3: scores by the paper's protocol (30 episodes, sampled actions, up to 30 no-ops), beside those of people, of
    random play and of the papers. It writes table3.json and table3.md.

figure5, figure6, figure7 and lag are of `a3c`, as the paper's.

Every run has its directory in DIR. A second call keeps the runs that have ended. It resumes those that were interrupted
or whose budget (`--minutes` or `--steps` of each run) has grown. A run that fails is left out. After each run the
figure is drawn and a table of all runs is written. FLAGS go to ga3c-train, for all runs.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
from figure_runs import Variant, exit_code, run_name, run_numbers, settings_for, train_all

import ga3c
from ga3c.learner import checkpoint
from ga3c.runs import reader
from ga3c.runs.figures import SUFFIXES, figure_by_game, grouped
from ga3c.settings.flags import number
from ga3c.settings.messages import ConfigError
from ga3c.settings.whole_files import write_whole

# Scores of A3C's feed-forward agent after a day on 16 cores (Mnih et al., 2016, table S3: episodes with human starts)
# and of GA3C after a day (Babaeizadeh et al., 2017, table 3).
PUBLISHED: dict[str, tuple[float, float]] = {
    "Amidar": (283.9, 218.0), "Boxing": (33.7, 92.0), "Centipede": (3306.5, 7386.0), "NameThisGame": (5614.0, 5643.0),
    "MsPacman": (594.4, 1978.0), "Pong": (11.4, 18.0), "Qbert": (13752.3, 14966.0), "Seaquest": (2300.2, 1706.0),
    "UpNDown": (54525.4, 8623.0)}


def goal(game: str) -> float | None:
    """Returns the paper's score of a game; None if it has none."""
    return PUBLISHED[game][1] if game in PUBLISHED else None


def counts(text: str) -> str:
    """Checks and returns N_A/N_P/N_T of the command line. Raises ArgumentTypeError."""
    try:
        ga3c.Config(start=text)  # checks them
    except ConfigError:
        raise argparse.ArgumentTypeError(f"{text!r} is not N_A/N_P/N_T, as in 4/1/1") from None
    return text


_A3C = ("--algorithm", "a3c")


def figure5(options: argparse.Namespace) -> list[Variant]:
    """Returns the paper's four ways to choose the numbers of workers."""
    def fixed(workers: str) -> tuple[str, ...]:
        agents, predictors, trainers = workers.split("/")
        return *_A3C, "--no-dynamic", "--agents", agents, "--predictors", predictors, "--trainers", trainers

    best = fixed(options.best) if options.best else (*_A3C, "--no-dynamic")
    return [Variant("1/1/1", "1-1-1", fixed("1/1/1")), Variant("16/1/1", "16-1-1", fixed("16/1/1")),
            Variant(f"best known, {options.best or 'the defaults'}", f"best-{options.best or 'defaults'}", best),
            Variant("tuned from 1/1/1", "dynamic", (*_A3C, "--dynamic", "--start", "1/1/1"))]


def figure6(options: argparse.Namespace) -> list[Variant]:
    """Returns a variant for each learning rate."""
    return [Variant(f"learning rate {rate:g}", f"rate{rate:g}", (*_A3C, "--learning-rate", f"{rate!r}"))
            for rate in options.rates]


def figure7(options: argparse.Namespace) -> list[Variant]:
    """Returns a variant for each least training batch."""
    common = (*_A3C, "--envs-per-agent", "1", "--rollout-length", "5", "--no-dynamic")
    return [Variant(f"at least {batch}", f"batch{batch}", (*common, "--training-batch-min", str(batch)))
            for batch in options.batches]


def lag(options: argparse.Namespace) -> list[Variant]:
    """Returns a variant for each training delay and each correction of the lag."""
    common = (*_A3C, "--serial", "--training-batch-min", "1")  # an update of every rollout
    return [Variant(f"{correction}, {delay} updates later" if delay else correction, f"{correction}-{delay}",
                    (*common, "--training-delay", str(delay), "--correction", correction))
            for delay in options.delays for correction in ("none", "clipped-is", "vtrace")]


def alternatives(options: argparse.Namespace) -> list[Variant]:
    """Returns the unchanged settings and one variant for each change."""
    return [Variant(" ".join(flags) or "none", "-".join(flags).replace("--", "") or "none", flags)
            for flags in [(), *map(tuple, map(str.split, options.change or CHANGES))]]


def table3(options: argparse.Namespace) -> list[Variant]:
    """Returns the unchanged settings."""
    return [Variant("ours", "ours", ())]


FIGURES = {"figure5": figure5, "figure6": figure6, "figure7": figure7, "lag": lag, "alternatives": alternatives,
           "table3": table3}

# The default changes of `alternatives`, tried one at a time.
CHANGES = ("--algorithm a3c", "--preset paper", "--passes 1", "--passes 2", "--passes 4", "--minibatches 4",
           "--learning-rate 2.5e-4 --learning-rate-final 2.5e-5", "--learning-rate 5e-4 --learning-rate-final 5e-5",
           "--learning-rate-final null", "--clip-range 0.2 --clip-range-final 0.02", "--clip-range-final null",
           "--rollout-length 32", "--rollout-length 128", "--training-batch-min 1024 --minibatches 4",
           "--envs-per-agent 8", "--gae-lambda 1", "--gae-lambda 0.8", "--no-normalize-advantages",
           "--entropy-coef 0", "--entropy-coef 0.02", "--entropy-coef-final 0.001", "--max-grad-norm 0",
           "--optimizer rmsprop", "--reward-clip 0")


def listed(found: dict[str, dict[str, dict[int, dict[str, Any]]]]) -> str:
    """Formats a Markdown table with one line for each run, from `run_numbers`."""
    lines = ["| game | | seed | minutes | agent steps | agent steps/s | policy lag | workers | score at the end | best "
             "| minutes to the paper's |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for game, by_label in found.items():
        for label, by_seed in by_label.items():
            for seed, run in by_seed.items():
                cells = [f"{run[name]:,}" if isinstance(run.get(name), int | float) else str(run.get(name) or "-")
                         for name in ("minutes", "agent_steps", "steps_per_second", "lag", "workers", "score", "best",
                                      "minutes_to_paper")]
                lines.append("| " + " | ".join([game, label, str(seed), *cells]) + " |")
    return "\n".join(lines) + "\n"


def table(found: dict[str, list[dict[str, Any]]]) -> str:
    """Formats a Markdown table, one line per game: the mean over seeds, and each seed's mean with its 95 % interval."""
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:,.1f}"

    lines = ["Human and random: Wang et al., 2016; A3C on 16 cores: Mnih et al., 2016, whose episodes begin as people "
             "left them, the others' with up to 30 no-ops; GA3C: the paper. Ours: after these agent steps, not a day.",
             "",
             "| game | human | random | A3C, 1 day | GA3C, 1 day | ours | by seed | agent steps, at least "
             "| human-normalised | minutes to the paper's, by seed |", "|---|---|---|---|---|---|---|---|---|---|"]
    for game, reports in found.items():
        a3c, of_paper = PUBLISHED.get(game, (None, None))
        means = [report["mean"] for report in reports]
        seeds = [f"{report['mean']:,.1f} ({low:,.1f} - {high:,.1f})"
                 for report in reports for low, high in [report["mean_interval"]]]
        normalised = [report["human_normalised"] for report in reports if "human_normalised" in report]
        lines.append("| " + " | ".join([
            game, number(reports[0].get("human")), number(reports[0].get("random")), number(a3c), number(of_paper),
            number(sum(means) / len(means)), ", ".join(seeds),
            f"{min(report['agent_steps'] for report in reports):,}",
            f"{sum(normalised) / len(normalised):.0%}" if normalised else "-",
            ", ".join(number(report.get("run", {}).get("minutes_to_paper")) for report in reports)]) + " |")
    return "\n".join(lines) + "\n"


def learned(run: Path, steps: float) -> dict[str, float]:
    """Returns the mean score of the last hundred episodes: at `steps` agent steps, and averaged over all steps before.

    Returns {} if no episode has ended.
    """
    rows = [row for row in reader.lasting(reader.rows(run).new()) if row["score_mean"] is not None]
    if not rows:
        return {}
    grid = np.linspace(0.0, steps, 1001)
    score = np.interp(grid, reader.column(rows, "agent_steps"), reader.column(rows, "score_mean"))
    return {"end": float(score[-1]), "average": float(score.mean())}


def compared(found: dict[str, dict[str, dict[int, dict[str, float]]]]) -> str:
    """Formats a Markdown table, one line per game and change: best average first, changes with missing seeds last."""
    lines = ["| game | changed | score, average of the run | by seed | at its end | by seed |",
             "|---|---|---|---|---|---|"]
    for game, by_label in found.items():
        lined = []
        most = max(len(by_seed) for by_seed in by_label.values())
        for label, by_seed in by_label.items():
            known = [one for one in by_seed.values() if one]
            cells, means = [game, label], {}
            for what in ("average", "end"):
                means[what] = sum(one[what] for one in known) / max(1, len(known))
                cells += [f"{means[what]:.4g}" if known else "-", ", ".join(
                    f"{one[what]:.4g}" if one else "none" for one in by_seed.values())]
            lined.append((len(known) < most, -means["average"], "| " + " | ".join(cells) + " |"))
        lines += [line for *_, line in sorted(lined)]
    return "\n".join(lines) + "\n"


def make(options: argparse.Namespace) -> list[str]:
    """Trains all runs and writes the figure or table after each. Returns the failures.

    Raises ConfigError if a flag is wrong, or if another process trains a run.
    """
    variants = FIGURES[options.figure](options)
    minutes = None if options.steps else options.minutes
    wanted = [(game, variant.label, options.out / options.figure / run_name(variant, game, seed),
               settings_for(variant, game, seed, options.flags, minutes, options.steps))
              for seed in options.seeds for game in options.games for variant in variants]
    runs: dict[str, dict[str, list[Path]]] = {}
    reports: dict[Path, dict[str, Any]] = {}
    text = ""

    def trained(number: int) -> None:
        nonlocal text
        game, label, run, _ = wanted[number]
        if options.figure == "table3":
            reports[run] = evaluated(run, options.episodes)
        runs.setdefault(game, {}).setdefault(label, []).append(run)
        text = show(options, runs, reports)

    failures = train_all([(run, settings) for *_, run, settings in wanted], trained)
    print(f"{text}written: {options.out / options.figure}.*" if text else "nothing to show", flush=True)
    return failures


def evaluated(run: Path, episodes: int) -> dict[str, Any]:
    """Evaluates the newest checkpoint once, keeps the report in the run, and returns it with `run_numbers`."""
    file = run / "table3.json"
    newest = checkpoint.saved(run / "checkpoints")[:1]
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"scores": []}
    if len(report["scores"]) != episodes or [Path(report["checkpoint"]).name] != [path.name for path in newest]:
        report = ga3c.evaluate(run, episodes=episodes)
        write_whole(file, json.dumps(report, indent=1) + "\n")
    return {**report, "run": run_numbers(run, goal(report["game"]))}


def show(options: argparse.Namespace, runs: dict[str, dict[str, list[Path]]],
         reports: dict[Path, dict[str, Any]]) -> str:
    """Writes and returns the table of the runs by game and label, and draws the figure. Returns "" without runs."""
    if not runs:
        return ""
    found: dict[str, Any]
    if options.figure == "table3":
        found = {game: [reports[run] for run in by_label["ours"]] for game, by_label in runs.items()}
        text = table(found)
    elif options.figure == "alternatives":
        found = {}
        for game, by_label in runs.items():
            steps = options.steps or min(reader.rows(run).new()[-1]["agent_steps"]
                                         for trained in by_label.values() for run in trained)
            found[game] = {label: {reader.settings(run)["seed"]: learned(run, steps) for run in trained}
                           for label, trained in by_label.items()}
        text = compared(found)
    else:
        found = {game: {label: {reader.settings(run)["seed"]: run_numbers(run, goal(game)) for run in trained}
                        for label, trained in by_label.items()} for game, by_label in runs.items()}
        text = listed(found)
        groups = {game: [grouped(trained, [label])[0] for label, trained in by_label.items()]
                  for game, by_label in runs.items()}
        file = options.out / f"{options.figure}.{options.format}"
        panel = "score-steps" if options.figure == "lag" else "score-time"
        figure_by_game(groups, panel, frames=options.figure == "figure5").savefig(file, dpi=200)
    write_whole(options.out / f"{options.figure}.json", json.dumps(found, indent=1) + "\n")
    write_whole(options.out / f"{options.figure}.md", text)
    return text


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="of runs and of what is drawn")
    parser.add_argument("--games", nargs="+", default=["Pong"], metavar="GAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="N")
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, default=30.0, help="of each run [%(default)g]")
    budget.add_argument("--steps", type=int, help="agent steps of each run")
    parser.add_argument("--best", type=counts, metavar="N_A/N_P/N_T",
                        help="figure5: the best counts known [the defaults]")
    parser.add_argument("--rates", nargs="+", type=float, default=[3e-4, 1e-4], help="figure6 [the paper's]")
    parser.add_argument("--batches", nargs="+", type=int, default=[5, 20, 40, 80, 160], help="figure7 [the paper's]")
    parser.add_argument("--delays", nargs="+", type=int, default=[0, 100], metavar="N", help="lag: updates [0 100]")
    parser.add_argument("--change", action="append", metavar="FLAGS",
                        help="alternatives: flags of ga3c-train; as often as you like [CHANGES in this file]")
    parser.add_argument("--episodes", type=number(int, 1, 100_000), default=30,
                        help="table3: of each evaluation [%(default)s]")
    parser.add_argument("--format", choices=[suffix[1:] for suffix in SUFFIXES], default="png", help="[%(default)s]")
    parser.epilog = "after --: flags of ga3c-train, for all runs"
    argv = [*sys.argv[1:], "--"]  # argparse finds no second positional argument after options
    own, flags = argv[:argv.index("--")], argv[argv.index("--") + 1:-1]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the current run must end with a checkpoint
    return exit_code("learning_figures", lambda: make(parser.parse_args(own, argparse.Namespace(flags=flags))))


if __name__ == "__main__":
    sys.exit(main())
