"""Serial mode: the same agents, store, model and record in one thread, in a fixed order. Repeatable to the byte.

Each round all agents' pending predictions are answered by one inference, in the order of the agents; then each agent
goes on to its next prediction; a training is made as soon as enough rollouts have been handed in, and `training_delay`
more, which wait.

Its checkpoints also hold every action, as long as there are fewer than ten million, and the answers that are not
trained on yet. A resumed run plays those actions again, without model and training, and so stands where the checkpoint
was made: it goes on as if it had never ended. Where they lead to other observations, as with another seed, new agents
begin.
"""

from __future__ import annotations

import functools
import zlib
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from ga3c.agents.process import agent_seed, play, seeded
from ga3c.envs.factory import EnvSpec, make_environment
from ga3c.learner.learner import Learner, Outputs
from ga3c.runs.recorder import Run
from ga3c.runs.statistics import Workers
from ga3c.service.signals import Interruption
from ga3c.service.trainer import rollouts_per_batch
from ga3c.settings.schema import Settings
from ga3c.transport.channel import PREDICT, SUBMIT, TAKE
from ga3c.transport.slots import Slots, Batch

SAVED = "serial."  # before the names of what `Agents.state` adds to a checkpoint
MOST = 10_000_000  # actions that are kept: 20 MB in each checkpoint
_ANSWERS = ("policy", "value", "version", "final_value", "bootstrap_value")

Train = Callable[[Batch], None]


def _as_before(policy: NDArray, observation: NDArray) -> tuple[Outputs, int]:
    return {"policy": policy, "value": np.zeros(len(policy), np.float32)}, 0


class Agents:
    """All agents, each at its next prediction. Their seeds follow from `began_at`, agent steps when they began."""

    def __init__(self, settings: Settings, spec: EnvSpec, began_at: int) -> None:
        self.n, self._n_envs, self._n_actions = settings.agent_count, settings.agents.envs_per_agent, spec.n_actions
        self._began_at, self._shape = began_at, spec.observation_shape
        n_rollouts = rollouts_per_batch(settings)
        # Nobody waits here: each agent has the rollout it writes and the one it is about to hand in; the rest wait to
        # be trained on.
        self._enough = n_rollouts + settings.batching.training_delay
        self._store = Slots(spec, settings.algorithm.rollout_length, self._n_envs, 2 * self.n + self._enough)
        self._free = deque(range(self._store.n_slots))
        self._submitted: deque[int] = deque()
        self._batch = self._store.empty_batch(n_rollouts)
        self._actions: list[NDArray[np.uint16]] = []  # (agents, environments) of each round
        self._too_many = False  # to be kept
        self.moved = self.n  # agents that have taken their step of this round
        self._environments, self._players = [], []
        for agent in range(self.n):
            environment_seed, rng = seeded(agent_seed(settings, agent, 1, began_at))
            environment = make_environment(settings, self._n_envs)
            environment.reset(environment_seed)
            self._environments.append(environment)
            self._players.append(play(environment, self._store, rng))
        self._pending = [self._advance(agent, None, lambda batch: None) for agent in range(self.n)]

    def _advance(self, agent: int, grant: int | None, train: Train) -> tuple[int, int]:
        """Resumes one agent until it asks for a prediction; returns that (slot, row)."""
        player = self._players[agent]
        kind, slot, row = next(player) if grant is None else player.send(grant)
        while kind != PREDICT:
            if kind == TAKE:
                kind, slot, row = player.send(self._free.popleft())
            else:
                assert kind == SUBMIT
                self._submitted.append(slot)
                if len(self._submitted) == self._enough:
                    slots = [self._submitted.popleft() for _ in range(len(self._batch))]
                    self._store.gather(slots, self._batch, 0)
                    self._free.extend(slots)
                    train(self._batch)
                kind, slot, row = player.send(0)
        return slot, row

    def answer(self, predict: Callable[[NDArray], tuple[Outputs, int]]) -> int:
        """Begins a round: all agents are answered by one call of `predict`; returns how many observations."""
        slots, rows = (list(column) for column in zip(*self._pending, strict=True))
        outputs, version = predict(self._looked().reshape(-1, *self._shape))
        self._store.policy[slots, rows] = outputs["policy"].reshape(self.n, self._n_envs, -1)
        self._store.value[slots, rows] = outputs["value"].reshape(self.n, self._n_envs)
        self._store.version[slots, rows] = version
        self._too_many = self._too_many or (len(self._actions) + 1) * self.n * self._n_envs > MOST
        if self._too_many:
            self._actions.clear()
        self._actions.append(np.zeros((self.n, self._n_envs), np.uint16))
        self.moved = 0
        return self.n * self._n_envs

    def move(self, train: Train) -> None:
        """The next agent of the round takes its step and goes on to its next prediction."""
        agent, (slot, row) = self.moved, self._pending[self.moved]
        self._pending[agent] = self._advance(agent, 0, train)
        if row < self._store.rollout_length:  # else only the value of an episode's last observation was asked for
            self._actions[-1][agent] = self._store.action[slot, row]
        self.moved += 1

    def state(self) -> dict[str, NDArray]:
        """What `replay` needs: actions (rounds, agents, environments), agents moved in the last round, answers, and a
        sum over the observations that wait for one. Nothing after `MOST` actions.
        """
        if self._too_many:
            return {}
        shape = (len(self._actions), self.n, self._n_envs)
        facts = {"moved": self.moved, "began_at": self._began_at, "observed": self._observed(),
                 "at_once": len(self._batch)}
        return {f"{SAVED}actions": np.array(self._actions, np.uint16).reshape(shape),
                **{f"{SAVED}{name}": np.array(fact) for name, fact in facts.items()},
                **{f"{SAVED}{name}": getattr(self._store, name).copy() for name in _ANSWERS}}

    def _observed(self) -> int:
        return zlib.crc32(self._looked().tobytes())

    def _looked(self) -> NDArray:
        """The observations (agents, E, *shape) that wait for an answer."""
        room = self._store.room(self.n)
        self._store.look([slot * self._store.slot_rows + row for slot, row in self._pending], room)
        return room

    def replays(self, state: Mapping[str, NDArray]) -> bool:
        """Whether `state` may be replayed: it is of as many agents, environments, slots and actions."""
        now = self.state()
        if not now.keys() <= state.keys():
            return False
        actions, name = state[f"{SAVED}actions"], f"{SAVED}actions"
        return bool(all(now[each].shape == state[each].shape for each in now.keys() - {name})
                    and all(now[each].dtype == state[each].dtype for each in now)
                    and actions.shape[1:] == now[name].shape[1:] and actions.max(initial=0) < self._n_actions
                    and 0 <= state[f"{SAVED}moved"] <= self.n
                    and state[f"{SAVED}at_once"] == len(self._batch))  # else slots were freed in another order

    def replay(self, state: Mapping[str, NDArray], given_up: Callable[[], object]) -> bool:
        """Goes from the beginning to where `state` was taken; whether it led there. `given_up` ends it early."""
        actions = state[f"{SAVED}actions"]
        for number, chosen in enumerate(actions):
            if given_up():
                return False
            certain = np.eye(self._n_actions, dtype=np.float32)[chosen.ravel()]  # sampling then has no choice
            self.answer(functools.partial(_as_before, certain))
            for _ in range(self.n if number + 1 < len(actions) else int(state[f"{SAVED}moved"])):
                self.move(lambda batch: None)
        for name in _ANSWERS:
            getattr(self._store, name)[:] = state[f"{SAVED}{name}"]
        return bool(self._observed() == state[f"{SAVED}observed"])

    def close(self) -> None:
        """Closes the environments."""
        for environment in self._environments:
            environment.close()


def run_serial(settings: Settings, run: Run, model: Learner, interruption: Interruption,
               saved: Mapping[str, NDArray] | None = None) -> str:
    """Plays and trains until a limit is reached or a signal came; returns which.

    `saved` are the arrays of the checkpoint that `model` was restored from. If they are of such a serial run, its
    agents go on; else, as after a change of their number, new ones begin.
    """
    agents = _as_saved(settings, run, saved or {}, interruption)
    if interruption.name:
        return interruption.name
    agents = agents or Agents(settings, run.spec, model.agent_steps)
    try:
        return _play(agents, run, model, interruption)
    finally:
        agents.close()


def _as_saved(settings: Settings, run: Run, saved: Mapping[str, NDArray], interruption: Interruption) -> Agents | None:
    """The agents as a checkpoint has them; None if it has none that lead there."""
    began_at = saved.get(f"{SAVED}began_at")
    if began_at is None or began_at.shape or began_at.dtype.kind != "i" or began_at < 0:
        return None
    agents = Agents(settings, run.spec, int(began_at))
    if agents.replays(saved):
        run.say(f"Playing {len(saved[f'{SAVED}actions']):,} rounds again, to go on as if there had been no end.")
        if agents.replay(saved, lambda: interruption.name):
            return agents
    agents.close()
    if not interruption.name:
        run.say("New episodes begin: with these settings the run does not lead to where its checkpoint was made.")
    return None


def _play(agents: Agents, run: Run, model: Learner, interruption: Interruption) -> str:
    run.also_saved = agents.state
    count = run.statistics.new_count()

    def train(batch: Batch) -> None:
        update = model.update(batch)
        if update is None:
            run.statistics.report_dropped(batch)
        else:
            run.statistics.report(update, batch)
        run.statistics.drain()  # so that a limit on episodes falls at the same update in every run

    run.start()
    workers = Workers(agents.n, 1, 1, 0, 0)
    reason = None
    while reason is None:
        if agents.moved == agents.n:
            count.predictions += agents.answer(model.predict)
            count.calls += 1
        try:
            while agents.moved < agents.n and not run.reached(model.agent_steps):
                agents.move(train)
        except BaseException:
            run.also_saved = dict  # played again, it would only fail again
            raise
        run.tick(model, workers, [])
        if interruption.take_checkpoint_wish():
            run.save_or_warn(model)
        reason = interruption.name or run.reached(model.agent_steps)
    return reason
