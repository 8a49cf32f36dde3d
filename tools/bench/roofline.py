"""Measures the share of the hardware limit that training reaches, and where the rest goes.

    python tools/bench/roofline.py [--games Pong Boxing Breakout] [--minutes 2] [--runs 3] [--json FILE]
                                   [-- any flags of ga3c-train]

For each game it measures what an agent step costs one core: the environment alone, inference alone, training alone.
Each part is the service's own code, run on all cores at once. The limit is cores / (sum of the costs): no core is ever
idle, and nothing is lost between the parts. Then the tool runs the service and splits the time of all cores per step:

    environment, inference, training   as measured alone;
    smaller batches                    extra cost of inference in batches as small as the run's;
    agent loop, gathering, transport   as measured by `transport.py` with as many agents;
    agents beyond, model beyond        processor time beyond the costs alone, as cores and caches are shared;
    server beyond                      the threads' processor time outside the model, beyond gathering and transport;
    other programs, idle               the rest of the cores.

Costs of `transport.py` are zero unless observations are 84x84x4 bytes. Gathering is wall-clock time. So transport, the
server's time without gathering, is underestimated.

A part may come out slightly negative, since measured alone it may cost more than in the mixture. Speed, share and limit
are medians of the runs; the parts belong to the run with the median share. The limit is for processors only: the tool
refuses to measure where TensorFlow sees a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ga3c.commands.entry import quiet
from ga3c.commands.train import parser
from ga3c.envs.check import probe
from ga3c.envs.factory import make_environment
from ga3c.learner import backend
from ga3c.runs import reader
from ga3c.settings.flags import output_file, settings_of_run
from ga3c.settings.machine import usable_cores
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.transport.slots import Slots, aligned
from ga3c.tuning import bottleneck

WARM_SECONDS = 1.0
OWN = ("game", "minutes", "run_dir")
WAITS = ("wait_ms", "queue_ms", "service_ms", "predict_ms", "reply_ms", "slot_wait_ms", "play_ms")
PARTS = ("environment", "inference", "training", "smaller batches", "agent loop", "gathering", "transport",
         "agents beyond", "model beyond", "server beyond", "other programs", "idle")


def train_settings(game: str, flags: Sequence[str]) -> Settings:
    """Returns the settings of `ga3c-train --game GAME FLAGS`. Raises ConfigError."""
    return settings_of_run(parser(), flags, OWN, game=game)


# ------------------------------------------------------------------------------------------ one part alone, one process

def _microseconds(work: Callable[[], int], seconds: float) -> float:
    """Returns wall-clock microseconds per agent step of `work`, without the first second. work: returns its steps."""
    end = time.monotonic() + WARM_SECONDS
    while time.monotonic() < end:
        work()
    steps, began = 0, time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        steps += work()
    return 1e6 * (now - began) / steps


def _environment(settings: Settings, seconds: float) -> float:
    environment = make_environment(settings, settings.agents.envs_per_agent)
    environment.reset(settings.run.seed)
    rng = np.random.default_rng(settings.run.seed)
    seen = np.zeros_like(environment.observation)

    def step() -> int:
        environment.step(rng.integers(0, environment.spec.n_actions, settings.agents.envs_per_agent))
        environment.show(seen)
        return settings.agents.envs_per_agent

    return _microseconds(step, seconds)


def _model(settings: Settings, part: str, batch: int, seconds: float) -> float:
    spec = make_environment(settings, 1).spec
    kernel = backend.choose_kernel(settings, spec, lambda line: None)
    backend.prepare(library=kernel.library)
    from ga3c.learner.learner import Learner
    settings = settings.changed(device_threads=1, precision=kernel.precision)
    backend.start(settings)
    model = Learner(settings, spec)
    rng = np.random.default_rng(settings.run.seed)
    if part == "inference":
        observation = aligned((batch, *spec.observation_shape), spec.observation_dtype)
        observation[:] = rng.integers(0, 256, observation.shape)
        shared = model.shared(observation)

        def predict() -> int:
            model.predict(shared)
            return batch

        return _microseconds(predict, seconds)
    n = settings.schedule.rollouts
    store = Slots(spec, settings.algorithm.rollout_length, settings.agents.envs_per_agent, n,
                  discounted=settings.algorithm.normalize_rewards)
    store.observation[:] = rng.integers(0, 256, store.observation.shape)
    store.policy[:], store.steps[:] = 1 / spec.n_actions, settings.algorithm.rollout_length
    made = store.empty_batch(n)
    store.gather(range(n), made, 0)

    def train() -> int:
        model.update(made, 0, 0)
        model.publish()
        return made.agent_steps

    return _microseconds(train, seconds)


def alone(settings: Settings, flags: list[str], part: str, batch: int, seconds: float) -> list[float]:
    """Measures one part in one process per core at once. Returns microseconds per agent step of each process."""
    command = [sys.executable, __file__, "--part", part, "--games", settings.env.game, "--prediction-batch", str(batch),
               "--seconds", str(seconds), "--", *flags]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                  env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
                 for _ in range(usable_cores())]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"roofline: measuring {part} of {settings.env.game} failed; try: {' '.join(command)}")
    return [float(output.split()[-1]) for output in outputs]


def transport(settings: Settings, agents: int, seconds: float) -> dict[str, float]:
    """Returns microseconds per agent step of agents and server without computation, from `transport.py`."""
    if probe(settings).observation_shape != (84, 84, 4):
        return {"agents": 0.0, "server": 0.0, "gather": 0.0}
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "transport.json"
        command = [sys.executable, str(Path(__file__).with_name("transport.py")), "--agents", str(agents),
                   "--envs", str(settings.agents.envs_per_agent),
                   "--rollout-length", str(settings.algorithm.rollout_length),
                   "--batch", str(settings.batching.training_batch_min), "--seconds", str(seconds), "--runs", "1",
                   "--json", str(file)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        run, = json.loads(file.read_text(encoding="utf-8"))["runs"]
    return {part: run[f"{part}_us"] for part in ("agents", "server", "gather")}


# ------------------------------------------------------------------------------------------ the service

def serve(game: str, flags: list[str], minutes: float, directory: Path) -> dict[str, Any]:
    """Runs the service. Returns its means over all but the first quarter, and its counts of workers at the end."""
    command = [sys.executable, "-m", "ga3c", "--game", game, "--minutes", str(minutes), "--run-dir", str(directory),
               "--no-remember", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"roofline: {' '.join(command)} ended with {done.returncode}: {done.stdout[-500:]}")
    rows = [row for row in reader.rows(directory).new() if row["agents"] and row["time"] >= 15 * minutes]
    if len(rows) < 2 or rows[-1]["agent_steps"] == rows[0]["agent_steps"]:
        raise SystemExit(f"roofline: {minutes:g} minutes are too few for {game} to train; give more --minutes")
    seconds = rows[-1]["time"] - rows[0]["time"]
    names = ("cpu_agents", "cpu_server", "cpu_outside", "cpu_machine", "prediction_batch", "training_batch",
             "lag_mean", "memory_mb", *WAITS)
    return {"steps_per_second": (rows[-1]["agent_steps"] - rows[0]["agent_steps"]) / seconds,
            "workers": "/".join(str(rows[-1][name]) for name in ("agents", "predictors", "trainers")),
            **{name: float(np.mean([row[name] for row in rows[1:] if row[name] is not None])) for name in names}}


def attribute(costs: dict[str, float], run: dict[str, Any], cores: int) -> dict[str, float]:
    """Returns core-microseconds per agent step by part. Their sum is cores / speed.

    run: includes `transport_us` (agents, server, and `gather` within server) and `inference_us` at its own batch size.
    """
    def per_step(busy: float) -> float:
        return float(1e6 * busy / run["steps_per_second"])

    other_programs, moved = bottleneck.external_load(run), run["transport_us"]
    return {**costs, "smaller batches": run["inference_us"] - costs["inference"], "agent loop": moved["agents"],
            "gathering": moved["gather"], "transport": moved["server"] - moved["gather"],
            "agents beyond": per_step(run["cpu_agents"]) - costs["environment"] - moved["agents"],
            "model beyond": (per_step(run["cpu_server"] - run["cpu_outside"]) - run["inference_us"]
                             - costs["training"]),
            "server beyond": per_step(run["cpu_outside"]) - moved["server"],
            "other programs": per_step(other_programs),
            "idle": per_step(cores - run["cpu_agents"] - run["cpu_server"] - other_programs)}


def benchmark(game: str, flags: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Returns all measurements of one game. A run's limit uses the costs measured just before and after the run."""
    cores = usable_cores()
    settings = train_settings(game, flags)

    def cost(part: str, batch: int = options.prediction_batch) -> float:
        return float(np.mean(alone(settings, flags, part, batch, options.seconds)))

    def costs() -> dict[str, float]:
        return {part: cost(part) for part in ("environment", "inference", "training")}

    runs: list[dict[str, Any]] = []
    before = costs()
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(options.runs):
            run = serve(game, flags, options.minutes, Path(scratch) / f"{game}-{number}")
            after = costs()
            run["costs_us"] = {part: (before[part] + after[part]) / 2 for part in before}
            run["limit"] = cores * 1e6 / sum(run["costs_us"].values())
            run["share_of_limit"] = run["steps_per_second"] / run["limit"]
            run["inference_us"] = cost("inference", max(1, round(run["prediction_batch"])))
            run["transport_us"] = transport(settings, int(run["workers"].split("/")[0]), options.seconds)
            runs.append(run)
            before = after
    rollout_steps = settings.algorithm.rollout_length * settings.agents.envs_per_agent
    result = {"game": game, "prediction_batch_of_the_limit": options.prediction_batch,
              "training_batch": settings.schedule.rollouts * rollout_steps, "runs": runs}
    if not runs:
        return {**result, "costs_us": before, "limit": cores * 1e6 / sum(before.values())}
    return {**result, **medians(runs, cores)}


def medians(runs: list[dict[str, Any]], cores: int) -> dict[str, Any]:
    """Returns separate medians of speed, share and limit; other values come from the run with the median share."""
    middle = sorted(runs, key=lambda run: run["share_of_limit"])[len(runs) // 2]
    return {**{name: float(np.median([run[name] for run in runs])) for name in
               ("limit", "steps_per_second", "share_of_limit")},
            **{name: middle[name] for name in ("costs_us", "prediction_batch", *WAITS)},
            "attribution_us": attribute(middle["costs_us"], middle, cores)}


# ------------------------------------------------------------------------------------------ showing

def show(result: dict[str, Any]) -> None:
    """Prints the results of one game."""
    if not result["runs"]:
        costs = ", ".join(f"{part} {cost:.1f} us" for part, cost in result["costs_us"].items())
        print(f"\n{result['game']}: at most {result['limit']:,.0f} agent steps/s: {costs}")
        return
    shares = [100 * run["share_of_limit"] for run in result["runs"]]
    print(f"\n{result['game']}: {result['steps_per_second']:,.0f} agent steps/s, limit {result['limit']:,.0f}, "
          f"{100 * result['share_of_limit']:.0f} % of it (medians of {len(shares)}; {min(shares):.0f} to "
          f"{max(shares):.0f} %)")
    whole = sum(result["attribution_us"].values())
    print(f"  updates of {result['training_batch']} agent steps; the limit's predictions of "
          f"{result['prediction_batch_of_the_limit']}, the run's of {result['prediction_batch']:.0f}")
    print("  " + "; ".join(f"{run['steps_per_second']:,.0f}, at the end {run['workers']}" for run in result["runs"]))
    for part in PARTS:
        cost = result["attribution_us"][part]
        print(f"  {part:<16} {cost:7.1f} us  {100 * cost / whole:5.1f} %")
    beyond_model = sum(result["attribution_us"][part] for part in ("gathering", "transport", "server beyond"))
    print(f"  of these the server outside the model: {beyond_model:.1f} us")
    print(f"  for each step of its environments an agent plays {result['play_ms']:.2f} ms, waits "
          f"{result['slot_wait_ms']:.2f} for a slot and {result['wait_ms']:.2f} for predictions: "
          f"{result['queue_ms']:.2f} in the queue, {result['service_ms']:.2f} served (in the model "
          f"{result['predict_ms']:.2f}), {result['reply_ms']:.2f} until it is awake", flush=True)


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--games", nargs="+", default=["Pong", "Boxing", "Breakout"], metavar="GAME")
    parser.add_argument("--minutes", type=float, default=2.0, help="length of each run of the service [2]")
    parser.add_argument("--runs", type=int, default=3,
                        help="runs of the service per game, of which the median counts; 0: only the limit [3]")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each measurement alone [10]")
    parser.add_argument("--prediction-batch", type=int, default=32, help="batch the limit assumes for inference [32]")
    parser.add_argument("--json", type=output_file(), metavar="FILE", help="keep all measurements")
    parser.add_argument("--part", choices=("environment", "inference", "training"), help=argparse.SUPPRESS)
    parser.add_argument("flags", nargs="*", metavar="-- FLAGS", help="of ga3c-train, after --")
    options = parser.parse_args()
    if options.runs < 0:
        parser.error(f"--runs: {options.runs} is too few; 0 finds the limit alone")
    try:
        settings = train_settings(options.games[0], options.flags)
        if options.part:
            print(_environment(settings, options.seconds) if options.part == "environment" else
                  _model(settings, options.part, options.prediction_batch, options.seconds))
            return 0
        for game in options.games:  # finds a mistake in the last game before the first is measured
            settings = train_settings(game, options.flags)
            backend.choose_kernel(settings, probe(settings), print)
        backend.prepare()
        with quiet(False):
            import tensorflow as tf  # slow; mistakes in the flags are reported before

            from ga3c.runs.directory import versions
            gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            raise ConfigError("the limit is for processors, and there is a GPU; CUDA_VISIBLE_DEVICES=-1 hides it")
        machine = versions()
        print(" ".join(machine["command"]))
        print(", ".join(f"{name} {value}" for name, value in machine.items() if name != "command"))
        algorithm = settings.algorithm
        print(f"{settings.agents.envs_per_agent} environments per agent, rollouts of {algorithm.rollout_length}, "
              f"network {algorithm.network}, precision {algorithm.precision}", flush=True)  # minutes before the next
        results = []
        for game in options.games:
            results.append(benchmark(game, options.flags, options))
            show(results[-1])
            if options.json:
                options.json.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n",
                                        encoding="utf-8")
    except ConfigError as error:
        print(f"roofline: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
