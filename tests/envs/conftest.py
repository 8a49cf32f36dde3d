"""Environments that are closed, games that are forgotten, and a directory of a user's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium
import pytest
from scripted import Make, Scripted

from ga3c.envs.base import Environment
from ga3c.envs.factory import make_environment
from ga3c.settings.files import configured


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Environment] = []

    def make(game: str, n_envs: int = 1, **changed: object) -> Environment:
        made.append(make_environment(configured(**{"game": game, "emulator": "ale", **changed}), n_envs))
        return made[-1]

    yield make
    for environment in made:
        environment.close()


@pytest.fixture
def register() -> Iterator[Callable[..., str]]:
    """Registers a `Scripted` environment of these arguments; returns its name."""
    before = set(gymnasium.registry)

    def register(**arguments: object) -> str:
        gymnasium.register("Scripted-v0", Scripted, kwargs=arguments, disable_env_checker=True)
        return "Scripted-v0"

    yield register
    for name in set(gymnasium.registry) - before:
        del gymnasium.registry[name]


@pytest.fixture
def user_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory of a user. What is imported from there is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    registered, modules = set(gymnasium.registry), set(sys.modules)
    yield tmp_path
    for name in set(gymnasium.registry) - registered:
        del gymnasium.registry[name]
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
