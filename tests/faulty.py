"""Worlds that fail on purpose, for the service to survive: `make(directory, ...)` writes one, to be played by name."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import gymnasium
import numpy as np

if TYPE_CHECKING:  # agents import this file, too
    import pytest

FAULTS: dict[str, Callable[[], None]] = {}


def _fault(act: Callable[[], None]) -> Callable[[], None]:
    FAULTS[act.__name__] = act
    return act


@_fault
def crash() -> None:
    raise RuntimeError("the emulator lost its mind")


@_fault
def stall() -> None:
    time.sleep(1000)


@_fault
def segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


@_fault
def leave() -> None:
    os._exit(7)


@_fault
def mixed() -> None:
    """Mostly crashes; one in fifty ends the process, shoots it, or stands still in it."""
    chance = np.random.default_rng().random()
    if chance < 0.01:
        leave()
    if chance < 0.015:
        segfault()
    if chance < 0.02:
        stall()
    crash()


@_fault
def nan() -> None:
    """Not an act: `Faulty` answers with it."""


@_fault
def huge() -> None:
    """Likewise."""


@_fault
def misshapen() -> None:
    """Likewise."""


class Faulty(gymnasium.Wrapper):
    """Fails as `fault` says in `where` (constructor, reset, step), in a step after `after` of them or, if after is less
    than 1, with that probability. Once: only in the process that creates the file `mark` first. Never in processes that
    are called `spared`: the test, and the check, which has a look at the world before agents play it."""

    def __init__(self, env: gymnasium.Env, fault: str, where: str, after: float, mark: str | None,
                 spared: str | None = None) -> None:
        super().__init__(env)
        self._spared = spared
        self._fault, self._where, self._after, self._mark, self._steps = fault, where, after, mark, 0
        self._chance = np.random.default_rng()
        if where == "constructor":
            self._fail()

    def _due(self) -> bool:
        if multiprocessing.current_process().name == self._spared:
            return False
        if self._mark is None:
            return True
        try:
            os.close(os.open(self._mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _fail(self) -> bool:
        if self._due():
            FAULTS[self._fault]()
            return True
        return False

    def reset(self, **options):
        if self._where == "reset":
            self._fail()
        return self.env.reset(**options)

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        self._steps += 1
        now = self._chance.random() < self._after if self._after < 1 else self._steps > self._after
        if self._where == "step" and now and self._fail():
            reward = {"nan": float("nan"), "huge": 1e30}.get(self._fault, reward)
            observation = observation[:-1] if self._fault == "misshapen" else observation
        return (observation, reward, *rest)


def make(directory: Path, monkeypatch: pytest.MonkeyPatch, fault: str, where: str = "step", after: float = 50,
         once: bool = False, world: str = "Counting()") -> str:
    """Writes a module into `directory` that registers such a world, and makes agents find it; returns its name."""
    module = f"faulty_{fault}_{where}_{''.join(filter(str.isalnum, world)).lower()}"
    mark = repr(str(directory / "failed-once")) if once else None
    importable(directory, monkeypatch, module,
               "import gymnasium\nfrom faulty import Faulty\nfrom ga3c.envs.toys import *\n"
               f"gymnasium.register('{module}-v0', lambda: Faulty({world}, {fault!r}, {where!r}, {after}, {mark}, "
               "'MainProcess'))\n")
    return f"{module}:{module}-v0"


def importable(directory: Path, monkeypatch: pytest.MonkeyPatch, module: str, text: str) -> None:
    """Writes a module of a user's into `directory`, and makes agents find it."""
    (directory / f"{module}.py").write_text(text)
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(str(directory))
