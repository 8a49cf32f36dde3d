"""Rollouts that have come to the trainers, until one takes them: those that lie side by side together.

Agents of a process, as many as an update has rollouts, with seats side by side, are *fellows*. In each round they fill
slots side by side, a *block*; what the rounds are and how fellows keep in step is `channel.Port`'s business.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ga3c.transport.seating import Seating

ROUNDS = 2**16  # after so many their numbers begin anew


class Rollout(NamedTuple):
    """One that was handed in."""

    agent: int
    slot: int
    round: int


class Blocks:
    """What has come and was not taken. One thread at a time adds and takes; any may ask what there is.

    Args:
        seating: which agents share a process.
        size: rollouts in an update, of which a block has as many.
        plays: whether an agent does, so that it will hand in what its fellows wait for.
    """

    def __init__(self, seating: Seating, size: int, plays: Callable[[int], bool]) -> None:
        self._size, self._plays = size, plays
        self._there: list[Rollout] = []  # replaced at once
        self._before: list[int] = []  # of each trainer that shall end: how many of these had come before
        self._last: list[int | None] = [None] * seating.capacity  # the round of each agent's last
        self._fellows: dict[int, list[int]] = {}  # by agent, itself among them; not where some would be left over
        for process in range(seating.processes):
            agents = list(seating.agents_of(process))
            if not len(agents) % size:
                for seat, agent in enumerate(agents):
                    self._fellows[agent] = agents[seat // size * size:][:size]

    def __len__(self) -> int:
        return len(self._there)

    @property
    def ready(self) -> int:
        """How many do not wait for others."""
        return sum(len(rollouts) for _, rollouts in self._ready(self._there))

    def fellows(self, agent: int) -> int:
        """How many fill blocks with the agent, itself among them."""
        return len(self._fellows.get(agent, [agent]))

    def all_play(self) -> bool:
        """Whether all who play do so with all of their fellows, so that whatever comes is in blocks."""
        return all(agent in self._fellows and all(map(self._plays, self._fellows[agent]))
                   for agent in filter(self._plays, range(len(self._last))))

    def begin(self, agent: int) -> None:
        """A new incarnation of the agent will hand in, none of whose forerunner's is there; its rounds begin anew."""
        self._last[agent] = None

    def add(self, rollouts: list[Rollout]) -> None:
        """They have come, in this order."""
        for rollout in rollouts:
            self._last[rollout.agent] = rollout.round
        self._there = self._there + rollouts

    def end(self) -> None:
        """A trainer shall end, once all that is there has been taken."""
        self._before.append(len(self._there))

    def take(self, most: int, oldest: bool = False) -> tuple[list[Rollout], bool]:
        """(Rollouts, whether who takes them shall end): a whole block in the order of its slots, or at most `most` that
        no block is to be waited for, or the oldest if `min_valid_version`; none if all wait. As long as a trainer shall end, of
        what had come before that, and none of it waits.
        """
        whole, found = False, self._there[:self._before[0]] if self._before else self._there
        if not oldest:
            whole, found = next(self._ready(found), (False, found if self._before else []))
        found = found if whole else found[:most]
        self._there = [rollout for rollout in self._there if rollout not in found]
        self._before = [before - len(found) for before in self._before]
        ends = 0 in self._before
        if ends:
            self._before.remove(0)
        return found, ends

    def drop(self) -> int:
        """Takes all, for good; returns how many."""
        there, self._there = self._there, []
        self._before = [0 for _ in self._before]
        return len(there)

    def _ready(self, there: list[Rollout]) -> Iterator[tuple[bool, list[Rollout]]]:
        """Of these, block after block, as the first of it came: (True, the whole ones, by slot) and (False, what there
        is of those that will not be whole, or of agents without fellows).
        """
        blocks: dict[tuple[int, int], list[Rollout]] = {}
        for rollout in there:
            fellows = self._fellows.get(rollout.agent)
            blocks.setdefault((fellows[0], rollout.round) if fellows else (-1, 0), []).append(rollout)
        for (first, number), rollouts in blocks.items():
            fellows, agents = self._fellows.get(first, []), {rollout.agent for rollout in rollouts}
            if agents.issuperset(fellows) and fellows:
                yield True, sorted(rollouts, key=operator.attrgetter("slot"))
            elif not fellows or not all(agent in agents or self._may_come(agent, number) for agent in fellows):
                yield False, rollouts

    def _may_come(self, agent: int, number: int) -> bool:
        """Whether the agent's rollout of this round, which is not there, is to be waited for: not if it was taken."""
        last = self._last[agent]
        return self._plays(agent) and (last is None or 0 < (number - last) % ROUNDS < ROUNDS // 2)
