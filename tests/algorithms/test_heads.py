"""An algorithm brings its own heads, outputs and choice of actions; nothing else knows which."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import three_heads
from command_line import Command
from trained import make_trained

from ga3c.commands.export import export
from ga3c.evaluation.policy import load_policy
from ga3c.settings.files import configured

ALGORITHM = "three_heads:ThreeHeads"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("mode", [[], ["--schedule", "synchronous"], ["--serial"]], ids=str)
def test_three_heads_and_no_policy_learn_are_evaluated_and_played(
        mode: list[str], train_here: Command, evaluate_here: Command) -> None:
    done = train_here("--game", "toy:identity", "--algorithm", ALGORITHM, "--steps", "20000", "--run-dir", "run",
                      "--passes", "1", "--minibatches", "1", "--rollout-length", "4", "--training-batch-min", "64",
                      "--learning-rate", "0.01", "--agents", "2", "--no-dynamic", *mode)
    assert done.returncode == 0, done.stderr
    report = json.loads(evaluate_here("run", "--json", "--greedy").stdout)
    assert report["mean"] > 0.95, "0.25 by chance"
    policy = load_policy("run")
    choice = policy(np.eye(4, dtype=np.float32), greedy=True)
    assert choice.action.tolist() == [0, 1, 2, 3] and choice.outputs.keys() == {"worth"}


def test_its_outputs_are_exported() -> None:
    make_trained(Path("run"), configured(game="toy:catch", algorithm=ALGORITHM))
    assert export(["run", "--no-onnx"]) == 0
    described = json.loads(Path("run/export/preprocessing.json").read_text())
    assert described["worth"]["shape"] == ["n", 3] and "policy" not in described


def test_exploration_follows_the_agents_own_steps_and_differs_between_environments() -> None:
    rates = [three_heads.explore(steps, 0, 2) for steps in (0, 100, 1000)]
    np.testing.assert_allclose(rates, [[1.0, 0.5], [0.5, 0.25], [0.05, 0.025]])
