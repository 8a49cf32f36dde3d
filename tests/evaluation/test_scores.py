"""Statistics of an evaluation that are right by hand."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.typing import NDArray
from rich.console import Console

from ga3c.envs.atari_games import atari_id
from ga3c.envs.base import EnvSpec
from ga3c.evaluation.episodes import Limits, Played, Protocol
from ga3c.evaluation.policy import Trained
from ga3c.evaluation.scores import bootstrap_interval, interquartile_mean, reference_scores, report, summarise, table
from ga3c.settings.files import configured


@pytest.mark.parametrize(("scores", "mean"), [
    ([5], 5), ([8, 1, 7, 2, 6, 3, 5, 4], 4.5), ([-1000, 1, 2, 3, 1000], 2)])
def test_the_interquartile_mean_by_hand(scores: list[float], mean: float) -> None:
    assert interquartile_mean(np.array(scores, float)) == mean


some_scores = st.lists(st.integers(-1000, 1000), min_size=1, max_size=40).map(lambda scores: np.array(scores, float))


@examples(deadline=None, max_examples=30)
@given(some_scores, st.integers(-100, 100))
def test_a_bootstrap_interval_holds_the_mean_and_moves_with_the_scores(scores: NDArray, shift: int) -> None:
    low, high = bootstrap_interval(scores, np.mean)
    assert scores.min() <= low <= scores.mean() + 1e-9 and scores.mean() - 1e-9 <= high <= scores.max()
    assert bootstrap_interval(scores + shift, np.mean) == pytest.approx((low + shift, high + shift))
    assert scores.min() <= interquartile_mean(scores) <= scores.max()


def test_a_bootstrap_interval_is_as_wide_as_the_error_says() -> None:
    scores = np.random.default_rng(0).normal(10, 3, 400)
    low, high = bootstrap_interval(scores, np.mean)
    assert high - low == pytest.approx(2 * 1.96 * scores.std() / 20, rel=0.05)
    assert (low, high) == bootstrap_interval(scores, np.mean)


def test_a_summary_by_hand() -> None:
    made = summarise(Played(np.array([4.0, 1.0, 3.0, 2.0, 10.0]), np.array([7, 9, 8, 6, 10])), "Nothing")
    assert {name: made[name] for name in ("mean", "median", "iqm", "min", "max", "length_mean")} == {
        "mean": 4.0, "median": 3.0, "iqm": 3.0, "min": 1.0, "max": 10.0, "length_mean": 8.0}
    assert made["scores"] == [4.0, 1.0, 3.0, 2.0, 10.0] and made["lengths"] == [7, 9, 8, 6, 10]
    assert "human_normalised" not in made


def test_a_score_is_normalised_by_random_play_and_the_human_tester() -> None:
    made = summarise(Played(np.array([20.0, 22.0]), np.array([1, 1])), "Pong")
    assert made["human_normalised"] == pytest.approx(41.7 / 35.3)
    assert (made["random"], made["human"]) == (-20.7, 14.6)


@pytest.mark.parametrize(("changed", "frame_skip", "sticky", "rest"), [
    ({"game": "Pong"}, 4, 0.0, {}), ({"game": "Pong-v0"}, "2 to 4", 0.25, {}),
    ({"game": "PongNoFrameskip-v4", "sticky_actions": 0.5, "mode": 1}, 1, 0.5, {"mode": 1})])
def test_a_report_says_how_the_emulator_was_played_whoever_said_so(
        changed: dict[str, Any], frame_skip: int | str, sticky: float, rest: dict[str, int]) -> None:
    settings = configured(**changed)
    spec = EnvSpec("Pong", (84, 84, 4), np.dtype(np.uint8), 6, 4)
    made = report(Trained(Path("run"), settings, {}, {}, None, []), spec, settings, Protocol(), Limits(),
                  Played(np.array([1.0]), np.array([1])))
    assert made["protocol"] == {
        **Protocol()._asdict(), "noop_max": 30, "frame_skip": frame_skip, "sticky_actions": sticky,
        "max_episode_frames": 108_000, "fire_reset": False, "full_action_space": False, **rest}
    assert ("human_normalised" in made) is (not rest), "the human tester played the game's own mode"
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(table(json.loads(json.dumps(made))))
    assert f"frame_skip {frame_skip}, sticky_actions {sticky}, max_episode_frames 108,000" in console.export_text()


def test_the_reference_table_knows_57_games_by_the_names_of_the_simulator() -> None:
    table = reference_scores()
    assert len(table) == 57
    assert all(atari_id(game) == f"ALE/{game}-v5" for game in table)
    assert all(random < human for random, human in table.values())
    assert {game: table[game] for game in ("Breakout", "Boxing", "Qbert", "SpaceInvaders", "UpNDown")} == {
        "Breakout": (1.7, 30.5), "Boxing": (0.1, 12.1), "Qbert": (163.9, 13455.0), "SpaceInvaders": (148.0, 1668.7),
        "UpNDown": (533.4, 11693.2)}
