"""Run directories with the checkpoints of a new model, for what reads them."""

from __future__ import annotations

from pathlib import Path

from ga3c.envs.base import EnvSpec
from ga3c.envs.check import probe
from ga3c.learner import checkpoint
from ga3c.learner.checkpoint import Checkpoint
from ga3c.learner.learner import Learner
from ga3c.settings.files import to_yaml
from ga3c.settings.schema import Settings


_made: dict[str, Learner] = {}


def _learner(settings: Settings, spec: EnvSpec) -> Learner:
    """A new model, or that of an earlier test: compiling one takes a second or two. It is not to be trained."""
    if ":" in settings.algorithm.network + settings.algorithm.algorithm:  # the test's own code
        return Learner(settings, spec)
    name = f"{settings!r} {spec}"
    if name not in _made:
        _made[name] = Learner(settings, spec)
    return _made[name]


def make_trained(path: Path, settings: Settings, steps: tuple[int, ...] = (10,), game: str | None = None,
                 says: Settings | None = None) -> Learner:
    """A run directory with checkpoints of an untrained model; its config.yaml `says` other settings if asked to."""
    path.mkdir()
    (path / "config.yaml").write_text(to_yaml(says or settings))
    learner = _learner(settings, probe(settings))
    for number in steps:
        progress = {"game": game or settings.env.game, "agent_steps": number, "version": 1}
        checkpoint.save(path / "checkpoints", f"{number:012d}", Checkpoint(learner.state()[0], progress), 9)
    return learner
