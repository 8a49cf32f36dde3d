"""The sources of a trainer's batches. GA3C's source is the training queue: any rollouts, as many as an update needs.

Next hop of a rollout: `service.trainer.run_trainer`.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ga3c.settings.algorithms import facts
from ga3c.settings.plan import plan, rollouts_per_batch
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Batch, Slots
from ga3c.tuning.bottleneck import lag_ceiling


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


def lag_limit(settings: Settings) -> float:
    """Returns the mean lag, in updates, above which a rollout is dropped at each use of its batch; inf for no limit."""
    ceiling = lag_ceiling(settings.tuning.max_lag, settings.batching.batch_reuse)
    return ceiling if settings.batching.drop_stale and ceiling else math.inf


def stale(batch: Batch, version: int, max_lag: float) -> NDArray[np.bool_]:
    """Returns a mask (B,): rollouts whose steps are, in the mean, more than `max_lag` updates older than `version`."""
    filled = batch.filled[:, :, 0]
    mean: NDArray = (batch.version * filled).sum(axis=1) / np.maximum(filled.sum(axis=1), 1)
    return version - mean > max_lag


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
        refused: returns a mask (B,) of rollouts that must not be trained on; called whenever the batch is full.
        dropped: called with rollouts that are not trained on.
        n_buffers: how many batches stay valid at a time, the newest included; above 1 all are copied.
    """

    def __init__(self, channel: Channel, store: Slots, n_rollouts: int,
                 refused: Callable[[Batch], NDArray[np.bool_]], dropped: Callable[[Batch], None],
                 n_buffers: int = 1) -> None:
        self._channel, self._store, self._n_rollouts = channel, store, n_rollouts
        self._refused, self._dropped, self._n_buffers = refused, dropped, n_buffers

    def batches(self) -> Generator[Collected]:
        """See `BatchSource.batches`. A slot used without a copy is released at the next batch or the end."""
        return self._in_place() if self._n_rollouts == self._n_buffers == 1 else self._copied()

    def _in_place(self) -> Generator[Collected]:
        ended = False
        while not ended:
            with self._channel.collect(1) as (slots, ended):
                if slots and self._usable(batch := self._store.view(slots[0])).any():
                    yield Collected(batch, 1, 0.0)

    def _copied(self) -> Generator[Collected]:
        buffers = itertools.cycle([self._store.empty_batch(self._n_rollouts) for _ in range(self._n_buffers)])
        buffer, filled, ended, gathering = next(buffers), 0, False, 0.0
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
                    buffer, gathering = next(buffers), 0.0
        finally:
            if filled:
                self._dropped(buffer[:filled])

    def _usable(self, batch: Batch) -> NDArray[np.bool_]:
        refused = self._refused(batch)
        if refused.any():
            self._dropped(batch[refused])
        return ~refused


class Reused:
    """The batches of a source, each used `uses` times (like the circular buffer of IMPACT: Luo et al., 2020).

    After each new batch come the earlier ones, newest first. At the end of the run the remaining uses follow. A trainer
    dismissed during the run skips them, because other trainers have newer batches. Agent steps, episodes and agents'
    seconds count at the first use only (`Batch.again`).

    Args:
        source: its last `uses` batches must stay valid.
        refused: as for the source; called before each reuse. Refused rollouts were trained on before, so they do not
            count as dropped.
        ending: returns whether the run ends.
        over: returns whether time is up; then batches are not used again.
    """

    def __init__(self, source: BatchSource, uses: int, refused: Callable[[Batch], NDArray[np.bool_]],
                 ending: Callable[[], bool], over: Callable[[], bool]) -> None:
        self._source, self._uses, self._refused, self._ending, self._over = source, uses, refused, ending, over

    def batches(self) -> Generator[Collected]:
        """See `BatchSource.batches`."""
        recent: deque[Collected | None] = deque(maxlen=self._uses)
        with contextlib.closing(self._source.batches()) as new:
            for collected in itertools.chain(new, itertools.repeat(None, self._uses - 1)):
                recent.appendleft(collected)
                if collected is not None:
                    yield collected
                elif not self._ending():
                    return
                for before in itertools.islice(recent, 1, None):
                    if before is not None and not self._over() and (again := self._again(before)).steps.any():
                        yield Collected(again, before.filled, 0.0)

    def _again(self, before: Collected) -> Batch:
        batch = before.batch.again()
        batch.clear(self._refused(batch))
        return batch


def stale_filter(max_lag: float, version: Callable[[], int], min_valid_version: Callable[[], int]
                 ) -> Callable[[Batch], NDArray[np.bool_]]:
    """Returns a function that refuses rollouts that are `stale` or older than `min_valid_version`, as a mask (B,)."""
    def refused(batch: Batch) -> NDArray[np.bool_]:
        old: NDArray[np.bool_] = batch.version[:, 0] < min_valid_version()
        return old | stale(batch, version(), max_lag) if max_lag < math.inf else old

    return refused
