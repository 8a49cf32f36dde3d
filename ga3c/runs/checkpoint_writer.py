"""The writer of checkpoints. It works in the background, so that the supervisor never waits for a slow disk."""

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
    """The outcome of one write: the checkpoint's path, its agent steps, and the error if the write failed."""

    path: Path
    agent_steps: int
    error: OSError | None


class CheckpointWriter:
    """A writer of one checkpoint at a time into `directory`, in a thread of its own. Used by the main thread.

    The thread uses only the disk: it writes, syncs and renames a checkpoint, and removes old ones. The main thread
    fetches the outcome with `collect`.

    Attributes:
        path: the newest checkpoint written; None before the first one.
        agent_steps: of the newest checkpoint written; before the first one, the argument `agent_steps`.

    Args:
        keep: how many of the newest checkpoints stay.
        agent_steps: of the checkpoint that the run was resumed from, else 0.
        ended: called from the thread when a write has ended; not after `close`.
    """

    def __init__(self, directory: Path, keep: int, agent_steps: int, ended: Callable[[], None]) -> None:
        self.path: Path | None = None
        self.agent_steps = agent_steps
        self._directory = directory
        self._keep = keep
        self._ended = ended
        self._lock = threading.Lock()
        self._under_way: tuple[Path, int, Future[Path]] | None = None

    @property
    def busy(self) -> bool:
        """Whether a write has begun and its outcome is not yet collected."""
        return self._under_way is not None

    def begin(self, saved: Checkpoint, spared: Collection[str]) -> None:
        """Begins to write `saved`, which the caller must not change after that. No other write may be under way.

        Old checkpoints stay if their name is in `spared`, or if they are the first after a full hour of training.
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
        """Waits until the write under way has ended, if there is one; at most `seconds`."""
        if self._under_way is not None:
            wait([self._under_way[2]], seconds)

    def collect(self) -> Written | None:
        """Returns the outcome of a write that has ended; None if there is none, or if it was collected before.

        Raises any error of the thread except OSError, which is part of the outcome.
        """
        if self._under_way is None or not self._under_way[2].done():
            return None
        (path, agent_steps, outcome), self._under_way = self._under_way, None
        try:
            self.path = outcome.result()
            self.agent_steps = agent_steps
            return Written(path, agent_steps, None)
        except OSError as error:
            return Written(path, agent_steps, error)

    def close(self) -> None:
        """Stops the calls of `ended`. A write under way continues until it or the process ends."""
        with self._lock:
            self._ended = lambda: None


def newest_finite(directory: Path) -> tuple[Path, dict[str, NDArray]] | None:
    """Returns the newest whole checkpoint in `directory` without NaN or infinity, and its arrays; None: there is none.

    The state of games is not checked: it may contain an infinity.
    """
    for path in checkpoint.saved(directory):
        with contextlib.suppress(checkpoint.CheckpointError):
            arrays = checkpoint.load(path).arrays
            if all(np.isfinite(array).all() for name, array in arrays.items()
                   if not name.startswith("serial.")):
                return path, arrays
    return None
