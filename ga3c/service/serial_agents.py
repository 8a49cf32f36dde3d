"""The agents of serial mode, all in one thread, and their part of a checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ga3c.agents.fault_tolerant import FaultTolerantEnvironment
from ga3c.agents.loop import Player, Progress, agent_seed, play, reward_discount, seeded
from ga3c.agents.random_start import play_randomly
from ga3c.envs.base import Environment, EnvSpec
from ga3c.envs.containment import contained, described, reraising
from ga3c.envs.factory import make_environment
from ga3c.envs.random_streams import global_streams, restore_global_streams, seed_global_streams
from ga3c.learner.learner import Model
from ga3c.service.agent_pool import AgentsLost
from ga3c.service.one_thread import Learning, OneThread, Predict
from ga3c.service.signals import Interrupted
from ga3c.settings.schema import Settings
from ga3c.transport.port import GO_ON, PREDICT, SUBMIT, TAKE
from ga3c.transport.slots import Slots

PREFIX = "serial."  # before the names of what `Agents.state` adds to a checkpoint


@dataclasses.dataclass
class _SerialAgent:
    """One agent. pending: slot and step of the prediction it waits for."""

    environment: FaultTolerantEnvironment
    rng: np.random.Generator
    progress: Progress
    player: Player | None = None
    pending: tuple[int, int] = (0, 0)


class Agents:
    """All agents. Between two calls each one waits for its next prediction.

    Args:
        model: the agents act on its outputs.
        began_at: agent steps when the agents began; their seeds depend on it.
        saved: a `state` from which the agents continue.
        failed: called with an agent's number while the exception of its environment is handled. The environment is
            replaced.
        stopping: whether to stop; asked after each agent's environments are made. Then the constructor raises
            Interrupted.
    """

    def __init__(self, settings: Settings, spec: EnvSpec, model: Model, began_at: int,
                 saved: Mapping[str, NDArray] | None = None, failed: Callable[[int], None] = lambda agent: None,
                 stopping: Callable[[], bool] = lambda: False) -> None:
        schedule = settings.schedule
        self.n = schedule.agents
        self._n_envs = settings.agents.envs_per_agent
        self._shape = spec.observation_shape
        self._began_at = began_at
        self._driver = OneThread(settings)
        self.store = Slots(spec, schedule.segment, self._n_envs, schedule.slots_in_one_thread, outputs=model.outputs,
                           discounted=settings.algorithm.normalize_rewards)
        self.free = deque(range(self.store.n_slots))
        random_steps = 0 if began_at else settings.agents.random_start_steps
        self._agents = list[_SerialAgent]()
        seed_global_streams(int(agent_seed(settings, self.n, 1, began_at).generate_state(1)[0]))
        with contextlib.ExitStack() as undo:
            for agent in range(self.n):
                seed = agent_seed(settings, agent, 1, began_at)
                environment_seed, rng = seeded(seed)
                with contained():
                    environment = FaultTolerantEnvironment(functools.partial(make_environment, settings, self._n_envs),
                                                           functools.partial(failed, agent))
                    undo.callback(_closed, environment)
                    with reraising(f"game: {settings.env.game!r} fails when it is reset", AgentsLost):
                        environment.reset(environment_seed)
                    with reraising(f"game: {settings.env.game!r} fails in its random first steps", AgentsLost):
                        mixed = play_randomly(environment, self._n_envs, 0 if saved is not None else random_steps, seed)
                played = began_at // (self.n * self._n_envs)
                self._agents.append(_SerialAgent(environment, rng, Progress.new(
                    self._n_envs, schedule.first(agent), mixed.tolist(), played)))
                if stopping():
                    raise Interrupted
            if saved is not None:
                self._restore(saved)
            for agent, member in enumerate(self._agents):
                member.player = play(member.environment, self.store, member.rng, model.acting, agent, member.progress,
                                     resumed=saved is not None,
                                     again=schedule.requests_twice, cuts=schedule.remembers,
                                     discount=reward_discount(settings.algorithm))
            for agent in range(self.n):
                self._advance(agent, None, lambda agent, slot: None)
            self._driver.begin(self)
            undo.pop_all()

    def _advance(self, agent: int, granted: int | None, submitted: Callable[[int, int], None]) -> None:
        """Resumes one agent until it asks for a prediction."""
        player = self._agents[agent].player
        assert player is not None
        kind, slot, step = next(player) if granted is None else player.send(granted)
        while kind != PREDICT:
            if kind == TAKE:
                granted = self.free.popleft()
            else:
                assert kind == SUBMIT
                submitted(agent, slot)
                granted = GO_ON
            kind, slot, step = player.send(granted)
        self._agents[agent].pending = slot, step

    def pending(self, agent: int) -> tuple[int, int]:
        """Returns slot and step of the prediction that the agent waits for."""
        return self._agents[agent].pending

    def answer(self, agents: Sequence[int], predict: Predict) -> int:
        """Answers these agents by one call of `predict`. Returns the number of observations."""
        n, rows = len(agents), [self.store.row(*self.pending(agent)) for agent in agents]
        buffer = self.store.empty_observations(n)
        self.store.observations(rows, buffer)
        outputs, version = predict(buffer.reshape(-1, *self._shape))
        self.store.answer(rows, {name: array.reshape(n, self._n_envs, *array.shape[1:])
                                 for name, array in outputs.items()}, version)
        return n * self._n_envs

    def move(self, agent: int, submitted: Callable[[int, int], None]) -> None:
        """Plays an answered agent on to its next prediction.

        `submitted` is called with (agent, slot) of a rollout that it submits on the way.
        """
        self._advance(agent, GO_ON, submitted)

    def go_on(self, predict: Predict, learning: Learning, over: Callable[[], bool]) -> tuple[int, int]:
        """Plays the next part of the schedule; see `OneThread.go_on`."""
        return self._driver.go_on(self, predict, learning, over)

    @property
    def given_up(self) -> int | None:
        """The agent whose environments failed too often, if there is one."""
        return next((agent for agent, member in enumerate(self._agents) if member.environment.given_up), None)

    def close(self) -> list[str]:
        """Closes the environments. Returns one line for each exception that this raised."""
        return [failure for member in self._agents if (failure := _closed(member.environment))]

    # ------------------------------------------------------------------------------------ in checkpoints

    @property
    def can_save(self) -> bool:
        """Whether all environments can save their state."""
        return all(member.environment.state() is not None for member in self._agents)

    def state(self) -> dict[str, NDArray]:
        """Returns all that the agents need to continue, as plain arrays; {} if their environments cannot save state."""
        found: dict[str, NDArray] = {}
        for agent, member in enumerate(self._agents):
            state = member.environment.state()
            if state is None:
                return {}
            found |= {f"{PREFIX}{agent}.{name}": array for name, array in state.items()}
        places = {"began_at": self._began_at, "free": list(self.free), **self._driver.state(),
                  "progress": [vars(member.progress) for member in self._agents],
                  "rngs": [member.rng.bit_generator.state for member in self._agents], "shape": self._facts_shape(),
                  "global_streams": global_streams()}
        facts = b"".join(array.tobytes() for array in self.store.facts().values())
        # Compressed, because observations are the largest part and much alike.
        return found | {f"{PREFIX}places": _bytes(json.dumps(places).encode()),
                        f"{PREFIX}facts": _bytes(zlib.compress(facts, 1))}

    def _facts_shape(self) -> list[Any]:
        return [[name, str(array.dtype), list(array.shape)] for name, array in self.store.facts().items()]

    def _restore(self, saved: Mapping[str, NDArray]) -> None:
        """Continues from a `state`. Raises ValueError, LookupError or TypeError if `saved` does not fit."""
        places = json.loads(saved[f"{PREFIX}places"].tobytes())
        if places["shape"] != self._facts_shape():
            raise ValueError("its slots have other shapes")
        for agent, member in enumerate(self._agents):
            own = f"{PREFIX}{agent}."
            member.environment.restore({name.removeprefix(own): array for name, array in saved.items()
                                        if name.startswith(own)})
            member.rng.bit_generator.state = places["rngs"][agent]
            member.progress = Progress(**places["progress"][agent])
        restore_global_streams(places["global_streams"])
        facts, at = self.store.facts(), 0
        size = sum(array.nbytes for array in facts.values())
        data = zlib.decompressobj().decompress(saved[f"{PREFIX}facts"].tobytes(), size + 1)
        if len(data) != size:
            raise ValueError("its slots are of another size")
        for array in facts.values():
            array[:] = np.frombuffer(data, array.dtype, array.size, at).reshape(array.shape)
            at += array.nbytes
        slots = range(self.store.n_slots)
        self.free = deque(places["free"])
        self._driver.restore(places, self.n)
        taken = [slot for member in self._agents for slot in (member.progress.slot, member.progress.full)
                 if slot is not None]
        if sorted([*self.free, *self._driver.held(), *taken]) != list(slots):
            raise ValueError("a slot is in two places, or in none")


def _closed(environment: Environment) -> str:
    """Closes the environment. Returns what it raised, in one line; "" for nothing."""
    with contained():
        try:
            environment.close()
        except BaseException as error:  # noqa: B036  # users' code; nothing follows
            return described(error)
    return ""


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)
