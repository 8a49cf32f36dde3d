"""`first_visit.py`: a terminal in tmux."""

from __future__ import annotations

import shutil
import os
import subprocess
from pathlib import Path

import first_visit
import pytest
from PIL import Image


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_a_terminal_of_the_first_visit_waits_for_commands_and_is_drawn(tmp_path: Path) -> None:
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/activate").write_text("VISITED=yes\n")
    with first_visit.terminal(f"test-{os.getpid()}", tmp_path) as shell:
        assert "yes\n" in shell.run("echo $VISITED")
        shell.screenshot(tmp_path / "screen.png")
        with pytest.raises(first_visit.Failed, match="exit code 3"):
            shell.run("(exit 3)")
        shell.begin("sleep 60")
        with pytest.raises(first_visit.Failed, match="not over after 0 s"):
            shell.end(0.3)
    with Image.open(tmp_path / "screen.png") as picture:
        assert picture.height == 2 * (first_visit.SIZE + 4) + 16 and len(picture.getcolors(1000) or []) > 2
    session = f"first-visit-test-{os.getpid()}"
    left = subprocess.run(["tmux", "has-session", "-t", session], capture_output=True, check=False)
    assert left.returncode != 0
