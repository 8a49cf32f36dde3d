"""A function of ours in a process of its own: for users' code, and for what must not last.

The process leads a group, which ends as a whole: when its `ChildProcess` is closed, or when the process that made it
has ended, whatever the cause. So users' code may block, crash, print, start programs, or change signals there, and none
of it lasts. Ctrl-C does not reach the group.

Messages are pickled, so they must be plain data. An exception of users' code is sent as a line of text, because its
class would run their code here.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from ga3c.envs.containment import EnvironmentFailed, described, drop_unwritable_output, leave
from ga3c.envs.process_group import how_it_ended, kill_group, signal_when_closed
from ga3c.settings.imports import python_path
from ga3c.settings.machine import LONGEST_WAIT
from ga3c.settings.messages import ConfigError

START_SECONDS = 60.0  # for Python to start, and to import what a function needs
END_SECONDS = 5.0     # for a process to end by itself, after it has closed its pipe or was told to end

_PROGRAM = "from ga3c.envs.child_process import main; main()"
_ALIVE = "alive"
_MESSAGE = "message"
_FAILED = "failed"
_T = TypeVar("_T")


class ChildEnded(Exception):
    """The process sends no more. `code` is its exit code, negative for a signal; None if it only closed its pipe."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return "closed the pipe on which its process answers" if self.code is None else how_it_ended(self.code)


class ChildSilent(Exception):
    """No message came in time. `begun`: whether the process had called its function by then."""

    def __init__(self, seconds: float, begun: bool) -> None:
        super().__init__(seconds, begun)
        self.seconds = seconds
        self.begun = begun

    def __str__(self) -> str:
        return f"did not {'answer' if self.begun else 'begin'} within {self.seconds:g} s"


class ChildFailed(Exception):
    """Work that the process attempted has failed. The message is the cause, in one line."""


class ChildProcess:
    """A Python process that calls `function`, given as "module:name", with a `Caller` and with `arguments`.

    The process ends when the function returns. Its exit code is what the function returns, 0 for None.

    Args:
        arguments: anything that can be pickled.
        output: a descriptor for standard output and standard error, else both are discarded. Standard input is empty.
        environment: variables to set in it.
        directory: its working directory, else that of this process.

    Raises OSError if no process can be started.
    """

    def __init__(self, function: str, *arguments: Any, output: int = subprocess.DEVNULL,
                 environment: Mapping[str, str] | None = None, directory: str | None = None) -> None:
        self._begun = False
        variables = {**os.environ, "PYTHONPATH": python_path(directory or os.getcwd()), **(environment or {})}
        with contextlib.ExitStack() as undo:
            self._connection, end_of_child = Pipe()
            undo.callback(self._connection.close)
            with end_of_child:
                # Its standard input is a pipe that carries nothing: the kernel closes it at the end of this process.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", _PROGRAM, function, str(end_of_child.fileno())],
                    stdin=subprocess.PIPE, stdout=output, stderr=output, pass_fds=[end_of_child.fileno()],
                    process_group=0, env=variables, cwd=directory)
            undo.callback(self._kill)
            self.sentinels: list[Any] = [self._connection]
            # A process that users' code left behind may keep the pipe open after this one has ended.
            with contextlib.suppress(AttributeError, OSError):  # some systems have no such descriptor
                self.sentinels.append(os.pidfd_open(self.pid))
                undo.callback(os.close, self.sentinels[-1])
            self.send(arguments)
            self._undo = undo.pop_all()

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its group."""
        return self._process.pid

    def send(self, message: Any) -> None:
        """Sends a message to the function. If the process has ended, `receive` says so."""
        with contextlib.suppress(OSError):
            self._connection.send(message)

    def receive(self, seconds: float = math.inf, starting: float = 0.0, stop: Sequence[Any] = ()) -> Any:
        """Returns the next message of the function. Each sign of life restarts the wait.

        Args:
            seconds: the longest wait.
            starting: the longest wait until the function is called, if that is longer.
            stop: what else `multiprocessing.connection.wait` may wait for. It ends the wait, as if the time were over.

        Raises ChildFailed, ChildEnded, ChildSilent.
        """
        while True:
            limit = seconds if self._begun else max(seconds, starting)
            sources = [*self.sentinels, *stop]
            # Waits twice, as this process may have been stopped during the first wait.
            ready = wait(sources, min(limit, LONGEST_WAIT)) or wait(sources, 0)
            if not any(source in self.sentinels for source in ready):
                raise ChildSilent(limit, self._begun)
            try:
                kind, message = self._connection.recv() if self._connection.poll() else (None, None)
            except (EOFError, OSError):
                kind = None
            if kind is None:
                raise ChildEnded(self.join(END_SECONDS))
            self._begun = True
            if kind == _FAILED:
                raise ChildFailed(message)
            if kind == _MESSAGE:
                return message

    def hang_up(self) -> None:
        """Closes the pipe: the function's next `Caller.receive` raises EOFError."""
        self._connection.close()

    def join(self, seconds: float | None = None) -> int | None:
        """Waits for the end of the process. Returns its exit code, or None if it lives on after `seconds`."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Kills the process and all that it has started, unless it has ended."""
        self._undo.close()

    def _kill(self) -> None:
        kill_group(self.pid)
        self._process.kill()  # users' code may have taken it out of its group
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# ------------------------------------------------------------------------------------------------ in the process

class Caller:
    """The process that has made this one, as the function sees it.

    A copy of this process that users' code has forked ends as soon as it sends anything. If `tracebacks`, a failed
    attempt prints its traceback.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self.tracebacks = False

    def _send(self, kind: str, message: Any) -> None:
        if os.getpid() != self._pid:
            os._exit(0)
        self._connection.send((kind, message))

    def send(self, message: Any) -> None:
        """Sends a message. Raises BrokenPipeError if the caller has hung up."""
        self._send(_MESSAGE, message)

    def alive(self) -> None:
        """Sends a sign of life."""
        self._send(_ALIVE, None)

    def receive(self) -> Any:
        """Returns the next message of the caller. Raises EOFError if it has hung up."""
        return self._connection.recv()

    def attempt(self, what: str, work: Callable[[], _T]) -> _T:
        """Returns what `work` returns. Whatever it raises, the caller gets the cause in one line, and the process ends.

        `what` begins the line, unless the exception is one line already, as ConfigError.
        """
        try:
            return work()
        except BaseException as error:  # noqa: B036  # users' code may raise anything
            one_line = isinstance(error, ConfigError | EnvironmentFailed)
            if self.tracebacks and not one_line:
                traceback.print_exc()
            self._send(_FAILED, str(error) if one_line else f"{what}: {described(error)}")
            leave(1)


def main() -> None:
    """Entry point of the process. Its arguments are the function and the descriptor of the pipe to the caller."""
    module, _, name = sys.argv[1].partition(":")
    descriptor = int(sys.argv[2])
    lifeline = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal_when_closed(lifeline, signal.SIGKILL, -os.getpid())
    os.set_inheritable(descriptor, False)  # programs that users' code starts need not have it
    drop_unwritable_output()
    function = getattr(importlib.import_module(module), name)
    connection = Connection(descriptor)
    arguments = connection.recv()
    caller = Caller(connection)
    caller.alive()
    leave(function(caller, *arguments) or 0)
