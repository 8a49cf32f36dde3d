"""What a person sees, and that a run goes on when nobody looks."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console
from rows import ROW, rows

from ga3c.runs import terminal
from ga3c.runs.terminal import Display, View, block_curve, plain_line

BEGUN = ROW | dict.fromkeys(("score", "score_mean", "prediction_batch", "training_batch", "lag_mean", "lag_p95",
                             "entropy"))


def screen(columns: int, row: dict[str, Any], title: str = "GA3C  Pong", messages: list[str] | None = None,
           notes: dict[str, str] | None = None) -> str:
    view = View(title, {}, None)
    view.add(row)
    return drawn(view, columns, messages, notes)


def drawn(view: View, columns: int, messages: list[str] | None = None, notes: dict[str, str] | None = None) -> str:
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(view.panel(messages or [], notes or {}, "Ctrl-C ends it"))
    text = console.export_text()
    assert max(len(line) for line in text.splitlines()) <= columns
    return text


# ------------------------------------------------------------------------------------------------ a plain line

def test_a_plain_line_has_the_fields_names_and_values() -> None:
    assert plain_line(ROW, {}) == (
        "[Time: 3:25:07] [Steps: 123,456,789 Frames: 493,827,156] [Episode: 98,765 Score: -21.0 RScore: -20.37] "
        "[PPS: 12,346 TPS: 432.1] [NT: 3 NP: 2 NA: 128] [Queue: 57 Batch: 63.9/42 Lag: 6.4/19]")


def test_the_best_evaluation_is_shown_once_there_is_one() -> None:
    evaluated = ROW | {"best_evaluation": 18.456}
    assert plain_line(evaluated, {}) == f"{plain_line(ROW, {})} [Best: 18.46]"
    assert "18.46" in screen(80, evaluated) and "Best" not in screen(80, ROW)


def test_a_run_from_memory_shows_the_age_of_samples_epsilon_and_the_replay() -> None:
    row = ROW | {"replay_filled": 0.254, "intensity": 3.996, "exploration": 0.0725, "q_mean": 0.41}
    assert plain_line(row, {}).endswith("Batch: 63.9/42 Age: 6.4/19] [Replay: 25% Uses: 4.00]")
    text = screen(80, row)
    for shown in ("Age", "Epsilon", "0.072", "Uses of a step", "4.00", "25%", "Mean Q", "0.410"):
        assert shown in text
    assert "Policy lag" not in text


# ------------------------------------------------------------------------------------------------ the panel

@pytest.mark.parametrize("columns", [80, 120])
def test_the_panel_shows_every_value_whole(columns: int) -> None:
    text = screen(columns, ROW, notes={"Tuning": "16/1/1 kept +9%"})
    for value in ("3:25:07", "123,456,789", "493,827,156", "98,765", "-21.0", "-20.37", "12,346", "432.1", "128",
                  "63.9", "41.8", "6.4", "19", "57", "1.639", "Tuning  16/1/1 kept +9%"):
        assert value in text


def test_the_panel_of_a_run_that_has_just_begun_shows_dashes() -> None:
    text = screen(80, BEGUN)
    assert "None" not in text
    for name in ("Score", "RScore", "Prediction batch", "Training batch", "Entropy"):
        assert re.search(rf"\b{name} +- ", text), name


def test_the_panel_shows_the_last_four_messages_one_line_each() -> None:
    text = screen(80, ROW, messages=[f"message {number} " + "x" * 100 for number in range(6)])
    assert [f"message {number}" in text for number in range(6)] == [False, False, True, True, True, True]
    assert len(text.splitlines()) - len(screen(80, ROW).splitlines()) == 4


def viewed(given: list[dict[str, Any]], cores: int | None = None, **limits: Any) -> View:
    view = View("GA3C  Pong", limits, cores)
    for row in given:
        view.add(row)
    return view


def test_blocks_rise_with_the_values() -> None:
    assert block_curve([0, 1, 2, 3, 4, 5, 6, 7], 8, 1) == ["▁▂▃▄▅▆▇█"]
    assert block_curve([-5.0, 10.0], 9, 2) == [" █", "▁█"]
    assert block_curve([1, 3, 7, 5, 0, 0], 3, 1) == ["▃█▁"], "means of two each: 2, 6, 0"
    assert block_curve([4.0, 4.0], 9, 1) == ["▁▁"]


def test_the_curve_is_of_the_mean_score_over_the_whole_run_however_long() -> None:
    scores: list[float | None] = [None] * 10 + [float(t) for t in range(5000)]
    lines = drawn(viewed(rows(5010, score_mean=scores)), 80).splitlines()[1:4]
    top, _, bottom = (line.strip("│ ") for line in lines)
    assert top.split(" ")[0] == "4,999.0"
    assert bottom.split(" ")[0] == "0.0"
    assert bottom.endswith("█" * 37) and top.endswith("█")
    assert bottom.split(" ")[1][0] == "▁"


def test_pps_at_most_is_that_of_cores_that_do_nothing_else() -> None:
    busy = rows(20, pps=[9999.0] * 10 + [1000.0] * 10, cpu_agents=0.9, cpu_server=0.6)
    assert viewed(busy, cores=2).pps_limit() == pytest.approx(1000 * 2 / 1.5), "of the last ten seconds"
    assert "1,333" in drawn(viewed(busy, cores=2), 80)
    assert viewed(busy).pps_limit() is None
    assert viewed(rows(3), cores=2).pps_limit() is None


@pytest.mark.parametrize(("limits", "told"), [
    ({"steps": 400_000}, ("--steps 400,000", 0.5, 100.0)),
    ({"minutes": 2.5}, ("--minutes 2.5", 2 / 3, 50.0)),
    ({"steps": 400_000, "minutes": 2.5}, ("--minutes 2.5", 2 / 3, 50.0)),
    ({"steps": None, "game": "Pong"}, None),
])
def test_time_left_is_by_the_speed_of_the_last_minute(limits: dict[str, Any], told: tuple[str, float, float]) -> None:
    # Half as fast before the last minute, which must not count.
    given = rows(40, agent_steps=[1000 * t for t in range(40)], frames=[4000 * t for t in range(40)])
    given += [row | {"time": 40.0 + t, "agent_steps": 80_000 + 2000 * t, "frames": 320_000 + 8000 * t}
              for t, row in enumerate(rows(61), 0)]
    assert viewed(given, **limits).remaining() == (
        told if told is None else (told[0], pytest.approx(told[1]), pytest.approx(told[2])))


def test_the_last_row_of_a_run_keeps_its_speed_and_workers_on_the_panel() -> None:
    end = ROW | {"time": 4.0, "agent_steps": 8001, "agents": 0, "predictors": 0, "trainers": 0, "pps": 7.0}
    text = drawn(viewed([*rows(3), end]), 80)
    assert "8,001" in text and "12,346" in text and re.search(r"N_A +128 ", text)


# ------------------------------------------------------------------------------------------------ the display

def test_without_a_terminal_rows_and_messages_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("GA3C  Pong", {}, None)
    display.message("it begins")
    display.show(ROW, {})
    display.message("it ends")
    display.close()
    assert capsys.readouterr().out == f"it begins\n{plain_line(ROW, {})}\nit ends\n"


def test_on_a_terminal_the_panel_stays_and_later_messages_are_lines(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    display = Display("GA3C  Pong", {}, None)
    display.show(ROW, {})
    display.message("an agent died")
    display.show(ROW | {"score": 17.0}, {})
    display.message("evaluation: 18.5")
    display.message("a trace is written")
    display.leave_panel()
    display.message("it ends")
    display.close()
    panels, _, last = capsys.readouterr().out.rpartition("╯")
    assert panels.index("-21.0") < panels.index("an agent died")
    assert all("│" in line for line in panels.splitlines() if "an agent died" in line)
    assert "17.0" in panels
    assert last.endswith("evaluation: 18.5\na trace is written\nit ends\n"), "no row came after the first two"
    assert last.count("\n") == 4 and "an agent died" not in last


LOOKED_AT = f"""
import sys
from ga3c.runs.terminal import Display
display = Display("GA3C  Pong", {{}}, None)
for _ in range(3):
    display.show({ROW!r}, {{}})
display.message("it ends")
display.close()
print("the run went on", file=sys.stderr)
"""


# As a shell has it: buffered, so that the interpreter has something to flush when it ends.
PLAIN = {name: value for name, value in os.environ.items()
         if name not in ("TTY_COMPATIBLE", "FORCE_COLOR", "PYTHONUNBUFFERED")}


@pytest.mark.parametrize("terminal", [{}, {"TTY_COMPATIBLE": "1", "TERM": "xterm"}])
def test_a_run_goes_on_when_its_output_is_closed(terminal: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([sys.executable, "-c", LOOKED_AT], stdout=writer, stderr=subprocess.PIPE, text=True,
                              env=PLAIN | terminal, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "the run went on\n")


# As of another user, with sudo or in a container: it can be written, but not be opened.
NOT_TO_BE_OPENED = """import os
right = os.open
def refused(path, *more, **given):
    if str(path).startswith("/proc/self/fd/"):
        raise PermissionError(13, "Permission denied", path)
    return right(path, *more, **given)
os.open = refused
"""


@pytest.mark.parametrize("kind", ["pipe", "pipe of others", pytest.param("terminal", marks=pytest.mark.slow)])
def test_a_run_goes_on_when_nobody_reads_its_output(kind: str) -> None:
    reader, writer = os.openpty() if kind == "terminal" else os.pipe()
    many = (NOT_TO_BE_OPENED if "others" in kind else "") + LOOKED_AT.replace("range(3)", "range(1000)")
    try:
        done = subprocess.run([sys.executable, "-c", many], stdout=writer, stderr=subprocess.PIPE, text=True,
                              env=PLAIN | {"TERM": "xterm"}, check=False, timeout=60)
        assert os.get_blocking(writer), "others who write to it are not to be surprised"
    finally:
        os.close(writer)
        shown = os.read(reader, 65_536)
        os.close(reader)
    assert (done.returncode, done.stderr) == (0, "the run went on\n")
    assert b"12,346" in shown and (b"\xe2\x95\xad" in shown) == (kind == "terminal"), "as much as there was room for"


def test_a_panel_that_cannot_be_drawn_does_not_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []

    def fail(*arguments: object) -> None:
        drawn.append(1)
        raise ValueError("cannot convert float NaN to integer")

    monkeypatch.setattr(terminal, "can_show_panel", lambda console: True)
    monkeypatch.setattr(terminal.View, "panel", fail)
    display = terminal.Display("Pong", {}, 2)
    display.show(ROW, {})
    display.show(ROW, {})
    display.close()
    assert drawn == [1], "and is not tried again"
