"""Our emulator beside ale-py's: registers, memory, rewards and pixels after every frame."""

from __future__ import annotations

from pathlib import Path

import emulator_check
import numpy as np
import pytest
from emulator_check import Pair, Variant, check, proven_exact, variants
from probe_programs import cartridge_of, lines, random_instructions, random_picture

# One of each cartridge, paddles, swapped ports, code in RAM, strobes after HMOVE, short frames, and plain ones.
GAMES = ("alien", "asterix", "boxing", "breakout", "carnival", "freeway", "montezuma_revenge", "ms_pacman", "pong",
         "pooyan", "qbert", "robotank", "solaris", "up_n_down", "wizard_of_wor")


@pytest.mark.parametrize("game", GAMES)
def test_game_is_exact(game: str) -> None:
    assert check(game, seed=5, frames=300, registers=1) == ""


@pytest.mark.parametrize(("game", "variant"), [
    ("freeway", Variant(3, 1)), ("surround", Variant(2, 0)),
    ("demon_attack", Variant(3, 0))])  # which is over before it begins
def test_modes_and_difficulties_are_exact(game: str, variant: Variant) -> None:
    assert variant in variants(game)
    assert check(game, seed=5, frames=100, registers=1, variant=variant) == ""


def test_a_difference_is_told_with_the_program_counter() -> None:
    pair = Pair("boxing", 1)
    began = int(pair.machine["pc"][0])
    pair.machine["score"] = 5
    assert pair.play(pair.actions[0]) == [f"reward: ale-py 0, ours -5 (from PC {began:04x})"]


def test_what_was_proven_before_stays_if_it_was_found_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "proven.txt"
    monkeypatch.setattr(emulator_check, "PROVEN", path)
    path.write_text(proven_exact(["pong", "alien"], ["pong", "alien", "boxing"], "check --frames 9"))
    assert path.read_text().splitlines()[1:] == ["alien", "pong"]
    assert proven_exact(["boxing"], ["pong", "boxing"], "check --frames 9").splitlines()[1:] == ["alien", "boxing"]
    assert proven_exact(["boxing"], ["boxing"], "check --frames 8").splitlines()[1:] == ["boxing"]


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
    pair, random, compared = Pair("boxing", 1, path), np.random.default_rng(seed), 0
    for _ in range(5):
        for place in range(100):
            pair.ale.setRAM(place, int(random.integers(256)))
        pair.machine["ram"][0] = pair.ale.getRAM()
        if pair.ale.game_over():  # as Boxing's rules read that RAM
            break
        if found := [line for line in pair.play(pair.actions[0]) if not line.startswith(("reward", "lives", "over"))]:
            return found
        compared += 1
    assert compared, "the first picture ended the game: choose another seed"
    return []


@pytest.mark.parametrize("code", [
    pytest.param([0xA9, 0x7F, 0x18, 0x69, 1, 0xB8], id="CLV after an overflow"),
    pytest.param([0xA9, 0xFF, 0xA2, 7, 0xCB, 7], id="SBX of equal numbers"),
    pytest.param([0xA9, 0xFF, 0xA2, 7, 0xCB, 8], id="SBX that borrows"),
    pytest.param([0xA9, 0xF3, 0x4B, 0xAB], id="ASR with a carry")])
def test_opcodes_that_random_programs_hardly_draw(code: list[int], tmp_path: Path) -> None:
    saved = [0x08, 0x85, 0xF0, 0x68, 0x85, 0xF1, 0x86, 0xF2]  # A, the flags and X into RAM
    assert played(tmp_path, cartridge_of([*code, *saved, *lines(20)]), 0) == []
