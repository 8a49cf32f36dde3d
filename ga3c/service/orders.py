"""The orders that serial mode plays in: for the queues, for A3C on processors, for all schedules in rounds.

An order says which agents are answered together, which goes on when, and when an update is made of what. It holds the
slots that wait for an update. `serial_agents.Agents` has all else.
"""

from __future__ import annotations

from collections import deque
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
    """What `serial_agents.Agents` goes by."""

    def begin(self, agents: Agents) -> None:
        """All agents wait for their predictions."""

    def go_on(self, agents: Agents, predict: Predict, update: Learn, over: Callable[[], bool]) -> tuple[int, int]:
        """Plays for about a step of every agent, until it is `over`. Returns observations answered, in how many calls.
        """

    def held(self) -> list[int]:
        """Slots that wait for an update."""

    def state(self) -> dict[str, Any]:
        """All that a resume needs, as plain values."""

    def restore(self, state: dict[str, Any], n: int) -> None:
        """Goes on from a `state` of n agents. Raises ValueError, LookupError, TypeError if it is none."""


class Queue:
    """GA3C's: all are answered, then go on one after the other; an update as soon as enough rollouts are there.

    `training_delay` more wait. So an update may fall between the steps of two agents. With `batch_reuse` the updates of
    earlier batches follow, in the order of `batches.Reused`; their slots are kept as long.
    """

    def __init__(self, settings: Settings) -> None:
        self._rollouts = rollouts_per_batch(settings)
        self._enough = self._rollouts + settings.batching.training_delay
        self._submitted: deque[int] = deque()
        self._uses = settings.batching.batch_reuse
        self._recent: deque[list[int]] = deque()  # slots of batches that are used again, the newest first
        self.moved = -1  # agents that have taken their step of this round; -1: they have yet to begin

    def begin(self, agents: Agents) -> None:
        """As of any order."""
        self.moved = agents.n if self.moved < 0 else self.moved
        self._batch = agents.store.empty_batch(self._rollouts)

    def go_on(self, agents: Agents, predict: Predict, update: Learn, over: Callable[[], bool]) -> tuple[int, int]:
        """The rest of a round, or a whole one."""
        answered = 0

        def submitted(agent: int, slot: int) -> None:
            self._submitted.append(slot)
            if len(self._submitted) == self._enough:
                self._recent.appendleft([self._submitted.popleft() for _ in range(self._rollouts)])
                for age, slots in enumerate(self._recent):
                    agents.store.gather(slots, self._batch, 0)
                    update(self._batch.again() if age else self._batch)
                if len(self._recent) == self._uses:
                    agents.free.extend(self._recent.pop())

        if self.moved == agents.n:
            answered = agents.answer(range(agents.n), predict)
            self.moved = 0
        while self.moved < agents.n and not over():
            agents.move(self.moved, submitted)
            self.moved += 1
        return answered, int(answered > 0)

    def held(self) -> list[int]:
        """Slots that wait for an update."""
        return [*self._submitted, *(slot for slots in self._recent for slot in slots)]

    def state(self) -> dict[str, Any]:
        """As of any order."""
        return {"moved": self.moved, "submitted": list(self._submitted), "recent": list(self._recent)}

    def restore(self, state: dict[str, Any], n: int) -> None:
        """As of any order."""
        self.moved, self._submitted = int(state["moved"]), deque(state["submitted"])
        self._recent = deque(map(list, state.get("recent", ())))  # earlier versions had none
        if not 0 <= self.moved <= n:
            raise ValueError("there are other agents")


class InRounds:
    """The schedules of `rounds`."""

    def __init__(self, settings: Settings) -> None:
        self._rounds, self._length = Rounds(plan(settings)), settings.algorithm.rollout_length
        self._rollouts = rollouts_per_batch(settings)

    def begin(self, agents: Agents) -> None:
        """As of any order."""
        self._batch = agents.store.empty_batch(self._rollouts, self._length)
        for agent in range(agents.n):
            self._rounds.asked(agent, *agents.pending(agent))

    def go_on(self, agents: Agents, predict: Predict, update: Learn, over: Callable[[], bool]) -> tuple[int, int]:
        """What is due, until all have taken a step or an update was made."""
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
        """Slots that wait for an update."""
        return [slot for _, slots in self._rounds.state()["submitted"] for slot in slots]

    def state(self) -> dict[str, Any]:
        """As of any order."""
        return {"rounds": self._rounds.state()}

    def restore(self, state: dict[str, Any], n: int) -> None:
        """As of any order."""
        self._rounds.restore(state["rounds"])


class InTurn:
    """A3C on processors, in one thread: one agent plays a rollout by the weights of now and learns from it; then the
    next one does.
    """

    def __init__(self) -> None:
        self._turn = 0

    def begin(self, agents: Agents) -> None:
        """As of any order."""
        self._batch = agents.store.empty_batch(1)

    def go_on(self, agents: Agents, predict: Predict, update: Learn, over: Callable[[], bool]) -> tuple[int, int]:
        """A rollout, or what is left of it, and its update."""
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
        """Slots that wait for an update: none does."""
        return []

    def state(self) -> dict[str, Any]:
        """As of any order."""
        return {"turn": self._turn}

    def restore(self, state: dict[str, Any], n: int) -> None:
        """As of any order."""
        self._turn = int(state["turn"])
        if not 0 <= self._turn < n:
            raise ValueError("there are other agents")


def make_order(settings: Settings) -> Order:
    """The order of the schedule named in the settings."""
    if settings.workers_learn:
        return InTurn()
    return InRounds(settings) if plan(settings).in_rounds else Queue(settings)


def slots_needed(settings: Settings, agents: int) -> int:
    """So many slots that no agent ever waits for a free one.

    Each agent has the rollout it writes and the one it is about to submit; the rest wait for an update.
    """
    schedule = plan(settings)
    if schedule.in_rounds:
        return agents * (schedule.uses + 1)
    return 2 * agents + settings.batching.batch_reuse * rollouts_per_batch(settings) + settings.batching.training_delay
