"""The tools, on runs written by hand."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ga3c.learner import checkpoint
from ga3c.runs import reader as record
from ga3c.runs.directory import lock_directory
from ga3c.service.batches import rollouts_per_batch
from ga3c.settings.files import resolve, to_yaml
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

TOOL = Path(__file__).parents[2] / "tools" / "bench" / "profile_log.py"


@pytest.mark.parametrize(("command", "says"), [
    ("plant --json nowhere/x.json", "is no directory"), ("transport --json .", "cannot be written"),
    ("roofline --json nowhere/x.json", "is no directory"), ("roofline --plot x.gif", "none of .png, .svg by its name"),
    ("profile_log run --plot nowhere/x.png", "is no directory"), ("tune_report run --plot x.jpg", "none of .png")])
def test_where_a_result_cannot_be_kept_is_told_before_the_work(
        command: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", command.split())
    monkeypatch.syspath_prepend(str(TOOL.parent))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(TOOL.parent / f"{sys.argv[0]}.py"), run_name="__main__")
    assert ended.value.code == 2 and says in capsys.readouterr().err


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
    return subprocess.run([sys.executable, str(TOOL), *map(str, arguments)], capture_output=True, text=True,
                          check=False, env={**os.environ, "COLUMNS": "140"})


def test_it_summarises_and_compares_runs(tmp_path: Path) -> None:
    done = profile(written_run(tmp_path / "one", 120, 2000.0), written_run(tmp_path / "two", 60, 3000.0))
    assert done.returncode == 0, done.stderr
    lines = {line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:4]]
             for line in done.stdout.splitlines() if line.startswith("│")}
    assert lines["steps/s"] == ["2,000", "3,000"]
    assert lines["N_A/N_P/N_T"] == ["4/1/2", "4/1/2"]
    assert lines["minutes"] == ["2.0", "1.0"]
    assert lines["memory MB"][0] == "502 (+1.00 per minute)"
    split = {"wait_ms": 9.0, "queue_ms": 4.0, "service_ms": 3.0, "reply_ms": 2.0, "gather_ms": 2.5, "update_ms": 20.0}
    assert {name: float(lines[name][0].split()[0]) for name in split} == split


def test_steps_that_were_dropped_are_told_where_there_are_some(tmp_path: Path) -> None:
    run = written_run(tmp_path / "one", 60, 1000.0)
    assert "dropped steps" not in profile(run).stdout
    lines = (run / "metrics.jsonl").read_text().splitlines()[:-1]
    rows = [json.loads(line) | {"dropped_steps": 20_000} for line in lines]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert "20,000 (25.0% of all played)" in profile(run).stdout


def test_what_limited_a_run_is_told_by_shares_of_its_seconds(tmp_path: Path) -> None:
    run = written_run(tmp_path / "one", 60, 1000.0)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()[:-1]]
    rows[3:60] = [row | {"bottleneck": "environments" if number < 46 else "external load"}
                  for number, row in enumerate(rows[3:60], 3)]
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    lines = [[cell.strip() for cell in line.split("│")[1:3]] for line in profile(run).stdout.splitlines()]
    assert ["bottleneck", "environments 75%, external load 25%"] in lines


def test_runs_of_one_name_have_a_column_each(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    done = profile(written_run(tmp_path / "a/run", 60, 2000.0), written_run(tmp_path / "b/run", 60, 3000.0))
    assert "2,000" in done.stdout and "3,000" in done.stdout


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


def test_the_split_of_an_agents_wait_is_drawn_as_it_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "runs.svg"
    module = load("profile_log")
    rows = module.window(record.rows(written_run(tmp_path / "one", 60, 1000.0)).new(), None)
    from matplotlib.axes import Axes
    drawn: list[list[float]] = []
    real = Axes.barh
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Axes, "barh", lambda axis, names, width, left, **rest: (
            drawn.append([float(left[0]), float(width[0])]), real(axis, names, width, left=left, **rest))[1])
        late = [{**row, "queue_ms": 4.0} for row in rows[-5:]]
        module.plot({"one": [{**row, "queue_ms": 400.0} for row in rows]}, {"one": late}, picture)
    assert drawn == [[0.0, 4.0], [4.0, 3.0], [7.0, 2.0], [0.0, 2.5], [2.5, 20.0], [0.0, 0.25], [0.25, 0.75]]


def test_what_is_no_run_is_one_line(tmp_path: Path) -> None:
    done = profile(tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "is not a run" in done.stderr


REPORT = TOOL.with_name("tune_report.py")


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
    trial = {"time": 60.0, "event": "trial", "from": "4/1/1", "to": "8/1/1", "verdict": "kept"}
    (path / "events.jsonl").write_text(json.dumps(trial) + "\n")
    return path


def report(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(REPORT), *map(str, arguments)], capture_output=True, text=True,
                          check=False, env={**os.environ, "COLUMNS": "160"})


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


# ------------------------------------------------------------------------------------------------ the roofline

def roofline(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL.parent / "roofline.py"), *map(str, arguments)], capture_output=True,
                          text=True, check=False)


@pytest.mark.slow
def test_the_roofline_of_a_toy_accounts_for_all_core_time(tmp_path: Path) -> None:
    file = tmp_path / "roofline.json"
    done = roofline("--games", "toy:catch", "--minutes", "0.1", "--runs", "1", "--seconds", "0.2", "--json", file,
                    "--", "--agents", "2", "--no-dynamic", "--no-tensorboard")
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    result, = report["results"]
    assert result["limit"] == pytest.approx(report["machine"]["cores"] * 1e6 / sum(result["costs_us"].values()))
    assert result["steps_per_second"] == result["runs"][0]["steps_per_second"] > 0
    assert sum(result["attribution_us"].values()) == pytest.approx(
        report["machine"]["cores"] * 1e6 / result["steps_per_second"])
    assert "toy:catch: " in done.stdout and "agents beyond" in done.stdout


def test_the_time_of_all_cores_is_divided_without_a_rest() -> None:
    costs = {"environment": 400.0, "inference": 60.0, "training": 140.0}
    run = {"steps_per_second": 2000.0, "cpu_agents": 1.0, "cpu_server": 0.6, "cpu_outside": 0.1, "cpu_machine": 1.7,
           "inference_us": 75.0, "transport_us": {"agents": 10.0, "server": 12.0, "gather": 5.0}}
    assert load("roofline").attribute(costs, run, 2) == pytest.approx({
        **costs, "smaller batches": 15.0, "agent loop": 10.0, "gathering": 5.0, "transport": 7.0,
        "agents beyond": 500.0 - 400.0 - 10.0,
        "model beyond": 250.0 - 75.0 - 140.0, "server beyond": 50.0 - 12.0, "other programs": 50.0, "idle": 150.0})


def test_of_several_runs_speed_share_and_limit_are_medians_each_for_itself() -> None:
    def run(speed: float, limit: float) -> dict[str, Any]:
        return {"steps_per_second": speed, "limit": limit, "share_of_limit": speed / limit, "cpu_agents": 1.0,
                "cpu_server": 0.6, "cpu_outside": 0.1, "cpu_machine": 1.7, "inference_us": 75.0,
                "prediction_batch": speed / 100,
                "costs_us": {"environment": 400.0, "inference": 60.0, "training": 140.0},
                "transport_us": {"agents": 10.0, "server": 12.0, "gather": 5.0},
                **dict.fromkeys(("wait_ms", "queue_ms", "service_ms", "predict_ms", "reply_ms", "slot_wait_ms",
                                 "play_ms"), speed)}
    found = load("roofline").medians([run(3000, 3333), run(2000, 2500), run(2500, 2810)], 2)
    assert found["steps_per_second"] == 2500 and found["limit"] == 2810
    assert found["share_of_limit"] == pytest.approx(2500 / 2810) and found["prediction_batch"] == found["wait_ms"] / 100
    found = load("roofline").medians([run(2200, 2400), run(2000, 2500), run(2500, 2800)], 2)
    assert (found["steps_per_second"], found["limit"], found["prediction_batch"]) == (2200, 2500, 25.0)
    assert sum(found["attribution_us"].values()) == pytest.approx(2e6 / 2500)


@pytest.mark.slow
def test_the_roofline_has_the_transport_of_atari_measured() -> None:
    settings = resolve({"game": "Pong", "envs_per_agent": 2})
    moved = load("roofline").transport(settings, 2, 1.0)
    assert moved["agents"] > 0 and moved["server"] > moved["gather"] > 0
    assert not any(load("roofline").transport(resolve({"game": "toy:catch"}), 2, 1.0).values())


@pytest.mark.parametrize(("tool", "flags"), [
    ("roofline", "--game Boxing"), ("roofline", "--minutes 1"), ("roofline", "--run-dir x"),
    ("speed_figures", "--agents 3"), ("speed_figures", "--network large"), ("speed_figures", "--no-dynamic")])
def test_what_a_tool_of_speed_says_itself_is_refused_behind_the_dashes(
        tool: str, flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(TOOL.parent))
    given = ["--out", str(tmp_path / "out")] if tool == "speed_figures" else ["--runs", "0"]
    monkeypatch.setattr(sys, "argv", [tool, *given, "--", *flags.split()])
    assert load(tool).main() == 2
    told = capsys.readouterr().err
    assert f"{tool}: {flags.split()[0].replace('--no-', '--')} is for this tool to say" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_where_a_gpu_computes_the_roofline_tells_no_limit(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import tensorflow as tf
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    monkeypatch.setattr(sys, "argv", ["roofline", "--games", "toy:catch", "--runs", "0"])
    assert load("roofline").main() == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1 and "CUDA_VISIBLE_DEVICES=-1" in shown.err and not shown.out


@pytest.mark.slow
def test_without_runs_the_roofline_tells_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "roofline.json"
    done = roofline("--games", "toy:catch", "--runs", "0", "--seconds", "0.2", "--json", file,
                    "--plot", tmp_path / "none.png")
    assert done.returncode == 0, done.stderr
    result, = json.loads(file.read_text())["results"]
    assert f"at most {result['limit']:,.0f} agent steps/s" in done.stdout and result["runs"] == []


def test_a_game_the_roofline_does_not_know_is_one_line() -> None:
    done = roofline("--games", "toy:catch", "--", "--lerning-rate", "1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "--learning-rate" in done.stderr


# ------------------------------------------------------------------------------------------------ transport and figures

def tool(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(TOOL.parent / name), *map(str, arguments)], capture_output=True,
                          text=True, check=False)


@pytest.mark.slow
def test_the_transport_is_measured_with_real_processes(tmp_path: Path) -> None:
    file = tmp_path / "transport.json"
    done = tool("transport.py", "--agents", 2, "--envs", 4, "--seconds", 1, "--runs", 1, "--json", file)
    assert done.returncode == 0, done.stderr
    run, = json.loads(file.read_text())["runs"]
    assert run["steps_per_second"] > 0 and run["agents_us"] > 0 and run["server_us"] > 0 and run["gather_us"] > 0
    assert "2 agents x 4 environments" in done.stdout


@pytest.mark.slow
def test_speed_figures_measure_what_is_missing_and_draw(tmp_path: Path) -> None:
    def figures(*agents: int) -> list[str]:
        done = tool("speed_figures.py", "--out", tmp_path, "--game", "toy:catch", "--agents", *agents,
                    "--predictors", 1, "--trainers", 1, "--networks", "dense", "--seconds", 5, "--",
                    "--envs-per-agent", "2")
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert [line.split(":")[0] for line in figures(1)] == ["dense 1/1/1", "drawn"]
    assert [line.split(":")[0] for line in figures(1)] == ["drawn"]
    found, = map(json.loads, (tmp_path / "speed.jsonl").read_text().splitlines())
    assert found["agents"] == 1 and found["steps_per_second"] > 0 and found["prediction_batch"] == 2
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------ learning_figures

def load(name: str) -> Any:
    """A tool as a module."""
    spec = importlib.util.spec_from_file_location(name, TOOL.with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FIGURES = load("learning_figures")


PONG = resolve({"game": "Pong", "seed": 3, "entropy_coef": 0.0, "minutes": 30.0})


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the tool has had trained; each run has 30 minutes and 5,000 steps at once."""
    asked: list[dict[str, Any]] = []

    def note(config: Settings | None = None, **given: Any) -> None:
        asked.append({"config": config, **given})
        run = Path(given["resume"] if config is None else config.run.run_dir or "")
        run.mkdir(exist_ok=True)
        (run / "metrics.jsonl").write_text(line(30.0))

    monkeypatch.setattr(FIGURES.ga3c, "train", note)
    return asked


def line(minutes: float) -> str:
    return json.dumps({"time": 60 * minutes, "agent_steps": 5000, "frames": 0, "episodes": 0, "agents": 0,
                       "predictors": 0, "trainers": 0}) + "\n"


def begun(run: Path, minutes: float, checkpoint: bool = True, settings: Settings = PONG) -> Path:
    run.mkdir()
    (run / "config.yaml").write_text(to_yaml(settings.changed(**{"run_dir": str(run)})))
    (run / "metrics.jsonl").write_text(line(minutes))
    if checkpoint:
        (run / "checkpoints" / "10").mkdir(parents=True)
        (run / "checkpoints" / "10" / "manifest.json").write_text("{}")
    return run


def test_a_run_that_has_had_its_budget_is_kept_and_a_smaller_budget_is_had(
        tmp_path: Path, trained: list[dict[str, Any]]) -> None:
    run = begun(tmp_path / "run", 30.0)
    for budget in ({"minutes": 30.0}, {"minutes": 10.0}, {"minutes": None, "steps": 5000}):
        FIGURES.train(run, PONG.changed(**budget))
    assert not trained


def test_a_run_that_was_interrupted_goes_on_and_so_does_one_whose_budget_has_grown(
        tmp_path: Path, trained: list[dict[str, Any]]) -> None:
    FIGURES.train(begun(tmp_path / "cut", 20.0), PONG)
    assert trained == [{"config": None, "resume": tmp_path / "cut", "quiet": True, "minutes": 30.0, "steps": None}]
    with pytest.raises(SystemExit, match="was interrupted; the same command goes on"):
        FIGURES.train(begun(tmp_path / "more", 30.0), PONG.changed(**{"minutes": 40.0}))
    assert trained[1]["minutes"] == 40.0


def test_a_run_without_a_checkpoint_is_put_aside_and_trained_anew(
        tmp_path: Path, trained: list[dict[str, Any]]) -> None:
    for number in (1, 2):
        FIGURES.train(begun(tmp_path / "run", 1.0, checkpoint=False), PONG)
        assert trained[-1]["config"].run_dir == str(tmp_path / "run") and trained[-1]["config"].beta == 0.0
        assert (tmp_path / f"run.broken{number}" / "config.yaml").exists()
        (tmp_path / "run" / "metrics.jsonl").unlink()
        (tmp_path / "run").rmdir()


@pytest.mark.parametrize("flag", ["--minutes 5", "--steps 9", "--frames 9", "--episodes 9", "--run-dir x",
                                  "--checkpoint-minutes 1"])
def test_what_the_tool_says_itself_is_refused_behind_the_dashes(flag: str) -> None:
    variant = FIGURES.Variant("x", "x", ())
    with pytest.raises(ConfigError, match=flag.split()[0]):
        FIGURES.asked(variant, "Pong", 0, flag.split(), 5.0, None)
    assert FIGURES.asked(variant, "Pong", 0, ["--entropy-coef", "0"], 5.0, None).minutes == 5.0


def test_of_no_run_nothing_is_shown(tmp_path: Path) -> None:
    for figure in FIGURES.FIGURES:
        FIGURES.show(argparse.Namespace(out=tmp_path / "none", figure=figure, steps=None, format="png"), {}, {})
    assert not (tmp_path / "none").exists()


def test_a_run_that_fails_is_left_out_and_told(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(run: Path, settings: Settings) -> None:
        if settings.algorithm.learning_rate == 1e-4:
            raise FIGURES.ga3c.CommandFailed("ended with exit code 1: it diverged")

    drawn: list[Any] = []

    def show(options: argparse.Namespace, runs: dict[str, Any], reports: dict[Path, Any]) -> str:
        drawn.append({label: len(trained) for label, trained in runs["Pong"].items()})
        return f"{len(drawn)} drawn\n"

    monkeypatch.setattr(FIGURES, "train", fail)
    monkeypatch.setattr(FIGURES, "show", show)
    monkeypatch.setattr(sys, "argv", ["x", "figure6", "--out", str(tmp_path), "--seeds", "0", "1"])
    assert FIGURES.main() == 1
    assert drawn == [{"learning rate 0.0003": 1}, {"learning rate 0.0003": 2}]
    printed = capsys.readouterr()
    assert printed.err.count("it diverged") == 2 and printed.out.startswith("2 drawn\nwritten: ")
    monkeypatch.setattr(sys, "argv", ["x", "figure6", "--out", str(tmp_path), "--rates", "1e-4"])
    assert FIGURES.main() == 1 and len(drawn) == 2 and capsys.readouterr().out == "nothing to show\n"


def test_while_somebody_trains_in_a_run_of_it_a_figure_is_not_begun(
        tmp_path: Path, trained: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    """As a run does whose tool was killed; beside it the others would be slow, and it would be put aside."""
    run = tmp_path / "table3/Pong-ours-s1"
    run.mkdir(parents=True)
    held = lock_directory(run)
    monkeypatch.setattr(sys, "argv", ["x", "table3", "--out", str(tmp_path), "--seeds", "0", "1"])
    try:
        assert FIGURES.main() == 2
    finally:
        os.close(held)
    assert not trained and run.exists() and f"in use by process {os.getpid()}" in capsys.readouterr().err


def test_a_checkpoint_is_evaluated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun(tmp_path / "run", 30.0)
    asked: list[int] = []

    def evaluate(where: Path, episodes: int) -> dict[str, Any]:
        asked.append(episodes)
        return {"checkpoint": str(checkpoint.saved(where / "checkpoints")[0]), "game": "Pong", "scores": [1] * episodes}

    monkeypatch.setattr(FIGURES.ga3c, "evaluate", evaluate)
    assert FIGURES.evaluated(run, 3) == FIGURES.evaluated(run, 3)
    FIGURES.evaluated(run, 4)
    (run / "checkpoints/20").mkdir()
    assert FIGURES.evaluated(run, 4)["checkpoint"] == str(run / "checkpoints/20")
    assert asked == [3, 4, 4]
    (run / "metrics.jsonl").write_text(line(60.0).replace('"agents": 0', '"agents": 2'))
    assert FIGURES.evaluated(run, 4)["run"]["minutes"] == 60.0 and asked == [3, 4, 4], "it went on"


def test_what_a_run_has_done_is_told(tmp_path: Path) -> None:
    rows = [{"time": 60.0 * minute, "agent_steps": 6000 * minute, "frames": 24000 * minute, "episodes": episodes,
             "agents": 4, "predictors": 2, "trainers": 1, "lag_mean": lag, "score_mean": score}
            for minute, episodes, lag, score in (
                (1, 0, None, None), (2, 99, 1.0, 21.0), (3, 100, 2.0, 18.5), (4, 200, 3.0, 16.0))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + line(9.0))
    found = FIGURES.done(tmp_path, "Pong")
    assert found == {"minutes": 4.0, "agent_steps": 24000, "frames": 96000, "steps_per_second": 100.0, "lag": 2.0,
                     "workers": "4/2/1", "score": 16.0, "best": 18.5, "minutes_to_paper": 3.0}
    assert FIGURES.done(tmp_path, "toy:catch")["minutes_to_paper"] is None
    (tmp_path / "metrics.jsonl").write_text(json.dumps(rows[0]) + "\n")
    one = FIGURES.done(tmp_path, "Pong")
    assert one["score"] is one["best"] is one["lag"] is None
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    few = FIGURES.done(tmp_path, "Pong")
    assert few["score"] == 21.0 and few["best"] is few["minutes_to_paper"] is None
    (tmp_path / "metrics.jsonl").write_text("")
    assert FIGURES.done(tmp_path, "Pong") == {}
    assert FIGURES.listed({"Pong": {"ours": {0: found, 1: {}}}}).splitlines()[2:] == [
        "| Pong | ours | 0 | 4.0 | 24,000 | 100.0 | 2.0 | 4/2/1 | 16.0 | 18.5 | 3.0 |",
        "| Pong | ours | 1 | - | - | - | - | - | - | - | - |"]


def test_a_run_of_other_settings_is_refused(tmp_path: Path, trained: list[dict[str, Any]]) -> None:
    run = begun(tmp_path / "run", 30.0, settings=PONG.changed(**{"gamma": 0.5}))
    with pytest.raises(ConfigError, match=r"was trained with gamma 0.5, not 0.99; give another --out"):
        FIGURES.train(run, PONG)
    assert not trained


@pytest.mark.parametrize("figure", ["figure5", "figure6", "figure7", "lag", "alternatives", "table3"])
def test_every_variant_of_a_figure_is_training_of_its_own(figure: str) -> None:
    options = argparse.Namespace(best="6/1/2", rates=[3e-4, 1e-4], batches=[5, 20, 160], delays=[0, 32], change=None)
    variants = FIGURES.FIGURES[figure](options)
    settings = [FIGURES.asked(variant, "Pong", 3, ["--agents", "9"], 5.0, None) for variant in variants]
    assert len({str(one.flat()) for one in settings}) == len({one.name for one in variants}) == len(variants)
    if figure == "figure5":
        assert [(one.agent_count, one.predictors, one.trainers, one.dynamic) for one in settings[:3]] == [
            (1, 1, 1, False), (16, 1, 1, False), (6, 1, 2, False)]
        assert settings[3].dynamic and settings[3].start == "1/1/1" and not settings[3].remember
    if figure == "lag":
        assert [(one.correction, one.training_delay) for one in settings[2:4]] == [("vtrace", 0), ("none", 32)]
    if figure == "alternatives":
        assert settings[0] == resolve({"game": "Pong", "seed": 3, "agents": 9, "minutes": 5.0, "remember": False})
    if figure == "figure7":
        assert not any(one.dynamic for one in settings)
        assert [rollouts_per_batch(one) for one in settings] == [1, 4, 32]


def test_the_table_has_a_line_for_each_game_with_what_is_known_of_it() -> None:
    boxing = [{"mean": mean, "mean_interval": (mean - 2, mean + 1), "human": 12.1, "random": 0.1,
               "human_normalised": mean / 10, "agent_steps": steps, "run": {"minutes_to_paper": minutes}}
              for mean, steps, minutes in ((80.0, 2_000, None), (90.0, 1_000, 31.25))]
    toy = {"mean": 0.5, "mean_interval": (0.25, 0.75), "agent_steps": 7}
    sources, _, *_, first, second = FIGURES.table({"Boxing": boxing, "toy:catch": [toy]}).splitlines()
    assert "Mnih" in sources and "no-ops" in sources
    assert first == ("| Boxing | 12.1 | 0.1 | 33.7 | 92.0 | 85.0 | 80.0 (78.0 - 81.0), 90.0 (88.0 - 91.0) | 1,000 "
                     "| 850% | -, 31.2 |")
    assert second == "| toy:catch | - | - | - | - | 0.5 | 0.5 (0.2 - 0.8) | 7 | - | - |"


def test_alternatives_are_compared_by_what_they_learned(tmp_path: Path) -> None:
    for name, scores in {"good": (None, 2.0, 4.0), "slow": (2.0, 2.0, 4.0), "none": (None, None, None)}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(
            json.dumps({**json.loads(line(minutes)), "agent_steps": steps, "score_mean": score}) + "\n"
            for minutes, steps, score in zip((1, 2, 3), (20, 40, 50), scores, strict=True)))
    good, slow, none = (FIGURES.learned(tmp_path / name, 50) for name in ("good", "slow", "none"))
    assert good == slow == {"end": 4.0, "average": pytest.approx(2.2, abs=0.01)} and none == {}
    assert FIGURES.learned(tmp_path / "good", 40) == {"end": 2.0, "average": pytest.approx(2.0)}
    good, better = {"end": 4.0, "average": 2.2}, {"end": 3.0, "average": 3.0}
    found = {"--entropy-coef 0": {0: better}, "none": {0: better, 1: good}, "--entropy-coef 1": {0: {}, 1: better},
             "--rollout-length 5": {0: good, 1: good}, "--rollout-length 9": {0: {}, 1: {}}}
    assert FIGURES.compared({"Pong": found}).splitlines()[2:] == [
        "| Pong | none | 2.6 | 3, 2.2 | 3.5 | 3, 4 |", "| Pong | --rollout-length 5 | 2.2 | 2.2, 2.2 | 4 | 4, 4 |",
        "| Pong | --entropy-coef 0 | 3 | 3 | 3 | 3 |", "| Pong | --entropy-coef 1 | 3 | none, 3 | 3 | none, 3 |",
        "| Pong | --rollout-length 9 | - | none, none | - | none, none |"]


@pytest.mark.slow
def test_figures_and_the_table_are_made_of_real_runs(tmp_path: Path) -> None:
    program = TOOL.with_name("learning_figures.py")
    common = ["--out", str(tmp_path), "--games", "toy:catch", "--", "--agents-max", "16"]

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([sys.executable, str(program), *arguments, *common], capture_output=True, text=True,
                              check=False)
        assert done.returncode == 0, done.stderr
        return done

    assert call("figure7", "--steps", "20000", "--batches", "20", "80").stdout.count("training") == 2
    assert call("figure7", "--steps", "30000", "--batches", "20", "80").stdout.count("training") == 2
    assert "training" not in call("figure7", "--steps", "30000", "--batches", "20", "80").stdout
    with subprocess.Popen([sys.executable, str(program), "figure7", "--steps", "100000000", "--batches", "20", *common],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as interrupted:
        run = tmp_path / "figure7/toy-catch-batch20-s0"
        before = len((run / "metrics.jsonl").read_text().splitlines())
        while len((run / "metrics.jsonl").read_text().splitlines()) < before + 3:
            time.sleep(0.1)
        interrupted.terminate()
        assert interrupted.wait(60)
    had = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["agent_steps"]
    assert had > 30_000
    assert call("figure7", "--steps", str(had + 10_000), "--batches", "20").stdout.count("training") == 1
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    assert [event["resumed_at"] for event in events if event["event"] == "start"][-1] == had
    assert (tmp_path / "figure7.png").read_bytes().startswith(b"\x89PNG")
    call("figure5", "--minutes", "0.06", "--best", "2/1/1", "--format", "svg")
    drawn = (tmp_path / "figure5.svg").read_text()
    frames = json.loads((tmp_path / "figure5/toy-catch-1-1-1-s0/metrics.jsonl").read_text().splitlines()[-1])["frames"]
    assert all(label in drawn for label in (
        f"<!-- 1/1/1: {frames / 1e6:.1f} M frames -->", "16/1/1", "best known, 2/1/1", "tuned from 1/1/1"))
    call("figure6", "--minutes", "0.06", "--seeds", "0", "1")
    assert len(list((tmp_path / "figure6").iterdir())) == 4
    call("lag", "--steps", "60000", "--delays", "0", "3")
    assert len(list((tmp_path / "lag").iterdir())) == 6 and (tmp_path / "lag.png").exists()
    assert call("alternatives", "--steps", "20000", "--change=--entropy-coef 0").stdout.count("| toy:catch |") == 2
    assert call("table3", "--steps", "20000", "--episodes", "3").stdout.startswith("training")
    assert json.loads((tmp_path / "table3.json").read_text())["toy:catch"][0]["agent_steps"] >= 20_000


def test_mistakes_in_a_figures_command_line_are_told() -> None:
    program = TOOL.with_name("learning_figures.py")
    done = subprocess.run([sys.executable, str(program), "figure5", "--out", "x", "--best", "4/1"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "'4/1' is not N_A/N_P/N_T" in done.stderr and "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------------------ the first visit

@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_a_terminal_of_the_first_visit_waits_for_commands_and_is_drawn(tmp_path: Path) -> None:
    first_visit = load("first_visit")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").write_text("VISITED=yes\n")
    with first_visit.terminal("test", tmp_path) as shell:
        assert "yes\n" in shell.run("echo $VISITED")
        shell.picture(tmp_path / "screen.png")
        with pytest.raises(first_visit.Failed, match="exit code 3"):
            shell.run("(exit 3)")
        shell.begin("sleep 60")
        with pytest.raises(first_visit.Failed, match="not over after 0 s"):
            shell.end(0.3)
    with Image.open(tmp_path / "screen.png") as picture:
        assert picture.height == 2 * (first_visit.SIZE + 4) + 16 and len(picture.getcolors(1000) or []) > 2
    left = subprocess.run(["tmux", "has-session", "-t", "first-visit-test"], capture_output=True, check=False)
    assert left.returncode != 0


# ------------------------------------------------------------------------------------------------ soak

def test_what_a_soak_says_of_growth_and_of_replacements() -> None:
    soak = load("soak")
    hours = [i / 100 for i in range(100)]
    found = soak.slope(hours, [100.0 + 7.0 * hour for hour in hours])
    assert found == {"first": 101.4, "last": 106.93, "per_hour": pytest.approx(7.0), "error": pytest.approx(0.0)}
    assert soak.slope(hours[:3], [1.0] * 3) == {}
    assert soak.by_minute([(at, {"memory_mb": 300.0 + at // 60}) for at in range(180)]) == [300.0, 301.0, 302.0]
    told = [("agent_started", 0.5), ("agent_died", 1.0), ("agent_died", 2.0), ("agent_started", 2.5),
            ("agent_returned", 4.0), ("agent_died", 9.0)]
    assert soak.replacements([{"event": event, "time": at} for event, at in told]) == [1.5, 2.0]


@pytest.mark.slow
def test_a_soak_shoots_agents_and_tells_what_came_of_it(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, TOOL.parent / "soak.py", "--minutes", "0.3", "--every", "1", "--", "--game",
                           "toy:catch", "--no-dynamic", "--agents", "4", "--no-tensorboard"], capture_output=True,
                          text=True, check=False, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["exit_code"] == 0 and told["shots"] == told["deaths"]["signal"] >= 10 and told["replaced"] >= 10
    assert told["seconds_without_update"] == 0 and len(told["memory_mb_by_minute"]) == 1


def test_a_soak_that_is_told_to_end_ends_its_run(tmp_path: Path) -> None:
    command = [sys.executable, TOOL.parent / "soak.py", "--", "--game", "toy:catch", "--no-dynamic", "--agents", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        while not (rows := [*tmp_path.glob("soak-*/run/metrics.jsonl")]):
            assert process.poll() is None
            time.sleep(0.1)
        process.terminate()
        assert process.wait(60) == 143
    events = (rows[0].parent / "events.jsonl").read_text()
    assert json.loads(events.splitlines()[-1])["event"] == "end", "no process is left behind, see conftest.py"
