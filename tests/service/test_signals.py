"""Requests to stop: which of them raise, and where."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from ga3c.service.signals import Interrupted, Signals


def test_a_second_ctrl_c_raises_again_where_the_first_was_swallowed(interruption: Signals) -> None:
    interruption.at_once = True
    with pytest.raises(Interrupted):
        os.kill(os.getpid(), signal.SIGINT)  # of which, in a `__del__`, Python prints "Exception ignored"
    os.kill(os.getpid(), signal.SIGTERM)  # a repetition
    with pytest.raises(Interrupted):
        os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Interrupted), interruption.hurrying():
        raise AssertionError("the request was there before")


def test_a_wait_is_given_up_at_a_request_to_stop_and_not_begun_after_one(interruption: Signals) -> None:
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    with pytest.raises(Interrupted), interruption.interruptible():
        threading.Event().wait(60)
    timer.join()
    os.kill(os.getpid(), signal.SIGTERM)  # outside it only asks
    interruption._first_raises = True  # as where it comes when the wait is just over
    with pytest.raises(Interrupted):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Interrupted), interruption.interruptible():
        raise AssertionError("the request was there before")
