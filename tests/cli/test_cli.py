"""The command as a user meets it: real processes, real signals, a real terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyte
import pytest
from conftest import stop_seconds

from ga3c.commands import train as cli
from ga3c.learner import checkpoint
from ga3c.service.supervisor import Service
from ga3c.settings.messages import ConfigError
from ga3c.tuning.tuner import Tuner

TRAIN = [sys.executable, "-m", "ga3c"]
QUICK = ["--game", "toy:catch", "--agents", "2", "--no-tensorboard"]


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TRAIN, *arguments], capture_output=True, text=True, timeout=200, check=False)


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def train_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """`train` in this process, which has its TensorFlow already: for what is not about the process."""
    monkeypatch.setattr("ga3c.learner.learner.start_tensorflow", lambda settings: None)

    def train_here(*arguments: str) -> subprocess.CompletedProcess[str]:
        capfd.readouterr()
        return subprocess.CompletedProcess(arguments, cli.train(arguments), *capfd.readouterr())

    return train_here


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, for `run_with_two_checkpoints`."""
    run = tmp_path_factory.mktemp("trained") / "run"
    for how in ([*QUICK, "--run-dir", str(run), "--steps", "2000"], ["--resume", str(run), "--steps", "4000"]):
        done = train(*how)
        assert done.returncode == 0, done.stderr
    return run


@pytest.fixture
def run_with_two_checkpoints(trained_once: Path) -> list[Path]:
    """The checkpoints of a run in `run`, a copy for this test alone: of 2,000 agent steps and of 4,000."""
    shutil.copytree(trained_once, "run")
    older, newest = checkpoints(Path("run"))
    return [older, newest]


def rows(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def events(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").iterdir())


@pytest.mark.parametrize(("command", "flag"), [
    ("train", "--help"), ("train", "--version"), ("train", "--print-config"), ("evaluate", "--help"),
    ("evaluate", "--version")])
def test_a_question_is_answered_without_anything_heavy(command: str, flag: str) -> None:
    program = (f"import sys\nfrom ga3c.commands.train import {command}\n"
               f"try:\n    code = {command}(sys.argv[1:])\nexcept SystemExit as end:\n    code = end.code\n"
               "heavy = {'tensorflow', 'keras', 'gymnasium', 'ale_py', 'rich'} & set(sys.modules)\n"
               "sys.exit(code or (f'imported {heavy}' if heavy else 0))")
    done = subprocess.run([sys.executable, "-c", program, flag], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ga3c" in done.stdout


def evaluate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", "from ga3c.commands.evaluate import main; main()", *arguments],
                          capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize(("arguments", "says"), [
    ([], "the following arguments are required: POLICY"),
    (["nothing"], "nothing is no run, checkpoint (RUN/checkpoints/N or best), policy file or shipped policy"),
    (["run", "--episode", "3"], "unknown option --episode; did you mean --episodes?"),
    (["run", "--episodes", "0"], "argument --episodes: '0' is not allowed: a number from 1 to 100,000"),
    (["run", "--sticky-actions", "nan"], "argument --sticky-actions: 'nan' is not allowed"),
])
def test_a_mistake_about_what_to_evaluate_is_one_line_and_exit_code_2(arguments: list[str], says: str) -> None:
    done = evaluate(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("ga3c-eval: ") and says in done.stderr, done.stderr


@pytest.mark.parametrize(("game", "weights", "says"), [
    ("Pong", {}, "trained on Pong, but"),
    ("toy:catch", {"layer/kernel": np.zeros((3, 4), np.float32)}, "its weights are not those of a 'dense' network"),
    (None, {}, "000000000010 is not a whole checkpoint: arrays.npz is missing"),
])
def test_a_foreign_or_damaged_checkpoint_is_refused_in_one_line(
        game: str | None, weights: dict[str, Any], says: str) -> None:
    Path("run").mkdir()
    Path("run/config.yaml").write_text("game: toy:catch\n")
    checkpoint.save(Path("run/checkpoints"), "000000000010", checkpoint.Checkpoint(
        weights, {"game": game or "toy:catch", "agent_steps": 10, "version": 1}), 1)
    if game is None:
        Path("run/checkpoints/000000000010/arrays.npz").unlink()
    done = evaluate("run")
    assert (done.returncode, done.stdout) == (2 if game else 5, "")
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("ga3c-eval: ") and says in done.stderr, done.stderr


@pytest.mark.parametrize("game", ["toy:catch", pytest.param("CartPole-v1", marks=pytest.mark.slow)])
def test_the_same_checkpoint_and_seed_give_the_same_scores_twice_and_the_run_a_record(game: str) -> None:
    made = train("--game", game, "--serial", "--agents", "2", "--no-tensorboard", "--steps", "2000", "--run-dir", "run")
    assert made.returncode == 0, made.stderr
    newest, = checkpoints(Path("run"))
    one, two = evaluate("run", "--json", "--episodes", "20"), evaluate(str(newest), "--json", "--episodes", "20")
    assert (one.returncode, one.stderr, one.stdout.count("\n")) == (0, "", 1)
    assert one.stdout == two.stdout
    found = json.loads(one.stdout)
    assert found["checkpoint"] == str(newest) and found["agent_steps"] == int(newest.name)
    assert found["protocol"] == {"episodes": 20, "seed": 0, "greedy": False, "envs": 16}
    assert len(found["scores"]) == len(found["lengths"]) == 20 and found["mean"] == sum(found["scores"]) / 20
    recorded = [event for event in events(Path("run")) if event["event"] == "evaluation"]
    assert [event["scores"] for event in recorded] == 2 * [found["scores"]]
    assert recorded[0]["checkpoint"] == f"checkpoints/{newest.name}" and recorded[0]["time"] > 0

    shown = evaluate("run", "--seed", "1", "--greedy", "--no-record")
    assert (shown.returncode, shown.stderr) == (0, "")
    for text in (game, str(newest), "30 episodes, seed 1, likeliest actions", "Mean", "Median", "Interquartile mean",
                 "95 % interval", "Least, most", "Length"):
        assert text in shown.stdout
    assert len([event for event in events(Path("run")) if event["event"] == "evaluation"]) == 2

    flip(newest / "arrays.npz")
    damaged = evaluate("run")
    assert damaged.returncode == 5 and damaged.stderr.count("\n") == 1 and "is damaged" in damaged.stderr


@pytest.mark.slow
def test_a_policy_of_pictures_scores_the_same_twice() -> None:
    one, two = (evaluate("pong", "--json", "--episodes", "4") for _ in range(2))
    assert (one.returncode, one.stderr) == (0, "") and one.stdout == two.stdout
    assert min(json.loads(one.stdout)["scores"]) >= 18


@pytest.mark.parametrize(("command", "asked"), [
    (["train", "--game", "Pong", "--envs-per-agent", "9"], [("Pong", 9)]),
    (["train", "--game", "Pong", "--envs-per-agent", "3"], [("Pong", 15)]),  # of five agents
    (["train", "--game", "Pong", "--serial"], []),
    (["evaluate", "pong", "--episodes", "9", "--envs", "5"], [("Pong", 3)]),
    (["evaluate", "pong", "--episodes", "1"], []), (["evaluate", "pong", "--envs", "1"], [])])
def test_the_fork_server_is_told_what_one_process_will_play(
        monkeypatch: pytest.MonkeyPatch, command: list[str], asked: list[tuple[str, int]]) -> None:
    told = []

    def tensorflow_comes_next(verbose: bool) -> None:
        raise ConfigError("enough")

    monkeypatch.setattr("ga3c.agents.process.start_forkserver", lambda game, n_envs: told.append((game, n_envs)))
    monkeypatch.setattr(cli, "before_tensorflow", tensorflow_comes_next)
    monkeypatch.setattr(cli, "usable_cores", lambda: 2)
    assert getattr(cli, command[0])(command[1:]) == 2
    assert told == asked


@pytest.mark.parametrize(("arguments", "says"), [
    (["--lerning-rate", "1"], "unknown option --lerning-rate; did you mean --learning-rate?"),
    (["--gamma", "2"], "--gamma: '2' is not allowed: input should be less than or equal to 1"),
    (["--game", "Boxin"], "game: no game is called 'Boxin'; nearest: Boxing"),
    (["--game", "Pendulum-v1"], "supported: Discrete"),
    (["--game", "Boxing", "--network", "dense"], "network: 'dense' does not fit Boxing"),
    (["--config", "missing.yaml"], "missing.yaml: No such file or directory"),
    (["--resume", "nowhere"], "nowhere is neither a run"),
    (["--run-dir", "/proc/none"], "disk: 500 MB needed in /proc, 0 MB free"),
    (["--agents", "4096", "--slots-per-agent", "16", "--game", "toy:catch"], "is over 65535 slots"),
])
def test_a_users_mistake_is_one_line_and_exit_code_2(arguments: list[str], says: str) -> None:
    done = train(*arguments)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and says in done.stderr, done.stderr
    assert not Path("runs").exists()


def test_a_run_directory_in_use_is_refused_with_the_way_on() -> None:
    Path("taken").mkdir()
    Path("taken/thesis.txt").write_text("all I have")
    done = train(*QUICK, "--run-dir", "taken", "--steps", "100")
    assert done.returncode == 2 and "--resume taken" in done.stderr
    assert os.listdir("taken") == ["thesis.txt"]


def test_two_serial_runs_give_equal_weights_byte_for_byte_one_of_them_with_a_break(
        train_here: Command) -> None:
    for name, steps in (("one", "3000"), ("two", "1400")):
        done = train("--serial", "--seed", "0", *QUICK, "--steps", steps, "--run-dir", name)
        assert done.returncode == 0, done.stderr
    done = train("--resume", "two", "--steps", "3000")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    one, two = (checkpoints(Path(name))[-1] for name in ("one", "two"))
    assert one.name == two.name
    assert (one / "arrays.npz").read_bytes() == (two / "arrays.npz").read_bytes()
    other = train_here("--serial", "--seed", "1", *QUICK, "--steps", "3000", "--run-dir", "three")
    assert other.returncode == 0
    assert (one / "arrays.npz").read_bytes() != (checkpoints(Path("three"))[-1] / "arrays.npz").read_bytes()


def test_a_run_leaves_its_whole_record_and_can_be_gone_on_with(train_here: Command) -> None:
    first = train(*QUICK, "--steps", "4000", "--run-dir", "run", "--tensorboard")
    assert (first.returncode, first.stderr) == (0, "")
    run = Path("run")
    assert {path.name for path in run.iterdir()} == {
        "config.yaml", "versions.json", "metrics.jsonl", "episodes.csv", "events.jsonl", "checkpoints", "log.txt",
        "tensorboard"}
    assert first.stdout.startswith("toy:catch: loading TensorFlow and compiling the model\n")
    assert "Ended by --steps 4000" in first.stdout
    assert first.stdout.splitlines()[-1].endswith("--resume run")
    before = rows(run)[-1]

    again = train_here("--resume", "run", "--steps", "8000")
    assert (again.returncode, again.stderr) == (0, "")
    after = rows(run)[-1]
    for name in ("agent_steps", "trainings", "episodes", "time", "frames"):
        assert after[name] > before[name]
        values = [row[name] for row in rows(run)]
        assert values == sorted(values), f"{name} went back"
    assert after["agent_steps"] >= 8000 and len(rows(run)) > 1
    assert [event["resumed_at"] for event in events(run) if event["event"] == "start"] == [0, before["agent_steps"]]
    assert len((run / "episodes.csv").read_text().splitlines()) == after["episodes"] + 1

    reached = train_here("--resume", "run")
    assert reached.returncode == 2 and "already reached --steps 8000" in reached.stderr


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_corrupt_newest_checkpoint_is_named_and_the_next_older_one_used(
        run_with_two_checkpoints: list[Path], train_here: Command) -> None:
    older, newest = run_with_two_checkpoints
    flip(newest / "arrays.npz")

    explicit = train_here("--resume", str(newest), "--steps", "6000")
    assert explicit.returncode == 5 and explicit.stderr.count("\n") == 1
    assert f"{newest}/arrays.npz is damaged" in explicit.stderr

    done = train_here("--resume", "run", "--steps", "6000")
    assert done.returncode == 0 and f"{newest}/arrays.npz is damaged" in done.stdout
    start = [event for event in events(Path("run")) if event["event"] == "start"][-1]
    assert start["resumed_at"] == int(older.name)

    for path in checkpoints(Path("run")):
        flip(path / "progress.json")
    hopeless = train_here("--resume", "run", "--steps", "9000")
    assert hopeless.returncode == 5 and hopeless.stderr.count("\n") == 1 and "Traceback" not in hopeless.stderr


@pytest.mark.usefixtures("run_with_two_checkpoints")
def test_another_game_or_network_is_not_gone_on_with(train_here: Command) -> None:
    game = train_here("--resume", "run", "--game", "toy:identity", "--steps", "5000")
    assert game.returncode == 2 and "was trained on toy:catch" in game.stderr and game.stderr.count("\n") == 1
    net = train_here("--resume", "run", "--network", "small", "--steps", "5000")
    assert net.returncode == 2 and net.stderr.count("\n") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("run_with_two_checkpoints")
def test_what_shapes_learning_is_refused_on_resume_and_allowed_for_a_new_run_with_those_weights() -> None:
    before = sorted(str(path) for path in Path("run").rglob("*"))
    refused = train("--resume", "run", "--rollout-length", "7", "--steps", "5000")
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert "--rollout-length: 7, but run/checkpoints/" in refused.stderr and "--weights-only" in refused.stderr
    done = train("--resume", "run", "--weights-only", "--rollout-length", "7", "--steps", "700", "--run-dir", "fine")
    assert done.returncode == 0 and "Begins with the weights of run/checkpoints/" in done.stdout, done.stderr
    assert rows(Path("fine"))[-1]["agent_steps"] < 2000, "it counts from 0"
    assert before == sorted(str(path) for path in Path("run").rglob("*"))
    other = train("--resume", "run", "--weights-only", "--game", "toy:identity", "--steps", "700", "--run-dir", "other")
    assert other.returncode == 2 and "another network: network.0" in other.stderr and other.stderr.count("\n") == 1
    assert not Path("other").exists()
    alone = train("--weights-only")
    assert alone.returncode == 2 and "--weights-only: goes with --resume" in alone.stderr


class Started:
    """`ga3c-train` in a session of its own, as a shell starts it: signals reach the whole group."""

    def __init__(self, *arguments: str, changed: str = "") -> None:
        program = TRAIN if not changed else [
            sys.executable, "-c", f"import sys, time\nfrom ga3c import cli, model, run\n{changed}\n"
            "sys.exit(cli.train(sys.argv[1:]))"]
        self.process = subprocess.Popen([*program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, start_new_session=True)

    def group(self) -> list[psutil.Process]:
        members = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    members.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return members

    def wait_for(self, condition: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.process.communicate()
            time.sleep(0.02)

    def end(self) -> tuple[str, str, float]:
        began = time.monotonic()
        out, err = self.process.communicate(timeout=30)
        stop_seconds.append(time.monotonic() - began)
        return out, err, stop_seconds[-1]


@pytest.fixture
def started() -> Iterator[Callable[..., Started]]:
    made: list[Started] = []

    def start(*arguments: str, changed: str = "") -> Started:
        made.append(Started(*arguments, changed=changed))
        return made[-1]

    yield start
    for each in made:
        # The fork server and the resource tracker end when they see that their parent has.
        _, left = psutil.wait_procs(each.group(), timeout=2)
        for process in left:
            process.kill()
        each.process.communicate()
        assert not left, f"left behind: {left}"


def learning() -> bool:
    path = Path("run/metrics.jsonl")
    return path.exists() and any(row["trainings"] > 0 for row in rows(Path("run")))


# When the word to stop comes: while modules are imported, while agents start, and in the middle of training.
PHASES = {"import": lambda each: len(each.group()) > 1, "start": lambda each: Path("run/events.jsonl").exists(),
          "training": lambda each: learning()}


def with_a_signal(states: Iterable[str]) -> list[Any]:
    """Each state with one of the two signals, in turn; with the other one among the slow tests."""
    signals = (signal.SIGINT, signal.SIGTERM)
    return [pytest.param(state, number, marks=[] if (row + column) % 2 == 0 else [pytest.mark.slow])
            for row, state in enumerate(states) for column, number in enumerate(signals)]


@pytest.mark.parametrize(("phase", "number"), with_a_signal(PHASES))
def test_a_signal_in_any_phase_ends_cleanly(
        phase: str, number: signal.Signals, started: Callable[..., Started]) -> None:
    each = started("--game", "Pong", "--agents", "3", "--envs-per-agent", "4", "--run-dir", "run", "--no-tensorboard")
    each.wait_for(lambda: PHASES[phase](each))
    if number == signal.SIGINT:
        os.killpg(each.process.pid, number)
    else:
        each.process.send_signal(number)
    out, err, seconds = each.end()
    assert each.process.returncode == 128 + number
    assert err == ""
    assert seconds < 10
    assert f"Ended by {number.name}" in out
    if phase == "training":
        assert out.splitlines()[-1].endswith("--resume run")
        assert events(Path("run"))[-2]["event"] == "checkpoint"
        assert train("--resume", "run", "--steps", str(int(checkpoints(Path("run"))[-1].name) + 50)).returncode == 0


@pytest.mark.slow
def test_a_killed_main_process_takes_its_agents_along(started: Callable[..., Started]) -> None:
    each = started(*QUICK, "--run-dir", "run")
    each.wait_for(learning)
    others = [process for process in each.group() if process.pid != each.process.pid]
    assert len(others) >= 3
    each.process.kill()
    each.process.communicate()
    _, alive = psutil.wait_procs(others, timeout=2)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_a_run_directory_has_one_process_and_its_killed_saves_are_cleaned_up(started: Callable[..., Started]) -> None:
    each = started(*QUICK, "--run-dir", "run")
    each.wait_for(learning)
    second = train("--resume", "run")
    assert second.returncode == 2 and f"run is in use by process {each.process.pid}" in second.stderr
    each.process.send_signal(signal.SIGUSR1)
    each.wait_for(lambda: bool(recorded("checkpoint")))
    steps = rows(Path("run"))[-1]["agent_steps"]
    each.wait_for(lambda: rows(Path("run"))[-1]["agent_steps"] > steps)
    each.process.kill()
    each.process.communicate()
    Path("run/checkpoints/.000000009999.4711").mkdir()
    resumed = train("--resume", "run", "--steps", str(int(checkpoints(Path("run"))[-1].name) + 1000))
    assert resumed.returncode == 0 and ".000000009999.4711 was removed" in resumed.stdout, resumed.stderr
    assert not list(Path("run/checkpoints").glob(".*"))


@pytest.mark.parametrize(("presses", "code", "says"), [(2, 130, "No checkpoint: it was not waited for"), (3, 130, "")])
def test_a_second_ctrl_c_skips_the_checkpoint_and_a_third_ends_it_at_once(
        presses: int, code: int, says: str, started: Callable[..., Started], tmp_path: Path) -> None:
    each = started(*QUICK, "--run-dir", "run")
    each.wait_for(learning)
    began = time.monotonic()
    for agent in (event["pid"] for event in recorded("agent_started")):
        os.kill(agent, signal.SIGSTOP)  # so that the first one takes its time
    for _ in range(presses):
        each.process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    out, err, _ = each.end()
    assert (each.process.returncode, err) == (code, "") and says in out
    assert not Path("run/checkpoints").exists()
    assert time.monotonic() - began < (10 if presses == 2 else 2)


# What the service is doing when the word to stop comes, beside those of PHASES.
STATES = {"stopped agents": ["--agents", "2"], "nothing trained": ["--training-batch-min", "65536", "--agents", "2"],
          "changing workers": ["--start", "1/1/1", "--agents-max", "6", "--controller", "paper", "--window", "1"]}


@pytest.mark.parametrize(("state", "number"), with_a_signal(STATES))
def test_it_stops_in_every_state(state: str, number: signal.Signals, started: Callable[..., Started]) -> None:
    each = started("--game", "toy:catch", "--no-tensorboard", "--run-dir", "run", *STATES[state])
    each.wait_for(lambda: Path("run/metrics.jsonl").exists() and len(rows(Path("run"))) > 2)
    if state == "stopped agents":
        each.wait_for(learning)
        for event in recorded("agent_started"):
            os.kill(event["pid"], signal.SIGSTOP)
    elif state == "changing workers":
        each.wait_for(lambda: any(row["agents"] * row["predictors"] * row["trainers"] > 1 for row in rows(Path("run"))))
    os.killpg(each.process.pid, number) if number == signal.SIGINT else each.process.send_signal(number)
    out, err, seconds = each.end()
    assert (each.process.returncode, err) == (128 + number, "") and seconds < 10
    assert f"Ended by {number.name}" in out and out.splitlines()[-1].endswith("run")


def told(err: str) -> str:
    """Standard error without what TensorFlow says where it is imported before it can be kept quiet."""
    return "".join(line for line in err.splitlines(keepends=True) if "oneDNN" not in line and "cudart" not in line
                   and "absl::InitializeLog" not in line and "cpu_feature_guard" not in line and "rebuild" not in line)


# What the service is made to do when the word comes: (lines before it starts, when the word comes, exit code, said).
SLOW = "right = {0}\ndef slow(*arguments, **options):\n{1}\n    return right(*arguments, **options)\n{0} = slow"
HELD = "    if {}:\n        print('held', flush=True)\n        time.sleep({})"
DOING: dict[str, tuple[str, int | None, str]] = {
    "queues full": (SLOW.format("model.Model.update", "    time.sleep(1.5)"), None, "--resume run"),
    "a predictor stuck": (SLOW.format("model.Model.predict", HELD.format("arguments[0].version > 20", 1000)), None,
                          "--resume run"),
    "a trainer stuck": (SLOW.format("model.scheduled", HELD.format("arguments[2] > 1e-5", 1000)), 6,
                        "an update has not ended"),
    "a predictor that has failed": (
        SLOW.format("model.Model.predict", "    if arguments[0].version > 20 and not hasattr(cli, 'failed'):\n"
                    "        cli.failed = 1\n        1 / 0"), None, "--resume run"),
    "saving": (SLOW.format("run.checkpoint.save", HELD.format("True", 2)), None, "--resume run"),
    "ending": (SLOW.format("run.Run.finish", HELD.format("True", 1)), None, "--resume run")}
FLAGS = {"saving": ["--checkpoint-minutes", "0.02"], "ending": ["--steps", "2000"]}


@pytest.mark.parametrize(("doing", "number"), [
    pytest.param(*param.values, marks=[] if param.values in (
        ("a trainer stuck", signal.SIGINT),) else [pytest.mark.slow])
    for param in with_a_signal(DOING)])
def test_it_stops_whatever_it_is_doing(doing: str, number: signal.Signals, started: Callable[..., Started]) -> None:
    changed, code, says = DOING[doing]
    each = started(*QUICK, "--run-dir", "run", *FLAGS.get(doing, []), changed=changed)
    if "held" in changed:
        assert each.process.stdout is not None
        for line in each.process.stdout:
            if line == "held\n":
                break
    elif doing == "queues full":
        each.wait_for(lambda: learning() and rows(Path("run"))[-1]["training_queue"] >= 2)
    else:
        each.wait_for(lambda: bool(recorded("thread_failed")))
    os.killpg(each.process.pid, number) if number == signal.SIGINT else each.process.send_signal(number)
    out, err, seconds = each.end()
    assert each.process.returncode == (128 + number if code is None else code), (out, err)
    assert seconds < 10 and told(err).count("\n") == (code is not None)
    assert says in out.splitlines()[-1] + err


def evaluation(each: Started) -> list[psutil.Process]:
    """The process of an evaluation that is under way."""
    found = []
    for process in each.group():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "--background" in process.cmdline():
                found.append(process)
    return found


def recorded(kind: str) -> list[dict]:
    path = Path("run/events.jsonl")
    return [event for event in events(Path("run")) if event["event"] == kind] if path.exists() else []


EVALUATING = [*QUICK, "--run-dir", "run", "--evaluation-minutes", "0.001", "--evaluation-episodes", "3"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["--serial", "--no-serial"])
def test_the_last_checkpoint_of_a_run_that_has_had_its_budget_is_evaluated(
        mode: str, started: Callable[..., Started]) -> None:
    each = started(*QUICK, "--run-dir", "run", "--evaluation-minutes", "9", "--evaluation-episodes", "3", mode,
                   "--steps", "2000")
    out, err, _ = each.end()
    assert (each.process.returncode, err) == (0, "") and "Training is over" in out
    evaluation, = recorded("evaluation")
    assert Path("run", evaluation["checkpoint"]) == checkpoint.saved(Path("run/checkpoints"))[0] and evaluation["best"]
    assert evaluation["time"] == recorded("end")[0]["time"] < 9 * 60


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["--serial", "--no-serial"])
def test_evaluations_while_it_trains_keep_the_best_checkpoint_and_end_with_it(
        mode: str, started: Callable[..., Started]) -> None:
    each = started(*EVALUATING, mode, "--checkpoints-kept", "1", "--checkpoint-minutes", "0.01")
    # What is left for it may be little.
    each.wait_for(lambda: len(recorded("evaluation")) >= 1 and bool(evaluation(each)), 200)
    process, = evaluation(each)
    each.wait_for(lambda: process.nice() == psutil.Process(each.process.pid).nice() + 5)
    os.killpg(each.process.pid, signal.SIGINT)
    out, err, seconds = each.end()
    assert (each.process.returncode, err) == (130, "") and seconds < 10
    assert not process.is_running()
    assert "Best evaluation" in out and len(recorded("evaluation") + recorded("evaluation_stopped")) >= 2
    best = max(recorded("evaluation"), key=lambda event: event["mean"])  # the first of equals
    assert json.loads(Path("run/checkpoints/best.json").read_text()) == {
        "checkpoint": best["checkpoint"].removeprefix("checkpoints/"), "mean": best["mean"],
        "protocol": {name: value for name, value in best["protocol"].items() if name != "seed"}}
    again = evaluate("run/checkpoints/best", "--json", "--no-record", "--episodes", "3",
                     "--seed", str(best["protocol"]["seed"]))
    assert json.loads(again.stdout)["scores"] == best["scores"]


def test_an_evaluation_that_is_killed_is_told_and_a_killed_main_process_takes_one_along(
        started: Callable[..., Started]) -> None:
    each = started(*EVALUATING)
    each.wait_for(lambda: bool(evaluation(each)))
    evaluation(each)[0].kill()
    each.wait_for(lambda: bool(recorded("evaluation_failed")) and bool(evaluation(each)))
    assert recorded("evaluation_failed")[0]["cause"] == "killed by signal 9"
    process, = evaluation(each)
    each.process.kill()
    each.process.communicate()
    _, alive = psutil.wait_procs([process], timeout=20)  # it may have to start up before it can look
    assert not alive


def test_training_goes_on_when_nobody_reads_its_output() -> None:
    command = " ".join([*TRAIN, *QUICK, "--steps", "3000", "--run-dir", "run"])
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command} | head -1"], capture_output=True, text=True,
                          timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(Path("run"))[-1]["agent_steps"] >= 3000


def test_a_terminal_shows_a_live_panel_with_the_fields_names() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="110", LINES="30")
        os.execv(sys.executable, [*TRAIN, *QUICK, "--minutes", "0.06", "--run-dir", "run"])
    screen = pyte.Screen(110, 30)
    stream = pyte.ByteStream(screen)
    while True:
        try:
            data = os.read(terminal, 65_536)
        except OSError:
            break
        if not data:
            break
        stream.feed(data)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    text = "\n".join(screen.display)
    for name in ("Time", "Agent steps", "Frames", "Episodes", "Score", "RScore", "PPS", "TPS", "N_A", "N_P", "N_T",
                 "Queue", "Prediction batch", "Training batch", "Policy lag"):
        assert name in text, text
    assert text.count("Prediction batch") == 1, "the panel is drawn in place"
    assert "Ended by --minutes 0.06" in text and "--resume run" in text


@pytest.mark.usefixtures("run_with_two_checkpoints")
def test_a_resumed_run_keeps_its_directory() -> None:
    done = train("--resume", "run", "--run-dir", "other", "--steps", "5000")
    assert done.returncode == 2 and "--run-dir: --resume goes on with its own directory" in done.stderr
    assert not Path("other").exists()


def test_an_error_of_the_service_itself_is_told_with_a_checkpoint_and_exit_code_6() -> None:
    program = ("import sys\nfrom ga3c import cli, model\n"
               "right, calls = model.Model.predict, []\n"
               "def wrong(self, observation):\n"
               "    calls.append(1)\n"
               "    if len(calls) > 300:\n        raise ZeroDivisionError('of the model')\n"
               "    return right(self, observation)\n"
               "model.Model.predict = wrong\n"
               "sys.exit(cli.train(sys.argv[1:]))\n")
    done = subprocess.run([sys.executable, "-c", program, *QUICK, "--run-dir", "run"], capture_output=True, text=True,
                          timeout=100, check=False)
    assert done.returncode == 6, done.stderr
    assert "ZeroDivisionError: of the model" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("--resume run") and checkpoints(Path("run"))


def test_a_device_that_is_lost_is_told_in_one_line_with_exit_code_6() -> None:
    program = ("import sys\nfrom ga3c import cli, model\n"
               "def wrong(*arguments):\n"
               "    raise model.tf.errors.InternalError(None, None, 'CUDA_ERROR_ILLEGAL_ADDRESS')\n"
               "right = model.Model.update\n"
               "def update(self, batch):\n"
               "    if self.version == 20:\n"
               "        self._predict = self._train = self._variables = wrong\n"
               "    return right(self, batch)\n"
               "model.Model.update = update\n"
               "sys.exit(cli.train(sys.argv[1:]))\n")
    done = subprocess.run([sys.executable, "-c", program, *QUICK, "--run-dir", "run", "--checkpoint-minutes", "0.005"],
                          capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 6 and told(done.stderr).count("\n") == 1, done.stderr
    assert "the device failed at" in done.stderr and "CUDA_ERROR_ILLEGAL_ADDRESS; ga3c-doctor" in done.stderr
    assert "checkpoint" in done.stdout.splitlines()[-1]


def test_divergence_is_told_in_one_line_with_exit_code_4_and_its_weights_are_not_kept(train_here: Command) -> None:
    done = train_here(*QUICK, "--learning-rate", "1e30", "--run-dir", "run")
    assert done.returncode == 4 and done.stderr.count("\n") == 1, done.stderr
    assert "diverged: update" in done.stderr and not Path("run/checkpoints").exists()


def test_agents_leave_signals_to_the_main_process_and_nobody_is_on_the_network(started: Callable[..., Started]) -> None:
    each = started(*QUICK, "--run-dir", "run")
    each.wait_for(learning)
    agents = [event["pid"] for event in events(Path("run")) if event["event"] == "agent_started"]
    for pid in agents:
        blocked = next(line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                       if line.startswith("SigBlk"))
        assert int(blocked, 16) & 1 << (signal.SIGINT - 1)
    for pid in [each.process.pid, *agents]:
        assert not psutil.Process(pid).net_connections("inet"), "nothing is on the network"
    ours, main, *theirs = [int(Path(f"/proc/{pid}/oom_score_adj").read_text())
                           for pid in ("self", each.process.pid, *agents)]
    assert main == ours and set(theirs) == {max(ours, 500)}, "agents are to be killed first if memory runs out"
    before = len(rows(Path("run")))
    os.killpg(each.process.pid, signal.SIGHUP)  # its terminal goes away
    each.wait_for(lambda: len(rows(Path("run"))) > before + 2)
    assert all(psutil.pid_exists(pid) for pid in agents) and not recorded("agent_died")
    each.process.send_signal(signal.SIGTERM)
    each.process.send_signal(signal.SIGTERM)  # as `timeout` does; a repetition is no reason to lose the checkpoint
    each.end()
    assert each.process.returncode == 143 and checkpoints(Path("run"))


@pytest.mark.usefixtures("run_with_two_checkpoints")
def test_what_a_resumed_run_was_told_holds_for_the_next_resume_too(train_here: Command) -> None:
    assert train_here("--resume", "run", "--steps", "5000", "--gamma", "0.9").returncode == 0
    printed = train("--resume", "run", "--print-config").stdout
    assert "\ngamma: 0.9 " in printed and "\nsteps: 5000 " in printed


def minutes_more() -> str:
    """A limit, which counts from the run's beginning, three seconds from where it is."""
    return str(rows(Path("run"))[-1]["time"] / 60 + 0.05)


def test_a_resumed_run_goes_on_with_the_counts_its_controller_had(
        train_here: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def second(tuner: Tuner, *arguments: object) -> None:
        tuner.controller.accepted = (3, 1, 1)  # as if it had found them

    common = ["--dynamic", "--agents-max", "4", "--no-tensorboard", "--no-remember"]
    with monkeypatch.context() as patched:
        patched.setattr(Tuner, "second", second)
        assert train_here("--game", "toy:catch", *common, "--start", "1/1/1", "--minutes", "0.05",
                          "--run-dir", "run").returncode == 0
    before = len(rows(Path("run")))
    assert train_here("--resume", "run", "--minutes", minutes_more()).returncode == 0
    assert rows(Path("run"))[before:] and max(row["agents"] for row in rows(Path("run"))[before:]) == 3
    before = len(rows(Path("run")))
    told = train_here("--resume", "run", "--start", "2/1/1", "--minutes", minutes_more())
    assert "begins anew with 2/1/1, as it is told" in told.stdout and rows(Path("run"))[before]["agents"] == 2


@pytest.mark.usefixtures("run_with_two_checkpoints")
def test_a_lowered_learning_rate_is_not_raised_by_a_resume(
        train_here: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    factors = []
    right = Service.run

    def run(service: Service) -> str:
        factors.append(service._model.learning_rate_factor)
        service._model.learning_rate_factor = 0.5
        return right(service)

    monkeypatch.setattr(Service, "run", run)
    for steps in ("5000", "8000"):
        assert train_here("--resume", "run", "--steps", steps).returncode == 0
    assert factors == [1.0, 0.5]


def test_a_disk_that_is_gone_at_the_end_is_one_line_and_exit_code_5(
        train_here: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*arguments: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "run/checkpoints")

    monkeypatch.setattr("ga3c.runs.recorder.checkpoint.save", save)
    done = train_here(*QUICK, "--steps", "500", "--run-dir", "run")
    assert done.returncode == 5 and "Ended by a failure of storage: [Errno 2]" in done.stdout
    assert recorded("end") and "No checkpoint" in done.stdout.splitlines()[-1]


def test_a_refused_resume_from_an_older_checkpoint_leaves_the_newer_ones(
        run_with_two_checkpoints: list[Path], train_here: Command) -> None:
    before = run_with_two_checkpoints
    refused = train_here("--resume", str(before[0]), "--steps", "1000")
    assert refused.returncode == 2 and "already reached --steps 1000" in refused.stderr
    assert checkpoints(Path("run")) == before
