"""What this process may have of its machine: cores, memory, processes. A container says it by control groups.

A container sees its own group as the root, so limits are looked for from our group upwards to that.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import math
import os
from pathlib import Path
from typing import Literal

_ROOT = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores this process may use, at least 1: its affinity, and its container's quota where there is one."""
    cores = float(len(os.sched_getaffinity(0)))
    with contextlib.suppress(OSError, ValueError):
        quota, period = (_ROOT / "cpu.max").read_text(encoding="ascii").split()
        cores = min(cores, int(quota) / int(period))
    return max(1, math.floor(cores))


def processor() -> str | None:
    """What the processor calls itself; None where the system does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return None


def usable_memory() -> int:
    """Bytes that this process and its children may take at the most: all there are, or the least limit around us."""
    limits = [_number(group / "memory.max") for group in _groups()]
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
                *(limit for limit in limits if limit is not None)])


def left_in_container(what: Literal["memory", "pids"]) -> int | None:
    """Bytes of memory, or processes and threads, to be had now within the limits around us; None without any."""
    pairs = [(_number(group / f"{what}.max"), _number(group / f"{what}.current")) for group in _groups()]
    return min((max(0, most - now) for most, now in pairs if most is not None and now is not None), default=None)


def oom_kills() -> int:
    """Processes of our control group, or of the machine where there is none, that the kernel has killed because memory
    ran out; 0 where it does not say.
    """
    for source in (*(group / "memory.events" for group in _groups()[:1]), Path("/proc/vmstat")):
        with contextlib.suppress(OSError):
            for line in source.read_text(encoding="ascii").splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def be_killed_first() -> None:
    """If memory runs out the kernel shall take this process, which can be replaced, not the largest there is."""
    score = Path("/proc/self/oom_score_adj")
    if (_number(score) or 0) < 500:  # in some containers all have 1000
        with contextlib.suppress(OSError):
            score.write_text("500", encoding="ascii")


def before_tensorflow(verbose: bool = False) -> None:
    """To be called before TensorFlow is imported: it says no more than errors, unless `verbose`, and finds a GPU.

    TensorFlow 2.21 does not look for cuSOLVER where pip puts it, and then leaves the GPU alone; what is loaded already
    it need not look for.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if verbose else "3")
    for library in cuda_libraries("libcusolver.so.*"):
        with contextlib.suppress(OSError):  # TensorFlow then does without a GPU; ga3c-doctor says why
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def cuda_libraries(name: str) -> list[Path]:
    """The libraries of CUDA called so, as "libcudnn.so.*", that pip has installed; none without the extra `gpu`."""
    found = importlib.util.find_spec("nvidia")
    places = found.submodule_search_locations if found is not None else None
    return sorted(library for place in places or () for library in Path(place).glob(f"*/lib/{name}"))


def _groups() -> list[Path]:
    """The directories of this process's control group and of those around it, innermost first; none elsewhere."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            if line.startswith("0::"):
                inner = _ROOT / line.removeprefix("0::").lstrip("/")
                return [group for group in (inner, *inner.parents) if group.is_relative_to(_ROOT)]
    return []


def _number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
        return int(path.read_text(encoding="ascii"))
    return None
