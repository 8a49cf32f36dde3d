"""The memory of a run: rollouts go into the replay, batches come out, as often as the settings ask for.

`Remembered` is the source of a trainer's batches on the queues. The conductor and serial mode use `Memory` alone. One
thread at a time uses a memory, but in epochs: there `append` has a ring of its own, and may run beside `train`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.base import EnvSpec
from ga3c.learner.learner import Learner, UpdateStats
from ga3c.learner.samples import sample_fields
from ga3c.replay.ledger import Ledger
from ga3c.replay.ring import Ring
from ga3c.replay.samplers import Prioritised, Sampler, Uniform
from ga3c.runs.statistics import Statistics
from ga3c.service.batches import Collected
from ga3c.settings.annealing import Annealed
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.fields import Field
from ga3c.transport.slots import Batch, Slots


MakeUpdate = Callable[[Batch, int, int], UpdateStats | None]
"""Makes an update from (batch, agent steps before it, `min_valid_version` when it was drawn), if it can be made."""


class Memory:
    """The replay of a run, and the account of its use. Steps of other lives of an agent are never joined.

    In epochs (`Schedule.epochs`) the replay does not change while updates are made from it. What is played meanwhile
    waits until `meet`.
    """

    def __init__(self, settings: Settings, spec: EnvSpec, learner: Learner, statistics: Statistics) -> None:
        """`statistics`: counts what is appended. What was played before a resume is not remembered."""
        replay, schedule = settings.replay, settings.schedule
        self._n_envs = settings.agents.envs_per_agent
        self._learner = learner
        self._statistics = statistics
        self._size = settings.batching.training_batch_min
        agents, _, _ = schedule.most
        streams = agents * self._n_envs
        self._ring = Ring(spec, streams, replay.replay_size, replay.n_step, settings.algorithm.gamma)
        # A step may take as many rows as a stack has planes, and one for a final observation.
        self._fresh = self._ring if not schedule.epochs else Ring(
            spec, streams, streams * ((spec.stacked + 1) * schedule.steps + replay.n_step + 2 * spec.stacked),
            replay.n_step, settings.algorithm.gamma)
        self._sampler: Sampler = (Prioritised(self._ring, replay.priority_alpha) if replay.priority_alpha else
                                  Uniform(self._ring))
        self._beta = Annealed(replay.priority_beta, replay.priority_beta_final)
        self._anneal_steps = settings.algorithm.anneal_steps
        # So many that a transition of the longest is there, whatever the start is.
        least = streams * (replay.n_step + 1)
        self._ledger = Ledger(max(replay.replay_start, least), replay.intensity)
        self._reward_clip = settings.algorithm.reward_clip
        self._rng = np.random.default_rng([settings.run.seed, 1])
        self._generations: dict[int, int] = {}
        self._target_steps = replay.target_steps
        self._meets = schedule.agents_wait
        self._began_at = statistics.agent_steps
        self._targets = (self._began_at + self._ledger.start) // replay.target_steps  # before the first update
        self._drawn: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def append(self, rollout: Batch, agent: int, generation: int = 1) -> None:
        """Appends one rollout of an agent's environments, from its slot, and counts it as collected."""
        steps = int(rollout.steps[0])
        reward = rollout.reward[0, :steps]
        if self._reward_clip:
            reward = np.clip(reward, -self._reward_clip, self._reward_clip)
        new_life = self._generations.get(agent, generation) != generation
        self._generations[agent] = generation
        for env in range(self._n_envs):
            stream = agent * self._n_envs + env
            if new_life:
                self._fresh.cut(stream)
            rows = self._fresh.append(stream, {
                "observation": rollout.observation[0, :steps, env], "action": rollout.action[0, :steps, env],
                "reward": reward[:, env], "terminated": rollout.terminated[0, :steps, env],
                "truncated": rollout.truncated[0, :steps, env],
                "version": rollout.version[0, :steps]}, rollout.following[0, env])
            if self._fresh is self._ring:
                self._sampler.appended(stream, rows)
        if self._meets:
            self._statistics.before_meeting += steps * self._n_envs
        self._statistics.collect(rollout)
        if self._fresh is self._ring:
            self._ledger.appended += steps * self._n_envs

    def meet(self) -> None:
        """Ends a round. In epochs the replay takes in what was played, and the target network the newest weights."""
        if self._fresh is not self._ring:
            for stream, rows in enumerate(self._ring.follow(self._fresh).tolist()):
                self._sampler.appended(stream, rows)
            self._ledger.appended += self._statistics.before_meeting
            self._learner.keep_target()
            self._learner.act_by_target()
        self._statistics.before_meeting = 0

    @property
    def agent_steps(self) -> int:
        """The agent steps of the run that are in the account: rates and targets follow them."""
        return self._began_at + self._ledger.appended

    @property
    def due(self) -> bool:
        """Whether an update is owed."""
        return self._ledger.updates_due(self._size) > 0

    def draw(self) -> Batch:
        """Draws the batch of an update. Its samples are rollouts of one step of one environment."""
        n, beta = self._size, self._beta.at(self.agent_steps / self._anneal_steps)
        sampled, weight = self._sampler.draw(n, beta, self._rng)
        self._ledger.used += n
        self._drawn = sampled.stream, sampled.serial
        ones, zeros = np.ones(n, np.int32), np.zeros(n)
        return Batch({
            "observation": sampled.observation[:, None, None], "following": sampled.following[:, None],
            "action": sampled.action[:, None, None], "reward": sampled.returns[:, None, None],
            "returns": sampled.returns, "discount": sampled.discount, "weight": weight,
            "version": sampled.version[:, None], "requested_at": zeros[:, None], "submitted_at": zeros,
            "seconds": np.zeros((n, 3), np.float32), "steps": ones, "reused": ones.copy()})

    def train(self, make: MakeUpdate, ending: Callable[[], bool] = lambda: False) -> None:
        """Makes the updates that are due, until the run is `ending`."""
        while self.due and not ending():
            self.learned(make(self.draw(), self.agent_steps, self._learner.min_valid_version))

    def learned(self, update: UpdateStats | None) -> None:
        """Hears of the update from the batch drawn last.

        Keeps a target after every `target_steps` agent steps, if there are no epochs.
        """
        if update is not None and self._drawn is not None and len(update.rows["error"]) == self._size:
            self._sampler.report(*self._drawn, update.rows["error"])
        if self._fresh is self._ring and self.agent_steps // self._target_steps > self._targets:
            self._targets = self.agent_steps // self._target_steps
            self._learner.keep_target()


class Remembered:
    """A memory that rollouts of the training queue fill. See `BatchSource`.

    A trainer that owes updates collects nothing meanwhile. Then agents run out of slots and wait, so the intensity
    holds.
    """

    def __init__(self, memory: Memory, channel: Channel, store: Slots, spec: EnvSpec, learner: Learner) -> None:
        self._memory = memory
        self._channel = channel
        self._store = store
        self._spec = spec
        self._learner = learner

    @property
    def fields(self) -> Mapping[str, Field]:
        """See `BatchSource.fields`."""
        return sample_fields(self._spec)

    def batches(self) -> Generator[Collected]:
        """See `BatchSource.batches`."""
        over = False
        while not over:
            if self._memory.due:
                before = time.monotonic()
                batch = self._memory.draw()
                yield Collected(batch, len(batch), time.monotonic() - before, self._learner.min_valid_version)
                continue
            with self._channel.collect(1) as collection:
                over = collection.over
                for agent, generation, slot in collection.rollouts:
                    self._memory.append(self._store.view(slot), agent, generation)

    def learned(self, batch: Batch, update: UpdateStats) -> None:
        """See `BatchSource.learned`."""
        self._memory.learned(update)
