"""Makes a trained policy one of the package: a small file that is found by its name.

    python tools/release/ship_policy.py runs/Breakout-... breakout      or a checkpoint, a policy file, a name

Weights keep 10 of the 23 bits behind the point, rounded to the nearest, so that the file takes two thirds of the bytes.
That is finer than bfloat16, with 7 bits, which networks are trained in. Evaluate the file afterwards: `ga3c-eval NAME`.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from numpy.typing import NDArray

from ga3c.commands.entry import print_skipped_checkpoints
from ga3c.envs.atari_games import atari_game_of
from ga3c.evaluation.policy import SHIPPED, find, write_policy
from ga3c.learner.checkpoint import CheckpointError
from ga3c.settings.messages import ConfigError

_DROPPED = 13  # bits of a float32's 23


def rounded(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounds to the nearest floats with 10 bits after the point; ties round away from 0."""
    bits = np.ascontiguousarray(weights).view(np.uint32)
    kept = (bits + (1 << _DROPPED - 1)) >> _DROPPED << _DROPPED
    found: NDArray[np.float32] = kept.astype(np.uint32).view(np.float32)
    return found


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("policy", metavar="POLICY", help="run directory, one of its checkpoints, policy file, or name")
    parser.add_argument("name", metavar="NAME", help="of the game, in small letters: `ga3c-eval NAME` finds it")
    options = parser.parse_args()
    if not (options.name.isascii() and options.name.replace("_", "").isalnum() and options.name.islower()):
        parser.error(f"NAME: {options.name!r} is to be small letters, digits and _, as in space_invaders")
    try:
        trained = find(options.policy)
        print_skipped_checkpoints(trained.passed_over, "ship_policy")
        game = atari_game_of(trained.settings.env)
        if game and game.rom != options.name:
            raise ConfigError(f"NAME: {options.policy} plays {game.name}, so that it is to be {game.rom}")
        weights = {name: rounded(array) if array.dtype == np.float32 else array
                   for name, array in trained.weights.items()}
        path = SHIPPED / f"{options.name}.npz"
        write_policy(path, trained._replace(weights=weights))
    except (ConfigError, CheckpointError, OSError) as error:
        print(f"ship_policy: {error}", file=sys.stderr)
        return 2
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
