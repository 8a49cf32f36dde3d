"""Reproduces tables and figures of the papers other than GA3C's own figures, small by default.

    python tools/figures/papers.py table2 --out DIR [--networks small large-4 large-3 large-2 large-1] [--seconds 5]

    python tools/figures/papers.py environments --out DIR [--environments 8 32 128] [--agents 4] [--seconds 5]

    python tools/figures/papers.py batch --out DIR [--games toy:catch] [--environments 16 64 256] [--steps 600000]

    python tools/figures/papers.py norms --out DIR [--games Qbert] [--minutes 0.5]

    python tools/figures/papers.py cule --out DIR [--games Pong] [--rows 1,5,5 5,5,1 20,20,1] [--minutes 0.4]

table2: GA3C, table 2: predictions and trainings per second of A3C on processors (`--algorithm a3c-cpu`) and of GA3C,
    for five networks. `large-2` is the large network with stride 2.
environments: Accelerated Methods, figure 2: agent steps per second over the number of environments, by schedule.
    Updates are made, too, of as many steps in each schedule.
batch: Accelerated Methods, figure 4: A2C's score over agent steps by the number of environments. The learning rate
    grows with the root of the batch, up to 3e-3.
norms: Accelerated Methods, figure 9: norms of weights, gradients and steps with RMSProp and Adam, at one learning rate.
cule: CuLE, table 3, its rows of 120 environments: rate, policy lag, uses of a step, time and frames until the mean of
    the last hundred episodes is the paper's 18. A row is K,N,SPU: groups, rollout length, steps per update.

Measurements and runs stay in DIR/NAME*, and DIR gets NAME.json, NAME.md and NAME.png. A second call makes what is
missing, and resumes learning runs that were interrupted or whose budget has grown. FLAGS after `--` go to ga3c-train,
for all runs.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from figure_runs import exit_code
from paper_learning import PUBLISHED_PONG, batch, cule, norms
from paper_speed import PUBLISHED_PPS, SCHEDULES, environments, table2

from ga3c.settings.machine import usable_cores

COMMANDS: Mapping[str, Callable[[argparse.Namespace], list[str]]] = {
    "table2": table2, "environments": environments, "batch": batch, "norms": norms, "cule": cule}


def row_of_cule(text: str) -> str:
    """Checks and returns K,N,SPU of the command line. Raises ArgumentTypeError."""
    numbers = text.split(",")
    if len(numbers) == 3 and all(number.isascii() and number.isdigit() and int(number) for number in numbers):
        groups, length, steps = map(int, numbers)
        if length % (steps * groups) == 0:
            return text
    raise argparse.ArgumentTypeError(f"{text!r} is not K,N,SPU with N a multiple of K times SPU, as in 5,5,1")


def commands() -> argparse.ArgumentParser:
    """Builds the parser for the arguments before `--`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0],
                                     epilog="after --: flags of ga3c-train, for all runs")
    parts = parser.add_subparsers(dest="what", required=True, metavar="|".join(COMMANDS))

    def part(name: str, preset: str) -> argparse.ArgumentParser:
        made = parts.add_parser(name, description=COMMANDS[name].__doc__)
        made.add_argument("--out", type=Path, metavar="DIR", required=True, help="of what is measured and drawn")
        made.add_argument("--preset", default=preset, help="of ga3c-train [%(default)s]")
        return made

    def for_speed(name: str, preset: str) -> argparse.ArgumentParser:
        made = part(name, preset)
        made.add_argument("--game", default="Pong", help="[%(default)s]")
        made.add_argument("--seconds", type=float, default=5.0, help="of each run that count [%(default)g]")
        return made

    def for_learning(name: str, preset: str, game: str, minutes: float | None, steps: int | None = None) -> (
            argparse.ArgumentParser):
        made = part(name, preset)
        made.add_argument("--games", nargs="+", default=[game], metavar="GAME", help=f"[{game}]")
        made.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="N", help="[0]")
        budget = made.add_mutually_exclusive_group()
        budget.add_argument("--minutes", type=float, help=f"of each run [{minutes or f'{steps:,} agent steps'}]")
        budget.add_argument("--steps", type=int, help="agent steps of each run, instead of minutes")
        made.set_defaults(budget=(minutes, steps))
        return made

    made = for_speed("table2", "ga3c")
    made.add_argument("--networks", nargs="+", default=list(PUBLISHED_PPS), choices=PUBLISHED_PPS, help="[all]")
    made.add_argument("--agents", type=int, default=16, help="of GA3C [%(default)s]")
    made.add_argument("--workers", type=int, default=usable_cores(), help="of A3C [cores: %(default)s]")
    made = for_speed("environments", "accelerated-a2c")
    made.add_argument("--environments", nargs="+", type=int, default=[8, 32, 128], metavar="N", help="[8 32 128]")
    made.add_argument("--agents", type=int, default=2 * usable_cores(), help="processes [2 a core: %(default)s]")
    made.add_argument("--schedules", nargs="+", default=list(SCHEDULES), choices=SCHEDULES, help="[all]")
    made = for_learning("batch", "accelerated-a2c", "toy:catch", None, 600_000)
    made.add_argument("--environments", nargs="+", type=int, default=[16, 64, 256], metavar="N", help="[16 64 256]")
    made.add_argument("--agents", type=int, default=2, help="processes [%(default)s]")
    for_learning("norms", "accelerated-a2c", "Qbert", 0.5)
    made = for_learning("cule", "cule", "Pong", 0.4)
    made.add_argument("--rows", nargs="+", type=row_of_cule, default=list(PUBLISHED_PONG), metavar="K,N,SPU",
                      help=f"[{' '.join(PUBLISHED_PONG)}]")
    made.add_argument("--environments", type=int, default=120, help="in all [%(default)s]")
    made.add_argument("--agents", type=int, default=20, help="processes [%(default)s]")
    return parser


def main() -> int:
    """Runs the command and returns its exit code."""
    argv = [*sys.argv[1:], "--"]
    own, flags = argv[:argv.index("--")], argv[argv.index("--") + 1:-1]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the current run must end in order
    options = commands().parse_args(own, argparse.Namespace(flags=flags))

    def work() -> list[str]:
        options.out.mkdir(parents=True, exist_ok=True)
        return COMMANDS[options.what](options)

    return exit_code("papers", work)


if __name__ == "__main__":
    sys.exit(main())
