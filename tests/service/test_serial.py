"""Serial mode: with breaks and without, the same to the byte; where no state can be saved, new episodes."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from counting import CheckingModel, decode, events

from ga3c.envs.base import Environment
from ga3c.envs.factory import make_environment
from ga3c.learner import checkpoint
from ga3c.learner.checkpoint import Checkpoint
from ga3c.learner.learner import Diverged, Learner
from ga3c.runs.recorder import Recorder
from ga3c.service.agent_pool import AgentsLost
from ga3c.service import serial_agents
from ga3c.service.serial import run_serial
from ga3c.service.serial_agents import PREFIX, Agents
from ga3c.service.signals import Signals
from ga3c.settings.files import configured
from ga3c.settings.schema import Settings
from ga3c.transport.slots import Batch

MakeRun = Callable[..., Recorder]
SERIAL = {"serial": True, "tensorboard": False, "agents": 3, "envs_per_agent": 2, "rollout_length": 5,
          "training_batch_min": 20}


@pytest.fixture
def learned(make_run: MakeRun, interruption: Signals) -> Callable[..., tuple[Checkpoint, str]]:
    """Trains to so many steps, from a checkpoint if one is given; returns the next one and what was said."""

    def train(game: str, steps: int, before: Checkpoint | None = None, **changes: Any) -> tuple[Checkpoint, str]:
        settings = configured(**{"game": game, "steps": steps, **SERIAL, **changes})
        run = make_run(settings)
        model = Learner(settings, run.spec)
        if before:
            model.restore(before.arrays, before.progress["version"])
            run.statistics.agent_steps = before.progress["agent_steps"]
        assert run_serial(settings, run, model, interruption, before and before.arrays) == f"--steps {steps}"
        return checkpoint.load(run.checkpoints.save(model)), (run.directory / "log.txt").read_text()

    return train


# Counting has truncated episodes, whose last observation is predicted in a row of its own; of 1,700 steps the limit
# falls in the middle of a round.
@pytest.mark.parametrize(("game", "changes"), [
    pytest.param("toy:catch", {}, marks=pytest.mark.slow), ("toy:catch", {"training_batch_min": 70}),
    pytest.param("toy:counting", {}, marks=pytest.mark.slow),
    ("toy:counting", {"algorithm": "appo", "random_start_steps": 40})])
def test_with_breaks_a_run_learns_what_it_learns_without(
        game: str, changes: dict[str, Any], learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    whole, _ = learned(game, 2500, **changes)
    part = None
    for steps in (20, 1700, 2100, 2500):
        part, said = learned(game, steps, part, **changes)
        assert "new episodes" not in said.lower()
    assert whole.arrays.keys() == part.arrays.keys() and f"{PREFIX}places" in whole.arrays
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(array, part.arrays[name], err_msg=name)


def test_a_signal_while_agents_are_made_ends_a_run_before_the_next_one_is(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    def signalled(settings: Settings, n_envs: int) -> Environment:
        made.append(n_envs)
        os.kill(os.getpid(), signal.SIGTERM)
        return make_environment(settings, n_envs)

    made = list[int]()
    monkeypatch.setattr(serial_agents, "make_environment", signalled)
    settings = configured(game="toy:catch", **SERIAL)
    run = make_run(settings)
    assert run_serial(settings, run, Learner(settings, run.spec), interruption) == "SIGTERM"
    assert made == [2]


def test_rollouts_of_weights_that_were_given_up_are_refused_after_a_resume_too(
        learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    before, _ = learned("toy:catch", 100)
    name = f"{PREFIX}min_valid_version"
    assert before.arrays[name] == 0
    before.arrays[name] = np.array(before.progress["version"])
    after, _ = learned("toy:catch", 200, before)
    assert after.arrays[name] == before.progress["version"]


@pytest.mark.parametrize("changes", [
    {"algorithm": "a3c-cpu"},
    {"schedule": "synchronous", "algorithm": "ppo", "passes": 2, "minibatches": 3},
    {"schedule": "alternating", "algorithm": "a2c"},
    {"schedule": "multi-batch", "rollout_length": 6, "update_groups": 3, "steps_per_update": 1, "slots_per_agent": 3}])
def test_with_breaks_a_run_in_rounds_or_in_turn_learns_what_it_learns_without(
        changes: dict[str, Any], learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    whole, _ = learned("toy:counting", 900, **changes)
    part = None
    for steps in (20, 500, 530, 900):
        part, said = learned("toy:counting", steps, part, **changes)
        assert "new episodes" not in said.lower()
    assert whole.arrays.keys() == part.arrays.keys() and f"{PREFIX}places" in whole.arrays
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(array, part.arrays[name], err_msg=name)


FROM_MEMORY = {"algorithm": "dqn", "replay_size": 1000, "replay_start": 200, "training_batch_min": 16,
               "rollout_length": 4, "intensity": 2.0, "target_steps": 96, "n_step": 3}


@pytest.mark.parametrize(("schedule", "priority_alpha"), [
    ("queues", 0.5), ("standard", 0.0), ("both", 0.5), ("concurrent", 0.0)])
def test_with_breaks_a_run_from_memory_learns_what_it_learns_without(
        schedule: str, priority_alpha: float, learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    changes = {**FROM_MEMORY, "schedule": schedule, "priority_alpha": priority_alpha}
    whole, _ = learned("toy:counting", 1400, **changes)
    part = None
    for steps in (20, 500, 530, 800, 1100, 1400):  # before the first update, within an epoch, after the ring is full
        part, said = learned("toy:counting", steps, part, **changes)
        assert "new episodes" not in said.lower() and "begins empty" not in said
    assert whole.arrays.keys() == part.arrays.keys()
    assert {f"{PREFIX}places", "replay.facts"} <= whole.arrays.keys()
    assert any(name.startswith("target.") for name in whole.arrays)
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(array, part.arrays[name], err_msg=name)


def test_a_replay_that_is_missing_or_does_not_fit_is_filled_again_which_is_said(
        learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    changes = {**FROM_MEMORY, "schedule": "both"}
    before, _ = learned("toy:catch", 600, **changes)
    for name in [name for name in before.arrays if name.startswith("replay.")]:
        del before.arrays[name]
    _, said = learned("toy:catch", 1200, before, **changes)
    assert ("The replay begins empty: the checkpoint has no replay. The policy as learned fills it again, "
            "with 200 steps") in said
    before, _ = learned("toy:catch", 600, **changes)
    _, said = learned("toy:catch", 1200, before, **changes | {"priority_alpha": 0.5})
    assert "The replay begins empty: that of the checkpoint does not fit, it has other priorities, or none" in said


def test_atari_goes_on_as_if_it_had_never_ended(learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    small = {"agents": 1, "envs_per_agent": 2, "rollout_length": 4, "training_batch_min": 16, "sticky_actions": 0.25}
    whole, _ = learned("Pong", 192, **small)
    part, _ = learned("Pong", 100, **small)
    part, said = learned("Pong", 192, part, **small)
    assert "new episodes" not in said.lower()
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(array, part.arrays[name], err_msg=name)


def test_a_game_that_cannot_save_its_state_begins_new_episodes_and_says_so_once(
        learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    before, said = learned("CartPole-v1", 200)
    assert said.count("cannot save its state") == 1 and not [name for name in before.arrays if name.startswith(PREFIX)]
    _, said = learned("CartPole-v1", 400, before)
    assert said.count("New episodes begin") == 1


def test_where_other_agents_are_asked_for_new_episodes_begin(
        learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    before, _ = learned("toy:catch", 600)
    for changes in ({"agents": 2}, {"envs_per_agent": 1}, {"training_batch_min": 40}, {"rollout_length": 10}):
        _, said = learned("toy:catch", 700, before, **changes)
        assert "New episodes begin" in said, changes


@pytest.mark.parametrize(("before", "after"), [
    ("synchronous", "alternating"), ("synchronous", "queues"),
    *(pytest.param(before, "synchronous", marks=pytest.mark.slow) for before in ("alternating", "queues"))])
def test_where_another_schedule_is_asked_for_new_episodes_begin(
        before: str, after: str, learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    first, _ = learned("toy:catch", 600, schedule=before)
    last, said = learned("toy:catch", 900, first, schedule=after)
    assert "New episodes begin" in said
    assert learned("toy:catch", 1000, last, schedule=after)[1].count("New episodes") == 0


def test_multi_batch_with_other_groups_begins_new_episodes(learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    one = {"schedule": "multi-batch", "rollout_length": 8, "update_groups": 4, "steps_per_update": 2, "agents": 4}
    first, _ = learned("toy:catch", 600, **one)
    assert "New episodes begin" in learned("toy:catch", 900, first, **one | {"update_groups": 2,
                                                                             "steps_per_update": 4})[1]


def test_environments_that_a_checkpoint_does_not_fit_are_closed(
        learned: Callable[..., tuple[Checkpoint, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    made, is_open = serial_agents.make_environment, list[Environment]()

    def make(settings: Settings, n_envs: int) -> Environment:
        environment = made(settings, n_envs)
        right = environment.close

        def close() -> None:
            is_open.remove(environment)
            right()

        is_open.append(environment)
        environment.close = close  # type: ignore[method-assign]
        return environment

    monkeypatch.setattr(serial_agents, "make_environment", make)
    before, _ = learned("toy:catch", 100)
    assert "New episodes begin" in learned("toy:catch", 200, before, agents=2)[1] and not is_open


def places(**changes: object) -> Callable[[Checkpoint], np.ndarray]:
    def tampered(before: Checkpoint) -> np.ndarray:
        found = json.loads(before.arrays[f"{PREFIX}places"].tobytes()) | changes
        return np.frombuffer(json.dumps(found).encode(), np.uint8)

    return tampered


TAMPERED: list[tuple[str, Callable[[Checkpoint], np.ndarray]]] = [
    ("places", places(moving=[99])), ("places", places(free=[0, 0])), ("places", places(rngs=[])),
    ("places", places(progress=[{}] * 3)), ("places", lambda before: np.zeros(3, np.uint8)),
    ("facts", lambda before: np.zeros(3, np.uint8)), ("facts", lambda before: before.arrays[f"{PREFIX}facts"][:-9])]


def test_what_was_tampered_with_is_not_gone_on_from(learned: Callable[..., tuple[Checkpoint, str]]) -> None:
    before, _ = learned("toy:catch", 100)
    assert "New episodes" not in learned("toy:catch", 150, before)[1]
    for number, (name, value) in enumerate(TAMPERED):
        tampered = before._replace(arrays=before.arrays | {f"{PREFIX}{name}": value(before)})
        assert "New episodes begin" in learned("toy:catch", 150, tampered)[1], number


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[range], None]:
    """Environments whose steps with these numbers, counted over all of them, fail."""
    made, played = serial_agents.make_environment, itertools.count()

    def fail(numbers: range) -> None:
        def make(settings: Settings, n_envs: int) -> Environment:
            environment = made(settings, n_envs)
            right = environment.step

            def step(action: np.ndarray) -> Any:
                if next(played) in numbers:
                    raise SystemExit("the emulator lost its mind")
                return right(action)

            environment.step = step  # type: ignore[method-assign]
            return environment

        monkeypatch.setattr(serial_agents, "make_environment", make)

    return fail


def test_an_environment_that_fails_is_replaced(
        make_run: MakeRun, interruption: Signals, failing: Callable[[range], None]) -> None:
    failing(range(50, 52))
    settings = configured(**{"game": "toy:catch", **SERIAL, "steps": 400})
    run = make_run(settings)
    assert run_serial(settings, run, Learner(settings, run.spec), interruption) == "--steps 400"
    assert run.statistics.environment_faults == 2
    assert "the emulator lost its mind" in Path(run.log_path).read_text()


def test_environments_that_fail_again_and_again_end_the_run_and_its_agents_are_not_saved(
        make_run: MakeRun, interruption: Signals, failing: Callable[[range], None]) -> None:
    failing(range(50, 10**9))
    settings = configured(**{"game": "toy:catch", **SERIAL})
    run = make_run(settings)
    model = Learner(settings, run.spec)
    with pytest.raises(AgentsLost, match="failed 6 times in a row; the last time: SystemExit: the code"):
        run_serial(settings, run, model, interruption)
    assert not [name for name in checkpoint.load(run.checkpoints.save(model)).arrays if name.startswith(PREFIX)]


def test_a_run_that_diverges_goes_back_once_as_others_do(
        make_run: MakeRun, interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configured(**{**SERIAL, "game": "toy:catch", "steps": 2000})
    run = make_run(settings)
    model = Learner(settings, run.spec)
    right, kept = model.update, dict[str, np.ndarray]()

    def update(batch: Batch, *clock: int) -> Any:
        if model.version == 5:
            kept.update(model.state()[0])
            run.checkpoints.save(model)
        if model.version == 12:
            assert all(np.array_equal(array, kept[name]) for name, array in model.state()[0].items())
        if model.version in (11, 20):
            raise Diverged(f"at {model.version}")
        return right(batch, *clock)

    monkeypatch.setattr(model, "update", update)
    with pytest.raises(Diverged, match="at 20"):
        run_serial(settings, run, model, interruption)
    went, = events(run, "diverged")
    assert (went["cause"], went["learning_rate_factor"], model.learning_rate_factor) == ("at 11", 0.5, 0.5)
    run.statistics.drain()
    assert run.statistics.dropped_steps >= 40, "that batch, and rollouts of the weights that were given up"


class Playing(CheckingModel):
    """Notes (score, length) of episodes that count, and how many end, which begin anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.counted, self.ended = list[tuple[float, int]](), 0

    def check(self, batch: Batch, i: int, e: int, steps: int) -> None:
        ends = batch.episode_length[i, :steps, e] > 0
        self.counted += zip(batch.score[i, :steps, e][ends].tolist(), batch.episode_length[i, :steps, e][ends].tolist(),
                            strict=True)
        self.ended += int((batch.terminated | batch.truncated)[i, :steps, e].sum())


def test_an_episode_that_began_with_random_steps_counts_nowhere_and_those_steps_are_no_agent_steps(
        make_run: MakeRun, interruption: Signals) -> None:
    settings = configured(**{**SERIAL, "game": "toy:counting", "steps": 600, "agents": 8, "random_start_steps": 50})
    run, model = make_run(settings), Playing()
    run_serial(settings, run, model, interruption)  # type: ignore[arg-type]
    assert model.trained_steps == 600 and all(score == length * (length + 1) / 2 for score, length in model.counted)
    assert model.ended - 16 <= len(model.counted) < model.ended, "one of each environment at most"
    run.statistics.drain()
    assert run.statistics.episodes == len(model.counted)


def test_a_run_that_goes_on_takes_no_random_steps_though_its_episodes_are_new() -> None:
    settings = configured(**{**SERIAL, "game": "toy:counting", "random_start_steps": 50})
    spec = make_environment(settings, 1).spec
    for began_at, random in ((0, True), (600, False)):
        agents = Agents(settings, spec, CheckingModel(), began_at)
        seen = np.concatenate([decode(agents.store.observation[agents.pending(agent)]) for agent in range(agents.n)])
        assert bool(seen[:, 1:].any()) == random
