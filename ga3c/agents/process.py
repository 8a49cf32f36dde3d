"""An agent's process: its entry point, the fork server it comes from, and how it ends with the main process."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import io
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, BinaryIO, NoReturn, Protocol

import numpy as np

from ga3c.agents.fault_tolerant import FaultTolerantEnvironment
from ga3c.agents.loop import Player, Progress, play, reward_discount, seeded
from ga3c.agents.random_start import play_randomly
from ga3c.envs.base import Environment
from ga3c.envs.containment import contained
from ga3c.envs.factory import make_environment
from ga3c.envs.process_group import kill_leader, lead_group
from ga3c.envs.random_streams import seed_global_streams
from ga3c.envs.wrapper_statistics import Statistics, WrapperStatistics
from ga3c.settings.imports import safe_path
from ga3c.settings.machine import be_killed_first
from ga3c.settings.messages import ESCAPED
from ga3c.settings.plan import asks_again, plan
from ga3c.settings.schema import EnvSettings, Settings
from ga3c.transport.port import PREDICT, SUBMIT, Port, Request, ServerGone
from ga3c.transport.slots import AgentStatus, Slots

ANSWER_SECONDS = 300.0  # that a fork server may take, which may still compile the emulator
_ENDING_SECONDS = 0.2
_GRACE = 0.5  # seconds: a fork server that is well has answered in them
_LONGEST_DIRECTORY = 70  # bytes: the fork server's socket is below it, and the path of a socket has at most 107


MODEL_FAILED = 6  # exit code of an agent whose own model failed, as the command's of the main one


class ModelFailed(Exception):
    """The agent's own copy of the model cannot be made, or cannot compute."""


class Grants(Protocol):
    """What grants an agent's requests: its port, or in front of the port the agent's own copy of the model."""

    def grant(self, request: Request, store: Slots) -> int:
        """As `Port.grant`."""

    def status(self, store: Slots, state: AgentStatus) -> None:
        """As `Port.status`."""


class Closeable(Protocol):
    """What a process is given for itself: its port, or its end of a pipe."""

    def close(self) -> None:
        """Here; the process keeps its own."""


def drive(player: Player, port: Grants, store: Slots, submitting: Callable[[], None] | None = None) -> None:
    """Runs `player` until it ends: its requests go through the port. Records where its time went.

    `submitting` is called before each rollout is submitted.
    """
    seconds = [0.0, 0.0, 0.0]  # by kind of request: TAKE and PREDICT are waited for, playing takes the rest
    granted, before, ours = 0, time.monotonic(), os.getpid()
    try:
        request = next(player)
        while True:
            kind, slot, step = request
            now = time.monotonic()
            if os.getpid() != ours:  # an environment forked, and this came back from it
                os._exit(0)
            seconds[SUBMIT] += now - before
            if kind == PREDICT:
                store.requested_at[slot, step] = now
            elif kind == SUBMIT:
                store.seconds[slot], store.submitted_at[slot] = seconds, now
                if submitting:
                    submitting()
                seconds = [0.0, 0.0, 0.0]
            granted, before = port.grant(request, store), time.monotonic()
            if kind != SUBMIT:
                seconds[kind] += before - now
            request = player.send(granted)
    except StopIteration:
        port.status(store, AgentStatus.DRAINED)


@contextmanager
def forkserver_running(settings: EnvSettings, n_envs: int) -> Iterator[None]:
    """Within, the process that agents are forked from is there, and processes may be started from it.

    It imports what an agent needs and preloads the emulators of `n_envs` environments (`envs/preload.py`), once.
    SIGINT is blocked in it and so in every agent: Ctrl-C is for the main process to handle. So is SIGTERM, which
    `timeout` and others send to the whole group: all agents would end with it. SIGUSR1, a request for a checkpoint,
    would end it, too. Should it die, multiprocessing starts the next one just so.
    """
    context = multiprocessing.get_context("forkserver")
    # By name, as it forks what commands and evaluations run, too: they stand above agents, which import none of them.
    context.set_forkserver_preload(["ga3c.agents.process", "ga3c.commands.train", "ga3c.evaluation.players",
                                    "ga3c.envs.preload"])
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_DIRECTORY:
        tempfile.tempdir = "/tmp"
    with safe_path():
        resource_tracker.ensure_running()  # it unblocks SIGINT when it starts; the fork server would start it
    wanted = f"{n_envs}:{settings.model_dump_json()}"
    if os.environ.get("GA3C_PRELOAD") != wanted:  # TensorFlow's threads may read the environment meanwhile
        os.environ["GA3C_PRELOAD"] = wanted
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})
    try:
        with safe_path():
            forkserver.ensure_running()
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_forkserver(settings: EnvSettings, n_envs: int) -> None:
    """Starts it without waiting for its imports; see `forkserver_running`."""
    with forkserver_running(settings, n_envs):
        pass


class _Start:
    """The start of a process by another thread, so that the wait for it can be given up."""

    def __init__(self, process: BaseProcess, theirs: Closeable) -> None:
        self._process, self._theirs = process, theirs
        self._lock, self._given_up = threading.Lock(), False
        self.ended = threading.Event()
        self.failed: BaseException | None = None

    def run(self, settings: EnvSettings, n_envs: int) -> None:
        """The other thread's: starts it, and ends it again if nobody waits for it any more."""
        try:
            with forkserver_running(settings, n_envs):
                self._process.start()
        except BaseException as error:  # noqa: B036  # raised by who waits
            self.failed = error
        finally:
            with contextlib.suppress(OSError):  # users' code may have closed it
                self._theirs.close()
        with self._lock:
            self.ended.set()
            if self._given_up:
                self._end()

    def give_up(self) -> None:
        """Ends the process, at once or as soon as it has started."""
        with self._lock:
            self._given_up = True
            if self.ended.is_set():
                self._end()

    def _end(self) -> None:
        if self.failed is None:
            kill_leader(self._process)
            self._process.join()


def start(process: BaseProcess, theirs: Closeable, settings: EnvSettings, n_envs: int,
          waiting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext) -> int:
    """Starts a process from the fork server, whose pid it returns.

    Another thread starts it, and closes `theirs`, our copy of what the process has for itself. This one waits within
    `waiting`, where a signal may end the wait by an exception. Then the process is ended, here if it starts within
    `_GRACE` seconds more, else by the other thread. A fork server that does not answer for `ANSWER_SECONDS` is killed.
    Raises OSError or EOFError if there is no process.
    """
    starting = _Start(process, theirs)
    thread = threading.Thread(target=starting.run, args=(settings, n_envs), name="starting", daemon=True)
    try:
        with waiting():  # a request that came before ends it here
            pass
        _find_ground()
        _forget_unreachable()
        thread.start()
    except BaseException as error:
        starting.give_up()
        if thread.ident is None:
            theirs.close()
        if isinstance(error, RuntimeError):  # no thread either
            raise OSError(errno.EAGAIN, str(error)) from None
        raise
    try:
        with waiting():
            starting.ended.wait(ANSWER_SECONDS)
    except BaseException:
        try:
            starting.ended.wait(_GRACE)
        finally:
            starting.give_up()
        raise
    if not starting.ended.is_set():
        if _forkserver_pid():
            os.kill(_forkserver_pid(), signal.SIGKILL)
        starting.ended.wait(_GRACE)
        starting.give_up()
        raise OSError(errno.ETIMEDOUT, f"no answer from the fork server for {ANSWER_SECONDS:g} s")
    if starting.failed is not None:
        raise starting.failed
    return _forkserver_pid()


def _find_ground() -> None:
    """What a process is started with names the working directory, which somebody may have removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir("/")


def _forget_unreachable() -> None:
    """Lets the next fork server be started if this one's socket is gone, as where old files are cleared out of /tmp.

    Its processes and so the server itself live on.
    """
    server: Any = forkserver._forkserver
    with server._lock:
        address = server._forkserver_address
        if not address or util.is_abstract_socket_namespace(address) or os.path.exists(address):
            return
        os.makedirs(os.path.dirname(address), 0o700, exist_ok=True)  # the next one's socket is there, too
        _unreachable.append(server._forkserver_alive_fd)
        server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


_unreachable: list[int] = []  # descriptors that keep fork servers alive


def forkserver_ended(pid: int) -> bool:
    """Whether this fork server has ended. Then all of its processes seem to have ended, too, with exit code 255.

    Its pipes are closed a moment before it has ended: it has `_ENDING_SECONDS` for that.
    """
    try:
        try:
            server = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (AttributeError, OSError):  # of systems that have none, or no descriptor left
            pass
        else:
            try:
                wait([server], _ENDING_SECONDS)
            finally:
                os.close(server)
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except (ProcessLookupError, ChildProcessError):
        return True


def _forkserver_pid() -> int:
    return forkserver._forkserver._forkserver_pid or 0  # type: ignore[attr-defined]


class Dropping(io.RawIOBase):
    """Writes to a descriptor. What cannot be written, as the disk is full, is lost without a word."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """The descriptor."""
        return self._descriptor

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """All of it."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, data)
        return len(data)


def drop_unwritable_output() -> None:
    """From now on what Python prints in this process cannot fail: a full disk is no fault of who prints."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(Dropping(descriptor)), "utf-8", ESCAPED,
                                            line_buffering=True))


def agent_main(port: Port, store: Slots, settings: Settings, seed: np.random.SeedSequence, log: str,
               statistics: Statistics | None = None, model: Callable[[Port, Slots], Grants] | None = None) -> None:
    """Entry point of an agent's process: makes its environments and plays until it is stopped.

    Ends when the main process is gone, too. Environments that fail are made again; what it cannot handle ends the
    process with exit code 1 and leaves its traceback in the store (`last_fault`). A model that fails ends it with
    `MODEL_FAILED`. The file `log` gets that traceback, what environments print, and all stacks if the interpreter is
    shot down, and on SIGUSR1. `statistics` are what the wrappers of all agents have seen so far, if they keep any.
    `model` makes the agent's own copy of the model, where it has one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lead_group()
    be_killed_first()
    # From the start: a new agent, and every thread its simulator makes, must not disturb those at work.
    os.nice(settings.agents.agent_nice)

    def failed() -> None:
        store.last_fault[port.agent] = traceback.format_exc().encode()[-3900:]
        store.faults[port.agent] += 1

    seen = WrapperStatistics(statistics)

    def make() -> Environment:
        made = make_environment(settings, store.n_envs)
        if statistics is not None:
            seen.follow(made)
        return made

    with _appending(log) as file, open(os.devnull, "rb") as nothing:
        for ours, standard in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(ours.fileno(), standard)
        faulthandler.enable(file)
        faulthandler.register(signal.SIGUSR1, file)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1, signal.SIGTERM})
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
            first = plan(settings).first(port.agent, port.generation)
            drive(play(environment, store, rng, Progress.new(store.n_envs, first, mixed.tolist()),
                       again=asks_again(settings), discount=reward_discount(settings.algorithm)), grants, store,
                  None if statistics is None else
                  lambda: store.report_statistics(port.agent, seen.seen()))
            try:
                environment.close()
            except BaseException:  # noqa: B036  # all is submitted: that harms nothing
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
    """The file, or nowhere: a run whose directory cannot be written any more goes on."""
    try:
        return open(path, "ab", buffering=0)
    except OSError:
        return open(os.devnull, "ab", buffering=0)


def _leave(code: int) -> NoReturn:
    """Ends the process, whatever threads and processes its environments have left. The supervisor kills the latter."""
    with contextlib.suppress(Exception):  # users' code may have closed or replaced them
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
