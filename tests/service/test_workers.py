"""Restart, back off or quarantine, by the clock given; pools of threads."""

from __future__ import annotations

import threading

import pytest

from ga3c.service.workers import HEALTHY_SECONDS, Agent, FailureRules, Refusals, WorkerPool, WorkerThread


def waits(agent: Agent, *failures: tuple[bool, bool, float]) -> list[float | None]:
    """Seconds until it may start again after each failure (delivered, shot, lived); None: quarantined."""
    return [agent.start_after - 100.0 if agent.note_failure(*failure, 100.0) else None for failure in failures]


def test_an_agent_that_never_delivers_waits_longer_each_time_and_is_quarantined_the_fifth_time() -> None:
    assert waits(Agent(1), *[(False, False, 0.1)] * 5) == [0.5, 1.0, 2.0, 4.0, None]


def test_an_agent_that_delivers_and_fails_again_and_again_backs_off_like_any_other() -> None:
    found = waits(Agent(1), *[(True, False, 0.1)] * 10)
    assert found == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, None]


@pytest.mark.parametrize("healthy", [(True, False, HEALTHY_SECONDS), (True, True, 0.1)])
def test_a_healthy_life_forgives_what_was_before(healthy: tuple[bool, bool, float]) -> None:
    agent = Agent(1)
    for _ in range(3):
        assert waits(agent, *[(False, False, 0.1)] * 3, healthy) == [0.5, 1.0, 2.0, 0.0]


def test_an_agent_shot_before_its_first_rollout_does_not_wait_longer_but_is_quarantined_as_well() -> None:
    assert waits(Agent(1), *[(False, True, 0.1)] * 5) == [0.5] * 4 + [None]


def test_a_fault_that_hits_several_threads_is_one() -> None:
    rules = FailureRules()
    assert [rules.may_restart_thread(now, 0.0) for now in (10.0, 10.01, 10.5)] == [True] * 3
    assert not rules.may_restart_thread(11.0, 10.5), "this one has been restarted already"


def test_a_thread_is_restarted_once_a_minute() -> None:
    rules = FailureRules()
    assert [rules.may_restart_thread(now, began) for now, began in [
        (10.0, 0.0), (71.0, 10.0), (130.0, 71.0), (191.0, 130.0)]] == [True, True, False, True]


def test_a_thread_ends_or_fails_and_says_so() -> None:
    failed: list[BaseException] = []
    for work in (lambda: None, lambda: 1 / 0):
        thread = WorkerThread("test", work, lambda error, began: failed.append(error))
        thread.join(60)
        assert not thread.working
    assert [type(error) for error in failed] == [ZeroDivisionError]


def test_a_pool_has_as_many_threads_as_wanted_once_those_dismissed_have_ended() -> None:
    dismissals = threading.Semaphore(0)
    pool = WorkerPool("test", dismissals.acquire, dismissals.release, lambda error, began: None)
    for wanted in (3, 1, 2, 0):
        while pool.resize(wanted) or len(pool) != wanted:
            threading.Event().wait(0.001)
    assert pool.join(0.0)


@pytest.mark.parametrize("seconds", [0.0, 0.9, 1.2, 5.0])
def test_a_fork_server_that_dies_again_is_a_refusal_however_long_it_takes_to_start(seconds: float) -> None:
    refusals, began = Refusals(4), 100.0
    assert refusals.note_missing_server(began, began + seconds), "it may be chance"
    began = refusals.server_back_at
    assert not refusals.note_missing_server(began, began + seconds)
    later = began + seconds + 60.0
    assert refusals.note_missing_server(later, later + seconds), "a minute later it may be chance again"
