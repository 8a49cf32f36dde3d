"""The console scripts, a function for each command. They import a command when it is called.

An import takes up to a second. A Ctrl-C meanwhile ends the process without a traceback, as nothing is open yet.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from importlib import import_module


def launch(command: str, with_caller: bool = False) -> None:
    """Imports and runs a command by the name of its module, and ends the process with its exit code.

    with_caller: whether standard input is a pipe of the process that called. When that process ends, this one gets
    SIGTERM.
    """
    if with_caller:
        from ga3c.envs.process_group import signal_when_closed
        lifeline = os.dup(0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # games find an empty standard input
        signal_when_closed(lifeline, signal.SIGTERM, os.getpid())
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from ga3c.commands.entry import run_command
    module = import_module(f"ga3c.commands.{command}")
    signal.signal(signal.SIGINT, before)
    run_command(getattr(module, command))


train, evaluate, top, plot, play, doctor, export, track = (partial(launch, name) for name in (
    "train", "evaluate", "top", "plot", "play", "doctor", "export", "track"))
