"""Measures how many agent steps per second the transport carries: real processes, queues and threads, no computing.

    python tools/bench/transport.py [--agents 4] [--envs 16] [--rollout-length 20] [--batch 320]
                                    [--seconds 10] [--runs 3] [--json FILE]

The environments return the same frames (84x84x4 bytes) in every step and the model answers with constants. So all time
goes to the agents' loop, tickets, wake-ups, gathering of prediction and training batches, answers and statistics. There
is no queue delay: predictors take what is there. The tool prints agent steps per second and the processor time of one
step, in microseconds, for agents and server; of the server's, how long its threads copy observations and rollouts (wall
clock).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import psutil
from numpy.typing import NDArray

from ga3c.agents.loop import play
from ga3c.agents.forkserver import forkserver_running
from ga3c.agents.process import drive
from ga3c.algorithms.acting import BY_POLICY
from ga3c.envs.base import EnvSpec, Transition
from ga3c.settings.flags import number, output_file
from ga3c.settings.machine import usable_cores
from ga3c.settings.schema import EnvSettings
from ga3c.transport.channel import Channel
from ga3c.transport.fields import Outputs
from ga3c.transport.port import Port, ServerGone
from ga3c.transport.slots import Batch, Slots

SPEC = EnvSpec("null", (84, 84, 4), np.dtype(np.uint8), 6, 1)


class NullEnvironment:
    """E environments that always return the same frames and no reward."""

    spec = SPEC

    def __init__(self, n_envs: int) -> None:
        self.observation = np.zeros((n_envs, *SPEC.observation_shape), SPEC.observation_dtype)
        never = np.zeros(n_envs, np.bool_)
        self._transition = Transition(np.zeros(n_envs, np.float32), never, never, never, None)

    def reset(self, seed: int) -> None:
        """Does nothing."""

    def step(self, action: NDArray[np.int64]) -> Transition:
        """Returns the same transition for any `action`."""
        return self._transition

    def restart(self, number: int) -> None:
        """Does nothing."""

    def show(self, into: NDArray) -> None:
        """Copies as many bytes as real frames have."""
        into[:] = self.observation

    def state(self) -> None:
        """Saves nothing."""

    def restore(self, state: dict[str, NDArray]) -> None:
        """Restores nothing."""

    def close(self) -> None:
        """Holds nothing."""


class NullLearner:
    """A model that answers at once with constants. Only one trainer may update its version."""

    def __init__(self) -> None:
        self.version = self.min_valid_version = 0

    def shared(self, observation: NDArray) -> NDArray:
        """Returns the array itself, as on a processor."""
        return observation

    def predict(self, observation: NDArray) -> tuple[Outputs, int]:
        """Returns a uniform policy (n, A) and values 0 (n,), float32, and the version."""
        n = len(observation)
        policy = np.full((n, SPEC.n_actions), 1 / SPEC.n_actions, np.float32)
        return {"policy": policy, "value": np.zeros(n, np.float32)}, self.version

    def publish(self) -> None:
        """Publishes nothing."""

    def update(self, batch: Batch, agent_steps: int, since: int) -> Any:
        """Counts the update."""
        from ga3c.learner.learner import UpdateStats
        self.version += 1
        return UpdateStats(self.version, batch.agent_steps, {})


def null_agent(port: Port, store: Slots) -> None:
    """Runs an agent. Entry point of its process."""
    try:
        drive(play(NullEnvironment(store.n_envs), store, np.random.default_rng(port.agent), BY_POLICY), port, store)
    except ServerGone:
        os._exit(0)


def measure(agents: int, envs: int, rollout_length: int, batch: int, seconds: float) -> dict[str, float]:
    """Makes one run and returns its measurements, without its first two seconds."""
    from ga3c.learner.learner import Learner, UpdateStats
    from ga3c.runs.statistics import Statistics, TrainerTime
    from ga3c.service.batches import RolloutQueue
    from ga3c.service.predictor import run_predictor
    from ga3c.service.trainer import UpdateSize, run_trainer
    store = Slots(SPEC, rollout_length, envs, 2 * agents, agents)
    channel, learner, statistics = Channel(store, 2), NullLearner(), Statistics(1)
    source = RolloutQueue(channel, store, -(-batch // (rollout_length * envs)), cast(Learner, learner), statistics)
    threads, count, gathered = ThreadPoolExecutor(2), statistics.new_count(), 0.0

    def report(update: UpdateStats, trained: Batch, spent: TrainerTime) -> None:
        nonlocal gathered
        gathered += spent.gathering
        statistics.report(update, trained, spent)

    work = [threads.submit(run_predictor, channel, store, cast(Learner, learner), 1024, count),
            threads.submit(run_trainer, source, cast(Learner, learner), statistics, report, UpdateSize())]
    context = multiprocessing.get_context("forkserver")
    processes = []
    with forkserver_running(EnvSettings(game="toy:catch"), 1):
        for agent in range(agents):
            port = channel.open(agent)
            processes.append(context.Process(target=null_agent, args=(port, store), daemon=True))
            processes[-1].start()
            port.close()
    players = [psutil.Process(process.pid) for process in processes]
    try:
        time.sleep(2.0)
        server, copying = time.process_time(), gathered + count.gathering
        playing = sum(sum(player.cpu_times()[:2]) for player in players)
        steps, began = statistics.agent_steps, time.monotonic()
        while time.monotonic() < began + seconds:
            time.sleep(1.0)
            statistics.drain()
        steps, elapsed = statistics.agent_steps - steps, time.monotonic() - began
        if not steps:
            raise SystemExit(f"transport: no update in {seconds:g} seconds; give a smaller --batch, or more --seconds")
        return {"steps_per_second": steps / elapsed, "server_us": 1e6 * (time.process_time() - server) / steps,
                "gather_us": 1e6 * (gathered + count.gathering - copying) / steps,
                "agents_us": 1e6 * (sum(sum(player.cpu_times()[:2]) for player in players) - playing) / steps}
    finally:
        for agent in range(agents):
            channel.hang_up(agent)  # ends the agent even if it waits for a failed thread
        for process in processes:
            process.join()
        channel.dismiss_trainer()
        channel.dismiss_predictor()
        threads.shutdown()
        channel.close()
        for each in work:
            each.result()  # raises the exception of the thread


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--agents", type=number(int, 1, 10_000), default=2 * usable_cores(), help="[2 per core]")
    parser.add_argument("--envs", type=number(int, 1, 10_000), default=16, help="environments per agent [16]")
    parser.add_argument("--rollout-length", type=number(int, 1, 100_000), default=20, help="[20]")
    parser.add_argument("--batch", type=number(int, 1, 10**9), default=320, help="least agent steps per update [320]")
    parser.add_argument("--seconds", type=number(float, 0.1, 1e6), default=10.0, help="length of a run [10]")
    parser.add_argument("--runs", type=number(int, 1, 1000), default=3, help="the median counts [3]")
    parser.add_argument("--json", type=output_file(), metavar="FILE", help="keep what was measured")
    options = parser.parse_args()
    runs = [measure(options.agents, options.envs, options.rollout_length, options.batch, options.seconds)
            for _ in range(options.runs)]
    middle = sorted(runs, key=lambda run: run["steps_per_second"])[len(runs) // 2]
    print(f"{options.agents} agents x {options.envs} environments, {usable_cores()} cores: "
          f"{middle['steps_per_second']:,.0f} agent steps/s (median of {len(runs)}, "
          f"{min(run['steps_per_second'] for run in runs):,.0f} to "
          f"{max(run['steps_per_second'] for run in runs):,.0f}); "
          f"server {middle['server_us']:.1f} us, of which gathering {middle['gather_us']:.1f}, agents "
          f"{middle['agents_us']:.1f} us per step")
    if options.json:
        from ga3c.runs.directory import versions
        found = {**versions(), "runs": runs}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
