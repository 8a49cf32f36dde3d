"""`transport.py`: real processes with nothing to compute."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from programs import tool


@pytest.mark.slow
def test_the_transport_is_measured_with_real_processes(tmp_path: Path) -> None:
    file = tmp_path / "transport.json"
    done = tool("bench/transport", "--agents", 2, "--envs", 4, "--seconds", 1, "--runs", 1, "--json", file)
    assert done.returncode == 0, done.stderr
    run, = json.loads(file.read_text())["runs"]
    assert run["steps_per_second"] > 0 and run["agents_us"] > 0 and run["server_us"] > 0 and run["gather_us"] > 0
    assert "2 agents x 4 environments" in done.stdout
