"""Code of users in an evaluation: whatever it does, it does in another process, and one line says it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ga3c.algorithms.acting import BY_POLICY, Outputs
from ga3c.envs.containment import EnvironmentFailed
from ga3c.evaluation.episodes import Limits, Played, Protocol, play_episodes
from ga3c.evaluation.players import playing
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError


def uniform(observation: NDArray) -> Outputs:
    return {"policy": np.full((len(observation), 2), 0.5, np.float32)}


def play(name: str, processes: int = 2, log: Path | None = None, **changed: object) -> Played:
    settings, protocol = configured(game=f"odd:{name}-v0", **changed), Protocol(4)
    with playing(settings, protocol, Limits(), processes, str(log) if log else None) as players:
        return play_episodes(uniform, BY_POLICY, players, protocol)


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "told"), [
    ("Exits", r"failed while it played: SystemExit: the code 'enough of this' \(odd.py, line \d+\)"),
    ("Leaves", "ended its process with exit code 7 while it played"),
    ("Raises", r"failed while it played: Odd: of two lines \(odd.py, line \d+\)"),
    ("RaisesMute", r"failed while it played: Mute: its message cannot be read: ValueError \(odd.py, line \d+\)"),
    ("NotANumber", "failed while it played: ValueError: the reward is nan in step 1")])
def test_what_a_game_does_while_it_plays_is_told(name: str, told: str) -> None:
    with pytest.raises(EnvironmentFailed, match=f"^'odd:{name}-v0' {told}$"):
        play(name)


@pytest.mark.parametrize(("name", "told"), [
    ("ExitsUnmade", r"cannot be made: SystemExit: the code 3 \(odd.py, line \d+\)"),
    ("LeavesUnmade", "ended its process with exit code 7 while it was made")])
def test_what_keeps_a_game_from_being_made_is_told(name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"^game: 'odd:{name}-v0' {told}$"):
        play(name)


@pytest.mark.parametrize(("name", "seconds", "raised", "doing"), [
    ("Blocks", 10, EnvironmentFailed, "it played"), ("BlocksUnmade", 2, ConfigError, "it was made")])
def test_a_game_that_blocks_has_a_deadline(name: str, seconds: int, raised: type[Exception], doing: str) -> None:
    told = rf"'odd:{name}-v0' did not answer for {seconds} s \(agent_timeout\) while {doing}$"
    with pytest.raises(raised, match=told):
        play(name, agent_timeout=float(seconds))


@pytest.mark.slow
def test_the_deadline_is_of_each_step_not_of_all_that_a_process_plays() -> None:
    assert play("SlowToPlay", 1, agent_timeout=3.0).scores.tolist() == [5.0] * 4, "a turn takes four seconds"


def test_what_a_game_prints_goes_to_the_log_of_the_run(
        working_directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert play("Prints", log=working_directory / "log.txt").scores.tolist() == [5.0] * 4
    written = Path("log.txt").read_text()
    assert written.count(".") == written.count("forged") == written.count("said aloud") >= 20
    assert capfd.readouterr() == ("", "")


def test_a_game_that_fails_to_close_changes_no_score_and_leaves_its_reason(working_directory: Path) -> None:
    assert play("FailsToClose", log=working_directory / "log.txt").scores.tolist() == [5.0] * 4
    assert "'odd:FailsToClose-v0' failed while it was closed: RuntimeError: the close" in Path("log.txt").read_text()
