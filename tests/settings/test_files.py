"""Files of settings: there and back, and one line for every mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from parsing import any_settings, mistake, settled

import ga3c
from ga3c.settings.files import configured, recorded, recorded_values, resolve, to_yaml
from ga3c.settings.messages import ConfigError, shown
from ga3c.settings.schema import ALL, GROUPS, Settings

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


# ------------------------------------------------------------------------------------------------ there and back

@examples(deadline=None, max_examples=20)
@given(any_settings)
def test_any_settings_written_as_yaml_read_back_equal(tmp_path_factory: pytest.TempPathFactory, made: Settings) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(to_yaml(made), encoding="utf-8")
    assert resolve({}, str(path)) == made == recorded(path)
    assert configured(**recorded_values(path)) == made


@pytest.mark.parametrize("text", ["", "# nothing\n", "env:\n", "env:  # all as it is\nrun:\n  # seed: 1\n"])
def test_an_empty_file_or_group_changes_nothing(write: Write, text: str) -> None:
    assert settled("--config", write(text)) == Settings()


@pytest.mark.parametrize("no", ["no", "false", "False", "off"])
def test_every_no_of_yaml_is_no(write: Write, no: str) -> None:
    assert settled("--config", write(f"run:\n  tensorboard: {no}")).run.tensorboard is False


def test_settings_from_python_go_over_preset_and_file(write: Write) -> None:
    file = write("env:\n  game: Boxing\nalgorithm: {gamma: 0.9}\n")
    made = configured(file, preset="paper", gamma=0.8, wrappers=["a:B"])
    assert made == configured(preset="paper", game="Boxing", wrappers=["a:B"], gamma=0.8)


def test_counts_from_python_go_over_the_start_of_a_file(write: Write) -> None:
    path = write("tuning: {start: 3/2/1}")
    assert configured(path).tuning.start == configured(path, seed=1).tuning.start == "3/2/1"
    assert configured(path, agents=5).schedule.agents == 5
    assert configured(path, agents=5, start="7/1/1").schedule.agents == 7


def test_the_settings_of_a_run_take_what_is_given_besides(write: Write) -> None:
    values = {"preset": "paper", "game": "Boxing", "sticky_actions": 0.25, "agents": 12, "learning_rate_final": None}
    path = Path(write(to_yaml(configured(**values))))
    assert recorded(path, {"seed": 3}) == configured(**values, seed=3)


@pytest.mark.parametrize(("text", "told"), [
    ("env: {game: Pong}\nalgorithm: {rollout_length: 0}",
     "rollout_length: 0 is not allowed: input should be greater than or equal to 1"),
    ("env: {game: Pong, of_tomorrow: 1}", "unknown setting 'of_tomorrow'"), ("env: {game: [", "cannot be read"),
    ("env: {game: 3}", "game: 3 is not")])
def test_a_damaged_record_is_one_line(write: Write, text: str, told: str) -> None:
    path = Path(write(text))
    with pytest.raises(ConfigError) as caught:
        recorded(path)
    assert told in str(caught.value) and str(path) in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", [name for name in ALL if name not in GROUPS])
def test_a_setting_outside_its_group_is_told_with_the_group(write: Write, name: str) -> None:
    assert f"1: '{name}' stands in the group '{ALL[name].group}';" in mistake("--config", write(f"{name}: 1"))
    other = next(group for group in GROUPS if group != ALL[name].group)
    assert (f"2: '{name}' stands in the group '{ALL[name].group}', not in '{other}'"
            in mistake("--config", write(f"{other}:\n  {name}: 1")))


@pytest.mark.parametrize(("given", "told"), [
    ({"gama": 1.0}, "unknown setting 'gama'; did you mean gamma?"),
    ({"gamma": 2}, "gamma: 2 is not allowed: input should be less than or equal to 1"),
    ({"seed": "1"}, "seed: '1' is not allowed: input should be a valid integer"),
    ({"env": {"game": "Pong"}}, "unknown setting 'env'")])
def test_a_mistake_in_python_is_one_line(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ga3c.ConfigError) as caught:
        ga3c.Config(**given)
    assert str(caught.value).startswith(told) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(("name", "value"), [
    ("schedule", "synchronous"), ("passes", 2), ("minibatches", 2), ("normalize_rewards", True),
    ("normalize_observations", True)])
def test_what_agents_cannot_do_that_learn_by_themselves_is_one_line(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(**{"algorithm": "a3c-cpu", "serial": True, name: value})
    told = str(caught.value)
    assert told.startswith(f"{name}: {str(value).lower()} does not go with a3c-cpu") and "leave it" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(("changes", "told"), [
    ({"algorithm": "a3c"}, "needs algorithm a3c-cpu"), ({"optimizer": "rmsprop"}, "needs optimizer adam"),
    ({"serial": True}, "does not go with serial")])
def test_updates_of_its_own_are_made_by_a_worker_alone_and_with_adam(changes: dict[str, Any], told: str) -> None:
    assert configured(algorithm="a3c-cpu", local_updates=4).a3c.local_updates == 4
    with pytest.raises(ConfigError, match=f"local_updates: 4 {told}"):
        configured(**{"algorithm": "a3c-cpu", "local_updates": 4, **changes})


# ------------------------------------------------------------------------------------------------ mistakes in a file

@pytest.mark.parametrize(("text", "line", "told"), [
    ("run:\n  seed: 1\n  gama: 0.9", 3, "unknown setting 'gama'; did you mean gamma?"),
    ("run:\n  seed: 1\n  <<: {gama: 0.9}", 3, "unknown setting"),
    ("run:\n  seed: 1\n  ? |\n    a\n    b\n  : 1", 3, "unknown setting"),
    ("run:\n\n  gamma: high", 3, "'gamma' stands in the group 'algorithm', not in 'run'"),
    ("algorithm:\n\n  gamma: high", 3, "gamma: 'high' is not allowed: input should be a valid number"),
    ("tuning:\n  agents: few", 2, "agents: 'few' is not allowed: input should be a valid integer"),
    ("tuning:\n  agents: true", 2, "agents: True is not allowed: input should be a valid integer"),
    ("env:\n  life_loss: 'False'", 2, "life_loss: 'False' is not allowed: input should be a valid boolean"),
    ("run:\n  minutes: 1:30", 2, "minutes: YAML reads 1:30 as 90; write a number in plain digits"),
    ("run:\n  seed: 010", 2, "seed: YAML reads 010 as 8; write a number in plain digits"),
    ("env:\n  game: 12", 2, "game: 12 is not allowed: input should be a valid string"),
    ("env:\n  wrappers: nothing", 2, "wrappers: 'nothing' is not allowed: each is to be module:Name"),
    ("algorithm:\n  gamma: 1.5", 2, "gamma: 1.5 is not allowed: input should be less than or equal to 1"),
    ("algorithm:\n  gamma: .nan", 2, "gamma: nan is not allowed: input should be a finite number"),
    ("run:\n  preset: papr", 2, "preset: 'papr' is not allowed: input should be 'default', 'fast', "),
    ("run:\n  preset: papr", 2, "; did you mean paper?"),
    ("run:\n  minutes: 9\n  seed: 1\n  minutes: 8", 4, "'minutes' is given twice, first in line 2"),
    ("run:\n  seed: 1\nrun:\n  seed: 2", 3, "'run' is given twice, first in line 1"),
    ("algorithm:\n  learning_rate: 1e-4", 2, "learning_rate: '1e-4' is not allowed: input should be a valid number; "
                                             "YAML reads it as text, write "),
    ("env:\n  game: !!python/object/apply:os.system [x]", 2, "not YAML: could not determine a constructor"),
    ("env:\n  game: [a", 2, "not YAML"),
    ("- seed", 1, "a configuration is groups of 'name: value'"),
    ("run: 3", 1, "'run' is a group: indented lines 'name: value'"),
    ("runs:\n  seed: 1", 1, "unknown group 'runs'; did you mean run?; the groups are env, agents, batching, algorithm"),
    ("? [a]\n: 1", 1, "a setting's name is plain text"),
])
def test_a_mistake_in_a_file_is_told_with_file_line_and_key(write: Write, text: str, line: int, told: str) -> None:
    path = write(text)
    message = mistake("--config", path)
    assert message.startswith(f"{path}:{line}: ")
    assert told in message


@pytest.mark.parametrize("text", ["1e-4", "1e4", "2.5e3"])
def test_a_number_that_yaml_reads_as_text_is_right_if_written_as_told(write: Write, text: str) -> None:
    told = mistake("--config", write(f"algorithm:\n  learning_rate: {text}")).split("write ")[1]
    made = settled("--config", write(f"algorithm:\n  learning_rate: {told}"))
    assert made.algorithm.learning_rate == float(text)


@pytest.mark.parametrize("text", ["nan", "high"])
def test_text_that_is_no_number_is_not_told_to_be_written_otherwise(write: Write, text: str) -> None:
    assert "write" not in mistake("--config", write(f"algorithm:\n  gamma: {text}"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing, text = tmp_path / "missing.yaml", tmp_path / "latin1.yaml"
    text.write_bytes("env: {game: Pong}  # für Elise".encode("latin-1"))
    assert mistake("--config", str(missing)) == f"{missing}: No such file or directory"
    assert mistake("--config", str(tmp_path)) == f"{tmp_path}: Is a directory"
    assert mistake("--config", str(text)) == f"{text}: not UTF-8 text (byte 22)"


@pytest.mark.parametrize("text", [
    "gamma: !!bool x", "gamma: !!timestamp x", "seed: !!int ''", "gamma: !!float ''", "!!bool x: 1",
    "agents: 0x" + "f" * 5000, "game: " + "[" * 400 + "]" * 400, "wrappers: &a [*a]", "seed: 0b_", "game: \0",
])
def test_what_yaml_itself_stumbles_over_is_one_line_too(write: Write, text: str) -> None:
    group = ALL[text.split(":")[0]].group if text.split(":")[0] in ALL else "env"
    path = write(f"{group}:\n  {text}")
    assert mistake("--config", path).startswith(f"{path}:")
    assert mistake("--config", write("&a {env: *a}")).startswith(f"{path}:1: unknown setting 'env'")


def test_a_seed_too_long_to_write_down_is_refused(write: Write) -> None:
    mistake("--config", write("run:\n  seed: 0x" + "f" * 5000))


def test_more_slots_than_a_ticket_can_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="agents: 4096 x slots_per_agent 16 is over 65535 slots"):
        configured(agents=4096, slots_per_agent=16)


# ------------------------------------------------------------------------------------------------ anything at all

yaml_pieces = st.sampled_from([
    *GROUPS, *ALL, ": ", ":", "\n", "\n  ", "- ", "? ", "[", "]", "{", "}", ", ", "&a ", "*a", "<<: ", "'",
    '"', "|\n", "---\n", "...\n", "%YAML 1.1\n", "#", "1e-4", ".nan", "0x", "0b_", "1:30", "2001-01-01", "null",
    "yes", "=", "~", "0.5", "7", "paper"])
yaml_tags = st.sampled_from(["", *(f"!!{tag} " for tag in (
    "bool", "int", "float", "null", "timestamp", "set", "omap", "pairs", "binary", "str", "seq", "map", "python/x"))])
yaml_values = st.tuples(yaml_tags, yaml_pieces | st.text(max_size=5) | st.just("''")).map("".join)
yaml_lines = st.builds(lambda name, value: f"{ALL[name].group}:\n  {name}: {value}\n", st.sampled_from([*ALL]),
                       yaml_values)
yaml_groups = st.builds(lambda group, value: f"{group}: {value}\n", st.sampled_from([*GROUPS]), yaml_values)
yaml_texts = st.lists(yaml_lines | yaml_groups | yaml_pieces | st.text(max_size=4), max_size=10).map("".join)


@examples(deadline=None, max_examples=400)
@given(yaml_lines.map(str.encode) | yaml_texts.map(str.encode) | st.binary())
def test_no_file_raises_anything_but_a_mistake_of_one_line(
        tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(content)
    try:
        to_yaml(resolve({}, str(path)))
    except ConfigError as error:
        assert str(error).startswith(f"{path}:")
        assert len(str(error).splitlines()) == 1
    try:
        recorded(path)
    except ConfigError as error:
        assert str(path) in str(error) and len(str(error).splitlines()) == 1


def test_a_value_of_very_many_parts_is_told_at_once(write: Write) -> None:
    aliases = "".join(f"  x{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
    path = write(f"run:\n  x0: &a0 [1]\n{aliases}env:\n  wrappers: *a8\n")
    assert "x0" in mistake("--config", path)
    deep: list[Any] = [1]
    for _ in range(9):
        deep = [deep] * 10
    assert len(shown(deep)) <= 100 and len(shown("x" * 10**6)) <= 100
