"""The tools, on runs written by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parent.parent / "tools" / "profile_log.py"


def written_run(path: Path, seconds: int, pps: float) -> Path:
    path.mkdir()
    rows = [{"time": float(t), "agent_steps": int(t * pps), "agents": 4, "predictors": 1, "trainers": 2, "pps": pps,
             "tps": pps / 40, "prediction_batch": 8.0, "training_batch": 40.0, "lag_mean": 2.0, "lag_p95": 4.0,
             "training_queue": 1, "memory_mb": 500 + t / 60, "agent_deaths": 0, "score_mean": None if t < 5 else 3.0}
            for t in range(1, seconds + 1)]
    rows.append({**rows[-1], "agents": 0, "pps": 0.0})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"time": 1')
    return path


def profile(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL), *map(str, arguments)], capture_output=True, text=True,
                          check=False, env={"COLUMNS": "140", "PATH": "/usr/bin:/bin"})


def test_it_summarises_and_compares_runs(tmp_path: Path) -> None:
    done = profile(written_run(tmp_path / "one", 120, 2000.0), written_run(tmp_path / "two", 60, 3000.0))
    assert done.returncode == 0, done.stderr
    lines = {line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:4]]
             for line in done.stdout.splitlines() if line.startswith("│")}
    assert lines["steps/s"] == ["2,000", "3,000"]
    assert lines["N_A/N_P/N_T"] == ["4/1/2", "4/1/2"]
    assert lines["minutes"] == ["2.0", "1.0"]
    assert lines["memory MB"][0] == "502 (+1.00 per minute)"


def test_only_the_last_minutes_count_if_asked(tmp_path: Path) -> None:
    run = written_run(tmp_path / "one", 60, 1000.0)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[:-1]]
    for row in rows[:30]:
        row["pps"] = 1.0
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert "1,000.0 (1,000.0 - 1,000.0)" in profile(run, "--last-minutes", 0.45).stdout
    assert "1,000.0 (1,000.0 - 1,000.0)" not in profile(run).stdout


def test_it_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "runs.png"
    done = profile(written_run(tmp_path / "one", 60, 1000.0), "--plot", picture)
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    done = profile(tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "is not a run" in done.stderr
