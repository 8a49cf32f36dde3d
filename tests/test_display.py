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

from ga3c.display import Display, panel, plain_line

ROW: dict[str, Any] = {
    "time": 3 * 3600 + 25 * 60 + 7.9, "agent_steps": 123_456_789, "frames": 493_827_156, "episodes": 98_765,
    "trainings": 3_086_419, "pps": 12_345.6, "tps": 432.1, "agents": 128, "predictors": 2, "trainers": 3,
    "prediction_queue": 4, "training_queue": 57, "agent_deaths": 0, "prediction_batch": 63.9, "score": -21.0,
    "score_mean": -20.37, "training_batch": 41.8, "lag_mean": 6.4, "lag_p95": 19.0, "policy_loss": 0.1,
    "value_loss": 0.2, "entropy": 1.639, "learning_rate": 3e-4,
}
BEGUN = ROW | dict.fromkeys(("score", "score_mean", "prediction_batch", "training_batch", "lag_mean", "lag_p95",
                             "entropy"))
SHOWN = ("3:25:07", "123,456,789", "493,827,156", "98,765", "-21.0", "-20.37", "12,346", "432.1", "128", "63.9", "41.8",
         "6.4", "19", "57", "1.639")


def screen(columns: int, row: dict[str, Any], title: str = "GA3C  Pong", messages: list[str] | None = None,
           notes: dict[str, str] | None = None) -> str:
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(panel(title, row, messages or [], notes or {}))
    text = console.export_text()
    assert max(len(line) for line in text.splitlines()) <= columns
    return text


# ------------------------------------------------------------------------------------------------ a plain line

def test_a_plain_line_has_the_fields_names_and_values() -> None:
    assert plain_line(ROW, {}) == (
        "[Time: 3:25:07] [Steps: 123,456,789 Frames: 493,827,156] [Episode: 98,765 Score: -21.0 RScore: -20.37] "
        "[PPS: 12,346 TPS: 432.1] [NT: 3 NP: 2 NA: 128] [Queue: 57 Batch: 63.9/42 Lag: 6.4/19]")


def test_a_plain_line_shows_a_dash_for_what_is_not_known_yet() -> None:
    line = plain_line(BEGUN, {})
    assert "[Episode: 98,765 Score: - RScore: -]" in line
    assert "Batch: -/- Lag: -/-" in line


def test_the_best_evaluation_is_shown_once_there_is_one() -> None:
    evaluated = ROW | {"best_evaluation": 18.456}
    assert plain_line(evaluated, {}) == f"{plain_line(ROW, {})} [Best: 18.46]"
    assert "18.46" in screen(80, evaluated) and "Best" not in screen(80, ROW)


def test_notes_end_the_line_and_have_rows_of_their_own_on_the_screen() -> None:
    notes = {"Tuning": "16/1/1 kept +9%", "Limit": "environments"}
    assert plain_line(ROW, notes) == f"{plain_line(ROW, {})} [Tuning: 16/1/1 kept +9%] [Limit: environments]"
    assert "environments" in screen(80, ROW, notes=notes)


# ------------------------------------------------------------------------------------------------ the panel

@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("value", SHOWN)
def test_the_panel_shows_every_value_whole(columns: int, value: str) -> None:
    assert value in screen(columns, ROW)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_panel_of_a_run_that_has_just_begun_shows_dashes(columns: int) -> None:
    text = screen(columns, BEGUN)
    assert "None" not in text
    assert "-" in text.replace("─", "")


def test_the_panel_names_what_it_shows() -> None:
    text = screen(120, ROW)
    for name in ("Time", "Agent steps", "Frames", "Episodes", "Score", "RScore", "PPS", "TPS", "N_A", "N_P", "N_T",
                 "Policy lag", "Prediction batch", "Training batch", "Queue", "Entropy", "GA3C  Pong", "Ctrl-C"):
        assert name in text
    assert re.search(r"N_A +128 .*N_P +2 .*N_T +3 .*Queue +57 ", text, re.DOTALL)


def test_the_panel_shows_the_last_four_messages_one_line_each() -> None:
    text = screen(80, ROW, messages=[f"message {number} " + "x" * 100 for number in range(6)])
    assert [f"message {number}" in text for number in range(6)] == [False, False, True, True, True, True]
    assert len(text.splitlines()) - len(screen(80, ROW).splitlines()) == 4


@pytest.mark.parametrize("odd", ["[x]", "[/x]", "[red]", "a[b"])
def test_brackets_are_shown_as_they_are(odd: str) -> None:
    text = screen(120, ROW, title=f"GA3C  Pong  runs/{odd}/1", messages=[f"in {odd} it is"])
    assert f"runs/{odd}/1" in text
    assert f"in {odd} it is" in text


# ------------------------------------------------------------------------------------------------ the display

def test_without_a_terminal_rows_and_messages_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display("GA3C  Pong")
    display.message("it begins")
    display.show(ROW, {})
    display.message("it ends")
    display.close()
    assert capsys.readouterr().out == f"it begins\n{plain_line(ROW, {})}\nit ends\n"


def test_on_a_terminal_the_panel_stays_and_later_messages_are_lines(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"TTY_COMPATIBLE": "1", "TERM": "xterm", "COLUMNS": "120"}.items():
        monkeypatch.setenv(name, value)
    display = Display("GA3C  Pong")
    display.show(ROW, {})
    display.message("an agent died")
    display.show(ROW | {"score": 17.0}, {})
    display.close()
    display.message("it ends")
    display.close()
    panels, _, last = capsys.readouterr().out.rpartition("╯")
    assert panels.index("-21.0") < panels.index("an agent died")
    assert all("│" in line for line in panels.splitlines() if "an agent died" in line)
    assert "17.0" in panels
    assert last.endswith("it ends\n")


LOOKED_AT = f"""
import sys
from ga3c.display import Display
display = Display("GA3C  Pong")
for _ in range(3):
    display.show({ROW!r}, {{}})
display.message("it ends")
display.close()
print("the run went on", file=sys.stderr)
"""


# As a shell has it: buffered, so that the interpreter has something to flush when it ends.
PLAIN = {name: value for name, value in os.environ.items()
         if name not in ("TTY_COMPATIBLE", "FORCE_COLOR", "PYTHONUNBUFFERED")}


@pytest.mark.parametrize("terminal", [{}, {"TTY_COMPATIBLE": "1", "TERM": "xterm"}, {"FORCE_COLOR": "1"}])
def test_a_run_goes_on_when_its_output_is_closed(terminal: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([sys.executable, "-c", LOOKED_AT], stdout=writer, stderr=subprocess.PIPE, text=True,
                              env=PLAIN | terminal, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, "the run went on\n")


def test_a_run_piped_into_head_goes_on() -> None:
    done = subprocess.run(["bash", "-o", "pipefail", "-c", '"$0" -c "$1" | head -1', sys.executable, LOOKED_AT],
                          capture_output=True, text=True, env=PLAIN, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{plain_line(ROW, {})}\n", "the run went on\n")
