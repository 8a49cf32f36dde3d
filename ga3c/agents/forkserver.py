"""The fork server: the process that agents are forked from. `start` starts a process from it."""

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

ANSWER_SECONDS = 300.0  # for the answer of a fork server, which may still compile the emulator
_ENDING_SECONDS = 0.2
_GRACE = 0.5  # seconds in which a healthy fork server answers
_LONGEST_DIRECTORY = 70  # bytes: the fork server's socket is below it, and a socket's path has at most 107


class Closeable(Protocol):
    """An object that is passed to a process for its own use: its port, or its end of a pipe."""

    def close(self) -> None:
        """Closes our copy; the process keeps its own."""


@contextmanager
def forkserver_running(settings: EnvSettings, n_envs: int) -> Iterator[None]:
    """Runs the fork server. Within the block, processes may be started from it.

    The fork server imports what an agent needs and preloads the emulators of `n_envs` environments
    (`envs/preload.py`), once. Three signals are blocked in it, and in each process until the process unblocks them.
    SIGINT (Ctrl-C) is for the main process. SIGTERM, which `timeout` and others send to the whole group, would end the
    fork server and all agents. SIGUSR1, a request for a checkpoint, would end it, too. If it dies, multiprocessing
    starts another one in the same way.
    """
    context = multiprocessing.get_context("forkserver")
    # By name: commands are imported again in each process, and this package must not import them.
    context.set_forkserver_preload(["ga3c.agents.process", "ga3c.commands.launch", "ga3c.envs.preload"])
    if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_DIRECTORY:
        tempfile.tempdir = "/tmp"
    with safe_path():
        resource_tracker.ensure_running()  # its start unblocks SIGINT, so it comes before we block SIGINT
    wanted = f"{n_envs}:{settings.model_dump_json()}"
    if os.environ.get("GA3C_PRELOAD") != wanted:  # only if needed, as TensorFlow's threads may read the environment
        os.environ["GA3C_PRELOAD"] = wanted
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1})
    try:
        with safe_path():
            forkserver.ensure_running()
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_forkserver(settings: EnvSettings, n_envs: int) -> None:
    """Starts the fork server without waiting for its imports; see `forkserver_running`."""
    with forkserver_running(settings, n_envs):
        pass


class _Start:
    """The start of a process in another thread, so that the caller can give up the wait for it."""

    def __init__(self, process: BaseProcess, process_end: Closeable) -> None:
        self._process = process
        self._process_end = process_end
        self._lock = threading.Lock()
        self._given_up = False
        self.ended = threading.Event()
        self.failed: BaseException | None = None

    def run(self, settings: EnvSettings, n_envs: int) -> None:
        """Runs in the other thread: starts the process, and ends it if the caller has given up."""
        try:
            with forkserver_running(settings, n_envs):
                self._process.start()
        except BaseException as error:  # noqa: B036  # the caller raises it
            self.failed = error
        finally:
            with contextlib.suppress(OSError):  # users' code may have closed it
                self._process_end.close()
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


def start(process: BaseProcess, process_end: Closeable, settings: EnvSettings, n_envs: int,
          waiting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext) -> int:
    """Starts a process from the fork server and returns the fork server's pid.

    Another thread starts the process and closes `process_end`, our copy of its port or pipe. The caller waits within
    `waiting`, where a signal may end the wait by an exception. Then the process is killed: by the caller if it starts
    within `_GRACE` seconds, else by the other thread. A fork server that does not answer for `ANSWER_SECONDS` is
    killed. Raises OSError or EOFError if there is no process.
    """
    starting = _Start(process, process_end)
    thread = threading.Thread(target=starting.run, args=(settings, n_envs), name="starting", daemon=True)
    asked = False
    try:
        with waiting():  # a signal that came before raises here
            pass
        _leave_removed_directory()
        _forget_unreachable()
        asked = True
        thread.start()
        with waiting():
            starting.ended.wait(ANSWER_SECONDS)
    except BaseException as error:
        refused = isinstance(error, RuntimeError)  # the system has no thread for it
        try:
            if asked and not refused:
                starting.ended.wait(_GRACE)
        finally:
            starting.give_up()
            if thread.ident is None:
                process_end.close()
        if refused:
            raise OSError(errno.EAGAIN, str(error)) from None
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


def _leave_removed_directory() -> None:
    """Changes to `/` if the working directory was removed: multiprocessing passes its name to each process."""
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir("/")


def _forget_unreachable() -> None:
    """Lets multiprocessing start another fork server if the socket of this one is gone, as after a cleaning of /tmp.

    The old fork server and its processes live on.
    """
    server: Any = forkserver._forkserver
    with server._lock:
        address = server._forkserver_address
        if not address or util.is_abstract_socket_namespace(address) or os.path.exists(address):
            return
        os.makedirs(os.path.dirname(address), 0o700, exist_ok=True)  # the next socket is made there, too
        _unreachable.append(server._forkserver_alive_fd)
        server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None


_unreachable: list[int] = []  # descriptors that keep fork servers alive


def forkserver_ended(pid: int) -> bool:
    """Returns whether this fork server has ended. All its processes then seem to have ended with exit code 255.

    Its pipes close a moment before it has ended, so this waits for up to `_ENDING_SECONDS`.
    """
    try:
        try:
            server = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (AttributeError, OSError):  # the system has no such call, or no descriptor left
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
