"""Shared weights: pushes are RMSProp's steps, or Adam's, by statistics and counters that all workers share."""

from __future__ import annotations

import multiprocessing
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ga3c.agents.forkserver import start_forkserver
from ga3c.learner.tensorflow.optimizers import build_optimizer
from ga3c.learner.numpy_optimizers import MultiStepAdam
from ga3c.learner.shared_weights import SharedWeights, WorkerReport
from ga3c.settings.files import configured
from ga3c.settings.schema import EnvSettings, Settings

SHAPES = {"network.00": (5, 7), "network.01": (7,), "network.02": (40_000,)}  # the last one is pushed in parts
WORKERS = 3


def settings(**changes: Any) -> Settings:
    return configured(**{"algorithm": "a3c-cpu", "optimizer": "rmsprop", "rmsprop_epsilon": 0.01, **changes})


def made(kinds: int = 1) -> SharedWeights:
    """Weights as a learner makes them, with so many statistics of each array."""
    rng = np.random.default_rng(7)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    names = [(name, *(f"optimizer.{2 + kinds * at + kind:02d}" for kind in range(kinds)))
             for at, name in enumerate(SHAPES)]
    for name, *kept in names:
        arrays |= {each: np.full(SHAPES[name], float(kinds == 1), np.float32) for each in kept}
    arrays |= {"optimizer.00": np.zeros((), np.int64), "optimizer.01": np.zeros((), np.float32),
               "advantage.00": np.zeros(2, np.float32)}
    return SharedWeights(arrays, names, WORKERS, 2, 3)


def gradients(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in SHAPES.values()]


@examples(max_examples=20, deadline=None)
@given(order=st.lists(st.integers(0, WORKERS - 1), min_size=1, max_size=6), rate=st.sampled_from([1e-3, 0.1]))
def test_statistics_and_step_counter_are_of_all_workers_not_of_each(order: list[int], rate: float) -> None:
    shared, s = made(), settings().algorithm
    expected = {name: array.astype(np.float64) for name, array in shared.arrays().items()}
    for number, worker in enumerate(order):
        assert shared.push(worker, s, rate, gradients(number), {}) == number + 1
        for (name, square), gradient in zip(shared.statistics, gradients(number), strict=True):
            g = gradient.astype(np.float64)
            expected[square] = 0.99 * expected[square] + 0.01 * g**2
            expected[name] = expected[name] - rate * g / np.sqrt(expected[square] + 0.01)
    found = shared.arrays()
    for name in (*SHAPES, *(kept for _, kept in shared.statistics)):
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-6, atol=2e-6, err_msg=name)
    assert [shared.updates_of(worker) for worker in range(WORKERS)] == [order.count(w) for w in range(WORKERS)]
    assert shared.version == found["optimizer.00"] == len(order)


def assert_as_after(shared: SharedWeights, one: Any, variables: list[keras.Variable],
                    rtol: float) -> dict[str, np.ndarray]:
    """Weights and statistics are those of this optimizer; returns all shared arrays."""
    found = shared.arrays()
    kept = [name for _, *names in shared.statistics for name in names]
    for variable, name in zip([*variables, *one.variables[2:]], [*SHAPES, *kept], strict=True):
        np.testing.assert_allclose(found[name], variable.numpy(), rtol=rtol, atol=1e-6)
    return found


@pytest.mark.parametrize("optimizer", ["rmsprop", "rmsprop-pytorch", "adam"])
def test_pushes_of_several_workers_are_steps_of_the_one_optimizer(optimizer: str) -> None:
    s = settings(optimizer=optimizer).algorithm
    shared = made(2 if optimizer == "adam" else 1)
    variables = [keras.Variable(shared.arrays()[name]) for name in SHAPES]
    one = build_optimizer(s, variables)
    if optimizer == "rmsprop-pytorch":  # `made` begins as A3C's does
        for mean_square in one.variables[2:]:
            mean_square.assign(np.ones_like(mean_square))
    for number in range(6):
        one.learning_rate.assign(0.01)
        one.apply(gradients(number), variables)
        shared.push(number % WORKERS, s, 0.01, gradients(number), {})
    found = assert_as_after(shared, one, variables, rtol=1e-6)
    assert found["optimizer.00"] == one.iterations.numpy() == 6


@examples(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_one_learners_steps_are_adams_however_rarely_it_shares_them(lengths: list[int]) -> None:
    s = settings(optimizer="adam").algorithm
    shared = made(2)
    variables = [keras.Variable(shared.arrays()[name]) for name in SHAPES]
    one, number = build_optimizer(s, variables), 0
    for length in lengths:
        _, pulled = shared.pull(0)
        steps = shared.steps(s, pulled)
        for _ in range(length):
            rate = 0.01 / (1 + number)
            one.learning_rate.assign(rate)
            one.apply(gradients(number), variables)
            steps.step(gradients(number), rate)
            number += 1
            assert shared.count(0) == number
            for variable, name in zip(variables, SHAPES, strict=True):
                np.testing.assert_allclose(pulled[name], variable.numpy(), rtol=1e-5, atol=1e-6)
        shared.add(0, steps, {"advantage.00": np.full(2, number, np.float32)})
    found = assert_as_after(shared, one, variables, rtol=1e-5)
    assert found["optimizer.00"] == number and (found["advantage.00"] == number).all()


def test_a_running_mean_of_many_workers_who_share_rarely_stays_one() -> None:
    """Sums of what each added would grow without bound: sixteen workers of twenty updates each are enough."""
    s, workers, kept, random = settings(optimizer="adam").algorithm, 16, 0.99**20, np.random.default_rng(0)
    shared = made(2)
    pulled = [shared.pull(0)[1]["advantage.00"] for _ in range(workers)]
    for number in range(1000):
        worker = number % workers
        mean = kept * pulled[worker] + (1 - kept) * np.array([random.uniform(2, 3), 1], np.float32)
        shared.push(worker % WORKERS, s, 0.0, gradients(0), {"advantage.00": mean})
        pulled[worker] = shared.pull(0)[1]["advantage.00"]
        total, weight = pulled[worker]
        assert 0 < weight <= 1 and 2 <= total / weight <= 3, number


def test_what_two_learners_share_is_the_sum_of_their_steps() -> None:
    s = settings(optimizer="adam").algorithm
    shared = made(2)
    shared.push(0, s, 0.01, gradients(9), {})
    before = {name: array.astype(np.float64) for name, array in shared.arrays().items()}
    expected, told = dict(before), []
    for lengths in ((0, 1), (2, 3, 4)):
        steps, own = shared.steps(s, shared.pull(0)[1]), dict(before)
        sums = {name: np.zeros(array.shape) for name, array in before.items()}
        for taken, number in enumerate(lengths, 1):
            steps.step(gradients(number), 0.01)
            for (name, mean, square), gradient in zip(shared.statistics, gradients(number), strict=True):
                g = gradient.astype(np.float64)
                own[mean] = 0.9 * own[mean] + 0.1 * g
                own[square] = 0.999 * own[square] + 0.001 * g**2
                sums[mean], sums[square] = 0.9 * sums[mean] + g, 0.999 * sums[square] + g**2
                t = 1 + taken
                sums[name] += (0.01 * (1 - 0.999**t)**0.5 / (1 - 0.9**t)
                               * own[mean] / (own[square]**0.5 + s.adam_epsilon))
        for name, mean, square in shared.statistics:
            expected[name] = expected[name] - sums[name]
            expected[mean] = 0.9**taken * expected[mean] + 0.1 * sums[mean]
            expected[square] = 0.999**taken * expected[square] + 0.001 * sums[square]
        told.append(steps)
    for worker, steps in enumerate(told):
        shared.add(worker, steps, {})
    found = shared.arrays()
    for names in shared.statistics:
        for name in names:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_learners_who_share_rarely_correct_the_bias_of_the_moments_that_they_have() -> None:
    """Of one gradient again and again, each step of Adam is of the rate, whoever makes it."""
    s, same = settings(optimizer="adam", adam_epsilon=1e-9).algorithm, [np.ones_like(each) for each in gradients(0)]
    shared = made(2)
    for _ in range(3):
        learners = list[MultiStepAdam]()
        for worker in range(WORKERS):
            pulled = shared.pull(worker)[1]
            learners.append(shared.steps(s, pulled))
            for _ in range(8):
                before = pulled["network.00"].copy()
                learners[-1].step(same, 0.01)
                shared.count(worker)
                np.testing.assert_allclose(before - pulled["network.00"], 0.01, rtol=1e-3)
        for worker, steps in enumerate(learners):
            shared.add(worker, steps, {})
    assert shared.version == shared.arrays()["optimizer.00"] == 3 * WORKERS * 8


def test_a_version_is_of_what_is_in_the_weights_and_a_dead_workers_updates_are_not_waited_for() -> None:
    s = settings(optimizer="adam").algorithm
    shared = made(2)

    def three_updates(worker: int) -> MultiStepAdam:
        steps = shared.steps(s, shared.pull(worker)[1])
        for number in range(3):
            steps.step(gradients(number), 0.01)
            shared.count(worker)
        return steps

    steps = three_updates(0)
    assert (shared.version, shared.pull(1)[0]) == (3, 0)
    shared.add(0, steps, {})
    assert (shared.version, shared.pull(1)[0]) == (3, 3)
    three_updates(0)  # the process dies with them
    assert (shared.version, shared.pull(1)[0], shared.arrays()["optimizer.00"]) == (6, 3, 3)
    assert (shared.pull(0)[0], shared.pull(1)[0]) == (6, 6), "the worker's next process has none"
    three_updates(0)
    shared.restart_from(shared.arrays(), 10, 10)
    assert shared.pull(1)[0] == 10, "else what it makes would be refused"


def test_what_is_pulled_while_others_are_set_is_of_no_valid_version() -> None:
    shared, pulled = made(), list[int]()
    right = dict(shared.arrays())

    class Watched(dict[str, Any]):
        """Arrays to set; a worker pulls when half of them are."""

        def items(self) -> Any:
            for number, item in enumerate(super().items()):
                if number == 1:
                    pulled.append(shared.pull(0)[0])
                yield item

    shared.restart_from(Watched(right), 10, 10)
    assert pulled[0] < shared.min_valid_version == 10 and shared.pull(0)[0] == 10


def test_what_was_pulled_is_a_copy() -> None:
    shared = made()
    version, pulled = shared.pull(0)
    assert version == 0 and pulled.keys() == {*SHAPES, "advantage.00"}
    before = {name: array.copy() for name, array in pulled.items()}
    shared.push(0, settings().algorithm, 0.1, gradients(0), {"advantage.00": np.ones(2, np.float32)})
    assert all((pulled[name] == array).all() for name, array in before.items())
    version, pulled = shared.pull(0)
    assert version == 1 and all((pulled[name] != array).any() for name, array in before.items())


def test_totals_go_on_from_what_was_restored_and_a_replaced_worker_goes_on_in_its_row() -> None:
    shared, s = made(), settings().algorithm
    shared.push(1, s, 0.1, gradients(0), {})
    saved = shared.arrays()
    shared.restart_from(saved | {"optimizer.00": np.int64(90)}, 100, 0)
    assert (shared.version, shared.arrays()["optimizer.00"]) == (100, 90)
    assert shared.push(1, s, 0.1, gradients(1), {}) == 101
    assert shared.push(0, s, 0.1, gradients(1), {}) == 102
    assert shared.arrays()["optimizer.00"] == 92 and shared.updates_of(1) == 2


def push_there(shared: SharedWeights, worker: int) -> None:
    for number in range(4):
        shared.push(worker, settings().algorithm, 0.1, gradients(number), {})
    shared.write_report(worker, WorkerReport(3, [1.0, 2.0, float("nan")], 0.5, 6, 2))


def test_other_processes_push_into_the_same_weights() -> None:
    start_forkserver(EnvSettings(game="toy:catch"), 1)
    shared, alone = made(), made()
    for worker in range(2):
        process = multiprocessing.get_context("forkserver").Process(target=push_there, args=(shared, worker))
        process.start()
        process.join()
        push_there(alone, worker)
    ours, theirs = alone.arrays(), shared.arrays()
    assert all((ours[name] == theirs[name]).all() for name in ours) and shared.version == 8 == theirs["optimizer.00"]
    told = shared.read_report(1)
    assert told.version == 3 and told[2:] == (0.5, 6, 2)
    np.testing.assert_array_equal(told.metrics, [1.0, 2.0, np.nan])
