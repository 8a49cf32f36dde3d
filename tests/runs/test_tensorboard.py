"""What TensorBoard is given, read back; and what a browser shows of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.util import tensor_util

from ga3c.settings.files import to_yaml
from ga3c.settings.files import configured
from ga3c.evaluation.video import clip
from ga3c.runs.policy_lag import NOTHING, Lag
from ga3c.runs.statistics import Statistics, Workers
from ga3c.runs.tensorboard import TensorBoard, scalar, tag

LAGS = np.array([0, 0, 1, 1, 1, 7])
LAG = Lag(LAGS, LAGS // 2, LAGS - LAGS // 2, np.zeros(0), 3.5 * LAGS)
REPORT = {"agent_steps": 15, "mean": 2.0, "median": 2.0, "iqm": 2.0, "length_mean": 9.0, "scores": [1.0, 3.0]}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    writer = TensorBoard(tmp_path / "logs", to_yaml(configured(seed=123)), 0)
    for second in range(1, 13):
        writer.row({"time": float(second), "agent_steps": 10 * second, "pps": 5.0, "wait_ms": None,
                    "bottleneck": "agents", "score_mean": 0.5 * second, "play_ms": 1.5},
                   LAG if second != 5 else NOTHING)
    writer.evaluation(REPORT, clip([np.full((84, 84, 4), shade, np.uint8) for shade in (0, 100, 200)], 15.0))
    writer.close()
    return tmp_path / "logs"


@pytest.mark.parametrize("value", [3, -0.1, float("nan")])
def test_a_scalar_is_what_tensorboard_makes_of_it(value: float) -> None:
    assert [scalar("a/b", value).SerializeToString()] == [
        theirs.SerializeToString() for theirs in scalar_pb("a/b", value).value]


def test_scalars_histograms_evaluations_and_settings_are_in_one_file(logs: Path) -> None:
    assert len(list(logs.iterdir())) == 1
    events = EventAccumulator(str(logs), size_guidance={"tensors": 0})
    events.Reload()
    assert set(events.Tags()["tensors"]) == {
        "speed/pps", "score/score_mean", "time/play_ms", "lag/policy_lag", "settings", "evaluation/mean",
        "lag/in_flight", "lag/queued", "lag/queued_ms",
        "evaluation/median", "evaluation/iqm", "evaluation/length_mean", "evaluation/scores", "evaluation/play"}

    def read(name: str) -> list[tuple[int, np.ndarray]]:
        return [(event.step, tensor_util.make_ndarray(event.tensor_proto)) for event in events.Tensors(name)]

    assert [(step, float(value)) for step, value in read("score/score_mean")] == [
        (10 * second, 0.5 * second) for second in range(1, 13)]
    histograms = read("lag/policy_lag")
    assert [step for step, _ in histograms] == [10, 110]
    assert [buckets[:, 2].sum() for _, buckets in histograms] == [len(LAGS), 9 * len(LAGS)]
    assert histograms[0][1][0, 0] == 0 and histograms[0][1][-1, 1] == 7
    assert "seed: 123" in read("settings")[0][1].item().decode()
    assert [(step, float(value)) for step, value in read("evaluation/mean")] == [(15, 2.0)]
    assert read("evaluation/scores")[0][1][:, 2].sum() == 2
    (step, (width, height, gif)), = read("evaluation/play")
    assert (step, width, height, gif[:3]) == (15, b"168", b"168", b"GIF")
    assert events.SummaryMetadata("evaluation/play").plugin_data.plugin_name == "images"
    assert events.SummaryMetadata("lag/policy_lag").plugin_data.plugin_name == "histograms"


def test_what_a_resume_cut_off_is_not_shown(tmp_path: Path) -> None:
    for first, last, value in ((0, 100, 1.0), (50, 80, 2.0)):  # the second one goes on from a checkpoint at 50
        writer = TensorBoard(tmp_path, to_yaml(configured()), first)
        for steps in range(first + 10, last + 1, 10):
            writer.row({"time": steps / 10.0, "agent_steps": steps, "pps": value}, NOTHING)
        writer.close()
        time.sleep(1.1 if last == 100 else 0.0)  # a file is named by its second
    events = plugin_event_accumulator.EventAccumulator(str(tmp_path), size_guidance={"tensors": 0})  # the server's
    events.Reload()
    shown = [(event.step, float(tensor_util.make_ndarray(event.tensor_proto))) for event in events.Tensors("speed/pps")]
    assert shown == [(steps, 1.0) for steps in range(10, 51, 10)] + [(steps, 2.0) for steps in range(60, 81, 10)]


def test_every_column_has_a_group() -> None:
    row, _ = Statistics(4).row(1.0, Workers(1, 1, 1, 0, 0))
    row |= dict.fromkeys(("memory_mb", "cpu_server", "cpu_agents", "cpu_machine", "best_evaluation"), 1.0)
    groups = {name: tag(name).split("/")[0] for name in row if name not in ("time", "agent_steps")}
    assert "learning" not in groups.values()
    assert {name for name, group in groups.items() if group == "time"} == {
        name for name in row if name.endswith(("_ms", "_busy")) and not name.startswith("lag")}
    assert [tag(name) for name in ("policy_loss", "q_max", "lag_p95", "cpu_agents", "play_ms")] == [
        "learning/policy_loss", "learning/q_max", "lag/lag_p95", "machine/cpu_agents", "time/play_ms"]


@contextlib.contextmanager
def served(logs: Path) -> Iterator[str]:
    """The address of a TensorBoard of `logs`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "Press CTRL+C" in line:
                    break
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = os.environ.get("CHROMEDRIVER") or shutil.which("chromedriver")


@contextlib.contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--window-size=1500,1700"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options, webdriver.ChromeService(executable_path=DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="no Chromium here; CHROMIUM and CHROMEDRIVER name one")
def test_a_browser_shows_scalars_histograms_and_evaluations(logs: Path) -> None:
    tags = {"score/score_mean", "speed/pps", "lag/policy_lag", "evaluation/mean", "evaluation/play"}
    with served(logs) as address, browser() as driver:
        driver.get(f"{address}/?tagFilter={quote('|'.join(tags))}#timeseries")

        def titles(driver: webdriver.Chrome) -> set[str]:
            return {"".join(card.text.split("\n")[:2]) for card in driver.find_elements("css selector", "card-view")}

        WebDriverWait(driver, 60).until(lambda driver: tags <= titles(driver))
        shown = "return [...document.querySelectorAll('image-card img')].map(each => each.naturalWidth)"
        WebDriverWait(driver, 60).until(lambda driver: driver.execute_script(shown) == [168])
