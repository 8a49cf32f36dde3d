"""An agent's process: its entry point, the loop over its requests, and its end. `forkserver` starts the process."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, NoReturn, Protocol

import numpy as np

from ga3c.agents.fault_tolerant import FaultTolerantEnvironment
from ga3c.agents.loop import Player, Progress, play, reward_discount, seeded
from ga3c.agents.random_start import play_randomly
from ga3c.envs.base import Environment
from ga3c.envs.containment import contained, drop_unwritable_output
from ga3c.envs.factory import make_environment
from ga3c.envs.process_group import lead_group
from ga3c.envs.random_streams import seed_global_streams
from ga3c.settings.machine import be_killed_first
from ga3c.settings.schema import Settings
from ga3c.transport.port import PREDICT, SUBMIT, Port, Request, ServerGone
from ga3c.transport.slots import AgentStatus, Slots

if TYPE_CHECKING:
    from ga3c.algorithms.acting import Acting

MODEL_FAILED = 6  # exit code of an agent whose own model failed; the command's for the main model is the same


class ModelFailed(Exception):
    """The error if an agent's own copy of the model cannot be made, or cannot compute."""


class Grants(Protocol):
    """An object that grants an agent's requests: its port, or its own copy of the model in front of the port."""

    def grant(self, request: Request, store: Slots) -> int:
        """Grants a request, see `Port.grant`."""

    def status(self, store: Slots, state: AgentStatus) -> None:
        """Writes the agent's state, see `Port.status`."""


def drive(player: Player, port: Grants, store: Slots) -> None:
    """Runs `player` until it ends, and passes its requests to the port. Records the seconds of each rollout."""
    seconds = [0.0, 0.0, 0.0]  # waiting for TAKE, waiting for PREDICT, and the rest: playing
    granted, before, ours = 0, time.monotonic(), os.getpid()
    try:
        request = next(player)
        while True:
            kind, slot, step = request
            now = time.monotonic()
            if os.getpid() != ours:  # this is a child that an environment forked
                os._exit(0)
            seconds[SUBMIT] += now - before
            if kind == PREDICT:
                store.requested_at[slot, step] = now
            elif kind == SUBMIT:
                store.seconds[slot], store.submitted_at[slot] = seconds, now
                seconds = [0.0, 0.0, 0.0]
            granted, before = port.grant(request, store), time.monotonic()
            if kind != SUBMIT:
                seconds[kind] += before - now
            request = player.send(granted)
    except StopIteration:
        port.status(store, AgentStatus.DRAINED)


def agent_main(port: Port, store: Slots, settings: Settings, acting: Acting, seed: np.random.SeedSequence, log: str,
               played: int = 0,
               model: Callable[[Port, Slots], Grants] | None = None) -> None:
    """Makes an agent's environments and plays until it is stopped: the entry point of its process.

    The process also ends if the main process is gone. Environments that fail are replaced. An exception that nothing
    handles ends the process with exit code 1 and leaves its traceback in the store (`last_fault`). A model that fails
    ends the process with `MODEL_FAILED`.

    Args:
        acting: how actions are chosen from the model's outputs.
        log: a file. It gets the traceback of a failed model, what environments print, and all stacks if the
            interpreter crashes or gets SIGUSR1.
        played: steps of each environment that count as played before, for exploration.
        model: makes the agent's own copy of the model, if it has one.
    """
    lead_group()
    # Ctrl-C is for the main process. Programs that games start would inherit an ignored signal, but no handler.
    signal.signal(signal.SIGINT, lambda number, frame: None)
    be_killed_first()
    # Before anything else, so that neither a new agent nor its simulator's threads disturb agents at work.
    os.nice(settings.agents.agent_nice)

    def failed() -> None:
        store.last_fault[port.agent] = traceback.format_exc().encode("utf-8", "backslashreplace")[-3900:]
        store.faults[port.agent] += 1

    def make() -> Environment:
        return make_environment(settings, store.n_envs, alive=lambda: port.alive(store))

    with _appending(log) as file, open(os.devnull, "rb") as nothing:
        for ours, standard in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(ours.fileno(), standard)
        faulthandler.enable(file)
        faulthandler.register(signal.SIGUSR1, file)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGUSR1, signal.SIGTERM})
        drop_unwritable_output()
        try:
            environment_seed, rng = seeded(seed)
            seed_global_streams(environment_seed)
            with contained():
                environment = FaultTolerantEnvironment(make, failed)
                environment.reset(environment_seed)
                mixed = play_randomly(environment, store.n_envs, settings.agents.random_start_steps, seed,
                                      lambda: port.status(store, AgentStatus.STARTING))
            grants: Grants = port if model is None else model(port, store)
            store.playing_since[port.agent] = time.monotonic()
            port.status(store, AgentStatus.PLAYING)
            schedule = settings.schedule
            first = schedule.first(port.agent, port.generation)
            drive(play(environment, store, rng, acting, port.agent,
                       Progress.new(store.n_envs, first, mixed.tolist(), played),
                       again=schedule.requests_twice, cuts=schedule.remembers,
                       discount=reward_discount(settings.algorithm)), grants, store)
            try:
                environment.close()
            except BaseException:  # noqa: B036  # all rollouts are submitted, so this harms nothing
                traceback.print_exc()
        except ServerGone:
            _leave(0)
        except ModelFailed:  # its environments are sound
            traceback.print_exc()
            _leave(MODEL_FAILED)
        except BaseException:  # noqa: B036  # SystemExit of an environment, too: the supervisor decides
            failed()
            _leave(1)
        _leave(0)


def _appending(path: str) -> BinaryIO:
    """Opens the file, or /dev/null if it cannot be written, so that the run goes on."""
    try:
        return open(path, "ab", buffering=0)
    except OSError:
        return open(os.devnull, "ab", buffering=0)


def _leave(code: int) -> NoReturn:
    """Ends the process at once, even with threads left by environments. The supervisor kills processes left by them."""
    with contextlib.suppress(Exception):  # users' code may have closed or replaced them
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
