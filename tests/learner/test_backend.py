"""What TensorFlow does for us: precision, optimisers, threads, the device's failures, shared memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from batches import FIELDS, IMAGE, VECTOR, heads, learn, random_batch, settings, weights

from ga3c.algorithms.base import Head, Loss, Network, Prepared, Rates, Tensor
from ga3c.envs.base import EnvSpec
from ga3c.learner.failures import DeviceFailed, TooLarge
from ga3c.learner.learner import Learner
from ga3c.learner.tensorflow.backend import Updating
from ga3c.learner.tensorflow.device import precision
from ga3c.learner.tensorflow.optimizers import Adam, build_optimizer
from ga3c.settings.annealing import Annealed
from ga3c.transport.fields import Field
from ga3c.transport.slots import aligned


def test_a_clipped_gradient_has_the_given_norm() -> None:
    model = Learner(settings(max_grad_norm=1e-3, rmsprop_epsilon=1e6, learning_rate=1e6), VECTOR)
    before = weights(model)
    learn(model, random_batch())
    after = weights(model)
    # With a huge epsilon RMSProp is plain descent with learning_rate / sqrt(epsilon) = 1e3.
    norm = np.sqrt(sum(((after[name] - before[name]) ** 2).sum() for name in before)) / 1e3
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_the_first_step_of_adam_is_the_learning_rate_in_every_weight_that_has_a_gradient() -> None:
    model = Learner(settings(optimizer="adam", adam_epsilon=1e-12, learning_rate=1e-3), VECTOR)
    before = weights(model)
    learn(model, random_batch())
    moved = [abs(after - before[name]) for name, after in weights(model).items()]
    assert np.concatenate([step.ravel() for step in moved]) == pytest.approx(1e-3, rel=1e-3)


def test_adam_takes_the_steps_of_its_paper_also_where_a_gradient_is_sparse() -> None:
    rng = np.random.default_rng(0)
    variables = [keras.Variable(rng.normal(size=shape).astype(np.float32)) for shape in ((3, 2), (4,))]
    expected = [variable.numpy().astype(np.float64) for variable in variables]
    mean, square = [np.zeros_like(x) for x in expected], [np.zeros_like(x) for x in expected]
    optimizer = Adam(0.01, epsilon=0.1)
    optimizer.build(variables)
    for step in range(1, 6):
        optimizer.learning_rate.assign(0.01 * step)
        gradients = [rng.normal(size=x.shape).astype(np.float32) for x in expected]
        gradients[0][1] = 0
        sparse = tf.IndexedSlices(tf.constant(gradients[0][[0, 2]]), tf.constant([0, 2]), tf.constant([3, 2]))
        optimizer.apply([sparse, tf.constant(gradients[1])], variables)
        for number, gradient in enumerate(gradients):
            mean[number] = 0.9 * mean[number] + 0.1 * gradient
            square[number] = 0.999 * square[number] + 0.001 * gradient.astype(np.float64) ** 2
            rate = 0.01 * step * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
            expected[number] -= rate * mean[number] / (np.sqrt(square[number]) + 0.1)
    for variable, should_be in zip(variables, expected, strict=True):
        assert variable.numpy() == pytest.approx(should_be, rel=1e-4)
    assert int(optimizer.iterations) == 5


def test_pytorchs_rmsprop_has_epsilon_beside_the_root_and_begins_at_0() -> None:
    rng, s = np.random.default_rng(0), settings(optimizer="rmsprop-pytorch", rmsprop_decay=0.9, rmsprop_epsilon=0.01)
    variables = [keras.Variable(np.ones(3, np.float32)), keras.Variable(np.zeros((2, 2), np.float32))]
    optimizer, expected = build_optimizer(s.algorithm, variables), [variable.numpy() for variable in variables]
    square = [np.zeros_like(x, np.float64) for x in expected]
    for _ in range(5):
        gradients = [rng.normal(size=x.shape).astype(np.float32) for x in expected]
        optimizer.learning_rate.assign(0.02)
        optimizer.apply(list(map(tf.constant, gradients)), variables)
        for number, gradient in enumerate(gradients):
            square[number] = 0.9 * square[number] + 0.1 * gradient.astype(np.float64) ** 2
            expected[number] -= 0.02 * gradient / (np.sqrt(square[number]) + 0.01)
    for variable, should_be in zip(variables, expected, strict=True):
        assert variable.numpy() == pytest.approx(should_be, rel=1e-5)


@pytest.mark.parametrize("changes", [
    {"optimizer": "adam", "max_grad_norm": 0.5}, {"optimizer": "rmsprop"}, {"optimizer": "rmsprop-pytorch"},
    {"algorithm": "ppo", "optimizer": "adam", "minibatches": 2, "passes": 2}], ids=str)
def test_norms_are_of_the_weights_and_of_the_steps_and_change_nothing(changes: dict[str, object]) -> None:
    plain, model = (Learner(settings(**changes, norms=norms), VECTOR) for norms in (False, True))
    for number in range(3):
        before, batch = weights(model), random_batch(seed=number)
        without, update = learn(plain, batch), learn(model, batch)
        assert update.metrics.keys() - without.metrics.keys() == {"weight_norm", "step_norm"}
        assert without.metrics.items() <= update.metrics.items()
        moved = norm(after - before[name] for name, after in weights(model).items())
        if "passes" in changes:  # means over four steps: the way is no longer than all of them
            assert 0 < moved / 4 <= update.metrics["step_norm"]
        else:
            assert update.metrics["weight_norm"] == pytest.approx(norm(before.values()), rel=1e-5)
            assert update.metrics["step_norm"] == pytest.approx(moved, rel=1e-3)
    assert all(np.array_equal(array, weights(plain)[name]) for name, array in weights(model).items())


def norm(arrays: Iterable[np.ndarray]) -> float:
    return float(np.sqrt(sum((array.astype(np.float64) ** 2).sum() for array in arrays)))


def test_updates_in_bfloat16_go_the_way_of_those_in_float32() -> None:
    models = [Learner(settings(precision=how), IMAGE) for how in ("float32", "bfloat16")]
    before = weights(models[0])
    assert [model.precision for model in models] == ["float32", "bfloat16"]
    for model in models:
        learn(model, random_batch(spec=IMAGE))
    moves = [np.concatenate([(array - before[name]).ravel() for name, array in weights(model).items()])
             for model in models]
    cosine = moves[0] @ moves[1] / np.linalg.norm(moves[0]) / np.linalg.norm(moves[1])
    assert cosine > 0.99 and not np.array_equal(*moves)


@pytest.mark.parametrize(("flags", "found"), [("fma avx512_bf16 sse", "bfloat16"), ("amx_bf16", "bfloat16"),
                                              ("avx512f avx2", "float32"), (None, "float32")])
def test_auto_is_bfloat16_where_the_processor_has_products_of_them(
        flags: str | None, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(path: Path, **encoding: str) -> str:
        if flags is None:
            raise FileNotFoundError(path)
        return f"flags : {flags}"

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [])
    assert precision(settings(precision="auto").algorithm) == found
    assert precision(settings(precision="float32").algorithm) == "float32"
    assert precision(settings(precision="bfloat16").algorithm) == "bfloat16"
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["a GPU"])
    assert precision(settings(precision="auto").algorithm) == "float32"


_DURING_AN_UPDATE = """
import threading
import time
import numpy as np
from ga3c.settings.files import configured
from ga3c.envs.base import EnvSpec
from ga3c.learner.tensorflow.device import start_tensorflow
from ga3c.learner.learner import Learner
from ga3c.transport.slots import Slots

settings = configured(device_threads=1, rollout_length=16)
start_tensorflow(settings)
spec = EnvSpec("image", (84, 84, 4), np.dtype(np.uint8), 6, 4)
model = Learner(settings, spec)
store = Slots(spec, settings.algorithm.rollout_length, settings.agents.envs_per_agent, 4)
store.steps[:] = settings.algorithm.rollout_length
batch = store.empty_batch(4)
store.gather(range(4), batch, 0)
model.update(batch, 0, 0)
large = np.zeros((128, *spec.observation_shape), np.uint8)
model.predict(large)
ours, all_threads = time.thread_time(), time.process_time()
for _ in range(10):
    model.predict(large)
print((time.thread_time() - ours) / (time.process_time() - all_threads))
observation = np.zeros((1, *spec.observation_shape), np.uint8)
model.predict(observation)
updating = 0
operation = model._backend._update


def watched(*tensors):
    global updating
    updating = model.version + 1
    try:
        return operation(*tensors)
    finally:
        updating = 0


model._backend._update = watched
updates = threading.Thread(target=lambda: [model.update(batch, 0, 0) for _ in range(3)])
updates.start()
during = 0
while updates.is_alive():
    before = updating
    model.predict(observation)
    during += 0 < before == updating
updates.join()
print(during)
"""


def test_predictions_are_made_in_the_thread_that_asks_and_do_not_wait_for_an_update_to_end() -> None:
    done = subprocess.run([sys.executable, "-c", _DURING_AN_UPDATE], capture_output=True, text=True, timeout=200,
                          env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}, check=True)
    share_of_the_caller, during = done.stdout.split()
    assert float(share_of_the_caller) > 0.7 and int(during) > 30, done.stdout


@pytest.mark.parametrize(("raised", "message", "told"), [
    (tf.errors.ResourceExhaustedError, "OOM when allocating:\n it is full", TooLarge),
    (tf.errors.InternalError, "Failed copying:\nDst tensor is not initialized.", TooLarge),
    (tf.errors.InternalError, "CUDA_ERROR:\n it is gone", DeviceFailed),
    (tf.errors.UnavailableError, "it is gone", DeviceFailed),
    (tf.errors.FailedPreconditionError, "DNN library initialization failed.", DeviceFailed),
    (tf.errors.InvalidArgumentError, "No DNN in stream executor.", DeviceFailed),
    (tf.errors.InvalidArgumentError, "Matrix size-incompatible", tf.errors.InvalidArgumentError)])
def test_failures_of_the_device_are_named_and_change_nothing(
        monkeypatch: pytest.MonkeyPatch, raised: type[Exception], message: str, told: type[Exception]) -> None:
    model = Learner(settings(), VECTOR)
    before = model.state()

    def fail(*arguments: object) -> None:
        raise raised(None, None, message)

    with monkeypatch.context() as patch:
        patch.setattr(model._backend, "_update", fail)
        patch.setattr(model._backend, "_predict", fail)
        for call, what in ((lambda: learn(model, random_batch()), "an update of 24 agent steps"),
                           (lambda: model.predict(random_batch().observation[0, 0]), "2 predictions")):
            with pytest.raises(told, match=what if issubclass(told, DeviceFailed) else message) as caught:
                call()
            assert len(str(caught.value).splitlines()) == 1
    after = model.state()
    assert after[1:] == before[1:] and all(np.array_equal(before[0][name], after[0][name]) for name in before[0])
    assert learn(model, random_batch()) is not None, "the lock is free again"


@pytest.mark.parametrize("spec", [VECTOR, IMAGE])
def test_aligned_observations_are_used_as_they_stand_and_others_copied(spec: EnvSpec) -> None:
    model = Learner(settings(game="toy:catch"), spec)
    given = np.random.default_rng(0).integers(0, 200, (5, *spec.observation_shape)).astype(spec.observation_dtype)
    ours, odd = aligned(given.shape, given.dtype), aligned((1 + given.size,), given.dtype)[1:].reshape(given.shape)
    ours[:] = odd[:] = given
    assert ours.ctypes.data % 64 == 0 and odd.ctypes.data % 64
    expected = model.predict(odd)[0]
    np.testing.assert_equal(model.predict(ours)[0], expected)
    for array, shared in ((ours, True), (odd, False), (ours[:, ::-1], False), (ours[:0], False)):
        tensor = model._backend._compiler.tensor(array)
        before = tensor.numpy().copy()
        array += 1
        assert np.array_equal(tensor.numpy(), array if shared else before) and tensor.shape == array.shape


@pytest.mark.parametrize(("kind", "precision"), [
    ("small", "float32"), ("large", "bfloat16"), ("dense", "float32"),
    *(pytest.param(*each, marks=pytest.mark.slow)
      for each in (("small", "bfloat16"), ("large", "float32"), ("dense", "bfloat16")))])
def test_predictions_are_the_networks_own_after_updates_and_restoring(kind: str, precision: str) -> None:
    spec = VECTOR if kind == "dense" else IMAGE
    s = settings(game="toy:catch", network=kind, precision=precision, optimizer="adam", learning_rate=0.01)
    model, other = Learner(s, spec), Learner(s.changed(**{"seed": 1}), spec)
    observation = np.random.default_rng(0).integers(0, 256, (5, *spec.observation_shape)).astype(spec.observation_dtype)
    # The order of roundings is all that may differ.
    close = {"rtol": 0, "atol": 1e-3 if precision == "bfloat16" and kind != "dense" else 1e-5}

    def own(of: Learner) -> list[np.ndarray]:
        compiled = tf.function(lambda given: of._backend._variables.network(given, training=False), autograph=False)
        return [head.numpy() for head in compiled(tf.constant(observation)).values()]

    before = np.zeros(())
    for _ in range(3):
        outputs, version = model.predict(observation)
        policy, value = outputs["policy"], outputs["value"]
        assert version == model.version and np.abs(policy - before).max() > 5 * close["atol"], "no update is in them"
        np.testing.assert_allclose(policy, own(model)[0], **close)
        np.testing.assert_allclose(value, own(model)[1][:, 0], rtol=0, atol=20 * close["atol"])
        before = policy
        assert learn(model, random_batch(spec=spec)) is not None
    other.restore(*model.state())
    np.testing.assert_equal(other.predict(observation), model.predict(observation), "versions, too")
    other = Learner(s.changed(**{"seed": 1}), spec)
    other.start_from(model.state()[0])
    np.testing.assert_equal(other.predict(observation)[0], model.predict(observation)[0])
    assert not np.array_equal(policy, model.predict(observation)[0]["policy"]), "the last update is in them"
    other.go_back(Learner(s, spec).state()[0])
    assert other.predict(observation)[1] == other.version == other.min_valid_version == 1
    np.testing.assert_allclose(other.predict(observation)[0]["policy"], own(other)[0], **close)


class Guesser:
    """Guesses the reward from the observation: other outputs, another loss, a state of its own."""

    reads = ("reward", "observation")
    rates: dict[str, Annealed] = {}
    reads_target = False

    def __init__(self) -> None:
        self.variables = {"guesser.00": keras.Variable(np.zeros(()), trainable=False)}

    def heads(self, env: EnvSpec) -> dict[str, Head]:
        return heads(env)

    def outputs(self, env: EnvSpec) -> dict[str, Field]:
        return {"guess": Field((), np.float32)}

    def act(self, network: Network, observation: Tensor) -> dict[str, Tensor]:
        policy, value = network(observation).values()
        return {"guess": policy[:, 0] + value[:, 0]}

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        return Prepared(batch)

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        policy, value = network(keras.ops.reshape(rows["observation"], (-1, 3)), training=True).values()
        error = keras.ops.mean((keras.ops.reshape(rows["reward"], (-1,)) - policy[:, 0] - value[:, 0])**2)
        return Loss(error, {"error": error}, {"guesser.00": self.variables["guesser.00"] + 1})


def test_an_algorithm_brings_its_own_outputs_loss_metrics_and_state() -> None:
    backend, batch = Updating(settings(optimizer="adam"), VECTOR, Guesser(), FIELDS), random_batch()
    errors = []
    for _ in range(30):
        metrics, *_ = backend.update(backend.inputs(batch), {"learning_rate": 0.01})
        assert metrics.keys() == {"error", "gradient_norm", "passes"}
        errors.append(metrics["error"])
    assert errors[-1] < 0.5 * errors[0] and backend.arrays()["guesser.00"] == 30
    guess, = backend.predict(batch.observation.reshape(-1, 3), backend.publish()).values()
    assert guess.shape == (24,) and np.mean((guess - batch.reward.ravel())**2) < errors[-1]
    batch.reward[0] = np.nan
    metrics, *_ = backend.update(backend.inputs(batch), {"learning_rate": 0.01})
    assert np.isnan(metrics["error"]) and backend.arrays()["guesser.00"] == 30, "it was not finite"
