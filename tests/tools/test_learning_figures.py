"""`learning_figures.py`: what is trained, kept, resumed and shown."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import figure_runs
import learning_figures
import numpy as np
import pytest
from programs import TOOLS

from ga3c.learner import checkpoint
from ga3c.runs.directory import lock_directory
from ga3c.settings.plan import rollouts_per_batch
from ga3c.settings.files import resolve, to_yaml
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings


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
        saved(run, 5000)

    monkeypatch.setattr(learning_figures.ga3c, "train", note)
    return asked


def line(minutes: float) -> str:
    return json.dumps({"time": 60 * minutes, "agent_steps": 5000, "frames": 0, "episodes": 0, "agents": 0,
                       "predictors": 0, "trainers": 0}) + "\n"


def saved(run: Path, steps: int) -> Path:
    """A checkpoint after so many agent steps."""
    made = checkpoint.Checkpoint({"nothing": np.zeros(1)}, {"agent_steps": steps})
    return checkpoint.save(run / "checkpoints", f"{steps:012d}", made, 3)


def begun(run: Path, minutes: float, steps: int = 5000, settings: Settings = PONG) -> Path:
    """A run of so many minutes with a checkpoint after so many steps; 0: with none."""
    run.mkdir()
    (run / "config.yaml").write_text(to_yaml(settings.changed(run_dir=str(run))))
    (run / "metrics.jsonl").write_text(line(minutes))
    if steps:
        saved(run, steps)
    return run


def test_a_run_that_has_had_its_budget_is_kept_and_a_smaller_budget_is_had(
        tmp_path: Path, trained: list[dict[str, Any]]) -> None:
    run = begun(tmp_path / "run", 30.0)
    for budget in ({"minutes": 30.0}, {"minutes": 10.0}, {"minutes": None, "steps": 5000}):
        figure_runs.train(run, PONG.changed(**budget))
    assert not trained


def test_a_run_that_was_interrupted_goes_on_and_so_does_one_whose_budget_has_grown(
        tmp_path: Path, trained: list[dict[str, Any]]) -> None:
    figure_runs.train(begun(tmp_path / "cut", 20.0), PONG)
    assert trained == [{"config": None, "resume": tmp_path / "cut", "quiet": True, "minutes": 30.0, "steps": None}]
    with pytest.raises(SystemExit, match="was interrupted; repeat the command to continue"):
        figure_runs.train(begun(tmp_path / "more", 30.0), PONG.changed(minutes=40.0))
    assert trained[1]["minutes"] == 40.0


def test_a_run_without_a_checkpoint_is_put_aside_and_trained_anew(
        tmp_path: Path, trained: list[dict[str, Any]]) -> None:
    for number, minutes in ((1, 1.0), (2, 30.0)):
        figure_runs.train(begun(tmp_path / "run", minutes, steps=0), PONG)
        assert trained[-1]["config"].run.run_dir == str(tmp_path / "run")
        assert trained[-1]["config"].algorithm.entropy_coef == 0.0
        assert (tmp_path / f"run.broken{number}" / "config.yaml").exists()
        shutil.rmtree(tmp_path / "run")


def test_a_run_is_over_when_its_last_checkpoint_is_written_not_its_last_row(
        tmp_path: Path, trained: list[dict[str, Any]]) -> None:
    """As a disk that is full, or a kill, leaves it."""
    for name, budget, steps in (("minutes", PONG, 4400), ("steps", PONG.changed(minutes=None, steps=5000), 4999)):
        run = begun(tmp_path / name, 30.0, steps, budget)
        figure_runs.train(run, budget)
        assert trained[-1]["resume"] == run
        figure_runs.train(run, budget)
    assert len(trained) == 2
    damaged = begun(tmp_path / "damaged", 30.0, 4400)
    (saved(damaged, 5000) / "progress.json").write_text("{")
    figure_runs.train(damaged, PONG)
    assert trained[-1]["resume"] == damaged


def test_a_run_whose_last_rows_were_lost_is_over_all_the_same(tmp_path: Path, trained: list[dict[str, Any]]) -> None:
    budget = PONG.changed(minutes=None, steps=6000)
    figure_runs.train(begun(tmp_path / "run", 30.0, 6010, budget), budget)
    assert not trained


@pytest.mark.parametrize("flag", ["--minutes 5", "--steps 9", "--frames 9", "--episodes 9", "--run-dir x",
                                  "--checkpoint-minutes 1"])
def test_what_the_tool_says_itself_is_refused_behind_the_dashes(flag: str) -> None:
    variant = figure_runs.Variant("x", "x", ())
    with pytest.raises(ConfigError, match=flag.split()[0]):
        figure_runs.settings_for(variant, "Pong", 0, flag.split(), 5.0, None)
    assert figure_runs.settings_for(variant, "Pong", 0, ["--entropy-coef", "0"], 5.0, None).run.minutes == 5.0


def test_of_no_run_nothing_is_shown(tmp_path: Path) -> None:
    for figure in learning_figures.FIGURES:
        options = argparse.Namespace(out=tmp_path / "none", figure=figure, steps=None, format="png")
        learning_figures.show(options, {}, {})
    assert not (tmp_path / "none").exists()


def test_a_run_that_fails_is_left_out_and_told(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(run: Path, settings: Settings) -> None:
        if settings.algorithm.learning_rate == 1e-4:
            raise learning_figures.ga3c.CommandFailed("ended with exit code 1: it diverged")

    drawn: list[Any] = []

    def show(options: argparse.Namespace, runs: dict[str, Any], reports: dict[Path, Any]) -> str:
        drawn.append({label: len(trained) for label, trained in runs["Pong"].items()})
        return f"{len(drawn)} drawn\n"

    monkeypatch.setattr(figure_runs, "train", fail)
    monkeypatch.setattr(learning_figures, "show", show)
    monkeypatch.setattr(sys, "argv", ["x", "figure6", "--out", str(tmp_path), "--seeds", "0", "1"])
    assert learning_figures.main() == 1
    assert drawn == [{"learning rate 0.0003": 1}, {"learning rate 0.0003": 2}]
    printed = capsys.readouterr()
    assert printed.err.count("it diverged") == 2 and printed.out.startswith("2 drawn\nwritten: ")
    monkeypatch.setattr(sys, "argv", ["x", "figure6", "--out", str(tmp_path), "--rates", "1e-4"])
    assert learning_figures.main() == 1 and len(drawn) == 2 and capsys.readouterr().out == "nothing to show\n"


def test_while_somebody_trains_in_a_run_of_it_a_figure_is_not_begun(
        tmp_path: Path, trained: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    """As a run does whose tool was killed; beside it the others would be slow, and it would be put aside."""
    run = tmp_path / "table3/Pong-ours-s1"
    run.mkdir(parents=True)
    held = lock_directory(run)
    monkeypatch.setattr(sys, "argv", ["x", "table3", "--out", str(tmp_path), "--seeds", "0", "1"])
    try:
        assert learning_figures.main() == 2
    finally:
        os.close(held)
    assert not trained and run.exists() and f"in use by process {os.getpid()}" in capsys.readouterr().err


def test_a_checkpoint_is_evaluated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begun(tmp_path / "run", 30.0)
    asked: list[int] = []

    def evaluate(where: Path, episodes: int) -> dict[str, Any]:
        asked.append(episodes)
        return {"checkpoint": str(checkpoint.saved(where / "checkpoints")[0]), "game": "Pong", "scores": [1] * episodes}

    monkeypatch.setattr(learning_figures.ga3c, "evaluate", evaluate)
    assert learning_figures.evaluated(run, 3) == learning_figures.evaluated(run, 3)
    learning_figures.evaluated(run, 4)
    (run / "checkpoints/000000005020").mkdir()
    assert learning_figures.evaluated(run, 4)["checkpoint"] == str(run / "checkpoints/000000005020")
    assert asked == [3, 4, 4]
    (run / "metrics.jsonl").write_text(line(60.0).replace('"agents": 0', '"agents": 2'))
    assert learning_figures.evaluated(run, 4)["run"]["minutes"] == 60.0 and asked == [3, 4, 4], "it went on"


def test_what_a_run_has_done_is_told(tmp_path: Path) -> None:
    rows = [{"time": 60.0 * minute, "agent_steps": 6000 * minute, "frames": 24000 * minute, "episodes": episodes,
             "agents": 4, "predictors": 2, "trainers": 1, "lag_mean": lag, "score_mean": score}
            for minute, episodes, lag, score in (
                (1, 0, None, None), (2, 99, 1.0, 21.0), (3, 100, 2.0, 18.5), (4, 200, 3.0, 16.0))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + line(9.0))
    found = figure_runs.run_numbers(tmp_path, 18.0)
    assert found == {"minutes": 4.0, "agent_steps": 24000, "frames": 96000, "steps_per_second": 100.0, "lag": 2.0,
                     "workers": "4/2/1", "score": 16.0, "best": 18.5, "minutes_to_paper": 3.0,
                     "frames_to_paper": 72_000}
    assert figure_runs.run_numbers(tmp_path, None)["minutes_to_paper"] is None
    (tmp_path / "metrics.jsonl").write_text(json.dumps(rows[0]) + "\n")
    one = figure_runs.run_numbers(tmp_path, 18.0)
    assert one["score"] is one["best"] is one["lag"] is None
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    few = figure_runs.run_numbers(tmp_path, 18.0)
    assert few["score"] == 21.0 and few["best"] is few["minutes_to_paper"] is None
    (tmp_path / "metrics.jsonl").write_text("")
    assert figure_runs.run_numbers(tmp_path, 18.0) == {}
    assert learning_figures.listed({"Pong": {"ours": {0: found, 1: {}}}}).splitlines()[2:] == [
        "| Pong | ours | 0 | 4.0 | 24,000 | 100.0 | 2.0 | 4/2/1 | 16.0 | 18.5 | 3.0 |",
        "| Pong | ours | 1 | - | - | - | - | - | - | - | - |"]


def test_a_run_of_other_settings_is_refused(tmp_path: Path, trained: list[dict[str, Any]]) -> None:
    run = begun(tmp_path / "run", 30.0, settings=PONG.changed(gamma=0.5))
    with pytest.raises(ConfigError, match=r"was trained with gamma 0.5, not 0.99; give another --out"):
        figure_runs.train(run, PONG)
    assert not trained
    run = begun(tmp_path / "other", 10.0, settings=PONG.changed(update_groups=5))
    figure_runs.train(run, PONG)  # of multi-batch alone
    assert len(trained) == 1


@pytest.mark.parametrize("figure", ["figure5", "figure6", "figure7", "lag", "alternatives", "table3"])
def test_every_variant_of_a_figure_is_training_of_its_own(figure: str) -> None:
    options = argparse.Namespace(best="6/1/2", rates=[3e-4, 1e-4], batches=[5, 20, 160], delays=[0, 32], change=None)
    variants = learning_figures.FIGURES[figure](options)
    settings = [figure_runs.settings_for(variant, "Pong", 3, ["--agents", "9"], 5.0, None) for variant in variants]
    assert len({str(one.flat()) for one in settings}) == len({one.name for one in variants}) == len(variants)
    if figure == "figure5":
        tuning = [one.tuning for one in settings]
        assert [(one.agents, one.predictors, one.trainers, one.dynamic) for one in tuning[:3]] == [
            (1, 1, 1, False), (16, 1, 1, False), (6, 1, 2, False)]
        assert tuning[3].dynamic and tuning[3].start == "1/1/1" and not tuning[3].remember
    if figure == "lag":
        assert [one.algorithm.correction for one in settings[2:4]] == ["vtrace", "none"]
        assert [one.batching.training_delay for one in settings[2:4]] == [0, 32]
    if figure == "alternatives":
        assert settings[0] == resolve({"game": "Pong", "seed": 3, "agents": 9, "minutes": 5.0, "remember": False})
    if figure == "figure7":
        assert not any(one.tuning.dynamic for one in settings)
        assert [rollouts_per_batch(one) for one in settings] == [1, 4, 32]


def test_the_table_has_a_line_for_each_game_with_what_is_known_of_it() -> None:
    boxing = [{"mean": mean, "mean_interval": (mean - 2, mean + 1), "human": 12.1, "random": 0.1,
               "human_normalised": mean / 10, "agent_steps": steps, "run": {"minutes_to_paper": minutes}}
              for mean, steps, minutes in ((80.0, 2_000, None), (90.0, 1_000, 31.25))]
    toy = {"mean": 0.5, "mean_interval": (0.25, 0.75), "agent_steps": 7}
    sources, _, *_, first, second = learning_figures.table({"Boxing": boxing, "toy:catch": [toy]}).splitlines()
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
    good, slow, none = (learning_figures.learned(tmp_path / name, 50) for name in ("good", "slow", "none"))
    assert good == slow == {"end": 4.0, "average": pytest.approx(2.2, abs=0.01)} and none == {}
    assert learning_figures.learned(tmp_path / "good", 40) == {"end": 2.0, "average": pytest.approx(2.0)}
    good, better = {"end": 4.0, "average": 2.2}, {"end": 3.0, "average": 3.0}
    found = {"--entropy-coef 0": {0: better}, "none": {0: better, 1: good}, "--entropy-coef 1": {0: {}, 1: better},
             "--rollout-length 5": {0: good, 1: good}, "--rollout-length 9": {0: {}, 1: {}}}
    assert learning_figures.compared({"Pong": found}).splitlines()[2:] == [
        "| Pong | none | 2.6 | 3, 2.2 | 3.5 | 3, 4 |", "| Pong | --rollout-length 5 | 2.2 | 2.2, 2.2 | 4 | 4, 4 |",
        "| Pong | --entropy-coef 0 | 3 | 3 | 3 | 3 |", "| Pong | --entropy-coef 1 | 3 | none, 3 | 3 | none, 3 |",
        "| Pong | --rollout-length 9 | - | none, none | - | none, none |"]


@pytest.mark.slow
def test_figures_and_the_table_are_made_of_real_runs(tmp_path: Path) -> None:
    program = TOOLS / "figures/learning_figures.py"
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
    call("lag", "--steps", "240000", "--delays", "0", "3")
    assert len(list((tmp_path / "lag").iterdir())) == 6 and (tmp_path / "lag.png").exists()
    assert call("alternatives", "--steps", "20000", "--change=--entropy-coef 0").stdout.count("| toy:catch |") == 2
    assert call("table3", "--steps", "20000", "--episodes", "3").stdout.startswith("training")
    assert json.loads((tmp_path / "table3.json").read_text())["toy:catch"][0]["agent_steps"] >= 20_000


def test_mistakes_in_a_figures_command_line_are_told() -> None:
    program = TOOLS / "figures/learning_figures.py"
    done = subprocess.run([sys.executable, str(program), "figure5", "--out", "x", "--best", "4/1"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "'4/1' is not N_A/N_P/N_T" in done.stderr and "Traceback" not in done.stderr
