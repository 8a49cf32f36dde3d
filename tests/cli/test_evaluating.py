"""`ga3c-eval` on runs and policies, and evaluations while a run trains."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from command_line import QUICK, Command, Started, checkpoints, evaluate, events, flip, recorded

from ga3c.learner import checkpoint

pytestmark = pytest.mark.usefixtures("own_directory")


@pytest.mark.parametrize(("arguments", "says"), [
    (["nothing"], "nothing is not a run, checkpoint (RUN/checkpoints/N or best), policy file or shipped policy"),
    (["run", "--episodes", "0"], "argument --episodes: '0' is not allowed: a number from 1 to 100,000")])
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], says: str, evaluate_here: Command) -> None:
    done = evaluate_here(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("ga3c-eval: ") and says in done.stderr, done.stderr


def test_the_same_seed_gives_the_same_scores_and_a_record(train_here: Command, evaluate_here: Command) -> None:
    made = train_here("--game", "toy:catch", "--serial", "--agents", "2", "--no-tensorboard", "--steps", "2000",
                      "--run-dir", "run")
    assert made.returncode == 0, made.stderr
    newest, = checkpoints(Path("run"))
    one = evaluate("run", "--json", "--episodes", "20")
    two = evaluate_here(str(newest), "--json", "--episodes", "20")
    assert (one.returncode, one.stderr, one.stdout.count("\n")) == (0, "", 1)
    assert one.stdout == two.stdout
    found = json.loads(one.stdout)
    assert found["checkpoint"] == str(newest) and found["agent_steps"] == int(newest.name)
    assert found["protocol"] == {"episodes": 20, "seed": 0, "greedy": False, "envs": 16}
    assert len(found["scores"]) == len(found["lengths"]) == 20 and found["mean"] == sum(found["scores"]) / 20
    recorded = [event for event in events(Path("run")) if event["event"] == "evaluation"]
    assert [event["scores"] for event in recorded] == 2 * [found["scores"]]
    assert recorded[0]["checkpoint"] == f"checkpoints/{newest.name}" and recorded[0]["time"] > 0

    shown = evaluate_here("run", "--seed", "1", "--greedy", "--no-record")
    assert (shown.returncode, shown.stderr) == (0, "")
    for text in ("toy:catch", str(newest), "30 episodes, seed 1, likeliest actions", "Interquartile mean",
                 "95 % interval", "Length"):
        assert text in shown.stdout
    assert len([event for event in events(Path("run")) if event["event"] == "evaluation"]) == 2

    flip(newest / "arrays.npz")
    damaged = evaluate_here("run")
    assert damaged.returncode == 5 and damaged.stderr.count("\n") == 1 and "is damaged" in damaged.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_emulator")
def test_a_policy_of_pictures_scores_the_same_twice() -> None:
    one, two = (evaluate("pong", "--json", "--episodes", "4") for _ in range(2))
    assert (one.returncode, one.stderr) == (0, "") and one.stdout == two.stdout
    assert min(json.loads(one.stdout)["scores"]) >= 18


# ------------------------------------------------------------------------------------------------ during training

EVALUATING = [*QUICK, "--run-dir", "run", "--evaluation-minutes", "0.001", "--evaluation-episodes", "3"]


def evaluation(each: Started) -> list[psutil.Process]:
    """The process of an evaluation that is under way."""
    found = []
    for process in each.group():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "ga3c.commands.evaluate:report_to" in process.cmdline():
                found.append(process)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["--serial", "--no-serial"])
def test_the_last_checkpoint_is_evaluated_after_the_last_step(mode: str, started: Callable[..., Started]) -> None:
    each = started(*QUICK, "--run-dir", "run", "--evaluation-minutes", "9", "--evaluation-episodes", "3", mode,
                   "--steps", "2000")
    out, err = each.end()
    assert (each.process.returncode, err) == (0, "") and "Training is over" in out
    evaluation, = recorded("evaluation")
    assert Path("run", evaluation["checkpoint"]) == checkpoint.saved(Path("run/checkpoints"))[0] and evaluation["best"]
    assert evaluation["time"] == recorded("end")[0]["time"] < 9 * 60


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["--serial", "--no-serial"])
def test_evaluations_keep_the_best_checkpoint_and_end_with_the_run(mode: str, started: Callable[..., Started]) -> None:
    each = started(*EVALUATING, mode, "--checkpoints-kept", "1", "--checkpoint-minutes", "0.01")
    # What is left for it may be little.
    each.wait_for(lambda: len(recorded("evaluation")) >= 1 and bool(evaluation(each)), 200)
    process, = evaluation(each)
    each.wait_for(lambda: process.nice() == psutil.Process(each.process.pid).nice() + 5)
    os.killpg(each.process.pid, signal.SIGINT)
    out, err = each.end()
    assert (each.process.returncode, err) == (130, "")
    assert not process.is_running()
    assert "Best evaluation" in out and len(recorded("evaluation") + recorded("evaluation_stopped")) >= 2
    best = max(recorded("evaluation"), key=lambda event: event["mean"])  # the first of equals
    assert json.loads(Path("run/checkpoints/best.json").read_text()) == {
        "checkpoint": best["checkpoint"].removeprefix("checkpoints/"), "mean": best["mean"],
        "protocol": {name: value for name, value in best["protocol"].items() if name != "seed"}}
    again = evaluate("run/checkpoints/best", "--json", "--no-record", "--episodes", "3",
                     "--seed", str(best["protocol"]["seed"]))
    assert json.loads(again.stdout)["scores"] == best["scores"]


def test_a_killed_evaluation_is_told_and_ends_with_a_killed_run(started: Callable[..., Started]) -> None:
    each = started(*EVALUATING)
    each.wait_for(lambda: bool(evaluation(each)))
    evaluation(each)[0].kill()
    each.wait_for(lambda: bool(recorded("evaluation_failed")) and bool(evaluation(each)))
    assert recorded("evaluation_failed")[0]["cause"] == "killed by signal 9"
    process, = evaluation(each)
    each.process.kill()
    each.process.communicate()
    _, alive = psutil.wait_procs([process], timeout=100)  # it may have to start up before it can look
    assert not alive
