"""Gymnasium's normalising wrappers are refused before a run, in one line that names the setting in their place."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest
from command_line import Command
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit, vector
from plain import Plain

from ga3c.envs.gymnasium import GymnasiumEnvironment
from ga3c.settings.messages import ConfigError


class Derived(NormalizeReward):
    """A user's own kind."""


class Holds(Plain):
    """Plays another environment within it."""

    def __init__(self, inner: object) -> None:
        super().__init__()
        self.inner, self.itself = inner, self


def in_vector(wrapper: type) -> gymnasium.Env:
    return Holds(wrapper(gymnasium.vector.SyncVectorEnv([Plain])))


@pytest.mark.parametrize(("env", "refused", "setting"), [
    (NormalizeObservation(Plain()), "NormalizeObservation", "--normalize-observations"),
    (TimeLimit(Derived(Plain()), 9), "Derived", "--normalize-rewards"),
    (Holds([Plain(), NormalizeReward(Plain())]), "NormalizeReward", "--normalize-rewards"),
    (in_vector(vector.NormalizeObservation), "NormalizeObservation", "--normalize-observations"),
    (in_vector(vector.NormalizeReward), "NormalizeReward", "--normalize-rewards"),
    (Holds(gymnasium.vector.SyncVectorEnv([lambda: NormalizeReward(Plain())])), "NormalizeReward",
     "--normalize-rewards")])
def test_a_normalizing_wrapper_is_refused_wherever_it_is(env: gymnasium.Env, refused: str, setting: str) -> None:
    with pytest.raises(ConfigError) as error:
        GymnasiumEnvironment([env], "mine")
    assert str(error.value) == f"mine: {refused} would keep statistics that no checkpoint holds; use {setting} instead"


@pytest.mark.parametrize(("arguments", "settings"), [
    (["--game", "odd:normalizes-v0"], "--normalize-rewards and --normalize-observations"),
    (["--game", "CartPole-v1", "--wrappers", "gymnasium.wrappers:NormalizeObservation"], "--normalize-observations"),
    (["--game", "CartPole-v1", "--wrappers", "gymnasium.wrappers.vector:NormalizeReward"], "--normalize-rewards")])
def test_a_run_with_one_ends_before_it_begins(
        tmp_path: Path, train_here: Command, arguments: list[str], settings: str) -> None:
    done = train_here(*arguments, "--run-dir", str(tmp_path / "run"))
    assert (done.returncode, done.stdout) == (2, "")
    line, = done.stderr.splitlines()
    assert f"use {settings} instead" in line
    assert not (tmp_path / "run").exists()
