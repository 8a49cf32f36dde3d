"""Watching agents play: the screen is that of the game the policy plays, and recordings hold what was shown."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from trained import make_trained

from ga3c.algorithms.acting import BY_POLICY
from ga3c.commands.play import Window, play
from ga3c.envs.watched import Watched
from ga3c.evaluation.episodes import Limits, Protocol, play_episodes
from ga3c.evaluation.moments import Moment, Painter, moments
from ga3c.evaluation.players import playing
from ga3c.settings.files import configured
from ga3c.settings.schema import Settings

PLAY = [sys.executable, "-c", "from ga3c.commands.launch import play; play()"]


def uniform(actions: int):
    """A policy of no opinion."""
    return lambda observation: {"policy": np.full((len(observation), actions), 1 / actions, np.float32)}


# ------------------------------------------------------------------------------------------------ the play

def test_the_episodes_are_those_that_ga3c_eval_plays() -> None:
    settings, protocol = configured(game="toy:catch"), Protocol(40, 7, False, 1)
    watched = Watched(settings)
    played = list(moments(uniform(3), BY_POLICY, watched, 7, 40, greedy=False))
    with playing(settings, protocol, Limits()) as players:
        expected = play_episodes(uniform(3), BY_POLICY, players, protocol)
    assert [moment.score for moment in played if moment.ended] == expected.scores.tolist()
    assert {moment.length for moment in played if moment.ended} == {9} and len(played) == 40 * 9
    assert len(set(expected.scores)) == 2
    watched.close()


def test_the_global_streams_are_those_of_an_evaluation() -> None:
    settings, protocol = configured(game="odd:Draws-v0"), Protocol(5, 7, False, 1)
    watched = Watched(settings)
    np.random.seed(3)
    played = list(moments(uniform(2), BY_POLICY, watched, 7, 5, greedy=False))
    assert np.random.random() == np.random.RandomState(3).random()
    watched.close()
    with playing(settings, protocol, Limits()) as players:
        expected = play_episodes(uniform(2), BY_POLICY, players, protocol)
    assert [moment.score for moment in played if moment.ended] == expected.scores.tolist()
    assert len(set(expected.scores)) == 5


# ------------------------------------------------------------------------------------------------ the picture

FRAME = np.zeros((20, 11, 3), np.uint8)
ORANGE = (230, 159, 0)


def moment(policy: list[float], action: int = 0) -> Moment:
    outputs = {"policy": np.array(policy, np.float32), "value": np.float32(0.5)}
    return Moment([FRAME, FRAME + 200], outputs, action, 0, 1.0, 3, 2, False)


def test_a_picture_is_the_frame_enlarged_with_even_sides() -> None:
    first, second = Painter(3, None).paint(moment([1.0]))
    assert first.shape == second.shape == (60, 34, 3)
    assert (first == 0).all() and (second[:60, :33] == 200).all()
    assert Painter(None, None).paint(moment([1.0]))[0].shape[0] == 400


def test_the_policy_is_drawn_to_scale_beside_the_frame() -> None:
    def width(share: float, action: int) -> int:
        picture = Painter(1, ["noop", "fire"]).paint(moment([share, 1 - share], action))[1]
        assert (picture[:20, :11] == 200).all() and picture.shape[0] % 2 == picture.shape[1] % 2 == 0
        return int((picture == ORANGE).all(axis=2).sum(axis=1).max())

    assert width(1.0, 0) == 75 and width(0.5, 0) == 38 and width(0.25, 1) == 57


# ------------------------------------------------------------------------------------------------ the window

@pytest.fixture
def no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pygame")
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def test_q_closes_the_window(no_screen: None) -> None:
    import pygame
    window, frame = Window("Pong", 1000.0), np.zeros((32, 64, 3), np.uint8)
    frame[:, :2] = 255
    assert window.show(frame)
    assert pygame.surfarray.array3d(pygame.display.get_surface())[:2].min() == 255
    pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_q))
    assert not window.show(frame)
    window.close()


def test_a_person_plays_by_the_keyboard(
        no_screen: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import pygame
    from gymnasium.envs.classic_control.cartpole import CartPoleEnv
    resets, right = [], CartPoleEnv.reset

    def reset(self: CartPoleEnv, **options: object) -> object:
        resets.append(1)
        if len(resets) == 4:  # the player begins with two, and without a key the pole has fallen twice since
            pygame.event.post(pygame.event.Event(pygame.QUIT))
        return right(self, **options)

    monkeypatch.setattr(CartPoleEnv, "reset", reset)
    assert play(["--game", "CartPole-v1", "--human"]) == 0
    said = capsys.readouterr().out
    assert "Keys: left and right" in said and "Episode 1: score " in said and "Episode 2: score " in said


@pytest.fixture
def screen() -> Iterator[str]:
    """A real X display, which nobody sees."""
    if shutil.which("Xvfb") is None:
        pytest.skip("needs Xvfb")
    read, write = os.pipe()
    with subprocess.Popen(["Xvfb", "-displayfd", str(write), "-screen", "0", "1000x800x24"], pass_fds=[write],
                          stderr=subprocess.DEVNULL) as server:
        os.close(write)
        with open(read, encoding="ascii") as told:
            yield f":{told.readline().strip()}"
        server.terminate()


@pytest.mark.usefixtures("compiled_emulator")
def test_a_window_opens_beside_tensorflow(screen: str) -> None:
    pytest.importorskip("pygame")
    done = subprocess.run([*PLAY, "--game", "Boxing", "--pretrained", "--seconds", "1"], capture_output=True, text=True,
                          timeout=100, check=False, env={**os.environ, "DISPLAY": screen})
    assert (done.returncode, done.stderr) == (0, "")
    assert "Stopped by --seconds" in done.stdout


# ------------------------------------------------------------------------------------------------ the command

def test_a_run_is_recorded_from_the_command_line(tmp_path: Path) -> None:
    make_trained(tmp_path / "run", configured(game="toy:catch"))
    done = subprocess.run([*PLAY, "run", "--record", "catch.gif", "--episodes", "3", "--overlay", "--zoom", "2"],
                          cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
                          env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["Episode 1", "Episode 2", "Episode 3", "recorded"]
    with Image.open(tmp_path / "catch.gif") as file:
        assert file.size == (160 + 190, 320) and 20 < file.n_frames <= 30


def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> int:
    """The exit code of `ga3c-play --record film.gif` with a new policy of that odd game."""
    monkeypatch.setattr("ga3c.learner.backend.start", lambda settings: None)
    monkeypatch.chdir(tmp_path)
    make_trained(tmp_path / "run", configured(game="odd:Plain-v0"), says=configured(game=f"odd:{name}-v0"),
                 game=f"odd:{name}-v0")
    return play(["run", "--record", "film.gif", "--zoom", "1", "--episodes", "2", *arguments])


def test_an_interrupted_film_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[object, ...]] = []

    def one(predict: object, acting: object, watched: object, *how: object) -> Iterator[Moment]:
        asked.append(how)
        yield moment([1.0])
        raise KeyboardInterrupt

    monkeypatch.setattr("ga3c.commands.play.moments", one)
    assert recorded(tmp_path, monkeypatch, "Plain", "--seed", "7", "--greedy") == 130
    assert asked == [(7, 2, True)] and Path("film.gif").is_file()


@pytest.mark.parametrize(("name", "size", "brightest"), [
    ("Grows", (12, 8), 200), ("Nothing", (32, 16), 5), ("NoModes", (32, 16), 5)])
def test_whatever_a_game_renders_the_film_shows_it(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str,
        size: tuple[int, int], brightest: int) -> None:
    assert recorded(tmp_path, monkeypatch, name) == 0
    out, err = capsys.readouterr()
    assert err == "" and "Episode 2: score 5, 5 agent steps" in out and "film.gif (" in out
    with Image.open(tmp_path / "film.gif") as film:
        assert film.size == size
        shown = []
        for number in range(film.n_frames):
            film.seek(number)
            shown.append(int(np.asarray(film.convert("RGB")).max()))
    assert max(shown) == brightest


@pytest.mark.parametrize(("name", "code", "lines"), [
    ("Text", 3, [r"'odd:Text-v0' cannot be drawn: render\(\) gives a str; right is .*"]),
    ("RaisesTwice", 3, [
        r"'odd:RaisesTwice-v0' failed while it played: Odd: of two lines \(odd.py, line \d+\)",
        r"'odd:RaisesTwice-v0' failed when it was closed: RuntimeError: the close \(odd.py, line \d+\)"]),
    ("ExitsUnmade", 2, [r"game: 'odd:ExitsUnmade-v0' cannot be made: SystemExit: the code 3 .*"])])
def test_a_failing_game_is_told_and_what_was_recorded_kept(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, code: int,
        lines: list[str]) -> None:
    assert recorded(tmp_path, monkeypatch, name) == code
    out, err = capsys.readouterr()
    told = err.splitlines()
    assert len(told) == len(lines), err
    for line, expected in zip(told, lines, strict=True):
        assert re.fullmatch(f"ga3c-play: {expected}", line), line
    assert (tmp_path / "film.gif").exists() == (name == "RaisesTwice")


@pytest.mark.parametrize(("arguments", "says"), [
    ([], "name what to watch: POLICY, or --game GAME --pretrained; or play yourself"),
    (["run", "--record", "game.avi"], "game.avi is none of .gif, .webp, .mp4"),
    (["--game", "Berzerk", "--pretrained"], "no policy for Berzerk comes with this version"),
    (["--game", "Berzrk", "--pretrained"], "nearest: Berzerk"),
    (["run", "--human"], "--human takes --game GAME"),
    (["--game", "toy:catch", "--human"], "--human: toy:catch draws nothing"),
    (["--game", "Pong", "--human", "--zoom", "2", "--greedy"], "--greedy does not go with --human, which takes --game"),
    (["run", "--fps", "20"], "--fps is of --record"),
    (["run", "--record", "game.gif", "--speed", "2"], "--speed is of a window, not of --record"),
])
def test_a_mistake_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = play(arguments)
    except SystemExit as end:
        code = end.code  # type: ignore[assignment]
    told = capsys.readouterr().err
    assert (code, told.count("\n")) == (2, 1) and told.startswith("ga3c-play: ") and says in told, told


def test_games_are_opened_as_in_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    class Noted(Watched):
        def __init__(self, settings: Settings, *others: Any) -> None:
            opened.append(settings.env.noop_max)
            super().__init__(settings, *others)

    make_trained(tmp_path / "run", configured(game="toy:catch", noop_max=3))
    monkeypatch.setattr("ga3c.envs.watched.Watched", Noted)
    monkeypatch.setattr("ga3c.learner.backend.start", lambda settings: None)  # it has begun
    assert play([str(tmp_path / "run"), "--record", str(tmp_path / "film.gif")]) == 0 and opened == [30]
