"""Random steps before learning begins, so that environments do not all play the same part of an episode.

Each environment takes its own number of random steps (Stooke and Abbeel, Accelerated Methods for Deep Reinforcement
Learning, 2018: without them learning fails early). These steps are in no rollout and count nowhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.base import Environment


def play_randomly(environment: Environment, n_envs: int, most: int, seed: np.random.SeedSequence,
                  alive: Callable[[], None] = lambda: None) -> NDArray[np.bool_]:
    """Plays 0 to `most` random steps in each environment. All must have just been reset.

    Environments step together, so all take as many steps as the one with the largest number. An environment with n
    random steps begins a new episode when n are left; its steps before that are forgotten.

    Args:
        seed: has a child for each environment, from which its number and its actions are drawn.
        alive: called at each step.

    Returns (E,): whether the episode under way has random steps in it. Its score is then not the policy's.
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
