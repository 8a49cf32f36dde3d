"""The start of a run: from nothing, from the weights of another run, or from a checkpoint of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from ga3c.envs.base import EnvSpec
from ga3c.learner.checkpoint import Checkpoint, CheckpointError, load, newest, unusable
from ga3c.settings.files import settings_of, yaml_scalar
from ga3c.settings.messages import ConfigError, flag
from ga3c.settings.schema import Settings

if TYPE_CHECKING:
    from ga3c.learner.learner import Model


class Beginning(NamedTuple):
    """The data that a run starts from, after the model has taken its weights. All fields of a new run are empty.

    Attributes:
        path, progress, arrays: of the checkpoint that the run resumes from.
        notes: lines for the user.
    """

    path: Path | None = None
    progress: Mapping[str, Any] = MappingProxyType({})
    arrays: dict[str, NDArray] = {}
    notes: tuple[str, ...] = ()


def resume_from_checkpoint(settings: Settings, spec: EnvSpec, model: Model, directory: Path,
                           named: Path | None) -> Beginning:
    """Restores the model from the newest whole checkpoint, or from `named`. Raises ConfigError, CheckpointError."""
    checkpoint, path, passed_over = _loaded(directory, named)
    progress = checkpoint.progress
    wrong = unusable(progress)
    if wrong:
        raise CheckpointError(f"{path} cannot be resumed from: {wrong}")
    for name, wanted in (("game", settings.env.game), ("rollout_length", settings.algorithm.rollout_length)):
        trained_on = progress.get(name)
        if wanted != trained_on:
            raise ConfigError(f"{flag(name)}: {wanted}, but {path} was trained on {trained_on}; "
                              "--weights-only begins a new run with its weights")
    _check_contrast(settings, spec, path, progress)
    try:
        model.restore(checkpoint.arrays, progress["version"])
        model.learning_rate_factor = progress["learning_rate_factor"]
    except ValueError as error:
        raise ConfigError(f"--resume: {path}: {error}") from None
    return Beginning(path, progress, checkpoint.arrays, tuple(passed_over))


def start_from_weights(settings: Settings, spec: EnvSpec, model: Model, directory: Path,
                       named: Path | None) -> Beginning:
    """Gives a new model the weights of the newest whole checkpoint, or of `named`.

    Raises ConfigError, CheckpointError.
    """
    checkpoint, path, passed_over = _loaded(directory, named)
    _check_contrast(settings, spec, path, checkpoint.progress)
    try:
        model.start_from(checkpoint.arrays)
    except ValueError as error:
        raise ConfigError(f"--weights-only: {path}: {error}") from None
    return Beginning(notes=(*passed_over, f"Begins with the weights of {path}"))


def _loaded(directory: Path, named: Path | None) -> tuple[Checkpoint, Path, list[str]]:
    """Returns the checkpoint, its path, and lines that say why newer checkpoints were passed over."""
    if named is not None:
        return load(named), named, []
    checkpoint, path, reasons = newest(directory / "checkpoints")
    return checkpoint, path, [f"Skipped an unusable checkpoint: {reason}" for reason in reasons]


def _check_contrast(settings: Settings, spec: EnvSpec, path: Path, progress: dict[str, Any]) -> None:
    """Raises ConfigError if `contrast` differs, for images: the weights would fit, but would play differently."""
    wanted = settings.algorithm.contrast
    trained_with = settings_of(progress).get("contrast", wanted)
    if wanted != trained_with and len(spec.observation_shape) == 3:
        raise ConfigError(f"--contrast: {yaml_scalar(wanted)}, but {path} was trained with {yaml_scalar(trained_with)}")
