"""The memory of a run: rollouts go into the replay, batches come out, as often as the settings ask for.

`Remembered` is the source of a trainer's batches in the service; serial mode uses `Memory` alone. One thread at a time
uses a memory.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping

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
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.fields import Field
from ga3c.transport.slots import Batch, Slots


class Memory:
    """The replay of a run, and the account of its use. Steps of other lives of an agent are never joined."""

    def __init__(self, settings: Settings, spec: EnvSpec, learner: Learner, agent_steps: int) -> None:
        """`agent_steps`: collected before, in a run that goes on. What was played then is not remembered."""
        replay = settings.replay
        self._n_envs = settings.agents.envs_per_agent
        self._learner = learner
        self._spec = spec
        self._size = settings.batching.training_batch_min
        agents, _, _ = settings.schedule.most
        self._ring = Ring(spec, agents * self._n_envs, replay.replay_size, replay.n_step, settings.algorithm.gamma)
        self._sampler: Sampler = (Prioritised(self._ring, replay.priority_alpha, replay.priority_beta)
                                  if replay.priority_alpha else Uniform(self._ring))
        # So many that a transition of the longest is there, whatever the start is.
        least = agents * self._n_envs * (replay.n_step + 1)
        self._ledger = Ledger(max(replay.replay_start, least), replay.intensity)
        self._reward_clip = settings.algorithm.reward_clip
        self._rng = np.random.default_rng([settings.run.seed, 1])
        self._generations: dict[int, int] = {}
        self._target_steps = replay.target_steps
        self._targets = agent_steps // replay.target_steps
        self._drawn: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def append(self, rollout: Batch, agent: int, generation: int = 1) -> None:
        """Appends one rollout of an agent's environments, from its slot."""
        steps = int(rollout.steps[0])
        reward = rollout.reward[0, :steps]
        if self._reward_clip:
            reward = np.clip(reward, -self._reward_clip, self._reward_clip)
        new_life = self._generations.get(agent, generation) != generation
        self._generations[agent] = generation
        for env in range(self._n_envs):
            stream = agent * self._n_envs + env
            if new_life:
                self._ring.cut(stream)
            rows = self._ring.append(stream, {
                "observation": rollout.observation[0, :steps, env], "action": rollout.action[0, :steps, env],
                "reward": reward[:, env], "terminated": rollout.terminated[0, :steps, env],
                "truncated": rollout.truncated[0, :steps, env],
                "version": rollout.version[0, :steps]}, rollout.following[0, env])
            self._sampler.appended(stream, rows)
        self._ledger.appended += steps * self._n_envs

    @property
    def due(self) -> bool:
        """Whether an update is owed."""
        return self._ledger.updates_due(self._size) > 0

    def draw(self) -> Batch:
        """Draws the batch of an update. Its samples are rollouts of one step of one environment."""
        (sampled, weight), n = self._sampler.draw(self._size, self._rng), self._size
        self._ledger.used += n
        self._drawn = sampled.stream, sampled.serial
        ones, zeros = np.ones(n, np.int32), np.zeros(n)
        return Batch({
            "observation": sampled.observation[:, None, None], "following": sampled.following[:, None],
            "action": sampled.action[:, None, None], "reward": sampled.returns[:, None, None],
            "returns": sampled.returns, "discount": sampled.discount, "weight": weight,
            "version": sampled.version[:, None], "requested_at": zeros[:, None], "submitted_at": zeros,
            "seconds": np.zeros((n, 3), np.float32), "steps": ones, "reused": ones.copy()})

    def learned(self, update: UpdateStats | None, agent_steps: int) -> None:
        """Hears of the update from the batch drawn last. Keeps a target after every `target_steps` agent steps."""
        if update is not None and self._drawn is not None and len(update.rows["error"]) == self._size:
            self._sampler.report(*self._drawn, update.rows["error"])
        if agent_steps // self._target_steps > self._targets:
            self._targets = agent_steps // self._target_steps
            self._learner.keep_target()


class Remembered:
    """A memory that rollouts of the training queue fill. See `BatchSource`.

    A trainer that owes updates collects nothing meanwhile. Then agents run out of slots and wait, so the intensity
    holds.
    """

    def __init__(self, memory: Memory, channel: Channel, store: Slots, spec: EnvSpec, learner: Learner,
                 statistics: Statistics) -> None:
        self._memory = memory
        self._channel = channel
        self._store = store
        self._spec = spec
        self._learner = learner
        self._statistics = statistics

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
                    rollout = self._store.view(slot)
                    self._statistics.collect(rollout)
                    self._memory.append(rollout, agent, generation)

    def learned(self, batch: Batch, update: UpdateStats) -> None:
        """See `BatchSource.learned`."""
        self._memory.learned(update, self._statistics.agent_steps)
