"""Times our emulator beside ale-py's vector environment: processor time of an agent step, in turn, in one thread.

    python tools/bench/emulator.py                  the games of proven.txt, a table
    python tools/bench/emulator.py pong boxing      these games
    python tools/bench/emulator.py --json FILE      also writes the numbers

Both play 8 environments with the same random actions at the defaults: 4 frames a step, 84 x 84, grey, stacks of four.
The time of a step is the median over the rounds; the ratio that of a round, ale-py's time by ours, the median, too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import ale_py
import numpy as np
from ale_py.vector_env import AtariVectorEnv as AleVectorEnv
from numpy.typing import NDArray

from ga3c.envs.atari_games import proven
from ga3c.envs.emulator import AtariVectorEnv
from ga3c.settings.flags import number, output_file

_ENVS = 8


class Timed(NamedTuple):
    """The times of one game. ale, own: microseconds of processor time per agent step. ratio: ale / own, the median.

    least: the lowest ratio of a round.
    """

    game: str
    ale: float
    own: float
    ratio: float
    least: float


def _us(env: Any, actions: NDArray[np.int64]) -> float:
    began = time.process_time()
    for each in actions:
        env.step(each)
    return 1e6 * (time.process_time() - began) / actions.size


def timed(game: str, steps: int, rounds: int) -> Timed:
    """Plays one game in both emulators, `rounds` times `steps` agent steps of 8 environments each."""
    both = [AleVectorEnv(game, num_envs=_ENVS, num_threads=1), AtariVectorEnv(game, num_envs=_ENVS, num_threads=1)]
    random = np.random.default_rng(0)
    for env in both:
        env.reset(seed=0)
        _us(env, np.zeros((2, _ENVS), np.int64))  # compiles and loads before the measurement
    found = []
    for _ in range(rounds):
        actions = random.integers(both[0].single_action_space.n, size=(steps, _ENVS))
        found.append([_us(env, actions) for env in both])
    for env in both:
        env.close()
    ratios = [ale / own for ale, own in found]
    ale, own = (median(each) for each in zip(*found, strict=True))
    return Timed(game, ale, own, median(ratios), min(ratios))


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", help="names of ale-py's ROMs")
    parser.add_argument("--steps", type=number(int, 1, 1_000_000), default=60, metavar="N",
                        help="agent steps of a round [%(default)s]")
    parser.add_argument("--rounds", type=number(int, 1, 1_000_000), default=3, metavar="N",
                        help="in turn [%(default)s]")
    parser.add_argument("--json", type=output_file(".json"), metavar="FILE")
    options = parser.parse_args()
    wrong = sorted(set(options.games) - proven())
    if wrong:
        parser.error(f"{wrong[0]!r} is no game of proven.txt")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    print("| game | ale-py, us a step | own | times as fast | least |\n|---|---|---|---|---|")
    found = []
    for game in options.games or sorted(proven()):
        found.append(timed(game, options.steps, options.rounds))
        print(f"| {game} | {found[-1].ale:.0f} | {found[-1].own:.0f} | {found[-1].ratio:.2f} | {found[-1].least:.2f} |",
              flush=True)
    print(f"median of {len(found)} games: {median(each.ratio for each in found):.2f} times as fast; "
          f"least {min(each.ratio for each in found):.2f}")
    if options.json:
        Path(options.json).write_text(json.dumps([each._asdict() for each in found], indent=1) + "\n",
                                      encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
