"""Every command that README and docs show: understood always; carried out, but for a shorter time, by a slow test."""

from __future__ import annotations

import importlib
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands_installed import COMMANDS

from ga3c.commands.train import parser
from ga3c.settings.files import resolve
from ga3c.settings.flags import parse

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
UNKNOWN = "--no-such-option"
SHORT = ["--steps", "300", "--envs-per-agent", "1", "--rollout-length", "5", "--training-batch-min", "20"]
# What a command is given besides, so that it takes seconds; the last one counts where a flag stands twice.
LESS = {"ga3c-eval": ["--episodes", "2", "--envs", "2"], "ga3c-play": ["--seconds", "0.3"],
        "ga3c-export": ["--no-onnx"]}
REQUIRED = {"ga3c-eval --json": ["runs/..."]}  # what a command lacks that only names an option
ELSEWHERE = {  # word of the command -> why it is not carried out here
    "--human": "waits for a person: test_play.py", "mlflow": "MLflow is not installed with the tests: test_track.py"}


def commands(text: str) -> list[tuple[list[str], bool]]:
    """(words, whether they stand in a block of their own) of each command of ga3c and its tools."""
    lines: list[str] = []
    prose, kind, first, answered = "", None, False, False
    for line in text.splitlines():
        if line.startswith("```"):
            kind, first = (line[3:] or "bash") if kind is None else None, True
        elif kind is None:
            prose += line + "\n"
        elif kind == "bash" and (first or not answered):
            answered = line.startswith("$ ")  # then the rest of the block is the answer
            if lines and lines[-1].endswith("\\"):
                line = lines.pop().removesuffix("\\") + line
            lines += line.removeprefix("$ ").split("&&")
            first = False
    quoted = re.findall(r"`([^`]+)`", prose)
    found = [(shlex.split(part, comments=block), block) for parts, block in ((lines, True), (quoted, False))
             for part in parts if re.match(r"\s*(ga3c-\w+|python tools/\w+/\w+\.py)( |$)", part)]
    return [(words[1:] if words[0] == "python" else words, block) for words, block in found]


SHOWN = [(*each, page.name) for page in PAGES for each in commands(page.read_text(encoding="utf-8"))]
CARRIED_OUT = {shlex.join(words): page for words, block, page in SHOWN
               if block and not any(word in words for word in ELSEWHERE)}  # command -> the page that shows it
OPTIONS = sorted({shlex.join(words) for words, *_ in SHOWN if len(words) > 1})


def with_more(words: list[str], more: list[str]) -> list[str]:
    """What follows `--` is for another command."""
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], *more, *words[at:]]


@pytest.mark.parametrize("command", OPTIONS)
def test_documented_options_exist(
        command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command)
    if "--" in words:  # for ga3c-train
        assert resolve(parse(parser(), words[words.index("--") + 1:])[0])
    monkeypatch.setattr(sys, "argv", with_more(words, [UNKNOWN, *REQUIRED.get(command, [])]))
    with pytest.raises(SystemExit) as ended:
        if words[0] in COMMANDS:
            module, function = COMMANDS[words[0]].split(":")
            getattr(importlib.import_module(module), function)()
        else:
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
    told = capsys.readouterr().err
    named = re.search(rf"(unknown option|unrecognized arguments:) {UNKNOWN}(;|$)", told.strip())
    assert ended.value.code == 2 and named, told


def call(words: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    program = [words[0]]
    if words[0] in COMMANDS:
        module, function = COMMANDS[words[0]].split(":")
        program = ["-c", f"from {module} import {function}; {function}()"]
    return subprocess.run([sys.executable, *program, *words[1:]], cwd=where, text=True, check=False,
                          capture_output=True, timeout=300,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "SDL_VIDEODRIVER": "dummy"})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with short runs of CartPole and Boxing."""
    made = tmp_path_factory.mktemp("documented")
    (made / "docs").symlink_to(ROOT / "docs")
    (made / "tools").symlink_to(ROOT / "tools")
    for game, run in (("CartPole-v1", "cart"), ("Boxing", "box")):
        done = call(["ga3c-train", "--game", game, "--run-dir", run, "--minutes", "0.1", "--envs-per-agent", "1",
                     "--agents", "2"], made)
        assert done.returncode == 0, done.stderr
    for number in range(3):
        (made / f"cart{number}").symlink_to("cart")
    return made


@pytest.mark.slow
@pytest.mark.parametrize("command", CARRIED_OUT)
def test_documented_commands_work(command: str, place: Path) -> None:
    words = [re.sub("^runs/CartPole.*[.]{3}", "cart", re.sub("^runs/Boxing-[.]{3}", "box", word))
             for word in shlex.split(command)]
    where, more = place, LESS.get(words[0], [])
    if words[0] == "ga3c-train" and "--resume" in words:
        more = ["--minutes", "0.3"]  # of which a busy machine may have taken more than the first 0.1
    elif words[0] == "ga3c-train":
        more = [*SHORT, "--run-dir", str(place / f"made/{[*CARRIED_OUT].index(command)}")]
        more += [] if "--start" in words else ["--agents", "1"]
    if CARRIED_OUT[command] == "extending.md":
        where = ROOT / "docs/examples"
    outcome = call(with_more(words, more), where)
    assert outcome.returncode == 0, outcome.stderr
