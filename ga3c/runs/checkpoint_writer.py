"""Writes checkpoints in the background, so that the supervisor never waits for a slow disk while training goes on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.learner import checkpoint
from ga3c.learner.checkpoint import Checkpoint


class Written(NamedTuple):
    """What came of one write: the checkpoint's path and its agent steps, or the error that prevented it."""

    path: Path
    agent_steps: int
    error: OSError | None


class CheckpointWriter:
    """Writes one checkpoint at a time into `directory`, in a thread of its own. Used by the main thread.

    The thread touches nothing but the disk. It writes, syncs, renames and removes old checkpoints. The main thread
    fetches the outcome with `collect`.

    Attributes:
        path: the newest checkpoint written; None before the first one.
        agent_steps: those of the newest checkpoint, at first of the one the run was resumed from.

    Args:
        keep: so many of the newest checkpoints stay.
        ended: called from the thread when a write has ended; not after `close`.
    """

    def __init__(self, directory: Path, keep: int, agent_steps: int, ended: Callable[[], None]) -> None:
        self.path: Path | None = None
        self.agent_steps = agent_steps
        self._directory, self._keep, self._ended = directory, keep, ended
        self._lock = threading.Lock()
        self._under_way: tuple[Path, int, Future[Path]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a write has begun whose outcome is not collected yet."""
        return self._under_way is not None

    def begin(self, saved: Checkpoint, spared: Collection[str]) -> None:
        """Begins to write `saved`, which must not change any more. No other write may be under way.

        Checkpoints named in `spared` stay, and so do the first ones after each full hour.
        """
        assert self._under_way is None
        agent_steps = saved.progress["agent_steps"]
        name = f"{agent_steps:012d}"
        outcome: Future[Path] = Future()
        outcome.add_done_callback(self._notify)
        self._under_way = self._directory / name, agent_steps, outcome

        def write() -> None:
            try:
                kept = [*spared, *checkpoint.hourly(self._directory)]
                outcome.set_result(checkpoint.save(self._directory, name, saved, self._keep, kept))
            except BaseException as error:  # noqa: B036  # raised again by `collect`
                outcome.set_exception(error)

        try:
            threading.Thread(target=write, name="checkpoint", daemon=True).start()
        except RuntimeError:  # the system has no thread left
            write()

    def _notify(self, outcome: Future[Path]) -> None:
        with self._lock:
            self._ended()

    def wait(self, seconds: float | None = None) -> None:
        """Waits for the write under way to end, if there is one, for `seconds` at most."""
        if self._under_way is not None:
            wait([self._under_way[2]], seconds)

    def collect(self) -> Written | None:
        """Returns the outcome of a write that has ended, once; None if there is none.

        Raises what the thread raised, unless it was an OSError: that one is part of the outcome.
        """
        if self._under_way is None or not self._under_way[2].done():
            return None
        (path, agent_steps, outcome), self._under_way = self._under_way, None
        try:
            self.path, self.agent_steps = outcome.result(), agent_steps
            return Written(path, agent_steps, None)
        except OSError as error:
            return Written(path, agent_steps, error)

    def close(self) -> None:
        """From now on `ended` is not called. A write under way goes on until it or the process ends."""
        with self._lock:
            self._ended = lambda: None


def newest_finite(directory: Path) -> tuple[Path, dict[str, NDArray]] | None:
    """The newest whole checkpoint in `directory` of a model without NaN or infinity, and its arrays; None: none is.

    Games and wrappers may keep an infinity.
    """
    from ga3c.envs.wrapper_statistics import SAVED  # with gymnasium, which `--help` does without
    for path in checkpoint.saved(directory):
        with contextlib.suppress(checkpoint.CheckpointError):
            arrays = checkpoint.load(path).arrays
            if all(np.isfinite(array).all() for name, array in arrays.items()
                   if not name.startswith(("serial.", SAVED))):
                return path, arrays
    return None
