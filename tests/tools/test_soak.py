"""`soak.py`: agents are killed, and the report says what happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import soak
from programs import TOOLS


def test_what_a_soak_says_of_growth_and_of_replacements() -> None:
    hours = [i / 100 for i in range(100)]
    found = soak.slope(hours, [100.0 + 7.0 * hour for hour in hours])
    assert found == {"first": 101.4, "last": 106.93, "per_hour": pytest.approx(7.0), "error": pytest.approx(0.0)}
    assert soak.slope(hours[:3], [1.0] * 3) == {}
    assert soak.by_minute([(at, {"memory_mb": 300.0 + at // 60}) for at in range(180)]) == [300.0, 301.0, 302.0]
    told = [("agent_started", 0.5), ("agent_died", 1.0), ("agent_died", 2.0), ("agent_started", 2.5),
            ("agent_started", 4.0), ("agent_died", 9.0)]
    assert soak.replacements([{"event": event, "time": at} for event, at in told]) == [1.5, 2.0]


@pytest.mark.slow
def test_a_soak_shoots_agents_and_tells_what_came_of_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, TOOLS / "bench/soak.py", "--minutes", "0.3", "--every", "1", "--", "--game",
                           "toy:catch", "--no-dynamic", "--agents", "4", "--no-tensorboard"], capture_output=True,
                          text=True, check=False, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["exit_code"] == 0 and told["shots"] == told["deaths"]["signal"] >= 10 and told["replaced"] >= 10
    assert told["seconds_without_update"] == 0 and len(told["memory_mb_by_minute"]) == 1


def test_a_soak_that_is_told_to_end_ends_its_run(tmp_path: Path) -> None:
    command = [sys.executable, TOOLS / "bench/soak.py", "--", "--game", "toy:catch", "--no-dynamic", "--agents", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        while not (rows := [*tmp_path.glob("soak-*/run/metrics.jsonl")]):
            assert process.poll() is None
            time.sleep(0.1)
        process.terminate()
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    told = json.loads(out)
    assert told["exit_code"] == 143 and told["run"] == str(rows[0].parent), "the report is of the time until then"
    assert (rows[0].parent / "soak.json").read_bytes() == out
    events = (rows[0].parent / "events.jsonl").read_text()
    assert json.loads(events.splitlines()[-1])["event"] == "end", "no process is left behind, see conftest.py"


def test_a_mistake_after_the_dashes_is_ga3c_trains(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, TOOLS / "bench/soak.py", "--", "--game", "Pongg"], capture_output=True,
                          text=True, check=False, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "no game is called 'Pongg'" in done.stderr
    assert not [*tmp_path.iterdir()]
