"""The checkpoints of a run: when one is due, its contents, and which stay. `checkpoint_writer.py` writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from ga3c.learner import checkpoint
from ga3c.learner.checkpoint import Checkpoint
from ga3c.learner.learner import DeviceFailed, Model
from ga3c.runs.checkpoint_writer import CheckpointWriter, Written, newest_finite
from ga3c.settings.schema import RunSettings

if TYPE_CHECKING:
    from ga3c.runs.recorder import Recorder

SKIP_SECONDS = 2.0     # to wait for a write under way, if no last checkpoint is made
GO_BACK_SECONDS = 5.0  # to wait for a write under way, before older weights are read
OnDone = Callable[[Path | None], None]


class Checkpoints:
    """The checkpoints of one run. Used by the main thread.

    These stay: the newest few, the first after each full hour, the best, and the one under evaluation.

    Attributes:
        directory: holds the checkpoints, each named by its agent steps.
        due_at: seconds of training at which the next checkpoint is due.
        best: the best by evaluation so far; it is never removed.
        extra_arrays: returns further arrays for the checkpoint, by name.

    Args:
        record: gets an event for each checkpoint; the checkpoint `record.evaluating` stays.
        agent_steps: of the checkpoint that the run resumes from, else 0.
        wake: called from another thread when a write has ended; `collect` is then due.
    """

    def __init__(self, directory: Path, settings: RunSettings, record: Recorder, agent_steps: int,
                 wake: Callable[[], None]) -> None:
        self.directory = directory
        self.due_at = 0.0
        self.best: checkpoint.Best | None = None
        self.extra_arrays: Callable[[], dict[str, NDArray]] = dict
        self._record = record
        self._seconds = 60.0 * settings.checkpoint_minutes
        self._writer = CheckpointWriter(directory, settings.checkpoints_kept, agent_steps, wake)
        self._callbacks: list[OnDone] = []

    def start(self) -> None:
        """Sets when the first checkpoint is due, and reads the best one. Called when training begins."""
        self.due_at = self._record.time + self._seconds
        self.best = checkpoint.best(self.directory)

    def request_if_due(self, model: Model) -> None:
        """Begins a checkpoint if one is due. Called once a second."""
        self._record.disturbances += self._writer.busy
        if self._record.time >= self.due_at and not self._writer.busy:
            self.request(model)

    def request(self, model: Model, on_done: OnDone | None = None) -> None:
        """Begins a checkpoint of the current state; a later `collect` reports it.

        While another checkpoint is being written, a request without `on_done` makes the next one due at once. If
        storage or device fails, the user is warned, training goes on, and the next try is within a minute.

        Args:
            on_done: called with the path of the checkpoint by that `collect`, or with None once it has failed. While
                another checkpoint is being written, `on_done` gets that one, and no further one begins.
        """
        if on_done is not None:
            self._callbacks.append(on_done)
        if self._writer.busy:
            if on_done is None:
                self.due_at = self._record.time
            return
        self.due_at = self._record.time + self._seconds
        try:
            self._begin_writing(model)
        except DeviceFailed as error:
            self._failed(error)

    def _begin_writing(self, model: Model) -> None:
        """Copies the state between two updates and begins to write it. Raises DeviceFailed."""
        arrays, version = model.state()
        agent_steps = self._record.statistics.agent_steps
        progress = self._record.progress() | {"version": version, "agent_steps": agent_steps,
                                              "frames": self._record.statistics.frames(agent_steps),
                                              "learning_rate_factor": model.learning_rate_factor}
        spared = {self.best.checkpoint} if self.best else set()
        spared |= {under_way.name} if (under_way := self._record.evaluating) else set()
        self._record.disturbances += 1
        self._writer.begin(Checkpoint(arrays | self.extra_arrays(), progress), spared)

    def collect(self) -> None:
        """Records the outcome of a write that has ended; cheap if none has. Raises any error of it except OSError."""
        written = self._writer.collect()
        if written is not None and written.error is not None:
            self._failed(written.error)
        elif written is not None:
            self._written(written)

    def _written(self, written: Written) -> None:
        self._record.disturbances += 1
        self._record.event("checkpoint", path=str(written.path.relative_to(self.directory.parent)),
                           agent_steps=written.agent_steps)
        self._call_back(written.path)

    def _failed(self, error: OSError | DeviceFailed) -> None:
        seconds = min(self._seconds, 60.0)
        self.due_at = self._record.time + seconds
        self._record.disturbances += 1
        self._record.event("checkpoint_failed", cause=str(error))
        goes_on = "" if self._record.over else f"; training goes on, the next try is in {seconds:.0f} s"
        self._record.log(f"No checkpoint: {getattr(error, 'strerror', None) or error}{goes_on}. "
                         "Earlier checkpoints are intact.")
        self._call_back(None)

    def _call_back(self, path: Path | None) -> None:
        """Calls each waiting `on_done` with the path of the checkpoint, or with None if it failed."""
        waiting, self._callbacks = self._callbacks, []
        for on_done in waiting:
            on_done(path)

    def wait(self, seconds: float | None = None) -> None:
        """Waits until a checkpoint under way is on disk or has failed, at most `seconds`, and records it."""
        self._writer.wait(seconds)
        self.collect()

    def save(self, model: Model) -> Path:
        """Writes a checkpoint of the current state and waits for it; returns its path. Raises OSError, DeviceFailed."""
        self.wait()
        self._begin_writing(model)
        self._writer.wait()
        written = self._writer.collect()
        assert written is not None
        if written.error is not None:
            raise written.error
        self._written(written)
        return written.path

    def save_last(self, model: Model) -> Path | None:
        """Writes a checkpoint if agent steps were collected since the newest one, and waits for it.

        Returns the path of the newest checkpoint that this process has written; None if there is none. Raises OSError,
        DeviceFailed.
        """
        self.wait()
        newer = self._record.statistics.agent_steps > self._writer.agent_steps
        return self.save(model) if newer else self._writer.path

    def skip_last(self) -> None:
        """Waits up to `SKIP_SECONDS` for a write under way to end. Makes no last checkpoint."""
        self.wait(SKIP_SECONDS)

    def back_to_finite(self, model: Model) -> Path | None:
        """Gives `model` the weights of the newest whole checkpoint without NaN or infinity.

        Halves the learning rate and keeps the counters. Returns the path of that checkpoint. Returns None and changes
        nothing if there is none.
        """
        self.wait(GO_BACK_SECONDS)
        newest = newest_finite(self.directory)
        if newest is None:
            return None
        path, arrays = newest
        model.go_back(arrays)
        model.learning_rate_factor *= 0.5
        return path

    def close(self) -> None:
        """Stops the calls of `wake`. A write under way continues until it or the process ends."""
        self._writer.close()
