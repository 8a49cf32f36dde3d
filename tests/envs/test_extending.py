"""One's own game, wrappers and network: the examples of the documentation learn, and a mistake in one is one line."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from batches import heads
from command_line import Command
from trained import make_trained

from ga3c.envs.base import EnvSpec
from ga3c.envs.check import check, probe
from ga3c.envs.factory import make_environment
from ga3c.evaluation.policy import Policy, find, read_policy, write_policy
from ga3c.runs import reader as record
from ga3c.settings.files import configured, resolve
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture(autouse=True)
def here(user_directory: Path) -> Path:
    """A directory to stand in with the examples in it."""
    for example in EXAMPLES.iterdir():
        if example.is_file():
            shutil.copy(example, user_directory)
    return user_directory


def command(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = f"from ga3c.commands.launch import {module}; {module}()"
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=200,
                          check=False)


def refused(settings: Settings) -> str:
    with pytest.raises(ConfigError) as caught:
        probe(settings)
    return one_line(caught.value)


def one_line(error: BaseException) -> str:
    message = str(error)
    assert message.splitlines() == [message]
    return message


# ------------------------------------------------------------------------------------------------ the examples

QUICK = ("--agents", "2", "--no-dynamic", "--no-tensorboard", "--learning-rate", "0.002", "--run-dir", "run")


def test_an_algorithm_of_ones_own_learns_a_game_of_ones_own(train_here: Command) -> None:
    trained = train_here("--game", "corridor:Corridor-v0", "--algorithm", "my_algorithm:PenaltyPPO", "--passes", "3",
                         "--minibatches", "4", "--schedule", "synchronous", "--steps", "30000", *QUICK)
    assert trained.returncode == 0, trained.stderr
    last = record.rows(Path("run")).new()[-1]
    assert last["score_mean"] > 0.9, "by chance: 0"
    assert last["kl"] > 0.0 and last["passes"] == 3.0 and last["lag_mean"] == 0.0


def test_an_algorithm_that_acts_in_its_own_way_does_so_in_evaluations(here: Path) -> None:
    (here / "turned.py").write_text(
        "from ga3c.algorithms.a3c import A3C\n"
        "class Turned(A3C):\n"
        "    def act(self, network, observation):\n"
        "        outputs = super().act(network, observation)\n"
        "        return outputs | {'policy': outputs['policy'][:, ::-1]}\n")
    make_trained(Path("run"), configured(game="corridor:Corridor-v0", algorithm="turned:Turned"))
    found = find("run")
    ours, plain = Policy(found), Policy(found._replace(settings=found.settings.changed(algorithm="a3c")))
    observations = np.random.default_rng(0).uniform(-1, 1, (5, 2)).astype(np.float32)
    turned, value = ours.predict(observations).values()
    straight, same = plain.predict(observations).values()
    np.testing.assert_array_equal(turned, straight[:, ::-1])
    np.testing.assert_array_equal(value, same)
    assert not np.array_equal(turned, straight)
    write_policy(Path("turned.npz"), found)
    np.testing.assert_array_equal(Policy(read_policy(Path("turned.npz"))).predict(observations)["policy"], turned)


@pytest.mark.slow
def test_a_network_of_ones_own_learns_wrapped_pixels() -> None:
    trained = command("train", "--config", "minigrid_own_network.yaml", "--steps", "20000", *QUICK)
    assert trained.returncode == 0, trained.stderr
    assert '"precision": "its own"' in Path("run/events.jsonl").read_text()
    found = command("evaluate", "run", "--episodes", "50", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout.splitlines()[-1])["mean"] > 0.7  # by chance: 0.3


@pytest.mark.parametrize(("file", "spec"), [
    ("minigrid.yaml", ((56, 56, 3), np.uint8, 7)), ("cartpole.yaml", ((4,), np.float32, 2))])
def test_an_example_is_the_world_its_file_says(file: str, spec: tuple) -> None:
    assert probe(resolve({}, file))[1:4] == spec


def test_stacks_of_frames_are_turned_and_said() -> None:
    checked = check(configured(game="stacked:StackedPong-v0"))
    assert checked.spec[1:4] == ((84, 84, 4), np.uint8, 6)
    assert checked.notes == ["stacked:StackedPong-v0: images of (4, 84, 84) have their channels first; they are "
                             "converted to (84, 84, 4)"]


# ------------------------------------------------------------------------------------------------ wrappers

WRAPPERS = """
import gymnasium
import numpy

class Double(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return 2 * observation

class PlusOne(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return observation + 1

class Inner:
    Double = Double

def nothing(env):
    pass

def fails(env):
    raise RuntimeError("first\\nsecond")

number = 3
"""


@pytest.mark.parametrize("game", ["toy:catch", "CartPole-v1"])
def test_wrappers_are_put_on_from_the_inside_out(here: Path, game: str) -> None:
    (here / "wraps.py").write_text(WRAPPERS)
    settings = configured(game=game, wrappers="wraps:Inner.Double, wraps:PlusOne")  # type: ignore[arg-type]
    plain, wrapped = make_environment(configured(game=game), 2), make_environment(settings, 2)
    for environment in (plain, wrapped):
        environment.reset(3)
        environment.step(np.zeros(2, np.int64))
    np.testing.assert_allclose(wrapped.observation, 2 * plain.observation + 1)
    plain.close()
    wrapped.close()


@pytest.mark.parametrize(("game", "wrapper", "told"), [
    ("toy:catch", "nowhere:Wrapper",
     "wrappers: 'nowhere:Wrapper' cannot be imported: ModuleNotFoundError: No module named 'nowhe"),
    ("toy:catch", "wraps:number", "wrappers: 'wraps:number' must be a class or function, but is 3"),
    ("CartPole-v1", "wraps:nothing", "wrappers: 'wraps:nothing' made no gymnasium.Env of"),
    ("CartPole-v1", "wraps:fails", "cannot wrap <"),
])
def test_a_wrapper_that_cannot_be_put_on_is_told_in_one_line(here: Path, game: str, wrapper: str, told: str) -> None:
    (here / "wraps.py").write_text(WRAPPERS)
    assert told in refused(configured(game=game, wrappers=(wrapper,)))


def test_what_cannot_be_wrapped_says_so(here: Path) -> None:
    (here / "wraps.py").write_text(WRAPPERS)
    settings = configured(game="Pong", wrappers=("wraps:PlusOne",))
    assert "Atari games are played on the emulator itself" in refused(settings)
    elsewhere = configured(game="Pong", wrappers=("nowhere:Wrapper",))
    assert "Atari games are played on the emulator itself" in refused(elsewhere), "nobody's code is imported for it"


# ------------------------------------------------------------------------------------------------ games

@pytest.mark.parametrize(("old", "new", "told"), [
    ("np.array([self._place / self.LENGTH, self._lamp], np.float32)", "np.zeros(3, np.float32)",
     "game: 'corridor:Corridor-v0' fails at its first step: WrongForm: an observation is float32 (3,); its space says "
     "(2,)"),
    ("Discrete(2)", "Box(-1, 1, (1,), np.float32)", "corridor:Corridor-v0: actions are Box(-1.0, 1.0, (1,), float32); "
                                                    "supported: Discrete"),
    ("reward = float(", "reward = flaot(", "fails at its first step: NameError: name 'flaot' is not defined"),
])
def test_a_mistake_in_ones_own_game_is_told_in_one_line(here: Path, old: str, new: str, told: str) -> None:
    source = (here / "corridor.py").read_text().replace("over = abs(self._place) == self.LENGTH", "over = True")
    assert old in source
    (here / "corridor.py").write_text(source.replace(old, new))
    assert told in refused(configured(game="corridor:Corridor-v0"))


# ------------------------------------------------------------------------------------------------ networks

SPEC = EnvSpec("grid", (7, 7, 3), np.dtype(np.uint8), 4, 1)


@pytest.mark.parametrize(("old", "new", "told"), [
    ("", "", None),
    ('activation="softmax"', "activation=None", "returns a policy that is not probabilities"),
    ("layers.Dense(1)(hidden)", "layers.Dense(2)(hidden)",
     "gives policy (n, 4) float32, value (n, 2) float32; "
     "the algorithm needs policy (n, 4) float32, value (n, 1) float32"),
    ('"value": value', '"worth": value', "gives policy (n, 4) float32, worth (n, 1) float32; the algorithm needs"),
    ('{"policy": policy, "value": value}', "policy", "gives no dictionary of tensors; the algorithm needs"),
    ("keras.Input(spec.observation_shape", "keras.Input((5, 5, 3)", "fails on observations (7, 7, 3) uint8: "),
    ('return keras.Model(observation, {"policy": policy, "value": value}, name=', "return str(",
     "it must return a keras.Model"),
    ("def build_network", "def other", "cannot be imported: AttributeError: module 'my_network' has no attribute"),
    ("def build_network(settings, spec)", "def build_network(spec)", "TypeError: build_network() takes 1 positional"),
])
def test_a_mistake_in_ones_own_network_is_told_in_one_line(here: Path, old: str, new: str, told: str | None) -> None:
    from ga3c.algorithms.networks import build_network
    source = (here / "my_network.py").read_text()
    assert old in source
    (here / "my_network.py").write_text(source.replace(old, new))
    settings = configured(network="my_network:build_network")
    if told is None:
        assert build_network(settings, SPEC, heads(SPEC)).name == "my_network"
        return
    with pytest.raises(ConfigError) as caught:
        build_network(settings, SPEC, heads(SPEC))
    message = one_line(caught.value)
    assert message.startswith("network: 'my_network:build_network' ") and told in message, message


def test_ones_own_network_draws_the_same_weights_for_the_same_seed() -> None:
    from ga3c.algorithms.networks import build_network

    def weights(seed: int) -> list[bytes]:
        network = build_network(configured(network="my_network:build_network", seed=seed), SPEC, heads(SPEC))
        return [weight.tobytes() for weight in network.get_weights()]

    assert weights(1) == weights(1) != weights(2)


def test_a_wrong_network_ends_the_command_with_one_line(here: Path, train_here: Command) -> None:
    source = (here / "my_network.py").read_text()
    (here / "my_network.py").write_text(source.replace("layers.Dense(1)", "layers.Dense(2)"))
    done = train_here("--config", "minigrid_own_network.yaml")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("ga3c-train: network: 'my_network:build_network' gives policy (n, 7) float32, ")
    assert not Path("runs").exists()
