"""The loop of an agent: it plays, asks for predictions and submits rollouts. `play` has no I/O.

`play` is a generator. It yields requests and continues when they are granted. In an agent's process
`transport.port.Port` grants them through the queues; in serial mode a plain loop grants them in turn. So both modes run
the same code.

Next hop of an observation: `transport.port.Port.grant`, which sends a ticket to the predictors.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.base import Environment, Transition
from ga3c.settings.schema import AlgorithmSettings, Settings
from ga3c.transport.port import DRAIN, PREDICT, SUBMIT, TAKE, Request
from ga3c.transport.slots import Slots

if TYPE_CHECKING:
    from ga3c.algorithms.acting import Acting

Player = Generator[Request, int, None]


@dataclasses.dataclass
class Progress:
    """The position of an agent: what `play` needs to continue, beside the environments, generator and slots.

    `slot`, `step`: the place of the next step. `full`: the slot before, which waits for its bootstrap value.
    `length`: steps after which the slot is full; 0: `rollout_length`.
    `score` (E): scores of the episodes under way. `began` (E): the agent steps they began at; -1 if an episode has
    random steps, so that its score does not count. `now`: the agent's own steps so far; `explore` depends on it.
    `final`: whether the final observation of a truncated episode is being predicted. `discounted` (E): the current
    sums for `discounted_reward`; empty if the slots have no such field.
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
    def new(cls, n_envs: int, length: int = 0, mixed: Sequence[bool] = (), now: int = 0) -> Progress:
        """Returns the position before the first step.

        length: steps of the first rollout; 0: `rollout_length`. mixed: (E,) what `play_randomly` returns. now: own
        steps that count as taken, of an agent that begins later than others.
        """
        return cls([0.0] * n_envs, [-1 if random else now for random in mixed] or [now] * n_envs, now, length=length)


def play(environment: Environment, store: Slots, rng: np.random.Generator, acting: Acting, agent: int = 0,
         at: Progress | None = None, resumed: bool = False, again: bool = False,
         discount: float | None = None, cuts: bool = False) -> Player:
    """Plays until a prediction is granted with DRAIN. The environment must have been reset.

        request   granted with
        TAKE      a free slot
        PREDICT   GO_ON or DRAIN; outputs and version are then in the slot, at that step
        SUBMIT    GO_ON

    A submitted slot belongs to the trainers. After DRAIN the agent submits its steps and ends, so no step is lost.

    If the model has no output "value", a full rollout is submitted at once, and final observations are not predicted.

    Args:
        acting: how actions are chosen from the outputs.
        agent: the agent's number, for its exploration.
        at: the agent's position; kept up to date, so that it can be saved at every PREDICT.
        resumed: whether `at` is a saved position. Otherwise the agent first takes a slot.
        again: whether to ask for a second prediction after a full rollout, and act on that one. See
            `Schedule.requests_twice`.
        discount: gamma of `discounted_reward`; None if the slots have no such field.
        cuts: whether a slot ends where an episode is truncated, so that `following` has its final observation.
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
        # The prediction is for the next action. At step 0 its value is also the full rollout's bootstrap value.
        if at.full is not None:
            full, at.full = at.full, None
            yield _filled(store, full, int(store.steps[full]) or T, at.slot, 0)
            if again:
                granted = yield PREDICT, at.slot, at.step
        if granted == DRAIN:
            if at.step:
                store.following[at.slot] = store.observation[at.slot, at.step]
                yield _filled(store, at.slot, at.step, at.slot, at.step)
            return
        outputs = {name: store.__dict__[name][at.slot, at.step] for name in store.outputs}
        action = acting.choose(outputs, rng, acting.explore(at.now, agent, store.n_envs))
        transition = _step(environment, store, at, action, discount)
        if cuts and True in transition.truncated.tolist():
            yield from _cut(environment, store, at, transition)
        elif not at.final:
            yield from _next_step(environment, store, at)


def _step(environment: Environment, store: Slots, at: Progress, action: NDArray[np.int64],
          discount: float | None) -> Transition:
    """Steps the environments and fills the slot. Sets `at.final` if a final observation must be predicted."""
    slot, t = at.slot, at.step
    transition = environment.step(action)
    store.action[slot, t] = action
    store.reward[slot, t] = transition.reward
    # Lists, as NumPy's overhead is larger than these few additions.
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
    if not _keeps_values(store):
        return transition
    if transition.dropped:  # the next observation is unknown: use the last one's value
        store.final_value[slot, t] = store.value[slot, t]
    elif transition.final_observation is not None:
        store.following[slot] = transition.final_observation
        at.final = True
    return transition


def _cut(environment: Environment, store: Slots, at: Progress, transition: Transition) -> Generator[Request, int, None]:
    """Ends the slot at a truncation. `following` is the final observation where there is one, else the next."""
    left = (at.length or store.rollout_length) - at.step - 1  # so that later slots end where they would have
    at.length = at.step + 1
    slot = at.slot
    environment.show(store.following[slot])
    if transition.dropped:  # the final observation is unknown: use the last one
        store.following[slot] = store.observation[slot, at.step]
    elif transition.final_observation is not None:
        cut = transition.truncated
        store.following[slot][cut] = transition.final_observation[cut]
    yield from _next_step(environment, store, at, shown=True)
    at.length = left


def _add_discounted(store: Slots, at: Progress, transition: Transition, discount: float) -> None:
    """Writes this step's discounted sums of rewards. Where the learner's episode ended, the next sum is 0."""
    sums = [discount * before + now for before, now in zip(at.discounted, transition.reward.tolist(), strict=True)]
    store.discounted_reward[at.slot, at.step] = sums
    ended = (transition.terminated | transition.truncated).tolist()
    at.discounted = [0.0 if over else each for each, over in zip(sums, ended, strict=True)]


def _next_step(environment: Environment, store: Slots, at: Progress,
               shown: bool = False) -> Generator[Request, int, None]:
    """Goes on to the next step, if need be in another slot. shown: whether `following` is there already."""
    at.step += 1
    if at.step == (at.length or store.rollout_length):
        if not shown:
            environment.show(store.following[at.slot])
        store.steps[at.slot] = at.step
        full = at.slot
        if _keeps_values(store):
            at.full = full
        else:
            yield SUBMIT, full, 0
        at.slot = yield from _take(store)
        at.step = at.length = 0
    environment.show(store.observation[at.slot, at.step])


def _take(store: Slots) -> Generator[Request, int, int]:
    """Requests a free slot and clears its ends of episodes. Returns its number."""
    slot = yield TAKE, 0, 0
    store.terminated[slot] = store.truncated[slot] = False
    store.score[slot], store.episode_length[slot] = np.nan, 0
    return slot


def _filled(store: Slots, slot: int, steps: int, next_slot: int, next_step: int) -> Request:
    """Ends a rollout; the prediction in (next_slot, next_step) is for the observation after it."""
    store.steps[slot] = steps
    if _keeps_values(store):
        store.bootstrap_value[slot] = store.value[next_slot, next_step]
    return SUBMIT, slot, 0


def _keeps_values(store: Slots) -> bool:
    return "value" in store.outputs


def reward_discount(settings: AlgorithmSettings) -> float | None:
    """Returns the `discount` of `play`; None if rewards are not normalized."""
    return settings.gamma if settings.normalize_rewards else None


def seeded(seed: np.random.SeedSequence) -> tuple[int, np.random.Generator]:
    """Returns (seed of an agent's environments, generator of its actions), both from its seed sequence."""
    environments, actions = seed.spawn(2)
    return int(environments.generate_state(1)[0]) % 2**31, np.random.default_rng(actions)


def agent_seed(settings: Settings, agent: int, generation: int, resumed_at: int) -> np.random.SeedSequence:
    """Returns a seed sequence for each agent, generation and resume: a child of the run's SeedSequence."""
    return np.random.SeedSequence(settings.run.seed, spawn_key=(agent, generation, resumed_at))
