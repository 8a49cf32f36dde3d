"""The checkpoints of a run: when one is due, what is in it, which ones stay. They are written in the background."""

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

SKIP_SECONDS = 2.0     # a write under way gets so long when the last checkpoint is to be skipped
GO_BACK_SECONDS = 5.0  # a write under way gets so long before older weights are read
Then = Callable[[Path | None], None]


class Checkpoints:
    """Makes the checkpoints of one run. Used by the main thread.

    Beside the newest few stay the first after each full hour, the best and the one under evaluation.

    Attributes:
        directory: they are in here, each named after its agent steps.
        due_at: seconds of training at which the next one is due.
        best: the best by evaluation so far; it is never removed.
        also_saved: returns further arrays for the checkpoint, by name.

    Args:
        record: gets an event of each; its `evaluating` is kept.
        agent_steps: those of the checkpoint that the run goes on from, else 0.
        wake: called from another thread when a write has ended; `collect` is then due.
    """

    def __init__(self, directory: Path, settings: RunSettings, record: Recorder, agent_steps: int,
                 wake: Callable[[], None]) -> None:
        self.directory, self.due_at = directory, 0.0
        self.best: checkpoint.Best | None = None
        self.also_saved: Callable[[], dict[str, NDArray]] = dict
        self._record, self._seconds = record, 60.0 * settings.checkpoint_minutes
        self._writer = CheckpointWriter(directory, settings.checkpoints_kept, agent_steps, wake)
        self._waiting: list[Then] = []

    def start(self) -> None:
        """Training begins now: the first checkpoint is due after the usual time."""
        self.due_at = self._record.time + self._seconds
        self.best = checkpoint.best(self.directory)

    def request_if_due(self, model: Model) -> None:
        """Begins a checkpoint if one is due. Called once a second."""
        self._record.disturbances += self._writer.busy
        if self._record.time >= self.due_at and not self._writer.busy:
            self.request(model)

    def request(self, model: Model, then: Then | None = None) -> None:
        """Begins a checkpoint of this moment, or has one begun soon; a later `collect` reports it.

        If storage or device fails, the user is warned, training goes on, and the next try is within a minute. While
        another one is being written, this one begins after that.

        Args:
            then: called by that `collect` with the path of the checkpoint, or with None if it failed. While another one
                is being written, `then` gets that one.
        """
        if then is not None:
            self._waiting.append(then)
        if self._writer.busy:
            if then is None:
                self.due_at = self._record.time
            return
        self.due_at = self._record.time + self._seconds
        try:
            self._begin_writing(model)
        except DeviceFailed as error:
            self._failed(error)

    def _begin_writing(self, model: Model) -> None:
        """Takes the state between two updates and begins to write it. Raises DeviceFailed."""
        arrays, version, agent_steps = model.state()
        progress = self._record.progress() | {"version": version, "agent_steps": agent_steps,
                                              "frames": self._record.statistics.frames(agent_steps),
                                              "learning_rate_factor": model.learning_rate_factor}
        spared = {self.best.checkpoint} if self.best else set()
        spared |= {under_way.name} if (under_way := self._record.evaluating) else set()
        self._record.disturbances += 1
        self._writer.begin(Checkpoint(arrays | self.also_saved(), progress), spared)

    def collect(self) -> None:
        """Records the outcome of a write that has ended; else cheap. Raises what it raised, other than OSError."""
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
        goes_on = self._record.goes_on("; ")
        goes_on += goes_on and f", the next try is in {seconds:.0f} s"
        self._record.log(f"No checkpoint: {getattr(error, 'strerror', None) or error}{goes_on}. "
                         "Earlier checkpoints are whole.")
        self._call_back(None)

    def _call_back(self, path: Path | None) -> None:
        """Tells everyone who waits for a checkpoint that it is at `path`, or that it failed."""
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then(path)

    def wait(self, seconds: float | None = None) -> None:
        """Waits until a checkpoint that is being written is on disk or has failed, for `seconds` at most."""
        self._writer.wait(seconds)
        self.collect()

    def save(self, model: Model) -> Path:
        """Writes a checkpoint of this moment and waits for it; returns its path. Raises OSError, DeviceFailed."""
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
        """Writes a checkpoint if something was learned since the newest one, and waits for it.

        Returns the path of the newest checkpoint that this process has written; None if there is none. Raises OSError,
        DeviceFailed.
        """
        self.wait()
        return self.save(model) if model.agent_steps > self._writer.agent_steps else self._writer.path

    def skip_last(self) -> None:
        """No last checkpoint is made; one under way has a moment to end."""
        self.wait(SKIP_SECONDS)

    def back_to_finite(self, model: Model) -> Path | None:
        """Gives `model` the weights of the newest whole checkpoint without NaN or infinity.

        Its learning rate is halved, its counters go on. Returns the path of that checkpoint; None, with nothing
        changed, if there is none.
        """
        self.wait(GO_BACK_SECONDS)
        found = newest_finite(self.directory)
        if found is None:
            return None
        path, arrays = found
        model.go_back(arrays)
        model.learning_rate_factor *= 0.5
        return path

    def close(self) -> None:
        """From now on `wake` is not called. A write under way goes on until it or the process ends."""
        self._writer.close()
