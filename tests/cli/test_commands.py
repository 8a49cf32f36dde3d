"""Every command answers for itself, at once."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys

import pytest
from commands_installed import COMMANDS, ROOT

HEAVY = {"tensorflow", "keras", "gymnasium", "ale_py", "cv2", "rich", "matplotlib", "PIL", "pygame", "tensorboard"}


def command(name: str, *arguments: str) -> list[str]:
    """The entry point as pip installs it, naming on standard error what heavy things it has imported."""
    module, function = COMMANDS[name].split(":")
    program = (f"import sys\nfrom {module} import {function}\nsys.argv[0] = {name!r}\n"
               f"try:\n    {function}()\nfinally:\n"
               f"    print(*sorted({HEAVY!r} & set(sys.modules)), end='', file=sys.stderr)\n")
    return [sys.executable, "-c", program, *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"})


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_grouped_has_examples_and_imports_little(name: str) -> None:
    done = run(*command(name, "--help"))
    assert (done.returncode, done.stderr) == (0, ""), "nothing heavy is imported"
    about, examples, *groups = done.stdout.split("\n\n")
    assert about.endswith(".") and "usage" not in done.stdout and max(map(len, done.stdout.splitlines())) <= 100
    assert examples.startswith("examples:\n") and examples.count(f"\n  {name}") >= 3
    assert [group for group in groups if group.splitlines()[0].endswith(":")], groups
    for option in re.findall(r"^  (?:-\w [A-Z]*, )?(--\S.*?)(?:  |$)", done.stdout, re.MULTILINE):
        metavar = option.partition(" ")[2]
        assert not metavar or metavar.upper() == metavar or set("|{") & set(metavar), "says what is wanted"
    assert name == "ga3c-train" or len(done.stdout.splitlines()) <= 45, "short"


def test_settings_are_printed_without_heavy_imports() -> None:
    done = run(*command("ga3c-train", "--print-config"))
    assert (done.returncode, done.stderr) == (0, "") and "\n  game: " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_each_has_a_version_and_one_line_for_a_wrong_option(
        name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module, function = COMMANDS[name].split(":")

    def ended(*arguments: str) -> tuple[int | str | None, str, str]:
        """Exit code and output of a call in this process."""
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        with pytest.raises(SystemExit) as end:
            getattr(importlib.import_module(module), function)()
        return end.value.code, *capsys.readouterr()

    code, out, err = ended("--version")
    assert (code, err) == (0, "") and out.startswith("ga3c 0.")
    code, out, err = ended("--versio", "run")
    told = ("unknown option --versio; did you mean --version?\n", "the following arguments are required: ")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith(tuple(f"{name}: {text}" for text in told))
