"""Slots change hands in any order, drawn by Hypothesis."""

from __future__ import annotations

import contextlib
import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ports import make_store, outputs

from ga3c.transport.channel import Channel
from ga3c.transport.port import DRAIN, GO_ON, PREDICT, SUBMIT, TAKE, Port


class SlotOwnership(RuleBasedStateMachine):
    """Agents play, submit, are stopped and die in any order: no slot is ever in two hands, none is lost, and all that
    was submitted is collected once, an agent's in order, before its number is used again.
    """

    AGENTS, SLOTS = 3, 3

    def __init__(self) -> None:
        super().__init__()
        self.store = make_store(self.AGENTS, self.SLOTS)
        self.vacant = set(range(self.AGENTS))
        self.channel = Channel(self.store, self.SLOTS, self.on_vacant)
        self.ports: dict[int, Port] = {}
        self.held: dict[int, list[int]] = {}
        self.submitted: list[tuple[int, int, int]] = []   # agent, slot, stamp
        self.lent: list[tuple[list[tuple[int, int]], contextlib.ExitStack]] = []  # agents, slots, what releases them
        self.available: dict[int, int] = {}               # free slots an agent knows of or will learn of
        self.stamp = 0
        self.predictor = threading.Thread(target=self.predict, daemon=True)  # a red test must not hang
        self.predictor.start()

    def predict(self) -> None:
        for requests in self.channel.requests(64):
            self.channel.answer(requests, outputs(len(requests)), self.stamp)

    def on_vacant(self, agent: int) -> None:
        assert agent not in self.ports and agent not in self.vacant
        assert all(owner != agent for owner, _, _ in self.submitted), "vacant before all was collected"
        assert all(owner != agent for owner, _ in self.taken()), "vacant before all was released"
        self.vacant.add(agent)

    @precondition(lambda self: self.vacant)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(sorted(self.vacant)))
        self.vacant.discard(agent)
        self.ports[agent], self.held[agent], self.available[agent] = self.channel.open(agent), [], self.SLOTS

    def taken(self) -> list[tuple[int, int]]:
        return [each for rollouts, _ in self.lent for each in rollouts]

    def grant(self, agent: int, request: tuple[int, int, int]) -> int:
        return self.ports[agent].grant(request, self.store)

    @precondition(lambda self: any(self.available.values()))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from([agent for agent, n in self.available.items() if n]))
        slot = self.grant(agent, (TAKE, 0, 0))
        assert slot // self.SLOTS == agent
        assert slot not in [slot for slots in self.held.values() for slot in slots]
        assert slot not in [slot for _, slot, *_ in (*self.submitted, *self.taken())]
        self.held[agent].append(slot)
        self.available[agent] -= 1

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from([agent for agent, slots in self.held.items() if slots]))
        slot = self.held[agent][-1]
        self.stamp += 1
        assert self.grant(agent, (PREDICT, slot, 0)) in (GO_ON, DRAIN)
        assert self.store.version[slot, 0] == self.stamp

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from([agent for agent, slots in self.held.items() if slots]))
        slot = self.held[agent].pop(0)
        self.stamp += 1
        self.store.reward[slot] = self.stamp
        self.grant(agent, (SUBMIT, slot, 0))
        self.submitted.append((agent, slot, self.stamp))

    @precondition(lambda self: self.ports)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        self.channel.stop(data.draw(st.sampled_from(sorted(self.ports))))

    def collected(self, slots: list[int]) -> list[tuple[int, int]]:
        """They were submitted in this order, and hold what was written."""
        rollouts = []
        for slot in slots:
            agent, found, stamp = self.submitted.pop(0)
            assert found == slot and (self.store.reward[slot] == stamp).all()
            rollouts.append((agent, slot))
        return rollouts

    def freed(self, rollouts: list[tuple[int, int]]) -> None:
        for agent, _ in rollouts:
            if agent in self.ports:
                self.available[agent] += 1

    @precondition(lambda self: self.submitted)
    @rule(most=st.integers(1, 3))
    def collect(self, most: int) -> None:
        until = contextlib.ExitStack()
        collection = until.enter_context(self.channel.collect(most))
        assert 1 <= len(collection.rollouts) <= most and not collection.over
        self.lent.append((self.collected(collection.slots), until))

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        rollouts, until = self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))
        until.close()
        self.freed(rollouts)

    @rule()
    def collect_all(self) -> None:
        self.channel.dismiss_trainer()
        over = False
        while not over:
            with self.channel.collect(2) as collection:
                over = collection.over
                rollouts = self.collected(collection.slots)
            self.freed(rollouts)
        assert not self.submitted and self.channel.training_queue == 0
        assert self.vacant | {*self.ports, *(agent for agent, _ in self.taken())} == set(range(self.AGENTS))

    @precondition(lambda self: self.ports)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from(sorted(self.ports)))
        self.ports.pop(agent).close()
        del self.held[agent], self.available[agent]
        self.channel.retire(agent)

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        for agent in self.ports:
            waiting = sum(owner == agent for owner, *_ in (*self.submitted, *self.taken()))
            assert len(self.held[agent]) + self.available[agent] + waiting == self.SLOTS

    def teardown(self) -> None:
        while self.lent:
            self.lent.pop()[1].close()
        self.collect_all()
        self.channel.dismiss_predictor()
        self.predictor.join(60)
        for port in self.ports.values():
            port.close()
        self.channel.close()


TestSlotOwnership = SlotOwnership.TestCase
TestSlotOwnership.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
