"""A3C on processors, in processes: what becomes of the run when a worker or its model fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faulty
import numpy as np
import pytest
from counting import agent_processes, end_run
from workers import T, settings

from ga3c.agents.process import MODEL_FAILED
from ga3c.learner.learner import UpdateStats
from ga3c.learner.shared_learner import SharedLearner
from ga3c.runs.recorder import Recorder
from ga3c.runs.statistics import TrainerTime
from ga3c.service.training import WorkersTraining
from ga3c.service.signals import Signals
from ga3c.service.supervisor import Service
from ga3c.transport.slots import Batch

MakeRun = Callable[..., Recorder]


def test_a_worker_whose_model_fails_is_not_said_to_have_a_failing_environment(
        make_run: MakeRun, interruption: Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faulty.importable(tmp_path, monkeypatch, "here_only",
                      "import multiprocessing\nfrom ga3c.algorithms.base import Head\n"
                      "from ga3c.algorithms.networks import build_network\n"
                      "def network(settings, spec):\n"
                      "    if multiprocessing.current_process().name.startswith('agent'):\n"
                      "        raise RuntimeError('no room for it here')\n"
                      "    heads = {'policy': Head(spec.n_actions, 'softmax'), 'value': Head(1)}\n"
                      "    return build_network(settings.changed(network='auto'), spec, heads)\n")
    chosen = settings(steps=None, minutes=4, agents=1, network="here_only:network")
    run = make_run(chosen)
    died = run.event

    def noted(kind: str, **facts: Any) -> None:
        died(kind, **facts)
        if kind == "agent_died":
            end_run()

    monkeypatch.setattr(run, "event", noted)
    Service(chosen, run, SharedLearner(chosen, run.spec), interruption).run()
    events = [json.loads(line) for line in (run.directory / "events.jsonl").read_text().splitlines()]
    end, = [event for event in events if event["event"] == "agent_died"]
    assert (end["cause"], end["exitcode"]) == ("model", MODEL_FAILED) and run.statistics.environment_faults == 0
    log = (run.directory / "log.txt").read_text()
    assert "Agent 0 ended because its model failed (traceback in log.txt). It had run for" in log
    assert "RuntimeError: no room for it here" in log


def test_a_killed_worker_is_replaced_and_its_row_of_counts_goes_on(make_run: MakeRun, interruption: Signals) -> None:
    chosen = settings(steps=None, minutes=10)
    run = make_run(chosen)
    model, updates = SharedLearner(chosen, run.spec), list[UpdateStats]()
    service = Service(chosen, run, model, interruption)
    assert isinstance(service._training, WorkersTraining)
    report, mixed, killed, held = service._training._report, set[int](), list[int](), dict[str, bool]()

    def rows() -> list[int]:
        return [model.shared.updates_of(worker) for worker in range(2)]

    def noted(update: UpdateStats, batch: Batch, spent: TrainerTime) -> None:
        updates.append(update)
        mixed.add(int(np.ptp(batch.version[0, :int(batch.steps[0])])))
        report(update, batch, spent)
        if not killed and min(rows()) > 5:
            first = agent_processes()[0]
            for who, process in (("worker", first), ("fork server", first.parent())):
                held[who] = any("tensorflow" in each.path for each in process.memory_maps())
            killed.extend(rows())
            first.kill()
        elif killed and all(now > before + 20 for now, before in zip(rows(), killed, strict=True)):
            end_run()

    service._training._report = noted
    assert service.run() == "SIGTERM"
    run.statistics.drain()
    assert held == {"worker": True, "fork server": False} and mixed == {0}
    events = [json.loads(line) for line in (run.directory / "events.jsonl").read_text().splitlines()]
    started = [(event["agent"], event["generation"]) for event in events if event["event"] == "agent_started"]
    assert len(started) == 3 and {(0, 1), (1, 1)} < {*started}
    assert run.statistics.agent_deaths == 1
    assert sum(rows()) == model.version == run.statistics.trainings
    # What a killed worker has pushed and not told yet is in the weights, not in the record: one rollout at most.
    assert len(updates) <= model.version <= len(updates) + 1
    assert run.statistics.predictions >= T * len(updates)
    assert run.checkpoints.save(model).name == f"{run.statistics.agent_steps:012d}"
