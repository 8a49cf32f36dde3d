"""A trainer: a thread that turns rollouts into updates. The last hop of an observation: `learner.Learner.update`."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.learner.learner import Learner, TooLarge, UpdateStats
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Slots, Batch


class Spent(NamedTuple):
    """Where a trainer's time went between two reports, in seconds: waiting, for rollouts or another trainer's update;
    copying rollouts; updating. `outside`: processor seconds that its thread took outside the model.
    """

    waiting: float
    gathering: float
    updating: float
    outside: float


def rollouts_per_batch(settings: Settings) -> int:
    """The fewest full rollouts that hold `training_batch_min` agent steps."""
    return -(-settings.batching.training_batch_min // (settings.algorithm.rollout_length * settings.agents.envs_per_agent))


def stale(batch: Batch, version: int, max_lag: float) -> NDArray[np.bool_]:
    """(B,): whether a rollout's steps are more than `max_lag` updates older than `version` in the mean."""
    filled = batch.filled[:, :, 0]
    mean: NDArray = (batch.version * filled).sum(axis=1) / np.maximum(filled.sum(axis=1), 1)
    return version - mean > max_lag


def run_trainer(channel: Channel, store: Slots, model: Learner, n_rollouts: int,
                report: Callable[[UpdateStats, Batch, Spent], None],
                halved: Callable[[int, int], None] = lambda most, n_rollouts: None,
                max_lag: float = math.inf, dropped: Callable[[Batch], None] = lambda batch: None) -> None:
    """Collects `n_rollouts` rollouts, one update, reports it; until dismissed, then trains on what it has and ends.
    Fewer, too, where those that blocks have left over would else wait for ever.

    If the device has no memory for a batch, its halves are trained on one after the other, from then on of every batch;
    `halved` is told (rollouts in an update from now on, in a batch). Raises TooLarge if even one rollout is too much.
    Rollouts that are `stale` by `max_lag` once the batch is full are given to `dropped`, and others collected for them,
    but for those of a block; so are those of an update that was not made, also if it failed.
    """
    def old(batch: Batch) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = stale(batch, model.version, max_lag) | (batch.version[:, 0] < model.min_valid_version)
        if found.any():
            dropped(batch[found])
        return found

    most, told, inside = n_rollouts, time.thread_time(), 0.0
    with contextlib.closing(_batches(channel, store, n_rollouts, old, dropped)) as batches:
        for batch, filled, waiting, gathering in batches:
            first = 0
            while first < filled:
                part = batch[first:first + most]
                before, entered = time.monotonic(), time.thread_time()
                try:
                    update = model.update(part)
                except Exception as error:
                    if not isinstance(error, TooLarge) or len(part) == 1:
                        dropped(batch[first:filled])
                        raise
                    most = -(-len(part) // 2)
                    halved(most, n_rollouts)
                    continue
                finally:
                    inside += time.thread_time() - entered
                if update is None:
                    dropped(part)
                else:
                    updating, now = time.monotonic() - before - update.waited, time.thread_time()
                    report(update, part, Spent(waiting + update.waited, gathering, updating, now - told - inside))
                    told, inside = now, 0.0
                first, waiting, gathering = first + len(part), 0.0, 0.0


def _batches(channel: Channel, store: Slots, n_rollouts: int,
             old: Callable[[Batch], NDArray[np.bool_]], dropped: Callable[[Batch], None]
             ) -> Generator[tuple[Batch, int, float, float]]:
    """Batches, how many rollouts there are in each, and the seconds that waiting for them and copying them took.

    Rollouts side by side are lent as they lie in their slots, without those that are `old`. Others are copied together,
    and more collected for the old ones. A batch that is not full, as the last, is filled up with rollouts without a
    step: TensorFlow meets one size only.
    """
    room, filled, overtaken, ended = store.empty_batch(n_rollouts), 0, False, False
    began, gathering = time.monotonic(), 0.0
    try:
        while not ended:
            # What has been copied is not to grow old while blocks come: after one it is its turn. A block that is
            # broken to fill it up leaves as much over, so where nothing else would ever come it is trained on as it is.
            if not (overtaken and channel.only_blocks()):
                with channel.collect(n_rollouts - filled, oldest=overtaken) as (slots, ended):
                    block = store.lend(slots) if len(slots) == n_rollouts else None
                    if block is None:
                        before = time.monotonic()
                        store.gather(slots, room, filled)
                        gathering += time.monotonic() - before
                    elif not (found := old(block)).all():
                        block.empty(found)
                        yield block, n_rollouts, time.monotonic() - began - gathering, gathering
                        began, gathering, overtaken = time.monotonic(), 0.0, filled > 0
                if block is None:
                    filled += len(slots)
                if filled < n_rollouts and not ended:
                    continue
            if (found := old(room[:filled])).any():
                filled = room.keep(~found)
                if not ended:
                    continue
            full, filled, overtaken = filled, 0, False
            room.empty(slice(full, None))
            yield room, full, time.monotonic() - began - gathering, gathering
            began, gathering = time.monotonic(), 0.0
    finally:
        if filled:
            dropped(room[:filled])
