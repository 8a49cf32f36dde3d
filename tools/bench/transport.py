"""How many agent steps a second the transport could carry: real processes, queues and threads, nothing to compute.

    python tools/bench/transport.py [--agents 4] [--envs 16] [--agents-per-process 1] [--rollout-length 20] [--batch 320]
                              [--seconds 10] [--runs 3] [--json FILE]

The environments show the same picture (84x84x4 bytes) in every step and the model answers with constants, so all the
time goes to the agents' loop, tickets, wake-ups, gathering of predictions and training batches, answers and statistics.
With few environments an agent the service's predictions wait for company; here they take what is there.
Prints agent steps/s and what a step costs the agents and the server, in microseconds of processor time, and how many of
them the server's threads copy observations and rollouts (on the wall clock).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import psutil
from numpy.typing import NDArray

from ga3c.agents.process import forkserver_running, play, pump
from ga3c.envs.factory import EnvSpec, Transition
from ga3c.settings.flags import output_file
from ga3c.settings.machine import usable_cores
from ga3c.transport.channel import Channel, Port, ServerGone
from ga3c.transport.seating import PER_CORE, Seating
from ga3c.transport.slots import Slots, Batch

if TYPE_CHECKING:
    from ga3c.learner.learner import Outputs

SPEC = EnvSpec("null", (84, 84, 4), np.dtype(np.uint8), 6, 1)


class NullEnvironment:
    """E environments in which nothing ever happens."""

    spec = SPEC

    def __init__(self, n_envs: int) -> None:
        self.observation = np.zeros((n_envs, *SPEC.observation_shape), SPEC.observation_dtype)
        never = np.zeros(n_envs, np.bool_)
        self._transition = Transition(np.zeros(n_envs, np.float32), never, never, never, None)

    def reset(self, seed: int) -> None:
        """There is no episode to begin."""

    def step(self, action: NDArray[np.int64]) -> Transition:
        """The same transition for any `action`."""
        return self._transition

    def show(self, into: NDArray) -> None:
        """Writes as many bytes as pictures would be."""
        into[:] = self.observation

    def close(self) -> None:
        """Holds nothing."""


class NullModel:
    """Answers at once; written by one trainer, read by anyone."""

    def __init__(self) -> None:
        self.version = self.min_valid_version = self.agent_steps = 0

    def shared(self, observation: NDArray) -> NDArray:
        """The array itself: a GPU's model would have to copy it, too."""
        return observation

    def predict(self, observation: NDArray) -> tuple[Outputs, int]:
        """Uniform policy (n, A) and value 0 (n,)."""
        n = len(observation)
        policy = np.full((n, SPEC.n_actions), 1 / SPEC.n_actions, np.float32)
        return {"policy": policy, "value": np.zeros(n, np.float32)}, self.version

    def update(self, batch: Batch) -> Any:
        """Counts the steps of `batch`."""
        from ga3c.learner.learner import UpdateStats
        self.version += 1
        self.agent_steps += batch.agent_steps
        return UpdateStats(self.version, self.agent_steps, batch.agent_steps, {})


def null_agents(port: Port, store: Slots) -> None:
    """Entry point of a process of agents."""
    try:
        pump({agent: play(NullEnvironment(store.n_envs), store, np.random.default_rng(agent)) for agent in port.agents},
             port, store)
    except ServerGone:
        os._exit(0)


def measure(seating: Seating, envs: int, rollout_length: int, batch: int, seconds: float) -> dict[str, float]:
    """One run; its first two seconds are not counted."""
    from ga3c.learner.learner import Learner, UpdateStats
    from ga3c.runs.statistics import Spent, Statistics
    from ga3c.service.predictor import run_predictor
    from ga3c.service.trainer import run_trainer
    store = Slots(SPEC, rollout_length, envs, 2 * seating.capacity)
    n_rollouts = -(-batch // (rollout_length * envs))
    channel = Channel(store, seating, 2, rollouts_per_update=n_rollouts)
    model, statistics = NullModel(), Statistics(1)
    threads, count, gathered = ThreadPoolExecutor(2), statistics.new_count(), 0.0

    def report(update: UpdateStats, trained: Batch, spent: Spent) -> None:
        nonlocal gathered
        gathered += spent.gathering
        statistics.report(update, trained, spent)

    work = [threads.submit(run_predictor, channel, store, cast(Learner, model), 1024, count),
            threads.submit(run_trainer, channel, store, cast(Learner, model), n_rollouts, report)]
    context = multiprocessing.get_context("forkserver")
    processes = []
    with forkserver_running("toy:catch", 1):
        for number in range(seating.processes):
            port = channel.open(number)
            processes.append(context.Process(target=null_agents, args=(port, store), daemon=True))
            processes[-1].start()
            Channel.handed_over(port)
    players = [psutil.Process(process.pid) for process in processes]
    try:
        time.sleep(2.0)
        server, copying = time.process_time(), gathered + count.gathering
        playing = sum(sum(player.cpu_times()[:2]) for player in players)
        steps, began = model.agent_steps, time.monotonic()
        while time.monotonic() < began + seconds:
            time.sleep(1.0)
            statistics.drain()
        steps, elapsed = model.agent_steps - steps, time.monotonic() - began
        return {"steps_per_second": steps / elapsed, "server_us": 1e6 * (time.process_time() - server) / steps,
                "gather_us": 1e6 * (gathered + count.gathering - copying) / steps,
                "agents_us": 1e6 * (sum(sum(player.cpu_times()[:2]) for player in players) - playing) / steps}
    finally:
        for number in range(seating.processes):
            channel.hang_up(number)  # it ends, also where a thread has failed that it waits for
        for process in processes:
            process.join()
        channel.dismiss_trainer()
        channel.dismiss_predictor()
        threads.shutdown()
        channel.close()
        for each in work:
            each.result()  # raises what the thread did


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--agents", type=int, default=2 * usable_cores(), help="[2 per core]")
    parser.add_argument("--envs", type=int, default=16, help="environments per agent [16]")
    parser.add_argument("--agents-per-process", type=int, default=1, help="that take turns in one process [1]")
    parser.add_argument("--rollout-length", type=int, default=20, help="[20]")
    parser.add_argument("--batch", type=int, default=320, help="least agent steps per update [320]")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a run [10]")
    parser.add_argument("--runs", type=int, default=3, help="the median counts [3]")
    parser.add_argument("--json", type=output_file(), metavar="FILE", help="keep what was measured")
    options = parser.parse_args()
    seating = Seating(options.agents, options.agents_per_process, PER_CORE * usable_cores())
    runs = [measure(seating, options.envs, options.rollout_length, options.batch, options.seconds)
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
