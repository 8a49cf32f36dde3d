"""The schema: defaults, groups, and the numbers of agents and threads that follow from settings."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from parsing import any_settings

from ga3c.settings.files import configured, to_yaml
from ga3c.settings.machine import usable_cores
from ga3c.settings.messages import ConfigError
from ga3c.settings.schedule import agent_bytes
from ga3c.settings.schema import ALL, GROUPS, Settings


def test_config_yaml_is_the_defaults_written_out() -> None:
    shipped = Path(__file__).parents[2] / "config.yaml"
    assert shipped.read_bytes() == to_yaml(Settings()).encode()


def test_every_setting_has_a_description_and_says_what_is_wanted() -> None:
    for name, setting in ALL.items():
        assert setting.field.description and not setting.field.description.endswith("."), name
        assert setting.metavar.isupper() or setting.choices == setting.metavar.split("|"), name
        assert setting.optional == (setting.field.default is None or name.endswith("_final") or name == "max_lag"), name


def test_settings_of_a_group_are_found_by_name_alone() -> None:
    flat = Settings().flat()
    assert set(flat) == set(ALL) and list(GROUPS) == [
        "env", "agents", "batching", "algorithm", "actor_critic", "a3c", "ppo", "value", "pqn", "replay", "c51", "qr",
        "tuning", "run"]
    assert flat["game"] == Settings().env.game and flat["rollout_length"] == Settings().algorithm.rollout_length


@examples(deadline=None, max_examples=20)
@given(any_settings)
def test_a_changed_copy_has_the_new_values_and_all_others(made: Settings) -> None:
    changed = made.changed(game="x", seed=7)
    assert changed.flat() == made.flat() | {"game": "x", "seed": 7}
    with pytest.raises(KeyError):
        made.changed(gama=1)


def test_agents_default_to_32_environments_a_core() -> None:
    cores = usable_cores()
    agents = [configured(envs_per_agent=n).schedule.agents for n in (1, 2, 4, 8, 16, 100)]
    assert agents == [16 * cores, 16 * cores, 8 * cores, 4 * cores, 2 * cores, 2 * cores]
    assert configured(agents=3, dynamic=False).schedule.most[0] == 3
    assert configured(agents=3, agents_max=2).schedule.most[0] == 3
    assert configured(agents=3, agents_max=9).schedule.most[0] == 9
    assert configured(agents=3, agents_max=9, schedule="synchronous").schedule.most[0] == 3, "a fixed number"


def test_the_more_a_rollout_holds_the_fewer_agents_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ga3c.settings.schedule.usable_cores", lambda: 64)
    monkeypatch.setattr("ga3c.settings.schedule.usable_memory", lambda: 28 * 2**30)
    long, short = configured(), configured(preset="fast")
    assert agent_bytes(long) - agent_bytes(short) == 16 * 2 * (64 - 20) * 84 * 84 * 4
    for settings in (long, short):
        assert settings.schedule.most[0] * agent_bytes(settings) <= 14 * 2**30
        assert (settings.schedule.most[0] + 1) * agent_bytes(settings) > 14 * 2**30
    assert 128 < long.schedule.most[0] < short.schedule.most[0] < 256


def test_there_is_room_for_the_counts_to_start_from() -> None:
    assert configured(start="9/3/2", agents=2, agents_max=2).schedule.most[0] == 9
    predictors, trainers = configured(start="9/17/18").schedule.most[1:]
    assert (predictors, trainers) == (17, 18)
    fixed = configured(start="9/17/18", dynamic=False, predictors=3, agents=2)
    assert fixed.schedule.most[1:] == (3, 1) and fixed.schedule.agents == fixed.schedule.most[0] == 2
    assert configured(start="9/3/2", agents=2).schedule.agents == 9
    assert configured(start="2/1/1", agents=40).schedule.most[0] >= 40


def test_counts_to_start_from_have_the_limits_of_the_counts() -> None:
    for start in ("4097/1/1", "9999/1/1", "1/65/1", "1/1/99", "0/1/1", "1/0/1", "1/1", "1\u0663/1/1"):
        with pytest.raises(ConfigError, match="it is to be N/N/N, as in 1/1/1, and at most 4096/64/64"):
            configured(start=start)
    for n_a, threads in itertools.product((1, 9, 10, 99, 100, 999, 1000, 3999, 4000, 4089, 4096), (1, 9, 10, 59, 64)):
        assert configured(start=f"{n_a}/{threads}/{threads}").schedule[-4:-1] == (n_a, threads, threads)
