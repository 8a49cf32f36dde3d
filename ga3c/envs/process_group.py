"""Process groups for user code. Its process leads a group, which includes all that it starts and ends as a whole."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess


def lead_group() -> None:
    """Makes this process, started by multiprocessing, lead its own group. The group ends with the main process.

    The kernel kills the group, because a simulator that hangs or is stopped would not notice the end of the main
    process. Sets multiprocessing's start method back to the default for processes that user code starts. The fork
    server would require targets that can be pickled.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.set_start_method(None, force=True)  # the default
    os.setpgid(0, 0)
    signal_when_closed(parent.sentinel, signal.SIGKILL, -os.getpid())


def signal_when_closed(lifeline: int, number: int, whom: int) -> None:
    """Makes the kernel send a signal when `lifeline` closes, a pipe that carries nothing until then.

    whom: a process id; a negative one is that of a group.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, whom)
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, number)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([lifeline], 0):  # already closed, so no signal comes
        os.kill(whom, number)


def kill_group(pid: int) -> None:
    """Kills the group that the process `pid` leads or led. Does nothing if the group is gone or `pid` is 0."""
    if not pid:  # to the kernel that is our own group
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def kill_leader(process: BaseProcess) -> None:
    """Kills a process that leads a group, or is about to, and all processes that its environments have started."""
    kill_group(process.pid or 0)
    process.kill()  # it may not lead a group yet


def signal_name(number: int) -> str:
    """Returns the name of a signal, as in "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def how_it_ended(code: int) -> str:
    """Describes the end of a process by its exit code; a negative code is a signal."""
    return f"was ended by {signal_name(-code)}" if code < 0 else f"ended its process with exit code {code}"
