"""Serial mode: the same agents, slots, learner and record in one thread, in a fixed order. Repeatable to the byte.

Each round one inference answers all agents' pending predictions, in the order of the agents. Then each agent goes on to
its next prediction. An update is made as soon as enough rollouts have been submitted, and `training_delay` more, which
wait.

Checkpoints hold everything an agent needs to go on, where its environments can save their state: Atari and the toys. So
a resumed run equals one that never ended. Other games begin new episodes on a resume.
"""

from __future__ import annotations

import functools
import json
import sys
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ga3c.agents.fault_tolerant import RETRIES, FaultTolerantEnvironment
from ga3c.agents.loop import Progress, agent_seed, play, reward_discount, seeded
from ga3c.envs import wrapper_statistics
from ga3c.envs.base import Environment, EnvSpec
from ga3c.envs.containment import Kept, contained, telling, told
from ga3c.envs.factory import make_environment
from ga3c.envs.random_streams import global_streams, restore_global_streams, seed_global_streams
from ga3c.envs.wrapper_statistics import Statistics, WrapperStatistics, merged
from ga3c.learner.learner import Learner
from ga3c.runs.recorder import Recorder
from ga3c.runs.statistics import Workers
from ga3c.service.agent_pool import AgentsLost
from ga3c.service.batches import rollouts_per_batch
from ga3c.service.evaluations import Evaluations
from ga3c.service.signals import Signals
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field, Outputs
from ga3c.transport.port import GO_ON, PREDICT, SUBMIT, TAKE
from ga3c.transport.slots import Batch, Slots

SAVED = "serial."  # before the names of what `Agents.state` adds to a checkpoint

Update = Callable[[Batch], None]


class Agents:
    """All agents, each at its next prediction.

    Args:
        outputs: fields of the model's outputs.
        began_at: agent steps when they began; their seeds follow from it.
        saved: the `state` of such agents, which these go on from.
        statistics: what wrappers have seen, in a run that goes on.
        failed: called while what an environment raised is handled, with the number of its agent. It was replaced.
    """

    def __init__(self, settings: Settings, spec: EnvSpec, outputs: Mapping[str, Field], began_at: int,
                 saved: Mapping[str, NDArray] | None = None, failed: Callable[[int], None] = lambda agent: None,
                 statistics: Statistics | None = None) -> None:
        self.n, self._n_envs, self._shape = settings.agent_count, settings.agents.envs_per_agent, spec.observation_shape
        self._began_at, self._keeps_statistics = began_at, spec.n_statistics > 0
        self._enough = rollouts_per_batch(settings) + settings.batching.training_delay
        # Nobody waits here: each agent has the rollout it writes and the one it is about to submit; the rest wait to
        # be trained on.
        self._store = Slots(spec, settings.algorithm.rollout_length, self._n_envs, 2 * self.n + self._enough,
                            outputs=outputs, discounted=settings.algorithm.normalize_rewards)
        self._free = deque(range(self._store.n_slots))
        self._submitted: deque[int] = deque()
        self._batch = self._store.empty_batch(rollouts_per_batch(settings))
        self.moved = self.n  # agents that have taken their step of this round
        self._progress = [Progress.new(self._n_envs) for _ in range(self.n)]
        self._environments: list[FaultTolerantEnvironment] = []
        self._base, self._seen = statistics, list[WrapperStatistics]()
        self._rngs, self._players = [], []
        seed_global_streams(int(agent_seed(settings, self.n, 1, began_at).generate_state(1)[0]))
        for agent in range(self.n):
            environment_seed, rng = seeded(agent_seed(settings, agent, 1, began_at))
            seen = WrapperStatistics(statistics)
            with contained():
                environment = FaultTolerantEnvironment(functools.partial(self._make, settings, seen),
                                                       functools.partial(failed, agent))
                with telling(f"game: {settings.env.game!r} fails when it is reset", ConfigError):
                    environment.reset(environment_seed)
            self._environments.append(environment)
            self._seen.append(seen)
            self._rngs.append(rng)
        if saved is not None:
            self._restore(saved)
        for agent, environment in enumerate(self._environments):
            self._players.append(play(environment, self._store, self._rngs[agent], self._progress[agent],
                                      resumed=saved is not None, discount=reward_discount(settings.algorithm)))
        self._pending = [self._advance(agent, None, lambda batch: None) for agent in range(self.n)]

    def _make(self, settings: Settings, seen: WrapperStatistics) -> Environment:
        made = make_environment(settings, self._n_envs)
        if self._keeps_statistics:
            seen.follow(made)
        return made

    def statistics(self) -> dict[str, NDArray]:
        """What all wrappers have seen, for checkpoints; {} if they keep nothing."""
        if not self._keeps_statistics:
            return {}
        known = [] if self._base is None else [self._base]
        return {wrapper_statistics.SAVED: functools.reduce(merged, [*known, *(seen.seen() for seen in self._seen)])}

    def _advance(self, agent: int, granted: int | None, update: Update) -> tuple[int, int]:
        """Resumes one agent until it asks for a prediction; returns that (slot, step)."""
        player = self._players[agent]
        kind, slot, step = next(player) if granted is None else player.send(granted)
        while kind != PREDICT:
            if kind == TAKE:
                kind, slot, step = player.send(self._free.popleft())
            else:
                assert kind == SUBMIT
                self._submitted.append(slot)
                if len(self._submitted) == self._enough:
                    slots = [self._submitted.popleft() for _ in range(len(self._batch))]
                    self._store.gather(slots, self._batch, 0)
                    self._free.extend(slots)
                    update(self._batch)
                kind, slot, step = player.send(0)
        return slot, step

    def answer(self, predict: Callable[[NDArray], tuple[Outputs, int]]) -> int:
        """Begins a round: all agents are answered by one call of `predict`; returns how many observations."""
        rows = [self._store.row(slot, step) for slot, step in self._pending]
        room = self._store.empty_observations(self.n)
        self._store.observations(rows, room)
        outputs, version = predict(room.reshape(-1, *self._shape))
        self._store.answer(rows, {name: array.reshape(self.n, self._n_envs, *array.shape[1:])
                                  for name, array in outputs.items()}, version)
        self.moved = 0
        return self.n * self._n_envs

    def move(self, update: Update) -> None:
        """The next agent of the round takes its step and goes on to its next prediction."""
        self._pending[self.moved] = self._advance(self.moved, GO_ON, update)
        self.moved += 1

    @property
    def given_up(self) -> int | None:
        """The agent whose environments failed too often, if there is one."""
        return next((agent for agent, each in enumerate(self._environments) if each.given_up), None)

    def close(self) -> list[str]:
        """Closes the environments; what those raised that failed at it, one line each."""
        failures = []
        for environment in self._environments:
            try:
                environment.close()
            except BaseException as error:  # noqa: B036  # users' code; all is played
                failures.append(told(error))
        return failures

    # ------------------------------------------------------------------------------------ in checkpoints

    @property
    def can_save(self) -> bool:
        """Whether all environments can save their state."""
        return all(environment.state() is not None for environment in self._environments)

    def state(self) -> dict[str, NDArray]:
        """Everything the agents need to go on, as plain arrays; {} if their environments cannot save theirs."""
        found: dict[str, NDArray] = {}
        for agent, environment in enumerate(self._environments):
            state = environment.state()
            if state is None:
                return {}
            found |= {f"{SAVED}{agent}.{name}": array for name, array in state.items()}
        places = {"began_at": self._began_at, "moved": self.moved, "free": list(self._free),
                  "submitted": list(self._submitted), "progress": [vars(progress) for progress in self._progress],
                  "rngs": [rng.bit_generator.state for rng in self._rngs], "shape": self._facts_shape(),
                  "global_streams": global_streams()}
        facts = b"".join(array.tobytes() for array in self._store.facts().values())
        # Most of it is observations, which are much alike.
        return found | {f"{SAVED}places": _bytes(json.dumps(places).encode()),
                        f"{SAVED}facts": _bytes(zlib.compress(facts, 1))}

    def _facts_shape(self) -> list[Any]:
        return [[name, str(array.dtype), list(array.shape)] for name, array in self._store.facts().items()]

    def _restore(self, saved: Mapping[str, NDArray]) -> None:
        """Raises ValueError or KeyError, LookupError, TypeError if `saved` does not fit."""
        places = json.loads(saved[f"{SAVED}places"].tobytes())
        if places["shape"] != self._facts_shape():
            raise ValueError("it is of other agents")
        for agent, environment in enumerate(self._environments):
            own = f"{SAVED}{agent}."
            environment.restore({name.removeprefix(own): array for name, array in saved.items()
                                 if name.startswith(own)})
            self._rngs[agent].bit_generator.state = places["rngs"][agent]
        if "global_streams" in places:  # earlier versions did not seed them
            restore_global_streams(places["global_streams"])
        facts, at = self._store.facts(), 0
        size = sum(array.nbytes for array in facts.values())
        data = zlib.decompressobj().decompress(saved[f"{SAVED}facts"].tobytes(), size + 1)
        if len(data) != size:
            raise ValueError("its slots are of another size")
        for array in facts.values():
            array[:] = np.frombuffer(data, array.dtype, array.size, at).reshape(array.shape)
            at += array.nbytes
        slots = range(self._store.n_slots)
        self._progress = [Progress(**progress) for progress in places["progress"]]
        self._free, self._submitted, self.moved = (
            deque(places["free"]), deque(places["submitted"]), int(places["moved"]))
        taken = [slot for progress in self._progress for slot in (progress.slot, progress.full) if slot is not None]
        if sorted([*self._free, *self._submitted, *taken]) != list(slots) or not 0 <= self.moved <= self.n:
            raise ValueError("a slot is in two places, or in none")


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def run_serial(settings: Settings, recorder: Recorder, learner: Learner, signals: Signals,
               saved: Mapping[str, NDArray] | None = None, evaluations: Evaluations | None = None,
               statistics: Statistics | None = None) -> str:
    """Plays and trains until a limit is reached or a signal came; returns which.

    `saved` are the arrays of the checkpoint that `learner` was restored from. If they are of such a serial run, its
    agents go on; else new ones begin.
    """
    def failed(agent: int) -> None:
        recorder.statistics.environment_faults += 1
        error = sys.exception()
        assert error is not None
        recorder.event("environment_failed", agent=agent, cause=told(error))
        recorder.note(traceback.format_exc())

    agents = (_restored(settings, recorder, learner, saved or {}, failed)
              or Agents(settings, recorder.spec, learner.outputs, learner.agent_steps, failed=failed,
                        statistics=statistics))
    try:
        reason = _play(agents, recorder, learner, signals, evaluations)
        state = agents.state() | agents.statistics()
        recorder.also_saved = lambda: state  # the last checkpoint is made when the environments are closed
        return reason
    except BaseException as error:
        if agents.given_up is None:
            raise
        recorder.note(traceback.format_exc())
        raise AgentsLost(f"agents: the environments of agent {agents.given_up} failed {RETRIES + 1} times in a row; "
                         f"the last time: {told(error)}") from error
    finally:
        with contained():
            for failure in agents.close():
                recorder.note(f"An environment failed when it was closed, which harms nothing: {failure}")
        signals.hold()


def _restored(settings: Settings, recorder: Recorder, learner: Learner, saved: Mapping[str, NDArray],
              failed: Callable[[int], None]) -> Agents | None:
    """The agents of a checkpoint; None if it has none, or other ones."""
    if f"{SAVED}places" not in saved:
        if saved:
            recorder.say("New episodes begin: the checkpoint does not hold those that were under way.")
        return None
    try:
        began_at = json.loads(saved[f"{SAVED}places"].tobytes())["began_at"]
        return Agents(settings, recorder.spec, learner.outputs, began_at, saved, failed,
                      saved.get(wrapper_statistics.SAVED))
    except (ValueError, LookupError, TypeError, AttributeError, zlib.error, OverflowError) as error:
        recorder.say(f"New episodes begin: those of the checkpoint do not fit, {' '.join(str(error).split())[:200]}.")
        return None


def _play(agents: Agents, recorder: Recorder, learner: Learner, signals: Signals,
          evaluations: Evaluations | None) -> str:
    count = recorder.statistics.new_count()
    if not agents.can_save:
        recorder.say("This game cannot save its state: a resume of this run will begin new episodes.")
    recorder.also_saved = lambda: agents.state() | agents.statistics()

    def update(batch: Batch) -> None:
        stats = learner.update(batch)
        if stats is None:
            recorder.statistics.report_dropped(batch)
        else:
            recorder.statistics.report(stats, batch)
        recorder.statistics.drain()  # so that a limit on episodes falls at the same update in every run

    recorder.start()
    workers, kept = Workers(agents.n, 1, 1, 0, 0), Kept()
    reason = None
    while reason is None:
        if agents.moved == agents.n:
            count.predictions += agents.answer(learner.predict)
            count.calls += 1
        try:
            while agents.moved < agents.n and not recorder.reached(learner.agent_steps):
                agents.move(update)
        except BaseException:
            recorder.also_saved = dict  # an agent stands in the middle of a step
            raise
        kept.put_back()  # environments play in this process
        signals.hold()
        if evaluations:
            evaluations.tick(learner)
        recorder.tick(learner, workers, [])
        if signals.take_checkpoint_request():
            recorder.save_or_warn(learner)
        reason = signals.name or recorder.reached(learner.agent_steps)
    return reason
