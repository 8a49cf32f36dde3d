"""Our emulator beside ale-py's: registers, memory, rewards and pixels after every frame."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulator_check import Pair, check
from probe_programs import random_instructions, random_picture

# One of each cartridge, paddles, swapped ports, code in RAM, strobes after HMOVE, short frames, and plain ones.
GAMES = ("alien", "asterix", "boxing", "breakout", "freeway", "montezuma_revenge", "pong", "qbert", "robotank",
         "solaris", "up_n_down", "wizard_of_wor")


@pytest.mark.parametrize("game", GAMES)
def test_game_is_exact(game: str) -> None:
    assert check(game, seed=5, frames=300, registers=1) == ""


@pytest.mark.parametrize("seed", range(8))
def test_random_pictures_are_exact(tmp_path: Path, seed: int) -> None:
    assert played(tmp_path, random_picture(seed), seed) == []


@pytest.mark.parametrize("seed", range(8))
def test_random_instructions_are_exact(tmp_path: Path, seed: int) -> None:
    assert played(tmp_path, random_instructions(seed), seed) == []


def played(folder: Path, image: bytes, seed: int) -> list[str]:
    """What differs in five frames of a cartridge that finds random bytes in its RAM."""
    path = folder / "boxing.bin"
    path.write_bytes(image)
    pair, random = Pair("boxing", 1, path), np.random.default_rng(seed)
    for _ in range(5):
        for place in range(100):
            pair.ale.setRAM(place, int(random.integers(256)))
        pair.machine["ram"][0] = pair.ale.getRAM()
        if pair.ale.game_over():  # as Boxing's rules read that RAM
            break
        if found := [line for line in pair.play(pair.actions[0]) if not line.startswith(("reward", "lives", "over"))]:
            return found
    return []
