"""How actions are chosen from a model's outputs. An algorithm declares its `Acting`; agents and evaluations follow it.

Everything here is NumPy, since agents' processes import no framework. The functions of an `Acting` reach these
processes by their names. So a user's functions are best defined in a module that imports no framework either.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.transport.fields import Outputs as Outputs

Choose = Callable[[Outputs, np.random.Generator, NDArray[np.float64]], NDArray[np.int64]]
"""Maps (outputs for n observations, generator, exploration (n,)) to actions (n,) int64."""

Explore = Callable[[int, int, int], NDArray[np.float64]]
"""Maps (the agent's own steps so far, its number, its environments E) to the exploration of its next step, (E,)."""


class Acting(NamedTuple):
    """How an algorithm acts.

    choose: draws actions while it learns, and in evaluations that sample. best: the same without chance, for greedy
    evaluations: outputs to actions (n,) int64. explore: how much an agent explores, as its steps go on; what the
    number means is between `explore` and `choose`, as an epsilon in [0, 1]. in_evaluation: how much an evaluation that
    samples explores.
    """

    choose: Choose
    best: Callable[[Outputs], NDArray[np.int64]]
    explore: Explore
    in_evaluation: float = 0.0


def draw_from_policy(outputs: Outputs, rng: np.random.Generator, exploration: NDArray[np.float64]) -> NDArray[np.int64]:
    """Draws from the probabilities `policy` (n, A), by inverse transform sampling. Exploration is in the policy."""
    policy = outputs["policy"]
    actions = []
    for probabilities, uniform in zip(policy.tolist(), rng.random(len(policy)).tolist(), strict=True):
        cumulative = list(accumulate(probabilities))
        # Scaled by the sum, so that rounding cannot pick an action out of range.
        actions.append(bisect(cumulative, uniform * cumulative[-1], 0, len(cumulative) - 1))
    return np.array(actions)


def likeliest(outputs: Outputs) -> NDArray[np.int64]:
    """Returns the likeliest actions of `policy` (n, A)."""
    actions: NDArray[np.int64] = outputs["policy"].argmax(axis=1)
    return actions


def no_exploration(steps: int, agent: int, n_envs: int) -> NDArray[np.float64]:
    """Returns zeros (E,)."""
    return np.zeros(n_envs)


def epsilon_greedy(outputs: Outputs, rng: np.random.Generator, exploration: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the actions of the highest `q` (n, A), or with the probability `exploration` (n,) any action."""
    n, n_actions = outputs["q"].shape
    at_random = rng.random(n) < exploration
    return np.where(at_random, rng.integers(n_actions, size=n), highest(outputs))


def highest(outputs: Outputs) -> NDArray[np.int64]:
    """Returns the actions of the highest `q` (n, A)."""
    actions: NDArray[np.int64] = outputs["q"].argmax(axis=1)
    return actions


def falling(start: float, final: float, over: float, steps: int, agent: int, n_envs: int) -> NDArray[np.float64]:
    """Returns epsilon (E,): it falls linearly from `start` to `final` in the first `over` own steps of an agent."""
    return np.full(n_envs, start + min(1.0, steps / over) * (final - start))


BY_POLICY = Acting(draw_from_policy, likeliest, no_exploration)
"""For algorithms with an output `policy` of probabilities."""
