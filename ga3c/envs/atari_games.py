"""Atari games: their names, the frame skip and sticky actions of each, and the emulator that plays them.

An id of ale-py or Gym has its own frame skip and sticky actions.

    ALE/Pong-v5: a frame skip of 4, sticky actions 0.25.
    Pong-v0, Pong-v4: a frame skip drawn from 2, 3, 4; sticky actions 0.25, 0.
    PongNoFrameskip-v0, -v4: a frame skip of 1; sticky actions 0.25, 0.
    PongDeterministic-v0, -v4: a frame skip of 4, in Space Invaders 3; sticky actions 0.25, 0.

A plain name, such as Pong or "Ms. Pacman", has a frame skip of 4 and no sticky actions. Settings override both.
The setting `emulator` chooses the emulator (`is_own`). This module imports no compiled code.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

import ale_py
import gymnasium
from ale_py import roms

from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import EnvSettings

gymnasium.register_envs(ale_py)

_FRAME_SKIP = (4, 4)   # of a plain name
_STICKY_ACTIONS = 0.0  # of a plain name
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9 _.'-]*[A-Za-z0-9.])?")
_RAM = re.compile(r"(ALE/)?([A-Za-z0-9]+)-ram(NoFrameskip|Deterministic)?-v[0-9]+")


class AtariGame(NamedTuple):
    """An Atari game and how it is played.

    name: without version, as in "Pong". identifier: ale-py's newest id of the game. rom: ale-py's name of its ROM.
    frame_skip: the least and the most frames of an agent step. The number is drawn uniformly for each step.
    sticky_actions: the probability that the emulator repeats the last action.
    """

    name: str
    identifier: str
    rom: str
    frame_skip: tuple[int, int]
    sticky_actions: float

    @property
    def frames_per_step(self) -> int:
        """The frames of an agent step, or their mean if the frame skip is drawn."""
        return sum(self.frame_skip) // 2

    @property
    def frame_skip_shown(self) -> int | str:
        """The frame skip for display: 4, or "2 to 4"."""
        least, most = self.frame_skip
        return least if least == most else f"{least} to {most}"


def atari_game_of(settings: EnvSettings) -> AtariGame | None:
    """Returns the Atari game of the settings, or None if it is not an Atari game.

    The settings `frame_skip` and `sticky_actions`, where given, override those of the game's name.
    Raises ConfigError as `find_atari_game`.
    """
    game = find_atari_game(settings.game)
    if game is None:
        return None
    if settings.frame_skip is not None:
        game = game._replace(frame_skip=(settings.frame_skip, settings.frame_skip))
    if settings.sticky_actions is not None:
        game = game._replace(sticky_actions=settings.sticky_actions)
    return game


def find_atari_game(game: str) -> AtariGame | None:
    """Returns the Atari game of a plain name or of an id, or None if there is none.

    Raises ConfigError for an id whose observations are the console's memory.
    """
    game = game.removeprefix("ale_py:")  # the module that Gymnasium is to import for the id
    spec = gymnasium.registry.get(game)
    if spec is not None and not str(spec.entry_point).startswith("ale_py"):
        return None  # a game that a user registered
    known = atari_names()
    ram = _RAM.fullmatch(game)
    if ram and ram[2] in known:
        raise ConfigError(f"game: {game!r} shows the console's memory, but Atari games are learned from the screen "
                          f"here; use {ram[2]} or {known[ram[2]].identifier}")
    return known.get(game) or (_plain_names().get(plain_name(game)) if _NAME.fullmatch(game) else None)


def atari_id(game: str) -> str | None:
    """Returns the newest id of the game that `find_atari_game` finds, as in "ALE/Pong-v5", else None."""
    atari = find_atari_game(game)
    return atari.identifier if atari else None


@functools.cache
def atari_names() -> Mapping[str, AtariGame]:
    """Returns all Atari games by their names, as in "Pong", and by all their ids."""
    known = {}
    for newest in [id_ for id_ in gymnasium.registry if id_.startswith("ALE/") and id_.endswith("-v5")]:
        name = newest.removeprefix("ALE/").removesuffix("-v5")
        rom = str(gymnasium.spec(newest).kwargs["game"])
        plain = AtariGame(name, newest, rom, _FRAME_SKIP, _STICKY_ACTIONS)
        known[name] = plain
        for id_ in (newest, *(f"{name}{kind}" for kind in ("-v0", "-v4", "NoFrameskip-v0", "NoFrameskip-v4"))):
            if id_ in gymnasium.registry:
                options = gymnasium.spec(id_).kwargs
                known[id_] = plain._replace(frame_skip=_least_and_most(options["frameskip"]),
                                            sticky_actions=options["repeat_action_probability"])
        for version in ("v0", "v4"):
            if f"{name}NoFrameskip-{version}" in known:  # Gym also had these ids
                fixed = 3 if rom == "space_invaders" else 4
                known[f"{name}Deterministic-{version}"] = known[f"{name}NoFrameskip-{version}"]._replace(
                    frame_skip=(fixed, fixed))
    return known


def _least_and_most(frameskip: int | tuple[int, int]) -> tuple[int, int]:
    """Returns the least and the most frames of Gymnasium's `frameskip`, whose second number is exclusive."""
    return (frameskip, frameskip) if isinstance(frameskip, int) else (frameskip[0], frameskip[1] - 1)


@functools.cache
def _plain_names() -> Mapping[str, AtariGame]:
    return {plain_name(name): game for name, game in atari_names().items() if name == game.name}


def plain_name(name: str) -> str:
    """Returns a name in lower case, without spaces, hyphens, underscores, full stops and apostrophes.

    People write these differently.
    """
    return re.sub(r"[ _.'-]", "", name).lower()


def atari_roms() -> tuple[int, int]:
    """Returns (number of Atari games that can be played here, number of Atari games that ale-py knows)."""
    known = roms.get_all_rom_ids()
    return sum(roms.get_rom_path(rom) is not None for rom in known), len(known)


# ------------------------------------------------------------------------------------------------ the emulator

def proven() -> frozenset[str]:
    """Returns the ROMs that `tools/release/emulator_check.py` found exact, one in each line of proven.txt."""
    lines = resources.files("ga3c.envs.emulator").joinpath("proven.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line.partition("#")[0].strip() for line in lines) - {""}


def is_own(settings: EnvSettings, game: AtariGame) -> bool:
    """Returns whether our own emulator plays the game. Raises ConfigError if `own` is set for an unknown game.

    `auto` chooses it for games that are proven exact, in their default mode and difficulty.
    """
    if settings.emulator == "auto":
        return _proven_as_played(settings, game)
    if settings.emulator == "own":
        from ga3c.envs.emulator.games import GAMES
        if game.rom not in GAMES:
            raise ConfigError(f"emulator: own does not know {game.name}; ale-py's plays it (auto)")
    return settings.emulator == "own"


def _proven_as_played(settings: EnvSettings, game: AtariGame) -> bool:
    return settings.mode is None and settings.difficulty is None and game.rom in proven()


def notes_at_start(settings: EnvSettings) -> list[str]:
    """Returns lines for the user about an Atari game: if its id skips no frames, and which emulator plays.

    An id without frame skip makes each frame an agent step, four times as many steps as usual.
    """
    game = atari_game_of(settings)
    if game is None:
        return []
    notes = []
    if settings.frame_skip is None and game.frames_per_step == 1:
        notes.append(f"{settings.game}: an agent step is one frame, as this id says; --frame-skip 4 is usual")
    if not is_own(settings, game):
        return [*notes, f"{game.name}: ale-py's emulator plays"]
    exact = ("proven identical to" if _proven_as_played(settings, game) else "not proven identical in this game to"
             if game.rom not in proven() else "not proven identical in this mode and difficulty to")
    return [*notes, f"{game.name}: GA3C's own emulator plays, {exact} ale-py's; use --emulator ale for ale-py's"]
