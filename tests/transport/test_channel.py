"""The transport: tickets, slot ownership, back-pressure, generations, fences, heartbeats."""

from __future__ import annotations

import math
import os
import struct
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ports import collected, make_store, outputs

from ga3c.transport.batch_sizes import batch_sizes, nearest_size
from ga3c.transport.channel import LONGEST_DELAY, SHORTEST_DELAY, Channel
from ga3c.transport.port import DRAIN, GO_ON, PREDICT, SUBMIT, TAKE, Port, ServerGone
from ga3c.transport.slots import AgentStatus
from ga3c.transport.tickets import Ticket, TicketQueue


@pytest.fixture
def channel() -> Iterator[Channel]:
    made = Channel(make_store(3), 2)
    yield made
    made.close()


def serve(channel: Channel, port: Port, request: tuple[int, int, int]) -> int:
    return port.grant(request, channel._store)


def answer_once(channel: Channel, version: int = 0, most: int = 8) -> list[Ticket]:
    requests = next(channel.requests(most))
    n = len(requests)
    channel.answer(requests, outputs(n, version), version)
    return requests.tickets


def waits_for_a_slot(channel: Channel) -> None:
    """Waits until agent 0 does."""
    while channel._store.state[0] != AgentStatus.WAITING_FOR_SLOT:
        threading.Event().wait(0.001)


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
    slots = [serve(channel, port, (TAKE, 0, 0)) for port in ports]
    waiting = [in_thread(lambda port=port, slot=slot: serve(channel, port, (PREDICT, slot, 1)))
               for port, slot in zip(ports, slots, strict=True)]
    served = 0
    while served < 3:
        served += len(answer_once(channel, version=7))
    for (thread, outcome), slot in zip(waiting, slots, strict=True):
        thread.join(60)
        assert outcome == [0]
        assert channel._store.version[slot, 1] == 7 and channel._store.version[slot, 0] == 0


@pytest.mark.parametrize("most, taken", [(3, [3, 2]), (2, [2, 2, 1]), (4, [4, 1]), (8, [4, 1]), (1, [1] * 5)])
def test_a_predictor_takes_what_waits_by_its_sizes(most: int, taken: list[int]) -> None:
    channel = Channel(make_store(5), 2)
    ports = [channel.open(agent) for agent in range(5)]
    threads = [in_thread(lambda port=port: serve(
        channel, port, (PREDICT, serve(channel, port, (TAKE, 0, 0)), 0)))[0] for port in ports]
    while channel.prediction_queue < 5:
        threading.Event().wait(0.001)
    assert [len(answer_once(channel, most=most)) for _ in taken] == taken
    for thread in threads:
        thread.join(60)
    channel.close()


def test_a_prediction_has_one_of_its_sizes_with_a_dismissal_among_the_tickets() -> None:
    channel = Channel(make_store(1), 2)
    port = channel.open(0)
    for slot in (0, 1, 0, 1, 0):  # as if five agents had asked
        channel._predictions.put(0, slot, 0, port.generation)
    channel.dismiss_predictor()
    two = channel.requests(6)
    assert len(next(two)) == 4 and list(two) == [] and channel.prediction_queue == 1, "it is for another predictor"
    channel.close()


def queue_delay(monkeypatch: pytest.MonkeyPatch, playing: int, arriving: list[int]) -> tuple[Channel, list[float]]:
    """One request waits, of so many agents at play on two cores; when a predictor sleeps so many more arrive, and as
    much time has passed. The second is the list of its sleeps.
    """
    monkeypatch.setattr("ga3c.transport.channel.usable_cores", lambda: 2)
    channel = Channel(make_store(playing), 2)
    for agent in range(playing):
        channel.open(agent)
        channel._store.state[agent] = AgentStatus.PLAYING
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


def test_a_prediction_waits_once_for_a_larger_batch_while_others_play(monkeypatch: pytest.MonkeyPatch) -> None:
    channel, slept = queue_delay(monkeypatch, 18, [2])
    assert len(next(channel.requests(64, least=8))) == 3 and len(slept) == 1
    assert SHORTEST_DELAY <= slept[0] <= LONGEST_DELAY
    channel.close()


@pytest.mark.parametrize(("playing", "least"), [(18, 1), (5, 8), (4, 8), (1, 8)])
def test_it_does_not_wait_where_one_is_enough_or_the_cores_need_all_agents(
        playing: int, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    channel, slept = queue_delay(monkeypatch, playing, [])
    assert len(next(channel.requests(64, least))) == 1 and slept == []
    channel.close()


def test_agents_that_are_starting_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    channel, slept = queue_delay(monkeypatch, 18, [])
    channel._store.state[5:] = AgentStatus.STARTING
    assert len(next(channel.requests(64, least=8))) == 1 and slept == []
    channel.close()


@pytest.mark.parametrize(("seconds", "sleeps"), [(3e-4, 7 * 3e-4), (1e-6, SHORTEST_DELAY), (1.0, LONGEST_DELAY)])
def test_it_sleeps_about_as_long_as_the_others_take(
        seconds: float, sleeps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # One more arrives each `seconds`: what it will sleep follows from how many came while it slept before.
    arriving: list[int] = []
    channel, slept = queue_delay(monkeypatch, 18, arriving)
    arriving += [0] * 200
    requests = channel.requests(64, least=8)
    for _ in range(200):
        arriving[0] = round((slept[-1] if slept else SHORTEST_DELAY) / seconds)
        next(requests)
        channel._predictions.put(0, 0, 0, 1)
    assert slept[-1] == pytest.approx(sleeps, rel=0.1)
    channel.close()


@pytest.mark.parametrize(("playing", "waits_for"), [(5, 1), (6, 2), (16, 8), (18, 8), (24, 12), (32, 16), (60, 16)])
def test_it_waits_for_a_size_that_predictions_have(
        playing: int, waits_for: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arriving = [waits_for - 1]
    channel, slept = queue_delay(monkeypatch, playing, arriving)
    channel._seconds_between = 3e-4
    assert len(next(channel.requests(64, least=15))) == waits_for
    assert slept == [] if waits_for == 1 else slept == [pytest.approx((waits_for - 1) * 3e-4)]
    channel.close()


@given(st.sampled_from([1, 3, 8, 24, 64, 100]), st.integers(-5, 200))
def test_the_nearest_size_is_not_further_than_any_other(most: int, wanted: int) -> None:
    sizes = batch_sizes(most)
    found = nearest_size(sizes, wanted)
    assert found in sizes and all(
        (abs(found - wanted), -found) <= (abs(size - wanted), -size) for size in sizes)


def test_a_predictor_that_found_nothing_left_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted_long_ago(queue: TicketQueue) -> int:
        found = count(queue)
        time.sleep(0.01)
        return found

    count = TicketQueue.__len__
    channel = Channel(make_store(1), 2)
    port = channel.open(0)
    ticket = struct.pack("<4H", 0, 0, 0, port.generation)
    taken: list[int] = []
    monkeypatch.setattr(TicketQueue, "__len__", counted_long_ago)
    threads = [in_thread(lambda: taken.extend(map(len, channel.requests(24))))[0] for _ in range(2)]
    for _ in range(10):
        for number in (1, 16):
            os.write(channel._predictions.writer.fileno(), ticket * number)  # both wake, and it is for one of them
            while channel.prediction_queue:
                threading.Event().wait(0.001)
    for _ in threads:
        channel.dismiss_predictor()
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == [1] * 10 + [16] * 10
    channel.close()


def test_what_an_agent_submits_that_was_given_up_though_it_lives_is_ignored(channel: Channel) -> None:
    old = channel.open(0)
    slot = serve(channel, old, (TAKE, 0, 0))
    channel.retire(0)
    slots: list[int] = []
    trainer, _ = in_thread(lambda: [slots.extend(collected(channel, 1)[0]) for _ in range(2)])
    while len(channel._rollouts):
        threading.Event().wait(0.001)
    new = channel.open(0)
    serve(channel, old, (SUBMIT, slot, 0))
    assert not channel.has_delivered(0), "that was the old one"
    for _ in range(2):
        slot = serve(channel, new, (TAKE, 0, 0))
        channel._store.submitted_at[slot] = time.monotonic()  # as the agent's process does
        serve(channel, new, (SUBMIT, slot, 0))
    trainer.join(60)
    assert channel.has_delivered(0) and slots == [0, 1] and channel.training_queue == 0


@given(st.integers(1, 512))
def test_predictions_have_few_sizes_that_leave_less_than_half_of_what_waits(most: int) -> None:
    sizes = batch_sizes(most)
    assert sizes[0] == 1 and sizes[-1] == most and len(sizes) <= 2 * math.log2(most) + 2
    assert all(1 < after / before <= 2 for before, after in pairwise(sizes))
    assert all(after / before <= 1.5 for before, after in pairwise(sizes) if before > 1)


def test_an_agent_without_a_free_slot_waits_until_a_trainer_frees_one(channel: Channel) -> None:
    port = channel.open(0)
    for _ in range(2):
        serve(channel, port, (SUBMIT, serve(channel, port, (TAKE, 0, 0)), 0))
    thread, outcome = in_thread(lambda: serve(channel, port, (TAKE, 0, 0)))
    waits_for_a_slot(channel)
    assert not outcome
    assert collected(channel, 1) == ([0], False)
    thread.join(60)
    assert outcome == [0]


def test_a_stopped_agent_drains_with_its_next_prediction(channel: Channel) -> None:
    port = channel.open(0)
    channel.stop(0)
    slot = serve(channel, port, (TAKE, 0, 0))
    for step in (0, 1):
        thread, outcome = in_thread(lambda step=step: serve(channel, port, (PREDICT, slot, step)))
        answer_once(channel)
        thread.join(60)
        assert outcome == [DRAIN]


def test_a_stop_message_before_a_slot_is_free_does_not_end_the_wait(channel: Channel) -> None:
    port = channel.open(0)
    for _ in range(2):
        serve(channel, port, (SUBMIT, serve(channel, port, (TAKE, 0, 0)), 0))
    thread, outcome = in_thread(lambda: serve(channel, port, (TAKE, 0, 0)))
    waits_for_a_slot(channel)
    channel.stop(0)
    assert collected(channel, 1) == ([0], False)
    thread.join(60)
    assert outcome == [0]


def test_the_status_row_says_what_an_agent_waits_for_and_its_heart_beats_meanwhile(
        channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ga3c.transport.port.HEARTBEAT_SECONDS", 0.01)
    store, port = channel._store, channel.open(0)
    assert store.state[0] == AgentStatus.STARTING and channel.playing == channel.waiting == 0

    def beats(state: AgentStatus) -> None:
        while store.state[0] != state:
            threading.Event().wait(0.001)
        before = store.heartbeat[0]
        while store.heartbeat[0] <= before:
            threading.Event().wait(0.001)
        assert store.state[0] == state and channel.playing == 1

    thread, outcome = in_thread(lambda: serve(channel, port, (PREDICT, 0, 0)))
    beats(AgentStatus.WAITING_FOR_PREDICTION)
    assert channel.waiting == 1
    answer_once(channel)
    thread.join(60)
    assert outcome == [GO_ON] and store.state[0] == AgentStatus.PLAYING and channel.waiting == 0
    for _ in range(2):
        serve(channel, port, (SUBMIT, serve(channel, port, (TAKE, 0, 0)), 0))
    thread, _ = in_thread(lambda: serve(channel, port, (TAKE, 0, 0)))
    beats(AgentStatus.WAITING_FOR_SLOT)
    collected(channel, 1)
    thread.join(60)
    assert store.state[0] == AgentStatus.PLAYING
    channel.retire(0)
    assert channel.playing == 0


@pytest.mark.parametrize("request_", [(TAKE, 0, 0), (PREDICT, 0, 0)])
def test_hanging_up_ends_every_wait_of_an_agent(channel: Channel, request_: tuple[int, int, int]) -> None:
    port = channel.open(0)
    port._free.clear()
    thread, outcome = in_thread(lambda: serve(channel, port, request_))
    channel.hang_up(0)
    thread.join(60)
    assert isinstance(outcome[0], ServerGone)


def test_an_answer_to_an_agent_that_is_gone_changes_nothing_of_its_successor() -> None:
    vacant: list[int] = []
    store = make_store(1)
    channel = Channel(store, 2, vacant.append)
    old = channel.open(0)
    slot = serve(channel, old, (TAKE, 0, 0))
    thread, _ = in_thread(lambda: serve(channel, old, (PREDICT, slot, 0)))
    stale = next(channel.requests(8))
    channel.retire(0)
    thread.join(60)
    # The fence is met by whoever collects; a rollout of the agent's would have come first.
    channel.dismiss_trainer()
    assert collected(channel, 1) == ([], True) and vacant == [0]
    new = channel.open(0)
    channel.answer(stale, outputs(1, 1.0), 99)
    assert store.version[slot, 0] == 0 and not store.policy.any()
    assert serve(channel, new, (TAKE, 0, 0)) == slot
    thread, outcome = in_thread(lambda: serve(channel, new, (PREDICT, slot, 0)))
    answer_once(channel, version=1)
    thread.join(60)
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
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("agents", [1, 2, 3])
def test_a_trainer_ends_though_agents_never_cease_to_submit(agents: int) -> None:
    channel = Channel(make_store(agents), 2)
    ports = [channel.open(agent) for agent in range(agents)]

    def submit_all() -> None:
        for port in ports:
            while port._replied.poll(0):
                port._read()
            while port._free:
                serve(channel, port, (SUBMIT, serve(channel, port, (TAKE, 0, 0)), 0))

    submit_all()
    channel.dismiss_trainer()
    got, ended = 0, False
    while not ended:
        slots, ended = collected(channel, 1)
        got += len(slots)
        assert got <= 2 * agents, "what had come"
        submit_all()
    channel.close()


def test_a_full_queue_holds_up_neither_the_supervisor_nor_a_predictor() -> None:
    queue = TicketQueue()
    room = 2**20 // 8
    for number in range(room + 5):
        queue.put(number % 1000, 0, number % 7)  # would block in a pipe that nobody reads
    assert len(queue) == room and len(queue._overflow) == 5
    taken = []
    while len(queue):
        taken += queue.take(4096)
    assert [(agent, step) for agent, _, step, _ in taken] == [(number % 1000, number % 7) for number in range(room + 5)]
    queue.close()


def test_tickets_put_back_are_taken_again(channel: Channel) -> None:
    port = channel.open(0)
    thread, outcome = in_thread(lambda: serve(channel, port, (PREDICT, 0, 0)))
    taken = next(channel.requests(8))
    channel.ask_again(taken)
    assert answer_once(channel) == taken.tickets
    thread.join(60)
    assert outcome == [0]


def test_rollouts_are_dropped_and_each_trainer_is_still_dismissed(channel: Channel) -> None:
    port = channel.open(0)
    slots = [serve(channel, port, (TAKE, 0, 0)) for _ in range(2)]
    for slot in slots:
        serve(channel, port, (SUBMIT, slot, 0))
    for _ in range(2):
        channel.dismiss_trainer()
    assert channel.drop_rollouts() == slots
    assert [collected(channel, 2) for _ in range(2)] == [([], True)] * 2 and channel.training_queue == 0
