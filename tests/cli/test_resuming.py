"""Going on with a run: from its newest sound checkpoint, with its settings and counts."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import QUICK, RUN, Command, checkpoints, events, flip, rows, train

from ga3c.learner import checkpoint
from ga3c.runs.directory import lock_directory
from ga3c.service.agent_pool import AgentsLost
from ga3c.service.supervisor import Service

pytestmark = pytest.mark.usefixtures("own_directory")


@pytest.mark.parametrize("apart", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_serial_run_with_a_break_has_the_same_weights(apart: bool, train_here: Command) -> None:
    run = train if apart else train_here  # apart: each in a process of its own
    for name, steps in (("one", "3000"), ("two", "1400")):
        done = run("--serial", "--seed", "0", *QUICK, "--steps", steps, "--run-dir", name)
        assert done.returncode == 0, done.stderr
    done = run("--resume", "two", "--steps", "3000")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    one, two = (checkpoints(Path(name))[-1] for name in ("one", "two"))
    assert one.name == two.name
    assert (one / "arrays.npz").read_bytes() == (two / "arrays.npz").read_bytes()


def test_a_run_leaves_its_record_and_goes_on(train_here: Command) -> None:
    first = train_here(*QUICK, "--steps", "4000", "--run-dir", "run", "--tensorboard")
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

    shown = {path.name for path in (run / "tensorboard").iterdir()}
    reached = train_here("--resume", "run")
    assert reached.returncode == 2 and "already reached --steps 8000" in reached.stderr
    assert {path.name for path in (run / "tensorboard").iterdir()} == shown, "a new one would hide later steps"


def test_a_corrupt_newest_checkpoint_is_passed_over(run_with_two_checkpoints: list[Path], train_here: Command) -> None:
    older, newest = run_with_two_checkpoints
    flip(newest / "arrays.npz")

    explicit = train_here("--resume", str(newest), "--steps", "10000")
    assert explicit.returncode == 5 and explicit.stderr.count("\n") == 1
    assert f"{newest}/arrays.npz is damaged" in explicit.stderr

    done = train_here("--resume", "run", "--steps", "10000")
    assert done.returncode == 0 and f"{newest}/arrays.npz is damaged" in done.stdout
    start = [event for event in events(Path("run")) if event["event"] == "start"][-1]
    assert start["resumed_at"] == int(older.name)

    for path in checkpoints(Path("run")):
        flip(path / "progress.json")
    hopeless = train_here("--resume", "run", "--steps", "20000")
    assert hopeless.returncode == 5 and hopeless.stderr.count("\n") == 1 and "Traceback" not in hopeless.stderr


@pytest.mark.usefixtures("run_with_two_checkpoints")
@pytest.mark.parametrize(("flags", "says"), [
    (["--game", "toy:identity"], "--game: toy:identity, but .*run/checkpoints/.* was trained on toy:catch; "),
    (["--rollout-length", "7"], "--rollout-length: 7, but .* was trained on 20; --weights-only begins a new run with "),
    (["--optimizer", "rmsprop"], r"--resume: .*: its state is of another optimizer: optimizer\..*; --weights-only "),
    (["--weights-only", "--game", "toy:identity", "--run-dir", "other"], "--weights-only: .* another network: "),
    (["--run-dir", "other"], "--run-dir: --resume goes on with its own directory")])
def test_what_a_checkpoint_does_not_fit_is_one_line(flags: list[str], says: str, train_here: Command) -> None:
    refused = train_here("--resume", "run", *flags, "--steps", "10000")
    assert refused.returncode == 2 and re.fullmatch(f"ga3c-train: {says}.*\n", refused.stderr), refused.stderr
    assert not Path("other").exists()


def test_newer_checkpoints_are_set_aside(run_with_two_checkpoints: list[Path], train_here: Command) -> None:
    older, newest = run_with_two_checkpoints
    done = train_here("--resume", str(older), "--steps", str(int(older.name) + 100))
    assert done.returncode == 0 and newest.with_name(f"{newest.name}.abandoned").is_dir() and not newest.exists()
    assert train_here("--resume", "run", "--steps", str(int(newest.name) + 2000)).returncode == 0
    first, second = [event["resumed_at"] for event in events(Path("run")) if event["event"] == "start"][-2:]
    assert first == int(older.name) < second < int(newest.name), "the newest is of this branch now"


@pytest.mark.usefixtures("run_with_two_checkpoints")
def test_a_run_in_use_is_not_resumed(train_here: Command) -> None:
    held = lock_directory(RUN)
    try:
        refused = train_here("--resume", "run", "--steps", "10000")
    finally:
        os.close(held)
    assert refused.returncode == 2 and str(os.getpid()) in refused.stderr and refused.stderr.count("\n") == 1


def test_weights_only_begins_a_new_run(
        run_with_two_checkpoints: list[Path], train_here: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[dict[str, np.ndarray], int, int]] = []

    def run(service: Service) -> str:
        begun.append(service._learner.state())
        return "the test"

    monkeypatch.setattr(Service, "run", run)
    assert train_here("--resume", "run", "--weights-only", "--run-dir", "new").returncode == 0
    arrays, version = begun[0]
    theirs = checkpoint.load(run_with_two_checkpoints[1]).arrays
    assert version == 0
    assert all(np.array_equal(array, theirs[name]) for name, array in arrays.items() if name.startswith("network"))
    assert not np.array_equal(arrays["optimizer.00"], theirs["optimizer.00"]), "the optimizer begins anew"


@pytest.mark.usefixtures("run_with_two_checkpoints")
def test_without_agents_the_exit_code_is_3(train_here: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(service: Service) -> str:
        raise AgentsLost("agents: all are lost")

    monkeypatch.setattr(Service, "run", lost)
    done = train_here("--resume", "run", "--steps", "10000")
    assert done.returncode == 3 and "agents: all are lost" in done.stderr


@pytest.mark.usefixtures("run_with_two_checkpoints")
def test_weights_only_takes_neither_limits_nor_directory(train_here: Command) -> None:
    theirs, own = (train_here("--resume", "run", *more, "--print-config").stdout for more in ([], ["--weights-only"]))
    assert re.search(r"^  steps: \d+", theirs, re.MULTILINE) and re.search(r"^  steps: null", own, re.MULTILINE)
    assert re.search(r"^  run_dir: null", own, re.MULTILINE) and re.search(r"^  game: toy:catch", own, re.MULTILINE)


def test_weights_that_see_with_other_contrast_are_refused(train_here: Command) -> None:
    short = ("--steps", "64", "--serial", "--preset", "fast", "--emulator", "ale", "--agents", "1", "--envs-per-agent",
             "4", "--rollout-length", "4", "--training-batch-min", "16")
    begun = train_here("--game", "Pong", *short, "--run-dir", "pong")
    assert begun.returncode == 0, begun.stderr
    for flags in ([], ["--weights-only", "--run-dir", "other"]):
        refused = train_here("--resume", "pong", *flags, "--contrast", "--steps", "128")
        assert refused.returncode == 2, refused.stdout
        assert re.fullmatch("ga3c-train: --contrast: true, but .*pong/checkpoints/.* was trained with false\n",
                            refused.stderr)
    assert not Path("other").exists()


def test_counts_at_a_resume_win_over_the_start_of_the_run(
        run_with_two_checkpoints: list[Path], train_here: Command) -> None:
    written = Path("run/config.yaml")
    text = written.read_text()
    assert "\n  start: null " in text
    written.write_text(text.replace("\n  start: null ", "\n  start: 1/1/1 "))
    assert "\n  start: 1/1/1 " in train_here("--resume", "run", "--print-config").stdout
    told = train_here("--resume", "run", "--agents", "3", "--print-config").stdout
    assert "\n  start: null " in told and "\n  agents: 3 " in told
    told = train_here("--resume", "run", "--agents", "3", "--start", "2/1/1", "--print-config").stdout
    assert "\n  start: 2/1/1 " in told


@pytest.mark.usefixtures("run_with_two_checkpoints")
def test_settings_and_a_lowered_learning_rate_hold_for_the_next_resume(
        train_here: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    factors = []
    right = Service.run

    def run(service: Service) -> str:
        factors.append(service._learner.learning_rate_factor)
        service._learner.learning_rate_factor = 0.5
        return right(service)

    monkeypatch.setattr(Service, "run", run)
    assert train_here("--resume", "run", "--steps", "10000", "--gamma", "0.9").returncode == 0
    printed = train_here("--resume", "run", "--print-config").stdout
    assert "\n  gamma: 0.9 " in printed and "\n  steps: 10000 " in printed
    assert train_here("--resume", "run", "--steps", "14000").returncode == 0
    assert factors == [1.0, 0.5]
