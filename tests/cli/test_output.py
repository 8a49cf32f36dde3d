"""What a run shows: its panel and lines, and one line with an exit code for each way to fail."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyte
import pytest
from command_line import IMPORTED, QUICK, TRAIN, Command, checkpoints, learning, recorded, rows, told

from ga3c.learner.learner import Learner

pytestmark = pytest.mark.usefixtures("own_directory")


def test_a_terminal_shows_a_live_panel_with_the_fields_names() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="110", LINES="30")
        os.execv(sys.executable, [*TRAIN, *QUICK, "--run-dir", "run"])
    screen = pyte.Screen(110, 30)
    stream = pyte.ByteStream(screen)
    interrupted = False
    while True:
        try:
            data = os.read(terminal, 65_536)
        except OSError:
            break
        if not data:
            break
        stream.feed(data)
        if not interrupted and learning() and "Agent steps" in "\n".join(screen.display):
            os.write(terminal, b"\x03")  # as the key is pressed
            interrupted = True
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    text = "\n".join(screen.display)
    for name in ("Time", "Agent steps", "Frames", "Episodes", "Score", "RScore", "PPS", "TPS", "N_A", "N_P", "N_T",
                 "Queue", "Prediction batch", "Training batch", "Policy lag"):
        assert name in text, text
    assert text.count("Prediction batch") == 1, "the panel is drawn in place"
    assert "Ended by SIGINT" in text and "--resume run" in text


def test_an_error_of_the_service_leaves_a_checkpoint_and_exit_code_6(
        train_here: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    right, calls = Learner.predict, []

    def wrong(self: Learner, observation: np.ndarray) -> object:
        calls.append(1)
        if len(calls) > 300:
            raise ZeroDivisionError("of the model")
        return right(self, observation)

    monkeypatch.setattr(Learner, "predict", wrong)
    done = train_here(*QUICK, "--run-dir", "run")
    assert done.returncode == 6, done.stderr
    assert "ZeroDivisionError: of the model" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("--resume run") and checkpoints(Path("run"))


@pytest.mark.slow
def test_a_device_that_is_lost_is_told_in_one_line_with_exit_code_6() -> None:
    program = (f"{IMPORTED}import pathlib\nimport tensorflow as tf\n"
               "def wrong(*arguments):\n"
               "    raise tf.errors.InternalError(None, None, 'CUDA_ERROR_ILLEGAL_ADDRESS')\n"
               "right = learner.Learner.update\n"
               "def update(self, batch, *clock):\n"
               "    if self.version >= 20 and list(pathlib.Path('run/checkpoints').glob('0*')):\n"
               "        inner = self._backend\n        inner._predict = inner._update = wrong\n"
               "    return right(self, batch, *clock)\n"
               "learner.Learner.update = update\n"
               "sys.exit(cli.train(sys.argv[1:]))\n")
    done = subprocess.run([sys.executable, "-c", program, *QUICK, "--run-dir", "run", "--checkpoint-minutes", "0.005"],
                          capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 6 and told(done.stderr).count("\n") == 1, done.stderr
    assert "the device failed at" in done.stderr and "CUDA_ERROR_ILLEGAL_ADDRESS; ga3c-doctor" in done.stderr
    assert done.stdout.splitlines()[-1].startswith("Newest checkpoint: ")


def test_divergence_is_one_line_and_exit_code_4_without_a_checkpoint(train_here: Command) -> None:
    done = train_here(*QUICK, "--serial", "--learning-rate", "1e30", "--run-dir", "run")
    assert done.returncode == 4 and done.stderr.count("\n") == 1, done.stderr
    assert "diverged: update" in done.stderr and not Path("run/checkpoints").exists()
    ended, = recorded("end")
    assert ended["cause"].startswith("Diverged: update") and ended["cause"] in Path("run/log.txt").read_text()
    assert recorded("skipped")[-1]["updates"] == rows(Path("run"))[-1]["skipped_updates"] >= 10
    assert "No checkpoint: the weights lead nowhere" in done.stdout.splitlines()[-1]


def test_a_disk_that_is_gone_at_the_end_is_one_line_and_exit_code_5(
        train_here: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*arguments: object) -> None:
        raise FileNotFoundError(2, "No such file or directory", "run/checkpoints")

    monkeypatch.setattr("ga3c.learner.checkpoint.save", save)
    done = train_here(*QUICK, "--serial", "--steps", "500", "--run-dir", "run")
    assert done.returncode == 5 and done.stderr.count("\n") == 1, done.stderr
    assert "ga3c-train: ended by a failure of storage: FileNotFoundError: [Errno 2]" in done.stderr
    assert recorded("end") and "No checkpoint" in done.stdout.splitlines()[-1]
