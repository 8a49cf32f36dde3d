"""Atari games as their ids and settings have them played: drawn frame skips, modes, difficulties."""

from __future__ import annotations

import ale_py
import numpy as np
import pytest
from ale_py import roms
from numpy.typing import NDArray
from scripted import Make, goes_on_elsewhere, play_alike, transitions

from ga3c.envs import ale, atari
from ga3c.envs.atari import AtariEnvironment
from ga3c.envs.atari_games import atari_names
from ga3c.envs.check import probe
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError


def offered(rom: str) -> tuple[list[int], list[int]]:
    """Modes and difficulties of a game."""
    emulator = ale._load(rom)
    return sorted(emulator.getAvailableModes()), sorted(emulator.getAvailableDifficulties())


# ------------------------------------------------------------------------------------------------ frame skip

def frames(make: Make, game: str, steps: int, seed: int) -> NDArray[np.int64]:
    """(steps, 2): the frames of each agent step of two environments."""
    environment = make(game, 2, noop_max=0)
    assert isinstance(environment, AtariEnvironment)
    environment.reset(seed)
    played = [[0, 0]]
    for _ in range(steps):
        environment.step(np.zeros(2, np.int64))
        played.append([emulator.getEpisodeFrameNumber() for emulator in environment._consoles._emulators])
    return np.diff(played, axis=0)


def test_a_frame_skip_is_drawn_by_the_seed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtariEnvironment, "_SPREAD", 10**6)  # no episode is cut short
    drawn = frames(make, "Pong-v4", 450, 5)
    counts = [int((drawn == number).sum()) for number in (2, 3, 4)]
    assert sum(counts) == 900 and min(counts) > 240
    assert (drawn[:, 0] != drawn[:, 1]).any()
    np.testing.assert_array_equal(frames(make, "Pong-v4", 60, 5), drawn[:60])
    assert (frames(make, "Pong-v4", 60, 6) != drawn[:60]).any()


@pytest.mark.parametrize(("game", "each"), [
    ("PongNoFrameskip-v0", 1), ("SpaceInvadersDeterministic-v4", 3)])
def test_a_frame_skip_that_is_fixed_is_not_drawn(make: Make, game: str, each: int) -> None:
    assert (frames(make, game, 20, 0) == each).all()


@pytest.mark.parametrize("game", ["ALE/Pong-v5", "Pong-v0"])
def test_an_id_sticks_as_often_as_it_says(make: Make, game: str) -> None:
    environment = make(game, noop_max=0, frame_skip=1)
    environment.reset(0)
    late = []
    for step in range(800):
        environment.step(np.array([2 + step % 4]))
        late.append(environment._held[0] != environment.actions[2 + step % 4].value)  # type: ignore[attr-defined]
    assert 0.2 < np.mean(late) < 0.3


# ------------------------------------------------------------------------------------------------ modes

@pytest.mark.parametrize(("game", "changed"), [
    ("Pong-v0", {}), ("Breakout-v4", {"life_loss": True}),
    ("Breakout", {"mode": 20, "difficulty": 1, "sticky_actions": 0.25})])
def test_a_saved_state_goes_on_to_the_bit(
        make: Make, monkeypatch: pytest.MonkeyPatch, game: str, changed: dict[str, object]) -> None:
    monkeypatch.setattr(AtariEnvironment, "_SPREAD", 200)  # episodes are cut before and after
    goes_on_elsewhere(make, game, 3, 100, 100, **changed)


@pytest.mark.parametrize(("game", "mode", "difficulty"), [
    ("Breakout", 44, 1), ("Freeway", 3, None), ("Boxing", None, 2)])
def test_a_mode_and_a_difficulty_are_ale_pys_own_in_every_episode(
        make: Make, game: str, mode: int | None, difficulty: int | None) -> None:
    environment = make(game, 2, noop_max=0, mode=mode, difficulty=difficulty)
    assert isinstance(environment, AtariEnvironment)
    direct = ale_py.ALEInterface()
    direct.setInt("random_seed", 0)
    direct.setFloat("repeat_action_probability", 0.0)
    direct.loadROM(roms.get_rom_path(game.lower()))
    if mode is not None:
        direct.setMode(mode)
    if difficulty is not None:
        direct.setDifficulty(difficulty)
    new = direct.cloneState(include_rng=True)
    for seed in range(2):
        environment.reset(seed)
        direct.restoreState(new)
        direct.reset_game()
        for step in range(40):
            environment.step(np.full(2, step % 3))
            for _ in range(4):
                direct.act(environment.actions[step % 3])
        for emulator in environment._consoles._emulators:
            np.testing.assert_array_equal(emulator.getRAM(), direct.getRAM())
            np.testing.assert_array_equal(emulator.getScreenGrayscale(), direct.getScreenGrayscale())
            state = emulator.cloneState()
            assert (state.getCurrentMode(), state.getDifficulty()) == (mode or 0, difficulty or 0)


@pytest.mark.parametrize("changed", [{}, {"mode": 8, "difficulty": 1}])
def test_preloaded_emulators_play_as_those_that_are_made(make: Make, changed: dict[str, int]) -> None:
    made = make("Breakout", 3, **changed)
    atari.preload(configured(game="BreakoutNoFrameskip-v4", emulator="ale").env, 2)
    assert len(ale._preloaded["breakout"]) == 2
    preloaded = make("Breakout", 3, **changed)
    assert ale._preloaded["breakout"] == []
    for environment in (made, preloaded):
        environment.reset(4)
    play_alike(made, preloaded, 120)


def test_a_state_of_another_mode_is_refused_and_a_reset_begins_anew(make: Make) -> None:
    one, fresh, foreign = make("Pong", 2), make("Pong", 2), make("Pong", 2, mode=1)
    foreign.reset(0)
    transitions(foreign, 10)
    saved = foreign.state()
    one.reset(0)
    with pytest.raises(ValueError, match="is of mode 1, difficulty 0, not mode 0, difficulty 0"):
        one.restore(saved)
    one.reset(1)
    fresh.reset(1)
    play_alike(one, fresh, 60)


@pytest.mark.parametrize(("changed", "told"), [
    ({"game": "Pong", "mode": 2}, "mode: 2 is not allowed: Pong has 0, 1"),
    ({"game": "ALE/Tetris-v5", "difficulty": 1}, "difficulty: 1 is not allowed: Tetris has 0"),
    ({"game": "Pong", "mode": 10**12}, "mode: 1000000000000 is not allowed: Pong has 0, 1")])
def test_what_a_game_does_not_offer_is_told_with_what_it_does(changed: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        probe(configured(**changed))
    assert str(caught.value) == told


@pytest.mark.slow
def test_every_game_goes_on_in_its_last_mode_and_difficulty(make: Make) -> None:
    for name, rom in {(game.name, game.rom) for game in atari_names().values()}:
        modes, difficulties = offered(rom)
        goes_on_elsewhere(make, name, 1, 60, 40, mode=modes[-1], difficulty=difficulties[-1])
