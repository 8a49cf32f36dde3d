"""Agents that share a process: who lives where, one port for all of them, and whose turn it is."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ports import collected

from ga3c.agents.process import Player, pump
from ga3c.envs.factory import EnvSpec
from ga3c.settings.files import configured
from ga3c.transport.channel import CUT, GO_ON, OUT_OF_STEP, PREDICT, REST, SUBMIT, TAKE, WAIT, Channel, Port, ServerGone
from ga3c.transport.seating import Seating, seating
from ga3c.transport.slots import Slots

seatings = st.builds(Seating, st.integers(1, 70), st.integers(1, 6), st.integers(1, 9))


@given(seatings)
def test_everyone_lives_in_one_process_and_none_is_empty_or_too_full(seats: Seating) -> None:
    homes = [seats.agents_of(process) for process in range(seats.processes)]
    assert sorted(agent for agents in homes for agent in agents) == list(range(seats.capacity))
    for process, agents in enumerate(homes):
        assert 1 <= len(agents) <= seats.per_process
        assert {seats.process_of(agent) for agent in agents} == {process}


@given(seatings, st.integers(1, 70))
def test_few_agents_are_spread_before_any_two_share(seats: Seating, n: int) -> None:
    n = min(n, seats.capacity, seats.spread * seats.per_process)
    full = Counter(seats.process_of(agent) for agent in range(n))
    assert len(full) == min(n, seats.spread) and max(full.values()) - min(full.values()) <= 1


@given(seatings, st.integers(1, 5))
def test_the_slots_of_a_process_lie_side_by_side(seats: Seating, each: int) -> None:
    slots = [seats.slots_of(agent, each) for agent in range(seats.capacity)]
    assert sorted(slot for its in slots for slot in its) == list(range(seats.capacity * each))
    for process in range(seats.processes):
        agents = seats.agents_of(process)
        for number in range(each):
            first = slots[agents[0]][number]
            assert [slots[agent][number] for agent in agents] == list(range(first, first + len(agents)))


@given(seatings)
def test_a_row_has_one_agent_of_a_process_unless_nobody_shares(seats: Seating) -> None:
    for process in range(seats.processes):
        rows = [seats.row(agent) for agent in seats.agents_of(process)]
        assert rows == sorted(set(rows)) and (seats.per_process > 1 or rows == [0])


@given(seatings, st.integers(1, 70))
def test_in_the_first_processes_there_is_nobody_but_the_first_agents(seats: Seating, n: int) -> None:
    block = seats.spread * seats.per_process
    n = min(n, seats.capacity)
    assert {seats.process_of(agent) for agent in range(n)} <= set(range(-(-n // block) * seats.spread))


@pytest.mark.parametrize(("game", "envs", "asked", "shared_by"), [
    ("ALE/Boxing-v5", 2, None, 8), ("Pong", 4, None, 4), ("Pong", 8, None, 2), ("Pong", 16, None, 1),
    ("Pong", 1, 1, 1), ("Pong", 16, 3, 3), ("CartPole-v1", 1, None, 1), ("toy:catch", 1, None, 1),
    ("toy:catch", 1, 5, 5), ("Pong", 32, None, 1), ("Pong", 1, None, 16)])
def test_atari_agents_of_few_environments_share_a_process_and_others_if_asked(
        game: str, envs: int, asked: int | None, shared_by: int) -> None:
    settings = configured(game=game, envs_per_agent=envs, agents_per_process=asked)
    found = seating(settings)
    assert found.per_process == shared_by and found.capacity == settings.agent_capacity


# ------------------------------------------------------------------------------------------------ one port for several

SPEC = EnvSpec("none", (1,), np.dtype(np.uint8), 2, 1)
ONE = np.ones((1, 1, 2), np.float32), np.ones((1, 1), np.float32)


@pytest.fixture
def channel() -> Iterator[Channel]:
    """Of three agents, the first and the third in one process."""
    made = Channel(Slots(SPEC, 2, 1, 6), Seating(3, 2, 2), 2)
    yield made
    made.close()


def answer(channel: Channel) -> int:
    """Answers the longest waiting request; returns whose it was."""
    requests = next(channel.requests(1))
    channel.answer(requests, *ONE, 0)
    return requests.agents[0]


def test_each_of_a_process_is_granted_what_it_asked_for(channel: Channel) -> None:
    port = channel.open(0)
    assert [*port.agents] == [0, 2]
    assert port.ask(2, (TAKE, 0, 0)) == 1 and port.ask(0, (TAKE, 0, 0)) == 0
    assert port.ask(2, (PREDICT, 1, 0)) == WAIT == port.ask(0, (PREDICT, 0, 0))
    assert answer(channel) == 2 and port.receive() == [(2, 0)]
    channel.ask_to_rest(2)
    assert answer(channel) == 0 and port.receive() == [(0, 0)], "the other was told to pause"
    assert port.ask(0, (PREDICT, 0, 1)) == WAIT == port.ask(2, (PREDICT, 1, 1))
    assert [answer(channel), answer(channel)] == [0, 2]
    assert port.receive() == [(0, 0), (2, 1)]
    channel.handed_over(port)


def test_one_prediction_answers_all_who_ask_and_wakes_each_process_once(
        channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    ports, written, write = [channel.open(0), channel.open(1)], [], os.write
    for port, agent, slot in ((ports[0], 0, 0), (ports[1], 1, 4), (ports[0], 2, 1)):
        assert port.ask(agent, (TAKE, 0, 0)) == slot and port.ask(agent, (PREDICT, slot, 0)) == WAIT
    requests = next(channel.requests(3))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda file, data: (written.append(file), write(file, data)))
        channel.answer(requests, *(np.repeat(each, 3, axis=0) for each in ONE), 0)
    assert len(written) == len(set(written)) == 2
    assert ports[0].receive() == [(0, 0), (2, 0)] and ports[1].receive() == [(1, 0)]
    for port in ports:
        channel.handed_over(port)


def test_a_freed_slot_is_its_agents(channel: Channel) -> None:
    port = channel.open(0)
    for agent, slots in ((0, (0, 2)), (2, (3, 1))):
        for slot in slots:
            assert port.ask(agent, (TAKE, 0, 0)) == slot
            assert port.ask(agent, (SUBMIT, slot, 0)) == 0
    assert port.ask(2, (TAKE, 0, 0)) == WAIT
    assert [collected(channel, 1)[0] for _ in range(2)] == [[0], [2]], "the other agent's"
    port._read(granted := [])
    assert granted == [] and port.ask(0, (TAKE, 0, 0)) == 0
    assert [collected(channel, 1)[0] for _ in range(2)] == [[3], [1]]
    assert port.receive() == [(2, 3)] and port.ask(2, (TAKE, 0, 0)) == 1
    channel.handed_over(port)


@pytest.mark.parametrize("steps", [0, 1])
def test_a_slot_without_a_step_that_is_given_back_counts_as_not_taken(channel: Channel, steps: int) -> None:
    store, port = channel._store, channel.open(0)

    def player() -> Player:
        slot = yield TAKE, 0, 0
        yield REST, slot, steps

    channel.ask_to_leave(0)
    port._read([])
    pump({0: player()}, port, store)
    assert store.taken[0] == steps
    channel.handed_over(port)


def hand_in(port: Port, agent: int, slot: int) -> None:
    """At once, whatever the others do."""
    assert port.ask(agent, (SUBMIT, slot, 0)) == 0
    port._submit()


def word(channel: Channel, port: Port, agent: int, slot: int, row: int) -> int:
    """What a prediction is granted with, of agents that ask one after the other."""
    assert port.ask(agent, (PREDICT, slot, row)) == WAIT and answer(channel) == agent
    (whose, grant), = port.receive()
    assert whose == agent
    return grant


def test_who_falls_behind_or_comes_back_is_cut_short_and_in_step_again() -> None:
    channel = Channel(Slots(SPEC, 9, 1, 6), Seating(3, 3), 2, rollouts_per_update=3)
    port = channel.open(0)

    predicted = functools.partial(word, channel, port)
    assert [port.ask(agent, (TAKE, 0, 0)) for agent in range(3)] == [0, 1, 2]
    assert [predicted(agent, agent, 0) for agent in range(3)] == [GO_ON] * 3
    assert port.ask(2, (REST, 2, 0)) == WAIT and [*port._seats[2].free] == [2, 5], "no step: it is given back"
    assert port.ask(0, (TAKE, 0, 0)) == 3 and port.ask(0, (SUBMIT, 0, 0)) == 0
    assert predicted(0, 3, 0) == predicted(0, 3, 1) == GO_ON
    assert predicted(1, 1, 9) == GO_ON, "of an episode that was truncated: not a step"
    assert predicted(1, 1, 9 - OUT_OF_STEP) == GO_ON, "nearly there"
    assert predicted(1, 1, 8 - OUT_OF_STEP) == CUT
    assert port.ask(1, (SUBMIT, 1, 0)) == 0 and port.ask(1, (TAKE, 0, 0)) == 4, "beside the other's"
    assert predicted(1, 4, 0) == GO_ON
    channel.call_back(2)
    assert port.receive() == [(2, 1)] and port.ask(2, (TAKE, 0, 0)) == 5, "beside, though its first was freed before"
    channel.dismiss_trainer()
    assert collected(channel, 3) == ([0, 1], True), "of the first round"
    channel.handed_over(port)
    channel.close()


def test_nobody_is_cut_short_where_agents_fill_no_blocks() -> None:
    channel = Channel(Slots(SPEC, 9, 1, 6), Seating(3, 3), 2, rollouts_per_update=2)
    port = channel.open(0)
    assert [port.ask(agent, (TAKE, 0, 0)) for agent in range(3)] == [0, 1, 2]
    assert port.ask(0, (TAKE, 0, 0)) == 3 and port.ask(0, (SUBMIT, 0, 0)) == 0
    assert collected(channel, 2) == ([0], False), "sent at once"
    assert word(channel, port, 1, 1, 1) == GO_ON
    channel.handed_over(port)
    channel.close()


def test_who_is_behind_is_not_cut_short_before_its_slot_beside_the_others_is_free() -> None:
    channel = Channel(Slots(SPEC, 9, 1, 4), Seating(2, 2), 2, rollouts_per_update=2)
    port = channel.open(0)

    predicted = functools.partial(word, channel, port)
    assert [port.ask(agent, (TAKE, 0, 0)) for agent in range(2)] == [0, 1]
    for agent, second in ((0, 2), (1, 3)):
        assert predicted(agent, agent, 0) == GO_ON and port.ask(agent, (SUBMIT, agent, 0)) == 0
        assert port.ask(agent, (TAKE, 0, 0)) == second
    assert collected(channel, 1, oldest=True) == ([0], False)
    assert port.ask(0, (SUBMIT, 2, 0)) == 0 and port.ask(0, (TAKE, 0, 0)) == WAIT
    assert port.receive() == [(0, 0)], "the next round, while the other's slot beside is with the trainers"
    assert predicted(1, 3, 1) == GO_ON
    assert collected(channel, 1, oldest=True) == ([1], False)
    port._read([])
    assert predicted(1, 3, 2) == CUT
    assert port.ask(1, (SUBMIT, 3, 0)) == 0 and port.ask(1, (TAKE, 0, 0)) == 1
    assert predicted(1, 1, 0) == predicted(0, 0, 1) == GO_ON
    channel.handed_over(port)
    channel.close()


def test_what_fellows_hand_in_goes_together_as_long_as_they_are_in_step() -> None:
    channel = Channel(Slots(SPEC, 9, 1, 6), Seating(3, 3), 2, rollouts_per_update=3)
    port, written = channel.open(0), channel._rollouts
    predicted = functools.partial(word, channel, port)

    def next_round(agents: Sequence[int]) -> list[int]:
        """They take slots and hand in those before; how many tickets there are after each."""
        counts = []
        for agent in agents:
            slot = next(slot for slot, number in port._round_of.items() if slot in port._seats[agent].slots
                        and number == port._seats[agent].round and slot not in port._seats[agent].free)
            assert port.ask(agent, (TAKE, 0, 0)) != WAIT and port.ask(agent, (SUBMIT, slot, 0)) == 0
            counts.append(len(written))
        return counts

    def trained() -> None:
        collected(channel, 3)
        port._read([])

    assert [port.ask(agent, (TAKE, 0, 0)) for agent in range(3)] == [0, 1, 2]
    assert [predicted(agent, agent, 0) for agent in range(3)] == [GO_ON] * 3
    assert next_round([2, 0, 1]) == [0, 0, 3], "woken once"
    trained()
    assert next_round([1]) == [0]
    assert predicted(2, 5, 9) == predicted(1, 1, OUT_OF_STEP - 1) == GO_ON and len(written) == 0, "nobody is behind yet"
    assert predicted(1, 1, OUT_OF_STEP) == GO_ON and len(written) == 1, "so far ahead it waits for nobody"
    assert next_round([0]) == [1]
    assert port.ask(2, (REST, 5, 3)) == WAIT and len(written) == 2, "who rests would be waited for too long"
    assert channel.rested() == [2]
    trained()
    assert next_round([0, 1]) == [0, 2], "of those who play"
    assert port.ask(1, (SUBMIT, 4, 0)) == 0 and len(written) == 2
    assert port.ask(1, (TAKE, 0, 0)) == WAIT and len(written) == 3, "it would be for the slot that is handed in"
    channel.handed_over(port)
    channel.close()


@pytest.mark.parametrize("leaves", [False, True])
def test_the_others_of_a_block_are_waited_for_until_one_rests_or_leaves(leaves: bool) -> None:
    channel = Channel(Slots(SPEC, 9, 1, 6), Seating(3, 3), 2, rollouts_per_update=3)
    port = channel.open(0)
    for agent in range(3):
        slot = port.ask(agent, (TAKE, 0, 0))
        assert port.ask(agent, (PREDICT, slot, 0)) == WAIT and answer(channel) == agent
    found: list[tuple[list[int], bool]] = []
    trainer = threading.Thread(target=lambda: found.append(collected(channel, 3)), daemon=True)
    trainer.start()
    for agent in (1, 0):
        hand_in(port, agent, agent)
    while not len(channel._blocks) == 2:
        time.sleep(0.001)
    assert channel.training_queue == 0 and not found and channel.only_blocks()
    if leaves:  # the last may have no step to hand in
        channel.ask_to_leave(0)
    else:
        assert port.ask(2, (REST, 2, 0)) == WAIT and channel.rested() == [2]
    trainer.join(5)
    assert found == [([1, 0], False)] and channel.only_blocks() == leaves
    channel.handed_over(port)
    channel.close()


def test_who_comes_after_those_that_left_is_waited_for() -> None:
    channel = Channel(Slots(SPEC, 2, 1, 4), Seating(2, 2), 2, rollouts_per_update=2)
    channel.handed_over(channel.open(0))
    channel.ask_to_leave(0)
    channel.retire(0)
    channel.dismiss_trainer()
    assert collected(channel, 2) == ([], True)
    port = channel.open(0)
    for agent in range(2):
        slot = port.ask(agent, (TAKE, 0, 0))
        assert port.ask(agent, (PREDICT, slot, 0)) == WAIT and answer(channel) == agent
    hand_in(port, 0, 0)
    channel._receive()
    assert channel.training_queue == 0 and len(channel._blocks) == 1
    channel.handed_over(port)
    channel.close()


def test_all_of_a_process_leave_at_one_word(channel: Channel) -> None:
    port = channel.open(0)
    assert port.ask(0, (REST, 0, 0)) == WAIT == port.ask(2, (REST, 0, 0)) and channel.rested() == [0, 2]
    channel.call_back(0)
    assert port.receive() == [(0, 1)], "and nobody else"
    channel.ask_to_leave(0)
    assert port.receive() == [(2, 0)], "who rests leaves at once"
    assert port.ask(0, (PREDICT, 0, 0)) == WAIT and answer(channel) == 0
    assert port.receive() == [(0, 1)] and port.ask(0, (REST, 0, 0)) == 0, "who plays with its next prediction"
    channel.hang_up(0)
    with pytest.raises(ServerGone):
        port.receive()
    channel.handed_over(port)


def test_it_is_a_process_turn_since_any_of_its_agents_was_last_heard_of(channel: Channel) -> None:
    store, port = channel._store, channel.open(0)
    assert channel.idle_since(0) == channel._opened_at[0] and not channel.has_delivered(0)
    first = store.asked[0, 0] = time.monotonic()
    assert channel.idle_since(0) == first, "the other still makes its environments"
    second = store.asked[1, 0] = time.monotonic()
    assert channel.idle_since(0) is None and channel.waiting == 2
    channel._answered_at[0] = second + 1.0
    assert channel.idle_since(0) == second + 1.0, "since then one could play"
    channel._answered_at[2] = second + 2.0
    assert channel.idle_since(0) == second + 1.0, "it has done nothing since, though another could play, too"
    store.asked[2, 1] = second + 3.0
    assert channel.idle_since(0) == second + 3.0, "one asked, so it was at work; now the other plays"
    store.submitted[3] = second + 4.0
    assert channel.has_delivered(0) and not channel.has_delivered(1)
    channel.handed_over(port)


def test_one_plays_at_a_time_in_the_order_of_the_grants_and_its_waits_are_told(channel: Channel) -> None:
    store, port, log = channel._store, channel.open(0), list[int]()

    def player(agent: int) -> Player:
        slot = yield TAKE, 0, 0
        for row in range(2):
            assert (yield PREDICT, slot, row) == 0
            log.append(agent)
            time.sleep(0.05)
        yield SUBMIT, slot, 0

    for agent in (2, 0, 0, 2):  # answered before they ask: each agent's answers come in this order
        os.write(channel._reply_files[agent], np.array([agent, 0, 0, 0], np.uint16).tobytes())
    pump({0: player(0), 2: player(2)}, port, store)
    assert log == [2, 0, 0, 2]
    assert store.taken[[0, 1]].tolist() == [1, 1]
    waited, played = store.seconds[[0, 1], PREDICT], store.seconds[[0, 1], SUBMIT]
    assert (played >= 0.1).all() and (played < 0.15).all()
    assert waited[0] >= 0.05 and waited[1] >= 0.1, "for its turn, while the other played"
    assert channel.training_queue == 2
    channel.handed_over(port)
