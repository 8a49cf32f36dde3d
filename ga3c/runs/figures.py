"""Figures of runs: score, speed, workers and policy lag. Runs of several seeds become one curve.

A group is the runs that differ only in the seed. The line is their mean, and the band goes from the lowest to the
highest of them, over the part that all runs have. Longer runs continue as thin lines. Dots are evaluations during
training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.runs import policy_lag as lag
from ga3c.runs import reader as record
from ga3c.runs.reader import column, find_run, is_number
from ga3c.settings.messages import ConfigError, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
"""x (n,) ascending and y (n,), both float64 and without NaN."""

SUFFIXES = (".png", ".svg", ".pdf")
_NOT_COMPARED = {"seed", "run_dir", "steps", "frames", "minutes", "episodes", "checkpoint_minutes", "checkpoints_kept",
                 "evaluation_minutes", "evaluation_episodes", "tensorboard", "remember", "trace", "norms"}
_POINTS = 500
STYLE: Any = {
    "font.size": 8, "axes.titlesize": 8, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
    "legend.fontsize": 7, "lines.linewidth": 1.4, "axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.6,
    "svg.fonttype": "none", "pdf.fonttype": 42}  # text stays text in the files
"""Matplotlib's parameters for drawing and saving, for `matplotlib.rc_context`."""

# The colours of Okabe and Ito. People with colour-blindness can tell them apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_X = {"steps": ("agent_steps", 1e6, "million agent steps"), "frames": ("frames", 1e6, "million frames"),
      "time": ("time", 60.0, "minutes of training")}


class _Panel(NamedTuple):
    x: str
    y: str
    title: str


PANELS = {
    "score-steps": _Panel("steps", "score_mean", "Score, mean of the last 100 episodes"),
    "score-frames": _Panel("frames", "score_mean", "Score, mean of the last 100 episodes"),
    "score-time": _Panel("time", "score_mean", "Score, mean of the last 100 episodes"),
    "pps": _Panel("time", "pps", "Predictions per second (PPS)"),
    "tps": _Panel("time", "tps", "Trainings per second (TPS)"),
    "workers": _Panel("time", "agents", "Agents, predictors, trainers"),
    "lag": _Panel("time", "lag_mean", "Policy lag, mean, in updates"),
    "entropy": _Panel("steps", "entropy", "Entropy of the policy"),
    "q": _Panel("steps", "q_mean", "Highest Q-value, mean over samples"),
    "exploration": _Panel("steps", "exploration", "Share of random actions (epsilon)"),
    "replay": _Panel("steps", "replay_filled", "Share of the replay that is filled"),
    "intensity": _Panel("steps", "intensity", "Intensity: uses of a step"),
    "explained-variance": _Panel("steps", "explained_variance", "Share of the returns' variance that values explain"),
    "kl": _Panel("steps", "kl", "Divergence (KL) of the policy in an update (ppo, appo)"),
    "clip-fraction": _Panel("steps", "clip_fraction", "Share of samples that were clipped (ppo, appo)"),
    "weight-norm": _Panel("steps", "weight_norm", "Norm of the weights (--norms)"),
    "gradient-norm": _Panel("steps", "gradient_norm", "Norm of the gradient, before clipping"),
    "step-norm": _Panel("steps", "step_norm", "Norm of the optimizer's step (--norms)"),
    "lag-updates": _Panel("lag", "updates", "Policy lag, where samples aged"),
    "lag-ms": _Panel("lag", "ms", "Age of samples when trained on"),
}

_LAG_STYLES: dict[str, tuple[Any, str]] = {
    "updates": ("-", "in all"), "in_flight": ("--", "in flight"), "queued": (":", "queued"),
    "in_flight_ms": ("--", "in flight"), "queued_ms": (":", "queued")}


class Group(NamedTuple):
    """Runs to be drawn as one curve.

    Attributes:
        label: the name of the curve.
        runs: the rows of each run in which agents were at work.
        lag: the sums of the runs' histograms of policy lag, by field of `Lag`.
        evaluations: the evaluations of each run during training.
    """

    label: str
    runs: list[list[dict[str, Any]]]
    lag: dict[str, NDArray[np.int64]]
    evaluations: list[list[dict[str, Any]]]


def grouped(runs: Sequence[Path], labels: Sequence[str] | None = None) -> list[Group]:
    """Returns the runs in groups of equal settings. Raises ConfigError.

    Without `labels`, the name of a group is its game and the settings that differ between groups. A run counts once,
    even if several paths lead to it.
    """
    by_settings: dict[str, tuple[dict[str, Any], Group, list[dict[str, Any]], set[str]]] = {}
    once: dict[Path, Path] = {}
    for run in runs:
        once.setdefault(run.resolve(), run)
    for run in once.values():
        rows = [row for row in record.lasting(record.rows(find_run(run)).new()) if row["agents"]]
        if not rows:
            raise ConfigError(f"{run} has no row of training in its metrics.jsonl")
        settings = record.settings(run)
        compared = {name: value for name, value in settings.items() if name not in _NOT_COMPARED}
        key = repr(sorted(compared.items(), key=str)) if compared else str(run)
        _, group, lags, seeds = by_settings.setdefault(
            key, (compared or {"game": printable(run.name)}, Group("", [], {}, []), [], set()))
        seeds.add(repr(settings.get("seed")))  # of any type
        group.runs.append(rows)
        events = record.lasting_events(run) if (run / "events.jsonl").is_file() else []
        lags += [event for event in events if event["event"] == "lag"]
        group.evaluations.append([event for event in events if event["event"] == "evaluation"
                                  and is_number(event.get("mean"))])
    all_settings = [compared for compared, *_ in by_settings.values()]
    names = [_name(compared, all_settings) for compared in all_settings]
    if labels and len(labels) != len(names):
        raise ConfigError(f"--labels: {len(labels)} names for {len(names)} curves: {', '.join(names)}")
    return [group._replace(lag=lag.sum_histograms(lags), label=(
                plain if (n := len(group.runs)) == 1 else f"{plain} ({n} {'seeds' if len(seeds) == n else 'runs'})"))
            for plain, (_, group, lags, seeds) in zip(
                [label.replace("$", r"\$") for label in labels or names],  # matplotlib would read a formula
                by_settings.values(), strict=True)]


def _name(own: Mapping[str, Any], all_settings: Sequence[Mapping[str, Any]]) -> str:
    differing = [name for name in own if name not in ("game", "preset")
                 and any(other.get(name, own[name]) != own[name] for other in all_settings)]
    if len(differing) > 4 and own.get("preset", "default") != "default":
        differing = ["preset"]
    return " ".join([str(own.get("game", "")), *(f"{name}={own[name]}" for name in differing)])


def curve(rows: Sequence[Mapping[str, Any]], panel: _Panel, smooth: float) -> Curve:
    """Returns a run's curve for a panel; agent steps and frames are in millions, time is in minutes.

    `score_mean` and the number of agents are not smoothed. Any other value is the mean of the last `smooth` seconds.
    """
    name, unit, _ = _X[panel.x]
    x, y, time = column(rows, name) / unit, column(rows, panel.y), column(rows, "time")
    known = ~np.isnan(y)
    x, y, time = x[known], y[known], time[known]
    if panel.y in ("score_mean", "agents") or not len(y):
        return x, y
    after = np.arange(len(y)) + 1
    first = np.minimum(np.searchsorted(time, time - smooth, side="right"), after - 1)
    total = np.concatenate([[0.0], np.cumsum(y)])
    means = (total[after] - total[first]) / (after - first)
    whole = (time - time[0] >= smooth) | (time[-1] - time[0] < 2 * smooth)  # the first means are over too few seconds
    return x[whole], means[whole]


def _evaluated(group: Group, over: str) -> Curve:
    """Returns the mean of each evaluation during training, at the x of its checkpoint."""
    name, unit, _ = _X[over]
    x = [np.interp(column(events, "agent_steps"), column(rows, "agent_steps"), column(rows, name)) / unit
         for rows, events in zip(group.runs, group.evaluations, strict=True)]
    return np.concatenate(x), np.concatenate([column(events, "mean") for events in group.evaluations])


def spread(curves: Sequence[Curve]) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Returns (x, mean, lowest, highest) of several curves, each (500,), over the range that all of them have."""
    low, high = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    grid = np.linspace(low, max(low, high), _POINTS)
    values = np.stack([np.interp(grid, x, y) for x, y in curves])
    return grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0)


# ------------------------------------------------------------------------------------------------ the figure

def figure_of(groups: Sequence[Group], panels: Sequence[str], columns: int, smooth: float) -> Figure:
    """Draws a figure of the panels. Needs matplotlib, but no display."""
    import matplotlib
    with matplotlib.rc_context(STYLE):
        figure = _empty_figure(len(panels), columns, 2.7, 2.1)
        for name, axis in zip(panels, figure.axes, strict=True):
            _draw(axis, groups, name, smooth)
        if len(groups) > 1 or len(groups[0].runs) > 1:
            _add_legend(figure)
        else:
            figure.suptitle(groups[0].label, fontsize=9)
    return figure


def _empty_figure(panels: int, most_columns: int, width: float, height: float) -> Figure:
    """Returns a figure of empty panels of this size in inches, in at most so many columns."""
    from matplotlib.figure import Figure
    columns = min(most_columns, panels)
    lines = -(-panels // columns)
    figure = Figure(figsize=(width * columns + 0.3, height * lines + 0.3), layout="constrained")
    for spare in figure.subplots(lines, columns, squeeze=False).ravel()[panels:]:
        spare.remove()
    return figure


def _add_legend(figure: Figure) -> None:
    """Adds a legend of the first panel's curves below all panels, in as many columns as fit; enlarges the figure."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    width, height = figure.get_size_inches()
    for columns in range(min(3, len(labels)), 0, -1):
        legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns)
        extent = legend.get_window_extent()
        if columns == 1 or extent.width <= figure.dpi * width:
            break
        legend.remove()
    width, more = max(width, extent.width / figure.dpi + 0.2), extent.height / figure.dpi - 0.3
    figure.set_size_inches(width, height + max(0.0, more))


def figure_by_game(games: Mapping[str, Sequence[Group]], panel: str) -> Figure:
    """Draws one panel for each game, with a legend of its own."""
    import matplotlib
    with matplotlib.rc_context(STYLE):
        figure = _empty_figure(len(games), 3, 3.8, 2.8)
        for (game, groups), axis in zip(games.items(), figure.axes, strict=True):
            _draw(axis, groups, panel, 30.0)
            axis.set_title(game.replace("$", r"\$"))
            axis.set_ylabel(PANELS[panel].title)
            axis.legend()
    return figure


def _draw(axis: Axes, groups: Sequence[Group], name: str, smooth: float) -> None:
    from matplotlib.lines import Line2D
    panel = PANELS[name]
    axis.set_title(panel.title)
    axis.set_xlabel({"updates": "updates", "ms": "milliseconds"}[panel.y] if panel.x == "lag" else _X[panel.x][2])
    for number, group in enumerate(groups):
        colour = _COLOURS[number % len(_COLOURS)]
        if name == "workers":
            _draw_workers(axis, group, [colour] * 3 if len(groups) > 1 else list(_COLOURS[:3]))
            continue
        if panel.x == "lag":
            _draw_lag(axis, group, panel.y, colour)
            continue
        curves = [drawn for rows in group.runs if len((drawn := curve(rows, panel, smooth))[0])]
        if len(curves) > 1:
            x, mean, low, high = spread(curves)
            axis.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
            axis.plot(x, mean, color=colour, label=group.label)
            for own, y in curves:
                if own[-1] > x[-1]:  # a longer run
                    axis.plot(own[own >= x[-1]], y[own >= x[-1]], color=colour, linewidth=0.6)
        elif curves:
            axis.plot(*curves[0], color=colour, label=group.label)
        else:
            axis.plot([], [], color=colour, label=group.label)  # so that the legend names it
        if panel.y == "score_mean" and any(group.evaluations):
            axis.plot(*_evaluated(group, panel.x), "o", markersize=2.5, color=colour)
    if panel.x != "lag":
        axis.set_xlim(left=0)
    else:  # a legend of the styles
        styles = [both for name, both in _LAG_STYLES.items() if lag.unit(name) == panel.y]
        axis.legend([Line2D([], [], linestyle=style, color="black") for style, _ in styles],
                    [label for _, label in styles], loc="lower right")
    if panel.y not in ("score_mean", "explained_variance") and name != "workers":  # these may be below 0
        axis.set_ylim(bottom=0)


def _draw_workers(axis: Axes, group: Group, colours: Sequence[str]) -> None:
    """Draws the numbers of agents, predictors and trainers over time, as steps, on a logarithmic scale of base 2."""
    kinds = (("agents", "$N_A$", "-"), ("predictors", "$N_P$", "--"), ("trainers", "$N_T$", ":"))
    for rows in group.runs:
        for (kind, label, style), colour in zip(kinds, colours, strict=True):
            axis.step(column(rows, "time") / 60, column(rows, kind), style, where="post", color=colour, linewidth=1.2,
                      label=group.label if kind == "agents" and rows is group.runs[0] else f"_{label}")
            if rows is group.runs[-1]:
                axis.annotate(label, (rows[-1]["time"] / 60, rows[-1][kind]), xytext=(3, 0), color=colour, fontsize=7,
                              textcoords="offset points", va="bottom" if kind == "predictors" else "top")
    axis.set_yscale("log", base=2)
    axis.set_ylim(bottom=0.7)  # room for a label below 1
    axis.yaxis.set_major_formatter("{x:g}")


def _draw_lag(axis: Axes, group: Group, unit: str, colour: str) -> None:
    """Draws the share of samples at most as old as x: in flight (dashed), queued (dotted); in updates also the sum."""
    edges = lag.EDGES[unit]
    axis.plot([], [], color=colour, label=group.label)  # so that the legend names it
    for name, (style, _) in _LAG_STYLES.items():
        counts = group.lag[name]
        if lag.unit(name) != unit or not counts.any():
            continue
        x = np.array([*edges[1:], 2 * edges[-1]]) - (unit == "updates")  # the most that a bin holds; updates are whole
        axis.plot(x, counts.cumsum() / counts.sum(), style, color=colour, drawstyle="steps-post")
    axis.set_xscale("symlog" if unit == "updates" else "log", base=2)
