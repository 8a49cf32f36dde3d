"""A process of code of users leads a process group. What that code starts is in it, and the group ends as a whole."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import signal
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess


def lead_group() -> None:
    """This process, started by multiprocessing, leads a group of its own. The kernel kills that with the main process.

    A simulator that hangs, or is stopped, would not notice that the main process is gone. Processes that it starts by
    multiprocessing are started as in a program of its own: the fork server would ask for a target that can be pickled.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    multiprocessing.set_start_method(None, force=True)  # the default
    os.setpgid(0, 0)
    end_with(parent.sentinel)


def end_with(lifeline: int) -> None:
    """The kernel kills the group that this process leads once `lifeline` ends: a pipe that stays silent until then."""
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpid())  # negative: the group
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([lifeline], 0):  # it has ended already, and nothing more comes
        os.killpg(0, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """Kills the group that the process `pid` leads, or led; nothing if there is none left, or `pid` is 0."""
    if not pid:  # to the kernel that is our own group
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def kill_leader(process: BaseProcess) -> None:
    """Kills a process that leads a group, or is about to, with all that its environments have started."""
    kill_group(process.pid or 0)
    process.kill()  # it may not lead a group yet


def signal_name(number: int) -> str:
    """As in "SIGKILL"."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def how_it_ended(code: int) -> str:
    """What became of a process, by its exit code: a signal, if that is negative."""
    return f"was ended by {signal_name(-code)}" if code < 0 else f"ended its process with exit code {code}"
