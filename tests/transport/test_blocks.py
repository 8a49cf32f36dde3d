"""Rollouts that wait for those beside them, and those that do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ga3c.transport.blocks import ROUNDS, Blocks, Rollout
from ga3c.transport.seating import Seating


def made(capacity: int = 4, per_process: int = 4, size: int = 2) -> tuple[Blocks, set[int]]:
    """Blocks of so many, two slots an agent, and who plays."""
    playing = set(range(capacity))
    return Blocks(Seating(capacity, per_process), size, playing.__contains__), playing


def taken(blocks: Blocks, most: int, oldest: bool = False) -> list[Rollout]:
    """Rollouts, while no trainer shall end."""
    found, ends = blocks.take(most, oldest)
    assert not ends
    return found


def test_a_block_is_given_once_it_is_whole_in_the_order_of_its_slots() -> None:
    blocks, _ = made()
    blocks.add([Rollout(1, 1, 0), Rollout(3, 3, 0)])
    assert taken(blocks, 2) == [] and blocks.ready == 0 and len(blocks) == 2
    blocks.add([Rollout(0, 0, 0)])
    assert blocks.ready == 2 and taken(blocks, 1) == [Rollout(0, 0, 0), Rollout(1, 1, 0)], "though more than the most"
    assert taken(blocks, 1) == [] and len(blocks) == 1


@pytest.mark.parametrize("number", [0, 7, ROUNDS // 2, ROUNDS - 2, ROUNDS - 1])
def test_who_has_handed_in_a_later_round_is_not_waited_for_also_where_their_numbers_begin_anew(number: int) -> None:
    blocks, _ = made()
    rounds = [(number + later) % ROUNDS for later in range(3)]
    blocks.add([Rollout(0, 0, rounds[0]), Rollout(1, 1, rounds[0])])
    assert len(taken(blocks, 2)) == 2
    blocks.add([Rollout(0, 4, rounds[1])])
    assert taken(blocks, 2) == []
    blocks.add([Rollout(1, 1, rounds[2])])
    assert taken(blocks, 2) == [Rollout(0, 4, rounds[1])] and taken(blocks, 2) == []
    blocks.add([Rollout(0, 0, rounds[2])])
    assert [rollout.slot for rollout in taken(blocks, 2)] == [0, 1]


def test_the_rest_of_a_broken_block_is_not_waited_for() -> None:
    blocks, playing = made()
    blocks.add([Rollout(0, 0, 5)])
    assert taken(blocks, 1, oldest=True) == [Rollout(0, 0, 5)]
    blocks.add([Rollout(1, 1, 5)])
    assert taken(blocks, 2) == [Rollout(1, 1, 5)]
    blocks.add([Rollout(0, 4, 6)])
    playing.discard(1)
    assert taken(blocks, 2) == [Rollout(0, 4, 6)], "its fellow does not play"


def test_a_new_incarnation_is_waited_for_from_its_first_round() -> None:
    blocks, _ = made()
    blocks.add([Rollout(0, 0, 9), Rollout(1, 1, 9)])
    assert len(taken(blocks, 2)) == 2
    for agent in (0, 1):
        blocks.begin(agent)
    blocks.add([Rollout(0, 0, 0)])
    assert taken(blocks, 2) == []


def test_agents_that_do_not_divide_into_updates_are_not_waited_for() -> None:
    blocks, _ = made(capacity=3, per_process=3)
    assert blocks.fellows(0) == 1 and not blocks.all_play()
    blocks.add([Rollout(0, 0, 0), Rollout(1, 1, 0)])
    assert blocks.ready == 2 and taken(blocks, 1) == [Rollout(0, 0, 0)], "not more than the most: no block"
    blocks.add([Rollout(0, 3, 1)])
    assert taken(blocks, 2) == [Rollout(1, 1, 0), Rollout(0, 3, 1)], "all at once"


def test_all_play_if_nobody_who_does_lacks_a_fellow() -> None:
    blocks, playing = made()
    assert blocks.all_play() and blocks.fellows(3) == 2
    playing.discard(3)
    assert not blocks.all_play()
    playing.discard(2)
    assert blocks.all_play(), "two of four are a whole block"
    assert made(size=1)[0].fellows(0) == 1 and made(size=1)[0].all_play()


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=60))
def test_whatever_comes_is_given_once_and_each_agents_in_order(story: list[tuple[int, bool]]) -> None:
    blocks, _ = made(capacity=5)  # the last has a process for itself
    rounds, added, given_ = [0] * 5, list[Rollout](), list[Rollout]()
    for agent, takes in story:
        added.append(Rollout(agent, 5 * rounds[agent] + agent, rounds[agent]))
        rounds[agent] += 1
        blocks.add(added[-1:])
        while takes and (found := taken(blocks, 2)):
            given_ += found
    blocks.end()
    ends = False
    while not ends:
        found, ends = blocks.take(2)
        given_ += found
    assert sorted(given_) == sorted(added) and len(blocks) == 0 == blocks.drop()
    for agent in range(5):
        its = [rollout.round for rollout in given_ if rollout.agent == agent]
        assert its == sorted(its)


def test_trainers_end_once_what_had_come_is_taken_whatever_comes_meanwhile() -> None:
    blocks, _ = made()
    blocks.add([Rollout(0, 0, 0), Rollout(3, 3, 0), Rollout(2, 2, 0)])
    blocks.end()
    blocks.add([Rollout(1, 1, 0)])
    blocks.end()
    assert blocks.take(2) == ([Rollout(0, 0, 0)], False), "the other had not come before"
    blocks.add([Rollout(2, 6, 1), Rollout(0, 4, 1), Rollout(1, 5, 1)])
    assert blocks.take(2) == ([Rollout(2, 2, 0), Rollout(3, 3, 0)], True), "a block"
    assert blocks.take(2) == ([Rollout(1, 1, 0)], True)
    assert taken(blocks, 2) == [Rollout(0, 4, 1), Rollout(1, 5, 1)] and taken(blocks, 2) == [], "one waits again"
    for _ in range(2):
        blocks.end()
    assert blocks.take(2) == ([Rollout(2, 6, 1)], True) and blocks.take(2) == ([], True), "none waits"


def test_who_shall_end_does_so_at_once_if_all_is_dropped() -> None:
    blocks, _ = made()
    blocks.add([Rollout(0, 0, 0), Rollout(1, 1, 0)])
    blocks.end()
    assert blocks.drop() == 2 and blocks.take(2) == ([], True)
    blocks.end()
    assert blocks.take(2) == ([], True)
