"""The orders of serial mode: for the queues, for A3C on processors, for all schedules in rounds.

An order decides which agents are answered together, when each agent continues, and which rollouts become an update. It
holds the slots that wait for an update. `serial_agents.Agents` holds everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from ga3c.service.batches import join
from ga3c.service.rounds import Answer, Rounds, Update
from ga3c.settings.plan import plan, rollouts_per_batch
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Outputs
from ga3c.transport.slots import Batch

if TYPE_CHECKING:
    from ga3c.service.serial_agents import Agents

Predict = Callable[[NDArray], tuple[Outputs, int]]
Learn = Callable[[Batch], None]


class Order(Protocol):
    """The interface of an order, for `serial_agents.Agents`."""

    def begin(self, agents: Agents) -> None:
        """Prepares the order. All agents wait for a prediction by now."""

    def go_on(self, agents: Agents, predict: Predict, update: Learn, over: Callable[[], bool]) -> tuple[int, int]:
        """Plays one part of the order: see each class. Returns (observations answered, calls of `predict`).

        over: returns whether a limit is reached; then a round or a rollout ends early.
        """

    def held(self) -> list[int]:
        """Returns the slots that wait for an update."""

    def state(self) -> dict[str, Any]:
        """Returns everything a resume needs, as plain values."""

    def restore(self, state: dict[str, Any], n: int) -> None:
        """Continues from a `state` of n agents. Raises ValueError, LookupError or TypeError if it is none."""


class Queue:
    """The order of GA3C's queues. All agents are answered by one inference, then continue one after the other.

    An update is made as soon as its rollouts are submitted. So it may fall between the steps of two agents.
    """

    def __init__(self, settings: Settings) -> None:
        self._rollouts = rollouts_per_batch(settings)
        self._submitted = list[int]()
        self.moved = -1  # agents that have taken their step of this round; -1: before `begin`

    def begin(self, agents: Agents) -> None:
        """See `Order.begin`."""
        self.moved = agents.n if self.moved < 0 else self.moved
        self._batch = agents.store.empty_batch(self._rollouts)

    def go_on(self, agents: Agents, predict: Predict, update: Learn, over: Callable[[], bool]) -> tuple[int, int]:
        """Plays a round, or the rest of one."""
        answered = 0

        def submitted(agent: int, slot: int) -> None:
            self._submitted.append(slot)
            if len(self._submitted) == self._rollouts:
                agents.store.gather(self._submitted, self._batch, 0)
                update(self._batch)
                agents.free.extend(self._submitted)
                self._submitted.clear()

        if self.moved == agents.n:
            answered = agents.answer(range(agents.n), predict)
            self.moved = 0
        while self.moved < agents.n and not over():
            agents.move(self.moved, submitted)
            self.moved += 1
        return answered, int(answered > 0)

    def held(self) -> list[int]:
        """See `Order.held`."""
        return [*self._submitted]

    def state(self) -> dict[str, Any]:
        """See `Order.state`."""
        return {"moved": self.moved, "submitted": [*self._submitted]}

    def restore(self, state: dict[str, Any], n: int) -> None:
        """See `Order.restore`."""
        self.moved = int(state["moved"])
        self._submitted = [*state["submitted"]]
        if not 0 <= self.moved <= n:
            raise ValueError("the checkpoint has another number of agents")


class InRounds:
    """The order of the schedules in rounds (`rounds.py`)."""

    def __init__(self, settings: Settings) -> None:
        self._rounds, self._length = Rounds(plan(settings)), settings.algorithm.rollout_length
        self._rollouts = rollouts_per_batch(settings)

    def begin(self, agents: Agents) -> None:
        """See `Order.begin`."""
        self._batch = agents.store.empty_batch(self._rollouts, self._length)
        for agent in range(agents.n):
            self._rounds.asked(agent, *agents.pending(agent))

    def go_on(self, agents: Agents, predict: Predict, update: Learn, over: Callable[[], bool]) -> tuple[int, int]:
        """Carries out what is due: one update, or one prediction and what the answered agents do with it."""
        due = self._rounds.due(range(agents.n))
        if isinstance(due, Update):
            join(agents.store, due.slots.values(), self._batch)
            update(self._batch)
            agents.free.extend(slot for _, slot in self._rounds.updated())
            return 0, 0
        assert isinstance(due, Answer)
        answered = agents.answer(due.agents, predict)
        self._rounds.answered(due)
        for agent in due.agents:
            agents.move(agent, self._rounds.submitted)
            self._rounds.asked(agent, *agents.pending(agent))
        return answered, 1

    def held(self) -> list[int]:
        """See `Order.held`."""
        return [slot for _, slots in self._rounds.state()["submitted"] for slot in slots]

    def state(self) -> dict[str, Any]:
        """See `Order.state`."""
        return {"rounds": self._rounds.state()}

    def restore(self, state: dict[str, Any], n: int) -> None:
        """See `Order.restore`."""
        self._rounds.restore(state["rounds"])


class InTurn:
    """The order of A3C on processors, in one thread.

    One agent plays a rollout with the current weights and learns from it. Then the next agent does the same.
    """

    def __init__(self) -> None:
        self._turn = 0

    def begin(self, agents: Agents) -> None:
        """See `Order.begin`."""
        self._batch = agents.store.empty_batch(1)

    def go_on(self, agents: Agents, predict: Predict, update: Learn, over: Callable[[], bool]) -> tuple[int, int]:
        """Plays one agent's rollout, or the rest of it, and makes its update."""
        answered = calls = 0
        learned = False

        def submitted(agent: int, slot: int) -> None:
            nonlocal learned
            agents.store.gather([slot], self._batch, 0)
            agents.free.append(slot)
            update(self._batch)
            learned = True

        while not learned and not over():
            answered += agents.answer([self._turn], predict)
            calls += 1
            agents.move(self._turn, submitted)
        if learned:
            self._turn = (self._turn + 1) % agents.n
        return answered, calls

    def held(self) -> list[int]:
        """See `Order.held`: no slot waits."""
        return []

    def state(self) -> dict[str, Any]:
        """See `Order.state`."""
        return {"turn": self._turn}

    def restore(self, state: dict[str, Any], n: int) -> None:
        """See `Order.restore`."""
        self._turn = int(state["turn"])
        if not 0 <= self._turn < n:
            raise ValueError("the checkpoint has another number of agents")


def make_order(settings: Settings) -> Order:
    """Returns the order of the schedule named in the settings."""
    if settings.workers_learn:
        return InTurn()
    return InRounds(settings) if plan(settings).in_rounds else Queue(settings)


def slots_needed(settings: Settings, agents: int) -> int:
    """Returns a number of slots with which no agent ever waits for a free one.

    Each agent holds the rollout it writes and the one it is about to submit. The other slots wait for an update.
    """
    schedule = plan(settings)
    if schedule.in_rounds:
        return agents * (schedule.uses + 1)
    return 2 * agents + rollouts_per_batch(settings)
