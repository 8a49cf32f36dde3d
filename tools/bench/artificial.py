"""Measures the schedules of a replay with a device and environments that only sleep: Daley and Amato, 2021, table 1.

    python tools/bench/artificial.py [--threads 1 2 4 8] [--schedules standard ...] [--seconds 15] [--json FILE]

The paper trained on four cores and a GPU. An environment sleeps 590 us a step, and longer where more play at once than
there are cores. Each step has 354 us of work in the main process. The device does one thing at a time: a prediction
takes 564 us, an update of 32 samples 1,531 us. So the table shows what the schedules and their processes cost, on any
machine with two idle cores. It prints hours for 50 million steps, beside the paper's.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

CORES = 4
PLAY, SERIAL, PREDICT, UPDATE = 590e-6, 354e-6, 564e-6, 1531e-6  # seconds
PAPER = {"standard": {1: 25.08, 2: 19.10, 4: 16.84, 8: 16.92}, "concurrent": {1: 20.64, 2: 14.00, 4: 12.14, 8: 11.68},
         "synchronised": {2: 19.32, 4: 15.74, 8: 14.60}, "both": {2: 14.72, 4: 11.08, 8: 9.02}}
_SECONDS = "ARTIFICIAL_SECONDS"  # variable of the environment: how long a step of `Sleeping` takes


def sleep(seconds: float) -> None:
    """Sleeps as long as asked: the kernel wakes a sleeper about 60 us late, which the end of the wait makes up for."""
    end = time.perf_counter() + seconds
    time.sleep(max(0.0, seconds - 80e-6))
    while time.perf_counter() < end:
        pass


class Sleeping(gymnasium.Env):
    """An environment whose steps take their time. Episodes last for 200 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self) -> None:
        self._seconds = float(os.environ[_SECONDS])
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None
              ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begins an episode."""
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Sleeps."""
        sleep(self._seconds)
        self._steps += 1
        return np.full(4, self._steps / 200, np.float32), 1.0, self._steps == 200, False, {}


gymnasium.register("Sleeping-v0", f"{Path(__file__).stem}:Sleeping")


class SleepingLearner:
    """A learner on a device that does one thing at a time, and computes nothing."""

    def __init__(self, settings: Any) -> None:
        from ga3c.algorithms.acting import epsilon_greedily
        from ga3c.learner.skips import Skips
        from ga3c.transport.fields import Field
        self.version = self.min_valid_version = 0
        self.device = "artificial"
        self.outputs = {"q": Field((4,), np.float32)}
        self.acting = epsilon_greedily(settings, settings.replay.replay_start)
        self.learning_rate_factor, self.ending_early, self.skips, self.minibatch_seconds = 1.0, False, Skips(), 0.0
        self._device = threading.Lock()

    def shared(self, observation: NDArray) -> NDArray:
        """Returns the array itself."""
        return observation

    def predict(self, observation: NDArray) -> tuple[dict[str, NDArray], int]:
        """Works for each of the n observations, then predicts Q-values (n, 4) at once."""
        sleep(SERIAL * len(observation))
        with self._device:
            sleep(PREDICT)
        return {"q": np.zeros((len(observation), 4), np.float32)}, self.version

    def update(self, batch: Any, agent_steps: int, since: int) -> Any:
        """Sleeps as an update of 32 samples does."""
        from ga3c.learner.learner import UpdateStats
        with self._device:
            sleep(UPDATE)
        self.version += 1
        return UpdateStats(self.version, batch.size, {}, rows={"error": np.zeros(batch.size, np.float32)})

    def publish(self) -> None:
        """Has no weights."""

    def keep_target(self) -> None:
        """Has no weights."""

    def act_by_target(self) -> None:
        """Has no weights."""


def seconds_per_step(schedule: str, threads: int, seconds: float) -> float:
    """Makes a run of so many seconds and returns those of an agent step, from the first updates on."""
    from ga3c.envs.check import probe
    from ga3c.runs import reader
    from ga3c.runs.recorder import Recorder
    from ga3c.service.signals import Signals
    from ga3c.service.supervisor import Service
    from ga3c.settings.files import configured
    os.environ[_SECONDS] = str(PLAY * max(1.0, threads / CORES))
    settings = configured(
        preset="fast-dqn", game=f"{Path(__file__).stem}:Sleeping-v0", schedule=schedule, agents=threads,
        envs_per_agent=1, replay_size=100_000, replay_start=1000, target_steps=1000, minutes=seconds / 60,
        tensorboard=False)
    learner = SleepingLearner(settings)
    signals = Signals()
    with tempfile.TemporaryDirectory() as directory:
        recorder = Recorder(settings, probe(settings), Path(directory), {}, signals.wake)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # its live status
                Service(settings, recorder, cast(Any, learner), signals).run()
        finally:
            recorder.close()
            signals.close()
        rows = [row for row in reader.rows(Path(directory)).new() if row["trainings"]]
    return float(rows[-1]["time"] - rows[0]["time"]) / int(rows[-1]["agent_steps"] - rows[0]["agent_steps"])


def main() -> int:
    """Runs the command and returns its exit code."""
    from ga3c.settings.flags import number, output_file
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--threads", nargs="+", type=int, choices=PAPER["standard"], default=[*PAPER["standard"]],
                        metavar="W", help="N_A, of one environment each (1 2 4 8)")
    parser.add_argument("--schedules", nargs="+", choices=PAPER, default=[*PAPER], metavar="NAME", help="(all four)")
    parser.add_argument("--seconds", type=number(float, 5, 3600), default=15.0, metavar="S", help="of each run (15)")
    parser.add_argument("--json", type=output_file(), metavar="FILE", help="gets the measurements")
    options = parser.parse_args()
    measured = []
    print("schedule      W  us/step  hours  paper   ratio")
    for schedule in options.schedules:
        for threads in [threads for threads in options.threads if threads in PAPER[schedule]]:
            step, paper = seconds_per_step(schedule, threads, options.seconds), PAPER[schedule][threads]
            hours = 50e6 * step / 3600
            measured.append({"schedule": schedule, "threads": threads, "seconds_per_step": round(step, 7),
                             "hours": round(hours, 2), "paper": paper})
            print(f"{schedule:12} {threads:2} {1e6 * step:8.0f} {hours:6.2f} {paper:6.2f} {hours / paper:7.2f}",
                  flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
