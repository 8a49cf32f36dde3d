"""Serial mode: with breaks and without, the same to the byte; elsewhere, new episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ga3c.envs.factory import Environment
from ga3c.learner import checkpoint
from ga3c.learner.checkpoint import Checkpoint
from ga3c.learner.learner import Learner
from ga3c.runs.recorder import Run
from ga3c.service.serial import SAVED, Agents, run_serial
from ga3c.service.signals import Signals
from ga3c.settings.files import configured
from ga3c.settings.schema import Settings

MakeRun = Callable[..., Run]
SERIAL = {"serial": True, "tensorboard": False, "agents": 3, "envs_per_agent": 2, "rollout_length": 5, "training_batch_min": 20}


@pytest.fixture
def learned(make_run: MakeRun, interruption: Signals) -> Callable[..., tuple[Checkpoint, str]]:
    """Trains to so many steps, from a checkpoint if one is given; returns the next one and what was said."""

    def train(game: str, steps: int, before: Checkpoint | None = None, **changes: Any) -> tuple[Checkpoint, str]:
        settings = configured(**{"game": game, "steps": steps, **SERIAL, **changes})
        run = make_run(settings)
        model = Learner(settings, run.spec)
        if before:
            model.restore(before.arrays, before.progress["version"], before.progress["agent_steps"])
        assert run_serial(settings, run, model, interruption, before and before.arrays) == f"--steps {steps}"
        return checkpoint.load(run.save(model)), (run.directory / "log.txt").read_text()

    return train


# Counting has truncated episodes, whose last observation is predicted in a row of its own; of 1,700 steps the limit
# falls in the middle of a round.
@pytest.mark.parametrize(("game", "delay"), [("toy:catch", 0), ("toy:catch", 3), ("toy:counting", 0)])
def test_with_breaks_a_run_learns_what_it_learns_without(
        game: str, delay: int, learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    whole, _ = learned(game, 2500, training_delay=delay)
    part = None
    for steps in (20, 1700, 2100, 2500):
        part, said = learned(game, steps, part, training_delay=delay)
        assert ("rounds again" in said) == (steps > 20) and "New episodes" not in said
    assert whole.arrays.keys() == part.arrays.keys() and f"{SAVED}actions" in whole.arrays
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(array, part.arrays[name], err_msg=name)


def test_rollouts_held_back_are_older_by_as_many_updates(make_run: MakeRun, interruption: Signals) -> None:
    def lag(delay: int) -> float:
        settings = configured(**{**SERIAL, "game": "toy:counting", "steps": 1200, "training_delay": delay})
        run = make_run(settings)
        model, seen = Learner(settings, run.spec), []
        train = model.update
        model.update = lambda batch: (  # type: ignore[method-assign]
            seen.append(model.version - batch.version.mean()), train(batch))[1]
        run_serial(settings, run, model, interruption)
        return float(np.mean(seen[20:]))

    # An update takes two rollouts: those that waited behind twelve others are six updates older.
    assert lag(12) - lag(0) == pytest.approx(6, abs=0.2)


@pytest.mark.parametrize("changes", [
    {"agents": 2}, {"envs_per_agent": 1}, {"training_batch_min": 40}, {"seed": 7},
    {"training_batch_min": 10, "training_delay": 1}])
def test_where_the_actions_lead_elsewhere_new_episodes_begin(
        changes: dict[str, Any], learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    before, _ = learned("toy:catch", 600)
    after, said = learned("toy:catch", 900, before, **changes)
    assert "New episodes begin" in said
    assert after.arrays[f"{SAVED}began_at"] == before.progress["agent_steps"]


def test_actions_that_are_too_many_to_be_saved_are_not_kept_either(
        learned: Callable[..., tuple[Checkpoint, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    right = Agents.state

    def state(agents: Agents) -> dict[str, np.ndarray]:
        kept.append(len(agents._actions))
        return right(agents)

    monkeypatch.setattr(Agents, "state", state)
    monkeypatch.setattr("ga3c.service.serial.MOST", 300)
    assert f"{SAVED}actions" in learned("toy:catch", 200)[0].arrays and kept.pop() > 30
    assert f"{SAVED}actions" not in learned("toy:catch", 600)[0].arrays and kept.pop() == 1


@pytest.mark.parametrize(("name", "value"), [
    ("moved", np.array(99)), ("moved", np.array(-1)), ("actions", np.full((2, 3, 2), 9, np.uint16)),
    ("began_at", np.array([1, 2])), ("began_at", np.array("x")), ("policy", np.zeros(3, np.float32))])
def test_what_was_tampered_with_is_not_replayed(
        name: str, value: np.ndarray, learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    before, _ = learned("toy:catch", 100)
    before.arrays[f"{SAVED}{name}"] = value
    after, said = learned("toy:catch", 200, before)
    assert after.arrays[f"{SAVED}began_at"] == before.progress["agent_steps"]


def test_after_an_environment_has_failed_new_episodes_begin(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    from ga3c.service import serial
    made = serial.make_environment

    def failing(settings: Settings, n_envs: int) -> Environment:
        environment = made(settings, n_envs)
        right, steps = environment.step, []

        def step(action: np.ndarray) -> Any:
            steps.append(1)
            if len(steps) > 50:
                raise RuntimeError("the emulator lost its mind")
            return right(action)

        environment.step = step  # type: ignore[method-assign]
        return environment

    monkeypatch.setattr(serial, "make_environment", failing)
    settings = configured(**{"game": "toy:catch", **SERIAL})
    run = make_run(settings)
    model = Learner(settings, run.spec)
    with pytest.raises(RuntimeError):
        run_serial(settings, run, model, interruption)
    assert not [name for name in checkpoint.load(run.save(model)).arrays if name.startswith(SAVED)]


def test_a_replay_can_be_interrupted(
        make_run: MakeRun, interruption: Signals, learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    import os
    import signal
    before, _ = learned("toy:catch", 600)
    settings = configured(**{"game": "toy:catch", **SERIAL})
    run = make_run(settings)
    model = Learner(settings, run.spec)
    os.kill(os.getpid(), signal.SIGTERM)
    assert run_serial(settings, run, model, interruption, before.arrays) == "SIGTERM"
    assert model.agent_steps == 0
