"""Exported models answer as the policy does, say how to use them, and carry no code."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
import yaml
from trained import make_trained

from ga3c.commands import export as module
from ga3c.commands.export import ExportDiffers, export, model_card, write
from ga3c.envs.factory import make_environment
from ga3c.evaluation.policy import find, load_policy, write_policy
from ga3c.settings.files import configured


@pytest.fixture
def run(tmp_path: Path) -> Path:
    make_trained(tmp_path / "run", configured(game="Pong", seed=3))
    evaluation = {"time": 1.0, "event": "evaluation", "checkpoint": "checkpoints/000000000010", "mean": -20.0,
                  "min": -21.0,
                  "max": -19.0, "mean_interval": [-20.5, -19.5], "scores": [-19.0, -21.0], "human_normalised": 0.25,
                  "protocol": {"episodes": 2, "seed": 0}}
    chosen_by = evaluation | {"time": 2.0, "mean": 21.0, "mean_interval": [20.0, 21.0], "best": True}
    (tmp_path / "run/events.jsonl").write_text(json.dumps(evaluation) + "\n" + json.dumps(chosen_by) + "\n")
    (tmp_path / "run/versions.json").write_text(json.dumps(
        {"cores": 2, "memory_gb": 7.5, "platform": "Linux", "python": "3.11", "tensorflow": "2.21",
         "command": ["/usr/bin/ga3c-train", "--game", "Pong"]}))
    return tmp_path / "run"


def test_an_exported_policy_answers_alike_everywhere(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export([str(run)]) == 0
    said = capsys.readouterr()
    assert said.err == "" and "saved_model: differs by at most" in said.out and "model.onnx: differs" in said.out
    directory = run / "export"
    assert {path.name for path in directory.iterdir()} == {
        "saved_model", "model.onnx", "policy.npz", "preprocessing.json", "README.md"}

    policy = load_policy(run)
    environment = make_environment(policy.trained.settings, 4)
    environment.reset(5)
    for _ in range(20):
        environment.step(policy(environment.observation).action)
    observation = environment.observation.copy()
    environment.close()
    expected = policy.predict(observation)
    saved = tf.saved_model.load(str(directory / "saved_model")).signatures["serving_default"](tf.constant(observation))
    session = onnxruntime.InferenceSession(str(directory / "model.onnx"))
    for (name, right), answer in zip(expected.items(), session.run([*expected], {"observation": observation}),
                                     strict=True):
        np.testing.assert_allclose(saved[name].numpy(), right, atol=1e-5, rtol=0)
        np.testing.assert_allclose(answer, right, atol=1e-5, rtol=0)
    from_file = load_policy(directory / "policy.npz").predict(observation)
    np.testing.assert_array_equal(from_file["policy"], expected["policy"])

    described = json.loads((directory / "preprocessing.json").read_text())
    assert described["observation"]["shape"] == ["n", 84, 84, 4] and described["atari"]["frame_skip"] == 4
    assert (described["value"]["gamma"], described["value"]["reward_clip"]) == (0.99, 1.0)
    _, metadata, text = (directory / "README.md").read_text().split("---\n", 2)
    result = yaml.safe_load(metadata)["model-index"][0]["results"][0]["metrics"][0]
    assert result["value"] == "-20.00 +/- 1.00" and yaml.safe_load(metadata)["tags"][-1] == "appo"
    for told in ("95 % interval -20.50 to -19.50", "episodes 2, seed 0", "2 cores, 7.5 GB", "`ga3c-train --game Pong`",
                 "10 agent steps", "algorithm appo, 3 passes; schedule queues", "(gamma): 0.99",
                 "rewards learned from: clipped to [-1, 1]"):
        assert told in text

    kept = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    assert not any(b"\x80\x04\x95" in content[:8] or path.suffix in (".pkl", ".pickle", ".py", ".keras")
                   for path, content in kept.items())
    assert export([str(run)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ga3c-export: ") and "exists; name a new one" in said and said.count("\n") == 1
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == kept


def test_a_model_that_answers_otherwise_is_not_exported(
        run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    saved_model = module.backend.write_saved_model

    def wrong(path: Path, inference: Any) -> Callable[..., Any]:
        answer = saved_model(path, inference)
        return lambda observation: {name: output + 2e-5 for name, output in answer(observation).items()}

    monkeypatch.setattr(module.backend, "write_saved_model", wrong)
    assert export([str(run), "--no-onnx"]) == 6
    assert capsys.readouterr().err.startswith("ga3c-export: saved_model differs from the policy by 2.0e-05, more than")
    assert "export" not in os.listdir(run) and not [name for name in os.listdir(run) if name.startswith(".")]
    (run / "aside").mkdir()
    with pytest.raises(ExportDiffers):
        write(run / "aside", load_policy(run), onnx=False)


def test_the_card_claims_no_score_of_a_branch_that_was_left(run: Path) -> None:
    assert "-20.0" in model_card(find(run), "Pong", ["saved_model"])
    with open(run / "events.jsonl", "a") as file:
        file.write('{"time": 0.5, "event": "start", "resumed_at": 10}\n')
    assert "-20.0" in model_card(find(run), "Pong", ["saved_model"]), "it goes on from this checkpoint"
    with open(run / "events.jsonl", "a") as file:
        file.write('{"time": 0.5, "event": "start", "resumed_at": 5}\n')
    assert "Not evaluated yet" in model_card(find(run), "Pong", ["saved_model"])


def test_the_card_tells_of_cut_episodes_and_a_run_from_python(run: Path) -> None:
    card = model_card(find(run), "Pong", ["saved_model"])
    assert "Cut short" not in card and "from Python" not in card
    evaluation = json.loads((run / "events.jsonl").read_text().splitlines()[0])
    cut = {"cut": [1], "limits": {"steps": 200, "minutes": 30.0}}
    (run / "events.jsonl").write_text(json.dumps(evaluation | cut) + "\n")
    versions = json.loads((run / "versions.json").read_text())
    (run / "versions.json").write_text(json.dumps(versions | {"command": ["-c", "--config", "/tmp/gone/config.yaml"]}))
    card = model_card(find(run), "Pong", ["saved_model"])
    assert "Cut short: 1, at 200 agent steps or 30 minutes." in card
    assert "trained from Python" in card and "/tmp" not in card


def test_a_record_that_is_not_whole_leaves_lines_out(tmp_path: Path) -> None:
    make_trained(tmp_path / "run", configured(game="toy:catch"))
    (tmp_path / "run/versions.json").write_text('{"cores": 2}')
    card = model_card(find(tmp_path / "run"), "toy:catch", ["saved_model"])
    assert "- machine: " not in card and "model-index" not in card and "Not evaluated yet" in card


def test_a_policy_file_is_exported_to_a_directory_that_is_named(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_trained(tmp_path / "run", configured(game="toy:catch"))
    write_policy(tmp_path / "file.npz", find(tmp_path / "run"))
    assert export([str(tmp_path / "file.npz")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("ga3c-export: DIRECTORY: name one") and said.count("\n") == 1


def test_a_game_that_fails_is_one_line_and_nothing_is_exported(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    game = "odd:Raises-v0"
    make_trained(tmp_path / "run", configured(game="odd:Plain-v0"), says=configured(game=game), game=game)
    assert export([str(tmp_path / "run")]) == 3
    said = capsys.readouterr().err
    assert said.startswith(f"ga3c-export: '{game}' failed while it played: Odd: of two lines (odd.py, line ")
    assert said.count("\n") == 1
    assert sorted(os.listdir(tmp_path / "run")) == ["checkpoints", "config.yaml"]


def test_a_model_that_is_not_finite_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_trained(tmp_path / "run", configured(game="toy:catch"))
    policy = load_policy(tmp_path / "run")
    answer = policy.inference.predict
    for wrong in ("policy", "value"):
        def answers(observation: np.ndarray, wrong: str = wrong) -> dict[str, np.ndarray]:
            return {name: output * np.nan if name == wrong else output for name, output in answer(observation).items()}

        monkeypatch.setattr(module.backend, "write_saved_model", lambda path, inference, answers=answers: answers)
        with pytest.raises(ExportDiffers):
            write(tmp_path / "run", policy, False)
