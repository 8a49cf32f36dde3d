"""The meter of a run: measures the processor time and the memory of its processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection

import psutil

from ga3c.settings.machine import usable_cores

_TICKS = os.sysconf("SC_CLK_TCK")  # of processor time in a second


class Meter:
    """A meter of private memory and of the cores used since its last measurement. Used by the main thread.

    user_code: the game may start processes; their processor time counts with their agent or the evaluator.
    """

    def __init__(self, user_code: bool = False) -> None:
        self._user_code = user_code
        self._processes: dict[int, psutil.Process] = {}
        self._seconds: dict[int, float] = {}
        self._at = time.monotonic()
        self._machine = self._busy()
        self._whole = usable_cores() == os.cpu_count()
        self.used([], None)

    @staticmethod
    def _busy() -> float:
        times = psutil.cpu_times()
        return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
                     - getattr(times, "guest_nice", 0.0))

    def used(self, agents: list[int], evaluator: int | None) -> dict[str, float]:
        """Measures this process, its agents and its evaluator. Agents and evaluator are given by process number.

        Returns:
            `memory_mb` of all of them in MiB; `cpu_agents`, `cpu_server` (this process), `cpu_evaluator` and
            `cpu_machine` in core-seconds per second. If the run may use only a part of the machine, `cpu_machine` is
            the sum of the other three. The processor time of a process counts from its second measurement on.
        """
        now, machine, server = time.monotonic(), self._busy(), os.getpid()
        processes, seconds, memory = {}, {}, 0.0
        for pid in (server, *agents, *([evaluator] if evaluator else [])):
            with contextlib.suppress(psutil.Error):  # it has ended
                processes[pid] = process = self._processes.get(pid) or psutil.Process(pid)
                times, taken = process.cpu_times(), process.memory_info()
                seconds[pid] = times.user + times.system
                memory += taken.rss - getattr(taken, "shared", 0)
        roots = {*agents, *([evaluator] if evaluator else [])}
        family = _descendants(roots) if self._user_code and roots else {}
        seconds |= {pid: total for pid, (_, total) in family.items()}
        elapsed = max(now - self._at, 1e-3)
        spent = {pid: max(0.0, total - self._seconds.get(pid, total)) / elapsed for pid, total in seconds.items()}
        by_root = {pid: spent.get(pid, 0.0) for pid in roots}
        for pid, (root, _) in family.items():
            by_root[root] += spent[pid]
        evaluating = by_root.pop(evaluator, 0.0) if evaluator else 0.0
        measured = {"memory_mb": memory / 2**20, "cpu_agents": sum(by_root.values()),
                    "cpu_server": spent.get(server, 0.0), "cpu_evaluator": evaluating,
                    "cpu_machine": (machine - self._machine) / elapsed if self._whole else sum(spent.values())}
        self._at = now
        self._machine = machine
        self._processes = processes
        self._seconds = seconds
        return {name: round(value, 3) for name, value in measured.items()}


def _descendants(roots: Collection[int]) -> dict[int, tuple[int, float]]:
    """Finds the descendants of the processes in `roots`. Some may have left their process group or lost their parent.

    Returns (the root that it belongs to, its processor seconds) by process number.
    """
    table = dict[int, tuple[int, int, float]]()  # parent, process group, seconds
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                fields = _read(f"/proc/{entry}/stat").rpartition(b")")[2].split(None, 14)
                table[int(entry)] = int(fields[1]), int(fields[2]), (int(fields[11]) + int(fields[12])) / _TICKS
    descendants = dict[int, tuple[int, float]]()
    for pid in table.keys() - roots:
        above = pid
        while above in table and above not in roots:
            parent, group, _ = table[above]
            above = group if group in roots else parent
        if above in roots:
            descendants[pid] = above, table[pid][2]
    return descendants


def _read(path: str) -> bytes:
    """Reads a file of the kernel, in a third of the time that `open` takes. There may be thousands of them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
