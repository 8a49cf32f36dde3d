"""The sources of a trainer's batches. GA3C's source is the training queue: any rollouts, as many as an update needs.

Next hop of a rollout: `service.trainer.run_trainer`.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ga3c.runs.statistics import Statistics
from ga3c.settings.algorithms import facts
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.fields import Field
from ga3c.transport.slots import Batch, Slots

if TYPE_CHECKING:
    from ga3c.learner.learner import Learner, UpdateStats  # imports Keras, which `--help` does not need


class Collected(NamedTuple):
    """A batch to train on. Rollouts after the first `filled` have no steps.

    gathering: seconds spent on copying. since: the learner's `min_valid_version` when the batch was cleaned.
    """

    batch: Batch
    filled: int
    gathering: float
    since: int


class BatchSource(Protocol):
    """A source of batches, which a trainer loops over. It counts what it collects, and refuses what it must."""

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of one rollout of its batches, by name: shapes without the axis of rollouts, and dtypes."""

    def batches(self) -> Generator[Collected]:
        """Yields batches. Each stays valid until the next one is requested or the generator is closed."""

    def learned(self, batch: Batch, update: UpdateStats) -> None:
        """Hears of an update from a batch of this source, or from a part of one. `update.rows` is about its rows."""


def notes_on_minibatches(settings: Settings) -> list[str]:
    """Returns a note if the settings ask for more minibatches than an update has whole rollouts; else nothing."""
    asked, rollouts = settings.algorithm.minibatches, settings.schedule.rollouts
    algorithm = settings.algorithm.algorithm
    if not facts(algorithm).rollouts_whole or asked <= rollouts:
        return []
    steps = f"{rollouts} step{'' if rollouts == 1 else 's'} of the optimizer"
    larger = "More --agents make" if settings.schedule.agents_wait else "--training-batch-min makes"
    return [f"--minibatches {asked}: {algorithm} takes rollouts whole, and an update has {rollouts}. A pass is "
            f"{steps}. {larger} updates larger."]


def clean(batch: Batch, learner: Learner, statistics: Statistics) -> int:
    """Empties rollouts of weights that a return to a checkpoint has replaced, and counts them as dropped.

    Returns the `min_valid_version` that this was decided by, for `Learner.update`.
    """
    since = learner.min_valid_version
    old: NDArray[np.bool_] = (batch.version[:, 0] < since) & (batch.steps > 0)
    if old.any():
        statistics.report_dropped(batch[old])
        batch.clear(old)
    return since


def join(store: Slots, rollouts: Iterable[tuple[int, list[int]]], buffer: Batch) -> None:
    """Fills the buffer with rollouts, each of (agent, its slots, oldest first). Other rollouts get no steps.

    All slots of an agent but the last were in an earlier update. Their steps count as reused (`Batch.reused`).
    """
    buffer.clear(slice(None))
    for place, (_, parts) in enumerate(rollouts):
        for slot in parts:
            store.append(slot, buffer, place)


class RolloutQueue:
    """Batches of `n_rollouts` rollouts from the training queue, until the trainer is dismissed.

    A batch of one rollout is trained on in its slot, without a copy. Several rollouts are copied into a buffer, which
    frees their slots at once. The last batch, after the dismissal, may be short. It is padded with rollouts without
    steps, because TensorFlow keeps buffers for every batch size.

    Args:
        learner: says which rollouts are too old to train on.
        statistics: counts what is collected and dropped.
    """

    def __init__(self, channel: Channel, store: Slots, n_rollouts: int, learner: Learner,
                 statistics: Statistics) -> None:
        self._channel = channel
        self._store = store
        self._n_rollouts = n_rollouts
        self._learner = learner
        self._statistics = statistics

    @property
    def fields(self) -> Mapping[str, Field]:
        """See `BatchSource.fields`."""
        return self._store.rollout_fields

    def batches(self) -> Generator[Collected]:
        """See `BatchSource.batches`. A slot used without a copy is released at the next batch or the end."""
        return self._in_place() if self._n_rollouts == 1 else self._copied()

    def learned(self, batch: Batch, update: UpdateStats) -> None:
        """See `BatchSource.learned`. The queue needs nothing of it: each batch is used once."""

    def _in_place(self) -> Generator[Collected]:
        over = False
        while not over:
            with self._channel.collect(1) as collection:
                over = collection.over
                for slot in collection.slots:
                    batch = self._store.view(slot)
                    self._statistics.collect(batch)
                    yield Collected(batch, 1, 0.0, clean(batch, self._learner, self._statistics))

    def _copied(self) -> Generator[Collected]:
        buffer, filled, over, gathering = self._store.empty_batch(self._n_rollouts), 0, False, 0.0
        try:
            while not over:
                with self._channel.collect(self._n_rollouts - filled) as collection:
                    before = time.monotonic()
                    self._store.gather(collection.slots, buffer, filled)
                    gathering += time.monotonic() - before
                if collection.rollouts:
                    began, filled = filled, filled + len(collection.rollouts)
                    self._statistics.collect(buffer[began:filled])
                over = collection.over
                if filled == self._n_rollouts or (over and filled):
                    buffer.clear(slice(filled, None))
                    full, filled = filled, 0
                    yield Collected(buffer, full, gathering, clean(buffer, self._learner, self._statistics))
                    gathering = 0.0
        finally:
            if filled:
                self._statistics.report_dropped(buffer[:filled])
