"""Requests to stop: which of them raise, and where."""

from __future__ import annotations

import os
import pty
import signal
import sys
import threading
from multiprocessing.connection import wait

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


def test_a_request_for_a_checkpoint_ends_no_measurement_before_the_run(interruption: Signals) -> None:
    for before in (True, False):
        interruption.at_once = before
        os.kill(os.getpid(), signal.SIGUSR1)
        assert bool(wait([interruption], 0)) is not before
    assert interruption.take_checkpoint_request()


def test_a_third_ctrl_c_gives_the_terminal_its_cursor_back() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", (
            "import os\nfrom ga3c.service.signals import Signals\nsignals = Signals()\n"
            "for _ in range(3):\n    os.kill(os.getpid(), 2)\n    print('goes on', flush=True)")])
    shown = b""
    while True:
        try:
            data = os.read(terminal, 1024)
        except OSError:  # its end
            break
        if not data:
            break
        shown += data
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert shown == b"goes on\r\ngoes on\r\n\x1b[?25h"
