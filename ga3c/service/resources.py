"""Checks the machine before a run begins: numbers and remedies now, instead of a failure an hour later.

Shared memory has no name (`transport.slots.Slots`). So the size of /dev/shm is no limit; only free memory counts.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from pathlib import Path
from typing import NamedTuple

import psutil

from ga3c.settings.machine import left_in_container
from ga3c.settings.schedule import AGENT_DESCRIPTORS, OBSERVATION_BYTES, OTHER_DESCRIPTORS, agent_bytes
from ga3c.settings.schema import Settings

_SERVER_BYTES = 700 * 2**20   # TensorFlow and the model
_MODEL_BYTES = 400 * 2**20    # TensorFlow and the model copy of an A3C worker
_THREADS = 100                # of TensorFlow and all else except agents
_DISK_BYTES = 500 * 2**20     # a few checkpoints of the large network, an hour of logs


class Finding(NamedTuple):
    """One check: whether it is `ok`, the `numbers` behind that, and the `remedy` if it is not."""

    name: str
    ok: bool
    numbers: str
    remedy: str


def preflight(settings: Settings, directory: Path, observation_bytes: int = OBSERVATION_BYTES,
              replay_bytes: int = 0) -> list[Finding]:
    """Checks descriptors, processes, memory and the disk that `directory` is or will be on.

    observation_bytes: bytes of one observation, if known; else Atari's. replay_bytes: of the replay, once it is full.
    """
    agents = settings.schedule.agents
    return [_descriptors(agents), _processes(agents), _memory(settings, observation_bytes, replay_bytes),
            _disk(directory)]


def _descriptors(agents: int) -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = OTHER_DESCRIPTORS + AGENT_DESCRIPTORS * agents
    return Finding("descriptors", limit == resource.RLIM_INFINITY or limit >= need,
                   f"{need} needed for {agents} agents, {_shown(limit)} allowed",
                   "raise the limit (ulimit -Hn) or give fewer --agents")


def _processes(agents: int) -> Finding:
    limits = []
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit != resource.RLIM_INFINITY and os.getuid():
        limits.append(limit - _tasks_of_user())
    in_container = left_in_container("pids")
    if in_container is not None:
        limits.append(in_container)
    free, need = min(limits, default=resource.RLIM_INFINITY), agents + _THREADS
    return Finding("processes", free == resource.RLIM_INFINITY or free >= need,
                   f"{need} processes and threads needed for {agents} agents, {_shown(free)} free",
                   "raise the limit (ulimit -u, or the container's) or give fewer --agents")


def _memory(settings: Settings, observation_bytes: int, replay_bytes: int) -> Finding:
    agents, per_agent = settings.schedule.agents, agent_bytes(settings)
    if settings.schedule.agents_learn and not settings.run.serial:
        per_agent += _MODEL_BYTES
    free, in_container = psutil.virtual_memory().available, left_in_container("memory")
    if in_container is not None:
        free = min(free, in_container)
    need = _SERVER_BYTES + per_agent * agents + _steps_beside_slots(settings) * observation_bytes + replay_bytes
    smaller = "a smaller --replay-size" if replay_bytes else "a smaller --training-batch-min"
    return Finding("memory", free >= need,
                   f"{need / 2**30:.1f} GB needed for {agents} agents, {free / 2**30:.1f} GB free",
                   f"give fewer --agents or {smaller}, or end other programs")


def _steps_beside_slots(settings: Settings) -> int:
    """Returns the agent steps kept outside slots: in batch buffers, and in serial mode in rollouts that wait."""
    schedule, rollouts = settings.schedule, settings.schedule.rollouts
    if settings.run.serial:
        rollouts += max(0, schedule.slots_in_one_thread - settings.agents.slots_per_agent * schedule.agents)
    elif schedule.agents_learn or rollouts == 1:
        return 0
    else:
        rollouts *= schedule.trainers
    return rollouts * settings.algorithm.rollout_length * settings.agents.envs_per_agent


def _disk(directory: Path) -> Finding:
    there = directory.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    return Finding("disk", free >= _DISK_BYTES, f"{_DISK_BYTES / 2**20:.0f} MB needed in {there}, "
                   f"{free / 2**20:,.0f} MB free", "make room, or give another --run-dir")


def _tasks_of_user() -> int:
    tasks = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == os.getuid():
                tasks += process.num_threads()
    return tasks


def _shown(limit: int) -> str:
    return "no limit" if limit == resource.RLIM_INFINITY else str(limit)


def raise_limits() -> None:
    """Raises the limit of descriptors to the hard limit, which needs no privileges."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
