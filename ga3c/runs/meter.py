"""How much processor time and memory the processes of a run take."""

from __future__ import annotations

import contextlib
import os
import time

import psutil

from ga3c.settings.machine import usable_cores


class Meter:
    """Measures private memory now, and cores used since the last measurement. Used by the main thread."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        self._seconds: dict[int, float] = {}
        self._at, self._machine = time.monotonic(), self._busy()
        self._whole = usable_cores() == os.cpu_count()
        self.used([], None)

    @staticmethod
    def _busy() -> float:
        times = psutil.cpu_times()
        return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
                     - getattr(times, "guest_nice", 0.0))

    def used(self, agents: list[int], evaluator: int | None) -> dict[str, float]:
        """Measures this process, its agents and its evaluator, the last two given by their process numbers.

        Returns:
            `memory_mb` of all of them in MiB; `cpu_agents`, `cpu_server` (this process), `cpu_evaluator` and
            `cpu_machine` in core-seconds per second. Where only a part of the machine may be used, `cpu_machine` is
            the sum of the other three. A process counts from its second measurement on.
        """
        now, machine, server = time.monotonic(), self._busy(), os.getpid()
        processes, seconds, memory = {}, {}, 0.0
        for pid in (server, *agents, *([evaluator] if evaluator else [])):
            with contextlib.suppress(psutil.Error):  # it has ended
                processes[pid] = process = self._processes.get(pid) or psutil.Process(pid)
                times, taken = process.cpu_times(), process.memory_info()
                seconds[pid] = times.user + times.system
                memory += taken.rss - getattr(taken, "shared", 0)
        elapsed = max(now - self._at, 1e-3)
        spent = {pid: max(0.0, total - self._seconds.get(pid, total)) / elapsed for pid, total in seconds.items()}
        measured = {"memory_mb": memory / 2**20, "cpu_agents": sum(spent.get(pid, 0.0) for pid in agents),
                    "cpu_server": spent.get(server, 0.0), "cpu_evaluator": spent.get(evaluator or 0, 0.0),
                    "cpu_machine": (machine - self._machine) / elapsed if self._whole else sum(spent.values())}
        self._at, self._machine, self._processes, self._seconds = now, machine, processes, seconds
        return {name: round(value, 3) for name, value in measured.items()}
