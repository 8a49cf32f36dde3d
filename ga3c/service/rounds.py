"""The schedules in rounds, as one state machine without I/O.

It decides which requests are answered together, and when which rollouts become an update. Serial mode and the service
use the same machine, so they learn the same.

    synchronous   all agents take a step; after `rollout_length` steps one update is made from the rollouts of all
    alternating   the same for two halves of the agents in turn: while one half plays, the other is answered
    multi-batch   all agents take a step; after every `steps_per_update` steps one of the `update_groups` groups is
                  trained on, each in turn, with its last `rollout_length` steps (CuLE: Dalton et al., 2020, section 4)

With a replay (Daley and Amato, 2021) rollouts go into it as they are submitted, and an update has no rollouts. Then it
means: make the updates that are due.

    standard      each agent is answered alone, in turn; updates are due after `rollout_length` steps of all
    synchronised  the same with one prediction for all agents
    concurrent    as standard; updates are made while agents play on, by the target network; `Update` means that both
                  meet: the replay takes in what was played, and the target network the newest weights
    both          concurrent and synchronised

No agent acts with weights that a running update will replace. Every agent takes exactly `Schedule.steps` steps
between two updates. So versions, policy lags and batches do not depend on the speed of any agent.

A full rollout needs a bootstrap value from the weights that played it. Its agent requests that value and submits. Then
it requests another prediction, for its next action (`Schedule.requests_twice`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, NamedTuple

from ga3c.settings.schedule import Schedule


class Answer(NamedTuple):
    """An instruction to answer these agents, in this order, by one prediction. Then call `Rounds.answered`.

    plays: whether they then take a step. Else the prediction is for a final observation or for a bootstrap value.
    """

    agents: list[int]
    plays: bool


class Update(NamedTuple):
    """An instruction to make an update. Then call `Rounds.updated`.

    rollouts: for each rollout of the batch its agent and its slots, oldest first.
    """

    rollouts: list[tuple[int, list[int]]]


class Left(NamedTuple):
    """Slots of an agent that has gone: those that were in no update, and those that were in one."""

    untrained: list[int]
    trained: list[int]


@dataclasses.dataclass
class _Participant:
    """One agent, as the rounds see it.

    generation: how often it was started. takes_part: whether it is in the updates; before that its first request
    waits. asked: slot and step of the request that waits. slot: the slot it writes; -1 before it plays, and from a
    submission until the next step. submitted: slots for updates to come, oldest first. untrained: the slot among them
    that was in no update yet.
    """

    generation: int
    takes_part: bool = False
    asked: tuple[int, int] | None = None
    slot: int = -1
    submitted: list[int] = dataclasses.field(default_factory=list)
    untrained: int | None = None


class Rounds:
    """The state of the rounds: requests that wait, rollouts submitted, and what is due next.

    played: steps that agents took since the last update, before this; they are in a replay. The first update comes so
    much sooner.
    """

    def __init__(self, schedule: Schedule, played: int = 0) -> None:
        self._schedule = schedule
        self.updates = self._turn = 0
        self._played = [played] * schedule.turns  # steps answered so far, by turn
        self._agents: dict[int, _Participant] = {}

    @property
    def generations(self) -> dict[int, int]:
        """The generation of each known agent: how often it was started."""
        return {agent: member.generation for agent, member in self._agents.items()}

    def asked(self, agent: int, slot: int, step: int, generation: int = 1) -> None:
        """Notes that the agent waits for a prediction. generation: how often it was started."""
        self._agents.setdefault(agent, _Participant(generation)).asked = slot, step

    def submitted(self, agent: int, slot: int) -> None:
        """Notes that the agent has submitted this slot."""
        known = self._agents[agent]
        known.slot = -1
        if not self._schedule.remembers:
            known.submitted.append(slot)
            known.untrained = slot

    def left(self, agent: int) -> Left:
        """Removes an agent that has gone. Returns its slots, which are in no further update."""
        gone = self._agents.pop(agent, None)
        if gone is None:
            return Left([], [])
        return Left([slot for slot in gone.submitted if slot == gone.untrained],
                    [slot for slot in gone.submitted if slot != gone.untrained])

    def due(self, present: Iterable[int]) -> Answer | Update | None:
        """Returns what is due; None until the agents whose turn it is have asked. `present`: agents that play or will.

        The rounds begin when all present agents have asked. An agent that comes later takes part after the next update
        that `Schedule.begins` allows.
        """
        if not self._agents:
            return None
        if not self.updates and not any(member.takes_part for member in self._agents.values()):
            if not self._agents.keys() >= set(present):
                return None
            # Agents may have died before the first update. Their rollouts are gone, or in a replay.
            slots = -(-max(self._played) // self._schedule.segment) if self._schedule.remembers else 0
            self._played = [min(slots * self._schedule.segment, self._schedule.steps)] * self._schedule.turns
            self._turn = 0
            self._admit()
        for _ in range(self._schedule.turns):
            members = [agent for agent, member in self._agents.items()
                       if member.takes_part and agent % self._schedule.turns == self._turn]
            if any(self._agents[agent].asked is None for agent in members):
                return None
            before = [agent for agent in members if self._asks_for_a_value(self._agents[agent])]
            if before:
                return Answer(sorted(before), False)
            if members and self._played[self._turn] < self._schedule.steps * (self.updates + 1):
                return Answer(sorted(members), True)
            self._turn = (self._turn + 1) % self._schedule.turns
        return Update([(agent, member.submitted[-self._schedule.uses:]) for agent, member in self._of_the_group()
                       if member.submitted])

    def _of_the_group(self) -> list[tuple[int, _Participant]]:
        """Returns the agents of the group that the next update is made from."""
        group = self.updates % self._schedule.groups
        return [(agent, member) for agent, member in sorted(self._agents.items())
                if agent % self._schedule.groups == group]

    def _asks_for_a_value(self, agent: _Participant) -> bool:
        """Returns whether the agent asks for the value of a final observation, or for a bootstrap value."""
        assert agent.asked is not None
        slot, step = agent.asked
        return step == self._schedule.segment or agent.slot not in (-1, slot)

    def answered(self, answer: Answer) -> None:
        """Notes that the agents were answered. They now play or submit."""
        for agent in answer.agents:
            known = self._agents[agent]
            if answer.plays and known.asked is not None:
                known.slot, _ = known.asked
            known.asked = None
        if answer.plays:
            self._played[self._turn] += 1
            self._turn = (self._turn + 1) % self._schedule.turns

    def updated(self) -> list[tuple[int, int]]:
        """Notes that the due update is made, or its data copied. Returns (agent, slot) of slots no longer needed."""
        free = []
        for agent, member in self._of_the_group():
            member.untrained = None
            while len(member.submitted) >= self._schedule.uses:
                free.append((agent, member.submitted.pop(0)))
        self.updates += 1
        self._played = [self._schedule.steps * self.updates] * self._schedule.turns
        self._turn = 0
        self._admit()
        return free

    def _admit(self) -> None:
        for agent, member in self._agents.items():
            if self._schedule.begins(agent, member.generation) == self.updates % self._schedule.groups:
                member.takes_part = True

    @property
    def held(self) -> list[int]:
        """The slots that wait for an update, or for a further use in one."""
        return [slot for member in self._agents.values() for slot in member.submitted]

    # ------------------------------------------------------------------------------------ in checkpoints

    def state(self) -> dict[str, Any]:
        """Returns plain values, without requests. `untrained` is not needed: agents of serial mode do not leave."""
        agents = sorted(self._agents.items())
        return {"schedule": list(self._schedule[:4]), "updates": self.updates, "turn": self._turn,
                "played": self._played,
                "slots": [(agent, member.slot) for agent, member in agents if member.takes_part],
                "submitted": [(agent, member.submitted) for agent, member in agents if member.takes_part]}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a `state`; agents ask again. Raises ValueError if it belongs to another schedule."""
        if state["schedule"] != list(self._schedule[:4]) or len(state["played"]) != self._schedule.turns:
            raise ValueError("they are of another schedule")
        self.updates = int(state["updates"])
        self._turn = int(state["turn"])
        self._played = list(state["played"])
        submitted = {int(agent): list(slots) for agent, slots in state["submitted"]}
        self._agents = {int(agent): _Participant(
            generation=1, takes_part=True, slot=int(slot), submitted=submitted.get(int(agent), []))
                        for agent, slot in state["slots"]}
