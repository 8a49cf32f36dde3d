"""Small environments that do what they should not, or what is rare: `odd:Name-v0`.

Each class is registered when this module is imported. It can be found in every process of a test that has this
directory on its path.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
from effects import EFFECTS, HARMLESS
from given import RESETS, STEPS
from gymnasium.spaces import Box
from gymnasium.wrappers import NormalizeObservation, NormalizeReward
from plain import Plain, Step
from troubled import RaisesInNoText, SlowToMake, SlowToPlay, StopsItsHelper  # noqa: F401  # registered below


# ------------------------------------------------------------------------------------------------ that end or fail

class Exits(Plain):
    """`sys.exit` in the second step."""

    def step(self, action: int) -> Step:
        if self.time == 1:
            sys.exit("enough of this")
        return super().step(action)


class Leaves(Plain):
    def step(self, action: int) -> Step:
        os._exit(7)


class LeavesUnmade(Plain):
    def __init__(self, render_mode: str | None = None) -> None:
        os._exit(7)


class ExitsUnmade(Plain):
    def __init__(self, render_mode: str | None = None) -> None:
        raise SystemExit(3)


class Raises(Plain):
    """An exception that runs code where it is unpickled, in the third step."""

    class Odd(Exception):
        def __reduce__(self) -> Any:
            return os._exit, (9,)

    def step(self, action: int) -> Step:
        if self.time == 2:
            raise self.Odd("of\ntwo lines")
        return super().step(action)


class RaisesTwice(Raises):
    """And another one when it is closed."""

    def close(self) -> None:
        raise RuntimeError("the close")


class RaisesMute(Plain):
    """An exception that has no text: to ask for it raises."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("mute")

    def step(self, action: int) -> Step:
        raise self.Mute


class FailsToClose(Plain):
    def close(self) -> None:
        raise RuntimeError("the close")


class Blocks(Plain):
    def step(self, action: int) -> Step:
        time.sleep(600)
        return super().step(action)


class BlocksUnmade(Plain):
    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        time.sleep(600)


class NotANumber(Plain):
    def step(self, action: int) -> Step:
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


class Blind(Plain):
    def __init__(self, render_mode: str | None = None, at: int = 3) -> None:
        super().__init__(render_mode)
        self.observation_space, self.at = Box(-np.inf, np.inf, (2,), np.float32), at

    def seen(self) -> np.ndarray:
        return np.full(2, np.nan if self.time >= self.at else 0.0, np.float32)


# ------------------------------------------------------------------------------------------------ that do more

class Starts(Plain):
    """Starts a process, which ends only when it is killed; it writes its number into the file `started`."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.helper = multiprocessing.Process(target=lambda: time.sleep(600))
        self.helper.start()
        with open("started", "a", encoding="ascii") as file:
            file.write(f"{self.helper.pid}\n")


class StartsEndless(Starts):
    LENGTH = -1


class Prints(Plain):
    def step(self, action: int) -> Step:
        print(".", end="", flush=True)
        print('{"checkpoint": "forged"}', flush=True)
        print("said aloud", file=sys.stderr, flush=True)
        return super().step(action)


class Draws(Plain):
    """Episodes whose length and reward are drawn from the global streams."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.end = 2 + int(np.random.randint(20)) + random.randrange(20)
        return super().reset(seed=seed)

    def step(self, action: int) -> Step:
        self.time += 1
        return self.seen(), float(np.random.random() + random.random()), self.time >= self.end, False, {}


class Endless(Plain):
    LENGTH = -1


class Longer(Plain):
    """An episode lasts as long as its seed says and scores its length."""

    @staticmethod
    def length(seed: int) -> int:
        return 1 + seed % 40

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.LENGTH = self.length(seed) if seed is not None else 1
        return super().reset(seed=seed)


class Sometimes(Plain):
    """Endless if its seed is odd."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.LENGTH = -1 if seed is not None and seed % 2 else Plain.LENGTH
        return super().reset(seed=seed)


# ------------------------------------------------------------------------------------------------ side effects

PLACES = ("making", "reset", "step", "later", "always", "agent", "close")
LATER = 60  # steps of all environments of a process


class Acts(Plain):
    """Does `act` when it is made, reset, stepped or closed.

    later: in each `LATER`th step of all environments of a process. always: in that one and all that follow. agent: in
    every step, but only in a process of an agent.
    """

    steps = 0

    def __init__(self, act: Callable[[], object], where: str, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.act, self.where = act, where
        self._here("making")

    def _here(self, where: str) -> None:
        if self.where == where:
            self.act()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self._here("reset")
        return super().reset(seed=seed)

    def step(self, action: int) -> Step:
        Acts.steps += 1
        self._here("step")
        if Acts.steps % LATER == 0:
            self._here("later")
        if Acts.steps >= LATER:
            self._here("always")
        if multiprocessing.parent_process() is not None:
            self._here("agent")
        return super().step(action)

    def close(self) -> None:
        self._here("close")


for _name, _act in EFFECTS.items():
    for _place in PLACES:
        gymnasium.register(f"{_name}-{_place}-v0", Acts, disable_env_checker=True,
                           kwargs={"act": _act, "where": _place})


def normalizes(render_mode: str | None = None) -> gymnasium.Env:
    """What a user's own function may make."""
    return gymnasium.wrappers.TimeLimit(NormalizeReward(NormalizeObservation(Plain(render_mode))), 100)


gymnasium.register("normalizes-v0", normalizes, disable_env_checker=True)


# ------------------------------------------------------------------------------------------------ that give odd things

class Gives(Plain):
    """`reset` and `step` return what these make of a right answer."""

    def __init__(self, step: Callable[[Step], Any] = tuple, reset: Callable[[tuple], Any] = tuple,
                 render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.changed_step, self.changed_reset = step, reset

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
        return self.changed_reset(super().reset(seed=seed))

    def step(self, action: int) -> Any:
        return self.changed_step(super().step(action))


for _name, _changed in STEPS.items():
    gymnasium.register(f"{_name}-v0", Gives, disable_env_checker=True, kwargs={"step": _changed})
for _name, _changed in RESETS.items():
    gymnasium.register(f"reset-{_name}-v0", Gives, disable_env_checker=True, kwargs={"reset": _changed})


class Reuses(Plain):
    """Writes all observations into one array, and is truncated by the wrapper of its registration."""

    LENGTH = -1

    def seen(self) -> np.ndarray:
        self.array = getattr(self, "array", np.zeros(2, np.uint8))
        self.array[:] = self.time
        return self.array


class Lots(Plain):
    """Draws from the global streams when it is made, and writes what into the file `drawn`."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        with open("drawn", "a", encoding="ascii") as file:
            file.write(f"{np.random.randint(2**31)} {random.random()}\n")


class Wild(StartsEndless):
    """All at once: starts processes, changes everything, gives odd infos, fails to close. In agents it prints."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(render_mode)
        self.other = subprocess.Popen(["sleep", "600"])
        with open("started", "a", encoding="ascii") as file:
            file.write(f"{self.other.pid}\n")
        for name in HARMLESS:
            EFFECTS[name]()

    def step(self, action: int) -> Step:
        if multiprocessing.parent_process() is not None:
            for stream in (sys.__stdout__, sys.__stderr__):
                print("said aloud", file=stream, flush=True)
            os.write(1, b"said aloud\n")
        return (*super().step(action)[:3], self.time % 50 == 0, {"legal": np.arange(1 + self.time % 3)})

    def close(self) -> None:
        raise RuntimeError("the close")


class Infos(Plain):
    """Its infos have other keys, shapes and types at each step."""

    def step(self, action: int) -> Step:
        given: list[Any] = [np.arange(1 + self.time), "text", None, {"legal": object()}, 2.0]
        return (*super().step(action)[:4], {"legal": given[self.time % 5], "other" * self.time: 1})


class Slotted(Plain):
    """Nothing can be set on it that it does not name: `gymnasium.Env` has no slots, so they are forbidden here."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "step":
            raise AttributeError(name)
        super().__setattr__(name, value)


# ------------------------------------------------------------------------------------------------ that draw oddly

class Grows(Plain):
    def render(self) -> Any:
        return np.full((8 + self.time, 12 + 2 * self.time, 3), 200, np.uint8)


class NoModes(Plain):
    """Supports no render_mode and says nonsense of its rate."""

    metadata: ClassVar[dict] = {"render_modes": [], "render_fps": "fast"}

    def __init__(self, render_mode: str | None = None) -> None:
        assert render_mode is None, "no mode is supported"
        super().__init__()

    def render(self) -> Any:
        raise NotImplementedError


# What `render` gives of environments of these names.
for _name, _shown in {"Text": "a board", "Nothing": None}.items():
    globals()[_name] = type(_name, (Plain,), {"render": lambda self, shown=_shown: shown})

for _kind in list(globals().values()):
    if (isinstance(_kind, type) and issubclass(_kind, Plain) and f"{_kind.__name__}-v0" not in gymnasium.registry
            and _kind not in (Acts, Gives, Reuses)):
        gymnasium.register(f"{_kind.__name__}-v0", _kind, disable_env_checker=True)
gymnasium.register("Reuses-v0", Reuses, disable_env_checker=True, max_episode_steps=4)
gymnasium.register("Blind-step-v0", Blind, disable_env_checker=True)
gymnasium.register("Blind-reset-v0", Blind, disable_env_checker=True, kwargs={"at": 0})
