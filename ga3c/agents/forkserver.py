"""The process that agents and evaluations are forked from, and the start of a process from it."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

from ga3c.envs.process_group import kill_leader
from ga3c.settings.imports import safe_path
from ga3c.settings.schema import EnvSettings

ANSWER_SECONDS = 300.0  # that a fork server may take, which may still compile the emulator
_ENDING_SECONDS = 0.2
_GRACE = 0.5  # seconds: a fork server that is well has answered in them
_LONGEST_DIRECTORY = 70  # bytes: the fork server's socket is below it, and the path of a socket has at most 107


class Closeable(Protocol):
    """What a process is given for itself: its port, or its end of a pipe."""

    def close(self) -> None:
        """Here; the process keeps its own."""


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
