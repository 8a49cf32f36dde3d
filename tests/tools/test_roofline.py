"""`roofline.py`: costs, limit and where the time goes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import roofline
from programs import tool, tool_here

from ga3c.settings.files import resolve


@pytest.mark.slow
def test_the_roofline_of_a_toy_accounts_for_all_core_time(tmp_path: Path) -> None:
    file = tmp_path / "roofline.json"
    done = tool("bench/roofline", "--games", "toy:catch", "--minutes", "0.1", "--runs", "1", "--seconds", "0.2",
                "--json", file, "--", "--agents", "2", "--no-dynamic", "--no-tensorboard")
    assert done.returncode == 0, done.stderr
    report = json.loads(file.read_text())
    result, = report["results"]
    assert result["limit"] == pytest.approx(report["machine"]["cores"] * 1e6 / sum(result["costs_us"].values()))
    assert result["steps_per_second"] == result["runs"][0]["steps_per_second"] > 0
    assert sum(result["attribution_us"].values()) == pytest.approx(
        report["machine"]["cores"] * 1e6 / result["steps_per_second"])
    assert "toy:catch: " in done.stdout and "agents beyond" in done.stdout
    assert f"at most {result['limit']:,.0f} agent steps/s" in done.stdout


def test_the_time_of_all_cores_is_divided_without_a_rest() -> None:
    costs = {"environment": 400.0, "inference": 60.0, "training": 140.0}
    run = {"steps_per_second": 2000.0, "cpu_agents": 1.0, "cpu_server": 0.6, "cpu_outside": 0.1, "cpu_machine": 1.7,
           "inference_us": 75.0, "transport_us": {"agents": 10.0, "server": 12.0, "gather": 5.0}}
    assert roofline.attribute(costs, run, 2) == pytest.approx({
        **costs, "smaller batches": 15.0, "agent loop": 10.0, "gathering": 5.0, "transport": 7.0,
        "agents beyond": 500.0 - 400.0 - 10.0,
        "model beyond": 250.0 - 75.0 - 140.0, "server beyond": 50.0 - 12.0, "other programs": 50.0, "idle": 150.0})


def test_of_several_runs_speed_share_and_limit_are_medians_each_for_itself() -> None:
    def run(speed: float, limit: float) -> dict[str, Any]:
        return {"steps_per_second": speed, "limit": limit, "share_of_limit": speed / limit, "cpu_agents": 1.0,
                "cpu_server": 0.6, "cpu_outside": 0.1, "cpu_machine": 1.7, "inference_us": 75.0,
                "prediction_batch": speed / 100,
                "costs_us": {"environment": 400.0, "inference": 60.0, "training": 140.0},
                "transport_us": {"agents": 10.0, "server": 12.0, "gather": 5.0},
                **dict.fromkeys(("wait_ms", "queue_ms", "service_ms", "predict_ms", "reply_ms", "slot_wait_ms",
                                 "play_ms"), speed)}
    found = roofline.medians([run(3000, 3333), run(2000, 2500), run(2500, 2810)], 2)
    assert found["steps_per_second"] == 2500 and found["limit"] == 2810
    assert found["share_of_limit"] == pytest.approx(2500 / 2810) and found["prediction_batch"] == found["wait_ms"] / 100
    found = roofline.medians([run(2200, 2400), run(2000, 2500), run(2500, 2800)], 2)
    assert (found["steps_per_second"], found["limit"], found["prediction_batch"]) == (2200, 2500, 25.0)
    assert sum(found["attribution_us"].values()) == pytest.approx(2e6 / 2500)


@pytest.mark.slow
def test_the_roofline_has_the_transport_of_atari_measured() -> None:
    settings = resolve({"game": "Pong", "envs_per_agent": 2})
    moved = roofline.transport(settings, 2, 1.0)
    assert moved["agents"] > 0 and moved["server"] > moved["gather"] > 0
    assert not any(roofline.transport(resolve({"game": "toy:catch"}), 2, 1.0).values())


def test_where_a_gpu_computes_the_roofline_tells_no_limit(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import tensorflow as tf
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    monkeypatch.setattr(sys, "argv", ["roofline", "--games", "toy:catch", "--runs", "0"])
    assert roofline.main() == 2
    shown = capsys.readouterr()
    assert shown.err.count("\n") == 1 and "CUDA_VISIBLE_DEVICES=-1" in shown.err and not shown.out


@pytest.mark.usefixtures("own_directory")
def test_a_flag_that_the_roofline_does_not_know_is_one_line() -> None:
    done = tool_here("bench/roofline", "--games", "toy:catch", "--", "--lerning-rate", "1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "--learning-rate" in done.stderr
