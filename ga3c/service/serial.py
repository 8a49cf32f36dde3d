"""Serial mode: the same agents, slots, learner and record in one thread, in a fixed order. Repeatable to the byte.

The order is the schedule's (`orders.py`). With the queues, each round one inference answers all agents' pending
predictions, in the order of the agents. Then each agent goes on to its next prediction. An update is made as soon as
enough rollouts have been submitted, and `training_delay` more, which wait.

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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ga3c.agents.fault_tolerant import RETRIES, FaultTolerantEnvironment
from ga3c.agents.loop import Progress, agent_seed, play, reward_discount, seeded
from ga3c.agents.random_start import play_randomly
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
from ga3c.service.batches import lag_limit, refusal
from ga3c.service.evaluations import Evaluations
from ga3c.service.orders import Learn, Predict, make_order, slots_needed
from ga3c.service.signals import Signals
from ga3c.settings.messages import ConfigError
from ga3c.settings.schedule import plan
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field
from ga3c.transport.port import GO_ON, PREDICT, SUBMIT, TAKE
from ga3c.transport.slots import Batch, Slots

SAVED = "serial."  # before the names of what `Agents.state` adds to a checkpoint


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
        self._order, schedule = make_order(settings), plan(settings)
        self.store = Slots(spec, schedule.segment, self._n_envs, slots_needed(settings, self.n), outputs=outputs,
                           discounted=settings.algorithm.normalize_rewards)
        self.free = deque(range(self.store.n_slots))
        self._progress: list[Progress] = []
        random_steps = 0 if began_at else settings.agents.random_start_steps
        self._environments: list[FaultTolerantEnvironment] = []
        self._base, self._seen = statistics, list[WrapperStatistics]()
        self._rngs, self._players = [], []
        seed_global_streams(int(agent_seed(settings, self.n, 1, began_at).generate_state(1)[0]))
        for agent in range(self.n):
            seed = agent_seed(settings, agent, 1, began_at)
            environment_seed, rng = seeded(seed)
            seen = WrapperStatistics(statistics)
            with contained():
                environment = FaultTolerantEnvironment(functools.partial(self._make, settings, seen),
                                                       functools.partial(failed, agent))
                with telling(f"game: {settings.env.game!r} fails when it is reset", ConfigError):
                    environment.reset(environment_seed)
                mixed = play_randomly(environment, self._n_envs, 0 if saved is not None else random_steps, seed)
            self._progress.append(Progress.new(self._n_envs, schedule.first(agent), mixed.tolist()))
            self._environments.append(environment)
            self._seen.append(seen)
            self._rngs.append(rng)
        if saved is not None:
            self._restore(saved)
        for agent, environment in enumerate(self._environments):
            self._players.append(play(environment, self.store, self._rngs[agent], self._progress[agent],
                                      resumed=saved is not None, discount=reward_discount(settings.algorithm)))
        self.pending = [self._advance(agent, None, lambda agent, slot: GO_ON) for agent in range(self.n)]
        self._order.begin(self)

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

    def _advance(self, agent: int, granted: int | None, submitted: Callable[[int, int], int]) -> tuple[int, int]:
        """Resumes one agent until it asks for a prediction; returns that (slot, step)."""
        player = self._players[agent]
        kind, slot, step = next(player) if granted is None else player.send(granted)
        while kind != PREDICT:
            assert kind in (TAKE, SUBMIT)
            kind, slot, step = player.send(self.free.popleft() if kind == TAKE else submitted(agent, slot))
        return slot, step

    def answer(self, agents: Sequence[int], predict: Predict) -> int:
        """These agents are answered by one call of `predict`; returns how many observations."""
        n, rows = len(agents), [self.store.row(*self.pending[agent]) for agent in agents]
        room = self.store.empty_observations(n)
        self.store.observations(rows, room)
        outputs, version = predict(room.reshape(-1, *self._shape))
        self.store.answer(rows, {name: array.reshape(n, self._n_envs, *array.shape[1:])
                                 for name, array in outputs.items()}, version)
        return n * self._n_envs

    def move(self, agent: int, submitted: Callable[[int, int], int]) -> None:
        """An agent that was answered goes on to its next prediction.

        `submitted` gets (agent, slot) of a rollout on the way, and says what that is granted with.
        """
        self.pending[agent] = self._advance(agent, GO_ON, submitted)

    def go_on(self, predict: Predict, update: Learn, over: Callable[[], bool]) -> tuple[int, int]:
        """What the order says is next; see `orders.Order.go_on`."""
        return self._order.go_on(self, predict, update, over)

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
        places = {"began_at": self._began_at, "free": list(self.free), **self._order.state(),
                  "progress": [vars(progress) for progress in self._progress],
                  "rngs": [rng.bit_generator.state for rng in self._rngs], "shape": self._facts_shape(),
                  "global_streams": global_streams()}
        facts = b"".join(array.tobytes() for array in self.store.facts().values())
        # Most of it is observations, which are much alike.
        return found | {f"{SAVED}places": _bytes(json.dumps(places).encode()),
                        f"{SAVED}facts": _bytes(zlib.compress(facts, 1))}

    def _facts_shape(self) -> list[Any]:
        return [[name, str(array.dtype), list(array.shape)] for name, array in self.store.facts().items()]

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
        facts, at = self.store.facts(), 0
        size = sum(array.nbytes for array in facts.values())
        data = zlib.decompressobj().decompress(saved[f"{SAVED}facts"].tobytes(), size + 1)
        if len(data) != size:
            raise ValueError("its slots are of another size")
        for array in facts.values():
            array[:] = np.frombuffer(data, array.dtype, array.size, at).reshape(array.shape)
            at += array.nbytes
        slots = range(self.store.n_slots)
        self._progress = [Progress(**progress) for progress in places["progress"]]
        self.free = deque(places["free"])
        self._order.restore(places, self.n)
        taken = [slot for progress in self._progress for slot in (progress.slot, progress.full) if slot is not None]
        if sorted([*self.free, *self._order.held(), *taken]) != list(slots):
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
        recorder.checkpoints.also_saved = lambda: state  # the last checkpoint is made when the environments are closed
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
    recorder.checkpoints.also_saved = lambda: agents.state() | agents.statistics()

    refused = refusal(lag_limit(recorder.settings), lambda: learner.version, lambda: learner.min_valid_version)

    def update(batch: Batch) -> None:
        old = refused(batch)
        if old.any():
            recorder.statistics.report_dropped(batch[old])
            batch.clear(old)
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
        try:
            predictions, calls = agents.go_on(learner.predict, update,
                                              lambda: recorder.reached(learner.agent_steps) is not None)
        except BaseException:
            recorder.checkpoints.also_saved = dict  # an agent stands in the middle of a step
            raise
        count.predictions += predictions
        count.calls += calls
        kept.put_back()  # environments play in this process
        signals.hold()
        if evaluations:
            evaluations.tick(learner)
        recorder.tick(learner, workers, [])
        if signals.take_checkpoint_request():
            recorder.checkpoints.begin(learner)
        reason = signals.name or recorder.reached(learner.agent_steps)
    return reason
