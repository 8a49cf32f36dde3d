"""Settings without effect are told of, with the reason; those with one are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ga3c.settings.effects import rising, without_effect
from ga3c.settings.files import chosen, configured, stated, to_yaml
from ga3c.settings.presets import PRESETS, notes_on_beginning


def lines(atari: bool = True, **given: Any) -> list[str]:
    return without_effect(configured(**given), given, atari)


@pytest.mark.parametrize(("given", "said"), [
    ({"schedule": "synchronous", "training_batch_min": 512, "predictors": 2},
     "No effect: --predictors, --training-batch-min; --schedule synchronous says which agents are answered, and what "
     "an update takes"),
    ({"algorithm": "ppo", "training_batch_min": 512},
     "No effect: --training-batch-min; --schedule alternating says which agents are answered, and what an update "
     "takes"),
    ({"algorithm": "a3c-cpu", "trainers": 4},
     "No effect: --trainers; with --algorithm a3c-cpu there is no predictor and no trainer: each agent learns from its "
     "rollouts"),
    ({"algorithm": "a3c-cpu", "start": "1/1/1"},
     "No effect: --start; with --algorithm a3c-cpu the numbers of workers are fixed"),
    ({"schedule": "alternating", "dynamic": True},
     "No effect: --dynamic; with --schedule alternating the numbers of workers are fixed"),
    ({"dynamic": False, "start": "2/1/1"},
     "No effect: --start; with --no-dynamic the numbers of workers are fixed"),
    ({"dynamic": False, "max_lag": 4.0},
     "No effect: --max-lag; with --no-dynamic the numbers of workers are fixed"),
    ({"agents": 8, "agents_max": 4}, "No effect: --agents-max; there is room for the 8 to begin with"),
    ({"serial": True, "device_threads": 4, "trainers": 2},
     "No effect: --trainers, --device-threads; --serial is one thread"),
    ({"window": 10.0}, "No effect: --window; only --controller paper uses it"),
    ({"update_groups": 8, "steps_per_update": 4},
     "No effect: --update-groups, --steps-per-update; only --schedule multi-batch uses them"),
    ({"correction": "none"}, "No effect: --correction; --algorithm appo has none"),
    ({"algorithm": "a3c", "clip_range": 0.2}, "No effect: --clip-range; --algorithm a3c has none"),
    ({"clip_range": 0.0, "clip_range_final": 0.1}, "No effect: --clip-range-final; --clip-range 0 never clips"),
    ({"preset": "paper", "anneal_steps": 5}, "No effect: --anneal-steps; nothing changes with the agent steps"),
    ({"algorithm": "a2c", "learning_rate_final": None, "entropy_coef_final": None, "anneal_steps": 5},
     "No effect: --anneal-steps; nothing changes with the agent steps"),
    ({"serial": True, "slots_per_agent": 4}, "No effect: --slots-per-agent; --serial is one thread"),
    ({"serial": True, "trace": True}, "No effect: --trace; --serial is one thread"),
    ({"algorithm": "a3c-cpu", "trace": True},
     "No effect: --trace; with --algorithm a3c-cpu updates happen in the agents' processes"),
    ({"serial": True, "kernels": "remeasure"}, "No effect: --kernels; --serial measures none"),
    ({"network": "dense", "precision": "float32"}, "No effect: --precision; only networks for images use them"),
    ({"rmsprop_epsilon": 0.1}, "No effect: --rmsprop-epsilon; only RMSProp uses them"),
    ({"large_stride": 2}, "No effect: --large-stride; only --network large uses it"),
    ({"evaluation_episodes": 50}, "No effect: --evaluation-episodes; --evaluation-minutes asks for evaluations")])
def test_what_has_no_effect_is_told_with_the_reason(given: dict[str, Any], said: str) -> None:
    assert lines(**given) == [said]


def test_a_file_is_told_of_what_it_chose_without_effect(tmp_path: Path) -> None:
    def told(text: str, **given: Any) -> list[str]:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        settings = configured(str(path), **given)
        return without_effect(settings, chosen(stated(given, str(path)), given), True)

    groups = "No effect: --update-groups; only --schedule multi-batch uses them"
    assert told("batching: {update_groups: 8}") == [groups]
    assert told("batching: {update_groups: 8}", schedule="multi-batch", steps_per_update=8, agents=8) == []
    assert told("algorithm: {algorithm: a3c, passes: 2}\nenv: {wrappers: []}") == []
    for given in ({}, {"preset": "paper"}, {"algorithm": "a3c"}, {"algorithm": "a3c", "serial": True}):
        whole = configured(**given)
        assert told(to_yaml(whole)) == [], given
        assert told(to_yaml(whole.changed(update_groups=8))) == [groups], given


def test_what_only_atari_has_is_told_where_the_game_is_another() -> None:
    given = {"game": "CartPole-v1", "frame_skip": 2, "sticky_actions": 0.25, "seed": 3}
    assert lines(False, **given) == ["No effect: --frame-skip, --sticky-actions; CartPole-v1 is no Atari game"]
    assert not lines(True, **given)


@pytest.mark.parametrize("given", [
    {}, {"training_batch_min": 512, "predictors": 2, "trainers": 2, "start": "2/1/1", "max_lag": 5.0, "agents_max": 8},
    {"agents": 4, "clip_range": 0.2, "adam_epsilon": 1e-6}, {"algorithm": "a3c", "correction": "none"},
    {"anneal_steps": 5}, {"learning_rate_final": None, "anneal_steps": 5},
    {"algorithm": "my:Own", "learning_rate_final": None, "entropy_coef_final": None, "anneal_steps": 5},
    {"controller": "paper", "window": 10.0}, {"dynamic": False, "agents": 3},
    {"schedule": "multi-batch", "update_groups": 8, "steps_per_update": 8, "agents": 8, "dynamic": False},
    {"serial": True, "training_batch_min": 512, "envs_per_agent": 4}, {"algorithm": "my:Own", "correction": "none"},
    {"evaluation_minutes": 5.0, "evaluation_episodes": 50}, {"network": "large", "large_stride": 2},
    {"optimizer": "rmsprop", "rmsprop_decay": 0.9}, {"serial": True, "agent_timeout": 300.0, "agent_nice": 0},
    {"agents": 4, "start": "2/1/1"}, {"algorithm": "a3c-cpu", "agents_max": 64}, {"prediction_batch_max": 8},
    {"dynamic": False, "agents": 3, "agents_max": 5}, {"network": "mine:network", "precision": "float32"},
    {"network": "my:own", "large_stride": 2}])
def test_nothing_is_told_of_what_has_an_effect(given: dict[str, Any]) -> None:
    assert not lines(**given)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_alone_is_told_nothing_of(preset: str) -> None:
    assert not lines(False, preset=preset) and not rising(configured(preset=preset))


@pytest.mark.parametrize(("given", "said"), [
    ({"learning_rate": 1e-5}, ["--learning-rate rises, from 1e-05 to the 0.0001 of --learning-rate-final"]),
    ({"preset": "fast", "entropy_coef": 0.0}, ["--entropy-coef rises, from 0 to the 0.001 of --entropy-coef-final"]),
    ({"clip_range": 0.005}, ["--clip-range rises, from 0.005 to the 0.01 of --clip-range-final"]),
    ({"clip_range": 0.0}, []), ({"algorithm": "a3c", "clip_range": 0.005}, []),
    ({"learning_rate": 1e-5, "learning_rate_final": None}, [])])
def test_a_number_that_rises_is_told_of(given: dict[str, Any], said: list[str]) -> None:
    assert rising(configured(**given)) == said


@pytest.mark.parametrize(("given", "said"), [
    ({}, []), ({"algorithm": "appo"}, []), ({"algorithm": "my:Own"}, []),
    ({"algorithm": "a3c", "preset": "default"}, []),
    ({"algorithm": "a3c"}, ["--algorithm a3c begins with the values of --preset fast; --preset default would leave all "
                            "other values"]),
    ({"algorithm": "a2c"}, ["--algorithm a2c begins with the values of --preset fast and --schedule alternating; "
                            "--preset default would leave all other values"]),
    ({"algorithm": "ppo"}, ["--algorithm ppo begins with --schedule alternating; --preset default would leave all "
                            "other values"])])
def test_what_an_algorithm_begins_with_beside_its_name_is_told(given: dict[str, Any], said: list[str]) -> None:
    assert notes_on_beginning(given) == said


def test_it_is_told_of_a_complete_file_too_unless_it_names_another_preset() -> None:
    for given, told in (({"algorithm": "a3c"}, True), ({"algorithm": "ppo"}, True), ({"algorithm": "appo"}, False),
                        ({"algorithm": "a2c"}, True), ({"algorithm": "a3c-cpu"}, True),
                        ({"algorithm": "a3c", "learning_rate": 1e-3}, True), ({"game": "Pong"}, False),
                        ({"algorithm": "ppo", "schedule": "synchronous"}, False),
                        ({"algorithm": "a3c", "preset": "default"}, False),
                        ({"algorithm": "a3c", "preset": "fast"}, False)):
        assert bool(notes_on_beginning(configured(**given).flat())) == told, given
