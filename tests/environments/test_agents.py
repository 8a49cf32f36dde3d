"""Agents whose environments end their process, fork, draw, start processes: the service goes on, or says why not."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from counting import CheckingModel, agent_processes, end_run, events

from ga3c.runs.recorder import Recorder
from ga3c.service.agent_pool import AgentsLost
from ga3c.service.signals import Signals
from ga3c.service.supervisor import Service
from ga3c.settings.files import configured
from ga3c.transport.slots import Batch

Run = Callable[..., Recorder]


class Blind(CheckingModel):
    """Plays and learns nothing, whatever it sees."""

    def predict(self, observation: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
        n = len(observation)
        return {"policy": np.full((n, 2), 0.5, np.float32), "value": np.zeros(n, np.float32)}, self.version

    def check(self, batch: Batch, i: int, e: int, steps: int) -> None:
        assert np.isfinite(batch.reward[i, :steps, e]).all()


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_run: Callable[..., Recorder],
          interruption: Signals) -> Run:
    """Plays a game in agents until the model, or a limit, ends the run; `after` is called at each update."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ga3c.service.workers.FIRST_PAUSE", 0.02)

    def serve(game: str, after: Callable[[Recorder], None] = lambda run: None, **changed: object) -> Recorder:
        run = make_run(configured(**{
            "game": f"odd:{game}-v0", "tensorboard": False, "dynamic": False, "agent_nice": 0, "agents": 2,
            "agents_max": 2, "envs_per_agent": 1, "rollout_length": 5, "training_batch_min": 10, "minutes": 0.7,
            "agent_timeout": 10.0, **changed}))
        Service(run.settings, run, Blind(lambda updates: after(run)), interruption).run()  # type: ignore[arg-type]
        return run

    return serve


# ------------------------------------------------------------------------------------------------ ends

@pytest.mark.parametrize(("game", "cause"), [
    ("interrupt-later", "KeyboardInterrupt"), ("RaisesInNoText", "RuntimeError: level \\udce9 is broken"),
    ("StopsItsHelper", "RuntimeError: the helper is lost")])
def test_what_a_step_raises_costs_episodes_and_no_process(game: str, cause: str, serve: Run) -> None:
    run = serve(game, steps=600)
    assert [event["cause"] for event in events(run, "environment_failed")][:1] == [cause]
    assert run.statistics.environment_faults >= 4
    assert events(run, "agent_died") == []


@pytest.mark.parametrize(("game", "code", "cause", "told"), [
    ("exit-agent", 1, "exception", "SystemExit: enough of this"), ("exec-agent", 0, "exit", "ended with exit code 0")])
def test_a_game_that_ends_every_agent_ends_the_run_with_its_cause(
        game: str, code: int, cause: str, told: str, serve: Run, tmp_path: Path) -> None:
    with pytest.raises(AgentsLost, match=f"all 2 failed again and again and are quarantined; the last one: {told}"):
        serve(game, rollout_length=10)  # longer than failures in a row: no rollout is submitted
    died = events(tmp_path / "run-0", "agent_died")
    assert {(event["exitcode"], event["cause"]) for event in died} == {(code, cause)}
    assert [event["quarantined"] for event in died].count(True) == 2 and len(died) == 10


@pytest.mark.parametrize(("game", "code"), [("leave-later", 0), ("closerange-later", 1)])
def test_an_agent_that_ends_after_some_rollouts_backs_off(game: str, code: int, serve: Run) -> None:
    def stop(run: Recorder) -> None:
        if len(events(run, "agent_died")) >= 4:
            end_run()

    run = serve(game, stop)
    assert {event["exitcode"] for event in events(run, "agent_died")} == {code}
    assert "is restarted in 0.0 s" in (run.directory / "log.txt").read_text(), "from the second time on"


def test_the_timeout_is_of_each_environment_that_is_made(serve: Run) -> None:
    run = serve("SlowToMake", agents=1, agents_max=1, envs_per_agent=3, agent_timeout=6.5, steps=150)
    assert run.statistics.environment_faults and not events(run, "agent_died"), "all of them take 7.5 seconds"


def test_an_agent_whose_environment_fails_when_it_is_closed_is_no_fault(serve: Run) -> None:
    run = serve("FailsToClose", steps=600)
    assert run.statistics.agent_deaths == run.statistics.environment_faults == 0
    assert "RuntimeError: the close" in (run.directory / "log.txt").read_text()


def test_a_process_that_forked_and_comes_back_is_no_agent(serve: Run) -> None:
    forked: list[set[int]] = []

    def stop(run: Recorder) -> None:
        found = set()
        for agent in agent_processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                found |= {child.pid for child in agent.children() if child.status() != psutil.STATUS_ZOMBIE}
        forked.append(found)
        if len(forked) == 80:
            end_run()

    run = serve("fork-later", stop)
    assert len(forked) >= 80 and not set.intersection(*forked[-40:]), "it plays on"
    assert events(run, "agent_died") == [] == events(run, "thread_failed")


# ------------------------------------------------------------------------------------------------ draws and starts

def test_agents_draw_differently_from_the_global_streams(serve: Run, tmp_path: Path) -> None:
    serve("Lots", steps=100, agents=3, agents_max=3, envs_per_agent=2)
    checked, *drawn = (tmp_path / "drawn").read_text().splitlines()
    numpys, pythons = zip(*[line.split() for line in drawn], strict=True)
    assert len(drawn) == len(set(numpys)) == len(set(pythons)) == 6


def test_what_environments_start_ends_with_their_agent_however_that_ends(serve: Run, tmp_path: Path) -> None:
    helpers: list[psutil.Process] = []

    def shoot(run: Recorder) -> None:
        if not helpers:
            helpers.extend(child for agent in agent_processes() for child in agent.children())
            for agent in events(run, "agent_started")[:1]:
                os.kill(agent["pid"], signal.SIGKILL)
        elif len(events(run, "agent_started")) > 2 and events(run, "agent_died"):
            end_run()

    run = serve("StartsEndless", shoot)
    assert helpers and not psutil.wait_procs(helpers, timeout=60)[1]
    assert [event["exitcode"] for event in events(run, "agent_died")] == [-signal.SIGKILL]
    left = [int(pid) for pid in (tmp_path / "started").read_text().split() if psutil.pid_exists(int(pid))]
    assert not psutil.wait_procs([psutil.Process(pid) for pid in left], timeout=60)[1]
