"""The transport: tickets, slot ownership, back-pressure, incarnations, fences."""

from __future__ import annotations

import contextlib
import math
import os
import struct
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing.connection import wait

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ports import collected, serve

from ga3c.envs.factory import EnvSpec
from ga3c.transport.channel import (
    _PAUSE,
    _RETURN,
    _TICKET,
    LONGEST_WAIT,
    OUT_OF_STEP,
    PREDICT,
    REST,
    SHORTEST_WAIT,
    SUBMIT,
    TAKE,
    Channel,
    Port,
    ServerGone,
    Ticket,
    _TicketQueue,
    batch_sizes,
    nearest_size,
)
from ga3c.transport.seating import Seating
from ga3c.transport.slots import Slots

SPEC = EnvSpec("none", (3,), np.dtype(np.uint8), 2, 1)


def make_store(capacity: int, slots_per_agent: int) -> Slots:
    return Slots(SPEC, rollout_length=2, n_envs=1, n_slots=capacity * slots_per_agent)


@pytest.fixture
def channel() -> Iterator[Channel]:
    made = Channel(make_store(3, 2), Seating(3), 2)
    yield made
    made.close()


def answer_once(channel: Channel, version: int = 0, most: int = 8) -> list[Ticket]:
    requests = next(channel.requests(most))
    n = len(requests)
    channel.answer(requests, np.full((n, 1, 2), 0.5, np.float32), np.full((n, 1), version, np.float32), version)
    return requests.tickets


def in_thread(call) -> tuple[threading.Thread, list]:
    outcome: list = []

    def work() -> None:
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, outcome


def test_an_answer_stands_in_the_row_asked_for_when_the_agent_wakes(channel: Channel) -> None:
    ports = [channel.open(agent) for agent in range(3)]
    slots = [serve(port, (TAKE, 0, 0)) for port in ports]
    waiting = [in_thread(lambda port=port, slot=slot: serve(port, (PREDICT, slot, 1)))
               for port, slot in zip(ports, slots, strict=True)]
    served = 0
    while served < 3:
        served += len(answer_once(channel, version=7))
    for (thread, outcome), slot in zip(waiting, slots, strict=True):
        thread.join(5)
        assert outcome == [0]
        assert channel._store.version[slot, 1] == 7 and channel._store.version[slot, 0] == 0


@pytest.mark.parametrize("most, taken", [(3, [3, 2]), (2, [2, 2, 1]), (4, [4, 1]), (8, [4, 1]), (1, [1] * 5)])
def test_a_predictor_takes_what_waits_by_its_sizes(most: int, taken: list[int]) -> None:
    channel = Channel(make_store(5, 2), Seating(5), 2)
    ports = [channel.open(agent) for agent in range(5)]
    threads = [in_thread(lambda port=port: serve(port, (PREDICT, serve(port, (TAKE, 0, 0)), 0)))[0] for port in ports]
    while channel.prediction_queue < 5:
        threading.Event().wait(0.001)
    assert [len(answer_once(channel, most=most)) for _ in taken] == taken
    for thread in threads:
        thread.join(5)
    channel.close()


def test_with_the_word_to_end_too_a_prediction_has_one_of_its_sizes() -> None:
    channel = Channel(make_store(1, 2), Seating(1), 2)
    port = channel.open(0)
    for slot in (0, 1, 0, 1, 0):  # as if five agents had asked
        channel._predictions.put(0, slot, 0, port.incarnation)
    channel.dismiss_predictor()
    two = channel.requests(6)
    assert len(next(two)) == 4 and list(two) == [] and channel.prediction_queue == 1, "it is for another predictor"
    channel.close()


def company(monkeypatch: pytest.MonkeyPatch, playing: int, arriving: list[int]) -> tuple[Channel, list[float]]:
    """One request waits, of so many agents at play on two cores; when a predictor sleeps so many more arrive, and as
    much time has passed. The second is the list of its sleeps.
    """
    monkeypatch.setattr("ga3c.transport.channel.usable_cores", lambda: 2)
    channel = Channel(make_store(playing, 2), Seating(playing), 2)
    for agent in range(playing):
        channel.open(agent)
        channel._answered_at[agent] += 1.0
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds
        for _ in range(arriving.pop(0)):
            channel._predictions.put(0, 0, 0, 1)

    channel._predictions.put(0, 0, 0, 1)
    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return channel, slept


def test_a_prediction_waits_once_for_company_while_others_play(monkeypatch: pytest.MonkeyPatch) -> None:
    channel, slept = company(monkeypatch, 18, [2])
    assert len(next(channel.requests(64, least=8))) == 3 and len(slept) == 1
    assert SHORTEST_WAIT <= slept[0] <= LONGEST_WAIT
    channel.close()


@pytest.mark.parametrize(("playing", "least"), [(18, 1), (5, 8), (4, 8), (1, 8)])
def test_it_does_not_wait_where_one_is_enough_or_the_cores_need_all_agents(
        playing: int, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, slept = company(monkeypatch, playing, [])
    assert len(next(channel.requests(64, least))) == 1 and slept == []
    channel.close()


def test_agents_at_rest_are_no_company(monkeypatch: pytest.MonkeyPatch) -> None:
    channel, slept = company(monkeypatch, 18, [])
    channel._resting[5:] = True
    assert len(next(channel.requests(64, least=8))) == 1 and slept == []
    channel.close()


@pytest.mark.parametrize(("seconds", "sleeps"), [(3e-4, 7 * 3e-4), (1e-6, SHORTEST_WAIT), (1.0, LONGEST_WAIT)])
def test_it_sleeps_about_as_long_as_the_others_take(
        seconds: float, sleeps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # One more arrives each `seconds`: what it will sleep follows from how many came while it slept before.
    arriving: list[int] = []
    channel, slept = company(monkeypatch, 18, arriving)
    arriving += [0] * 200
    requests = channel.requests(64, least=8)
    for _ in range(200):
        arriving[0] = round((slept[-1] if slept else SHORTEST_WAIT) / seconds)
        next(requests)
        channel._predictions.put(0, 0, 0, 1)
    assert slept[-1] == pytest.approx(sleeps, rel=0.1)
    channel.close()


@pytest.mark.parametrize(("playing", "waits_for"), [(5, 1), (6, 2), (16, 8), (18, 8), (24, 12), (32, 16), (60, 16)])
def test_it_waits_for_a_size_that_predictions_have(
        playing: int, waits_for: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arriving = [waits_for - 1]
    channel, slept = company(monkeypatch, playing, arriving)
    channel._between = 3e-4
    assert len(next(channel.requests(64, least=15))) == waits_for
    assert slept == [] if waits_for == 1 else slept == [pytest.approx((waits_for - 1) * 3e-4)]
    channel.close()


@given(st.sampled_from([1, 3, 8, 24, 64, 100]), st.integers(-5, 200))
def test_the_nearest_size_is_not_further_than_any_other(most: int, wanted: int) -> None:
    sizes = batch_sizes(most)
    found = nearest_size(sizes, wanted)
    assert found in sizes and all(
        (abs(found - wanted), -found) <= (abs(size - wanted), -size) for size in sizes)


def test_a_predictor_that_found_nothing_left_counts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted_long_ago(queue: _TicketQueue) -> int:
        found = count(queue)
        time.sleep(0.01)
        return found

    count = _TicketQueue.__len__
    channel = Channel(make_store(1, 2), Seating(1), 2)
    port = channel.open(0)
    ticket = struct.pack("<4H", 0, 0, 0, port.incarnation)
    taken: list[int] = []
    monkeypatch.setattr(_TicketQueue, "__len__", counted_long_ago)
    threads = [in_thread(lambda: taken.extend(map(len, channel.requests(24))))[0] for _ in range(2)]
    for _ in range(10):
        for number in (1, 16):
            os.write(channel._predictions.writer.fileno(), ticket * number)  # both wake, and it is for one of them
            while channel.prediction_queue:
                threading.Event().wait(0.001)
    for _ in threads:
        channel.dismiss_predictor()
    for thread in threads:
        thread.join(20)
    assert sorted(taken) == [1] * 10 + [16] * 10
    channel.close()


def test_what_an_agent_hands_in_that_was_given_up_though_it_lives_is_ignored(channel: Channel) -> None:
    old = channel.open(0)
    slot = serve(old, (TAKE, 0, 0))
    channel.retire(0)
    trainer, _ = in_thread(lambda: [collected(channel, 1) for _ in range(2)])
    while len(channel._rollouts):
        threading.Event().wait(0.001)
    new = channel.open(0)
    serve(old, (SUBMIT, slot, 0))
    assert not channel.has_delivered(0), "that was the old one"
    for _ in range(2):
        slot = serve(new, (TAKE, 0, 0))
        channel._store.submitted[slot] = time.monotonic()  # as the agent's pump does
        serve(new, (SUBMIT, slot, 0))
    trainer.join(5)
    assert channel.has_delivered(0) and int(channel._freed[0]) == 2 and channel.training_queue == 0


@given(st.integers(1, 512))
def test_predictions_have_few_sizes_that_leave_less_than_half_of_what_waits(most: int) -> None:
    sizes = batch_sizes(most)
    assert sizes[0] == 1 and sizes[-1] == most and len(sizes) <= 2 * math.log2(most) + 2
    assert all(1 < after / before <= 2 for before, after in pairwise(sizes))
    assert all(after / before <= 1.5 for before, after in pairwise(sizes) if before > 1)


def test_an_agent_without_a_free_slot_waits_until_a_trainer_frees_one(channel: Channel) -> None:
    port = channel.open(0)
    for _ in range(2):
        serve(port, (SUBMIT, serve(port, (TAKE, 0, 0)), 0))
    thread, outcome = in_thread(lambda: serve(port, (TAKE, 0, 0)))
    assert not outcome
    assert collected(channel, 1) == ([0], False)
    thread.join(5)
    assert outcome == [0]


def test_an_agent_told_to_leave_is_told_with_every_later_answer(channel: Channel) -> None:
    port = channel.open(0)
    channel.ask_to_leave(0)
    slot = serve(port, (TAKE, 0, 0))
    for row in (0, 1):
        thread, outcome = in_thread(lambda row=row: serve(port, (PREDICT, slot, row)))
        answer_once(channel)
        thread.join(5)
        assert outcome == [1]


def test_an_agent_rests_until_it_is_called_back_or_told_to_leave(channel: Channel) -> None:
    port = channel.open(0)
    channel.ask_to_rest(0)
    slot = serve(port, (TAKE, 0, 0))
    thread, outcome = in_thread(lambda: serve(port, (PREDICT, slot, 0)))
    answer_once(channel)
    thread.join(5)
    assert outcome == [1] and channel.playing == 1
    for ask, granted in ((channel.call_back, 1), (channel.ask_to_leave, 0)):
        assert channel.rested() == []
        thread, outcome = in_thread(lambda: serve(port, (REST, 0, 0)))
        assert wait([channel.fileno()], 5) and channel.rested() == [0] and channel.playing == 0
        assert channel.idle_since(0) is None and outcome == []
        before = time.monotonic()
        ask(0)
        thread.join(5)
        assert outcome == [granted]
        if granted:
            since = channel.idle_since(0)
            assert since is not None and since >= before and channel.playing == 1, "its turn begins when it is called"
            channel.ask_to_rest(0)
            port._read([])


def test_called_back_and_told_to_rest_again_at_once_it_plays_a_step_and_says_so_anew(channel: Channel) -> None:
    port = channel.open(0)
    channel.ask_to_rest(0)
    port._read([])
    thread, outcome = in_thread(lambda: serve(port, (REST, 0, 0)))
    assert wait([channel.fileno()], 5) and channel.rested() == [0]
    with channel._lock:  # both are in the pipe before the agent looks
        os.write(channel._replies[0].fileno(), b"".join(
            _TICKET.pack(0, 0, step, 0) for step in (_RETURN, _PAUSE)))
    thread.join(5)
    assert outcome == [1] and port._seats[0].pause
    thread, outcome = in_thread(lambda: serve(port, (REST, 0, 0)))
    assert wait([channel.fileno()], 5) and channel.rested() == [0] and outcome == []
    channel.call_back(0)
    thread.join(5)
    assert outcome == [1] and not port._seats[0].pause


def test_a_rest_of_an_agent_that_is_gone_says_nothing_of_its_successor(channel: Channel) -> None:
    port = channel.open(0)
    port._seats[0].pause = True
    thread, outcome = in_thread(lambda: serve(port, (REST, 0, 0)))
    assert wait([channel.fileno()], 5)
    channel.retire(0)
    thread.join(5)
    channel.open(0)
    assert channel.rested() == [] and isinstance(outcome[0], ServerGone)


@pytest.mark.parametrize("request_", [(TAKE, 0, 0), (PREDICT, 0, 0)])
def test_hanging_up_ends_every_wait_of_an_agent(channel: Channel, request_: tuple[int, int, int]) -> None:
    port = channel.open(0)
    port._seats[0].free.clear()
    thread, outcome = in_thread(lambda: serve(port, request_))
    channel.hang_up(0)
    thread.join(5)
    assert isinstance(outcome[0], ServerGone)


def test_an_answer_to_an_agent_that_is_gone_changes_nothing_of_its_successor() -> None:
    vacant: list[int] = []
    store = make_store(1, 2)
    channel = Channel(store, Seating(1), 2, vacant.append)
    old = channel.open(0)
    slot = serve(old, (TAKE, 0, 0))
    thread, _ = in_thread(lambda: serve(old, (PREDICT, slot, 0)))
    stale = next(channel.requests(8))
    channel.retire(0)
    thread.join(5)
    # The fence is met by whoever collects; a rollout of the agent's would have come first.
    channel.dismiss_trainer()
    assert collected(channel, 1) == ([], True) and vacant == [0]
    new = channel.open(0)
    channel.answer(stale, np.ones((1, 1, 2), np.float32), np.ones((1, 1), np.float32), 99)
    assert store.version[slot, 0] == 0 and not store.policy.any()
    assert serve(new, (TAKE, 0, 0)) == slot
    thread, outcome = in_thread(lambda: serve(new, (PREDICT, slot, 0)))
    answer_once(channel, version=1)
    thread.join(5)
    assert outcome == [0] and store.version[slot, 0] == 1
    channel.close()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_each_dismissal_ends_one_consumer_however_they_are_read(channel: Channel, n: int) -> None:
    threads = [in_thread(lambda: list(channel.requests(8)))[0] for _ in range(n)]
    threads += [in_thread(lambda: collected(channel, 1))[0] for _ in range(n)]
    for _ in range(n):
        channel.dismiss_predictor()
        channel.dismiss_trainer()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_trainer_ends_though_agents_never_cease_to_hand_in(processes: int) -> None:
    channel = Channel(make_store(processes, 2), Seating(processes), 2)
    ports = [channel.open(process) for process in range(processes)]

    def hand_in_all() -> None:
        for port in ports:
            while wait([port._replies], 0):
                port._read([])
            while port._seats[port.agents[0]].free:
                port.ask(port.agents[0], (SUBMIT, port.ask(port.agents[0], (TAKE, 0, 0)), 0))

    hand_in_all()
    channel.dismiss_trainer()
    got, ended = 0, False
    while not ended:
        slots, ended = collected(channel, 1)
        got += len(slots)
        assert got <= 2 * processes, "what had come"
        hand_in_all()
    for port in ports:
        channel.handed_over(port)
    channel.close()


def test_whose_turn_it_is_follows_from_what_was_asked_and_sent(channel: Channel) -> None:
    store, port, other = channel._store, channel.open(0), channel.open(1)

    def take() -> int:
        store.taken[0] += 1  # as the agent's pump does
        return serve(port, (TAKE, 0, 0))

    def ask(who: Port, slot: int) -> None:
        store.asked[slot, 0] = time.monotonic()
        thread, _ = in_thread(lambda: serve(who, (PREDICT, slot, 0)))
        answer_once(channel)
        thread.join()

    assert channel.idle_since(0) == channel._opened_at[0] and not channel.is_playing(0), "it makes its environments"
    first, second = take(), take()
    store.asked[first, 0] = time.monotonic()
    assert channel.idle_since(0) is None and channel.waiting == 1, "it waits for a predictor"
    ask(port, first)
    assert channel.idle_since(0) == channel._answered_at[0] and channel.waiting == 0 and channel.is_playing(0)
    assert not channel.has_delivered(0)
    store.submitted[first] = time.monotonic()
    serve(port, (SUBMIT, first, 0))
    assert channel.has_delivered(0), "though no trainer has come for it"
    store.taken[0] += 1
    assert channel.idle_since(0) is None, "it waits for a slot, its third of two"
    assert collected(channel, 1) == ([first], False)
    assert channel.idle_since(0) == channel._freed_at[0]
    store.asked[first, 0], store.asked[second, 0] = 0.0, time.monotonic() - 5.0
    channel._taken_at[0] = channel._answered_at[0] = channel._last_answer = store.asked[second, 0] - 1.0
    assert channel.idle_since(0) is None
    ask(other, 2)
    assert channel.idle_since(0) == store.asked[second, 0], "another, who asked later, was answered: it never asked"
    Channel.handed_over(port)
    Channel.handed_over(other)


def test_an_agent_waits_as_long_as_its_predictor_does_not_come_back(channel: Channel) -> None:
    store, port, other = channel._store, channel.open(0), channel.open(1)
    store.asked[0, 0] = time.monotonic()
    held, _ = in_thread(lambda: serve(port, (PREDICT, 0, 0)))
    requests = next(channel.requests(8))
    assert requests.agents == [0]
    helped, _ = in_thread(lambda: serve(other, (PREDICT, 2, 0)))
    answer_once(channel)
    helped.join(5)
    channel._last_answer += 5.0  # that was five seconds later
    assert channel.idle_since(0) is None
    channel.answer(requests, np.full((1, 1, 2), 0.5, np.float32), np.zeros((1, 1), np.float32), 0)
    held.join(5)
    assert channel.idle_since(0) == channel._answered_at[0]
    Channel.handed_over(port)
    Channel.handed_over(other)


def test_tickets_put_back_are_taken_again(channel: Channel) -> None:
    port = channel.open(0)
    thread, outcome = in_thread(lambda: serve(port, (PREDICT, 0, 0)))
    taken = next(channel.requests(8))
    channel.ask_again(taken)
    assert answer_once(channel) == taken.tickets
    thread.join(5)
    assert outcome == [0]
    Channel.handed_over(port)


def test_rollouts_are_dropped_and_each_trainer_is_still_dismissed(channel: Channel) -> None:
    port = channel.open(0)
    for _ in range(2):
        serve(port, (SUBMIT, serve(port, (TAKE, 0, 0)), 0))
    for _ in range(2):
        channel.dismiss_trainer()
    assert channel.drop_rollouts() == 2
    assert [collected(channel, 2) for _ in range(2)] == [([], True)] * 2 and channel.training_queue == 0
    Channel.handed_over(port)


class SlotOwnership(RuleBasedStateMachine):
    """Agents play, submit, leave and die in any order: no slot is ever in two hands, none is lost, and all that was
    submitted is collected once, an agent's in order, before the process is used again. What waits for others of its
    block does so only while they may come."""

    SEATING, SLOTS, BLOCK = Seating(3), 3, 1

    def __init__(self) -> None:
        super().__init__()
        self.store = Slots(SPEC, OUT_OF_STEP + 1, 1, self.SEATING.capacity * self.SLOTS)
        self.vacant = set(range(self.SEATING.processes))
        self.channel = Channel(self.store, self.SEATING, self.SLOTS, self.on_vacant, self.BLOCK)
        self.slots = [[*self.SEATING.slots_of(agent, self.SLOTS)] for agent in range(self.SEATING.capacity)]
        self.ports: dict[int, Port] = {}
        self.held: dict[int, list[int]] = {}
        self.submitted: list[tuple[int, int, int]] = []   # agent, slot, stamp
        self.together: list[tuple[int, int, int]] = []    # the same, not sent yet, as others are in step
        self.lent: list[tuple[list[tuple[int, int]], contextlib.ExitStack]] = []  # agents, slots, what gives them back
        self.answered: set[int] = set()  # agents that have played
        self.round_of: dict[int, int] = {}  # slot -> in which it was taken
        self.came: dict[int, int] = {}  # agent -> round of the last rollout that it handed in
        self.available: dict[int, int] = {}               # free slots an agent knows of or will learn of
        self.stamp = 0
        self.predictor = threading.Thread(target=self.predict, daemon=True)  # a red test must not hang
        self.predictor.start()

    def predict(self) -> None:
        for requests in self.channel.requests(64):
            n = len(requests)
            self.channel.answer(requests, np.ones((n, 1, 2), np.float32), np.ones((n, 1), np.float32), self.stamp)

    def on_vacant(self, process: int) -> None:
        agents = self.SEATING.agents_of(process)
        assert not self.ports.keys() & {*agents} and process not in self.vacant
        assert all(owner not in agents for owner, _, _ in self.submitted), "vacant before all was collected"
        assert all(owner not in agents for owner, _ in self.taken()), "vacant before all was given back"
        self.vacant.add(process)

    @precondition(lambda self: self.vacant)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(sorted(self.vacant)))
        self.vacant.discard(process)
        port = self.channel.open(process)
        for agent in self.SEATING.agents_of(process):
            self.ports[agent], self.held[agent], self.available[agent] = port, [], self.SLOTS
            self.answered.discard(agent)
            self.came.pop(agent, None)

    def taken(self) -> list[tuple[int, int]]:
        return [each for rollouts, _ in self.lent for each in rollouts]

    @precondition(lambda self: any(self.available.values()))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from([agent for agent, n in self.available.items() if n]))
        slot = serve(self.ports[agent], (TAKE, 0, 0), agent)
        assert slot in self.slots[agent]
        assert slot not in [slot for slots in self.held.values() for slot in slots]
        assert slot not in [slot for _, slot, *_ in (*self.submitted, *self.together, *self.taken())]
        self.held[agent].append(slot)
        self.available[agent] -= 1
        self.round_of[slot] = self.ports[agent]._round
        self.sent(agent)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def ask(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from([agent for agent, slots in self.held.items() if slots]))
        slot = self.held[agent][-1]
        self.stamp += 1
        assert serve(self.ports[agent], (PREDICT, slot, 0), agent) == 0
        assert self.store.version[slot, 0] == self.stamp
        self.answered.add(agent)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from([agent for agent, slots in self.held.items() if slots]))
        slot = self.held[agent].pop(0)
        self.stamp += 1
        self.store.reward[slot] = self.stamp
        serve(self.ports[agent], (SUBMIT, slot, 0), agent)
        self.together.append((agent, slot, self.stamp))
        self.sent(agent)

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data())
    def get_ahead(self, data: st.DataObject) -> None:
        agent = data.draw(st.sampled_from([agent for agent, slots in self.held.items() if slots]))
        slot, port = self.held[agent][-1], self.ports[agent]
        if port._seats[agent].round == port._round:
            assert serve(port, (PREDICT, slot, OUT_OF_STEP), agent) == 0
            self.answered.add(agent)
            self.sent(agent)
            assert not [each for each, *_ in self.together if self.ports[each] is port]

    def sent(self, agent: int) -> None:
        """What its port holds back no longer is submitted, as it came."""
        port = self.ports[agent]
        ours = [rollout for rollout in self.together if self.ports[rollout[0]] is port]
        assert len(port._handed_in) in (0, 8 * len(ours)) and len(port._handed_in) < 8 * self.BLOCK
        if not port._handed_in:
            self.together = [rollout for rollout in self.together if rollout not in ours]
            self.submitted += ours
            self.came.update((owner, self.round_of[slot]) for owner, slot, _ in ours)

    def block_of(self, agent: int, slot: int) -> tuple[int, int, int]:
        process = self.SEATING.process_of(agent)
        return process, self.SEATING.agents_of(process).index(agent) // self.BLOCK, self.round_of[slot]

    def may_come(self, block: tuple[int, int, int]) -> bool:
        """Whether the rest of a block is to be waited for: all who are not there play and have handed in none since."""
        agents, there = [*self.SEATING.agents_of(block[0])], [agent for agent, _ in self.blocks()[block]]
        return len(agents) % self.BLOCK == 0 and all(
            agent in self.ports and agent in self.answered and (agent in there or self.came.get(agent, -1) < block[2])
            for agent in agents[block[1] * self.BLOCK:(block[1] + 1) * self.BLOCK])

    def blocks(self) -> dict[tuple[int, int, int], list[tuple[int, int]]]:
        found: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        for agent, slot, _ in self.submitted:
            found.setdefault(self.block_of(agent, slot), []).append((agent, slot))
        return found

    def some_are_ready(self) -> bool:
        return any(len(rollouts) == self.BLOCK or not self.may_come(block)
                   for block, rollouts in self.blocks().items())

    def collected(self, slots: list[int]) -> list[tuple[int, int]]:
        """They were submitted, each agent's first ones first, and hold what was written."""
        rollouts = []
        for slot in slots:
            place = [each for _, each, _ in self.submitted].index(slot)
            agent, _, stamp = self.submitted[place]
            assert agent not in [owner for owner, _, _ in self.submitted[:place]]
            assert (self.store.reward[slot] == stamp).all()
            del self.submitted[place]
            rollouts.append((agent, slot))
        return rollouts

    def freed(self, rollouts: list[tuple[int, int]]) -> None:
        for agent, _ in rollouts:
            if agent in self.ports:
                self.available[agent] += 1

    @precondition(some_are_ready)
    @rule(most=st.integers(1, 3))
    def collect(self, most: int) -> None:
        blocks, until = self.blocks(), contextlib.ExitStack()
        slots, ended = until.enter_context(self.channel.collect(most))
        assert slots and not ended
        whole = [block for block, rollouts in blocks.items() if sorted(slots) == sorted(slot for _, slot in rollouts)]
        if whole and len(slots) == self.BLOCK:
            assert self.store.lend(slots) is not None
        else:
            assert len(slots) <= most
            assert all(not self.may_come(block) for block, rollouts in blocks.items()
                       for _, slot in rollouts if slot in slots)
        self.lent.append((self.collected(slots), until))

    @precondition(lambda self: self.submitted)
    @rule(most=st.integers(1, 3))
    def collect_oldest(self, most: int) -> None:
        with self.channel.collect(most, oldest=True) as (slots, ended):
            assert 1 <= len(slots) <= most and slots == [slot for _, slot, _ in self.submitted[:len(slots)]]
            assert not ended
            rollouts = self.collected(slots)
        self.freed(rollouts)

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        rollouts, until = self.lent.pop(data.draw(st.integers(0, len(self.lent) - 1)))
        until.close()
        self.freed(rollouts)

    @rule()
    def collect_all(self) -> None:
        self.channel.dismiss_trainer()
        ended = False
        while not ended:
            with self.channel.collect(2) as (slots, ended):
                rollouts = self.collected(slots)
            self.freed(rollouts)
        assert not self.submitted and self.channel.training_queue == 0
        used = {self.SEATING.process_of(agent) for agent in (*self.ports, *(agent for agent, _ in self.taken()))}
        assert self.vacant | used == set(range(self.SEATING.processes))

    @precondition(lambda self: self.ports)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        process = self.SEATING.process_of(data.draw(st.sampled_from(sorted(self.ports))))
        for agent in self.SEATING.agents_of(process):
            port = self.ports.pop(agent)
            del self.held[agent], self.available[agent]
            self.together = [rollout for rollout in self.together if rollout[0] != agent]
        Channel.handed_over(port)
        self.channel.retire(process)

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        for agent in self.ports:
            waiting = sum(owner == agent for owner, *_ in (*self.submitted, *self.together, *self.taken()))
            assert len(self.held[agent]) + self.available[agent] + waiting == self.SLOTS

    def teardown(self) -> None:
        while self.lent:
            self.lent.pop()[1].close()
        self.collect_all()
        self.channel.dismiss_predictor()
        self.predictor.join(5)
        for port in {*self.ports.values()}:
            Channel.handed_over(port)
        self.channel.close()


class SharedSlotOwnership(SlotOwnership):
    """The same where two agents share a process, but for the last."""

    SEATING = Seating(5, 2, 2)


class BlockOwnership(SlotOwnership):
    """The same where two or four share a process, and two slots are a block."""

    SEATING, SLOTS, BLOCK = Seating(9, 4, 2), 2, 2


TestSlotOwnership = SlotOwnership.TestCase
TestSharedSlotOwnership = SharedSlotOwnership.TestCase
TestBlockOwnership = BlockOwnership.TestCase
for _case in (TestSlotOwnership, TestSharedSlotOwnership, TestBlockOwnership):
    _case.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
