"""Saves checkpoints and is killed, or fails, at each call that touches the disk; then checks what loads.

    python tests/torture.py DIRECTORY [kill | raise]

It prints the number of calls at which it was stopped. It has one thread, so that `fork` is safe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import numpy as np

from ga3c.learner.checkpoint import Checkpoint, clean, load, newest, save, saved

_CALLS = {"open", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "os.scandir", "os.listdir", "shutil.rmtree",
          "fsync", "write"}
_armed: list[int] = []  # calls left, if any


def _hook(event: str, arguments: tuple) -> None:
    if not _armed or event not in _CALLS:
        return
    _armed[0] -= 1
    if _armed[0] == 0:
        if sys.argv[2] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        _armed.clear()
        raise OSError(5, "Input/output error")


def _hooked(name: str, call):
    def hooked(*arguments, **options):
        _hook(name, arguments)
        return call(*arguments, **options)
    return hooked


def some(number: int) -> Checkpoint:
    return Checkpoint({"weights": np.full(1000, number, np.float32)}, {"agent_steps": number})


def saved_whole(directory: Path, at: int, number: int) -> bool:
    """Saves checkpoint `number` in a process that fails at call `at`. Returns whether it never reached that call."""
    child = os.fork()
    if child == 0:
        _armed.append(at)
        with contextlib.suppress(OSError):
            save(directory, f"{number:012d}", some(number), 2)
        os._exit(0 if _armed else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def main() -> None:
    directory = Path(sys.argv[1])
    os.fsync = _hooked("fsync", os.fsync)
    np.lib.format.write_array = _hooked("write", np.lib.format.write_array)
    sys.addaudithook(_hook)
    failed, number = 0, 1
    save(directory, f"{number:012d}", some(number), 2)
    for replacing in (False, True):
        at = 0
        while True:
            at += 1
            new = number if replacing else number + 1
            whole = saved_whole(directory, at, new)
            found = newest(directory) if saved(directory) else None
            clean(directory)
            left = [path.name for path in directory.iterdir() if path.name.startswith(".")]
            assert not left, f"left after call {at}: {left}"
            checkpoint, path, passed_over = newest(directory)
            assert not passed_over and checkpoint.progress["agent_steps"] in (number, new), (at, passed_over)
            assert found is None or replacing or found[1] == path, "cleaning changed what is newest"
            for each in saved(directory):
                load(each)
            number = checkpoint.progress["agent_steps"]
            if whole:
                break
            failed += 1
    print(failed)


if __name__ == "__main__":
    main()
