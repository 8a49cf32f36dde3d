"""`artificial.py`: a short run of one cell of its table."""

from __future__ import annotations

import json
from pathlib import Path

from programs import tool


def test_a_cell_takes_at_least_the_time_that_its_device_and_its_steps_take(tmp_path: Path) -> None:
    file = tmp_path / "made.json"
    done = tool("bench/artificial", "--schedules", "both", "--threads", "8", "--seconds", "5", "--json", str(file))
    assert done.returncode == 0, done.stderr
    cell, = json.loads(file.read_text())
    play, serial, predict = 2 * 590e-6, 8 * 354e-6, 564e-6  # of a round of eight, with its updates beside
    assert cell["seconds_per_step"] >= (play + serial + predict) / 8 and cell["paper"] == 9.02
    assert "both          8" in done.stdout
