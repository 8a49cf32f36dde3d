"""What the machine and the control groups around us allow."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ga3c.settings import machine
from ga3c.settings.schema import Settings

Files = dict[str, str]
Limit = Callable[..., None]


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Gives this process an affinity of 8 cores, control groups as in /proc/self/cgroup, and files below their root."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(machine, "_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_OUR_GROUPS", tmp_path / "ours")

    def limit(ours: str, files: Files) -> None:
        (tmp_path / "ours").write_text(ours)
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")

    return limit


# ------------------------------------------------------------------------------------------------ cores

@pytest.mark.parametrize(("ours", "files", "cores"), [
    ("0::/\n", {}, 8),
    ("0::/\n", {"cpu.max": "250000 100000"}, 2),
    ("0::/\n", {"cpu.max": "50000 100000"}, 1),
    # The group around ours has the limit, as with systemd's slices and Kubernetes' pods.
    ("0::/pod/us\n", {"pod/cpu.max": "300000 100000", "pod/us/cpu.max": "max 100000"}, 3),
    ("0::/pod/us\n", {"pod/cpu.max": "max 100000", "pod/us/cpu.max": "400000 100000"}, 4),
    ("0::/pod/us\n", {"pod/cpu.max": "300000 100000", "pod/us/cpu.max": "400000 100000"}, 3),
    # Version 1, with a hierarchy for one controller or for two.
    ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
    ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ("3:cpu,cpuacct:/us\n0::/\n", {"cpu,cpuacct/us/cpu.cfs_quota_us": "300000",
                                   "cpu,cpuacct/us/cpu.cfs_period_us": "50000"}, 6),
    ("3:cpuacct,cpu:/us\n", {"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "50000",
                             "cpu/us/cpu.cfs_quota_us": "-1", "cpu/us/cpu.cfs_period_us": "50000"}, 3),
    # In a container without a name space of groups the path is the host's; its own group is the root.
    ("3:cpu:/docker/4711\n", {"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4),
    ("nonsense\n", {"cpu.max": "100000 100000"}, 8),
])
def test_cores_are_those_that_all_groups_around_us_allow(limit: Limit, ours: str, files: Files, cores: int) -> None:
    limit(ours, files)
    assert machine.usable_cores() == cores and Settings().schedule.agents == 2 * cores


def test_cores_are_those_of_our_affinity(limit: Limit, monkeypatch: pytest.MonkeyPatch) -> None:
    limit("0::/\n", {"cpu.max": "800000 100000"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    assert machine.usable_cores() == 2


# ------------------------------------------------------------------------------------------------ memory, processes

WHOLE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
UNLIMITED = "9223372036854771712"


@pytest.mark.parametrize(("ours", "files", "usable", "left"), [
    ("0::/outer/inner\n", {"outer/inner/memory.max": "max"}, WHOLE, None),
    ("0::/outer/inner\n", {"outer/inner/memory.max": "max", "outer/memory.max": "5000000",
                           "outer/memory.current": "5100000"}, 5_000_000, 0),
    ("0::/us\n", {"us/memory.max": "5000000", "us/memory.current": "3000000",
                  "us/memory.stat": "anon 9\ninactive_file 1500000"}, 5_000_000, 3_500_000),
    ("4:memory:/us\n", {"memory/us/memory.limit_in_bytes": UNLIMITED, "memory/us/memory.usage_in_bytes": "7"},
     WHOLE, None),
    ("4:memory:/us\n", {"memory/us/memory.limit_in_bytes": UNLIMITED, "memory/us/memory.usage_in_bytes": "7",
                        "memory/memory.limit_in_bytes": "6000000", "memory/memory.usage_in_bytes": "2000000",
                        "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 500000"}, 6_000_000, 4_500_000),
])
def test_memory_is_that_of_the_least_limit_around_us(
        limit: Limit, ours: str, files: Files, usable: int, left: int | None) -> None:
    limit(ours, files)
    assert machine.usable_memory() == usable and machine.left_in_container("memory") == left


@pytest.mark.parametrize(("ours", "where"), [("0::/us\n", "us"), ("8:pids:/us\n", "pids/us")])
def test_processes_are_those_that_the_group_still_allows(limit: Limit, ours: str, where: str) -> None:
    limit(ours, {f"{where}/pids.max": "70", f"{where}/pids.current": "30"})
    assert machine.left_in_container("pids") == 40 and machine.left_in_container("memory") is None


def test_kills_for_want_of_memory_are_those_of_our_own_group(limit: Limit) -> None:
    limit("0::/\n", {})
    assert machine.oom_kills() >= 0  # the machine's
    limit("0::/a/b\n", {"a/memory.events": "oom 9\noom_kill 9",
                        "a/b/memory.events": "low 0\noom 5\noom_kill 3\noom_group_kill 1"})
    assert machine.oom_kills() == 3
    limit("4:memory:/us\n", {"memory/memory.oom_control": "under_oom 0\noom_kill 8",
                             "memory/us/memory.oom_control": "under_oom 0\noom_kill 2"})
    assert machine.oom_kills() == 2


# ------------------------------------------------------------------------------------------------ the processor, CUDA

def test_the_processor_is_named_where_the_system_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine, "Path", lambda _: file)
    assert machine.processor() is None
    file.write_text("processor\t: 0\nmodel\t\t: 17\n")
    assert machine.processor() is None
    file.write_text("processor\t: 0\nmodel\t\t: 17\nmodel name\t: A: 9 of 10\nmodel name\t: B\n")
    assert machine.processor() == "A: 9 of 10"
