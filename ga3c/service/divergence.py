"""The rule for updates that diverge: a run goes back to a checkpoint once, with half the learning rate."""

from __future__ import annotations

from ga3c.learner.learner import Diverged, Model
from ga3c.runs.recorder import Recorder


class Divergence:
    """The divergence rule of one run."""

    def __init__(self, recorder: Recorder, model: Model) -> None:
        self._recorder = recorder
        self._model = model
        self._went_back = False

    def answer(self, error: Diverged) -> None:
        """Goes back to the newest finite checkpoint. Raises the error if there is none, or the second time."""
        recorder, model = self._recorder, self._model
        path = None if self._went_back else recorder.checkpoints.back_to_finite(model)
        self._went_back = True
        if path is None:
            raise error
        recorder.event("diverged", cause=str(error), back_to=str(path.relative_to(recorder.directory)),
                       learning_rate_factor=model.learning_rate_factor)
        recorder.log(f"Diverged: {error}. Going on once from the weights in {path}, with "
                     f"{model.learning_rate_factor:g} times the learning rate.")
