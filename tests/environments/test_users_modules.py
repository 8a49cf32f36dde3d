"""Modules of users in our processes: names that Python has too, working directories, threads, networks that end all."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import batches
import numpy as np
import pytest
from command_line import TRAIN, recorded

from ga3c.envs.base import EnvSpec
from ga3c.envs.random_streams import seed_global_streams
from ga3c.settings.files import configured
from ga3c.settings.imports import forget_safe_path, python_path, safe_path
from ga3c.settings.messages import ConfigError

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SPEC = EnvSpec("grid", (7, 7, 3), np.dtype(np.uint8), 4, 1)
ON_CORRIDOR = ["--game", "corridor:Corridor-v0", "--agents", "2", "--no-tensorboard", "--run-dir", "run"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to stand in, with a game in it; afterwards modules of it are forgotten."""
    place = tmp_path / "place"
    place.mkdir()
    shutil.copy(EXAMPLES / "corridor.py", place)
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return place


# ------------------------------------------------------------------------------------------------ names

@pytest.mark.parametrize("started", [pytest.param("ga3c-train", marks=pytest.mark.slow), "python -m ga3c"])
def test_a_file_beside_the_game_does_not_stand_in_for_a_module(tmp_path: Path, here: Path, started: str) -> None:
    # Python itself imports `types` for `-m`, before it knows of us.
    for name in ("queue", "logging", "random", "gymnasium", *(["types"] if started == "ga3c-train" else [])):
        (here / f"{name}.py").write_text(f"raise SystemExit('the user has {name}')\n")
    script = tmp_path / "ga3c-train"
    script.write_text("from ga3c.commands.launch import train\nif __name__ == '__main__':\n    train()\n")
    command = [sys.executable, str(script)] if started == "ga3c-train" else TRAIN
    done = subprocess.run([*command, *ON_CORRIDOR, "--steps", "1000", "--evaluation-minutes", "1",
                           "--evaluation-episodes", "1"], capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert recorded("evaluation"), done.stdout


def test_a_checkout_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = str(Path(__file__).resolve().parents[2])
    monkeypatch.setattr(sys, "path", [checkout, "/library"])
    assert python_path(checkout).split(os.pathsep) == [checkout, "/library"]
    monkeypatch.chdir(checkout)
    with safe_path():
        assert not os.environ.get("PYTHONSAFEPATH")


def test_processes_started_within_leave_the_directory_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    asked = [sys.executable, "-c", "import sys; print('' in sys.path)"]
    with safe_path():
        assert subprocess.check_output(asked) == b"False\n"
        forget_safe_path()
        assert subprocess.check_output(asked) == b"True\n"
    assert subprocess.check_output(asked) == b"True\n"


# ------------------------------------------------------------------------------------------------ networks

@pytest.mark.parametrize(("lines", "says"), [
    ("raise SystemExit(7)", "cannot be imported: SystemExit: the code 7 (mine.py, line 1)"),
    ("def network(settings, spec):\n    raise KeyboardInterrupt", "fails on observations (7, 7, 3) uint8: "
                                                                  "KeyboardInterrupt (mine.py, line 2)"),
    ("def network(settings, spec):\n    raise BaseException('all\\nover')",
     "BaseException: all over (mine.py, line 2)"),
])
def test_whatever_a_network_raises_is_told_in_one_line(here: Path, lines: str, says: str) -> None:
    from ga3c.algorithms.networks import build_network
    (here / "mine.py").write_text(lines)
    with pytest.raises(ConfigError) as caught:
        build_network(configured(network="mine:network"), SPEC, batches.heads(SPEC))
    assert str(caught.value).startswith("network: 'mine:network' ") and str(caught.value).endswith(says)


def test_what_a_network_changes_for_the_whole_process_is_put_back(here: Path) -> None:
    from ga3c.algorithms.networks import build_network
    (here / "mine.py").write_text("import os, signal\nos.chdir('/')\n"
                                  "def network(settings, spec):\n"
                                  "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    os.umask(0o077)\n")
    before, mask = signal.getsignal(signal.SIGTERM), os.umask(0o022)
    with pytest.raises(ConfigError, match="must return a keras.Model"):
        build_network(configured(network="mine:network"), SPEC, batches.heads(SPEC))
    assert Path.cwd() == here and signal.getsignal(signal.SIGTERM) is before
    assert os.umask(mask) == 0o022


def test_a_network_leaves_the_global_streams_where_they_stood(here: Path) -> None:
    from ga3c.algorithms.networks import build_network
    (here / "mine.py").write_text(
        "import keras\ndef network(settings, spec):\n    seen = keras.Input(spec.observation_shape)\n"
        "    policy = keras.layers.Dense(spec.n_actions, activation='softmax')(seen)\n"
        "    return keras.Model(seen, {'policy': policy, 'value': keras.layers.Dense(1)(seen)})\n")
    seed_global_streams(3)
    expected = random.random(), np.random.random()
    seed_global_streams(3)
    build_network(configured(network="mine:network"), VECTOR, batches.heads(VECTOR))
    assert (random.random(), np.random.random()) == expected


# ------------------------------------------------------------------------------------------------ algorithms

VECTOR = EnvSpec("vector", (4,), np.dtype(np.float32), 2, 1)


@pytest.mark.parametrize(("lines", "says"), [
    ("    reads = property(lambda self: 1 / 0)",
     "'mine:Mine' fails in `reads`: ZeroDivisionError: division by zero (mine.py, line 5)"),
    ("    reads = (*A2C.reads, 'advantages')", "'mine:Mine' reads 'advantages', which its batches do not have"),
    ("    def outputs(self, env):\n        raise SystemExit(3)",
     "fails in `outputs`: SystemExit: the code 3 (mine.py, line 6)"),
    *((f"    def outputs(self, env):\n        found = super().outputs(env)\n"
       f"        return found | {{'{name}': found['value']}}",
       f"`outputs` of 'mine:Mine' returns an output '{name}', but a slot already has a field of that name")
      for name in ("action", "filled")),
    ("    def heads(self, env):\n        return {}",
     "`heads` of 'mine:Mine' must return heads by name, but returns {}"),
    ("    def outputs(self, env):\n        return {'value': 1}",
     "`outputs` of 'mine:Mine' must return 'value' as a Field, but returns 1"),
    ("    def outputs(self, env):\n        return {'value': super().outputs(env)['value']}\n"
     "    def act(self, network, observation):\n        return {'value': network(observation)['value'][:, 0]}",
     "'mine:Mine' fails in `acting.choose`: KeyError: 'policy'"),
    ("    acting = A2C.acting._replace(best=lambda outputs: outputs)",
     "attribute lookup Mine.<lambda> on mine failed"),
    ("    acting = A2C.acting._replace(explore=max)",
     "`acting.explore` of 'mine:Mine' must return a number for each environment, (2,), but returns ()"),
    ("    def outputs(self, env):\n        found = super().outputs(env)\n"
     "        return found | {'value': found['value']._replace(shape=(1,))}",
     "`outputs` of 'mine:Mine' must return 'value' of the shape (), but returns (1,)"),
    ("    def act(self, network, observation):\n        heads = network(observation)\n"
     "        return {'policy': heads['policy'], 'value': heads['value']}",
     "`act` of 'mine:Mine' must return value of the shape (n,), but returns (n, 1)"),
    ("    def act(self, network, observation):\n        return list(network(observation))",
     "`act` of 'mine:Mine' must return outputs by name, but returns list"),
    ("    def prepare(self, network, batch):\n        return batch['policy']",
     "fails in `prepare`: KeyError: 'policy' (mine.py, line 6)"),
    ("    def prepare(self, network, batch):\n"
     "        return Prepared(dict(filled=ops.cast(batch['filled'], 'float32')))",
     "`prepare` of 'mine:Mine' must return rows 'filled' of bool, but returns float32"),
    ("    def prepare(self, network, batch):\n"
     "        return super().prepare(network, batch)._replace(state={'mean': 1.0})",
     "`prepare` of 'mine:Mine' returns the state ['mean'], but its variables are ['advantage.00']"),
    ("    def loss(self, network, rows, rates):\n        return super().loss(network, rows, rates).total",
     "`loss` of 'mine:Mine' must return a Loss, but returns SymbolicTensor"),
    ("    def loss(self, network, rows, rates):\n        return Loss(ops.square(rows['returns']), {})",
     "`loss` of 'mine:Mine' must return total as a scalar, but its shape is (None,)"),
    ("    def loss(self, network, rows, rates):\n"
     "        return super().loss(network, rows, rates)._replace(state={'advantage.00': ops.zeros((3,))})",
     "`loss` of 'mine:Mine' must return advantage.00 of the shape (2,), but returns (3,)"),
    ("    def loss(self, network, rows, rates):\n"
     "        return Loss(super().loss(network, rows, rates).total, {'kl': 'small'})",
     "`loss` of 'mine:Mine' must return kl as a tensor, but returns 'small'"),
    ("    def loss(self, network, rows, rates):\n"
     "        return Loss(ops.sum(network(rows['observation'])['value']), {})",
     "the loss depends on no weight of the network; `network(observation, training=True)` gives what does"),
    ("    def __init__(self, settings):\n        super().__init__(settings)\n        self.rates = {'mine': 0.1}",
     "`rates` of 'mine:Mine' must be numbers by name, each an Annealed, but are {'mine': 0.1}"),
])
def test_a_mistake_in_an_algorithm_is_told_in_one_line(here: Path, lines: str, says: str) -> None:
    from ga3c.learner.learner import Learner
    (here / "mine.py").write_text("from keras import ops\nfrom ga3c.algorithms.base import Loss, Prepared\n"
                                  f"from ga3c.algorithms.a2c import A2C\nclass Mine(A2C):\n{lines}\n")
    with pytest.raises(ConfigError) as caught:
        Learner(configured(algorithm="mine:Mine", passes=2, minibatches=2), VECTOR)
    assert str(caught.value).startswith("algorithm: ") and str(caught.value).endswith(says)


def test_an_algorithm_may_make_its_variables_late(here: Path) -> None:
    from ga3c.learner.learner import Learner
    (here / "mine.py").write_text(
        "import keras\nfrom ga3c.algorithms.a2c import A2C\nclass Mine(A2C):\n"
        "    def outputs(self, env):\n"
        "        made = keras.Variable([float(env.n_actions)], name='mine')\n"
        "        self.variables = {**self.variables, 'mine.00': made}\n"
        "        return super().outputs(env)\n"
        "    def prepare(self, network, batch):\n        found = super().prepare(network, batch)\n"
        "        return found._replace(state={**found.state, 'mine.00': self.variables['mine.00'] + 1.0})\n"
        "    def loss(self, network, rows, rates):\n        found = super().loss(network, rows, rates)\n"
        "        more = {'fixed': 0.5, 'of_one': self.variables['mine.00'][0], 'filled': rows['filled'].shape.rank}\n"
        "        return found._replace(metrics={**found.metrics, **more})\n")
    learner = Learner(batches.settings(algorithm="mine:Mine"), batches.VECTOR)
    assert learner.state()[0]["mine.00"] == [4.0], "one for each action"
    made = batches.learn(learner, batches.random_batch())
    assert made is not None and learner.state()[0]["mine.00"] == [5.0]
    assert (made.metrics["fixed"], made.metrics["filled"]) == (0.5, 1.0), "numbers are metrics, too"


def test_an_algorithm_anneals_numbers_of_its_own(here: Path) -> None:
    from ga3c.learner.learner import Learner
    (here / "mine.py").write_text(
        "from ga3c.algorithms.a2c import A2C\nfrom ga3c.settings.annealing import Annealed\nclass Mine(A2C):\n"
        "    def __init__(self, settings):\n        super().__init__(settings)\n"
        "        self.rates['mine'] = Annealed(1.0, 0.0)\n"
        "    def loss(self, network, rows, rates):\n        found = super().loss(network, rows, rates)\n"
        "        return found._replace(metrics={**found.metrics, 'mine': rates['mine']})\n")
    learner = Learner(batches.settings(algorithm="mine:Mine", anneal_steps=100), batches.VECTOR)
    updates = [learner.update(batches.random_batch(), steps, 0) for steps in (0, 50, 100, 150)]
    assert [update and update.metrics["mine"] for update in updates] == [1.0, 0.5, 0.0, 0.0]
