"""Random batches of tiny environments, learners' settings for them, and their targets by slow NumPy."""

from __future__ import annotations

import numpy as np

from ga3c.algorithms.actor_critic import DiscreteActorCritic
from ga3c.algorithms.base import Head
from ga3c.envs.base import EnvSpec
from ga3c.learner.learner import Learner, UpdateStats
from ga3c.settings.files import configured
from ga3c.settings.presets import PRESETS
from ga3c.settings.schema import Settings
from ga3c.transport.slots import Batch, Slots

VECTOR = EnvSpec("vector", (3,), np.dtype(np.float32), 4, 1)
IMAGE = EnvSpec("image", (84, 84, 4), np.dtype(np.uint8), 6, 4)
# RMSProp with a huge epsilon is plain descent; here with a rate of 0.1.
DESCENT = {"rmsprop_epsilon": 1e6, "learning_rate": 1e2, "loss_reduction": "mean", "gae_lambda": 0.9}


def settings(**changes: object) -> Settings:
    """The paper's, for tiny worlds."""
    return configured(**{**PRESETS["paper"], "rollout_length": 3, "envs_per_agent": 2, **changes})


def random_batch(n: int = 4, rollout_length: int = 3, seed: int = 0, spec: EnvSpec = VECTOR,
                 discounted: bool = False) -> Batch:
    rng = np.random.default_rng(seed)
    store = Slots(spec, rollout_length, 2, n, discounted=discounted)
    shape = (n, rollout_length + 1, 2, *spec.observation_shape)
    seen = rng.integers(0, 256, shape) if spec.observation_dtype == np.uint8 else rng.normal(size=shape)
    store.observation[:], store.following[:] = seen[:, :-1], seen[:, -1]
    store.action[:] = rng.integers(0, spec.n_actions, store.action.shape)
    store.reward[:] = rng.normal(scale=2, size=store.reward.shape)
    store.terminated[:] = rng.random(store.terminated.shape) < 0.2
    store.truncated[:] = (rng.random(store.truncated.shape) < 0.2) & ~store.terminated
    played = np.exp(rng.normal(size=store.policy.shape))
    store.policy[:], store.value[:] = played / played.sum(axis=-1, keepdims=True), rng.normal(size=store.value.shape)
    store.final_value[:] = rng.normal(size=store.final_value.shape)
    store.bootstrap_value[:] = rng.normal(size=store.bootstrap_value.shape)
    store.steps[:] = rollout_length
    if discounted:
        store.discounted_reward[:] = rng.normal(scale=3, size=store.reward.shape)
    batch = store.empty_batch(n)
    store.gather(range(n), batch, 0)
    return batch


FIELDS = Slots(VECTOR, 3, 2, 1).rollout_fields
"""Those of `random_batch`."""


def learn(model: Learner, batch: Batch, agent_steps: int = 0) -> UpdateStats | None:
    """Makes an update from the batch after so many agent steps, and publishes it."""
    update = model.update(batch, agent_steps, model.min_valid_version)
    model.publish()
    return update


def weights(model: Learner) -> dict[str, np.ndarray]:
    return {name: array for name, array in model.state()[0].items() if name.startswith("network")}


def slow_targets(s: Settings, batch: Batch, value: np.ndarray, following: np.ndarray,
                 ratio: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(returns, advantages), each (B, T, E): V-trace from the last step to the first, one step at a time."""
    a = s.algorithm
    returns = np.zeros(batch.reward.shape)
    for i, steps in enumerate(batch.steps.tolist()):
        for e in range(2):
            worth, carried = float(following[i, e]), 0.0
            for t in reversed(range(steps)):
                if batch.terminated[i, t, e]:
                    worth, carried = 0.0, 0.0
                elif batch.truncated[i, t, e]:
                    worth, carried = float(batch.final_value[i, t, e]), 0.0
                reward = float(np.clip(batch.reward[i, t, e], -a.reward_clip, a.reward_clip))
                surprise = reward + a.gamma * worth - value[i, t, e]
                carried = ratio[i, t, e] * (surprise + a.gamma * s.actor_critic.gae_lambda * carried)
                returns[i, t, e] = value[i, t, e] + carried
                worth = value[i, t, e]
    return returns, returns - value


def heads(spec: EnvSpec) -> dict[str, Head]:
    """Those of the actor-critics."""
    return DiscreteActorCritic(Settings()).heads(spec)
