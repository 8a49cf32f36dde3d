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
from rows import rows


def test_what_a_soak_says_of_growth_and_of_replacements() -> None:
    hours = [i / 100 for i in range(100)]
    found = soak.slope(hours, [100.0 + 7.0 * hour for hour in hours])
    assert found == {"first": 101.4, "last": 106.93, "per_hour": pytest.approx(7.0), "error": pytest.approx(0.0)}
    assert soak.slope(hours[:3], [1.0] * 3) == {}
    assert soak.by_minute([(at, {"memory_mb": 300.0 + at // 60}) for at in range(180)]) == [300.0, 301.0, 302.0]
    told = [("agent_started", 0.5), ("agent_died", 1.0), ("agent_died", 2.0), ("agent_started", 2.5),
            ("agent_started", 4.0), ("agent_died", 9.0)]
    assert soak.replacements([{"event": event, "time": at} for event, at in told]) == [1.5, 2.0]


def test_seconds_without_an_update_are_told_once_training_is_warm(tmp_path: Path) -> None:
    lines = rows(10, time=[float(t) for t in range(10)], tps=[0.0] * 7 + [3.0] * 3,
                 memory_mb=500.0)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "events.jsonl").touch()
    told = soak.report(tmp_path, [], 0, 0)
    assert (told["seconds"], told["seconds_without_update"]) == (4, 1)


@pytest.mark.slow
def test_a_soak_shoots_agents_until_it_is_told_to_end_and_ends_its_run(tmp_path: Path) -> None:
    command = [sys.executable, TOOLS / "bench/soak.py", "--every", "1", "--", "--game", "toy:catch", "--no-dynamic",
               "--agents", "4", "--no-tensorboard"]

    def replaced() -> bool:
        """Whether ten agents have died and others taken their places."""
        events = [file.read_text() for file in tmp_path.glob("soak-*/run/events.jsonl")]
        return bool(events) and events[0].count('"agent_started"') >= 14 and events[0].count('"agent_died"') >= 10

    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        while not replaced():
            assert process.poll() is None
            time.sleep(0.1)
        process.terminate()
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    run, = tmp_path.glob("soak-*/run")
    told = json.loads(out)
    assert told["exit_code"] == 143 and told["run"] == str(run), "the report is of the time until then"
    assert told["shots"] >= told["deaths"]["signal"] >= 10 and told["replaced"] >= 10
    assert len(told["memory_mb_by_minute"]) >= 1
    assert (run / "soak.json").read_bytes() == out
    events = (run / "events.jsonl").read_text()
    assert json.loads(events.splitlines()[-1])["event"] == "end", "no process is left behind, see conftest.py"


def test_a_mistake_after_the_dashes_is_ga3c_trains(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, TOOLS / "bench/soak.py", "--", "--game", "Pongg"], capture_output=True,
                          text=True, check=False, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "no game is called 'Pongg'" in done.stderr
    assert not [*tmp_path.iterdir()]
