"""The cores, memory and processes that this process may use on its machine.

Containers and services set limits by control groups, of version 1 or 2. Each limit is read from this process's group
and all its parent groups, because the smallest one counts. A container sees its own group as the root.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Literal

LONGEST_WAIT = 2e6  # seconds, 23 days; poll() accepts little more

_ROOT = Path("/sys/fs/cgroup")
_OUR_GROUPS = Path("/proc/self/cgroup")
_NO_LIMIT = 2**62  # bytes; version 1 writes the largest number it knows


def usable_cores() -> int:
    """Returns the cores this process may use, at least 1: the least of its affinity and its control groups' quotas."""
    return max(1, math.floor(min([len(os.sched_getaffinity(0)), *_quotas()])))


def _quotas() -> list[float]:
    """Returns the quota of each control group that has one, in cores."""
    quotas = []
    for group in _groups():
        with contextlib.suppress(OSError, ValueError):  # "max 100000" where there is no limit
            quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
            quotas.append(int(quota) / int(period))
        version1 = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if version1[0] and version1[1] and version1[0] > 0:  # -1 or 0 where there is no limit
            quotas.append(version1[0] / version1[1])
    return quotas


def processor() -> str | None:
    """Returns the model name of the processor; None if the system does not give it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return None


def processor_flags() -> frozenset[str]:
    """Returns the words of /proc/cpuinfo, which include the processor's instruction sets, such as "avx2"; else none."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return frozenset()


def usable_memory() -> int:
    """Returns the most bytes this process and its children may use: the machine's, or the smallest group limit."""
    limits = [_limit(group, "memory") for group in _groups()]
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
                *(limit for limit in limits if limit is not None)])


def left_in_container(what: Literal["memory", "pids"]) -> int | None:
    """Returns the bytes, or the processes and threads, that the group limits still allow; None without a limit."""
    pairs = [(_limit(group, what), _used(group, what)) for group in _groups()]
    return min((max(0, most - now) for most, now in pairs if most is not None and now is not None), default=None)


def _limit(group: Path, what: str) -> int | None:
    limit = _first(_number(group / f"{what}.max"), _number(group / f"{what}.limit_in_bytes"))
    return limit if limit is not None and limit < _NO_LIMIT else None


def _used(group: Path, what: str) -> int | None:
    """Returns the use of the group. Memory excludes inactive cached files, which the kernel frees first."""
    used = _first(_number(group / f"{what}.current"), _number(group / f"{what}.usage_in_bytes"))
    if used is None or what != "memory":
        return used
    counts = _counts(group / "memory.stat")
    return used - counts.get("total_inactive_file", counts.get("inactive_file", 0))


def oom_kills() -> int:
    """Counts the processes that the kernel killed for lack of memory, in our control group or else on the machine.

    0 if the system does not give it.
    """
    sources = [group / name for group in _groups() for name in ("memory.events", "memory.oom_control")]
    return next((counts["oom_kill"] for source in (*sources, Path("/proc/vmstat"))
                 if "oom_kill" in (counts := _counts(source))), 0)


def be_killed_first() -> None:
    """Asks the kernel to kill this replaceable process first if memory runs out, not the largest process."""
    score = Path("/proc/self/oom_score_adj")
    if (_number(score) or 0) < 500:  # in some containers all have 1000
        with contextlib.suppress(OSError):
            score.write_text("500", encoding="ascii")


def _groups() -> list[Path]:
    """Returns the directories of this process's control groups: in each hierarchy its own, then the parents."""
    found: list[Path] = []
    with contextlib.suppress(OSError, ValueError):
        for line in _OUR_GROUPS.read_text(encoding="utf-8").splitlines():
            _, controllers, inner = line.split(":", 2)
            # Version 2 has one hierarchy and names none; version 1 has one for each controller, or for several.
            for root in dict.fromkeys(_ROOT / name for name in (controllers, *controllers.split(","))):
                group = root / inner.lstrip("/")
                found += [each for each in (group, *group.parents) if each.is_relative_to(root)]
    return found


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
        return int(path.read_text(encoding="ascii"))
    return None


def _first(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)


def _counts(path: Path) -> dict[str, int]:
    """Reads the lines "name number" of a kernel file; {} if the file is missing."""
    with contextlib.suppress(OSError, ValueError):
        lines = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
        return {line[0]: int(line[1]) for line in lines if len(line) == 2}
    return {}
