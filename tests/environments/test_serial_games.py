"""Serial runs of odd games, in this process: what fails is replaced and told; one seed is one run, to the byte."""

from __future__ import annotations

import faulthandler
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from counting import events

from ga3c.envs.containment import contained, described
from ga3c.learner import checkpoint
from ga3c.learner.checkpoint import Checkpoint
from ga3c.learner.learner import Learner
from ga3c.runs.recorder import Recorder
from ga3c.service.agent_pool import AgentsLost
from ga3c.service.serial import run_serial
from ga3c.service.signals import Signals
from ga3c.settings.files import configured


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_run: Callable[..., Recorder],
            interruption: Signals) -> Callable[[str], tuple[Checkpoint, Recorder]]:
    """Trains for 300 steps; the last checkpoint and the run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("odd.Acts.steps", 0)

    def trained(name: str) -> tuple[Checkpoint, Recorder]:
        run = make_run(configured(game=f"odd:{name}-v0", serial=True, tensorboard=False, agents=2, envs_per_agent=2,
                                  rollout_length=5, training_batch_min=20, steps=300, seed=5))
        model = Learner(run.settings, run.spec)
        assert run_serial(run.settings, run, model, interruption) == "--steps 300"
        return checkpoint.load(run.checkpoints.save(model)), run

    return trained


def test_one_seed_is_one_run_though_a_game_draws_globally(
        trained: Callable[[str], tuple[Checkpoint, Recorder]]) -> None:
    (one, _), (other, _) = trained("Draws"), trained("Draws")
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name], err_msg=name)


def test_what_a_step_raises_costs_its_episodes_alone(trained: Callable[[str], tuple[Checkpoint, Recorder]]) -> None:
    _, run = trained("exit-later")
    failed, = events(run.directory, "environment_failed")  # told once
    assert failed["cause"] == "SystemExit: enough of this" and run.statistics.environment_faults >= 4
    said = (run.directory / "log.txt").read_text()
    assert said.count(f"An environment of agent {failed['agent']} failed: SystemExit: enough of this. Others") == 1


def test_environments_that_fail_again_and_again_end_the_run_with_their_cause(
        trained: Callable[[str], tuple[Checkpoint, Recorder]]) -> None:
    with pytest.raises(AgentsLost, match="failed 6 times in a row; the last time: SystemExit: the code"):
        trained("exit-always")


def test_a_game_that_fails_in_its_random_first_steps_ends_the_run(
        make_run: Callable[..., Recorder], interruption: Signals, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("odd.Acts.steps", 0)
    run = make_run(configured(game="odd:exit-always-v0", random_start_steps=400, serial=True, tensorboard=False,
                              agents=2, envs_per_agent=2, rollout_length=5, training_batch_min=20, seed=5))
    with pytest.raises(AgentsLost, match="'odd:exit-always-v0' fails in its random first steps: SystemExit") as lost:
        run_serial(run.settings, run, Learner(run.settings, run.spec), interruption)
    assert "effects.py, line" in described(lost.value) and "contextlib" not in described(lost.value)


def test_what_a_step_changes_for_the_process_is_put_back(trained: Callable[[str], tuple[Checkpoint, Recorder]]) -> None:
    limit = signal.setitimer(signal.ITIMER_REAL, 0.0)  # of the tests themselves
    faulthandler.dump_traceback_later(250, exit=True)  # which another one takes the place of
    try:
        with contained():
            streams, depth = (sys.stdout, sys.stderr), sys.getrecursionlimit()
            for name in ("stdout", "shallow", "alarm"):
                trained(f"{name}-later")
                assert (sys.stdout, sys.stderr) == streams and sys.getrecursionlimit() == depth, name
                assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0), name
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, *limit)
