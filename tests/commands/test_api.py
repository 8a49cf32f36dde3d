"""The Python API: in a notebook, in a script without a guard, twice in one process; interrupted and mistaken."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import psutil
import pytest
from nbclient import NotebookClient

import ga3c
from ga3c import load_run
from ga3c.commands import api
from ga3c.learner import checkpoint
from ga3c.settings.files import resolve
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

NOTEBOOK = Path(__file__).parents[2] / "docs" / "examples" / "first_steps.ipynb"

pytestmark = pytest.mark.usefixtures("own_directory")


@pytest.mark.slow
def test_the_notebook_of_the_documentation_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [cell.outputs[-1] for cell in notebook.cells if cell.cell_type == "code"]
    run = load_run(next(Path("runs").iterdir()))
    assert shown[0]["data"]["text/plain"] == repr(run)
    assert resolve({}, str(run.directory / "config.yaml")).run.seed == 1
    steps, _, _, episodes, _ = shown[1]["text"].split()
    assert float(steps) >= 30_000 and int(episodes) > 100
    assert 20 < float(shown[2]["data"]["text/plain"]) <= 500
    assert "array" in shown[3]["data"]["text/plain"]


@pytest.mark.parametrize("whom", [pytest.param("the caller", marks=pytest.mark.slow), "both"])
def test_a_script_without_a_guard_is_interrupted_and_goes_on_without_tensorflow(whom: str) -> None:
    # A shell's background jobs, this test among them, may be born deaf to Ctrl-C.
    Path("program.py").write_text("""
import signal, sys
print("once", flush=True)
from ga3c import Config, train
signal.signal(signal.SIGINT, signal.default_int_handler)
run = train(Config(game="toy:catch", preset="fast", agents=2, tensorboard=False, run_dir="run"))
print("returned", run.events()[-1]["reason"], flush=True)
again = train(resume=run, steps=int(run.metrics()["agent_steps"][-1]) + 2000, quiet=True)
assert again.directory == run.directory and len(again.metrics()["time"]) >= 2
assert [event["event"] for event in run.events()].count("start") == 2
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler and "tensorflow" not in sys.modules
""")
    said = ""
    with subprocess.Popen([sys.executable, "program.py"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if "PPS" in line and "TPS: 0.0]" not in line:
                break
        if whom == "both":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        rest, err = process.communicate(timeout=200)
    said += rest
    assert (process.returncode, err) == (0, ""), said
    assert said.count("once") == said.count("Ended by SIG") == said.count("returned SIG") == 1
    assert int(checkpoint.saved(Path("run/checkpoints"))[0].name) > 2000


@pytest.mark.parametrize(("call", "told"), [
    (lambda: ga3c.train(Settings(), steps=3), "give a Config, or settings by name"),
    (lambda: ga3c.train(game="Boxin", run_dir="new"), "game: no game is called 'Boxin'; nearest: Boxing"),
    (lambda: ga3c.load_policy("nowhere"), "nowhere is not a run, checkpoint"),
    (lambda: load_run("nowhere"), "nowhere is no run"),
])
def test_a_mistake_is_one_config_error(call: object, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        call()  # type: ignore[operator]
    assert told in str(caught.value) and str(caught.value).splitlines() == [str(caught.value)]
    assert not Path("new").exists()


def test_what_fails_later_is_told_with_its_exit_code() -> None:
    Path("torn.npz").write_bytes(b"PK torn")
    with pytest.raises(ga3c.CommandFailed, match=r"^ended with exit code 5: torn\.npz cannot be read"):
        ga3c.evaluate("torn.npz")


def test_the_package_is_light_and_knows_what_it_exports() -> None:
    program = ("import sys, ga3c\nassert not {'tensorflow', 'numpy', 'pydantic', 'gymnasium'} & set(sys.modules)\n"
               "for name in ga3c.__all__: getattr(ga3c, name)\nassert 'tensorflow' not in sys.modules\n"
               "import ga3c.evaluation.scores, ga3c.commands.evaluate\n"
               "from ga3c import evaluate\nassert callable(evaluate)")
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        ga3c.nonsense  # noqa: B018


def test_metrics_and_episodes_are_arrays(tmp_path: Path) -> None:
    row = dict.fromkeys(("agent_steps", "frames", "episodes", "agents", "predictors", "trainers"), 1)
    (tmp_path / "metrics.jsonl").write_text(
        json.dumps(row | {"time": 1.0, "pps": 5, "score": None}) + "\n"
        + json.dumps(row | {"time": 2.0, "bottleneck": "agents", "score": 3}) + '\n{"time": 3')
    (tmp_path / "episodes.csv").write_text("time,agent_step,score,length\n1.0,10,0.5,7\n2.0,20,-1e3,8\n3.0,3")
    run = load_run(tmp_path)
    metrics = run.metrics()
    assert {"time", "pps", "score", "agents"} <= metrics.keys() and "bottleneck" not in metrics
    assert metrics["time"].tolist() == [1.0, 2.0]
    np.testing.assert_array_equal(metrics["score"], [np.nan, 3.0])
    np.testing.assert_array_equal(metrics["pps"], [5.0, np.nan])
    assert {name: column.tolist() for name, column in run.episodes().items()} == {
        "time": [1.0, 2.0], "agent_step": [10.0, 20.0], "score": [0.5, -1000.0], "length": [7.0, 8.0]}
    with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(row | {"time": 1.5}) + "\n")
    with open(tmp_path / "episodes.csv", "a", encoding="utf-8") as file:
        file.write("\n1.0,12,4,9\n1.5,20,5,6\n")
    assert run.metrics()["time"].tolist() == [1.0, 1.5], "a resume went back behind the other"
    assert run.episodes()["agent_step"].tolist() == [10.0, 12.0, 20.0]
    (tmp_path / "episodes.csv").write_text("time,agent_step,score,length\n")
    assert run.episodes()["score"].shape == (0,)


def test_a_command_goes_on_when_nobody_reads_what_it_says() -> None:
    told: list[str] = []

    def closed(line: str) -> None:
        told.append(line)
        raise BrokenPipeError(32, "Broken pipe")

    api._run(["--print-config"], closed)
    assert len(told) > 50


@pytest.mark.parametrize("raised", [False, True])
def test_an_interrupt_before_the_run_begins_leaves_nothing(raised: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        if raised:  # else: as of a command that ended with 130
            raise KeyboardInterrupt

    monkeypatch.setattr(api, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ga3c.train(game="toy:catch", steps=300)
    assert not list(Path("runs").iterdir())


def test_a_training_whose_caller_is_killed_ends_with_a_checkpoint() -> None:
    Path("program.py").write_text(
        "from ga3c import train\n"
        "train(game='toy:catch', preset='fast', agents=2, tensorboard=False, run_dir='run')")
    with subprocess.Popen([sys.executable, "program.py"], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "TMPDIR": os.getcwd()}) as process:  # what is killed leaves its files
        assert process.stdout is not None
        for line in process.stdout:
            if "PPS" in line and "TPS: 0.0]" not in line:
                break
        training, = psutil.Process(process.pid).children()
        process.kill()
    assert not psutil.wait_procs([training], timeout=60)[1]
    assert ga3c.load_run("run").events()[-1]["reason"] == "SIGTERM" and checkpoint.saved(Path("run/checkpoints"))


def test_settings_become_the_flags_that_mean_them() -> None:
    given = {"minutes": None, "dynamic": False, "serial": True, "wrappers": ["a:B", "c:D"], "learning_rate": 1e-4}
    assert api._flags(given) == [
        "--minutes=null", "--no-dynamic", "--serial", "--wrappers=a:B,c:D", "--learning-rate=0.0001"]


def test_settings_of_a_resume_are_checked_against_its_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(api, "_run", lambda arguments, show: asked.append(arguments))
    ga3c.train(resume="run", local_updates=3)  # which the algorithm of the defaults does not go with
    assert asked == [["--resume", "run", "--local-updates=3"]]
    with pytest.raises(ConfigError, match="gamma: 2 is not allowed"):
        ga3c.train(resume="run", gamma=2)
