"""Presets: the paper's own values, and what a preset is beaten by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from parsing import mistake, settled

from ga3c.service.batches import notes_on_minibatches
from ga3c.settings.effects import notes_on_meetings
from ga3c.settings.files import check_agents, configured, recorded, to_yaml, yaml_scalar
from ga3c.settings.machine import usable_cores
from ga3c.settings.presets import PRESETS, notes_on_lag, notes_on_steps
from ga3c.settings.schema import ALL, Settings


def test_the_paper_preset_is_the_papers_own_values() -> None:
    assert settled("--preset", "paper").flat() == Settings().flat() | {
        "preset": "paper", "algorithm": "a3c", "passes": 1, "minibatches": 1,
        "envs_per_agent": 1, "agents": 32, "predictors": 2, "trainers": 2, "agent_nice": 0,
        "slots_per_agent": 4, "prediction_batch_min": 1, "prediction_batch_max": 128, "training_batch_min": 40,
        "rollout_length": 5, "gamma": 0.99, "reward_clip": 1.0, "value_coef": 0.5, "log_epsilon": 1e-6,
        "learning_rate": 3e-4, "learning_rate_final": None, "entropy_coef": 0.01, "entropy_coef_final": None,
        "gae_lambda": 1.0, "normalize_advantages": False, "correction": "none", "loss_reduction": "sum",
        "optimizer": "rmsprop", "rmsprop_decay": 0.99, "rmsprop_epsilon": 0.1, "max_grad_norm": 0.0,
        "network": "auto", "precision": "float32",
        "frame_skip": 4, "noop_max": 30, "sticky_actions": 0.0, "life_loss": False, "fire_reset": False,
        "contrast": False,
        "controller": "paper", "max_lag": None, "window": 60.0,
    }


def test_presets_are_of_settings_that_there_are() -> None:
    assert list(PRESETS) == ALL["preset"].choices
    assert all(name in ALL for preset in PRESETS.values() for name in preset)


def test_command_line_beats_file_beats_preset_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("run:\n  preset: paper\ntuning:\n  predictors: 5\nalgorithm:\n  gamma: 0.9\n")
    merged = settled("--config", str(file), "--gamma", "0.8").flat()
    assert [merged[name] for name in ("gamma", "predictors", "trainers", "seed")] == [0.8, 5, 2, 0]


def test_a_file_beats_a_preset_given_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("tuning:\n  predictors: 5\n")
    merged = settled("--config", str(file), "--preset", "paper")
    assert (merged.tuning.predictors, merged.tuning.trainers) == (5, 2)


def test_a_preset_on_the_command_line_beats_the_one_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("run:\n  preset: paper\n")
    assert settled("--config", str(file), "--preset", "default") == Settings()


@pytest.mark.parametrize(("theirs", "ours"), [("default", "paper"), ("paper", "default"), ("fast", "cule")])
def test_a_whole_file_does_not_undo_another_preset(theirs: str, ours: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(to_yaml(settled("--preset", theirs)))
    told = mistake("--config", str(file), "--preset", ours)
    line = 1 + file.read_text().splitlines().index(next(
        line for line in file.read_text().splitlines() if line.startswith(f"  preset: {theirs}")))
    assert told.startswith(f"{file}:{line}: preset {ours} does not go with a file of preset {theirs}, which sets ")
    assert told.endswith("; leave these lines out")
    assert settled("--config", str(file), "--preset", theirs) == settled("--preset", theirs)


@pytest.mark.parametrize(("environments", "rate"), [
    (16, 7e-4), (64, 1.4e-3), (256, 2.8e-3), (512, 3e-3), (8, 7e-4)])
def test_the_papers_a2c_learns_faster_by_the_root_of_its_batchs_growth(environments: int, rate: float) -> None:
    flags = ["--preset", "accelerated-a2c", "--agents", "2", "--envs-per-agent", f"{environments // 2}"]
    settings = settled(*flags)
    assert settings.algorithm.learning_rate == pytest.approx(rate) and settings.algorithm.rollout_length == 5
    assert f"learning_rate: {yaml_scalar(settings.algorithm.learning_rate)} " in to_yaml(settings), "as recorded"
    assert settled(*flags, "--learning-rate", "1e-5").algorithm.learning_rate == 1e-5


@pytest.mark.parametrize(("environments", "steps"), [(8, 256), (16, 128), (64, 32), (512, 4), (4, 256), (1024, 4)])
def test_the_papers_ppo_keeps_its_batch_by_shorter_rollouts(environments: int, steps: int) -> None:
    flags = ["--preset", "accelerated-ppo", "--agents", "4", "--envs-per-agent", f"{environments // 4}"]
    settings = settled(*flags)
    assert (settings.algorithm.rollout_length, settings.algorithm.learning_rate) == (steps, 1e-3)
    assert settled(*flags, "--rollout-length", "9").algorithm.rollout_length == 9


def test_a_run_that_goes_on_keeps_the_rate_that_it_was_recorded_with(tmp_path: Path) -> None:
    before = settled("--preset", "accelerated-a2c", "--envs-per-agent", "32")
    (tmp_path / "config.yaml").write_text(to_yaml(before))
    assert recorded(tmp_path / "config.yaml", {"envs_per_agent": 8}).algorithm.learning_rate == pytest.approx(1.4e-3)


@pytest.mark.parametrize("algorithm", ["a3c", "a2c", "a3c-cpu"])
def test_an_algorithm_of_one_pass_begins_with_what_fast_gives(algorithm: str) -> None:
    same = {"preset": "default", "algorithm": algorithm, "schedule": "alternating" if algorithm == "a2c" else "queues"}
    assert settled("--algorithm", algorithm).flat() == settled("--preset", "fast").flat() | same
    assert settled("--algorithm", algorithm, "--gamma", "0.5").algorithm.gamma == 0.5


@pytest.mark.parametrize("algorithm", ["appo", "my_module:Mine"])
def test_any_other_algorithm_begins_with_the_defaults(algorithm: str) -> None:
    assert settled("--algorithm", algorithm).flat() == Settings().flat() | {"algorithm": algorithm}


# As the papers and their published code have them.
PUBLISHED: dict[str, dict[str, Any]] = {
    "accelerated-a2c": {
        "algorithm": "a2c", "schedule": "alternating", "rollout_length": 5, "optimizer": "rmsprop",
        "rmsprop_decay": 0.9, "rmsprop_epsilon": 1e-6, "max_grad_norm": 0.5, "value_coef": 0.25, "entropy_coef": 0.01,
        "entropy_coef_final": None, "gae_lambda": 1.0, "random_start_steps": 2000, "passes": 1, "minibatches": 1,
        "normalize_advantages": False},
    "accelerated-ppo": {
        "algorithm": "ppo", "schedule": "alternating", "rollout_length": 256, "passes": 4, "minibatches": 4,
        "optimizer": "adam", "adam_epsilon": 1e-5, "gae_lambda": 0.95, "clip_range": 0.2, "clip_range_final": 0.0,
        "value_coef": 1.0, "entropy_coef": 0.01, "max_grad_norm": 0.0, "random_start_steps": 2000,
        "normalize_advantages": False},
    "accelerated-appo": {
        "algorithm": "appo", "schedule": "queues", "passes": 4, "minibatches": 4, "adam_epsilon": 1e-5,
        "clip_range": 0.2, "clip_range_final": None, "gae_lambda": 0.95, "value_coef": 1.0, "max_grad_norm": 0.5,
        "entropy_coef": 0.01, "random_start_steps": 2000, "normalize_advantages": False},
    "cule": {
        "algorithm": "a3c", "correction": "vtrace", "schedule": "multi-batch", "update_groups": 20,
        "rollout_length": 20, "steps_per_update": 1, "optimizer": "rmsprop-pytorch", "rmsprop_decay": 0.99,
        "rmsprop_epsilon": 1e-5, "value_coef": 0.5, "entropy_coef": 0.01, "max_grad_norm": 0.5, "passes": 1,
        "normalize_advantages": False},
    "cule-ppo": {
        "algorithm": "ppo", "schedule": "synchronous", "rollout_length": 4, "passes": 4, "minibatches": 4,
        "optimizer": "adam", "adam_epsilon": 1.5e-4, "clip_range": 0.1, "gae_lambda": 1.0, "entropy_coef": 0.01,
        "value_coef": 0.25, "max_grad_norm": 0.5, "normalize_advantages": True},
    "dqn": {
        "algorithm": "dqn", "schedule": "standard", "training_batch_min": 32, "replay_size": 1_000_000,
        "replay_start": 50_000, "target_steps": 40_000, "intensity": 8.0, "optimizer": "rmsprop-centred",
        "rmsprop_decay": 0.95, "epsilon": 1.0, "epsilon_final": 0.1, "epsilon_steps": 1_000_000, "n_step": 1,
        "epsilon_evaluation": 0.05, "double": False, "dueling": False, "life_loss": True},
    "fast-dqn": {
        "algorithm": "dqn", "schedule": "both", "agents": 8, "envs_per_agent": 1, "training_batch_min": 32,
        "target_steps": 10_000, "intensity": 8.0, "replay_start": 50_000, "life_loss": True, "fire_reset": True},
    "accelerated-dqn": {
        "algorithm": "dqn", "training_batch_min": 512, "learning_rate": 7.5e-4, "optimizer": "rmsprop-pytorch",
        "rmsprop_decay": 0.95, "rmsprop_epsilon": 1e-6, "intensity": 8.0, "life_loss": True, "fire_reset": True},
    "accelerated-c51": {
        "algorithm": "c51", "atoms": 51, "return_limit": 10.0, "learning_rate": 4.2e-4, "intensity": 8.0,
        "life_loss": True, "fire_reset": True},
    "accelerated-rainbow": {
        "algorithm": "c51", "double": True, "dueling": True, "n_step": 3, "priority_alpha": 0.5, "priority_beta": 0.4,
        "priority_beta_final": 1.0, "training_batch_min": 512, "learning_rate": 6.25e-5, "target_steps": 8_000,
        "replay_start": 20_000, "epsilon_final": 0.01, "epsilon_steps": 62_500, "max_grad_norm": 10.0,
        "life_loss": True, "fire_reset": True}}


@pytest.mark.parametrize("preset", PUBLISHED)
def test_a_preset_has_the_numbers_of_its_paper(preset: str) -> None:
    found = settled("--preset", preset).flat()
    accelerated = preset.startswith("accelerated")
    images = {"frame_skip": 4, "noop_max": 30, "sticky_actions": 0.0, "life_loss": accelerated,
              "fire_reset": accelerated, "gamma": 0.99, "reward_clip": 1.0, "loss_reduction": "mean",
              "precision": "float32",
              "network": "small" if accelerated and found["algorithm"] not in ("dqn", "c51") else "nature"}
    for name, value in {**images, **PUBLISHED[preset]}.items():
        assert found[name] == value, name


@pytest.mark.parametrize(("preset", "epsilon", "meets"), [
    ("dqn", 0.01 / 1024, 4), ("fast-dqn", 0.01 / 1024, 10_000), ("accelerated-c51", 0.01 / 512, 64),
    ("accelerated-rainbow", 0.005 / 512, 64)])
def test_epsilons_follow_the_batch_and_epochs_end_where_the_paper_says(
        preset: str, epsilon: float, meets: int) -> None:
    chosen = settled("--preset", preset)
    optimizer = "adam_epsilon" if chosen.algorithm.optimizer == "adam" else "rmsprop_epsilon"
    assert getattr(chosen.algorithm, optimizer) == pytest.approx(epsilon)
    assert chosen.schedule.steps * chosen.schedule.agents * chosen.agents.envs_per_agent == meets
    assert notes_on_meetings(chosen) == []


def test_a_target_between_two_rounds_waits_for_the_second() -> None:
    note, = notes_on_meetings(settled("--preset", "fast-dqn", "--target-steps", "9999"))
    assert note.startswith("--target-steps 9999: 8 environments meet after whole rollouts of 10 steps, every 10000 ")


def test_what_does_not_correct_for_lag_begins_without_it() -> None:
    assert settled("--algorithm", "ppo").flat() == Settings().flat() | {"algorithm": "ppo", "schedule": "alternating"}
    assert settled("--algorithm", "ppo", "--schedule", "queues").batching.schedule == "queues"
    assert settled("--algorithm", "a2c", "--preset", "fast").batching.schedule == "queues"


def test_several_steps_that_nothing_holds_back_are_told() -> None:
    for flags in (("--algorithm", "a2c"), ("--preset", "accelerated-a2c"), ("--algorithm", "ppo"), (),
                  ("--algorithm", "my:Own"), ("--algorithm", "a3c", "--passes", "3")):
        assert notes_on_steps(settled(*flags).algorithm) == []
    note, = notes_on_steps(settled("--algorithm", "a2c", "--preset", "default").algorithm)
    assert note.startswith("a2c makes 24 steps with each batch, and nothing holds them near the policy")


def test_who_asks_for_lag_without_a_correction_is_told() -> None:
    def notes(algorithm: str, schedule: str, **more: Any) -> list[str]:
        return notes_on_lag(configured(algorithm=algorithm, schedule=schedule, agents=4, **more))

    for without in (("ppo", "alternating"), ("appo", "queues"), ("my:Own", "queues")):
        assert notes(*without) == []
    note, = notes("ppo", "queues")
    assert note.startswith("ppo does not correct for policy lag, which --schedule queues has")
    assert len(notes("a2c", "multi-batch")) == 1
    assert notes("a2c", "multi-batch", update_groups=1) == [], "one group of all agents is synchronous"


@pytest.mark.parametrize("algorithm", ["appo", "a3c", "a2c", "ppo"])
@pytest.mark.parametrize("schedule", ["queues", "synchronous", "alternating", "multi-batch"])
def test_each_schedule_begins_by_its_name_alone_on_two_cores(
        algorithm: str, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ga3c.settings.schedule.usable_cores", lambda: 2)
    check_agents(settled("--algorithm", algorithm, "--schedule", schedule))


def test_who_asks_for_more_minibatches_than_a3c_has_rollouts_is_told() -> None:
    assert notes_on_minibatches(settled("--algorithm", "a3c")) == []
    assert notes_on_minibatches(settled("--algorithm", "appo", "--minibatches", "16")) == []
    assert notes_on_minibatches(settled("--algorithm", "a3c", "--minibatches", "4", "--training-batch-min",
                                        "1280")) == []
    note, = notes_on_minibatches(settled("--algorithm", "a3c", "--passes", "3", "--minibatches", "8"))
    rounds, = notes_on_minibatches(settled("--algorithm", "a3c", "--minibatches", "8", "--schedule", "synchronous",
                                           "--agents", "4"))
    assert rounds.endswith("an update has 4. A pass is 4 steps of the optimizer. More --agents make updates larger.")
    assert note == ("--minibatches 8: a3c takes rollouts whole, and an update has 1. A pass is 1 step of the optimizer."
                    " --training-batch-min makes updates larger.")


def test_a_preset_that_is_named_holds_for_another_algorithm_too() -> None:
    both = settled("--preset", "quality", "--algorithm", "a2c")
    assert both.flat() == settled("--preset", "quality").flat() | {"algorithm": "a2c"}


def test_quality_learns_from_minibatches_of_256_and_ends_episodes_with_a_life() -> None:
    s = settled("--preset", "quality")
    assert s.schedule.agents * s.agents.envs_per_agent == 16 and s.algorithm.rollout_length == 128
    assert s.schedule.rollouts == 2 and not s.schedule.tuned
    assert s.batching.training_batch_min / s.algorithm.minibatches == 256
    assert s.env.life_loss and s.algorithm.network == "nature" and s.algorithm.algorithm == "appo"


@pytest.mark.parametrize("preset", [
    name for name in PRESETS if name not in ("default", "fast", "quality", "pqn", "value")])
def test_a_papers_preset_leaves_nothing_to_our_defaults(preset: str) -> None:
    settings = settled("--preset", preset)
    schedule = settings.schedule
    given = PRESETS[preset]
    family = {"epsilon", "epsilon_final", "replay_size", "replay_start", "target_steps", "n_step", "intensity"} if (
        schedule.remembers) else {"entropy_coef", "entropy_coef_final", "value_coef", "gae_lambda"}
    assert set(given) >= family | {
        "learning_rate", "learning_rate_final", "rollout_length", "gamma", "optimizer", "max_grad_norm", "network",
        "agents", "envs_per_agent"}
    if schedule.remembers:
        return
    environments = settings.schedule.agents * settings.agents.envs_per_agent
    if settings.schedule.agents_learn:  # one a core, each of which is an update by itself
        assert (environments, settings.algorithm.rollout_length) == (usable_cores(), 5)
        return
    batch = settings.algorithm.rollout_length * environments // schedule.groups
    assert (environments, batch if schedule.agents_wait else settings.batching.training_batch_min) == {
        "paper": (32, 40), "ga3c": (32, 40), "accelerated-a2c": (16, 80), "accelerated-ppo": (8, 2048),
        "accelerated-appo": (8, 2048), "cule": (120, 120), "cule-ppo": (256, 1024)}[preset]
    assert schedule.agents_wait == (settings.batching.schedule != "queues")
