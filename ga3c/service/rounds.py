"""The schedules that play in rounds, as one state machine without I/O: which requests are answered together, and when
an update is made of what. Serial mode and the service run the same one, so they learn the same.

    synchronous   all agents take a step; after `rollout_length` of them the rollouts of all are one update
    alternating   the same for two halves of the agents in turn: while one plays, the other is answered
    multi-batch   all take a step; every `steps_per_update` of them one group of `update_groups`, the next each time, is
                  an update of its last `rollout_length` steps (CuLE: Dalton et al., 2020, section 4)

Nobody acts with weights that an update under way will replace. Between two updates stand exactly `steps_per_update`
steps of every agent. So versions, ages and batches do not depend on who is fast.

A full rollout needs the value of what follows it, by the weights that played it. Its agent asks for that, submits, and
asks again for what it acts by (`settings.plan.asks_again`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from ga3c.settings.plan import Plan


class Answer(NamedTuple):
    """These agents are to be answered, by one prediction, in this order. Then `Rounds.answered` is to be called.

    plays: they then take a step. Else it is for a final observation, or for the value of what follows a full rollout.
    """

    agents: list[int]
    plays: bool


class Update(NamedTuple):
    """An update is to be made of these slots of each agent, the oldest first. Then `Rounds.updated` is to be called."""

    slots: dict[int, list[int]]


class Left(NamedTuple):
    """Slots of an agent that is gone: those in no update so far, and those that were in one."""

    untrained: list[int]
    trained: list[int]


@dataclasses.dataclass
class _Participant:
    """What the rounds know of an agent.

    generation: how often it was started. takes_part: in the updates; until then it has asked, and waits. asked: the
    slot and step that it waits with for a prediction. slot: where it writes; -1 until it plays, and again from a
    submitted rollout until the next step. submitted: slots for updates to come, the oldest first. untrained: the one of
    them that was in no update yet.
    """

    generation: int
    takes_part: bool = False
    asked: tuple[int, int] | None = None
    slot: int = -1
    submitted: list[int] = dataclasses.field(default_factory=list)
    untrained: int | None = None


class Rounds:
    """Who has asked for what, and what is due. It waits for all agents that take part; `due` says None meanwhile."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.updates = self._turn = 0
        self._played = [0] * plan.turns  # steps that each turn has been answered for
        self._agents: dict[int, _Participant] = {}

    @property
    def generations(self) -> dict[int, int]:
        """Of each agent that it knows: how often it was started."""
        return {agent: each.generation for agent, each in self._agents.items()}

    def asked(self, agent: int, slot: int, step: int, generation: int = 1) -> None:
        """The agent waits for a prediction. generation: how often it was started."""
        self._agents.setdefault(agent, _Participant(generation)).asked = slot, step

    def submitted(self, agent: int, slot: int) -> None:
        """The slot is full."""
        known = self._agents[agent]
        known.submitted.append(slot)
        known.untrained, known.slot = slot, -1

    def left(self, agent: int) -> Left:
        """The agent is gone, and its slots are in no update any more."""
        gone = self._agents.pop(agent, None)
        if gone is None:
            return Left([], [])
        return Left([slot for slot in gone.submitted if slot == gone.untrained],
                    [slot for slot in gone.submitted if slot != gone.untrained])

    def due(self, present: Iterable[int]) -> Answer | Update | None:
        """What is to be done now; None: somebody still plays. `present`: those there are, playing or about to.

        The rounds begin when all who are present have asked. Who comes later takes part from an update on that
        `Plan.begins` tells.
        """
        if not self._agents:
            return None
        if not self.updates and not any(each.takes_part for each in self._agents.values()):
            if not self._agents.keys() >= set(present):
                return None
            self._played, self._turn = [0] * self.plan.turns, 0  # others may have died before the first update
            self._admit()
        for _ in range(self.plan.turns):
            members = [agent for agent, each in self._agents.items()
                       if each.takes_part and agent % self.plan.turns == self._turn]
            if any(self._agents[agent].asked is None for agent in members):
                return None
            before = [agent for agent in members if self._asks_for_a_value(self._agents[agent])]
            if before:
                return Answer(sorted(before), False)
            if members and self._played[self._turn] < self.plan.steps * (self.updates + 1):
                return Answer(sorted(members), True)
            self._turn = (self._turn + 1) % self.plan.turns
        return Update({agent: each.submitted[-self.plan.uses:] for agent, each in self._of_the_group()
                       if each.submitted})

    def _of_the_group(self) -> list[tuple[int, _Participant]]:
        """Whose turn it is to be trained on."""
        group = self.updates % self.plan.groups
        return [(agent, each) for agent, each in sorted(self._agents.items()) if agent % self.plan.groups == group]

    def _asks_for_a_value(self, agent: _Participant) -> bool:
        """Whether it asks for a final observation, or for the value of what follows a full rollout."""
        assert agent.asked is not None
        slot, step = agent.asked
        return step == self.plan.segment or agent.slot not in (-1, slot)

    def answered(self, answer: Answer) -> None:
        """They play, or submit."""
        for agent in answer.agents:
            known = self._agents[agent]
            if answer.plays and known.asked is not None:
                known.slot, _ = known.asked
            known.asked = None
        if answer.plays:
            self._played[self._turn] += 1
            self._turn = (self._turn + 1) % self.plan.turns

    def updated(self) -> list[tuple[int, int]]:
        """The update that was due is over; returns (agent, slot) of those that are in no later one."""
        free = []
        for agent, each in self._of_the_group():
            each.untrained = None
            while len(each.submitted) >= self.plan.uses:
                free.append((agent, each.submitted.pop(0)))
        self.updates += 1
        self._played = [self.plan.steps * self.updates] * self.plan.turns
        self._turn = 0
        self._admit()
        return free

    def _admit(self) -> None:
        for agent, each in self._agents.items():
            if self.plan.begins(agent, each.generation) == self.updates % self.plan.groups:
                each.takes_part = True

    # ------------------------------------------------------------------------------------ in checkpoints

    def state(self) -> dict[str, Any]:
        """Plain values; what agents ask for is not in it. Nor is what `left` needs: agents of serial mode stay."""
        agents = sorted(self._agents.items())
        return {"plan": list(self.plan), "updates": self.updates, "turn": self._turn, "played": self._played,
                "slots": [(agent, each.slot) for agent, each in agents if each.takes_part],
                "submitted": [(agent, each.submitted) for agent, each in agents if each.takes_part]}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a `state`; agents ask again. Raises ValueError if it is of another plan."""
        of = state.get("plan", list(self.plan))  # not everything that was saved has one
        if of != list(self.plan) or len(state["played"]) != self.plan.turns:
            raise ValueError("they are of another schedule")
        self.updates, self._turn, self._played = int(state["updates"]), int(state["turn"]), list(state["played"])
        submitted = {int(agent): list(slots) for agent, slots in state["submitted"]}
        self._agents = {int(agent): _Participant(
            generation=1, takes_part=True, slot=int(slot), submitted=submitted.get(int(agent), []))
                        for agent, slot in state["slots"]}
