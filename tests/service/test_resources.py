"""What a machine lacks is told with numbers and a remedy before anything begins."""

from __future__ import annotations

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ga3c.service import resources as preflight
from ga3c.service.resources import Finding
from ga3c.settings import machine
from ga3c.settings.files import configured
from ga3c.settings.schedule import OBSERVATION_BYTES


def found(name: str, directory: Path, agents: int = 8, envs: int = 16) -> Finding:
    settings = configured(agents=agents, envs_per_agent=envs)
    finding, = [each for each in preflight.preflight(settings, directory) if each.name == name]
    return finding


def test_this_machine_can_run_a_few_agents_wherever_the_run_will_be(tmp_path: Path) -> None:
    findings = preflight.preflight(configured(agents=2), tmp_path / "runs" / "deep")
    assert [finding.name for finding in findings] == ["descriptors", "processes", "memory", "disk"]
    assert all(finding.ok for finding in findings), findings
    assert str(tmp_path) in findings[3].numbers and "deep" not in findings[3].numbers


def test_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (231, 4096))
    finding = found("descriptors", tmp_path)
    assert not finding.ok and finding.numbers == "232 needed for 8 agents, 231 allowed" and "ulimit" in finding.remedy
    assert found("descriptors", tmp_path, agents=7).ok


def group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **files: str) -> None:
    for name, text in files.items():
        (tmp_path / name.replace("_", ".")).write_text(text + "\n")
    monkeypatch.setattr(machine, "_groups", lambda: [tmp_path])


def test_processes_of_the_container_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group(monkeypatch, tmp_path, pids_max="150", pids_current="43")
    finding = found("processes", tmp_path)
    assert not finding.ok and "108 processes and threads needed for 8 agents, 107 free" == finding.numbers
    group(monkeypatch, tmp_path, pids_max="max", pids_current="43")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert found("processes", tmp_path).numbers.endswith("no limit free")


def test_memory_of_the_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group(monkeypatch, tmp_path, memory_max=str(3 * 2**30), memory_current=str(2 * 2**30))
    finding = found("memory", tmp_path)
    assert not finding.ok and finding.numbers == "1.5 GB needed for 8 agents, 1.0 GB free"
    assert found("memory", tmp_path, agents=2).ok
    many = [each for each in preflight.preflight(configured(start="8/1/1", agents=2), tmp_path) if not each.ok]
    assert [each.numbers for each in many if each.name == "memory"] == [finding.numbers]
    few = found("memory", tmp_path, envs=4)
    assert few.ok and few.numbers == "1.0 GB needed for 8 agents, 1.0 GB free"


@pytest.mark.parametrize(("changes", "gigabytes"), [
    ({}, 0.055), ({"training_batch_min": 65536}, 1.72),
    ({"training_batch_min": 65536, "trainers": 2}, 3.45),
    ({"training_batch_min": 65536, "start": "2/1/2"}, 3.45), ({"schedule": "synchronous"}, 0.055),
    ({"serial": True, "training_batch_min": 65536}, 3.445), ({"training_batch_min": 1}, 0.0),
    ({"algorithm": "a3c-cpu"}, 0.0)])
def test_memory_of_batches_counts(changes: dict[str, Any], gigabytes: float) -> None:
    chosen = configured(**{"algorithm": "appo", "agents": 2, **changes})
    assert preflight._steps_beside_slots(chosen) * OBSERVATION_BYTES / 2**30 == pytest.approx(gigabytes, abs=0.006)


def test_small_observations_need_little(tmp_path: Path) -> None:
    chosen = configured(agents=2, training_batch_min=65536, trainers=4)
    needs = [float(preflight._memory(chosen, each, 0).numbers.split()[0]) for each in (OBSERVATION_BYTES, 16)]
    assert needs[0] > 6.0 and needs[1] < 1.2


def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda path: SimpleNamespace(free=3 * 2**20))
    finding = found("disk", tmp_path)
    assert not finding.ok and finding.numbers == f"500 MB needed in {tmp_path}, 3 MB free"


def test_limits_are_raised_as_far_as_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: taken.append(limits))
    preflight.raise_limits()
    assert taken == [(4096, 4096)]
