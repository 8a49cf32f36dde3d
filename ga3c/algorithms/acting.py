"""How actions are chosen from a model's outputs. An algorithm declares its `Acting`; agents and evaluations follow it.

Everything here is NumPy, since agents' processes import no framework. The functions of an `Acting` reach these
processes by their names. So a user's functions are best defined in a module that imports no framework either.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.transport.fields import Outputs as Outputs

if TYPE_CHECKING:
    from ga3c.settings.schema import Settings

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


@dataclasses.dataclass(frozen=True)
class Falling:
    """How epsilon falls with the steps of an agent, as `Explore`.

    Its first `random` own steps are random. In the next `over` epsilon falls linearly from `start` to the final one.
    That is the same for all `environments`, or from `final` of the first to `least` of the last, evenly in the
    logarithm.
    """

    start: float
    final: float
    over: float
    random: float = 0.0
    least: float | None = None
    environments: int = 1

    def __call__(self, steps: int, agent: int, n_envs: int) -> NDArray[np.float64]:
        """Returns epsilon (E,)."""
        if steps < self.random:
            return np.ones(n_envs)
        final: NDArray[np.float64] | float = self.final
        if self.least is not None:
            place = np.arange(agent * n_envs, (agent + 1) * n_envs) / max(1, self.environments - 1)
            final = self.final * (self.least / self.final)**np.minimum(place, 1.0)
        return self.start + min(1.0, (steps - self.random) / self.over) * (final - np.full(n_envs, self.start))


def epsilon_greedily(settings: Settings, random_steps: int = 0) -> Acting:
    """Returns how agents act on `q`: epsilon falls with their own steps, as many as the settings give to all agents.

    random_steps: of all agents, before it begins to fall.
    """
    value, environments = settings.value, settings.schedule.agents * settings.agents.envs_per_agent
    final = value.epsilon if value.epsilon_final is None else value.epsilon_final
    explore = Falling(value.epsilon, final, value.epsilon_steps / environments, random_steps / environments,
                      value.epsilon_least, environments)
    return Acting(epsilon_greedy, highest, explore, value.epsilon_evaluation)


BY_POLICY = Acting(draw_from_policy, likeliest, no_exploration)
"""For algorithms with an output `policy` of probabilities."""
