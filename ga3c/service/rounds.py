"""The schedules that play in rounds, as one state machine without I/O: which requests are answered together, and when
an update is made of what. Serial mode and the service run the same one, so they learn the same.

    synchronous   all agents take a step; after `rollout_length` of them the rollouts of all are one update
    alternating   the same for two halves of the agents in turn: while one plays, the other is answered
    multi-batch   all take a step; every `steps_per_update` of them one group of `update_groups`, the next each time, is
                  an update of its last `rollout_length` steps (CuLE: Dalton et al., 2020, section 4)

Nobody acts with weights that an update under way will replace. Between two updates stand exactly `steps_per_update`
steps of every agent. So versions, ages and batches do not depend on who is fast.

A full rollout needs the value of what follows it, by the weights that played it. Its agent asks for that, submits, and
asks again for what it acts by: `transport.port.AGAIN`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from ga3c.settings.schedule import Plan


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


class Rounds:
    """Who has asked for what, and what is due. It waits for all agents that take part; `due` says None meanwhile."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.updates = self._turn = 0
        self._played = [0] * plan.turns            # steps that each turn has been answered for
        self._asked: dict[int, tuple[int, int]] = {}  # agents that wait: slot and step
        self._slot: dict[int, int] = {}            # where those that take part write
        self._new: dict[int, int] = {}             # generations of those that have asked and do not take part yet
        self._submitted: dict[int, list[int]] = {}
        self._untrained: dict[int, int] = {}       # the slot of each agent that is in no update yet

    def asked(self, agent: int, slot: int, step: int, generation: int = 1) -> None:
        """The agent waits for a prediction. generation: how often it was started."""
        self._asked[agent] = slot, step
        if agent not in self._slot:
            self._new[agent] = generation

    def submitted(self, agent: int, slot: int) -> None:
        """The slot is full."""
        self._submitted.setdefault(agent, []).append(slot)
        self._untrained[agent] = slot
        self._slot[agent] = -1

    def left(self, agent: int) -> Left:
        """The agent is gone, and its slots are in no update any more."""
        self._asked.pop(agent, None)
        self._slot.pop(agent, None)
        self._new.pop(agent, None)
        untrained = self._untrained.pop(agent, None)
        slots = self._submitted.pop(agent, [])
        return Left([slot for slot in slots if slot == untrained], [slot for slot in slots if slot != untrained])

    def due(self, present: Iterable[int]) -> Answer | Update | None:
        """What is to be done now; None: somebody still plays. `present`: those there are, playing or about to.

        The rounds begin when all who are present have asked. Who comes later takes part from an update on that
        `Plan.begins` tells.
        """
        if not self._slot and not self.updates:
            if not self._new or not self._new.keys() >= set(present):
                return None
            self._played, self._turn = [0] * self.plan.turns, 0  # others may have died before the first update
            self._admit()
        for _ in range(self.plan.turns):
            members = [agent for agent in self._slot if agent % self.plan.turns == self._turn]
            if not self._asked.keys() >= set(members):
                return None
            before = sorted(agent for agent in members if self._is_for_what_was_played(agent))
            if before:
                return Answer(before, False)
            if members and self._played[self._turn] < self.plan.steps * (self.updates + 1):
                return Answer(sorted(members), True)
            self._turn = (self._turn + 1) % self.plan.turns
        if not self._slot and not self._new:
            return None
        group = self.updates % self.plan.groups
        return Update({agent: slots[-self.plan.uses:] for agent, slots in sorted(self._submitted.items())
                       if slots and agent % self.plan.groups == group})

    def _is_for_what_was_played(self, agent: int) -> bool:
        """Whether it asks for a final observation, or for the value of what follows a full rollout."""
        slot, step = self._asked[agent]
        return step == self.plan.segment or self._slot[agent] not in (-1, slot)

    def answered(self, answer: Answer) -> None:
        """They play, or submit."""
        for agent in answer.agents:
            slot, _ = self._asked.pop(agent)
            if answer.plays:
                self._slot[agent] = slot
        if answer.plays:
            self._played[self._turn] += 1
            self._turn = (self._turn + 1) % self.plan.turns

    def updated(self) -> list[tuple[int, int]]:
        """The update that was due is over; returns (agent, slot) of those that are in no later one."""
        group, free = self.updates % self.plan.groups, []
        for agent, slots in sorted(self._submitted.items()):
            if agent % self.plan.groups == group:
                self._untrained.pop(agent, None)
                while len(slots) >= self.plan.uses:
                    free.append((agent, slots.pop(0)))
        self.updates += 1
        self._played = [self.plan.steps * self.updates] * self.plan.turns
        self._turn = 0
        self._admit()
        return free

    def _admit(self) -> None:
        for agent, generation in sorted(self._new.items()):
            if self.plan.begins(agent, generation) == self.updates % self.plan.groups:
                del self._new[agent]
                self._slot[agent] = -1

    # ------------------------------------------------------------------------------------ in checkpoints

    def state(self) -> dict[str, Any]:
        """Plain values; what agents ask for is not in it. Nor is what `left` needs: agents of serial mode stay."""
        return {"updates": self.updates, "turn": self._turn, "played": self._played,
                "slots": sorted(self._slot.items()), "submitted": sorted(self._submitted.items())}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from a `state`; agents ask again."""
        self.updates, self._turn, self._played = int(state["updates"]), int(state["turn"]), list(state["played"])
        self._slot = {int(agent): int(slot) for agent, slot in state["slots"]}
        self._submitted = {int(agent): list(slots) for agent, slots in state["submitted"]}
