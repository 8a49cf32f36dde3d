"""`ga3c-doctor`: checks that this machine has what a run needs, and measures its speed. A failure names its remedy."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ga3c import __version__
from ga3c.commands.entry import guarded, quiet
from ga3c.learner import backend
from ga3c.service.resources import Finding, preflight, raise_limits
from ga3c.settings.files import configured
from ga3c.settings.flags import Parser
from ga3c.settings.machine import usable_cores
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.tuning.memory import cache_file, entries

if TYPE_CHECKING:
    from ga3c.envs.base import Environment

START_SECONDS = 20.0  # limit for the start of an agent
MEASURED = 1.0        # seconds of a measurement


def doctor(argv: Sequence[str]) -> int:
    """Runs `ga3c-doctor` with these arguments and returns its exit code: 0 if all is well, else 1."""
    return guarded("ga3c-doctor", lambda: _doctor(parser().parse_args(argv)))


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "ga3c-doctor", "Examine this machine: what a run needs, and how fast it is. Takes about ten seconds.",
        "examples:\n  ga3c-doctor\n  ga3c-doctor --game Boxing        that game's environments\n"
        "  ga3c-doctor --json               for a script, or for a report of a mistake\n\n"
        "exit code: 0 if all is well, 1 if something is not")
    group = parser.add_argument_group("What")
    group.add_argument("--game", metavar="GAME", default="Pong", help="whose environments are measured [%(default)s]")
    group = parser.add_argument_group("Output")
    group.add_argument("--json", action="store_true", help="print the findings as one JSON array")
    return parser


def _doctor(options: argparse.Namespace) -> int:
    raise_limits()  # as a run does
    settings = configured(game=options.game)
    checks: list[tuple[str, Callable[[], list[Finding]]]] = [
        ("Python", _python), ("TensorFlow", _tensorflow), ("cores", _cores),
        ("limits", lambda: preflight(settings, Path())), ("environments", lambda: _environments(settings)),
        ("transport", _transport), ("best settings", _remembered)]
    findings = [finding for name, check in checks for finding in _examined(name, check)]
    if options.json:
        print(json.dumps([finding._asdict() for finding in findings]))
    else:
        _show(findings)
    return 0 if all(finding.ok for finding in findings) else 1


def _examined(name: str, check: Callable[[], list[Finding]]) -> list[Finding]:
    """Runs the check and returns its findings. If the system refuses a resource, that is the finding."""
    try:
        return check()
    except (OSError, EOFError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "new thread" not in str(error):
            raise
        return [Finding(name, False, f"{type(error).__name__}: {error}",
                        "see the other findings: a process, a thread, memory or a descriptor was refused")]


def _show(findings: Sequence[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
    table = Table.grid(padding=(0, 2))
    for finding in findings:
        table.add_row(Text("ok", "green") if finding.ok else Text("NO", "bold red"), Text(finding.name, "bold"),
                      Text(finding.numbers))
        if not finding.ok:
            table.add_row("", "", Text(f"-> {finding.remedy}", "yellow"))
    console = Console(highlight=False)
    console.print(table)
    wrong = sum(not finding.ok for finding in findings)
    console.print(f"{wrong} of {len(findings)} need fixing." if wrong else "All is well.", style="bold")


# ------------------------------------------------------------------------------------------------ what is there

def _python() -> list[Finding]:
    version = platform.python_version()
    return [Finding("Python", sys.version_info >= (3, 11), f"{version}, {platform.platform()}, ga3c {__version__}",
                    "make a virtual environment with Python 3.11 or newer")]


def _tensorflow() -> list[Finding]:
    backend.prepare()
    try:
        with quiet(False):
            version, gpus, failures = backend.examine()
    except Exception as error:  # a broken installation raises anything
        return [Finding("TensorFlow", False, f"cannot be imported: {type(error).__name__}: {error}",
                        "pip install --force-reinstall tensorflow")]
    return [Finding("TensorFlow", True, version, ""), _gpus(gpus),
            Finding("computing", not failures, "; ".join(f"{device}: {why}" for device, why in failures.items()) or
                    f"right on {' and '.join(['the CPU', *gpus])}",
                    "CUDA_VISIBLE_DEVICES=-1 leaves the GPU out; nvidia-smi may tell more")]


def _gpus(names: list[str]) -> Finding:
    """Reports the GPUs that TensorFlow sees. If a card is there but not seen, reports the missing libraries."""
    cards = len(list(Path("/proc/driver/nvidia/gpus").glob("*")))
    if names or not cards:
        return Finding("GPU", True, ", ".join(names) or "none: the model runs on the CPU", "")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden in ("", "-1"):
        return Finding("GPU", True, f"{cards} NVIDIA, hidden by CUDA_VISIBLE_DEVICES={hidden}", "")
    missing = backend.missing_libraries()
    return Finding("GPU", False, f"{cards} NVIDIA, but TensorFlow sees none"
                   + f"; cannot be loaded: {', '.join(missing)}" * bool(missing), "pip install -e '.[gpu]'")


def _cores() -> list[Finding]:
    cores = os.cpu_count() or 1
    usable = usable_cores()
    return [Finding("cores", True, f"{cores}{f', of which {usable} may be used' * (usable < cores)}; "
                                   f"load {os.getloadavg()[0]:.1f}", "")]


# ------------------------------------------------------------------------------------------------ how fast it is

def _environments(settings: Settings) -> list[Finding]:
    """Measures the agent steps a second of one process that only plays. Raises ConfigError for an unknown game."""
    from ga3c.envs.atari_games import atari_id, atari_roms
    from ga3c.envs.check import check, examine
    from ga3c.envs.factory import runs_user_code
    roms: list[Finding] = []
    if atari_id(settings.env.game):
        installed, known = atari_roms()
        if not 0 < known == installed:
            return [Finding("ROMs", False, f"{installed} of {known}", "pip install --force-reinstall ale-py")]
        roms = [Finding("ROMs", True, f"{known} Atari games", "")]
    spec = check(settings).spec
    if not runs_user_code(settings):
        environment, rate = _played(settings)
        environment.close()
    else:
        try:
            rate, _ = examine(settings, _played, f"played for {MEASURED:g} s")
        except ConfigError as error:
            return [*roms, Finding("environments", False, str(error), "fix the game")]
    return [*roms, Finding("environments", True, f"{rate:,.0f} agent steps/s of {spec.name} by one core that does "
                           "nothing else", "")]


def _played(settings: Settings, alive: Callable[[], None] = lambda: None) -> tuple[Environment, float]:
    """Plays one agent's environments with random actions. Returns them, and the agent steps a second."""
    from ga3c.envs.containment import reraising
    from ga3c.envs.factory import make_environment
    with reraising(f"game: {settings.env.game!r} fails while it is played", ConfigError):
        environment = make_environment(settings, settings.agents.envs_per_agent, alive=alive)
        environment.reset(0)
        rng = np.random.default_rng(0)
        steps = 0
        began = time.monotonic()
        while (seconds := time.monotonic() - began) < MEASURED:
            environment.step(rng.integers(0, environment.spec.n_actions, settings.agents.envs_per_agent))
            alive()
            steps += settings.agents.envs_per_agent
    return environment, steps / seconds


class _Uniform:
    """A model with uniform policies and zero values. `asked` is set at the first prediction."""

    def __init__(self, n_actions: int) -> None:
        self._n = n_actions
        self.asked = threading.Event()

    def shared(self, observation: NDArray) -> NDArray:
        return observation

    def predict(self, observation: NDArray) -> tuple[dict[str, NDArray[np.float32]], int]:
        self.asked.set()
        n = len(observation)
        return {"policy": np.full((n, self._n), 1 / self._n, np.float32), "value": np.zeros(n, np.float32)}, 0


def _transport() -> list[Finding]:
    """Measures the requests a second of one agent process that are answered through a run's queues and slots."""
    from ga3c.agents.loop import agent_seed
    from ga3c.agents.forkserver import start
    from ga3c.agents.process import agent_main
    from ga3c.algorithms.acting import BY_POLICY
    from ga3c.envs.check import probe
    from ga3c.runs.statistics import PredictionCount
    from ga3c.service.predictor import run_predictor
    from ga3c.transport.channel import Channel
    from ga3c.transport.slots import Slots
    settings = configured(game="toy:catch", envs_per_agent=1)
    spec = probe(settings)
    store = Slots(spec, settings.algorithm.rollout_length, 1, settings.agents.slots_per_agent)
    channel = Channel(store, settings.agents.slots_per_agent)
    count = PredictionCount()
    model = _Uniform(spec.n_actions)

    def collect() -> None:
        over = False
        while not over:
            with channel.collect(1) as collection:
                over = collection.over

    threads = [threading.Thread(target=run_predictor, args=(channel, store, model, 16, count)),
               threading.Thread(target=collect)]
    port = channel.open(0)
    agent: Any = multiprocessing.get_context("forkserver").Process(
        target=agent_main, args=(port, store, settings, BY_POLICY, agent_seed(settings, 0, 1, 0), os.devnull))
    rate = 0.0
    for thread in threads:
        thread.start()
    try:
        start(agent, port, settings.env, 1)
        model.asked.wait(START_SECONDS)
        before = count.requests
        began = time.monotonic()
        agent.join(MEASURED)  # waits; the agent does not end
        rate = (count.requests - before) / (time.monotonic() - began)
    finally:
        channel.hang_up(0)
        if agent.pid is not None:
            agent.join(5.0)
            if agent.is_alive():
                agent.kill()
                agent.join()
            agent.close()
        channel.dismiss_predictor()
        channel.dismiss_trainer()
        for thread in threads:
            thread.join()
        channel.close()
    return [Finding("transport", rate > 0, f"{rate:,.0f} requests/s answered for one agent" if rate else
                    "an agent's process got no answer", "python -m ga3c --game toy:catch --minutes 0.1 --verbose")]


def _remembered() -> list[Finding]:
    """Lists the remembered counts that runs on this machine start from."""
    try:
        remembered = [entry for entry in entries() if entry.get("machine") == platform.node()]
    except (OSError, ValueError) as error:
        return [Finding("best settings", False, f"{cache_file()} cannot be read: {error}", f"rm {cache_file()}")]
    here = [f"{entry.get('game')} {'/'.join(map(str, entry['counts']))} with {entry.get('envs_per_agent')} "
            f"environments an agent, {entry['rate']:,.0f} agent steps/s" for entry in remembered
            if entry.get("version") == __version__]
    return [Finding("best settings", True, "; ".join(here) or "none remembered yet: the first run will search", "")]
