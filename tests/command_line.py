"""`ga3c-train` and `ga3c-eval` as a user starts them: real processes, whose runs are below the working directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

TRAIN = [sys.executable, "-m", "ga3c"]
QUICK = ["--game", "toy:catch", "--agents", "2", "--no-tensorboard", "--preset", "fast"]  # many small updates
RUN = Path("run")

Command = Callable[..., subprocess.CompletedProcess[str]]

IMPORTED = ("import sys, time\nfrom ga3c.commands import train as cli\nfrom ga3c.runs import recorder\n"
            "from ga3c.learner import checkpoint, learner\n")

STOP_SECONDS = 50.0  # a run stops within ten seconds; here on a machine five times slower


def train(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TRAIN, *arguments], capture_output=True, text=True, timeout=200, check=False)


def evaluate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", "from ga3c.commands.launch import evaluate; evaluate()", *arguments],
                          capture_output=True, text=True, timeout=200, check=False)


def written(file: Path) -> list[dict]:
    """The whole lines of a file that may be growing."""
    return [json.loads(line) for line in file.read_text().rpartition("\n")[0].splitlines()]


def rows(run: Path) -> list[dict]:
    return written(run / "metrics.jsonl")


def events(run: Path) -> list[dict]:
    return written(run / "events.jsonl")


def recorded(kind: str) -> list[dict]:
    """The events of that kind in `run`."""
    return [event for event in events(RUN) if event["event"] == kind] if (RUN / "events.jsonl").exists() else []


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").iterdir())


def flip(path: Path) -> None:
    """Changes a bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def learning() -> bool:
    """Whether `run` has made an update."""
    return (RUN / "metrics.jsonl").exists() and any(row["trainings"] > 0 for row in rows(RUN))


def told(err: str) -> str:
    """Standard error without what TensorFlow says where it is imported before it can be kept quiet.

    Nor is the emulator's line told, which a first start on a machine prints.
    """
    return "".join(line for line in err.splitlines(keepends=True) if "oneDNN" not in line and "cudart" not in line
                   and "absl::InitializeLog" not in line and "cpu_feature_guard" not in line and "rebuild" not in line
                   and "Compiling the emulator" not in line)


class Started:
    """`ga3c-train` in a session of its own, as a shell starts it: signals reach the whole group.

    `changed`: lines of Python that change the service before it starts; they find the modules of IMPORTED.
    """

    def __init__(self, *arguments: str, changed: str = "") -> None:
        program = TRAIN if not changed else [
            sys.executable, "-c", f"{IMPORTED}{changed}\nsys.exit(cli.train(sys.argv[1:]))"]
        self.process = subprocess.Popen([*program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, start_new_session=True)

    def group(self) -> list[psutil.Process]:
        members = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    members.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return members

    def wait_for(self, condition: Callable[[], bool], seconds: float = 200) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None or time.monotonic() >= deadline:
                self.process.kill()
                raise AssertionError(self.process.communicate())
            time.sleep(0.02)

    def end(self) -> tuple[str, str]:
        """Waits for the end; returns standard output and standard error."""
        self.process.wait(STOP_SECONDS)
        return self.process.communicate(timeout=60)  # the fork server, which has them too, may end later
