"""Trained policies: found wherever they are kept, equal to the model that was saved, and never a wrong one."""

from __future__ import annotations

import json
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from trained import make_trained

from ga3c.evaluation import policy
from ga3c.evaluation.policy import Policy, Trained, find, load_policy, read_policy, write_policy
from ga3c.learner import checkpoint
from ga3c.learner.checkpoint import Checkpoint, CheckpointError
from ga3c.settings.files import check_agents, configured
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import EnvSettings, Settings

CATCH = configured(game="toy:catch", seed=3)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    make_trained(tmp_path / "run", CATCH, (10, 20, 30))
    return tmp_path / "run"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("policy")
    make_trained(directory / "run", CATCH)
    write_policy(directory / "catch.npz", find(directory / "run"))
    return (directory / "catch.npz").read_bytes()


def refused(where: str | Path, kind: type[Exception] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        load_policy(where)
    message = str(caught.value)
    assert message.splitlines() == [message]
    return message


# ------------------------------------------------------------------------------------------------ files

def test_a_policy_file_keeps_how_the_game_was_played(tmp_path: Path) -> None:
    variant = {"game": "PongNoFrameskip-v0", "mode": 1, "difficulty": 2, "frame_skip": 3}
    trained = Trained(tmp_path, configured(**variant), {"network.00": np.zeros(3, np.float32)}, {}, None, [])
    write_policy(tmp_path / "new.npz", trained)
    assert read_policy(tmp_path / "new.npz").settings == configured(**variant)


def test_a_policy_file_keeps_all_of_the_game_but_what_is_of_training_alone() -> None:
    assert {*EnvSettings.model_fields} - {*policy._SETTINGS} == {"life_loss", "emulator"}


# ------------------------------------------------------------------------------------------------ finding

@pytest.mark.parametrize(("settings", "dtype"), [
    (CATCH, np.float32), (configured(game="Pong", precision="float32"), np.uint8)])
def test_a_policy_answers_as_the_model_that_was_saved_and_so_does_its_file(
        tmp_path: Path, settings: Settings, dtype: Any) -> None:
    model = make_trained(tmp_path / "run", settings)
    loaded = load_policy(tmp_path / "run")
    write_policy(tmp_path / "mine.npz", loaded.trained)
    assert (tmp_path / "mine.npz").stat().st_size < 4_000_000
    again = load_policy(tmp_path / "mine.npz")
    observation = np.random.default_rng(0).integers(0, 2, (5, *loaded.spec.observation_shape)).astype(dtype)
    outputs, _ = model.predict(observation)
    for same in (loaded, again):
        predicted = same.predict(observation)
        assert predicted["policy"].shape == (5, loaded.spec.n_actions) and predicted["value"].shape == (5,)
        assert predicted.keys() == outputs.keys()
        assert all(predicted[name].tobytes() == outputs[name].tobytes() for name in outputs)
    assert again.spec == loaded.spec and again.trained.progress == loaded.trained.progress
    assert sorted(os.listdir(tmp_path)) == ["mine.npz", "run"]


def test_a_policy_chooses_for_one_observation_and_for_many(run: Path) -> None:
    loaded = load_policy(run)
    batch = np.random.default_rng(0).integers(0, 2, (40, 50)).astype(np.float64)
    many, one = loaded(batch, greedy=True), loaded(batch[3], greedy=True)
    probabilities, value = loaded.predict(batch.astype(np.float32)).values()
    np.testing.assert_array_equal(many.probabilities, probabilities)
    assert many.action.tolist() == probabilities.argmax(axis=1).tolist()
    assert (one.action, one.probabilities.shape, one.value.shape) == (many.action[3], (3,), ())
    np.testing.assert_allclose(one.value, value[3], rtol=1e-5)
    drawn = np.array([loaded(batch[0]).action for _ in range(300)])
    assert set(drawn) == {0, 1, 2}
    again = load_policy(run)
    assert [int(again(batch[0]).action) for _ in range(300)] == drawn.tolist()


@pytest.mark.parametrize("wrong", [np.zeros(49), np.zeros(50, np.complex64)])
def test_an_observation_of_another_shape_or_kind_is_refused(run: Path, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"toy:catch shows float32 \(50,\), or n of them"):
        load_policy(run)(wrong)


def test_a_run_gives_its_newest_whole_checkpoint_and_says_what_it_passed_over(run: Path) -> None:
    assert find(run).path.name == "000000000030" and find(run).passed_over == []
    (run / "checkpoints/000000000030/arrays.npz").write_bytes(b"")
    found = find(run)
    assert (found.path.name, found.run) == ("000000000020", run)
    assert len(found.passed_over) == 1 and "is damaged" in found.passed_over[0]


def test_a_checkpoint_is_found_by_its_path_the_best_one_and_one_that_was_left(run: Path) -> None:
    assert find(run / "checkpoints/000000000010").progress["agent_steps"] == 10
    assert "has chosen a best" in refused(run / "checkpoints/best")
    checkpoint.set_best(run / "checkpoints", checkpoint.Best("000000000020", 1.0, {}))
    assert find(run / "checkpoints/best").progress["agent_steps"] == 20
    (run / "checkpoints/000000000020").rename(run / "checkpoints/000000000020.abandoned")
    assert find(run / "checkpoints/000000000020.abandoned").progress["agent_steps"] == 20


def test_a_shipped_policy_is_found_by_its_name(tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "SHIPPED", tmp_path)
    (tmp_path / "catch.npz").write_bytes(whole)
    assert find("Catch").settings.env.game == "toy:catch" and find("catch").run is None
    assert "shipped policy (catch)" in refused("ketch")


def test_what_ships_with_the_package_is_small_and_plays() -> None:
    assert {path.stem for path in policy.SHIPPED.glob("*.npz")} == {"boxing", "breakout", "pong", "qbert"}
    for path in policy.SHIPPED.glob("*.npz"):
        assert path.stat().st_size < 4_000_000
        loaded = load_policy(path.stem)
        black = np.zeros(loaded.spec.observation_shape, np.uint8)
        assert loaded(black).probabilities.shape == (loaded.spec.n_actions,)


def test_a_policy_file_carries_what_its_values_are_expectations_of(tmp_path: Path) -> None:
    make_trained(tmp_path / "run", CATCH.changed(gamma=0.9, reward_clip=0.5, life_loss=True))
    write_policy(tmp_path / "mine.npz", find(tmp_path / "run"))
    with np.load(tmp_path / "mine.npz") as file:
        settings = json.loads(file["metadata"].tobytes())["settings"]
    assert (settings["gamma"], settings["reward_clip"]) == (0.9, 0.5)
    algorithm = read_policy(tmp_path / "mine.npz").settings.algorithm
    assert (algorithm.gamma, algorithm.reward_clip) == (0.9, 0.5)


# ------------------------------------------------------------------------------------------------ refusing

def test_what_is_no_policy_is_refused_in_one_line(tmp_path: Path, run: Path) -> None:
    (tmp_path / "text").write_text("a text")
    (tmp_path / "pickle").write_bytes(pickle.dumps({"weights": 1}))
    (tmp_path / "empty").write_bytes(b"")
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    for name in ("text", "pickle", "empty", "other.npz"):
        assert "is no policy file of ga3c" in refused(tmp_path / name)
    for where in ("nothing", tmp_path, run / "checkpoints", run / "checkpoints/7", "a\nb"):
        assert "is not a run, checkpoint" in refused(where)


def test_a_run_of_other_software_or_without_checkpoints_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.yaml").write_text("total_timesteps: 10\n")
    assert "is not a run, checkpoint" in refused(tmp_path / "other")
    (tmp_path / "other/metrics.jsonl").touch()
    assert "has no checkpoint yet" in refused(tmp_path / "other")
    (tmp_path / "other/checkpoints/000000000001").mkdir(parents=True)
    assert "manifest.json is missing" in refused(tmp_path / "other", CheckpointError)
    checkpoint.save(tmp_path / "other/checkpoints", "000000000001", Checkpoint({}, {"game": "Pong"}), 1)
    assert "these are no run's settings" in refused(tmp_path / "other")


def test_a_checkpoint_of_another_game_or_network_is_refused(tmp_path: Path) -> None:
    make_trained(tmp_path / "game", CATCH, says=configured(game="toy:identity"))
    assert "trained on toy:catch, but" in refused(tmp_path / "game")
    make_trained(tmp_path / "network", CATCH, game="toy:identity", says=configured(game="toy:identity"))
    assert "its weights are not those of a 'dense' network for toy:identity" in refused(tmp_path / "network")


def test_a_checkpoint_is_played_in_the_world_it_was_trained_in(tmp_path: Path) -> None:
    make_trained(tmp_path / "run", CATCH, (10, 20), says=CATCH.changed(sticky_actions=0.25, seed=7))
    saved = checkpoint.newest(tmp_path / "run/checkpoints")[0]
    checkpoint.save(tmp_path / "run/checkpoints", "000000000015",
                    saved._replace(progress=saved.progress | {"settings": CATCH.changed(mode=1).flat()}), 9)
    env = find(tmp_path / "run/checkpoints/000000000015").settings.env
    assert (env.sticky_actions, env.mode) == (None, 1)
    assert find(tmp_path / "run/checkpoints/000000000015").settings.run.seed == 7
    assert find(tmp_path / "run").settings.env.sticky_actions == 0.25, "one of a version that did not note it"
    wrong = saved.progress | {"settings": {"sticky_actions": "often"}}
    checkpoint.save(tmp_path / "run/checkpoints", "000000000030", saved._replace(progress=wrong), 9)
    assert "sticky_actions: 'often' is not allowed" in refused(tmp_path / "run")


@pytest.mark.parametrize("change", [
    lambda weights: weights.pop("network.00"),
    lambda weights: weights.update({"network.00": weights["network.00"].astype(np.float64)})])
def test_weights_that_miss_exceed_or_differ_are_refused(run: Path, change: Any) -> None:
    trained = find(run)
    change(trained.weights)
    with pytest.raises(ConfigError, match="its weights are not those"):
        Policy(trained)


def same(one: Trained, other: Trained) -> bool:
    return one[1:2] + one[3:] == other[1:2] + other[3:] and {
        name: array.tobytes() for name, array in one.weights.items()} == {
        name: array.tobytes() for name, array in other.weights.items()}


@examples(deadline=None, max_examples=150)
@given(data=st.data(), bit=st.integers(0, 7))
def test_one_flipped_bit_is_noticed_or_harmless(
        tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject, bit: int) -> None:
    directory = tmp_path_factory.getbasetemp()
    (directory / "whole.npz").write_bytes(whole)
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(whole) - 1))] ^= 1 << bit
    (directory / "damaged.npz").write_bytes(damaged)
    try:
        found = read_policy(directory / "damaged.npz")
    except (CheckpointError, ConfigError) as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert same(found, read_policy(directory / "whole.npz"))


@examples(deadline=None, max_examples=30)
@given(data=st.data())
def test_a_file_cut_short_is_noticed(
        tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "short.npz"
    path.write_bytes(whole[:data.draw(st.integers(2, len(whole) - 1))])
    refused(path, CheckpointError)


def test_weights_changed_behind_the_checksum_are_noticed(tmp_path: Path, whole: bytes) -> None:
    (tmp_path / "whole.npz").write_bytes(whole)
    with np.load(tmp_path / "whole.npz") as file:
        arrays = dict(file)
    np.savez(tmp_path / "changed.npz", **{**arrays, "network.00": arrays["network.00"] + 1})
    assert "its sha256 does not match the recorded one" in refused(tmp_path / "changed.npz", CheckpointError)


def test_a_failure_while_writing_leaves_the_old_file_and_no_rubbish(
        tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "catch.npz").write_bytes(whole)

    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    trained = read_policy(tmp_path / "catch.npz")
    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(OSError, match="No space left"):
        write_policy(tmp_path / "catch.npz", trained)
    assert os.listdir(tmp_path) == ["catch.npz"] and (tmp_path / "catch.npz").read_bytes() == whole


def test_a_run_of_a_larger_machine_is_found_on_a_smaller_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = configured(game="toy:catch", schedule="multi-batch", update_groups=4, rollout_length=8, agents=4)
    make_trained(tmp_path / "run", settings)
    text = (tmp_path / "run/config.yaml").read_text()
    (tmp_path / "run/config.yaml").write_text(re.sub("agents: 4 ", "agents: null ", text, count=1))
    monkeypatch.setattr("ga3c.settings.schedule.usable_cores", lambda: 1)
    assert find(str(tmp_path / "run")).settings.batching.update_groups == 4
    with pytest.raises(ConfigError, match="update_groups: 4 groups need as many agents, there are 2"):
        check_agents(find(str(tmp_path / "run")).settings)
