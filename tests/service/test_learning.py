"""It learns: toys and CartPole reach 95 % of their best return, as a service and in serial mode."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faulty
import numpy as np
import pytest

from ga3c.evaluation.episodes import Limits, Protocol, play_episodes
from ga3c.evaluation.players import playing
from ga3c.learner.learner import Learner, UpdateStats
from ga3c.learner.shared_learner import SharedLearner
from ga3c.runs.recorder import Recorder
from ga3c.service.serial import run_serial
from ga3c.service.signals import Signals
from ga3c.service.supervisor import Service
from ga3c.settings.files import configured, resolve
from ga3c.settings.schema import Settings
from ga3c.transport.slots import Batch

# CartPole's returns of 100 would drown the policy in a clipped gradient. All else is as by default, with which each of
# ten seeds learned a toy in 30,000 to 80,000 steps.
WORLDS: dict[str, tuple[float, int, dict[str, Any]]] = {
    "toy:catch": (1.0, 400_000, {}), "toy:last-step-reward": (1.0, 400_000, {}), "toy:identity": (1.0, 400_000, {}),
    "CartPole-v1": (500.0, 1_000_000, {"reward_clip": 0.1})}


class UntilLearned(Recorder):
    """A run that is over when the mean score of the last 100 episodes is 95 % of the best."""

    best = 0.0

    def reached(self) -> str | None:
        scores = self.statistics.recent_scores
        if len(scores) == 100 and np.mean(list(scores)) >= 0.95 * self.best:
            return "learned"
        return super().reached()


class UntilItPlays(Recorder):
    """A run that is over when the policy reaches 95 % of the best in a world without faults: where one step in a
    hundred fails, hardly an episode of 500 steps ends by itself, and those that do are the bad ones."""

    best, clean, model, _next = 0.0, "", None, 0

    def tick(self, *arguments: Any) -> Any:
        if self.statistics.agent_steps >= self._next:
            self._next = self.statistics.agent_steps + 20_000
            protocol = Protocol(20, 0, False, 20)
            with playing(self.settings.changed(**{"game": self.clean}), protocol, Limits()) as players:
                played = play_episodes(lambda observation: self.model.predict(observation)[0], self.model.acting,
                                       players, protocol)
            self.plays = played.scores.mean() >= 0.95 * self.best
        return super().tick(*arguments)

    plays = False

    def reached(self) -> str | None:
        return "learned" if self.plays else super().reached()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("game", "world"), [
    ("toy:catch", "Catch()"), ("CartPole-v1", "gymnasium.make('CartPole-v1')")])
def test_it_learns_though_one_step_in_a_hundred_fails(
        game: str, world: str, make_run: Callable[..., Recorder], interruption: Signals, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    best, steps, changes = WORLDS[game]
    failing = faulty.make(tmp_path, monkeypatch, "mixed", after=0.01, world=world)
    settings = configured(game=failing, envs_per_agent=1, agents=8, steps=steps * 3 // 2, tensorboard=False,
                          dynamic=False, agent_timeout=30.0, **changes)
    run = make_run(settings, UntilItPlays)
    run.best, run.clean, run.model = best, game, Learner(settings, run.spec)
    assert Service(settings, run, run.model, interruption).run() == "learned"
    assert run.statistics.environment_faults > run.statistics.agent_steps / 300 and run.statistics.agent_deaths > 0


# Each world in both modes, and in each mode one and four environments an agent; most are slow tests.
OFTEN = {"toy:catch": (), "toy:last-step-reward": ("service-1", "serial-1"), "toy:identity": ("serial-4",),
         "CartPole-v1": ()}


def assert_learned(settings: Settings, best: float, make_run: Callable[..., Recorder], interruption: Signals) -> None:
    """Trains until the mean score is near the `best`, in one thread or in processes as the settings say."""
    run = make_run(settings, UntilLearned)
    run.best = best
    model = Learner(settings, run.spec)
    if settings.run.serial:
        reason = run_serial(settings, run, model, interruption)
    else:
        reason = Service(settings, run, model, interruption).run()
    assert reason == "learned", (f"mean score {np.mean(list(run.statistics.recent_scores)):.3f} after "
                                 f"{settings.run.steps} steps")


@pytest.mark.parametrize(("game", "mode", "envs"), [
    pytest.param(game, mode, envs, id=f"{game}-{mode}-{envs}",
                 marks=[] if f"{mode}-{envs}" in OFTEN[game] else pytest.mark.slow)
    for game in WORLDS for mode in ("service", "serial") for envs in (1, 4)])
def test_it_learns(game: str, mode: str, envs: int, make_run: Callable[..., Recorder], interruption: Signals) -> None:
    best, steps, changes = WORLDS[game]
    settings = configured(game=game, envs_per_agent=envs, agents=8 // envs * 2, steps=steps, tensorboard=False,
                          dynamic=False, serial=mode == "serial", **changes)
    assert_learned(settings, best, make_run, interruption)


def every_algorithm_and_schedule() -> list[Any]:
    """(game, algorithm, schedule, mode): four of them in an ordinary run.

    In rounds a service learns what serial mode learns, to the byte (`test_conductor.py`). Catch stands for all games
    there.
    """
    pairs = [(algorithm, schedule) for algorithm in ("a3c", "a2c", "ppo", "appo")
             for schedule in ("queues", "synchronous", "alternating", "multi-batch")]
    often = {("toy:catch", *each, "serial") for each in (
        ("ppo", "synchronous"), ("appo", "queues"), ("a2c", "alternating"), ("a3c", "multi-batch"))}
    return [pytest.param(*each, id="-".join(each), marks=[] if each in often else pytest.mark.slow)
            for game in WORLDS for algorithm, schedule in pairs for mode in ("serial", "service")
            if game == "toy:catch" or mode == "serial" or schedule == "queues"
            for each in [(game, algorithm, schedule, mode)]]


@pytest.mark.parametrize(("game", "algorithm", "schedule", "mode"), every_algorithm_and_schedule())
def test_every_algorithm_learns_by_every_schedule(
        game: str, algorithm: str, schedule: str, mode: str, make_run: Callable[..., Recorder],
        interruption: Signals) -> None:
    best, steps, changes = WORLDS[game]
    several = {"passes": 3, "minibatches": 4, "clip_range": 0.2} if algorithm.endswith("ppo") else {}
    agents = 8 if schedule == "multi-batch" else 4  # of which half are in an update: 256 agent steps in all of them
    settings = configured(**{
        **changes, "game": game, "algorithm": algorithm, "schedule": schedule, "envs_per_agent": 4, "agents": agents,
        "steps": steps, "tensorboard": False, "dynamic": False, "serial": mode == "serial", "update_groups": 2,
        "rollout_length": 16, "training_batch_min": 256, "learning_rate": 2e-3 if several else 3e-3, **several})
    assert_learned(settings, best, make_run, interruption)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["serial", "service"])
def test_it_learns_from_steps_that_two_updates_use(
        mode: str, make_run: Callable[..., Recorder], interruption: Signals) -> None:
    best, steps, _ = WORLDS["toy:catch"]
    settings = configured(**{
        "game": "toy:catch", "algorithm": "appo", "envs_per_agent": 4, "agents": 8, "steps": steps,
        "tensorboard": False, "dynamic": False, "serial": mode == "serial", "rollout_length": 16,
        "training_batch_min": 256, "learning_rate": 2e-3, "passes": 1, "minibatches": 4,
        "schedule": "multi-batch", "update_groups": 2, "steps_per_update": 4, "slots_per_agent": 3})
    assert_learned(settings, best, make_run, interruption)


@pytest.mark.slow
@pytest.mark.parametrize(("game", "optimizer", "local_updates"), [
    ("toy:last-step-reward", "rmsprop", 1), ("toy:catch", "rmsprop", 1), ("toy:catch", "adam", 1),
    ("toy:catch", "adam", 4), ("CartPole-v1", "rmsprop", 1), ("CartPole-v1", "adam", 1), ("CartPole-v1", "adam", 4)])
def test_two_workers_that_learn_by_themselves_learn(
        game: str, optimizer: str, local_updates: int, make_run: Callable[..., Recorder],
        interruption: Signals) -> None:
    best, steps, changes = WORLDS[game]
    settings = configured(**{
        **changes, "game": game, "algorithm": "a3c-cpu", "agents": 2, "envs_per_agent": 4, "rollout_length": 16,
        "learning_rate": 2e-3, "optimizer": optimizer, "local_updates": local_updates, "rmsprop_epsilon": 1e-3,
        "steps": steps, "tensorboard": False, "agent_timeout": 300.0})
    run = make_run(settings, UntilLearned)
    run.best = best
    reason = Service(settings, run, SharedLearner(settings, run.spec), interruption).run()
    assert reason == "learned", f"mean score {np.mean(list(run.statistics.recent_scores)):.3f}"


@pytest.mark.slow
@pytest.mark.parametrize(("correction", "learns"), [("vtrace", True), ("clipped-is", True), ("none", False)])
def test_from_samples_a_hundred_updates_old_it_learns_if_they_are_corrected(
        correction: str, learns: bool, make_run: Callable[..., Recorder], interruption: Signals) -> None:
    class Late(Learner):
        """Trains on each batch only when a hundred more have come. Until then no update is made."""

        def update(self, batch: Batch, *clock: int) -> UpdateStats | None:
            held.append(batch[np.ones(len(batch), np.bool_)])
            return super().update(held.popleft()) if len(held) > 100 else None

    held = deque[Batch]()
    settings = resolve({"game": "toy:catch", "algorithm": "a3c", "serial": True, "training_batch_min": 1,
                        "rollout_length": 10, "learning_rate": 3.5e-4, "correction": correction,
                        "seed": 2, "steps": 350_000, "tensorboard": False})
    run = make_run(settings, UntilLearned)
    run.best = 1.0
    assert (run_serial(settings, run, Late(settings, run.spec), interruption) == "learned") == learns
