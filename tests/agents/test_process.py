"""An agent's process: the file it writes to, and what it prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ga3c.agents import process as module


def test_a_log_that_cannot_be_opened_is_done_without(tmp_path: Path) -> None:
    with module._appending(str(tmp_path / "log.txt")) as file:
        file.write(b"there")
    with module._appending(str(tmp_path / "gone" / "log.txt")) as nowhere:
        nowhere.write(b"nowhere")
    assert (tmp_path / "log.txt").read_bytes() == b"there" and len(list(tmp_path.iterdir())) == 1


def test_what_is_printed_onto_a_full_disk_is_lost_and_fails_nowhere() -> None:
    program = ("import sys; from ga3c.envs.containment import drop_unwritable_output\ndrop_unwritable_output()\n"
               "for _ in range(3):\n    print('x' * 10_000, flush=True)\n    sys.stderr.write('y\\n')\n"
               "sys.exit(0)")
    with open("/dev/full", "wb") as full:
        assert subprocess.run([sys.executable, "-c", program], stdout=full, stderr=full, check=False).returncode == 0
    shown = subprocess.run([sys.executable, "-c", program.replace("10_000", "2")], capture_output=True, check=False)
    assert (shown.stdout, shown.stderr) == (b"xx\n" * 3, b"y\n" * 3)
