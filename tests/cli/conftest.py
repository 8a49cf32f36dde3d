"""Runs for tests of the commands."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from command_line import QUICK, RUN, Started, checkpoints

from ga3c.commands import train as cli


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, for `run_with_two_checkpoints`."""
    run = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("ga3c.learner.backend.start", lambda settings: None)
        for how in ([*QUICK, "--run-dir", str(run), "--steps", "2000"], ["--resume", str(run), "--steps", "6000"]):
            assert cli.train(how) == 0
    return run


@pytest.fixture
def run_with_two_checkpoints(own_directory: None, trained_once: Path) -> list[Path]:
    """The checkpoints of a run in `run`, a copy for this test alone: of 2,000 agent steps and of 6,000."""
    shutil.copytree(trained_once, RUN)
    older, newest = checkpoints(RUN)
    return [older, newest]


@pytest.fixture
def started() -> Iterator[Callable[..., Started]]:
    made: list[Started] = []

    def start(*arguments: str, changed: str = "") -> Started:
        made.append(Started(*arguments, changed=changed))
        return made[-1]

    yield start
    for each in made:
        # The fork server and the resource tracker end when they see that their parent has.
        _, left = psutil.wait_procs(each.group(), timeout=60)
        for process in left:
            process.kill()
        each.process.communicate()
        assert not left, f"left behind: {left}"
