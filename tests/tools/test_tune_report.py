"""`tune_report.py`, on runs written by hand."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from programs import tool_here


def tuned_run(path: Path, every: int = 1, rate: int = 2000, agents: int = 8) -> Path:
    """Half of the rate for a minute, then all of it, with a trial in between; a row each so many seconds."""
    path.mkdir()
    steps, rows = 0, []
    for t in range(1, 181):
        steps += rate // 2 if t <= 60 else rate
        rows.append({"time": float(t), "agent_steps": steps, "agents": 4 if t <= 60 else agents, "predictors": 1,
                     "trainers": 1, "frames": 0, "episodes": 0})
    text = "".join(json.dumps(row) + "\n" for row in rows[every - 1::every])
    (path / "metrics.jsonl").write_text(text + '{"time": 1')
    trial = {"time": 60.0, "event": "trial", "from": "4/1/1", "to": "8/1/1", "decision": "accepted"}
    (path / "events.jsonl").write_text(json.dumps(trial) + "\n")
    return path


def report(*arguments: object) -> subprocess.CompletedProcess[str]:
    return tool_here("simulate/tune_report", *arguments, COLUMNS="160")


def test_it_reports_how_soon_a_run_was_fast(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "tuning.png"
    fixed = [tuned_run(tmp_path / "fixed"), tuned_run(tmp_path / "again"), tuned_run(tmp_path / "chance", rate=3000)]
    other = tuned_run(tmp_path / "other", rate=1800, agents=6)
    done = report(tuned_run(tmp_path / "run"), "--sweep", *fixed, other, "--plot", picture)
    assert done.returncode == 0, done.stderr
    assert "best of the sweep: 2,000 agent steps/s" in done.stdout
    assert done.stdout.splitlines()[1:3] == ["  8/1/1: 2,000 agent steps/s, median of 3 (2,000 to 3,000)",
                                             "  6/1/1: 1,800 agent steps/s, median of 1 (1,800 to 1,800)"]
    cells = next([cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines()
                 if line.startswith("│"))
    assert cells == ["run", "8/1/1", "1 (1)", "2,000", "100%", "87", "100%", "-"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_it_reports_by_time_where_rows_are_rare_and_where_a_resume_went_back(tmp_path: Path) -> None:
    run = tuned_run(tmp_path / "run", every=10)
    with open(run / "metrics.jsonl", "r+", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file.readlines()[:-1]]
        forgotten = [{**row, "agent_steps": 10 * row["agent_steps"]} for row in rows[8:12]]
        file.seek(0)
        file.writelines(json.dumps(row) + "\n" for row in [*rows[:8], *forgotten, *rows[8:]])
    done = report(run, "--sweep", tuned_run(tmp_path / "fixed", every=20))
    assert done.returncode == 0, done.stderr
    cells = next([cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines()
                 if line.startswith("│"))
    assert cells == ["run", "8/1/1", "1 (1)", "2,000", "100%", "90", "100%", "-"]


def test_a_run_of_the_sweep_may_be_shorter_than_one_to_report_on(tmp_path: Path) -> None:
    run, short = tuned_run(tmp_path / "run"), tuned_run(tmp_path / "short")
    rows = (short / "metrics.jsonl").read_text().splitlines()
    (short / "metrics.jsonl").write_text("\n".join(rows[:24]) + "\n")
    done = report(run, "--sweep", short)
    assert done.returncode == 0 and "best of the sweep: 1,000 agent steps/s" in done.stdout
    refused = report(short, "--sweep", run)
    assert refused.returncode == 2 and "short has less than 30 seconds" in refused.stderr


def test_a_run_too_short_to_report_on_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    for path, told in ((tmp_path, "less than 30 seconds"), (tmp_path / "none", "No such file")):
        done = report(path)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and told in done.stderr
