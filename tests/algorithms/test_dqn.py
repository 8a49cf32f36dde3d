"""DQN's targets and loss by hand, and that every member learns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import keras
import numpy as np
import pytest
import tensorflow as tf
from batches import VECTOR, settings
from command_line import Command

from ga3c.algorithms.base import Network
from ga3c.algorithms.c51 import C51
from ga3c.algorithms.dqn import DQN, taken
from ga3c.algorithms.networks import build_network
from ga3c.algorithms.qr import QR
from ga3c.learner.checkpoint import newest
from ga3c.learner.tensorflow.optimizers import build_optimizer
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError


class Two:
    """A network whose heads are the observations themselves, and a target that has other numbers."""

    def __init__(self, now: dict[str, np.ndarray], target: dict[str, np.ndarray]) -> None:
        self._now, self._target = now, target

    def __call__(self, observation: Any, training: bool = False) -> dict[str, tf.Tensor]:
        """See `Network`."""
        return {name: tf.constant(array) for name, array in self._now.items()}

    def target(self, observation: Any) -> dict[str, tf.Tensor]:
        """See `Network.target`."""
        return {name: tf.constant(array) for name, array in self._target.items()}


BATCH = {name: tf.constant(array) for name, array in {
    "observation": np.zeros((3, 1, 1, 3), np.float32), "following": np.zeros((3, 1, 3), np.float32),
    "action": np.array([0, 1, 1], np.int32).reshape(3, 1, 1), "returns": np.array([1.0, 2.0, 3.0], np.float32),
    "discount": np.array([0.9, 0.0, 0.5], np.float32), "weight": np.array([1.0, 0.5, 1.0], np.float32),
    "filled": np.ones((3, 1, 1), bool)}.items()}
NEWEST = np.array([[1.0, 2.0], [0.0, 0.0], [5.0, 4.0]], np.float32)
TARGET = np.array([[7.0, 3.0], [9.0, 9.0], [2.0, 6.0]], np.float32)


def wanted(network: Two, **changes: Any) -> list[float]:
    algorithm = DQN(settings(algorithm="dqn", schedule="queues", **changes))
    return algorithm.prepare(cast(Network, network), BATCH).rows["wanted"].numpy().tolist()


def test_targets_with_and_without_double_by_hand_and_nothing_beyond_an_end() -> None:
    network = Two({"q": NEWEST}, {"q": TARGET})
    assert wanted(network, double=False) == pytest.approx([1 + 0.9 * 7, 2.0, 3 + 0.5 * 6])
    assert wanted(network, double=True) == pytest.approx([1 + 0.9 * 3, 2.0, 3 + 0.5 * 2])


def test_dueling_is_the_value_and_the_advantages_around_their_mean() -> None:
    heads = {"value": np.array([[10.0], [20.0], [30.0]], np.float32), "advantage": TARGET}
    network = Two(heads, heads)
    algorithm = DQN(settings(algorithm="dqn", dueling=True))
    np.testing.assert_allclose(algorithm.act(cast(Network, network), None)["q"], [[12, 8], [20, 20], [28, 32]])
    assert {name: head.units for name, head in algorithm.heads(VECTOR).items()} == {"value": 1, "advantage": 4}
    assert wanted(network, dueling=True) == pytest.approx([1 + 0.9 * 12, 2.0, 3 + 0.5 * 32])


def test_the_gradient_is_the_error_clipped_to_1_times_its_weight() -> None:
    q = tf.Variable([[1.0, 2.0], [4.0, 3.0], [0.0, 0.5]])
    rows = {"observation": q, "action": tf.constant([0, 1, 0]),
            "wanted": tf.constant([5.0, 3.5, -0.25]),
            "weight": tf.constant([1.0, 0.5, 1.0]), "filled": tf.constant([True, True, True])}
    with tf.GradientTape() as tape:
        loss = DQN(settings(algorithm="dqn")).loss(
            cast(Network, lambda observation, training: {"q": 1.0 * observation}), rows, {})
    np.testing.assert_allclose(loss.rows["error"], [4.0, 0.5, -0.25])
    np.testing.assert_allclose(loss.total, (3.5 + 0.5 * 0.125 + 0.5 * 0.25**2) / 3)
    np.testing.assert_allclose(tape.gradient(loss.total, q), np.array([[-1, 0], [0, -0.25], [0.25, 0]]) / 3)


CASES = json.loads(Path(__file__).with_name("rlax_cases.json").read_text())


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("name", ["q", "c51", "qr"])
def test_targets_and_losses_are_those_of_rlax(name: str, double: bool) -> None:
    case = {key: np.array(value) for key, value in CASES[name].items()}
    n, n_actions = case["newest"].shape[:2]
    atoms = case["newest"].reshape(n, n_actions, -1).shape[2]
    algorithm = {"q": DQN, "c51": C51, "qr": QR}[name](settings(
        algorithm="dqn", double=double, atoms=max(2, atoms), quantiles=atoms, return_limit=2.0))
    now, newest, target = (case[key].reshape(n, -1).astype(np.float32) for key in (
        "q" if name == "q" else "numbers", "newest", "target"))
    batch = {name: tf.constant(array) for name, array in {
        "observation": np.zeros((n, 1, 1, 3), np.float32), "following": np.zeros((n, 1, 3), np.float32),
        "action": case["action"].astype(np.int32).reshape(n, 1, 1), "returns": case["returns"].astype(np.float32),
        "discount": case["discount"].astype(np.float32), "weight": np.ones(n, np.float32),
        "filled": np.ones((n, 1, 1), bool)}.items()}
    rows = algorithm.prepare(cast(Network, Two({"q": newest}, {"q": target})), batch).rows
    taken_numbers = taken(algorithm._of_actions({"q": tf.constant(now)}), rows["action"])
    losses, error = algorithm.compare(taken_numbers, rows["wanted"])
    np.testing.assert_allclose(error if name == "q" else losses, case["double" if double else "single"], rtol=2e-5)


def test_no_mass_is_lost_where_a_return_falls_on_an_atom_or_beyond_the_last() -> None:
    algorithm = C51(settings(algorithm="c51", atoms=5, return_limit=2.0))
    beyond = tf.constant(np.log([[0.1, 0.2, 0.3, 0.25, 0.15]] * 3).astype(np.float32))
    wanted = algorithm.aim(tf.constant([1.0, 0.0, 9.0]), tf.constant([1.0, 0.0, 0.5]), beyond)
    np.testing.assert_allclose(wanted, [[0, 0.1, 0.2, 0.3, 0.4], [0, 0, 1, 0, 0], [0, 0, 0, 0, 1]], atol=1e-6)


def test_streams_have_a_layer_each_and_their_gradient_enters_the_trunk_times_the_root_of_a_half() -> None:
    chosen = settings(algorithm="dqn", dueling=True, network="dense", normalize_observations=False)
    heads = DQN(chosen).heads(VECTOR)
    network = build_network(chosen, VECTOR, heads)
    shapes = [tuple(weight.shape) for weight in network.trainable_variables]
    assert shapes == [(3, 64), (64,), (64, 64), (64,), (64, 1), (1,), (64, 64), (64,), (64, 4), (4,)]
    observation = tf.constant([[0.5, -1.0, 2.0]])
    with tf.GradientTape(persistent=True) as tape:
        total = sum(tf.reduce_sum(head) for head in network(observation).values())
        hidden = tf.tanh(observation @ network.trainable_variables[0] + network.trainable_variables[1])
        plain = 0.0
        for first in (2, 6):
            kernel, bias, last, beyond = network.trainable_variables[first:first + 4]
            plain += tf.reduce_sum(tf.tanh(hidden @ kernel + bias) @ last + beyond)
    np.testing.assert_allclose(total, plain, rtol=1e-6)
    for number, variable in enumerate(network.trainable_variables):
        scale = 0.5**0.5 if number < 2 else 1.0
        np.testing.assert_allclose(tape.gradient(total, variable), scale * tape.gradient(plain, variable), rtol=1e-4)


def test_epsilon_is_1_until_the_replay_begins_then_falls_to_what_each_environment_has() -> None:
    chosen = settings(algorithm="dqn", schedule="queues", agents=2, envs_per_agent=2, epsilon=0.8, epsilon_final=0.4,
                      epsilon_least=0.05, epsilon_steps=400, replay_start=80)
    explore = DQN(chosen).acting.explore
    assert explore(19, 1, 2).tolist() == [1.0, 1.0] and explore(20, 1, 2).tolist() == [0.8, 0.8]
    for agent, finals in ((0, [0.4, 0.2]), (1, [0.1, 0.05])):
        np.testing.assert_allclose(explore(120, agent, 2), finals)
        np.testing.assert_allclose(explore(70, agent, 2), [(0.8 + final) / 2 for final in finals])
    same = DQN(chosen.changed(epsilon_least=None)).acting.explore
    assert same(500, 1, 2).tolist() == pytest.approx([0.4, 0.4])


def test_centred_rmsprop_divides_by_the_deviation_as_worked_out_by_hand() -> None:
    chosen = settings(optimizer="rmsprop-centred", learning_rate=0.1, rmsprop_decay=0.5, rmsprop_epsilon=0.01)
    weight = keras.Variable(np.zeros(2, np.float32))
    optimizer = build_optimizer(chosen.algorithm, [weight])
    mean, square, expected = np.zeros(2), np.zeros(2), np.zeros(2)
    for gradient in ([1.0, -2.0], [1.0, 2.0], [0.5, 0.0]):
        optimizer.apply([tf.constant(gradient)])
        mean, square = 0.5 * mean + 0.5 * np.array(gradient), 0.5 * square + 0.5 * np.square(gradient)
        expected -= 0.1 * np.array(gradient) / np.sqrt(square - mean**2 + 0.01)
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5)


TOY = ("--game", "toy:identity", "--algorithm", "dqn", "--steps", "12000", "--run-dir", "run", "--gamma", "0.5",
       "--epsilon-steps", "5000", "--replay-start", "1000", "--replay-size", "8000", "--target-steps", "1000",
       "--agents", "2", "--envs-per-agent", "4", "--learning-rate", "1e-3", "--no-tensorboard")


@pytest.mark.parametrize("mode", [
    ["--serial"], ["--serial", "--dueling", "--no-double", "--n-step", "1"], ["--priority-alpha", "0.5"],
    ["--serial", "--algorithm", "c51", "--schedule", "synchronised", "--return-limit", "3"],
    ["--algorithm", "qr", "--schedule", "both", "--dueling", "--quantiles", "32"]], ids=str)
def test_every_member_learns_and_uses_each_step_as_often_as_asked(
        mode: list[str], train_here: Command, evaluate_here: Command, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = train_here(*TOY, *mode)
    assert done.returncode == 0, done.stderr
    row = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    last = 1000 if "both" in mode else 0  # an epoch's steps are used in the next
    assert 256 * row["trainings"] == pytest.approx(4.0 * (row["agent_steps"] - last - 1000), rel=0.01)
    # In rounds of processes a limit ends the run while agents play: what they submit then is not collected.
    assert row["dropped_steps"] <= (2 * 4 * 4 if "both" in mode else 0)
    # It is of the samples of the last second's updates, and of each agent's own steps, of which one may have fewer.
    assert row["exploration"] == pytest.approx(0.01, abs=0.1), "1 at first"
    assert json.loads(evaluate_here("run", "--json", "--greedy").stdout)["mean"] > 0.95, "0.25 by chance"


def test_a_serial_run_repeats_to_the_byte(
        train_here: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for name in ("one", "two"):
        monkeypatch.chdir(tmp_path)
        shorter = [{"12000": "3000", "run": name}.get(word, word) for word in TOY]
        assert train_here(*shorter, "--serial", "--priority-alpha", "0.5").returncode == 0
        checkpoint, _, _ = newest(Path(name, "checkpoints"))
        weights.append(checkpoint.arrays)
    assert checkpoint.progress["version"] > 20
    for name, array in weights[0].items():
        assert array.tobytes() == weights[1][name].tobytes(), name


@pytest.mark.parametrize(("changes", "message"), [
    ({"schedule": "synchronous"}, "schedule: synchronous does not go with dqn, which learns from a replay"),
    ({"normalize_rewards": True}, "normalize_rewards: true does not go with dqn"),
    ({"replay_size": 9000}, "replay_size: 9000 is too small; 64 environments and replay_start 10000 need")])
def test_what_does_not_go_with_a_replay_is_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured(algorithm="dqn", **changes)
