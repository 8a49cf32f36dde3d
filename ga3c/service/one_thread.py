"""The driver of serial mode: it carries out what a schedule says is due, with agents of its own thread.

The schedules are state machines without I/O: `rounds.Rounds`, `queues.Queues`, `queues.Turns`. In the service the
conductor carries out the same rounds (`conductor.py`); there the queues are shared out among threads (`queues.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from ga3c.service.batches import join
from ga3c.service.queues import Queues, Turns
from ga3c.service.rounds import Answer, Rounds, Update
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Outputs
from ga3c.transport.slots import Batch

if TYPE_CHECKING:
    from ga3c.service.serial_agents import Agents

Predict = Callable[[NDArray], tuple[Outputs, int]]


class Learning(Protocol):
    """What learns from the agents."""

    def submitted(self, rollout: Batch, agent: int) -> bool:
        """Hears of a rollout in its slot. Returns whether it was copied, so that its slot is free."""

    def update(self, rollouts: Batch) -> None:
        """Makes the update that is due from these rollouts; if all were copied there are none."""


class StateMachine(Protocol):
    """A schedule as a machine without I/O: it hears what agents do, and says what is due.

    `rounds.Rounds` documents the methods.
    """

    def asked(self, agent: int, slot: int, step: int, generation: int = 1) -> None: ...  # noqa: E704

    def submitted(self, agent: int, slot: int) -> None: ...  # noqa: E704

    def due(self, present: Iterable[int]) -> Answer | Update | None: ...  # noqa: E704

    def answered(self, answer: Answer) -> None: ...  # noqa: E704

    def updated(self) -> list[tuple[int, int]]: ...  # noqa: E704

    @property
    def held(self) -> list[int]: ...  # noqa: E704

    def state(self) -> dict[str, Any]: ...  # noqa: E704

    def restore(self, state: dict[str, Any]) -> None: ...  # noqa: E704


def state_machine(settings: Settings) -> StateMachine:
    """Returns the machine of the schedule in the settings."""
    schedule = settings.schedule
    if schedule.agents_learn:
        return Turns(schedule.agents)
    return Rounds(schedule) if schedule.agents_wait else Queues(schedule.rollouts, schedule.remembers)


class OneThread:
    """Carries out a schedule: answers agents together, lets them play on one after the other, and makes the updates."""

    def __init__(self, settings: Settings) -> None:
        self._schedule = state_machine(settings)
        self._rollouts = settings.schedule.rollouts
        self._length = settings.algorithm.rollout_length
        self._moving: deque[int] = deque()  # agents that were answered and have not played on yet

    def begin(self, agents: Agents) -> None:
        """Takes up the agents, all of which wait for a prediction, or were answered when they were saved."""
        self._batch = agents.store.empty_batch(self._rollouts, self._length)
        for agent in range(agents.n):
            if agent not in self._moving:
                self._schedule.asked(agent, *agents.pending(agent))

    def go_on(self, agents: Agents, predict: Predict, learning: Learning, over: Callable[[], bool]
              ) -> tuple[int, int]:
        """Carries out what is due: one update, or one prediction and what the answered agents do with it.

        over: returns whether a limit is reached; then the agents that are left play on at the next call. Returns
        (observations answered, calls of `predict`).
        """
        def submitted(agent: int, slot: int) -> None:
            self._schedule.submitted(agent, slot)
            if learning.submitted(agents.store.view(slot), agent):
                agents.free.append(slot)

        answered = calls = 0
        if not self._moving:
            due = self._schedule.due(range(agents.n))
            if isinstance(due, Update):
                self._update(due, agents, learning)
                return 0, 0
            assert due is not None, "all agents wait"
            answered, calls = agents.answer(due.agents, predict), 1
            self._schedule.answered(due)
            self._moving.extend(due.agents)
        while self._moving and not over():
            agent = self._moving.popleft()
            agents.move(agent, submitted)
            self._schedule.asked(agent, *agents.pending(agent))
            if isinstance(due := self._schedule.due(range(agents.n)), Update):
                self._update(due, agents, learning)
        return answered, calls

    def _update(self, due: Update, agents: Agents, learning: Learning) -> None:
        join(agents.store, due.rollouts, self._batch)
        learning.update(self._batch)
        agents.free.extend(slot for _, slot in self._schedule.updated())

    def held(self) -> list[int]:
        """Returns the slots that wait for an update, or for a further use in one."""
        return self._schedule.held

    def state(self) -> dict[str, Any]:
        """Returns everything a resume needs, as plain values."""
        return {"schedule": self._schedule.state(), "moving": [*self._moving]}

    def restore(self, state: dict[str, Any], n: int) -> None:
        """Continues from a `state` of n agents. Raises ValueError, LookupError or TypeError if it is none."""
        self._schedule.restore(state["schedule"])
        self._moving = deque(map(int, state["moving"]))
        if not {*self._moving} <= {*range(n)}:
            raise ValueError("the checkpoint has another number of agents")
