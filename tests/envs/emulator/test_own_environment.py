"""An agent's environment on our own emulator: the same facts as on ale-py's, for the same seed."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from scripted import Make, goes_on_elsewhere, play_alike, same

from ga3c.envs.atari import AtariEnvironment
from ga3c.envs.atari_games import proven
from ga3c.envs.emulator import compiled
from ga3c.envs.emulator.consoles import OwnConsoles
from ga3c.envs.emulator.machine import MACHINE
from ga3c.envs.watched import Watched
from ga3c.settings.files import configured


@pytest.mark.parametrize(("game", "changed"), [
    ("Boxing", {}), ("Breakout", {"life_loss": True, "fire_reset": True, "noop_max": 3}),
    ("Breakout", {"sticky_actions": 0.25, "max_episode_frames": 301}), ("Boxing-v4", {"full_action_space": True}),
    ("Breakout", {"frame_skip": 1}), ("Boxing", {"mode": 0, "difficulty": 1, "frame_skip": 3})])
def test_a_seed_gives_the_same_on_both_emulators(
        make: Make, monkeypatch: pytest.MonkeyPatch, game: str, changed: dict[str, object]) -> None:
    monkeypatch.setattr(AtariEnvironment, "_SPREAD", 90)
    ours, theirs = make(game, 3, emulator="own", **changed), make(game, 3, emulator="ale", **changed)
    assert ours.spec == theirs.spec
    for environment in (ours, theirs):
        environment.reset(11)
    play_alike(ours, theirs, 250)


@pytest.mark.parametrize(("game", "frame_skip", "seed", "steps"), [
    ("Alien", 4, 1, 350), ("Alien", 3, 0, 530), ("Alien", 1, 0, 725)])
def test_below_a_short_frame_is_the_frame_before_the_last(
        make: Make, game: str, frame_skip: int, seed: int, steps: int) -> None:
    ours, theirs = (make(game, 3, emulator=name, frame_skip=frame_skip) for name in ("own", "ale"))
    for environment in (ours, theirs):
        environment.reset(seed)
    play_alike(ours, theirs, steps, seed)


@pytest.mark.slow
@pytest.mark.parametrize("rom", sorted(proven()))
def test_a_first_game_is_the_same_on_both_emulators(make: Make, rom: str) -> None:
    """Two frames of four are drawn. ale-py's consoles remember a game that has ended, so that it ends here."""
    game = rom.title().replace("_", "")
    ours, theirs = make(game, 1, emulator="own"), make(game, 1, emulator="ale")
    for environment in (ours, theirs):
        environment.reset(5)
    rng = np.random.default_rng(5)
    for _ in range(1000):
        action = rng.integers(ours.spec.n_actions, size=1)
        told, expected = ours.step(action), theirs.step(action)
        assert same(told, expected)
        if told.score_ended[0]:
            break
        np.testing.assert_array_equal(ours.observation, theirs.observation)


def test_a_saved_state_goes_on_in_another_object_to_the_bit(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtariEnvironment, "_SPREAD", 200)
    for changed in ({}, {"sticky_actions": 0.25, "life_loss": True, "max_episode_frames": 600}):
        goes_on_elsewhere(make, "Breakout", 5, 100, 100, emulator="own", **changed)


def test_a_state_of_the_other_emulator_or_of_another_version_is_refused(make: Make) -> None:
    ours, theirs = make("Boxing", 2, emulator="own"), make("Boxing", 2, emulator="ale")
    for one, other in ((ours, theirs), (theirs, ours), (ours, make("Boxing", 2, emulator="own", difficulty=1))):
        one.reset(0)
        other.reset(0)
        with pytest.raises(ValueError, match="the saved state is of|its arrays are"):
            one.restore(other.state())
    state = ours.state()
    with pytest.raises(ValueError, match="another version"):
        ours.restore(state | {"layout": state["layout"] + 1})


@pytest.mark.parametrize(("field", "value"), [("lines", 511), ("most_cycles", 45_600), ("first_line", 0), ("kind", 3)])
def test_a_state_that_would_lead_compiled_code_astray_is_refused(make: Make, field: str, value: int) -> None:
    environment = make("Pong", 2, emulator="own")
    environment.reset(0)
    state = environment.state()
    machines = state["machines"].copy().reshape(-1).view(MACHINE)
    machines[field][1] = value
    with pytest.raises(ValueError, match=f"it is damaged: {field} is "):
        environment.restore(state | {"machines": machines.view(np.uint8).reshape(state["machines"].shape)})
    environment.restore(state)


def test_every_frame_is_recorded() -> None:
    films = []
    for emulator in ("own", "ale"):
        watched = Watched(configured(game="Breakout", emulator=emulator, noop_max=5, fire_reset=True))
        watched.reset(3)
        films.append([watched.frames])
        for step in range(150):
            watched.step(np.array([step % 4]))
            films[-1].append(watched.frames)
        watched.close()
    for ours, theirs in zip(*films, strict=True):
        assert len(ours) == len(theirs)
        for mine, expected in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(mine, expected)


def test_it_is_our_own_that_plays(make: Make) -> None:
    environment = make("Boxing", emulator="own")
    assert isinstance(environment, AtariEnvironment) and isinstance(environment._consoles, OwnConsoles)


@pytest.mark.usefixtures("compiled_emulator")
def test_a_signal_where_the_compiler_calls_python_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def called() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        goes_on.wait(30)

    goes_on = threading.Event()
    monkeypatch.setattr(compiled, "_load", ctypes.CFUNCTYPE(None)(called))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs have none
    try:
        with pytest.raises(KeyboardInterrupt):
            compiled.compile_kernels.__wrapped__()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not goes_on.is_set() and [thread for thread in threading.enumerate() if "ThreadPool" in thread.name]
    goes_on.set()


@pytest.mark.slow
def test_it_compiles_once_says_so_and_does_without_a_cache(tmp_path: Path) -> None:
    program = ("from ga3c.envs.factory import make_environment; from ga3c.settings.files import configured;"
               "make_environment(configured(game='Boxing', emulator='own'), 1).reset(0)")

    def told(cache: Path) -> str:
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                              env={**os.environ, "NUMBA_CACHE_DIR": str(cache)}).stderr

    assert told(tmp_path).startswith("Compiling the emulator, once on this machine ... ")
    assert told(tmp_path) == ""
    (tmp_path / "file").touch()
    assert told(tmp_path / "file").endswith("not kept: the cache directory cannot be written\n")
