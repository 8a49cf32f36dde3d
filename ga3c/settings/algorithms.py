"""What settings and the service know of each algorithm: facts, so that nothing else asks for its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Facts(NamedTuple):
    """path: the class. corrects_lag: else it takes samples as those of the weights that learn.

    one_pass: it begins with the preset `fast`, if no preset is named. rollouts_whole: a row of a minibatch is a
    rollout, not a step. predicts_first: an update predicts its whole batch before the first pass. workers_learn: agents
    have a model each, and learn by themselves (A3C on processors). own: which of the settings that not all algorithms
    read it does read; None: nobody knows.
    """

    path: str
    corrects_lag: bool = True
    one_pass: bool = False
    rollouts_whole: bool = False
    predicts_first: bool = False
    workers_learn: bool = False
    own: tuple[str, ...] | None = None


_CLIP, _CORRECTION = ("clip_range", "clip_range_final"), ("correction",)
ALGORITHMS: Mapping[str, Facts] = {
    "a3c": Facts("ga3c.algorithms.a3c:A3C", one_pass=True, rollouts_whole=True, own=_CORRECTION),
    "appo": Facts("ga3c.algorithms.appo:APPO", predicts_first=True, own=_CLIP),
    "a2c": Facts("ga3c.algorithms.a2c:A2C", corrects_lag=False, one_pass=True, own=()),
    "ppo": Facts("ga3c.algorithms.ppo:PPO", corrects_lag=False, own=_CLIP),
    "a3c-cpu": Facts("ga3c.algorithms.a3c:A3C", one_pass=True, rollouts_whole=True, workers_learn=True,
                     own=_CORRECTION),
}
"""Ours, by name."""


def facts(algorithm: str) -> Facts:
    """Of one of ours, or of a user's own, `package.module:Class`."""
    return ALGORITHMS.get(algorithm, Facts(algorithm))
