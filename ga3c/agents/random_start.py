"""Random steps before learning begins, so that environments that start together do not stay together.

Each environment takes a number of its own of them (Stooke and Abbeel, Accelerated Methods for Deep Reinforcement
Learning, 2018: without it learning fails early). They are in no rollout and count nowhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.base import Environment


def play_randomly(environment: Environment, n_envs: int, most: int, seed: np.random.SeedSequence,
                  alive: Callable[[], None] = lambda: None) -> NDArray[np.bool_]:
    """Has each of the environments, which were just reset, take 0 to `most` random steps.

    Environments step together, so all take as many steps as the one with the largest number. One with n begins a new
    episode when n are left; what it played before is forgotten.

    Args:
        seed: each environment draws its number and its actions from a child of its own.
        alive: called at each step.

    Returns (E,): whether the episode under way has such steps in it. Its score is not one of the policy's.
    """
    generators = [np.random.default_rng(child) for child in seed.spawn(n_envs)]
    numbers = [int(rng.integers(most + 1)) for rng in generators]
    longest, mixed = max(numbers), np.zeros(n_envs, np.bool_)
    actions = np.zeros((longest, n_envs), np.int64)
    for index, (rng, number) in enumerate(zip(generators, numbers, strict=True)):
        actions[longest - number:, index] = rng.integers(environment.spec.n_actions, size=number)
    for step in range(longest + 1):
        alive()
        for index in [index for index, number in enumerate(numbers) if number == longest - step < longest]:
            environment.restart(index)
            mixed[index] = False
        if step < longest:
            transition = environment.step(actions[step])
            mixed = ~(transition.score_ended | transition.truncated)
    return mixed
