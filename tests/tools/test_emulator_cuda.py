"""`emulator_cuda.py` where there is no GPU; its kernel's pieces are in tests/envs/emulator/test_cuda.py."""

from __future__ import annotations

import pytest
from programs import tool


def test_a_game_that_is_not_known_is_named() -> None:
    done = tool("bench/emulator_cuda", "pnog")
    assert done.returncode == 2
    assert "error: 'pnog' is not among the ROMs that this emulator knows" in done.stderr.splitlines()[-1]


def test_that_there_is_no_gpu_is_told_in_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = tool("bench/emulator_cuda", "pong")
    assert done.returncode == 2
    assert "error: no GPU is found; it needs" in done.stderr.splitlines()[-1], done.stderr
