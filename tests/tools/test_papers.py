"""`papers.py`: what is measured, trained, kept and shown; real runs of toys in a slow test."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import figure_runs
import numpy as np
import paper_speed
import papers
import pytest
from programs import tool
from rows import rows

from ga3c.settings.files import configured, to_yaml
from ga3c.settings.plan import plan
from ga3c.settings.schema import Settings

Call = Callable[..., int]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls the tool, with an output directory of its own."""
    def calling(what: str, *arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["papers", what, "--out", str(tmp_path), *map(str, arguments)])
        return papers.main()

    return calling


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What the tool has had measured. The rate is the number of environments, and PPS fall with the network's size."""
    asked: list[Settings] = []

    def note(settings: Settings, seconds: float) -> dict[str, Any]:
        asked.append(settings)
        rate = float(settings.agent_count * settings.agents.envs_per_agent)
        pps = rate * (1 if settings.algorithm.network == "small" else settings.algorithm.large_stride / 10)
        return {"steps_per_second": rate, "pps": pps, "tps": 2.0, "prediction_batch": 3.0, "lag_mean": None,
                "cpu_machine": 1.5}

    monkeypatch.setattr(paper_speed, "speed", note)
    return asked


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, Settings]:
    """What the tool has had trained, by the names of the runs; each lasts 40 seconds."""
    asked: dict[str, Settings] = {}

    def note(run: Path, settings: Settings) -> None:
        asked[run.name] = settings
        run.mkdir(parents=True)
        (run / "config.yaml").write_text(to_yaml(settings.changed(run_dir=str(run))))
        found = rows(40, trainings=[10 * t for t in range(40)], score_mean=[t / 2.0 for t in range(40)],
                     episodes=[5 * t for t in range(40)], weight_norm=25.0, gradient_norm=[t % 3 for t in range(40)],
                     step_norm=np.geomspace(1e-4, 1e-2, 40).tolist(), lag_mean=1.5, agents=4)
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))

    monkeypatch.setattr(figure_runs, "train", note)
    return asked


def table(path: Path) -> list[list[str]]:
    """The lines of a Markdown table below its heading, cell by cell."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in path.read_text().splitlines()[2:]]


def test_table_2_measures_what_is_missing_and_divides(
        call: Call, measured: list[Settings], tmp_path: Path) -> None:
    common = ("--game", "toy:catch", "--workers", 2, "--agents", 5)
    assert call("table2", *common, "--networks", "small") == 0 and len(measured) == 2
    assert call("table2", *common, "--networks", "small", "large-2") == 0 and len(measured) == 4
    assert call("table2", *common, "--networks", "small", "large-2") == 0 and len(measured) == 4
    assert {(one.algorithm.network, one.algorithm.large_stride) for one in measured} == {("small", 4), ("large", 2)}
    assert sorted(one.algorithm.algorithm for one in measured) == ["a3c", "a3c", "a3c-cpu", "a3c-cpu"]
    assert not any(one.tuning.dynamic for one in measured) and all(one.agents.envs_per_agent == 1 for one in measured)
    assert table(tmp_path / "table2.md") == [
        ["small", "2", "2.0", "5", "2.0", "2.50", "352", "1,361", "3.9"],
        ["large-2", "0", "2.0", "1", "2.0", "2.50", "43", "874", "20.3"]]
    assert (tmp_path / "table2.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "table2.json").read_text())
    assert found["machine"]["cores"] >= 1 and found["rows"][1]["ratio"] == pytest.approx(2.5)
    assert call("table2", *common, "--networks", "small", "--", "--gamma", "0.5") == 0 and len(measured) == 6
    assert call("table2", *common, "--networks", "small", "--preset", "ga3c") == 0 and len(measured) == 6
    assert call("table2", *common, "--networks", "small", "--preset", "fast") == 0 and len(measured) == 8


def test_schedules_are_compared_with_updates_of_one_size(
        call: Call, measured: list[Settings], tmp_path: Path) -> None:
    assert call("environments", "--game", "toy:catch", "--environments", 8, 32, "--agents", 4, "--", "--network",
                "dense") == 0
    assert len(measured) == 6
    for one in measured:
        size = one.agents.envs_per_agent * 4
        assert size in (8, 32) and one.agent_count == 4 and one.algorithm.network == "dense"
        rounds = plan(one)
        update = rounds.segment * size if rounds.in_rounds else one.batching.training_batch_min
        assert update == one.algorithm.rollout_length * size
    assert [row[:3] for row in table(tmp_path / "environments.md")] == [
        [schedule, size, size] for schedule in paper_speed.SCHEDULES for size in ("8", "32")]
    assert (tmp_path / "environments.png").exists()


@pytest.mark.parametrize("what", ["environments", "batch"])
def test_environments_that_cannot_be_shared_are_a_mistake(
        what: str, call: Call, measured: list[Settings], trained: dict[str, Settings],
        capsys: pytest.CaptureFixture[str]) -> None:
    assert call(what, "--environments", 8, 9, "--agents", 4) == 2
    assert "9 cannot be shared by 4 agents" in capsys.readouterr().err and not measured and not trained


def test_the_rate_of_a2c_grows_with_the_root_of_the_batch(
        call: Call, trained: dict[str, Settings], tmp_path: Path) -> None:
    assert call("batch", "--environments", 16, 1024, "--agents", 4, "--seeds", 0, 1) == 0
    assert len(trained) == 4
    for one in trained.values():
        size = one.agent_count * one.agents.envs_per_agent
        assert one.algorithm.learning_rate == pytest.approx({16: 7e-4, 1024: 3e-3}[size])
        assert one.algorithm.algorithm == "a2c" and one.run.steps and not one.run.minutes
    assert [row[1:3] for row in table(tmp_path / "batch.md")] == [
        [label, seed] for label in ("16 environments", "1024 environments") for seed in "01"]
    assert (tmp_path / "batch.png").exists()


def test_with_another_preset_its_batches_grow_as_that_says(call: Call, trained: dict[str, Settings]) -> None:
    assert call("batch", "--preset", "accelerated-ppo", "--environments", 8, 64, "--agents", 4) == 0
    assert {(one.algorithm.rollout_length, one.algorithm.learning_rate) for one in trained.values()} == {
        (256, 1e-3), (32, 1e-3)}


def test_norms_are_of_both_optimizers_and_told(call: Call, trained: dict[str, Settings], tmp_path: Path) -> None:
    assert call("norms", "--games", "toy:catch", "--minutes", 3) == 0
    assert {(one.algorithm.optimizer, one.run.norms, one.run.minutes) for one in trained.values()} == {
        ("rmsprop", True, 3.0), ("adam", True, 3.0)}
    first, second = table(tmp_path / "norms.md")
    assert (first[1], second[1]) == ("RMSProp", "Adam")
    assert first[-6:] == ["25", "25", "1", "0", "0.001002", "0.01"]
    assert (tmp_path / "norms.png").exists()


def test_a_row_of_cule_has_its_rate_lag_and_uses(call: Call, trained: dict[str, Settings], tmp_path: Path) -> None:
    assert call("cule", "--rows", "1,5,5", "20,20,1") == 0
    first, second = (json.loads((tmp_path / "cule.json").read_text())["rows"])
    assert plan(trained["Pong-20-20-1-s0"]).uses == second["planned"] == 1.0 == first["planned"]
    assert first["uses"] == pytest.approx(390 * 120 * 5 / 80_000)  # updates, steps in one, all steps
    assert second["uses"] == pytest.approx(390 * 6 * 20 / 80_000)
    assert first["minutes_to_paper"] == pytest.approx(37 / 60, abs=0.01) and first["frames_to_paper"] == 8000 * 37
    assert table(tmp_path / "cule.md")[1][-2:] == ["5.0", "0.8"]
    assert call("cule", "--rows", "5,5,1", "--games", "Boxing") == 0
    assert table(tmp_path / "cule.md")[0][-4:] == ["-"] * 4


@pytest.mark.parametrize(("arguments", "says"), [
    (("cule", "--rows", "5,6,1"), "'5,6,1' is not K,N,SPU"), (("cule", "--rows", "0,5,1"), "'0,5,1' is not K,N,SPU"),
    (("batch", "--minutes", "1", "--steps", "1"), "not allowed with"), (("table2", "--networks", "tiny"), "tiny")])
def test_mistakes_on_the_command_line_are_told(
        arguments: tuple[str, ...], says: str, call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call(*arguments)
    assert ended.value.code == 2 and says in capsys.readouterr().err


def test_a_file_where_the_directory_is_to_be_is_told(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(sys, "argv", ["papers.py", "norms", "--out", str(tmp_path / "file")])
    assert papers.main() == 1
    said = capsys.readouterr().err
    assert said.startswith("papers: ") and "File exists" in said and said.count("\n") == 1


def test_groups_that_cannot_be_shared_are_a_mistake(call: Call, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("cule", "--rows", "20,20,1", "--agents", 8) == 2
    assert "8 agents cannot be shared by the 20 groups of row 20,20,1" in capsys.readouterr().err


def test_an_interrupt_ends_the_tool_with_what_to_do(
        call: Call, measured: list[Settings], monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(settings: Settings, seconds: float) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(paper_speed, "speed", interrupted)
    assert call("environments", "--game", "toy:catch") == 130
    assert "repeat the command to continue" in capsys.readouterr().err


def test_what_was_measured_before_an_interrupt_is_kept(tmp_path: Path) -> None:
    asked: list[Any] = []

    def measure(conditions: Any) -> dict[str, Any]:
        asked.append(conditions)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return {"rate": 1.0}

    wanted = [{"agents": 1}, {"agents": 2}]
    with pytest.raises(KeyboardInterrupt):
        figure_runs.completed(tmp_path / "log", wanted, measure, str)
    assert len((tmp_path / "log").read_text().splitlines()) == 1
    assert len(figure_runs.completed(tmp_path / "log", wanted, measure, str)) == 2 and len(asked) == 3
    with open(tmp_path / "log", "a") as file:
        file.write('{"torn')
    more = [*wanted, {"case": "another"}]
    for _ in range(2):  # what is measured after a torn line is not lost with it
        assert len(figure_runs.completed(tmp_path / "log", more, measure, str)) == 3 and len(asked) == 4


def test_a_run_that_was_interrupted_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure_runs.ga3c, "train", lambda settings, quiet: None)
    monkeypatch.setattr(figure_runs, "reached", lambda run, settings: False)
    with pytest.raises(KeyboardInterrupt):
        figure_runs.speed(configured(game="toy:catch"), 10.0)


def test_every_command_is_explained() -> None:
    assert all(f"\n{name}: " in (papers.__doc__ or "") for name in papers.COMMANDS)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [
    ("environments", "--game", "toy:catch", "--environments", 8, "--seconds", 4, "--", "--network", "dense"),
    ("batch", "--environments", 16, "--steps", 80_000),
    ("norms", "--games", "toy:catch", "--steps", 80_000, "--", "--network", "dense"),
    ("cule", "--games", "toy:catch", "--environments", 20, "--steps", 80_000, "--", "--network", "dense"),
    ("table2", "--networks", "small", "--agents", 2, "--seconds", 5)], ids=lambda each: str(each[0]))
def test_toys_are_really_run_and_kept(arguments: tuple[object, ...], tmp_path: Path) -> None:
    what, *more = arguments
    done = tool("figures/papers", what, "--out", tmp_path, *more)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / f"{what}.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / f"{what}.json").read_text())["rows"]
    assert all(row[name] > 0 for row in found for name in (
        ("A3C steps", "GA3C steps") if what == "table2" else ("steps_per_second",)))
    if what == "norms":
        assert all(row["step_norm"] > 0 and row["weight_norm"] > 1 for row in found)
    if what == "cule":
        assert all(row["uses"] == pytest.approx(row["planned"], rel=0.1) for row in found)
    kept = (tmp_path / f"{what}.jsonl") if what in ("environments", "table2") else tmp_path / what
    before = kept.stat().st_mtime_ns
    again = tool("figures/papers", what, "--out", tmp_path, *more)
    assert again.returncode == 0 and "training" not in again.stdout and kept.stat().st_mtime_ns == before
