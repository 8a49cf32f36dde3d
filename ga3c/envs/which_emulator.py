"""Which emulator plays a game: the setting `emulator`. What is compiled is not imported here."""

from __future__ import annotations

from importlib import resources

from ga3c.envs.atari_games import AtariGame, played
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import EnvSettings


def proven() -> frozenset[str]:
    """ROMs that `tools/release/emulator_check.py` found exact, one in each line of proven.txt."""
    lines = resources.files("ga3c.envs.emulator").joinpath("proven.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line.partition("#")[0].strip() for line in lines) - {""}


def is_own(settings: EnvSettings, game: AtariGame) -> bool:
    """Whether our own emulator plays the game. Raises ConfigError if it is wanted and does not know the game.

    `auto` takes it for games that are proven exact, in the mode and difficulty that they were proven in.
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


def emulator_notes(settings: EnvSettings) -> list[str]:
    """A line for people if the game is one of Atari's: which emulator plays it."""
    game = played(settings)
    if game is None:
        return []
    if not is_own(settings, game):
        return [f"{game.name}: ale-py's emulator plays"]
    exact = ("exact" if _proven_as_played(settings, game) else "not proven exact in this game"
             if game.rom not in proven() else "not proven exact in this mode and difficulty")
    return [f"{game.name}: GA3C's own emulator plays, {exact} next to ale-py's; --emulator ale takes ale-py's"]
