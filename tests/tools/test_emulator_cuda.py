"""`emulator_cuda.py` where there is no GPU; its kernel's pieces are in tests/envs/emulator/test_cuda.py."""

from __future__ import annotations

from programs import tool


def test_a_game_that_is_not_known_is_named() -> None:
    done = tool("bench/emulator_cuda", "pnog")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("error: 'pnog' is no game that this emulator knows, as in ms_pacman")
