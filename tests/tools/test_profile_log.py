"""`profile_log.py`, on runs written by hand."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

from programs import tool_here


def written_run(path: Path, seconds: int, pps: float) -> Path:
    path.mkdir()
    rows = [{"time": float(t), "agent_steps": int(t * pps), "frames": 0, "episodes": 0, "agents": 4,
             "predictors": 1, "trainers": 2, "pps": pps,
             "tps": pps / 40, "prediction_batch": 8.0, "training_batch": 40.0, "lag_mean": 2.0, "lag_p95": 4.0,
             "wait_ms": 9.0, "queue_ms": 4.0, "service_ms": 3.0, "reply_ms": 2.0, "slot_wait_ms": 1.0, "play_ms": 5.0,
             "gather_ms": 2.5, "update_ms": 20.0, "predictor_busy": 0.25, "trainer_busy": 0.75, "cpu_agents": 1.2,
             "cpu_server": 0.6, "cpu_machine": 1.9,
             "training_queue": 1, "memory_mb": 500 + t / 60, "agent_deaths": 0, "score_mean": None if t < 5 else 3.0}
            for t in range(1, seconds + 1)]
    rows.append({**rows[-1], "agents": 0, "pps": 0.0})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"time": 1')
    return path


def profile(*arguments: object) -> subprocess.CompletedProcess[str]:
    return tool_here("bench/profile_log", *arguments, COLUMNS="140")


def rewritten(run: Path, change: Callable[[int, dict], dict]) -> None:
    """Makes of each row, but the torn last one, what `change(number, row)` returns."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[:-1]]
    (run / "metrics.jsonl").write_text("".join(json.dumps(change(*each)) + "\n" for each in enumerate(rows)))


def test_it_summarises_and_compares_runs_also_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    done = profile(written_run(tmp_path / "a/run", 120, 2000.0), written_run(tmp_path / "b/run", 60, 3000.0))
    assert done.returncode == 0, done.stderr
    lines = {line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:4]]
             for line in done.stdout.splitlines() if line.startswith("│")}
    assert lines["steps/s"] == ["2,000", "3,000"]
    assert lines["N_A/N_P/N_T"] == ["4/1/2", "4/1/2"]
    assert lines["minutes"] == ["2.0", "1.0"]
    assert lines["memory MB"][0] == "502 (+1.00 per minute)"
    split = {"wait_ms": 9.0, "queue_ms": 4.0, "service_ms": 3.0, "reply_ms": 2.0, "gather_ms": 2.5, "update_ms": 20.0}
    assert {name: float(lines[name][0].split()[0]) for name in split} == split
    assert "dropped steps" not in done.stdout


def test_dropped_steps_and_bottlenecks_are_told_where_there_are_some(tmp_path: Path) -> None:
    run = written_run(tmp_path / "one", 60, 1000.0)
    rewritten(run, lambda number, row: row | {"dropped_steps": 20_000} | (
        {"bottleneck": "environments" if number < 46 else "external load"} if 3 <= number < 60 else {}))
    shown = profile(run).stdout
    assert "20,000 (25.0% of all played)" in shown
    lines = [[cell.strip() for cell in line.split("│")[1:3]] for line in shown.splitlines()]
    assert ["bottleneck", "environments 75%, external load 25%"] in lines


def test_only_the_last_minutes_count_if_asked(tmp_path: Path) -> None:
    run = written_run(tmp_path / "one", 60, 1000.0)
    rewritten(run, lambda number, row: row | ({"pps": 1.0} if number < 30 else {}))
    assert "1,000.0 (1,000.0 - 1,000.0)" in profile(run, "--last-minutes", 0.45).stdout
    assert "1,000.0 (1,000.0 - 1,000.0)" not in profile(run).stdout


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    done = profile(tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "is not a run" in done.stderr
