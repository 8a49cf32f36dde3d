"""What tests of the record of a run are built from: a clock that the test sets, and a learner that only counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np

from ga3c.envs.base import EnvSpec
from ga3c.learner import checkpoint
from ga3c.learner.learner import Learner, UpdateStats
from ga3c.learner.skips import Skips
from ga3c.runs.recorder import Recorder
from ga3c.runs.statistics import TrainerTime, Workers
from ga3c.transport.slots import Batch, Slots

SPEC = EnvSpec("Pong", (2,), np.dtype("u1"), 3, 4)
WORKERS = Workers(2, 1, 1, 0, 0)


class Clock:
    """Monotonic seconds, as the test sets them."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Learned:
    """As much of a learner as a recorder uses: it has made `version` updates."""

    def __init__(self, version: int = 0) -> None:
        self.version, self.learning_rate_factor = version, 1.0
        self.skips = Skips()

    def state(self) -> tuple[dict[str, np.ndarray], int]:
        return {"weights": np.full(3, self.version, np.float32)}, self.version


def model(version: int = 0, record: Recorder | None = None) -> Learner:
    """The learner after so many updates. Ten agent steps for each are collected in the record."""
    if record is not None:
        record.statistics.agent_steps = 10 * version
    return cast(Learner, Learned(version))


def learned(record: Recorder, version: int, *scores: float, spent: TrainerTime | None = None) -> Learner:
    """Reports the update to `version`, of ten steps each, in which episodes ended with these scores."""
    batch: Batch = Slots(SPEC, max(1, len(scores)), 1, 1).empty_batch(1)
    batch.steps[:], batch.seconds[:] = len(scores), 0.01
    batch.score[0, :len(scores), 0], batch.episode_length[:] = scores, 7
    batch.version[:] = batch.requested_at[:] = 0
    record.statistics.agent_steps = 10 * version - len(scores)
    record.statistics.collect(batch)
    record.statistics.report(UpdateStats(version, 10, {
        "policy_loss": 0.5, "value_loss": 2.0, "entropy": 1.0, "gradient_norm": 9.0, "explained_variance": 0.1,
        "learning_rate": 3e-4}), batch, spent)
    return model(version, record)


def tick(record: Recorder, learner: Learner) -> dict[str, Any] | None:
    """A tick, and the end of the checkpoint that it began, if it did."""
    row = record.tick(learner, WORKERS, [])
    record.checkpoints.wait()
    return row


def end(record: Recorder, learner: Learner, reason: str) -> None:
    """The end of a run, as the command makes it."""
    record.end_training()
    record.checkpoints.save_last(learner)
    record.finish(reason)


def rows(directory: Path, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in (directory / file).read_text().splitlines()]


def names(directory: Path) -> list[int]:
    """The agent steps of the checkpoints of a run."""
    return sorted(int(path.name) for path in checkpoint.saved(directory / "checkpoints"))
