"""Real Atari, a minute of it: the main job from the command line."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from ga3c.learner.checkpoint import newest


@pytest.mark.slow  # of one process's two modes: test_conductor.py
def test_processes_that_compute_alike_learn_what_serial_mode_learns_to_the_byte(tmp_path: Path) -> None:
    learned = []
    for mode in ("serial", "no-serial"):
        run = tmp_path / mode
        subprocess.run([sys.executable, "-m", "ga3c", "--game", "Pong", "--algorithm", "ppo", "--agents", "2",
                        "--envs-per-agent", "4", "--steps", "3000", "--no-remember", "--no-tensorboard", f"--{mode}",
                        "--device-threads", "1", "--kernels", "eigen", "--precision", "float32", "--run-dir", str(run)],
                       check=True, capture_output=True, timeout=200)
        learned.append(newest(run / "checkpoints")[0].arrays)
    serial, processes = learned
    names = [name for name in processes if name.startswith(("network.", "optimizer."))]
    assert len(names) > 20 and all(np.array_equal(serial[name], processes[name]) for name in names)


@pytest.mark.usefixtures("compiled_emulator")
def test_boxing_trains_and_says_what_it_does(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "ga3c", "--game", "boxing", "--steps", "32000", "--agents", "2",
         "--envs-per-agent", "8", "--no-dynamic", "--kernels", "onednn", "--run-dir", str(run)],
        capture_output=True, text=True, timeout=290, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["agent_steps"] >= 32_000
    last = rows[-2]
    assert last["agent_steps"] > 5_000 and last["frames"] == 4 * last["agent_steps"]
    assert (last["agents"], last["predictors"], last["trainers"]) == (2, 1, 1)
    steady = rows[len(rows) // 3:-1]
    # Every agent step is predicted once; of what was predicted all but what is under way has been collected.
    predicted, trained = sum(row["pps"] for row in steady), steady[-1]["agent_steps"] - steady[0]["agent_steps"]
    assert 0.9 * trained < predicted < 1.1 * trained + 2_048, "in slots under way"
    assert all(0 <= row["lag_mean"] <= row["lag_p95"] < 12 for row in steady)
    assert all(1 <= row["prediction_batch"] <= 16 and row["training_batch"] >= 320 for row in steady)
    assert all(np.isfinite([row["policy_loss"], row["value_loss"], row["entropy"]]).all() for row in steady)
    assert 0 < last["entropy"] <= np.log(18) + 1e-6
    episodes = list(csv.DictReader((run / "episodes.csv").open()))
    assert len(episodes) == rows[-1]["episodes"] > 0, "a game ends after 1,790 steps, of 16"
    assert all(-100 <= float(episode["score"]) <= 100 and int(episode["length"]) <= 1_790 for episode in episodes)
    scalars = EventAccumulator(str(run / "tensorboard"), size_guidance={"tensors": 0})
    scalars.Reload()
    assert {"speed/pps", "speed/tps", "score/score_mean", "lag/lag_mean", "lag/policy_lag", "lag/queued_ms",
            "learning/entropy"} <= set(scalars.Tags()["tensors"])
    assert len(rows) - 12 <= len(scalars.Tensors("speed/pps")) <= len(rows)
    plugin = scalars.SummaryMetadata("speed/pps").plugin_data.plugin_name
    assert plugin == "scalars"
