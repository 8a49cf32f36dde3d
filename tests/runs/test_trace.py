"""The trace: what predictors and trainers saw, as tracks of spans that a viewer can open."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path


from ga3c.settings.files import configured
from ga3c.service.signals import Signals
from ga3c.runs.recorder import Recorder
from ga3c.service.supervisor import Service
from ga3c.runs.trace import Trace
from counting import CheckingModel


def spans(trace: Trace) -> list[tuple[str, str, float, float]]:
    """(track, name, start, duration) with times in milliseconds."""
    events = trace.events()
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    return [(tracks[event["tid"]], event["name"], round(event["ts"] / 1e3, 6), round(event["dur"] / 1e3, 6))
            for event in events if event["ph"] == "X"]


def test_an_agent_plays_between_an_answer_and_its_next_request() -> None:
    trace = Trace()
    trace.predicted(10.001, 10.002, 10.004, 10.005, [3], [10.0])
    trace.predicted(10.021, 10.022, 10.024, 10.025, [3, 1], [10.020, 10.019])
    assert [span for span in spans(trace) if span[0] == "agent 3"] == [
        ("agent 3", "wait", 0, 5), ("agent 3", "play", 5, 15), ("agent 3", "wait", 20, 5)]
    assert ("agent 1", "wait", 19, 6) in spans(trace)
    assert [span[1:] for span in spans(trace) if span[0] == threading.current_thread().name][:3] == [
        ("gather", 1, 1), ("predict", 2, 2), ("answer", 4, 1)]


def test_an_update_ends_when_it_is_told() -> None:
    trace = Trace()
    trace.trained(0.25, 0.5, 320)
    assert [span[1:] for span in spans(trace)] == [("gather", 0, 250), ("update", 250, 500)]


def test_a_trace_is_bounded_and_keeps_the_newest(tmp_path: Path) -> None:
    trace = Trace()
    for number in range(12_000):
        trace.predicted(number, number, number, number + 0.5, [0], [number - 0.25])
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["name"] == "predict" for event in events) == 10_000
    assert max(event.get("ts", 0) for event in events) == 9_999.25e6


def test_a_run_leaves_a_track_for_everyone_who_worked(make_run: Callable[..., Recorder], interruption: Signals) -> None:
    run = make_run(configured(game="toy:counting", steps=6000, agents=2, envs_per_agent=2, rollout_length=5,
                              training_batch_min=30, dynamic=False, tensorboard=False, trace=True))
    model = CheckingModel()
    reason = Service(run.settings, run, model, interruption).run()
    run.finish(reason, "it was not waited for")
    events = json.loads((run.directory / "trace.json").read_text())["traceEvents"]
    tracks = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    assert set(tracks) == {"agent 0", "agent 1", "predictor-0", "trainer-0"}
    names = {name: {event["name"] for event in events if event["ph"] == "X" and event["tid"] == track}
             for name, track in tracks.items()}
    assert names["agent 0"] == {"wait", "play"} and names["trainer-0"] == {"gather", "update"}
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")
