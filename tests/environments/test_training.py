"""`ga3c-train` on a game that does everything that it should not, in real processes: the run is as any other."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from command_line import RUN, Started, checkpoints, events, learning, recorded, rows

ODD = Path(__file__).parent
SHORT = ["--agents", "2", "--envs-per-agent", "1", "--rollout-length", "5", "--training-batch-min", "20",
         "--no-dynamic", "--no-tensorboard", "--run-dir", "run"]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Started]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(ODD)]))
    made: list[Started] = []

    def start(*arguments: str) -> Started:
        made.append(Started(*arguments, *SHORT))
        return made[-1]

    yield start
    for each in made:
        _, left = psutil.wait_procs([*each.group(), *helpers()], timeout=60)
        for process in left:
            process.kill()
        each.process.communicate()
        assert not left, f"left behind: {left}"


def helpers() -> list[psutil.Process]:
    """What the environments have started, if it lives."""
    found = []
    for pid in Path("started").read_text().split() if Path("started").exists() else []:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_a_run_in_processes_survives_all_at_once(started: Callable[..., Started]) -> None:
    each = started("--game", "odd:Wild-v0")
    each.wait_for(learning)
    first = recorded("agent_started")[0]["pid"]
    each.wait_for(lambda: len(psutil.Process(first).children()) == 2)  # the other agent may have been first
    its = psutil.Process(first).children()
    os.kill(first, signal.SIGKILL)
    assert not psutil.wait_procs(its, timeout=60)[1], "what it has started lives on"
    steps = rows(RUN)[-1]["agent_steps"]
    each.wait_for(lambda: len(recorded("agent_started")) > 2 and rows(RUN)[-1]["agent_steps"] > steps)
    each.process.send_signal(signal.SIGTERM)
    out, err = each.end()
    assert (each.process.returncode, err) == (143, "")
    assert out.splitlines()[-1].endswith("--resume run") and checkpoints(RUN)
    assert "said aloud" not in out
    log = (RUN / "log.txt").read_text()
    assert log.count("said aloud") > 100 and log.count("harms nothing: RuntimeError: the close") == 1
    assert [event["exitcode"] for event in recorded("agent_died")] == [-signal.SIGKILL]


@pytest.mark.slow
def test_a_serial_run_survives_all_at_once(started: Callable[..., Started]) -> None:
    each = started("--game", "odd:Wild-v0", "--serial")
    each.wait_for(learning)
    each.process.send_signal(signal.SIGTERM)
    for helper in helpers():  # nobody else ends them: they belong to the main process
        helper.kill()
    out, err = each.end()
    assert each.process.returncode == 143, (out, err)
    assert out.splitlines()[-1].endswith("--resume run") and checkpoints(RUN)
    assert err == "" and events(RUN)[-1]["event"] == "end"
    assert (RUN / "log.txt").read_text().count("harms nothing: RuntimeError: the close") == 3, "the check, two agents"


def test_what_environments_start_ends_with_the_main_process(started: Callable[..., Started]) -> None:
    each = started("--game", "odd:StartsEndless-v0")
    each.wait_for(learning)
    each.wait_for(lambda: len(helpers()) == 2)
    members = [*helpers(), *each.group()]
    each.process.kill()
    each.process.communicate()
    assert not psutil.wait_procs(members, timeout=60)[1]
