"""What a run remembers: rollouts as they were played, lives apart, and targets at their steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ga3c.agents.loop import Progress, play
from ga3c.algorithms.acting import epsilon_greedily
from ga3c.envs.base import EnvSpec
from ga3c.envs.check import probe
from ga3c.envs.factory import make_environment
from ga3c.learner.learner import UpdateStats
from ga3c.runs.statistics import Statistics
from ga3c.service.memory import Memory
from ga3c.service.resources import preflight
from ga3c.settings.files import configured
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field
from ga3c.transport.port import GO_ON, PREDICT, SUBMIT, TAKE
from ga3c.transport.slots import Batch, Slots


def settings(**changes: Any) -> Settings:
    return configured(**{"game": "toy:identity", "algorithm": "dqn", "agents": 2, "envs_per_agent": 2,
                         "rollout_length": 4, "replay_size": 2000, "replay_start": 40, "training_batch_min": 8,
                         "intensity": 2.0, "target_steps": 100, "n_step": 1, **changes})


class Keeps:
    """Notes when the target is kept."""

    def __init__(self) -> None:
        self.kept: list[int] = []
        self.statistics = Statistics(1)

    def keep_target(self) -> None:
        """See `Learner.keep_target`."""
        self.kept.append(self.statistics.agent_steps)


def rollouts(chosen: Settings, spec: EnvSpec, number: int) -> list[Batch]:
    """So many rollouts of one agent, as it submits them."""
    outputs = {"q": Field((spec.n_actions,), np.dtype(np.float32))}
    store = Slots(spec, chosen.algorithm.rollout_length, 2, 64, outputs=outputs)
    free, found = iter(range(64)), list[Batch]()
    environment = make_environment(chosen, 2)
    environment.reset(1)
    player = play(environment, store, np.random.default_rng(0), epsilon_greedily(chosen), 0, Progress.new(2), cuts=True)
    kind, number_of_slot, _ = next(player)
    while len(found) < number:
        if kind == SUBMIT:
            found.append(store.view(number_of_slot))
        assert kind in (TAKE, PREDICT, SUBMIT)
        kind, number_of_slot, _ = player.send(next(free) if kind == TAKE else GO_ON)
    return found


def test_a_slot_ends_where_an_episode_is_cut_and_its_final_observation_is_remembered() -> None:
    chosen = settings()
    spec = probe(chosen)
    memory = Memory(chosen, spec, cast(Any, Keeps()), Statistics(1))
    played = rollouts(chosen, spec, 9)
    for rollout in played:
        memory.append(rollout, 0)
    assert [int(rollout.steps[0]) for rollout in played] == [4] * 9, "sixteen steps are four slots"
    ends = [bool(rollout.truncated[0, 3].all()) for rollout in played]
    assert ends == [number % 4 == 3 for number in range(9)]
    ring = memory._ring
    assert ring.written[:2].tolist() == [36 + 2] * 2, "two final observations beside the steps"
    cut = np.array([15])
    sampled = ring.draw(np.zeros(1, np.int64), cut)
    np.testing.assert_array_equal(sampled.following[0], played[3].following[0, 0])
    assert sampled.discount.tolist() == pytest.approx([0.99])


def test_a_slot_that_is_cut_early_has_fewer_steps() -> None:
    chosen = settings(rollout_length=5)
    played = rollouts(chosen, probe(chosen), 9)
    steps = [int(rollout.steps[0]) for rollout in played]
    assert steps == [5, 5, 5, 1, 4, 5, 5, 2, 3], "later slots end where they would have"
    cut = [number for number, rollout in enumerate(played) if rollout.truncated[0, steps[number] - 1].all()]
    assert cut == [3, 7]


def test_lives_of_an_agent_are_not_joined_and_updates_and_targets_are_due_by_the_steps() -> None:
    chosen, learner = settings(n_step=3), Keeps()
    spec = probe(chosen)
    memory = Memory(chosen, spec, cast(Any, learner), learner.statistics)
    first, second = rollouts(chosen, spec, 3), rollouts(chosen, spec, 40)
    updates = appended = 0
    for generation, life in ((1, first), (2, second)):
        for rollout in life:
            memory.append(rollout, 0, generation)
            appended += 8
            while memory.due:
                batch = memory.draw()
                assert batch.size == 8 and batch.agent_steps == 0 and batch.observation.shape == (8, 1, 1, 4)
                updates += 1
                memory.learned(UpdateStats(updates, 8, {}, rows={"error": np.ones(8, np.float32)}))
    assert 8 * updates == pytest.approx(2.0 * (appended - 40), abs=8)
    assert learner.kept == [104, 200, 304], "as soon as an update follows step 100, 200 and 300"
    ring = memory._ring
    assert not ring.usable(np.zeros(1, np.int64), np.array([11]))[0], "the last step before the new life"
    assert ring.draw(np.zeros(1, np.int64), np.array([9])).discount.tolist() == pytest.approx([0.99**2])


def test_a_run_that_goes_on_keeps_its_targets_at_the_same_steps() -> None:
    chosen, learner = settings(), Keeps()
    learner.statistics.agent_steps = 250
    memory = Memory(chosen, probe(chosen), cast(Any, learner), learner.statistics)
    for rollout in rollouts(chosen, probe(chosen), 20):
        memory.append(rollout, 0)
        memory.learned(None)
    assert learner.kept == [306, 402]


def test_a_replay_that_does_not_fit_is_refused_before_the_run(tmp_path: Any) -> None:
    memory = next(finding for finding in preflight(settings(), tmp_path, 16, 10**15) if finding.name == "memory")
    assert not memory.ok and "a smaller --replay-size" in memory.remedy
    assert next(finding for finding in preflight(settings(), tmp_path, 16) if finding.name == "memory").ok


def test_an_error_of_rows_that_were_halved_is_not_reported() -> None:
    chosen = settings(priority_alpha=0.5)
    memory = Memory(chosen, probe(chosen), cast(Any, Keeps()), Statistics(1))
    for rollout in rollouts(chosen, probe(chosen), 9):
        memory.append(rollout, 0)
    memory.draw()
    before = cast(Any, memory._sampler)._tree.total
    memory.learned(cast(Any, SimpleNamespace(rows={"error": np.ones(4, np.float32)})))
    assert cast(Any, memory._sampler)._tree.total == before
