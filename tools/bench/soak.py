"""Kills agents while a real run trains, then reports whether memory grew or training stood still.

    python tools/bench/soak.py --minutes 60 -- --game Boxing --preset fast
    python tools/bench/soak.py --minutes 1 --every 0.3 --stops 0.3 -- --game Pong --preset fast --agent-timeout 3

The first kills one agent every ten seconds for an hour; the second stops or kills 200 in a minute. Flags after `--` go
to `ga3c-train`. Memory, descriptors and threads are sampled from outside; TPS and deaths come from the run's record.
The report is printed as JSON and kept as soak.json in the run directory. The exit code is 1 if the run did not end
normally, or if a second passed without an update; so take settings that make several a second. SIGINT and SIGTERM end
the run first.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ga3c.runs import reader

_WARM = 5.0  # first seconds of training, in which seconds without an update are not counted


def agents(main: psutil.Process) -> list[psutil.Process]:
    """Returns the agents' processes: children of the fork server, which is a child of the main process."""
    found = []
    with contextlib.suppress(psutil.Error):
        for child in main.children():
            with contextlib.suppress(psutil.Error):
                if "forkserver" in " ".join(child.cmdline()):
                    found += child.children()
    return found


def sample(main: psutil.Process) -> dict[str, float]:
    """Returns descriptors, threads and private memory (MB) of the main process; {} if it has ended."""
    with contextlib.suppress(psutil.Error), main.oneshot():
        memory = main.memory_info()  # shared memory holds the slots
        return {"descriptors": main.num_fds(), "threads": main.num_threads(),
                "memory_mb": (memory.rss - memory.shared) / 2**20}
    return {}


def shoot(main: psutil.Process, chance: random.Random, stops: float) -> bool:
    """Kills an agent, or stops it with probability `stops`. Returns whether there was one."""
    with contextlib.suppress(psutil.NoSuchProcess, IndexError):
        number = signal.SIGSTOP if chance.random() < stops else signal.SIGKILL
        chance.choice(agents(main)).send_signal(number)
        return True
    return False


def slope(hours: list[float], values: list[float]) -> dict[str, float]:
    """Returns first, last, growth per hour and its standard error, without the first fifth of the samples."""
    skip = len(values) // 5
    x, y = np.array(hours[skip:]), np.array(values[skip:])
    if len(x) < 4:
        return {}
    (growth, _), covariance = np.polyfit(x, y, 1, cov=True)
    return {"first": round(float(y[0]), 2), "last": round(float(y[-1]), 2), "per_hour": round(float(growth), 3),
            "error": round(float(np.sqrt(covariance[0, 0])), 3)}


def by_minute(samples: list[tuple[float, dict[str, float]]]) -> list[float]:
    """Returns the memory of the main process in MB, the mean of each minute."""
    minutes: dict[int, list[float]] = {}
    for at, values in samples:
        minutes.setdefault(int(at // 60), []).append(values["memory_mb"])
    return [round(float(np.mean(found)), 1) for found in minutes.values()]


def replacements(events: list[dict[str, Any]]) -> list[float]:
    """Returns the seconds from each agent's death to the next start of an agent, if there is one."""
    died: deque[float] = deque()
    waits = []
    for event in events:
        if event["event"] == "agent_died":
            died.append(event["time"])
        elif event["event"] == "agent_started" and died:
            waits.append(event["time"] - died.popleft())
    return waits


def report(run: Path, samples: list[tuple[float, dict[str, float]]], shots: int, code: int) -> dict[str, Any]:
    """Returns the report: deaths, replacements, seconds without an update, and growth of memory and descriptors."""
    rows, events = reader.rows(run).new(), reader.events(run).new()
    while rows and not rows[-1]["agents"]:  # the run ends
        rows.pop()
    playing = [row for row in rows if row["time"] > _WARM]
    waits = replacements(events)
    hours = [at / 3600 for at, _ in samples]
    return {
        "exit_code": code, "shots": shots, "deaths": Counter(e["cause"] for e in events if e["event"] == "agent_died"),
        "shot_while_draining": sum(e["event"] == "agent_left" and e["exitcode"] < 0 for e in events),
        "other_events": Counter(e["event"] for e in events if not e["event"].startswith("agent")),
        "seconds": len(playing), "seconds_without_update": sum(row["tps"] == 0 for row in playing),
        "longest_row_seconds": round(float(np.diff([row["time"] for row in playing]).max(initial=0.0)), 3),
        "replaced": len(waits), "replaced_after_median": round(float(np.median(waits)), 3) if waits else None,
        "replaced_after_max": round(max(waits), 3) if waits else None,
        "tps": slope([row["time"] / 3600 for row in playing], [row["tps"] for row in playing]),
        "memory_of_all_mb": slope([row["time"] / 3600 for row in playing], [row["memory_mb"] for row in playing]),
        **{name: slope(hours, [values[name] for _, values in samples])
           for name in ("descriptors", "threads", "memory_mb")},
        "memory_mb_by_minute": by_minute(samples)}


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="of training [%(default)s]")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between shots [%(default)s]")
    parser.add_argument("--stops", type=float, default=0.0, help="share of shots that are SIGSTOP [%(default)s]")
    parser.add_argument("--seed", type=int, default=0, help="of the shots [%(default)s]")
    parser.add_argument("train", nargs="*", help="arguments of ga3c-train, after --")
    options = parser.parse_args()
    if any(flag.split("=")[0] == "--run-dir" for flag in options.train):
        parser.error("--run-dir cannot be given after --: this tool sets it")
    run = Path(tempfile.mkdtemp(prefix="soak-")) / "run"
    command = [sys.executable, "-m", "ga3c", "--run-dir", str(run), "--minutes", str(options.minutes), *options.train]
    for number in (signal.SIGINT, signal.SIGTERM):  # even if the shell has made this process ignore them
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    chance, shots, interrupted = random.Random(options.seed), 0, 0
    samples: list[tuple[float, dict[str, float]]] = []
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            watched = psutil.Process(process.pid)
            while process.poll() is None and not (run / "metrics.jsonl").exists():
                time.sleep(0.1)
            began = now = time.monotonic()
            next_shot, next_sample = began + 2.0, began
            while process.poll() is None:
                now = time.monotonic()
                if now >= next_sample and now < began + 60 * options.minutes - 2.0:  # excludes the end of the run
                    next_sample += max(0.5, options.minutes / 60)
                    if taken := sample(watched):
                        samples.append((now - began, taken))
                if now >= next_shot and now < began + 60 * options.minutes - 3.0:
                    next_shot += options.every
                    shots += shoot(watched, chance, options.stops)
                time.sleep(min(0.5, max(0.02, min(next_shot, next_sample) - time.monotonic())))
        except SystemExit as signalled:  # the report is of the time until then
            interrupted = int(str(signalled.code))
        finally:
            if process.poll() is None:  # interrupted
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30.0)
                process.kill()
    if not (run / "metrics.jsonl").exists():
        with contextlib.suppress(OSError):
            run.parent.rmdir()
        if process.returncode == 0:  # otherwise ga3c-train has printed the reason
            print("soak: there is no run; the arguments after -- ask for none", file=sys.stderr)
        return interrupted or process.returncode or 2
    found = report(run, samples, shots, process.returncode)
    text = json.dumps({"command": command[3:], "run": str(run), **found}, indent=1)
    (run / "soak.json").write_text(text + "\n", encoding="utf-8")
    print(text)
    return interrupted or int(found["exit_code"] != 0 or found["seconds_without_update"] > 0)


if __name__ == "__main__":
    sys.exit(main())
