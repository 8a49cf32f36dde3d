"""Atari games: each id is its own game, played as the id says and on the emulator that the settings choose."""

from __future__ import annotations

import re
import subprocess
import sys

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import refusal

from ga3c.envs import atari_games
from ga3c.envs.atari_games import (
    atari_game_of, atari_names, find_atari_game, is_own, notes_at_start, plain_name, proven)
from ga3c.envs.check import probe
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError

REGISTERED = [identifier for identifier, spec in gymnasium.registry.items()
              if str(spec.entry_point).startswith("ale_py")]
GAMES = [identifier for identifier in REGISTERED if identifier.startswith("ALE/")]
PLAIN = [identifier.removeprefix("ALE/").removesuffix("-v5") for identifier in GAMES]


def how(game: str) -> tuple[str, tuple[int, int], float]:
    found = find_atari_game(game)
    assert found is not None
    return found.identifier, found.frame_skip, found.sticky_actions


# ------------------------------------------------------------------------------------------------ ids

@pytest.mark.parametrize(("game", "frame_skip", "sticky", "frames"), [
    ("ALE/Pong-v5", (4, 4), 0.25, 4), ("Pong-v0", (2, 4), 0.25, 3), ("Pong-v4", (2, 4), 0.0, 3),
    ("PongNoFrameskip-v0", (1, 1), 0.25, 1), ("PongNoFrameskip-v4", (1, 1), 0.0, 1),
    ("PongDeterministic-v0", (4, 4), 0.25, 4), ("PongDeterministic-v4", (4, 4), 0.0, 4), ("Pong", (4, 4), 0.0, 4)])
def test_an_id_is_played_as_gym_played_it(game: str, frame_skip: tuple[int, int], sticky: float, frames: int) -> None:
    assert how(game) == ("ALE/Pong-v5", frame_skip, sticky)
    assert probe(configured(game=game)).frames_per_step == frames


def test_an_id_may_name_the_module_that_registers_it() -> None:
    assert find_atari_game("ale_py:ALE/Pong-v5") == find_atari_game("ALE/Pong-v5") is not None
    assert probe(configured(game="ale_py:ALE/Pong-v5")).frames_per_step == 4


def test_every_id_of_the_registry_is_its_own_game() -> None:
    assert len(GAMES) > 100 and len(REGISTERED) > 300
    for identifier in REGISTERED:
        said, found = gymnasium.spec(identifier).kwargs, find_atari_game(identifier)
        assert found is not None and found.rom == said["game"], identifier
        assert found.sticky_actions == said["repeat_action_probability"], identifier
        drawn = range(found.frame_skip[0], found.frame_skip[1] + 1)
        skip = said["frameskip"]
        assert list(drawn) == ([skip] if isinstance(skip, int) else list(range(*skip))), identifier


@pytest.mark.parametrize("game", ["ALE/Pong-ram-v5", "Pong-ramNoFrameskip-v4"])
def test_an_id_of_observed_memory_is_refused(game: str) -> None:
    assert refusal(game) == (f"game: {game!r} shows the console's memory, but Atari games are learned from the screen "
                             "here; use Pong or ALE/Pong-v5")


# ------------------------------------------------------------------------------------------------ plain names

@pytest.mark.parametrize(("spelling", "game"), [
    *((spelling, "MsPacman") for spelling in ("mspacman", "MSPACMAN", "ms_pacman", "Ms. Pacman")),
    ("space_invaders", "SpaceInvaders"), ("H.E.R.O.", "Hero"), ("Up 'n Down", "UpNDown"),
    ("Tic-Tac-Toe 3D", "TicTacToe3D"), ("Pitfall 2", "Pitfall2")])
def test_a_plain_name_is_known_as_people_write_it(spelling: str, game: str) -> None:
    assert how(spelling) == (f"ALE/{game}-v5", (4, 4), 0.0)


def test_every_game_is_found_by_its_plain_name_and_its_rom() -> None:
    for game in PLAIN:
        rom = gymnasium.spec(f"ALE/{game}-v5").kwargs["game"]
        assert [how(name) for name in (game, game.lower(), rom)] == [(f"ALE/{game}-v5", (4, 4), 0.0)] * 3


# ------------------------------------------------------------------------------------------------ what is no name

@pytest.mark.parametrize(("game", "near"), [
    ("Pong-vs-CPU", "Pong"), ("Pong-v999", "Pong"), ("pong-v4", "Pong-v4"), ("Pong ", "Pong"),
    ("ALE/Pong-v4", "ALE/Pong-v5"), ("PongNoFrameskip", "PongNoFrameskip-v4"), ("Kaboom-v4", "ALE/Kaboom-v5"),
    ("Ms. Pacmann", "MsPacman")])
def test_a_name_that_is_nearly_one_is_told_with_the_nearest(game: str, near: str) -> None:
    said = refusal(game)
    assert said.startswith(f"game: no game is called {game!r}; nearest: ")
    assert near in said.partition("nearest: ")[2].split(", ")


@pytest.mark.parametrize("name", ["CartPole-v1", "nonsense", "module:Pong-v4"])
def test_what_is_no_atari_game_is_not_taken_for_one(name: str) -> None:
    assert find_atari_game(name) is None and atari_game_of(configured(game=name).env) is None


@given(st.sampled_from([*atari_names()]), st.text(st.characters(min_codepoint=32, max_codepoint=382), min_size=1))
def test_a_suffix_makes_no_game_of_a_name(name: str, suffix: str) -> None:
    written = name + suffix
    # But a point after a plain name, and names that are others' with an end, as Pitfall2, Pong-v0.
    plain = re.fullmatch(r"[A-Za-z0-9].*[A-Za-z0-9.]", written)
    if written in atari_names() or plain and plain_name(written) in {plain_name(each) for each in PLAIN}:
        return
    try:
        assert find_atari_game(written) is None
    except ConfigError as error:
        assert "memory" in str(error)


@given(st.sampled_from(PLAIN), st.from_regex(r"(NoFrameskip|Deterministic|-ram)?-v[0-9]{1,3}", fullmatch=True))
def test_a_version_that_never_was_is_no_game(game: str, end: str) -> None:
    written = game + end
    if end.startswith("-ram"):
        with pytest.raises(ConfigError):
            find_atari_game(written)
    else:
        there = written.replace("Deterministic", "NoFrameskip") in gymnasium.registry
        assert (find_atari_game(written) is not None) == there


# ------------------------------------------------------------------------------------------------ settings

@given(st.sampled_from([*atari_names()]), st.none() | st.integers(1, 16), st.none() | st.floats(0, 0.99))
def test_a_setting_wins_over_the_id(game: str, frame_skip: int | None, sticky: float | None) -> None:
    settings = configured(game=game, frame_skip=frame_skip, sticky_actions=sticky)
    found, said = atari_game_of(settings.env), find_atari_game(game)
    assert found is not None and said is not None
    assert found.frame_skip == (said.frame_skip if frame_skip is None else (frame_skip, frame_skip))
    assert found.sticky_actions == (said.sticky_actions if sticky is None else sticky)


def test_an_agent_step_of_one_frame_is_told_at_the_start() -> None:
    assert notes_at_start(configured(game="PongNoFrameskip-v4").env)[:-1] == [
        "PongNoFrameskip-v4: an agent step is one frame, as this id says; --frame-skip 4 is usual"]
    for settings in (configured(game="PongNoFrameskip-v4", frame_skip=1), configured(game="Pong", frame_skip=1),
                     configured(game="Pong-v4"), configured(game="Pong"), configured(game="toy:catch")):
        assert notes_at_start(settings.env)[:-1] == []


# ------------------------------------------------------------------------------------------------ the emulator

def own(**changed: object) -> bool:
    settings = configured(**{"emulator": "auto", **changed}).env
    game = atari_game_of(settings)
    assert game is not None
    return is_own(settings, game)


def test_auto_takes_our_own_for_games_proven_exact_as_they_were_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari_games, "proven", lambda: frozenset({"boxing"}))
    assert own(game="Boxing") and own(game="ALE/Boxing-v5")
    assert not own(game="Boxing", emulator="ale")
    assert not own(game="Boxing", mode=1) and not own(game="Boxing", difficulty=1)
    assert not own(game="Pong") and own(game="Pong", emulator="own", mode=1)


def test_it_is_said_which_emulator_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atari_games, "proven", lambda: frozenset({"boxing"}))
    told = [notes_at_start(configured(game=game, emulator=emulator).env) for game, emulator in (
        ("Boxing", "auto"), ("Pong", "own"), ("Pong", "auto"), ("toy:catch", "own"), ("CartPole-v1", "auto"))]
    assert told == [
        ["Boxing: GA3C's own emulator plays, proven identical to ale-py's; use --emulator ale for ale-py's"],
        ["Pong: GA3C's own emulator plays, not proven identical in this game to ale-py's; use --emulator ale for "
         "ale-py's"],
        ["Pong: ale-py's emulator plays"], [], []]
    assert notes_at_start(configured(game="Boxing", emulator="own", mode=1).env) == [
        "Boxing: GA3C's own emulator plays, not proven identical in this mode and difficulty to ale-py's; use "
        "--emulator ale for ale-py's"]


def test_a_game_that_it_does_not_know_is_refused() -> None:
    with pytest.raises(ConfigError, match="emulator: own does not know Pitfall2"):
        own(game="Pitfall2", emulator="own")


def test_the_proven_games_are_games() -> None:
    from ga3c.envs.emulator.games import GAMES
    roms = {game.rom for game in atari_names().values()}
    assert {"boxing", "breakout", "pong", "qbert"} <= proven() <= {*GAMES} <= roms


def test_a_run_on_ale_pys_emulator_loads_no_compiler() -> None:
    program = ("import sys; from ga3c.envs.factory import make_environment; from ga3c.settings.files import configured;"
               "from ga3c.envs.atari import preload; s = configured(game='Pong', emulator='ale'); preload(s.env, 1);"
               "make_environment(s, 1).reset(0); print('numba' in sys.modules)")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"
