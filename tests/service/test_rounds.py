"""Schedules in rounds as a state machine: what is answered when, which step is in which update."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ga3c.service.rounds import Answer, Left, Rounds, Update
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError
from ga3c.settings.schedule import Kind, Schedule


class Players:
    """Agents as `agents.loop.play` has them, of which one drawn at random goes on whenever somebody can.

    log: "p" and the agents for a prediction that is played by, "v" for one of what was played, "u" for an update.
    generations: of those that were started more than once. missing: those that come after so many updates.
    """

    def __init__(self, agents: int, schedule: Schedule, seed: int, truncation: float = 0.0,
                 generations: Mapping[int, int] = MappingProxyType({}),
                 missing: Mapping[int, int] = MappingProxyType({})) -> None:
        self.rng, self.schedule, self.truncation = np.random.default_rng(seed), schedule, truncation
        self.rounds, self.agents = Rounds(schedule), agents
        self.generations, self.missing = dict.fromkeys(range(agents), 1) | dict(generations), dict(missing)
        self.at = {agent: (0, schedule.first(agent, generation))  # steps so far, and at the end of the slot
                   for agent, generation in self.generations.items()}
        self.slot, self.step = dict.fromkeys(range(agents), 0), dict.fromkeys(range(agents), 0)
        self.full = dict[int, int]()
        self.free = {agent: set(range(1, schedule.uses + 1)) for agent in range(agents)}
        self.content: dict[tuple[int, int], list[tuple[int, int]]] = {(agent, 0): [] for agent in range(agents)}
        self.pending = {agent: "first" for agent in range(agents)}  # what each does next, once it is its turn
        self.log: list[str] = []
        self.trained: dict[int, Counter[int]] = defaultdict(Counter)
        self.ages: dict[int, list[tuple[int, ...]]] = defaultdict(list)

    def ask(self, agent: int) -> None:
        final = self.pending[agent] == "final"
        step = self.schedule.segment if final else self.step[agent]
        self.rounds.asked(agent, self.slot[agent], step, self.generations[agent])

    def play(self, agent: int) -> None:
        """Goes on from an answer to the next request."""
        was = self.pending[agent]
        if was in ("first", "again", "step"):
            done, end = self.at[agent]
            self.content[agent, self.slot[agent]].append((done, self.rounds.updates))
            self.at[agent] = done + 1, end
            if (7 * agent + 13 * done) % 10 < 10 * self.truncation:
                self.pending[agent] = "final"
                return self.ask(agent)
        if was == "boundary":
            self.rounds.submitted(agent, self.full.pop(agent))
            self.pending[agent] = "again"
            return self.ask(agent)
        done, end = self.at[agent]
        self.step[agent] += 1
        self.pending[agent] = "step"
        if done == end:
            self.at[agent] = done, done + self.schedule.segment
            self.full[agent], self.slot[agent] = self.slot[agent], self.free[agent].pop()
            self.content[agent, self.slot[agent]], self.step[agent] = [], 0
            self.pending[agent] = "boundary"
        return self.ask(agent)

    def run(self, updates: int) -> None:
        ready = [agent for agent in range(self.agents) if agent not in self.missing]
        first = True
        while self.rounds.updates < updates:
            for agent in [agent for agent, after in self.missing.items() if self.rounds.updates == after]:
                del self.missing[agent]
                self.ask(agent)
            if not (due := self.rounds.due(set(range(self.agents)) - self.missing.keys())):
                assert ready, "nobody plays, and nothing is due"
                agent = ready.pop(int(self.rng.integers(len(ready))))
                self.ask(agent) if first and self.pending[agent] == "first" else self.play(agent)
                continue
            if isinstance(due, Answer):
                first = False
                self.log.append(("p" if due.plays else "v") + "".join(map(str, due.agents)))
                self.rounds.answered(due)
                assert not set(ready) & set(due.agents)
                ready += due.agents
            else:
                self.learn(due)

    def learn(self, due: Update) -> None:
        self.log.append("u")
        for agent, slots in due.rollouts:
            steps = [step for slot in slots for step in self.content[agent, slot]]
            assert [step for step, _ in steps] == list(range(steps[0][0], self.at[agent][0])), "the last, in order"
            self.trained[agent].update(step for step, _ in steps)
            self.ages[agent].append(tuple(self.rounds.updates - version for _, version in steps))
        for agent, slot in self.rounds.updated():
            self.free[agent].add(slot)


@examples(max_examples=60)
@given(st.integers(1, 7), st.sampled_from([
    Schedule(3), Schedule(1), Schedule(4, turns=2), Schedule(1, 5), Schedule(2, 3), Schedule(1, 2, 3),
    Schedule(2, 1, 4), Schedule(5, 5, 1)]), st.integers(0, 9), st.booleans())
def test_each_step_is_in_as_many_updates_as_it_should_and_its_age_is_known(
        agents: int, schedule: Schedule, seed: int, truncation: bool) -> None:
    players, updates = Players(agents, schedule, seed, 0.3 * truncation), 6 * schedule.groups * schedule.uses
    players.run(updates)
    for agent in range(agents):
        played = schedule.steps * updates
        counts = [players.trained[agent][step] for step in range(players.at[agent][0])]
        ended = played - schedule.segment * schedule.uses  # what lies before that is in no later update
        assert counts[:ended] == [schedule.uses] * ended and max(counts) <= schedule.uses
        assert players.at[agent][0] in (played, played + 1) and len(players.ages[agent]) == 6 * schedule.uses
        # The step that is k from the end of the rollout was played k // steps updates ago.
        length = schedule.segment * schedule.uses
        assert players.ages[agent][-1] == tuple(k // schedule.steps for k in reversed(range(length)))


@examples(max_examples=20)
@given(st.integers(1, 6), st.sampled_from([Schedule(3), Schedule(4, turns=2), Schedule(1, 3), Schedule(1, 2, 2)]),
       st.booleans())
def test_who_is_fast_changes_nothing(agents: int, schedule: Schedule, truncation: bool) -> None:
    logs = []
    for seed in range(5):
        players = Players(agents, schedule, seed, 0.3 * truncation)
        players.run(5)
        logs.append((players.log, players.ages))
    assert all(log == logs[0] for log in logs)


def test_synchronous_is_all_then_the_update_and_never_older_than_it() -> None:
    players = Players(3, Schedule(2), 0)
    players.run(3)
    assert players.log == ["p012", "p012", "v012", "u"] * 3
    assert {age for ages in players.ages.values() for each in ages for age in each} == {0}


def test_alternating_is_strictly_one_half_after_the_other() -> None:
    players = Players(4, Schedule(3, turns=2), 0)
    players.run(2)
    assert players.log == ["p02", "p13", "p02", "p13", "p02", "p13", "v02", "v13", "u"] * 2


def test_a_half_is_answered_while_the_other_plays() -> None:
    rounds = Rounds(Schedule(3, turns=2))
    for agent in range(4):
        rounds.asked(agent, 0, 0)
    first = rounds.due(range(4))
    assert first == Answer([0, 2], True)
    rounds.answered(first)
    assert rounds.due(range(4)) == Answer([1, 3], True), "0 and 2 are still at it"


def test_multi_batch_trains_on_the_groups_in_turn() -> None:
    players = Players(4, Schedule(1, 2), 0)
    players.run(4)
    assert players.log == ["p0123", "v02", "u", "p0123", "v13", "u"] * 2
    assert players.ages[0] == [(0,), (1, 0)] and players.ages[1] == [(1, 0), (1, 0)]


def test_two_rounds_are_never_open_however_many_final_observations_are_predicted() -> None:
    players = Players(5, Schedule(4), 3, truncation=0.4)
    players.run(8)
    assert [line for line in players.log if line[0] == "p"] == ["p01234"] * 32
    assert any(line[0] == "v" and line != "v01234" for line in players.log)


@examples(max_examples=60)
@given(st.sampled_from([Schedule(2), Schedule(1, 4), Schedule(2, 3), Schedule(1, 2, 3)]), st.integers(0, 9),
       st.dictionaries(st.integers(0, 4), st.integers(2, 3)), st.dictionaries(st.integers(0, 3), st.integers(1, 9)))
def test_ages_are_the_plans_whoever_was_started_again_or_late(
        schedule: Schedule, seed: int, generations: dict[int, int], missing: dict[int, int]) -> None:
    players, updates = Players(5, schedule, seed, 0.1, generations, missing), 14 + 8 * schedule.groups * schedule.uses
    players.run(updates)
    length = schedule.segment * schedule.uses
    whole = tuple(k // schedule.steps for k in reversed(range(length)))
    for agent, ages in players.ages.items():
        assert all(each == whole[-len(each):] for each in ages) and ages[-1] == whole
        counts = [players.trained[agent][step] for step in range(players.at[agent][0] - length - 1)]
        assert counts and set(counts) == {schedule.uses}
        assert len(ages) >= updates // schedule.groups - missing.get(agent, 0) // schedule.groups - 2


def test_an_agents_slots_are_told_apart_by_whether_they_were_trained_on() -> None:
    players = Players(1, Schedule(1, 1, 3), 0)
    players.run(2)
    players.rounds.submitted(0, 7)
    left = players.rounds.left(0)
    assert left.untrained == [7] and len(left.trained) == 2 and players.rounds.left(0) == Left([], [])


def test_who_dies_is_not_waited_for_and_who_comes_takes_part_from_the_next_update_on() -> None:
    rounds = Rounds(Schedule(1, 2))
    for agent in range(4):
        assert rounds.due(range(4)) is None
        rounds.asked(agent, 0, 0)
    due = rounds.due(range(4))
    rounds.answered(due)
    for agent in (0, 1, 3):
        rounds.asked(agent, 1 if agent == 0 else 0, 0 if agent == 0 else 1)
    assert rounds.due(range(4)) is None, "2 still plays"
    assert rounds.left(2) == Left([], [])
    assert rounds.due({0, 1, 3}) == Answer([0], False)
    rounds.answered(Answer([0], False))
    rounds.submitted(0, 0)
    rounds.asked(0, 1, 0)
    rounds.asked(2, 5, 0, generation=2)
    assert rounds.due(range(4)) == Update([(0, [0])])
    assert rounds.updated() == [(0, 0)]
    assert rounds.due(range(4)) == Answer([0, 1, 2, 3], True), "2 is in the group that has just begun anew"
    assert all(rounds.left(agent) == Left([], []) for agent in range(4))
    assert rounds.due([]) is None


@pytest.mark.parametrize("updates", [0, 1])
def test_if_all_die_the_next_begin(updates: int) -> None:
    rounds = Rounds(Schedule(2))
    for step in range(1 + updates):
        rounds.asked(0, 0, step)
        rounds.answered(rounds.due([0]))
    if updates:
        rounds.asked(0, 1, 0)
        rounds.answered(rounds.due([0]))
        rounds.submitted(0, 0)
        rounds.asked(0, 1, 0)
        assert rounds.due([0]) == Update([(0, [0])])
        rounds.updated()
    assert rounds.left(0) == Left([], []) and rounds.due([]) is None
    rounds.asked(1, 2, 0)
    if updates:  # what stands before the next update is played by nobody
        assert rounds.due([1]) == Update([])
        rounds.updated()
    for step in range(2):
        assert rounds.due([1]) == Answer([1], True)
        rounds.answered(Answer([1], True))
        rounds.asked(1, 2, step + 1)


def test_the_schedules_of_the_settings_and_what_does_not_go_together() -> None:
    def steps(**values: Any) -> tuple[int, ...]:
        return configured(agents=20, **values).schedule[:4]

    assert configured(rollout_length=7).schedule.kind is Kind.QUEUES
    assert steps(schedule="synchronous", rollout_length=7) == (7, 1, 1, 1)
    assert steps(schedule="alternating", rollout_length=7) == (7, 1, 1, 2)
    many = {"schedule": "multi-batch", "agents": 20, "update_groups": 5}
    of_20 = {"schedule": "multi-batch", "update_groups": 20, "rollout_length": 20}
    assert steps(**of_20) == (1, 20, 1, 1) and configured(agents=30, **of_20).schedule.rollouts == 2
    assert steps(schedule="multi-batch", update_groups=1, rollout_length=5) == (5, 1, 1, 1)
    assert steps(schedule="multi-batch", update_groups=5, rollout_length=20, steps_per_update=2,
                 slots_per_agent=3) == (2, 5, 2, 1)
    for changes, message in (({"rollout_length": 7}, "update_groups: 5 must divide rollout_length 7; 1 does"),
                             ({"rollout_length": 5, "agents": 4}, "5 groups need as many agents, there are 4"),
                             ({"steps_per_update": 2}, "slots_per_agent: 3 are needed where each step is in 2")):
        with pytest.raises(ConfigError, match=message):
            configured(**{**many, "rollout_length": 20, **changes})
