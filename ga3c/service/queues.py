"""The schedules in which no agent waits for another, as state machines without I/O, like `rounds.Rounds`.

Serial mode carries them out. In the service the queues are shared out: each predictor answers who waits
(`transport.channel.Channel.requests`), and each trainer fills its batch (`batches.RolloutQueue`). Workers of A3C
predict and learn by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ga3c.service.rounds import Answer, Update


class Queues:
    """GA3C's queues. Agents that wait are answered together; an update takes any rollouts, as many as it needs.

    An update is due as soon as its rollouts are submitted. So it may fall between the steps of two agents. With a
    replay, updates are made from it after each rollout.
    """

    def __init__(self, n_rollouts: int, remembers: bool = False) -> None:
        self._n_rollouts = 0 if remembers else n_rollouts
        self._collected = 0  # rollouts that went into a replay since updates were made from it
        self._waiting: list[int] = []
        self._submitted: list[tuple[int, int]] = []  # agent, slot

    def asked(self, agent: int, slot: int, step: int, generation: int = 1) -> None:
        """Notes that the agent waits for a prediction."""
        self._waiting.append(agent)

    def submitted(self, agent: int, slot: int) -> None:
        """Notes that the agent has submitted this slot."""
        if self._n_rollouts:
            self._submitted.append((agent, slot))
        else:
            self._collected += 1

    def due(self, present: Iterable[int]) -> Answer | Update | None:
        """Returns what is due; None until there is an update, or all present agents wait."""
        if self._collected or 0 < self._n_rollouts <= len(self._submitted):
            return Update([(agent, [slot]) for agent, slot in self._submitted[:self._n_rollouts]])
        return Answer(sorted(self._waiting), True) if {*self._waiting} >= {*present} else None

    def answered(self, answer: Answer) -> None:
        """Notes that the agents were answered."""
        self._waiting = [agent for agent in self._waiting if agent not in answer.agents]

    def updated(self) -> list[tuple[int, int]]:
        """Notes that the due update is made. Returns (agent, slot) of slots no longer needed."""
        self._collected = 0
        trained, self._submitted = self._submitted[:self._n_rollouts], self._submitted[self._n_rollouts:]
        return trained

    @property
    def held(self) -> list[int]:
        """The slots that wait for an update."""
        return [slot for _, slot in self._submitted]

    def state(self) -> dict[str, Any]:
        """Returns plain values, without requests."""
        return {"submitted": self._submitted}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`; agents ask again."""
        self._submitted = [(int(agent), int(slot)) for agent, slot in state["submitted"]]


class Turns:
    """A3C on processors, in one thread. One agent plays a rollout, which is an update. Then the next agent does so."""

    def __init__(self, agents: int) -> None:
        self._agents = agents
        self._turn = 0
        self._submitted: list[tuple[int, int]] = []

    def asked(self, agent: int, slot: int, step: int, generation: int = 1) -> None:
        """Notes nothing: an agent that waits has not its turn."""

    def submitted(self, agent: int, slot: int) -> None:
        """Notes that the agent has submitted this slot."""
        self._submitted.append((agent, slot))

    def due(self, present: Iterable[int]) -> Answer | Update | None:
        """Returns the update from a rollout just submitted, else the answer for the agent whose turn it is."""
        if self._submitted:
            return Update([(agent, [slot]) for agent, slot in self._submitted])
        return Answer([self._turn], True)

    def answered(self, answer: Answer) -> None:
        """Notes nothing: the turn ends with an update."""

    def updated(self) -> list[tuple[int, int]]:
        """Notes that the update is made; the next agent has its turn. Returns (agent, slot) no longer needed."""
        trained, self._submitted = self._submitted, []
        self._turn = (self._turn + 1) % self._agents
        return trained

    @property
    def held(self) -> list[int]:
        """The slots that wait for an update: none after each part of a run."""
        return [slot for _, slot in self._submitted]

    def state(self) -> dict[str, Any]:
        """Returns plain values."""
        return {"turn": self._turn}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`. Raises ValueError if it has another number of agents."""
        self._turn = int(state["turn"])
        if not 0 <= self._turn < self._agents:
            raise ValueError("the checkpoint has another number of agents")
