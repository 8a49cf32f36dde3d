"""Restart, park or stop, by the clock given."""

from __future__ import annotations

from ga3c.service.workers import Recovery


def test_an_agent_that_never_delivers_waits_longer_each_time_and_is_parked_the_fifth_time() -> None:
    recovery = Recovery()
    assert [recovery.process_died(1, False, False, 100.0) for _ in range(5)] == [
        100.5, 101.0, 102.0, 104.0, None]
    assert recovery.parked == {1}
    assert recovery.process_died(2, False, False, 100.0) == 100.5, "each agent for itself"


def test_a_rollout_forgives_what_was_before() -> None:
    recovery = Recovery()
    for _ in range(3):
        delivered = (False, False, False, True)
        assert [recovery.process_died(1, each, False, 0.0) for each in delivered] == [0.5, 1, 2, 0]
    assert not recovery.parked


def test_who_is_shot_before_its_first_rollout_does_not_wait_longer_but_is_parked_as_well() -> None:
    recovery = Recovery()
    assert [recovery.process_died(1, False, True, 100.0) for _ in range(5)] == [100.5] * 4 + [None]


def test_a_fault_that_hits_several_threads_is_one() -> None:
    recovery = Recovery()
    assert [recovery.thread_failed(now, 0.0) for now in (10.0, 10.01, 10.5)] == [True] * 3
    assert not recovery.thread_failed(11.0, 10.5), "this one has been started again already"


def test_a_thread_is_started_again_once_a_minute_and_divergence_mended_once() -> None:
    recovery = Recovery()
    assert [recovery.thread_failed(now, began) for now, began in [
        (10.0, 0.0), (71.0, 10.0), (130.0, 71.0), (191.0, 130.0)]] == [True, True, False, True]
    assert [recovery.diverged(), recovery.diverged()] == [True, False]
