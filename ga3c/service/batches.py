"""The sources of a trainer's batches. GA3C's source is the training queue: any rollouts, as many as an update needs.

Next hop of a rollout: `service.trainer.run_trainer`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ga3c.settings.algorithms import facts
from ga3c.settings.plan import plan, rollouts_per_batch
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Batch, Slots


class Collected(NamedTuple):
    """A batch to train on. Rollouts after the first `filled` have no steps. `gathering`: seconds spent on copying."""

    batch: Batch
    filled: int
    gathering: float


class BatchSource(Protocol):
    """A source of batches, which a trainer loops over."""

    def batches(self) -> Generator[Collected]:
        """Yields batches. Each stays valid until the next one is requested or the generator is closed."""


def notes_on_minibatches(settings: Settings) -> list[str]:
    """Returns a note if the settings ask for more minibatches than an update has whole rollouts; else nothing."""
    asked, rollouts = settings.algorithm.minibatches, rollouts_per_batch(settings)
    algorithm = settings.algorithm.algorithm
    if not facts(algorithm).rollouts_whole or asked <= rollouts:
        return []
    steps = f"{rollouts} step{'' if rollouts == 1 else 's'} of the optimizer"
    larger = "More --agents make" if plan(settings).in_rounds else "--training-batch-min makes"
    return [f"--minibatches {asked}: {algorithm} takes rollouts whole, and an update has {rollouts}. A pass is "
            f"{steps}. {larger} updates larger."]


def abandoned(batch: Batch, min_valid_version: int) -> NDArray[np.bool_]:
    """Returns a mask (B,): rollouts of weights that a return to a checkpoint has replaced."""
    old: NDArray[np.bool_] = batch.version[:, 0] < min_valid_version
    return old


def join(store: Slots, slots: Iterable[list[int]], buffer: Batch) -> None:
    """Fills the buffer with one rollout per agent, from its slots, oldest first. Other rollouts get no steps.

    All slots of an agent but the last were in an earlier update. Their steps count as reused (`Batch.reused`).
    """
    buffer.clear(slice(None))
    for place, parts in enumerate(slots):
        for slot in parts:
            store.append(slot, buffer, place)


class RolloutQueue:
    """Batches of `n_rollouts` rollouts from the training queue, until the trainer is dismissed.

    A batch of one rollout is trained on in its slot, without a copy. Several rollouts are copied into a buffer, which
    frees their slots at once. The last batch, after the dismissal, may be short. It is padded with rollouts without
    steps, because TensorFlow keeps buffers for every batch size.

    Args:
        min_valid_version: returns the oldest version whose rollouts may be trained on; called when the batch is full.
        dropped: called with rollouts that are not trained on.
    """

    def __init__(self, channel: Channel, store: Slots, n_rollouts: int, min_valid_version: Callable[[], int],
                 dropped: Callable[[Batch], None]) -> None:
        self._channel = channel
        self._store = store
        self._n_rollouts = n_rollouts
        self._min_valid_version = min_valid_version
        self._dropped = dropped

    def batches(self) -> Generator[Collected]:
        """See `BatchSource.batches`. A slot used without a copy is released at the next batch or the end."""
        return self._in_place() if self._n_rollouts == 1 else self._copied()

    def _in_place(self) -> Generator[Collected]:
        ended = False
        while not ended:
            with self._channel.collect(1) as (slots, ended):
                if slots and self._usable(batch := self._store.view(slots[0])).any():
                    yield Collected(batch, 1, 0.0)

    def _copied(self) -> Generator[Collected]:
        buffer, filled, ended, gathering = self._store.empty_batch(self._n_rollouts), 0, False, 0.0
        try:
            while not ended:
                with self._channel.collect(self._n_rollouts - filled) as (slots, ended):
                    before = time.monotonic()
                    self._store.gather(slots, buffer, filled)
                    gathering += time.monotonic() - before
                filled += len(slots)
                if filled == self._n_rollouts or ended:
                    sound = self._usable(buffer[:filled])
                    filled = filled if sound.all() else buffer.keep(sound)
                if filled == self._n_rollouts or (ended and filled):
                    buffer.clear(slice(filled, None))
                    full, filled = filled, 0
                    yield Collected(buffer, full, gathering)
                    gathering = 0.0
        finally:
            if filled:
                self._dropped(buffer[:filled])

    def _usable(self, batch: Batch) -> NDArray[np.bool_]:
        old = abandoned(batch, self._min_valid_version())
        if old.any():
            self._dropped(batch[old])
        return ~old
