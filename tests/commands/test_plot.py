"""Figures of runs: the lines show what the runs recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ga3c.commands.plot import plot
from ga3c.runs.figures import PANELS, Group, curve, figure_by_game, figure_of, grouped
from ga3c.runs.policy_lag import Lag, histograms
from ga3c.settings.files import configured, to_yaml
from ga3c.settings.messages import ConfigError


def written(path: Path, offset: float = 0.0, seconds: int = 120, **settings: Any) -> Path:
    """A run whose score rises by 0.1 a second from `offset` after 20 seconds, with a trial at its 60th second."""
    path.mkdir(parents=True)
    if settings:
        (path / "config.yaml").write_text(to_yaml(configured(**settings)))
    rows = [{"time": float(t), "agent_steps": 1000 * t, "frames": 4000 * t, "pps": 1000.0 + offset, "tps": float(t % 2),
             "episodes": t, "agents": 8 if t < 60 else 16, "predictors": 1, "trainers": 2,
             "lag_mean": None if t < 5 else 2.0,
             "score_mean": None if t < 20 else offset + 0.1 * t} for t in range(1, seconds + 1)]
    end = {**rows[-1], "agents": 0, "predictors": 0, "trainers": 0, "pps": 0.0}
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, end]) + '{"torn')
    return path


def lines(groups: list[Group], panel: str) -> list[tuple[np.ndarray, np.ndarray]]:
    axis, = figure_of(groups, [panel], 3, 10.0).axes
    return [(np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)) for line in axis.lines]


@pytest.mark.parametrize(("panel", "last"), [("score-steps", 0.12), ("score-frames", 0.48), ("score-time", 2.0)])
def test_the_score_is_drawn_from_its_first_episode_on(tmp_path: Path, panel: str, last: float) -> None:
    (x, y), = lines(grouped([written(tmp_path / "run", game="Pong")]), panel)
    assert len(x) == 101 and x[-1] == pytest.approx(last) and x[0] == pytest.approx(last / 6)
    assert (y[0], y[-1]) == pytest.approx((2.0, 12.0))


def test_a_run_that_is_named_several_times_is_one(tmp_path: Path) -> None:
    run, other = written(tmp_path / "run", game="Pong"), written(tmp_path / "other", game="Pong", seed=1)
    (tmp_path / "link").symlink_to("run")
    groups = grouped([run, other, tmp_path / "other/../run", tmp_path / "link"])
    assert [group.label for group in groups] == ["Pong (2 seeds)"]
    third = written(tmp_path / "third", 100.0, game="Pong", gamma=0.5)
    first, second = grouped([run, third, tmp_path / "link"], ["one", "third"])
    assert first.runs[0][-1]["score_mean"] < 100.0 < second.runs[0][-1]["score_mean"]


def test_seeds_are_one_curve_with_a_band(tmp_path: Path) -> None:
    runs = [written(tmp_path / f"{seed}", 10.0 * seed, seconds, game="Pong", seed=seed)
            for seed, seconds in ((0, 120), (1, 100), (2, 120))]
    groups = grouped(runs)
    assert [group.label for group in groups] == ["Pong (3 seeds)"]
    axis, = figure_of(groups, ["score-time"], 3, 10.0).axes
    (x, y), *tails = [[np.asarray(data, float) for data in line.get_data()] for line in axis.lines]
    assert (x[0], x[-1]) == pytest.approx((20 / 60, 100 / 60)), "where all three are known"
    assert y == pytest.approx(10.0 + 6.0 * x)
    assert [(each[0][-1], each[1][-1]) for each in tails] == [
        pytest.approx((2.0, 12.0)), pytest.approx((2.0, 32.0))], "as far as each goes"
    band, = axis.collections
    corners = band.get_paths()[0].vertices
    assert corners[:, 1].min() == pytest.approx(2.0) and corners[:, 1].max() == pytest.approx(20 + 10.0)


def test_runs_of_one_seed_are_not_called_seeds(tmp_path: Path) -> None:
    runs = [written(tmp_path / f"{number}", game="Pong") for number in range(2)]
    runs.append(written(tmp_path / "from-one", game="Pong", start="1/1/1"))
    assert [group.label for group in grouped(runs)] == ["Pong start=None (2 runs)", "Pong start=1/1/1"]


def test_groups_are_named_by_game_and_what_differs(tmp_path: Path) -> None:
    one = written(tmp_path / "one", game="Pong", learning_rate=1e-3, minutes=3.0, run_dir="here", entropy_coef=0.3)
    two = written(tmp_path / "two", game="Pong", learning_rate=1e-3, seed=7, entropy_coef=0.3)
    three = written(tmp_path / "three", game="Pong", learning_rate=5e-4, entropy_coef=0.4)
    labels = [group.label for group in grouped([one, three, two])]
    assert labels == ["Pong learning_rate=0.001 entropy_coef=0.3 (2 seeds)",
                      "Pong learning_rate=0.0005 entropy_coef=0.4"]
    assert [group.label for group in grouped([one, three], ["fast", "slow"])] == ["fast", "slow"]
    with pytest.raises(ConfigError, match="1 names for 2 curves"):
        grouped([one, three], ["fast"])
    paper = written(tmp_path / "paper", game="Pong", preset="paper", rollout_length=5, correction="none", agents=32,
                    optimizer="rmsprop", gae_lambda=1.0)
    assert grouped([one, paper])[1].label == "Pong preset=paper"


def test_rates_are_means_over_the_seconds_asked_for(tmp_path: Path) -> None:
    rows = grouped([written(tmp_path / "run")])[0].runs[0]
    x, tps = curve(rows, PANELS["tps"], 10.0)
    assert x[0] == pytest.approx(11 / 60) and tps == pytest.approx(0.5), "as many odd seconds as even ones"
    assert curve(rows, PANELS["tps"], 0.0)[1][:4].tolist() == [1.0, 0.0, 1.0, 0.0]
    x, lag = curve(rows, PANELS["lag"], 1.0)
    assert x[0] == pytest.approx(6 / 60) and (lag == 2.0).all(), "from its first measurement"


def test_lag_is_drawn_as_a_cumulative_share(tmp_path: Path) -> None:
    run = written(tmp_path / "run", game="Pong")
    updates, ms = np.array([0, 2, 2, 9]), np.array([3.0, 30.0, 30.0, 300.0])
    event = {"time": 60.0, "event": "lag"} | {
        name: counts.tolist() for name, counts in histograms(Lag(updates, updates // 2, updates, ms, 2 * ms)).items()}
    went_back_behind, after = event | {"time": 61.0}, event | {"time": 60.5}
    (run / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (
        event, {**went_back_behind, "updates": [999, *event["updates"][1:]]}, after)))
    _, total, flight, queue = lines(grouped([run]), "lag-updates")  # the first names the curves
    old, young = [0.25, 0.75, 0.75, 1], [0.75, 0.75, 1, 1]
    for (x, y), shares in ((total, old), (flight, young), (queue, old)):
        assert [y[list(x).index(lag)] for lag in (1, 2, 8, 9)] == shares
    _, flight_ms, queue_ms = lines(grouped([run]), "lag-ms")
    assert [flight_ms[1][list(flight_ms[0]).index(edge)] for edge in (2, 4, 32, 256, 512)] == [0, 0.25, 0.75, 0.75, 1]
    assert [queue_ms[1][list(queue_ms[0]).index(edge)] for edge in (4, 8, 64, 512, 1024)] == [0, 0.25, 0.75, 0.75, 1]
    old = written(tmp_path / "old", game="Pong")  # of a version that did not measure it
    assert len(lines(grouped([old]), "lag-ms")) == 1


def test_evaluations_are_dots_where_their_checkpoints_were(tmp_path: Path) -> None:
    runs = [written(tmp_path / f"{seed}", game="Pong", seed=seed) for seed in (0, 1)]
    evaluation = {"time": 70.0, "event": "evaluation", "agent_steps": 60_000, "mean": 7.5, "best": True}
    by_hand = {name: value for name, value in evaluation.items() if name != "best"} | {"mean": 99.0, "time": 1.0}
    undone = evaluation | {"time": 90.0, "agent_steps": 75_000, "mean": 50.0}
    later = evaluation | {"time": 95.0, "agent_steps": 90_000}
    (runs[0] / "events.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (
        evaluation, undone, {"time": 65.0, "event": "start", "resumed_at": 60_000}, later,
        evaluation | {"mean": None, "time": 96.0}, by_hand)))
    for panel, unit in (("score-time", 1 / 60), ("score-steps", 1e-3), ("score-frames", 4e-3)):
        _, (x, y) = lines(grouped(runs), panel)
        assert x == pytest.approx([60 * unit, 90 * unit]) and y.tolist() == [7.5, 7.5]
    assert len(lines(grouped(runs), "tps")) == 1 and len(lines(grouped(runs[1:]), "score-time")) == 1


def test_games_are_drawn_beside_each_other(tmp_path: Path) -> None:
    runs = {game: [grouped([written(tmp_path / f"{game}{name}", seconds=seconds, game=game)], [name])[0]
                   for name, seconds in (("one", 120), ("two", 60))] for game in ("Pong", "Boxing")}
    figure = figure_by_game({"Pong": runs["Pong"], "my:$x_$": runs["Boxing"]}, "score-time")
    assert [axis.get_title().replace("\\", "") for axis in figure.axes] == ["Pong", "my:$x_$"]
    figure.savefig(tmp_path / "by-game.png")
    assert {axis.get_ylabel() for axis in figure.axes} == {"Score, mean of the last 100 episodes"}
    legend = figure.axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two"]


def test_it_writes_pictures_that_a_paper_takes(tmp_path: Path) -> None:
    files = [tmp_path / f"figure{suffix}" for suffix in (".png", ".svg", ".pdf")]
    runs = [written(tmp_path / name, game="Boxing", gamma=gamma) for name, gamma in (("a", 0.9), ("b", 0.99))]
    names = r"$\alpha_$", "5 $"  # which are no formulas
    assert plot([*map(str, runs), "--labels", *names, "-o", *map(str, files)]) == 0
    png, svg, pdf = (file.read_bytes() for file in files)
    assert png.startswith(b"\x89PNG") and pdf.startswith(b"%PDF")
    assert b"<text" in svg, "text stays text"
    assert all(text.encode() in svg for text in ("Trainings per second", *names))


@pytest.mark.parametrize(("arguments", "says"), [
    (["nowhere"], "nowhere is no run"),
    (["run", "-o", "figure.jpg"], "figure.jpg is none of .png, .svg, .pdf"),
    (["empty"], "empty has no row of training")])
def test_a_mistake_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                               arguments: list[str], says: str) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "metrics.jsonl").touch()
    assert plot(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("ga3c-plot: ") and told.count("\n") == 1 and says in told
