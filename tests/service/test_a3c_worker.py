"""A3C on processors: what a worker plays by, and what it pushes."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import keras
import numpy as np
import pytest
from workers import T, settings

from ga3c.agents.process import ModelFailed
from ga3c.agents.loop import Progress, agent_seed, play, seeded
from ga3c.algorithms.acting import BY_POLICY
from ga3c.envs.base import Environment, EnvSpec
from ga3c.envs.check import probe
from ga3c.envs.factory import make_environment
from ga3c.learner.backend import make_differentiating
from ga3c.learner.learner import Diverged, Learner, UpdateStats, make_algorithm
from ga3c.learner.samples import batch_fields
from ga3c.learner.shared_learner import SharedLearner
from ga3c.learner.skips import SKIPS_MAX
from ga3c.runs.recorder import Recorder
from ga3c.runs.statistics import PredictionCount, Statistics
from ga3c.service.a3c_worker import LocalModel, _signs_of_life
from ga3c.service.counter import run_counter
from ga3c.service.training import WorkersTraining
from ga3c.service.serial import run_serial
from ga3c.service.signals import Signals
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.port import PREDICT, SUBMIT
from ga3c.transport.slots import AgentStatus, Batch, Slots

MakeRun = Callable[..., Recorder]


def gradients_by(arrays: dict[str, np.ndarray], world: World, batch: Batch) -> list[np.ndarray]:
    """Those of a batch by a model with these weights."""
    algorithm = make_algorithm(world.settings)
    fields = batch_fields(world.settings, world.spec, algorithm.outputs(world.spec))
    backend = make_differentiating(world.settings, world.spec, algorithm, fields)
    rates = {"learning_rate": 0.0, "entropy_coef": world.settings.actor_critic.entropy_coef}
    backend.assign(arrays)
    return backend.gradients(backend.inputs(batch), rates).gradients


class World:
    """Workers in this process, one rollout at a time; what they make of it is counted at once."""

    def __init__(self, chosen: Settings) -> None:
        self.settings, self.spec = chosen, probe(chosen)
        self.learner = SharedLearner(chosen, self.spec)
        self.store = Slots(self.spec, T, chosen.agents.envs_per_agent, 2 * chosen.schedule.agents,
                           chosen.schedule.agents, self.learner.outputs)
        self.channel = Channel(self.store, 2)
        self.environments: list[Environment] = []

    def worker(self, number: int) -> Worker:
        environment = make_environment(self.settings, self.store.n_envs)
        self.environments.append(environment)
        return Worker(self, number, environment)

    def close(self) -> None:
        self.channel.close()
        for environment in self.environments:
            environment.close()


class Worker:
    """One of them; `requests` are granted until a rollout was submitted."""

    def __init__(self, world: World, number: int, environment: Environment) -> None:
        self.world, self.port = world, world.channel.open(number)
        self.model = LocalModel(self.port, world.store, world.settings, world.spec, world.learner.shared)
        seed, rng = seeded(agent_seed(world.settings, number, 1, 0))
        environment.reset(seed)
        self._player = play(environment, world.store, rng, BY_POLICY, number, Progress.new(world.store.n_envs),
                            again=world.settings.schedule.requests_twice)
        self._request = next(self._player)

    def grant(self) -> tuple[int, int, int]:
        """Grants one request, which it returns."""
        request = self._request
        self._request = self._player.send(self.model.grant(request, self.world.store))
        return request

    def predict(self, times: int) -> int:
        """Grants requests until so many were predictions; returns the slot of the last one."""
        while True:
            kind, slot, _ = self.grant()
            times -= kind == PREDICT
            if not times:
                return slot

    def rollout(self) -> tuple[UpdateStats | None, dict[str, np.ndarray]]:
        """Grants requests until a rollout was submitted; what was counted of it, and a copy of its facts."""
        kind = PREDICT
        while kind != SUBMIT:
            kind, slot, _ = self.grant()
        with self.world.channel.collect(1) as collection:
            assert collection.slots == [slot]
            batch = self.world.store.view(slot)
            self.world.learner.shared.agent_steps += batch.agent_steps  # as the main process counts them
            return (self.world.learner.read_update(slot, batch)[0],
                    {name: array.copy() for name, array in batch.arrays.items()})


@pytest.fixture
def world() -> Any:
    made: list[World] = []

    def make(**changes: Any) -> World:
        made.append(World(settings(**changes)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def by_the_weights_of(arrays: dict[str, np.ndarray], world: World) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """Predicts as a model with these weights does."""
    model = Learner(world.settings, world.spec)
    model.restore(arrays, 0)
    return lambda observation: model.predict(observation)[0]


def test_weights_are_constant_within_a_rollout_whatever_others_push(world: Callable[..., World]) -> None:
    made = world()
    one, other = made.worker(0), made.worker(1)
    before = by_the_weights_of(made.learner.shared.arrays(), made)
    slot = one.predict(2)
    other.rollout()
    one.predict(1)
    other.rollout()
    update, facts = one.rollout()
    assert (facts["version"] == 0).all() and update is not None and update.version == 3
    played = before(facts["observation"][0, :, 0])
    np.testing.assert_allclose(facts["policy"][0, :, 0], played["policy"], atol=1e-6)
    after = before(facts["following"][0])
    np.testing.assert_allclose(facts["bootstrap_value"][0], after["value"], atol=1e-6)
    newest = by_the_weights_of(made.learner.shared.arrays(), made)
    slot = one.predict(1)
    now = newest(made.store.observation[slot, 0])
    np.testing.assert_allclose(made.store.policy[slot, 0], now["policy"], atol=1e-6)
    assert abs(made.store.value[slot, 0] - after["value"]) > 1e-4, "the copy is a new one after a rollout"


def test_a_gradient_is_of_the_workers_copy_and_pushed_by_the_statistics_of_all(world: Callable[..., World]) -> None:
    made, pushed = world(), []
    shared = made.learner.shared
    push = shared.push

    def noted(worker: int, s: Any, rate: float, gradients: list[np.ndarray], *more: Any) -> int:
        pushed.append((rate, [gradient.astype(np.float64) for gradient in gradients]))
        return push(worker, s, rate, gradients, *more)

    def seen(slot: int) -> Batch:
        batch = made.store.empty_batch(1)
        made.store.gather([slot], batch, 0)
        return batch

    workers, batches = [made.worker(0), made.worker(1)], list[Batch]()
    for each in workers:
        learn = each.model._learn
        each.model._shared = Noted(shared, noted)
        each.model._learn = lambda slot, learn=learn: (batches.append(seen(slot)), learn(slot))  # type: ignore
    expected = {name: array.astype(np.float64) for name, array in shared.arrays().items()}
    copies = 2 * [shared.arrays()]
    workers[0].predict(3)
    lags = []
    for number in (1, 1, 0, 1, 0, 0):
        update, facts = workers[number].rollout()
        assert update is not None
        for ours, pushes in zip(gradients_by(copies[number], made, batches[-1]), pushed[-1][1], strict=True):
            np.testing.assert_allclose(pushes, ours, rtol=1e-3, atol=1e-5)
        copies[number] = shared.arrays()  # it pulls after it has pushed
        lags.append(update.version - 1 - int(facts["version"][0, 0]))
    assert lags == [0, 0, 2, 1, 1, 0], "pushes of others since the worker's pull"
    for rate, gradients in pushed:
        for (name, square), gradient in zip(shared.statistics, gradients, strict=True):
            expected[square] = 0.99 * expected[square] + 0.01 * gradient**2
            expected[name] = expected[name] - rate * gradient / np.sqrt(expected[square] + 0.1)
    assert len(pushed) == 6 == shared.version
    for name, *kept in shared.statistics:
        for each in (name, *kept):
            np.testing.assert_allclose(shared.arrays()[each], expected[each], rtol=1e-5, atol=1e-6, err_msg=each)


def test_a_push_is_at_the_scheduled_rate_times_the_runs_factor(world: Callable[..., World]) -> None:
    made, rates = world(learning_rate=0.02, learning_rate_final=0.01, anneal_steps=T), list[float]()
    worker, push = made.worker(0), made.learner.shared.push
    worker.model._shared = Noted(made.learner.shared, lambda number, s, rate, *more: (
        rates.append(rate), push(number, s, rate, *more))[1])
    worker.rollout()
    worker.rollout()
    made.learner.learning_rate_factor = 0.5
    worker.rollout()
    assert rates == pytest.approx([0.02, 0.01, 0.005])


class Noted:
    """Shared weights whose pushes are noted."""

    def __init__(self, shared: Any, push: Callable[..., int]) -> None:
        self._shared, self.push = shared, push

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)


def averaging() -> ModuleType:
    """A user's module, whose network has weights that no gradient changes: moving averages of what it sees."""
    def build(settings: Settings, spec: EnvSpec) -> keras.Model:
        seen = keras.Input(spec.observation_shape)
        scaled = keras.layers.BatchNormalization()(keras.layers.Flatten()(seen))
        return keras.Model(seen, {"policy": keras.layers.Dense(spec.n_actions, activation="softmax")(scaled),
                                  "value": keras.layers.Dense(1)(scaled)})

    module = ModuleType("averaging")
    module.build = build  # type: ignore[attr-defined]
    return module


# Counting has truncated episodes, whose last observation is predicted in a row of its own.
@pytest.mark.parametrize(("game", "optimizer", "local_updates", "network"), [
    ("toy:catch", "rmsprop", 1, "auto"), ("toy:counting", "adam", 1, "auto"), ("toy:counting", "adam", 5, "auto"),
    ("toy:catch", "rmsprop", 1, "averaging:build"), ("toy:catch", "adam", 5, "averaging:build")])
def test_one_worker_learns_what_plain_sequential_a3c_does(
        game: str, optimizer: str, local_updates: int, network: str, world: Callable[..., World], make_run: MakeRun,
        interruption: Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "averaging", averaging())
    rollouts, changes = 24, {"game": game, "optimizer": optimizer, "agents": 1, "envs_per_agent": 2,
                             "network": network}
    made = world(**changes, local_updates=local_updates)
    worker = made.worker(0)
    for _ in range(rollouts):
        update, facts = worker.rollout()
    assert update is not None and update.version == rollouts
    worker.model.status(made.store, AgentStatus.DRAINED)  # the last four updates are shared
    alone = settings(**changes, serial=True, steps=rollouts * T * 2)
    run = make_run(alone)
    model = Learner(alone, run.spec)
    assert run_serial(alone, run, model, interruption) == f"--steps {alone.run.steps}"
    arrays, version = model.state()
    ours = made.learner.shared.arrays()
    assert version == made.learner.version == rollouts and ours.keys() == arrays.keys()
    assert ours["optimizer.00"] == arrays["optimizer.00"] == rollouts
    for name in arrays.keys() - {"optimizer.00", "optimizer.01"}:
        # Compiled apart, their sums differ in the last bits, which Adam enlarges where gradients are next to nothing.
        # One of its 24 steps is a hundred times as much.
        np.testing.assert_allclose(ours[name], arrays[name], rtol=1e-5, atol=1e-4 if optimizer == "adam" else 1e-6,
                                   err_msg=name)


def test_own_updates_are_shared_after_as_many_as_wanted_and_at_the_end(world: Callable[..., World]) -> None:
    made = world(optimizer="adam", local_updates=3)
    one, other, shared = made.worker(0), made.worker(1), made.learner.shared

    def moved() -> bool:
        before.append(shared.arrays()["network.00"])
        return bool((before[-1] != before[-2]).any())

    before, lags = [shared.arrays()["network.00"]], list[int]()
    other.predict(1)
    for due in (False, False, True, False):
        update, facts = one.rollout()
        assert update is not None and moved() == due and np.ptp(facts["version"][0]) == 0
        lags.append(update.version - 1 - int(facts["version"][0, 0]))
    update, facts = other.rollout()
    assert update is not None and not moved() and (facts["version"] == 0).all() and update.version == 5
    update, facts = other.rollout()
    assert update is not None and (update.version, int(facts["version"][0, 0])) == (6, 1), "its own update alone"
    assert lags == [0] * 4
    one.model.status(made.store, AgentStatus.DRAINED)
    assert moved() and shared.version == 6
    one.model.status(made.store, AgentStatus.PLAYING)
    assert not moved()
    made.learner.go_back(made.learner.state()[0])
    other.model.status(made.store, AgentStatus.DRAINED)
    assert not moved(), "its weights were given up"


def test_in_one_thread_each_worker_plays_a_rollout_and_pushes_before_the_next_one_plays(
        make_run: MakeRun, interruption: Signals) -> None:
    chosen = settings(serial=True, agents=3, steps=12 * T, game="toy:counting")
    run = make_run(chosen)
    model, seen = Learner(chosen, run.spec), list[tuple[int, list[int]]]()
    update = model.update

    def noted(batch: Batch, *clock: int) -> UpdateStats | None:
        agent = int(batch.observation[0, 0, 0].view("<u4")[0])
        seen.append((agent, (model.version - batch.version[0, :T]).tolist()))
        return update(batch, *clock)

    model.update = noted  # type: ignore[method-assign]
    run_serial(chosen, run, model, interruption)
    agents = list(dict.fromkeys(agent for agent, _ in seen))
    assert len(agents) == 3 and [agent for agent, _ in seen] == agents * 4
    assert all(lags == [0] * T for _, lags in seen)


def test_what_is_not_finite_is_not_pushed_and_weights_given_up_push_nothing(world: Callable[..., World]) -> None:
    made = world()
    one, other, learner = made.worker(0), made.worker(1), made.learner
    update, _ = one.rollout()
    assert update is not None
    sound = learner.state()[0]
    spoilt = {name: np.full_like(array, np.nan) if name == "network.00" else array for name, array in sound.items()}
    other.predict(2)  # by the weights of the beginning
    learner.shared.restart_from(spoilt, 1, 0)
    one.rollout()  # its copy is sound yet; it pulls what is not
    for _ in range(SKIPS_MAX - 1):
        assert one.rollout()[0] is None
    with pytest.raises(Diverged, match="update 3 is not finite"):
        one.rollout()
    assert learner.version == 2 and learner.skips.updates == SKIPS_MAX
    learner.go_back(sound)
    assert learner.version == 3
    before = learner.state()[0]
    assert other.rollout()[0] is None and one.rollout()[0] is None, "both have pulled weights that were given up"
    after = learner.state()[0]
    assert all((before[name] == after[name]).all() for name in before) and learner.skips.updates == SKIPS_MAX
    update, _ = other.rollout()
    assert update is not None and update.version == 4


def test_a_rollout_at_which_it_diverges_is_counted_as_dropped(world: Callable[..., World]) -> None:
    class Diverges:
        shared = SimpleNamespace()

        def read_update(self, slot: int, batch: Batch) -> Any:
            raise Diverged("at once")

    made, statistics = world(), Statistics(1)
    worker, kind = made.worker(0), PREDICT
    while kind != SUBMIT:
        kind, *_ = worker.grant()
    with pytest.raises(Diverged):
        run_counter(made.channel, made.store, cast(Any, Diverges()), PredictionCount(), statistics, cast(Any, None))
    statistics.drain()
    assert statistics.dropped_steps == statistics.agent_steps == T * made.store.n_envs


def test_a_worker_gives_signs_of_life_while_it_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "part_of_a_large_library.py").write_text("import another_part_of_it\n")
    (tmp_path / "another_part_of_it.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    signs, before = list[int](), list(sys.meta_path)
    with _signs_of_life(lambda: signs.append(1)):
        importlib.import_module("part_of_a_large_library")
    assert len(signs) == 2 and sys.meta_path == before
    assert "another_part_of_it" in sys.modules


def test_a_checkpoint_has_weights_statistics_and_counters_and_workers_go_on_from_it(
        world: Callable[..., World]) -> None:
    first, second = world(), world()
    worker = first.worker(0)
    for _ in range(3):
        worker.rollout()
    arrays, version = first.learner.state()
    assert version == 3
    second.learner.restore(arrays, version)
    again = second.learner.state()
    assert again[1] == 3 and again[0].keys() == arrays.keys()
    assert all((again[0][name] == array).all() for name, array in arrays.items())
    update, facts = second.worker(1).rollout()
    assert update is not None and update.version == 4
    assert (facts["version"] == 3).all()
    value = by_the_weights_of(arrays, second)(facts["following"][0])["value"]
    np.testing.assert_allclose(facts["bootstrap_value"][0], value, atol=1e-6)


def test_a_rollout_that_the_model_fails_to_learn_from_is_not_delivered(
        world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: LocalModel, slot: int) -> None:
        raise ZeroDivisionError

    made = world()
    worker = made.worker(0)
    monkeypatch.setattr(LocalModel, "_learn", fails)
    while (request := worker._request)[0] != SUBMIT:
        worker.grant()
    made.store.submitted_at[request[1]] = time.monotonic()  # as `drive` says before it submits
    with pytest.raises(ModelFailed):
        worker.grant()
    assert not made.channel.has_delivered(0) and made.channel.training_queue == 0


def test_a_rollout_that_was_learned_from_is_not_dropped_though_nobody_has_counted_it(
        world: Callable[..., World]) -> None:
    made = world()
    worker, kind = made.worker(0), PREDICT
    while kind != SUBMIT:
        kind, slot, _ = worker.grant()
    training = cast(WorkersTraining, SimpleNamespace(_shared=made.learner))
    assert made.channel.drop_rollouts() == [slot] and WorkersTraining._untrained(training, [slot]) == []
    made.learner.shared.write_report(slot, made.learner.shared.read_report(slot)._replace(version=0))
    assert WorkersTraining._untrained(training, [slot]) == [slot]
