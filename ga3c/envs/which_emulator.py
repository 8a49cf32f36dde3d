"""The choice of the emulator that plays a game, by the setting `emulator`. Compiled code is not imported here."""

from __future__ import annotations

from importlib import resources

from ga3c.envs.atari_games import AtariGame, atari_game_of
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import EnvSettings


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


def emulator_notes(settings: EnvSettings) -> list[str]:
    """Returns a line for the user that names the emulator of an Atari game; no line for other games."""
    game = atari_game_of(settings)
    if game is None:
        return []
    if not is_own(settings, game):
        return [f"{game.name}: ale-py's emulator plays"]
    exact = ("proven identical to" if _proven_as_played(settings, game) else "not proven identical in this game to"
             if game.rom not in proven() else "not proven identical in this mode and difficulty to")
    return [f"{game.name}: GA3C's own emulator plays, {exact} ale-py's; use --emulator ale for ale-py's"]
