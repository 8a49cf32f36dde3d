"""The memory of a run: rollouts go into the replay, batches come out, as often as the settings ask for.

`Remembered` is the source of a trainer's batches on the queues. The conductor and serial mode use `Memory` alone.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Mapping

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.base import EnvSpec
from ga3c.learner.learner import Learner, UpdateStats
from ga3c.learner.samples import sample_fields
from ga3c.replay.ledger import Ledger
from ga3c.replay.ring import Ring, bytes_per_row
from ga3c.replay.samplers import Prioritised, Sampler, Uniform
from ga3c.runs.recorder import Recorder
from ga3c.runs.statistics import Statistics
from ga3c.service.batches import Collected
from ga3c.settings.annealing import Annealed
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.fields import Field
from ga3c.transport.slots import Batch, Slots


MakeUpdate = Callable[[Batch, int, int], UpdateStats | None]
"""Makes an update from (batch, agent steps before it, `min_valid_version` when it was drawn), if it can be made."""


PREFIX = "replay."  # before the names of what `Memory.state` adds to a checkpoint
SAVED_BYTES = 2**30  # a replay that takes more is saved only if the user asks for it


class Memory:
    """The replay of a run, and the account of its use. Steps of other lives of an agent are never joined.

    One thread makes updates, and one, perhaps another, appends. The main thread may take the `state`.

    In epochs (`Schedule.epochs`) the replay does not change while updates are made from it. What is played meanwhile
    waits until `meet`.
    """

    def __init__(self, settings: Settings, spec: EnvSpec, learner: Learner, statistics: Statistics) -> None:
        """`statistics`: counts what is appended. What was played before a resume is not remembered."""
        replay, schedule = settings.replay, settings.schedule
        self._n_envs = settings.agents.envs_per_agent
        self._learner = learner
        self._planes = spec.stacked
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
        self._played = [0] * agents  # steps of each agent since the last meeting
        self._target_steps = replay.target_steps
        self._meets = schedule.agents_wait
        self._began_at = statistics.agent_steps
        self._targets = (self._began_at + self._ledger.start) // replay.target_steps  # before the first update
        self._drawn: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        self._lock = threading.Lock()
        takes = replay.replay_size * bytes_per_row(spec)
        self._saved = replay.save_replay or settings.run.serial or takes <= SAVED_BYTES

    def append(self, rollout: Batch, agent: int, generation: int = 1) -> None:
        """Appends one rollout of an agent's environments, from its slot, and counts it as collected."""
        with self._lock:
            self._append(rollout, agent, generation)
        self._statistics.collect(rollout)

    def _append(self, rollout: Batch, agent: int, generation: int) -> None:
        steps = int(rollout.steps[0])
        reward = rollout.reward[0, :steps]
        if self._reward_clip:
            reward = np.clip(reward, -self._reward_clip, self._reward_clip)
        new_life = self._generations.get(agent, generation) != generation
        self._generations[agent] = generation
        first = agent * self._n_envs
        if new_life:
            for stream in range(first, first + self._n_envs):
                self._fresh.cut(stream)
        rows = self._fresh.append_all(first, {
            "observation": rollout.observation[0, :steps], "action": rollout.action[0, :steps], "reward": reward,
            "terminated": rollout.terminated[0, :steps], "truncated": rollout.truncated[0, :steps],
            "version": rollout.version[0, :steps]}, rollout.following[0])
        if self._fresh is self._ring:
            for env, n_rows in enumerate(rows.tolist()):
                self._sampler.appended(first + env, n_rows)
        if self._meets:
            self._statistics.before_meeting += steps * self._n_envs
            self._played[agent] += steps
        if self._fresh is self._ring:
            self._ledger.appended += steps * self._n_envs

    def meet(self) -> None:
        """Ends a round. In epochs the replay takes in what was played, and the target network the newest weights."""
        with self._lock:
            self._meet()

    def _meet(self) -> None:
        if self._fresh is not self._ring:
            for stream, rows in enumerate(self._ring.follow(self._fresh).tolist()):
                self._sampler.appended(stream, rows)
            self._ledger.appended += self._statistics.before_meeting
            self._learner.keep_target()
            self._learner.act_by_target()
        self._statistics.before_meeting = 0
        self._played = [0] * len(self._played)

    @property
    def played(self) -> int:
        """The most steps that an agent took since the last meeting."""
        return max(self._played)

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
        with self._lock:
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
        with self._lock:
            self._learned(update)

    def _learned(self, update: UpdateStats | None) -> None:
        if update is not None and self._drawn is not None and len(update.rows["error"]) == self._size:
            self._sampler.report(*self._drawn, update.rows["error"])
        if self._fresh is self._ring and self.agent_steps // self._target_steps > self._targets:
            self._targets = self.agent_steps // self._target_steps
            self._learner.keep_target()

    def columns(self) -> dict[str, float | None]:
        """Returns the share of the replay that is filled, and how often its steps were used so far, for metrics."""
        ring, ledger = self._ring, self._ledger
        return {"replay_filled": round(float(np.minimum(ring.written, ring.length).mean()) / ring.length, 3),
                "intensity": round(ledger.used / max(1, ledger.appended - ledger.start), 3)}

    def state(self) -> dict[str, NDArray]:
        """Returns all that a resume needs, as plain arrays; nothing of a replay that is not saved. From any thread."""
        if not self._saved:
            return {}
        with self._lock:
            parts = {"ring": self._ring.state(), "sampler": self._sampler.state()}
            if self._fresh is not self._ring:
                # The rows that the ring does not have, and those of the newest stack, which they may go on with.
                parts["fresh"] = self._fresh.state(self._ring.written - self._planes)
            facts = {"began_at": self._began_at, "appended": self._ledger.appended, "used": self._ledger.used,
                     "targets": self._targets, "before_meeting": self._statistics.before_meeting,
                     "played": self._played, "generations": [*self._generations.items()],
                     "rng": self._rng.bit_generator.state}
        return {f"{PREFIX}{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()} | {
            f"{PREFIX}facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)}

    def restore(self, saved: dict[str, NDArray], same_lives: bool) -> None:
        """Continues from a `state` among `saved`, and takes it out, as it may be large.

        same_lives: whether the agents' episodes go on, too. Raises ValueError, LookupError or TypeError if the state
        does not fit; then the memory is empty.
        """
        parts: dict[str, dict[str, NDArray]] = {"ring": {}, "sampler": {}, "fresh": {}}
        facts = json.loads(saved.pop(f"{PREFIX}facts").tobytes())
        for name in [name for name in saved if name.startswith(PREFIX)]:
            _, part, column = name.split(".")
            parts[part][column] = saved.pop(name)
        before, self._began_at = self._began_at, int(facts["began_at"])
        ahead = before - self._began_at - int(facts["appended"])
        if ahead != (int(facts["before_meeting"]) if self._fresh is not self._ring else 0):
            raise ValueError("the replay is of other agent steps")
        if len(facts["played"]) != len(self._played):
            raise ValueError("the replay is of other agents")
        self._rng.bit_generator.state = facts["rng"]
        if self._fresh is not self._ring:
            self._fresh.restore(parts["fresh"])
        self._sampler.restore(parts["sampler"])
        self._ring.restore(parts["ring"])
        self._ledger.appended, self._ledger.used = int(facts["appended"]), int(facts["used"])
        self._targets = int(facts["targets"])
        self._statistics.before_meeting = int(facts["before_meeting"])
        self._played = [int(steps) for steps in facts["played"]]
        if same_lives:
            self._generations = {int(agent): int(generation) for agent, generation in facts["generations"]}
        else:
            for stream in range(len(self._ring.written)):
                self._fresh.cut(stream)
        if self._fresh is not self._ring:
            self._learner.act_by_target()


def remembering(settings: Settings, learner: Learner, recorder: Recorder, saved: dict[str, NDArray],
                same_lives: bool) -> Memory:
    """Makes the memory of a run, which goes on from a checkpoint's if `saved` has one. Tells the user if it has none.

    Of `same_lives` see `Memory.restore`.
    """
    memory = Memory(settings, recorder.spec, learner, recorder.statistics)
    if recorder.statistics.agent_steps:
        why = "the checkpoint has no replay"
        try:
            if f"{PREFIX}facts" in saved:
                memory.restore(saved, same_lives)
                why = ""
        except (ValueError, LookupError, TypeError) as error:
            why = f"that of the checkpoint does not fit, {' '.join(str(error).split())[:200]}"
            memory = Memory(settings, recorder.spec, learner, recorder.statistics)
        if why:
            recorder.log(f"The replay begins empty: {why}. The policy as learned fills it again, with "
                         f"{settings.replay.replay_start} steps before the next update.")
    recorder.statistics.replay = memory.columns
    return memory


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
