"""The learner: versions, schedules, concurrency, updates that are skipped, restoring."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from batches import VECTOR, learn, random_batch, settings, weights

from ga3c.learner.learner import DeviceFailed, Diverged, Learner, TooLarge
from ga3c.settings.annealing import Annealed


def test_going_back_marks_what_the_weights_that_are_gone_have_predicted() -> None:
    model = Learner(settings(), VECTOR)
    arrays, _ = model.state()
    for _ in range(3):
        learn(model, random_batch())
    _, before = model.predict(np.zeros((1, 3), np.float32))
    model.skips.in_a_row = 9
    model.go_back(arrays)
    _, after = model.predict(np.zeros((1, 3), np.float32))
    assert before < model.min_valid_version <= after and model.skips.in_a_row == 0
    assert all(np.array_equal(array, arrays[name]) for name, array in weights(model).items())


def test_an_update_that_waited_while_the_weights_were_given_up_is_not_made() -> None:
    model, batch = Learner(settings(), VECTOR), random_batch()
    arrays, _ = model.state()
    since = model.min_valid_version
    model.go_back(arrays)
    assert model.update(batch, 0, since) is None and model.version == 1 and model.skips.updates == 0
    assert all(np.array_equal(array, arrays[name]) for name, array in weights(model).items())
    assert model.update(batch, 0, model.min_valid_version) is not None


def test_version_steps_and_schedules_count_on() -> None:
    model = Learner(settings(learning_rate=1.0, learning_rate_final=0.0, anneal_steps=48), VECTOR)
    batch = random_batch()
    rates = []
    for number in range(1, 5):
        update = learn(model, batch, 24 * (number - 1))
        assert (update.version, update.batch_steps) == (number, 24)
        rates.append(update.metrics["learning_rate"])
    assert rates == [1.0, 0.5, 0.0, 0.0]
    assert Annealed(2.0).at(0.7) == 2.0


def test_updates_from_many_threads_are_all_made() -> None:
    model = Learner(settings(learning_rate=1e-5), VECTOR)
    stop = threading.Event()
    predictions = []

    def predict() -> None:
        while not stop.is_set():
            predictions.append(model.predict(np.zeros((2, 3), np.float32))[1])

    reader = threading.Thread(target=predict)
    reader.start()
    with ThreadPoolExecutor(3) as pool:
        updates = pool.map(lambda seed: learn(model, random_batch(seed=seed)), range(90))
        versions = [update.version for update in updates]
    stop.set()
    reader.join()
    assert sorted(versions) == list(range(1, 91))
    assert int(model.state()[0]["optimizer.00"]) == 90
    assert predictions and predictions == sorted(predictions)


def test_a_restored_model_goes_on_exactly() -> None:
    whole, first, second = (Learner(settings(seed=seed), VECTOR) for seed in (0, 0, 1))
    for seed in range(6):
        learn(whole, random_batch(seed=seed))
    for seed in range(3):
        learn(first, random_batch(seed=seed))
    second.restore(*first.state())
    for seed in range(3, 6):
        learn(second, random_batch(seed=seed))
    assert second.version == 6
    for name, array in whole.state()[0].items():
        assert np.array_equal(array, second.state()[0][name]), name


def test_weights_of_another_network_are_refused_and_change_nothing() -> None:
    model, other = Learner(settings(), VECTOR), Learner(settings(), VECTOR._replace(n_actions=5))
    before = model.state()[0]
    with pytest.raises(ValueError, match="another network"):
        model.restore(*other.state())
    assert all(np.array_equal(array, before[name]) for name, array in model.state()[0].items())


def test_an_update_that_is_not_finite_changes_nothing_and_ten_in_a_row_are_divergence() -> None:
    model = Learner(settings(normalize_advantages=True, optimizer="adam"), VECTOR)
    good, bad = random_batch(), random_batch()
    bad.bootstrap_value[0] = np.nan
    learn(model, good)
    before, version = model.state()
    for _ in range(2):
        for _ in range(9):
            assert learn(model, bad) is None
        after = model.state()
        assert after[1] == version
        assert all(array.tobytes() == before[name].tobytes() for name, array in after[0].items())
        assert learn(model, good) is not None, "nine are not ten"
        before, version = model.state()
    assert model.skips.updates == 18
    for _ in range(2):
        for _ in range(9):
            assert learn(model, bad) is None
        with pytest.raises(Diverged, match="update 4 is not finite: policy_loss nan"):  # and ten later, again
            learn(model, bad)


def test_going_back_ends_an_update_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of the weights that are given up, and with several passes it may take longer than one waits for it."""
    model, begun = Learner(settings(), VECTOR), threading.Event()
    state, right = model.state()[0], model._backend.update

    def update(inputs: Any, rates: Any, target: Any, seed: Any, over: Callable[[], bool]) -> Any:
        begun.set()
        deadline = time.monotonic() + 60
        while not over():
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return right(inputs, rates, target, seed, over)

    monkeypatch.setattr(model._backend, "update", update)
    thread = threading.Thread(target=learn, args=(model, random_batch()))
    thread.start()
    assert begun.wait(60)
    model.go_back(state)
    thread.join()
    assert (model.version, model.min_valid_version, model.ending_early) == (2, 2, False)


def test_a_new_model_may_begin_with_the_weights_of_another_but_not_of_another_shape() -> None:
    one, other = Learner(settings(seed=1), VECTOR), Learner(settings(seed=2), VECTOR)
    learn(one, random_batch())
    other.start_from(one.state()[0])
    ours, theirs = one.state(), other.state()
    assert theirs[1] == 0
    for name, array in ours[0].items():
        assert (array.tobytes() == theirs[0][name].tobytes()) or not name.startswith("network.")
    before = other.state()[0]
    with pytest.raises(ValueError, match=r"another network: network.0. is \("):
        other.start_from({name: array[:1] for name, array in ours[0].items() if array.ndim})
    assert all(array.tobytes() == before[name].tobytes() for name, array in other.state()[0].items())


def test_a_checkpoint_does_not_wait_for_ever_for_an_update_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ga3c.learner.learner.UPDATE_TIMEOUT", 0.1)
    model = Learner(settings(), VECTOR)
    assert model.can_read_state()
    with model._update_lock, pytest.raises(DeviceFailed, match="an update did not end within 0.1 s"):
        model.state()
    with model._update_lock:
        assert not model.can_read_state()
    assert model.state()


@pytest.mark.parametrize("trainers", [1, 4])
def test_a_checkpoint_waits_for_updates_as_long_as_those_before_took(
        trainers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a batch so large that each update takes longer than one waits else."""
    monkeypatch.setattr("ga3c.learner.learner.UPDATE_TIMEOUT", 0.0)
    model, begun = Learner(settings(), VECTOR), threading.Event()
    right, old = model._backend.update, random_batch()

    def update(*given: Any) -> Any:
        begun.set()
        time.sleep(0.7)
        return right(*given)

    monkeypatch.setattr(model._backend, "update", update)
    learn(model, random_batch())
    assert model.update(old, 0, 7) is None, "which takes no time and says nothing of how long one does"
    begun.clear()
    threads = [threading.Thread(target=learn, args=(model, random_batch())) for _ in range(trainers)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    try:
        assert model.state()[1] >= 2
    finally:
        for thread in threads:
            thread.join()


def test_a_policy_is_of_the_version_that_it_is_said_to_be_of() -> None:
    model, observation = Learner(settings(learning_rate=0.01, optimizer="adam"), VECTOR), np.ones((1, 3), np.float32)
    by_version = {0: model.predict(observation)[0]["policy"]}
    seen: list[tuple[int, np.ndarray]] = []
    ended = threading.Event()

    def predict() -> None:
        while not ended.is_set():
            outputs, version = model.predict(observation)
            seen.append((version, outputs["policy"]))

    thread = threading.Thread(target=predict)
    thread.start()
    for version in range(1, 40):
        assert learn(model, random_batch()) is not None
        by_version[version] = model.predict(observation)[0]["policy"]
    ended.set()
    thread.join()
    assert seen and all(np.array_equal(policy, by_version[version]) for version, policy in seen)
    assert len({policy.tobytes() for policy in by_version.values()}) == 40


def test_a_batch_without_a_step_is_no_update_and_no_failure() -> None:
    model, empty = Learner(settings(normalize_advantages=True), VECTOR), random_batch()
    empty.clear(slice(None))
    before = model.state()
    model.skips.in_a_row = 9
    assert learn(model, empty) is None and model.skips.updates == 0 and model.skips.in_a_row == 9
    after = model.state()
    assert after[1:] == before[1:] and all(np.array_equal(before[0][name], after[0][name]) for name in before[0])


def test_the_size_of_an_update_that_the_device_has_no_memory_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = Learner(settings(), VECTOR), random_batch()

    def full(arrays: Any) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "out of memory")

    monkeypatch.setattr(model._backend._compiler, "tensors", full)
    with pytest.raises(TooLarge, match=f"no memory for an update of {batch.size} agent steps"):
        learn(model, batch)


def test_a_snapshot_never_changes_and_an_update_puts_another_in_its_place() -> None:
    model, observation = Learner(settings(learning_rate=0.01, optimizer="adam"), VECTOR), np.ones((2, 3), np.float32)
    first, before = model.snapshot(), model.predict(observation)[0]
    learn(model, random_batch())
    second = model.snapshot()
    assert (first.version, second.version) == (0, 1)
    np.testing.assert_equal(model._backend.predict(observation, first.weights), before)
    assert not np.array_equal(model._backend.predict(observation, second.weights)["value"], before["value"])


def test_a_state_holds_the_names_that_checkpoints_of_earlier_versions_hold() -> None:
    arrays, _ = Learner(settings(optimizer="adam"), VECTOR).state()
    shapes = [(3, 64), (64,), (64, 64), (64,), (64, 4), (4,), (64, 1), (1,)]
    assert [(name, arrays[name].shape) for name in arrays if name.startswith("network.")] == [
        (f"network.{number:02d}", shape) for number, shape in enumerate(shapes)]
    # Adam: iterations, learning rate, then a mean and a mean square of each weight.
    assert [name for name in arrays if not name.startswith("network.")] == [
        *(f"optimizer.{number:02d}" for number in range(18)), "advantage.00"]
    assert arrays["advantage.00"].shape == (2,)
