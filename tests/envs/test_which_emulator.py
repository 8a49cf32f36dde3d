"""The setting `emulator`: which emulator plays, and what it says of itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ga3c.envs.atari_games import atari_game_of, atari_names
from ga3c.envs import which_emulator
from ga3c.envs.which_emulator import emulator_notes, is_own, proven
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError

ROMS = {game.rom for game in atari_names().values()}


def own(**changed: object) -> bool:
    settings = configured(**{"emulator": "auto", **changed}).env
    game = atari_game_of(settings)
    assert game is not None
    return is_own(settings, game)


def test_auto_takes_our_own_for_games_proven_exact_as_they_were_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(which_emulator, "proven", lambda: frozenset({"boxing"}))
    assert own(game="Boxing") and own(game="ALE/Boxing-v5")
    assert not own(game="Boxing", emulator="ale")
    assert not own(game="Boxing", mode=1) and not own(game="Boxing", difficulty=1)
    assert not own(game="Pong") and own(game="Pong", emulator="own", mode=1)


def test_it_is_said_which_emulator_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(which_emulator, "proven", lambda: frozenset({"boxing"}))
    told = [emulator_notes(configured(game=game, emulator=emulator).env) for game, emulator in (
        ("Boxing", "auto"), ("Pong", "own"), ("Pong", "auto"), ("toy:catch", "own"), ("CartPole-v1", "auto"))]
    assert told == [
        ["Boxing: GA3C's own emulator plays, proven identical to ale-py's; use --emulator ale for ale-py's"],
        ["Pong: GA3C's own emulator plays, not proven identical in this game to ale-py's; use --emulator ale for "
         "ale-py's"],
        ["Pong: ale-py's emulator plays"], [], []]
    assert emulator_notes(configured(game="Boxing", emulator="own", mode=1).env) == [
        "Boxing: GA3C's own emulator plays, not proven identical in this mode and difficulty to ale-py's; use "
        "--emulator ale for ale-py's"]


def test_a_game_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="emulator: own does not know Pitfall2"):
        own(game="Pitfall2", emulator="own")


def test_the_proven_games_are_games() -> None:
    from ga3c.envs.emulator.games import GAMES
    assert {"boxing", "breakout", "pong", "qbert"} <= proven() <= {*GAMES} <= ROMS


def test_a_run_on_ale_pys_emulator_loads_no_compiler() -> None:
    program = ("import sys; from ga3c.envs.factory import make_environment; from ga3c.settings.files import configured;"
               "from ga3c.envs.atari import preload; s = configured(game='Pong', emulator='ale'); preload(s.env, 1);"
               "make_environment(s, 1).reset(0); print('numba' in sys.modules)")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
