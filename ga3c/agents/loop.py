"""An agent's life: it plays, asks for predictions, submits rollouts. `play` has no I/O.

`play` is a generator that yields requests and is resumed when they are granted. In a process `transport.port.Port`
grants them through the queues; in serial mode a plain loop grants them in turn. One code path, two ways to run it.

Next hop of an observation: `transport.port.Port.grant`, which sends a ticket to the predictors.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from ga3c.agents.heads import sample
from ga3c.envs.base import Environment, Transition
from ga3c.settings.schema import AlgorithmSettings, Settings
from ga3c.transport.port import DRAIN, PREDICT, SUBMIT, TAKE, Request
from ga3c.transport.slots import Slots

Player = Generator[Request, int, None]


@dataclasses.dataclass
class Progress:
    """Where an agent stands: what `play` needs to go on, beside its environments, generator and slots.

    `slot`, `step`: where the next step is written. `full`: the slot before, which waits for its bootstrap value.
    `length`: steps after which the slot is full; 0: all that it has room for.
    `score` and `began` (E): of the episodes under way, and the agent step they began at; -1: with random steps, so that
    their scores do not count. `now`: agent steps so far.
    `final`: the final observation of a truncated episode is being predicted. `discounted` (E): the sums that
    `discounted_reward` has a row of for each step; empty where nobody asks for them.
    """

    score: list[float]
    began: list[int]
    now: int = 0
    slot: int = 0
    step: int = 0
    full: int | None = None
    final: bool = False
    length: int = 0
    discounted: list[float] = dataclasses.field(default_factory=list)

    @classmethod
    def new(cls, n_envs: int, length: int = 0, mixed: Sequence[bool] = ()) -> Progress:
        """Before the first step.

        length: of the first rollout; 0: all that a slot has room for. mixed: (E,) what `play_randomly` returns.
        """
        return cls([0.0] * n_envs, [-1 if each else 0 for each in mixed] or [0] * n_envs, length=length)


def play(environment: Environment, store: Slots, rng: np.random.Generator, at: Progress | None = None,
         resumed: bool = False, again: bool = False, discount: float | None = None) -> Player:
    """The life of an agent, until a prediction is granted with DRAIN. The environment must have been reset.

        request   granted with
        TAKE      a free slot
        PREDICT   GO_ON or DRAIN; outputs and version then stand in the named row
        SUBMIT    GO_ON

    A submitted slot belongs to the trainers. After DRAIN the agent submits the steps it has and ends, so none is lost.

    Args:
        at: where the agent stands; kept up to date, so that it can be saved at every PREDICT.
        resumed: it goes on from `at` instead of beginning there.
        again: after a full rollout it asks once more for what it acts by, see `settings.plan.asks_again`.
        discount: gamma, with which `discounted_reward` is written; None: the slots have no such field.
    """
    T = store.rollout_length
    at = at or Progress.new(store.n_envs)
    if discount is not None and not at.discounted:
        at.discounted = [0.0] * store.n_envs
    if not resumed:
        at.slot = yield from _take(store)
        environment.show(store.observation[at.slot, 0])
    while True:
        if at.final:
            yield PREDICT, at.slot, T
            store.final_value[at.slot, at.step] = store.value[at.slot, T]
            at.final = False
            yield from _next_step(environment, store, at)
        granted = yield PREDICT, at.slot, at.step
        # What was predicted is the next step's policy and, at step 0, also the full rollout's bootstrap value.
        if at.full is not None:
            full, at.full = at.full, None
            yield _filled(store, full, int(store.steps[full]) or T, store.value[at.slot, 0])
            if again:
                granted = yield PREDICT, at.slot, at.step
        if granted == DRAIN:
            if at.step:
                store.following[at.slot] = store.observation[at.slot, at.step]
                yield _filled(store, at.slot, at.step, store.value[at.slot, at.step])
            return
        _step(environment, store, at, sample(store.policy[at.slot, at.step], rng), discount)
        if not at.final:
            yield from _next_step(environment, store, at)


def _step(environment: Environment, store: Slots, at: Progress, action: NDArray[np.int64],
          discount: float | None) -> None:
    """Steps the environments and records the facts. Sets `at.final` if a final observation must be predicted."""
    slot, t = at.slot, at.step
    transition = environment.step(action)
    store.action[slot, t] = action
    store.reward[slot, t] = transition.reward
    # Lists where there is little to compute: NumPy would cost more than there is to do.
    at.score = list(map(operator.add, at.score, transition.scored.tolist()))
    at.now += 1
    if discount is not None:
        _add_discounted(store, at, transition, discount)
    if True in transition.terminated.tolist() or True in transition.truncated.tolist():
        store.terminated[slot, t] = transition.terminated
        store.truncated[slot, t] = transition.truncated
        for env in [env for env in np.flatnonzero(transition.score_ended).tolist() if at.began[env] >= 0]:
            store.score[slot, t, env], store.episode_length[slot, t, env] = at.score[env], at.now - at.began[env]
        for env in np.flatnonzero(transition.score_ended | transition.truncated).tolist():
            at.score[env], at.began[env] = 0.0, at.now
    if transition.dropped:  # what came next is not known: the value of the last observation stands for it
        store.final_value[slot, t] = store.value[slot, t]
    elif transition.final_observation is not None:
        store.following[slot] = transition.final_observation
        at.final = True


def _add_discounted(store: Slots, at: Progress, transition: Transition, discount: float) -> None:
    """Writes this step's discounted sums of rewards. Where an episode of the learner ended, the next begins at 0."""
    sums = [discount * before + now for before, now in zip(at.discounted, transition.reward.tolist(), strict=True)]
    store.discounted_reward[at.slot, at.step] = sums
    ended = (transition.terminated | transition.truncated).tolist()
    at.discounted = [0.0 if over else each for each, over in zip(sums, ended, strict=True)]


def _next_step(environment: Environment, store: Slots, at: Progress) -> Generator[Request, int, None]:
    at.step += 1
    if at.step == (at.length or store.rollout_length):
        environment.show(store.following[at.slot])
        store.steps[at.slot] = at.step
        at.full, at.slot, at.step, at.length = at.slot, (yield from _take(store)), 0, 0
    environment.show(store.observation[at.slot, at.step])


def _take(store: Slots) -> Generator[Request, int, int]:
    """A free slot, in which no episode ends yet."""
    slot = yield TAKE, 0, 0
    store.terminated[slot] = store.truncated[slot] = False
    store.score[slot], store.episode_length[slot] = np.nan, 0
    return slot


def _filled(store: Slots, slot: int, steps: int, bootstrap_value: NDArray[np.float32]) -> Request:
    store.steps[slot] = steps
    store.bootstrap_value[slot] = bootstrap_value
    return SUBMIT, slot, 0


def reward_discount(settings: AlgorithmSettings) -> float | None:
    """With what `play` discounts rewards; None if it need not."""
    return settings.gamma if settings.normalize_rewards else None


def seeded(seed: np.random.SeedSequence) -> tuple[int, np.random.Generator]:
    """An agent's (seed of its environments, generator of its actions), both from its own seed sequence."""
    environments, actions = seed.spawn(2)
    return int(environments.generate_state(1)[0]) % 2**31, np.random.default_rng(actions)


def agent_seed(settings: Settings, agent: int, generation: int, resumed_at: int) -> np.random.SeedSequence:
    """One child of the run's SeedSequence for every agent, generation and resume."""
    return np.random.SeedSequence(settings.run.seed, spawn_key=(agent, generation, resumed_at))
