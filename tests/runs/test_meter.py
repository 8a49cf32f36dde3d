"""What the processes of a run take of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from ga3c.runs.meter import Meter


def test_each_kind_of_process_is_measured_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, now, ours = {7: 1.0, 8: 1.0, 9: 1.0, os.getpid(): 1.0}, [100.0], os.getpid()

    class Process:
        def __init__(self, pid: int) -> None:
            self.pid = pid

        def cpu_times(self) -> SimpleNamespace:
            return SimpleNamespace(user=cpu[self.pid], system=0.0)

        def memory_info(self) -> SimpleNamespace:
            return SimpleNamespace(rss=3 * 2**20, shared=2**20)

    monkeypatch.setattr("ga3c.runs.meter.psutil.Process", Process)
    monkeypatch.setattr("ga3c.runs.meter.time", SimpleNamespace(monotonic=lambda: now[0]))
    meter = Meter()
    meter.used([7, 8], 9)
    for pid, seconds in ((7, 1.0), (8, 2.0), (9, 0.25), (ours, 0.5)):
        cpu[pid] += seconds
    now[0] += 2.0
    found = meter.used([7, 8], 9)
    assert (found["cpu_agents"], found["cpu_server"], found["cpu_evaluator"]) == (1.5, 0.25, 0.125)
    assert found["memory_mb"] == 8.0


@pytest.mark.parametrize(("usable", "whole"), [(os.cpu_count() or 1, True), ((os.cpu_count() or 1) + 1, False)])
def test_of_a_machine_used_in_part_only_what_is_ours_counts(
        monkeypatch: pytest.MonkeyPatch, usable: int, whole: bool) -> None:
    monkeypatch.setattr("ga3c.runs.meter.usable_cores", lambda: usable)
    monkeypatch.setattr(Meter, "_busy", staticmethod(lambda: 1e6 * time.monotonic()))
    meter = Meter()
    meter._at, meter._machine = meter._at - 1.0, meter._machine - 1e6  # a second ago
    spent = meter.used([], None)
    assert spent["cpu_machine"] == (pytest.approx(1e6, rel=0.01) if whole else spent["cpu_server"])


def test_what_games_start_counts_with_their_agent_and_with_the_evaluator() -> None:
    spin = "import time\nend = time.time() + 300\nwhile time.time() < end: pass"
    started = [subprocess.Popen([sys.executable, "-c", f"import subprocess, sys\n"
                                 f"subprocess.run([sys.executable, '-c', {spin!r}], process_group={group})"],
                                process_group=0) for group in (None, 0)]
    agent, evaluator = (process.pid for process in started)
    meter, alone = Meter(user_code=True), Meter()
    try:
        deadline = time.monotonic() + 100
        while not all(psutil.Process(pid).children() for pid in (agent, evaluator)) and time.monotonic() < deadline:
            time.sleep(0.01)
        games = [psutil.Process(pid).children()[0] for pid in (agent, evaluator)]
        began = time.monotonic()
        for each in (meter, alone):
            each.used([agent], evaluator)
        before = [sum(game.cpu_times()[:2]) for game in games]
        while time.monotonic() < deadline and any(
                sum(game.cpu_times()[:2]) < used + 0.3 for game, used in zip(games, before, strict=True)):
            time.sleep(0.01)
        found, blind = meter.used([agent], evaluator), alone.used([agent], evaluator)
        seconds = time.monotonic() - began
        assert min(found["cpu_agents"], found["cpu_evaluator"]) * seconds > 0.2
        assert max(blind["cpu_agents"], blind["cpu_evaluator"]) * seconds < 0.1
    finally:
        for process in started:
            for child in psutil.Process(process.pid).children():
                child.kill()
            process.kill()
            process.wait()
