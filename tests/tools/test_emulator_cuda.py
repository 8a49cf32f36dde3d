"""`emulator_cuda.py` where there is no GPU; its kernel's pieces are in tests/envs/emulator/test_cuda.py."""

from __future__ import annotations

import sys

import emulator_cuda
import pytest


@pytest.mark.parametrize(("game", "told"), [
    ("pnog", "error: 'pnog' is not among the ROMs that this emulator knows"),
    ("pong", "error: no GPU is found; it needs")])
def test_what_it_cannot_do_is_told_in_the_last_line(
        game: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("numba.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["emulator_cuda", game])
    with pytest.raises(SystemExit) as ended:
        emulator_cuda.main()
    assert ended.value.code == 2 and told in capsys.readouterr().err.splitlines()[-1]
