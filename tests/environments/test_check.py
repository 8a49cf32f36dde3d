"""The check of a game, in a process that is thrown away: one line for what goes wrong, and nothing stays behind."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from children import closing_hangs, closing_leaves

from ga3c.envs import check as check_module
from ga3c.envs.check import Find, check, examine, probe
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError

SECONDS = 3.0

pytestmark = pytest.mark.usefixtures("own_directory")


@pytest.mark.parametrize(("game", "says"), [
    ("exit-reset", r"fails at its first step: SystemExit: the code 'enough of this' (effects.py, line "),
    ("leave-making", "ended its process with exit code 0 before it had made and played its first step"),
    ("segfault-step", "was ended by SIGSEGV before it had made and played its first step"),
    ("interrupt-making", "cannot be made: KeyboardInterrupt (effects.py, line "),
    ("block-making", f"blocked for {SECONDS:g} s (agent_timeout) before it had made and played its first step"),
    ("recursion-reset", "fails at its first step: RecursionError: maximum recursion depth exceeded (effects.py, line "),
])
def test_a_game_that_cannot_be_played_is_told_in_one_line(game: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(configured(game=f"odd:{game}-v0", agent_timeout=SECONDS if game == "block-making" else 60.0))
    said = str(caught.value)
    assert said.startswith(f"game: 'odd:{game}-v0' {says}") and "\n" not in said, said


def state_of_this_process() -> tuple[Any, ...]:
    umask = os.umask(0o077)
    os.umask(umask)
    return (Path.cwd(), signal.getsignal(signal.SIGTERM), threading.active_count(), dict(os.environ), umask,
            sys.stdout, sys.stdout.closed, sys.getrecursionlimit(), np.geterr(), signal.getsignal(signal.SIGALRM),
            time.monotonic, atexit._ncallbacks())


# One process each: what one of them does might hide another.
@pytest.mark.parametrize("effect", [
    "sigterm", "thread", "stdout", "fork", "no-directory", *(pytest.param(name, marks=pytest.mark.slow) for name in (
        "alarm", "umask", "closed-stdout", "shallow", "environ", "monotonic", "atexit", "seterr"))])
def test_a_game_that_changes_its_process_changes_nothing_here(effect: str) -> None:
    before = state_of_this_process()
    children = set(psutil.Process().children(recursive=True))
    assert probe(configured(game=f"odd:{effect}-making-v0", agent_timeout=60.0)).n_actions == 2
    assert state_of_this_process() == before
    left = set(psutil.Process().children(recursive=True)) - children
    assert not psutil.wait_procs(left, timeout=60)[1], "what was killed takes a moment to end"


def test_what_fails_to_close_is_played_all_the_same_and_said() -> None:
    checked = check(configured(game="odd:FailsToClose-v0"))
    note, = checked.notes
    assert note.startswith("odd:FailsToClose-v0 fails when it is closed, which harms nothing: RuntimeError: the close ")


class Scales(gymnasium.RewardWrapper):
    """Divides rewards by the largest so far, which it has in two places."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self.largest, self.now, self.kept = 1e-9, 0.0, SimpleNamespace(mean=np.zeros(1))

    def reset(self, **options: Any) -> Any:
        self.now = 0.0
        return super().reset(**options)

    def reward(self, reward: Any) -> float:
        self.now = float(reward)
        self.largest = max(self.largest, self.now)
        self.kept.mean = self.kept.mean + self.now
        return self.now / self.largest


def test_what_a_wrapper_carries_on_and_nobody_saves_is_said() -> None:
    checked = check(configured(game="odd:Plain-v0", wrappers=("test_check:Scales",)))
    note, = checked.notes
    assert "not saved: Scales.largest, Scales.kept.mean; a resumed run and an evaluation begin without it" in note


def test_each_part_of_the_check_may_take_as_long_as_a_step() -> None:
    signs: list[None] = []
    check_module._first_step(configured(game="odd:Plain-v0"), lambda: signs.append(None))
    assert len(signs) == 3, "made, reset and stepped"


@pytest.mark.parametrize(("seconds", "find", "told"), [
    (0.5, closing_hangs, "it takes more than 0.5 s"), (60.0, closing_leaves, "it ended its process")])
def test_a_close_that_blocks_or_ends_the_process_harms_nothing(
        monkeypatch: pytest.MonkeyPatch, seconds: float, find: Find, told: str) -> None:
    monkeypatch.setattr(check_module, "_CLOSE_SECONDS", seconds)
    settings = configured(game="toy:catch")
    assert examine(settings, find, "been played") == ("facts", told)
