"""Tracking from another process: every row once and in order, through outages, kills and restarts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from ga3c.commands import track as module
from ga3c.commands.track import TIMEOUT, TRACKERS, Point, follow, track

# A tracker as its users meet one: a module of this name that writes down what it was told.
STUB = '''
import json, os, pathlib
def _write(**entry):
    with open(os.environ["STUB_LOG"], "a") as file:
        file.write(json.dumps(entry) + "\\n")
def init(**about):
    _write(init=about)
def define_metric(name, step_metric):
    pass
def log(values):
    if pathlib.Path(os.environ["STUB_LOG"] + ".down").exists():
        raise ConnectionError("the server is down")
    _write(step=values["agent_steps"], values=values)
def finish():
    _write(finish=True)
'''


def write_rows(run: Path, *numbers: int, end: bool = False) -> None:
    with open(run / "metrics.jsonl", "a") as file:
        for number in numbers:
            file.write(json.dumps({"time": float(number), "agent_steps": 10 * number, "pps": 1.5 * number,
                                   "frames": 0, "episodes": 0, "agents": 1, "predictors": 1, "trainers": 1,
                                   "score": None, "bottleneck": "agents"}) + "\n")
    with open(run / "events.jsonl", "a") as file:
        file.write(json.dumps({"time": 1.0, "event": "end" if end else "start"}) + "\n")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text("env:\n  game: toy:catch\nrun:\n  seed: 3\n")
    return tmp_path / "run"


class Recorder:
    """A tracker that fails as often as it is told to."""

    id = "recorder"

    def __init__(self, *fail_at: int) -> None:
        self.calls, self.fail_at = 0, fail_at
        self.points: list[Point] = []

    def send(self, points: Sequence[Point]) -> None:
        self.calls += 1
        if self.calls in self.fail_at:
            raise ConnectionError("down")
        self.points += points

    def close(self) -> None:
        pass


def steps(points: Sequence[Point]) -> list[int]:
    return [step for step, _ in points]


def test_every_row_is_sent_once_in_order_while_the_run_goes_on(run: Path) -> None:
    write_rows(run, *range(1, 451))
    script: list[Callable[[], None]] = [lambda: write_rows(run, 451), lambda: None,
                                        lambda: write_rows(run, 452, 453, end=True)]
    recorder, remembered = Recorder(), []

    def wait(seconds: float) -> None:
        assert seconds == module.PERIOD
        script.pop(0)()

    said = follow(run, recorder, 0, remembered.append, wait)
    assert said == "the run has ended, 453 rows sent" and not script
    assert steps(recorder.points) == [10 * number for number in range(1, 454)]
    assert recorder.points[1][0] == 20 and recorder.points[1][1].items() >= {"seconds": 2.0, "pps": 3.0}.items()
    assert not {"score", "bottleneck", "time", "agent_steps"} & recorder.points[1][1].keys()
    assert remembered == [200, 400, 450, 451, 453]


def test_an_outage_loses_and_doubles_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(run, 1, 2)
    recorder, waited = Recorder(*range(1, 11)), []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            write_rows(run, 3, end=True)

    follow(run, recorder, 0, lambda rows: None, wait)
    assert steps(recorder.points) == [10, 20, 30]
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert capsys.readouterr().err.count("not sent, again in") == 10


def test_a_killed_run_is_not_followed_without_end(run: Path) -> None:
    write_rows(run, 1, end=True)
    write_rows(run, 2)  # resumed
    waited: list[float] = []
    recorder = Recorder()
    assert "no row for 600 s, 2 rows sent" in follow(run, recorder, 0, lambda rows: None, waited.append)
    assert steps(recorder.points) == [10, 20] and abs(sum(waited) - TIMEOUT) <= 2 * module.PERIOD


@pytest.fixture
def stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict]]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/wandb.py").write_text(STUB)
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'modules'}:{Path(module.__file__).parents[2]}")
    return lambda: [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def start(run: Path) -> subprocess.Popen[str]:
    program = "from ga3c.commands.launch import track; track()"
    return subprocess.Popen([sys.executable, "-c", program, str(run), "--to", "wandb"],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_killed_and_started_again_it_goes_on(run: Path, tmp_path: Path, stub: Callable[[], list[dict]]) -> None:
    write_rows(run, 1, 2, 3)
    record = {name: (run / name).read_bytes() for name in ("metrics.jsonl", "events.jsonl", "config.yaml")}
    with start(run) as process:
        deadline = time.monotonic() + 100
        while not (run / "track-wandb.json").exists() or '"rows": 3' not in (run / "track-wandb.json").read_text():
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        process.kill()
    assert {name: (run / name).read_bytes() for name in record} == record

    (tmp_path / "log.down").touch()
    write_rows(run, 4, 5, end=True)
    with start(run) as process:
        assert process.stderr is not None
        assert "not sent, again in 1 s: ConnectionError: the server is down" in process.stderr.readline()
        (tmp_path / "log.down").unlink()
        out, _ = process.communicate(timeout=100)
    assert process.returncode == 0 and "the run has ended, 5 rows sent" in out
    entries = stub()
    first, again = (entry["init"] for entry in entries if "init" in entry)
    assert first["id"] == again["id"] and first["config"] == {"game": "toy:catch", "seed": 3}
    assert [entry["step"] for entry in entries if "step" in entry] == [10, 20, 30, 40, 50]
    assert entries[-1] == {"finish": True}


@pytest.mark.parametrize(("arguments", "told"), [
    ([".", "--to", "mlflow"], "is no run: it has no metrics.jsonl"),
    (["run"], "the following arguments are required: --to"),
    (["run", "--to", "paper"], "argument --to: invalid choice: 'paper'"),
    (["run", "--to", "trackio"], "--to: trackio is not installed (import of trackio halted; None in sys.modules)"),
])
def test_a_mistake_is_one_line_and_exit_code_2(
        run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str],
        told: str) -> None:
    monkeypatch.chdir(run.parent)
    monkeypatch.setitem(sys.modules, "trackio", None)
    write_rows(run, 1)
    assert track(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("ga3c-track: ") and said.count("\n") == 1
    assert told in said


def test_what_a_resume_repeats_is_not_dropped_by_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes no step below one that it has had."""
    taken, largest = list[dict[str, Any]](), [0]

    def log(values: dict[str, Any], step: int | None = None) -> None:
        if step is None or step >= largest[0]:
            taken.append(values)
            largest[0] = step or largest[0]

    defined = dict[str, str]()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(
        init=lambda **about: None, log=log,
        define_metric=lambda name, step_metric: defined.update({name: step_metric})))
    tracker = TRACKERS["wandb"]("ga3c", "run", {}, None)
    tracker.send([(step, {"pps": 1.0 * step}) for step in (10, 20, 30, 20, 40)])
    assert [values["agent_steps"] for values in taken] == [10, 20, 30, 20, 40] and defined == {"*": "agent_steps"}


class Client:
    """MLflow's, as far as it is called; what it was told stays in the class."""

    told: ClassVar[list[tuple]] = []
    experiments: ClassVar[dict[str, str]] = {}

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **named: self.told.append((name, *arguments, *named.values()))

    def get_experiment_by_name(self, name: str) -> SimpleNamespace | None:
        return SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, "experiment-1")

    def create_run(self, experiment: str, run_name: str) -> SimpleNamespace:
        self.told.append(("create_run", experiment, run_name))
        return SimpleNamespace(info=SimpleNamespace(run_id="run-1"))

    def get_run(self, identity: str) -> SimpleNamespace:
        return SimpleNamespace(info=SimpleNamespace(start_time=1_000_000))


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What a client of MLflow is told."""
    def metric(*values: object) -> tuple[object, ...]:
        return values

    monkeypatch.setattr(Client, "told", [])
    monkeypatch.setattr(Client, "experiments", {})
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(MlflowClient=Client))
    monkeypatch.setitem(sys.modules, "mlflow.entities", SimpleNamespace(Metric=metric, Param=metric))
    return Client.told


def test_mlflow_gets_a_run_in_the_experiment_and_goes_on_with_it(run: Path, mlflow: list[tuple]) -> None:
    write_rows(run, 1, 2, end=True)
    assert track([str(run), "--to", "mlflow", "--project", "atari"]) == 0
    assert Client.experiments == {"atari": "experiment-1"}
    assert mlflow[0] == ("create_run", "experiment-1", "run")
    assert mlflow[1] == ("log_batch", "run-1", [("game", "toy:catch"), ("seed", "3")])
    assert mlflow[2][:2] == ("log_batch", "run-1") and mlflow[-1] == ("set_terminated", "run-1")
    assert {(key, value, step) for key, value, _, step in mlflow[2][2] if key in ("pps", "seconds")} == {
        ("seconds", 1.0, 10), ("pps", 1.5, 10), ("seconds", 2.0, 20), ("pps", 3.0, 20)}
    mlflow.clear()
    write_rows(run, 3, end=True)
    assert track([str(run), "--to", "mlflow", "--project", "atari"]) == 0
    assert mlflow[0] == ("update_run", "run-1", "RUNNING")
    assert {step for *_, step in mlflow[1][2]} == {30}
    mlflow.clear()
    assert track([str(run), "--to", "mlflow", "--project", "other"]) == 0
    assert Client.experiments.keys() == {"atari", "other"}
    assert mlflow[0][0] == "create_run", "another project gets everything"
    assert {step for *_, step in mlflow[2][2]} == {10, 20, 30}
    mlflow.clear()
    assert track([str(run), "--to", "mlflow", "--project", "atari"]) == 0
    assert [call[0] for call in mlflow] == ["update_run", "set_terminated"], "it has all rows"


def test_mlflow_gets_each_point_once_though_a_call_fails(mlflow: list[tuple], monkeypatch: pytest.MonkeyPatch) -> None:
    calls, arrived = 0, list[tuple]()

    def log_batch(self: Client, identity: str, metrics: list[tuple]) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ConnectionError("no server")
        arrived.extend(metrics)

        assert len(metrics) <= 1000

    monkeypatch.setattr(Client, "log_batch", log_batch, raising=False)
    tracker = TRACKERS["mlflow"]("ga3c", "run", {}, "run-1")
    points = [(step, {"seconds": 0.5 * step} | {str(n): 1.0 for n in range(14)}) for step in range(200)]
    with pytest.raises(ConnectionError):
        tracker.send(points)
    tracker.send(points)
    assert len(arrived) == len(set(arrived)) == 3000
    assert {(at, step) for _, _, at, step in arrived} == {(1_000_000 + 500 * step, step) for step in range(200)}
    tracker.send([(200, {"seconds": 100.0, "pps": 1.0})])
    assert {key for key, _, _, step in arrived if step == 200} == {"seconds", "pps"}, "none of these was left out"


def test_trackio_gets_the_step_and_the_name_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(
        init=lambda **about: told.append(about), log=lambda values, step: told.append({"step": step, **values}),
        finish=lambda: None))
    tracker = TRACKERS["trackio"]("atari", "run", {"seed": 3}, "run-1")
    tracker.send([(10, {"pps": 1.0})])
    assert told == [{"project": "atari", "config": {"seed": 3}, "resume": "allow", "name": "run-1"},
                    {"step": 10, "agent_steps": 10, "pps": 1.0}]


@pytest.mark.parametrize("note", ["nothing", '{"ga3c": {"id": "run-1"}}'])
def test_a_damaged_note_is_told_and_left_alone(
        run: Path, note: str, mlflow: list[tuple], capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(run, 1, end=True)
    (run / "track-mlflow.json").write_text(note)
    assert track([str(run), "--to", "mlflow"]) == 2
    assert capsys.readouterr().err == (
        f"ga3c-track: {run}/track-mlflow.json is damaged; remove it to send everything again\n")
    assert (run / "track-mlflow.json").read_text() == note and not mlflow


def test_a_tracker_that_does_not_begin_is_told(
        run: Path, mlflow: list[tuple], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def away(self: Client, name: str) -> str:
        raise ConnectionError("no server")

    monkeypatch.setattr(Client, "create_experiment", away)
    write_rows(run, 1, end=True)
    assert track([str(run), "--to", "mlflow"]) == 2
    assert capsys.readouterr().err == "ga3c-track: --to: mlflow does not begin: ConnectionError: no server\n"
