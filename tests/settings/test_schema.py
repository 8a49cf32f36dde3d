"""Settings: defaults, presets, the YAML file, the command line, and what a user is told about a mistake."""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from ga3c.commands import train as cli
from ga3c.settings.files import configured, resolve, to_yaml
from ga3c.settings.flags import build_parser, parse
from ga3c.settings.machine import usable_cores
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import MAX_SLOTS, NETWORKS, Settings

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str) -> str:
        path = tmp_path / "mine.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def settled(*argv: str) -> Settings:
    given, options = parse(build_parser("ga3c-train", "0"), argv)
    return resolve(given, options.get("config"))


def mistake(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        settled(*argv)
    message = str(caught.value)
    assert message.splitlines() == [message]
    return message


IMPORT_PATHS = st.from_regex(r"[a-z_]{1,5}(\.[a-z_]{1,5})?:[A-Za-z_]{1,5}", fullmatch=True)


def values_of(name: str, field: FieldInfo) -> st.SearchStrategy:
    if name == "wrappers":
        return st.lists(IMPORT_PATHS, max_size=3).map(tuple)
    if name == "network":
        return st.sampled_from(NETWORKS) | IMPORT_PATHS
    if get_origin(field.annotation) is Literal:
        return st.sampled_from(get_args(field.annotation))
    kind, *null = get_args(field.annotation) or (field.annotation,)
    patterns = [limit.pattern for limit in field.metadata if hasattr(limit, "pattern")]
    if patterns:
        return st.none() | st.from_regex(patterns[0].removesuffix("$"), fullmatch=True)
    value = st.from_type(Annotated[(kind, *field.metadata)]) if field.metadata else st.from_type(kind)
    if kind is float:
        value = value.filter(math.isfinite)
    return st.none() | value if null else value


# `resolve` also refuses settings that are fine one by one but ask for more slots than a ticket can name, for
# rollouts to be dropped by a ceiling that is not there, or held back where they are not trained on in order.
any_settings = st.builds(
    Settings, **{name: values_of(name, field) for name, field in Settings.model_fields.items()}
).filter(lambda made: made.agent_capacity * made.slots_per_agent <= MAX_SLOTS
         and not (made.drop_stale and made.max_lag is None) and (made.serial or not made.training_delay))


def flags(settings: Settings) -> list[str]:
    argv = []
    for name, value in settings.flat().items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            argv.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            text = ",".join(value) if isinstance(value, tuple) else value
            argv.append(f"--{flag}={'null' if value is None else text}")
    return argv


# ------------------------------------------------------------------------------------------------ defaults and presets

def test_config_yaml_is_the_defaults_written_out() -> None:
    shipped = Path(__file__).parents[2] / "config.yaml"
    assert shipped.read_bytes() == to_yaml(Settings()).encode()


def test_the_paper_preset_is_the_papers_own_values() -> None:
    assert settled("--preset", "paper").model_dump() == Settings().flat() | {
        "preset": "paper", "envs_per_agent": 1, "agents_per_process": 1, "agents": 32, "predictors": 2, "trainers": 2,
        "agent_nice": 0,
        "slots_per_agent": 4, "prediction_batch_min": 1, "prediction_batch_max": 128, "training_batch_min": 40,
        "rollout_length": 5, "gamma": 0.99, "reward_clip": 1.0, "value_coef": 0.5, "log_epsilon": 1e-6,
        "learning_rate": 3e-4, "learning_rate_final": None, "entropy_coef": 0.01, "entropy_coef_final": None,
        "gae_lambda": 1.0, "normalize_advantages": False, "correction": "none", "loss_reduction": "sum",
        "optimizer": "rmsprop", "rmsprop_decay": 0.99, "rmsprop_epsilon": 0.1, "max_grad_norm": 0.0,
        "network": "auto", "precision": "float32",
        "frame_skip": 4, "noop_max": 30, "sticky_actions": 0.0, "life_loss": False, "fire_reset": False,
        "controller": "paper", "max_lag": None, "drop_stale": False, "window": 60.0, "temperature": 0.0,
    }


def test_agents_default_to_32_environments_but_2_to_16_agents_per_core_and_room_is_never_less_than_agents() -> None:
    cores = usable_cores()
    agents = [configured(envs_per_agent=n).agent_count for n in (1, 2, 4, 8, 16, 100)]
    assert agents == [16 * cores, 16 * cores, 8 * cores, 4 * cores, 2 * cores, 2 * cores]
    assert configured(agents=3, dynamic=False).agent_capacity == 3
    assert configured(agents=3, agents_max=2).agent_capacity == 3
    assert configured(agents=3, agents_max=9).agent_capacity == 9


@pytest.mark.parametrize(("allowed", "quota", "cores"), [
    (8, None, 8), (3, None, 3), (8, "max 100000", 8), (8, "250000 100000", 2), (8, "50000 100000", 1),
    (2, "800000 100000", 2)])
def test_cores_are_those_that_may_be_used(
        monkeypatch: pytest.MonkeyPatch, allowed: int, quota: str | None, cores: int) -> None:
    def read(path: Path, encoding: str) -> str:
        if quota is None:
            raise FileNotFoundError(path)
        return quota + "\n"

    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(allowed)))
    monkeypatch.setattr(Path, "read_text", read)
    assert usable_cores() == cores and Settings().agent_count == 2 * cores


# ------------------------------------------------------------------------------------------------ precedence

def test_command_line_beats_file_beats_preset_beats_default(write: Write) -> None:
    file = write("preset: paper\npredictors: 5\ngamma: 0.9\n")
    merged = settled("--config", file, "--gamma", "0.8")
    assert (merged.gamma, merged.predictors, merged.trainers, merged.seed) == (0.8, 5, 2, 0)


def test_a_file_beats_a_preset_given_on_the_command_line(write: Write) -> None:
    merged = settled("--config", write("predictors: 5\n"), "--preset", "paper")
    assert (merged.predictors, merged.trainers) == (5, 2)


def test_a_preset_on_the_command_line_beats_the_one_in_the_file(write: Write) -> None:
    merged = settled("--config", write("preset: paper\n"), "--preset", "default")
    assert merged == Settings()


def test_null_takes_back_what_a_preset_gave() -> None:
    assert settled("--preset", "paper", "--agents", "null").agents is None


def test_an_empty_file_changes_nothing(write: Write) -> None:
    assert settled("--config", write("# nothing\n")) == Settings()


# ------------------------------------------------------------------------------------------------ there and back

@examples(deadline=None, max_examples=150)
@given(any_settings)
def test_any_settings_written_as_yaml_read_back_equal(tmp_path_factory: pytest.TempPathFactory, made: Settings) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(to_yaml(made), encoding="utf-8")
    assert resolve({}, str(path)) == made


@examples(deadline=None, max_examples=150)
@given(any_settings.filter(lambda made: made.run_dir not in ("null", "none", "--") and made.game != "--"))
def test_any_settings_can_be_given_as_flags(made: Settings) -> None:
    assert settled(*flags(made)) == made


def test_what_print_config_prints_is_a_file_of_the_same_settings(
        write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--preset", "paper", "--learning-rate", "1e-7", "--game", "a: b # c", "--minutes", "2", "--no-tensorboard"]
    assert cli.train([*argv, "--print-config"]) == 0
    assert settled("--config", write(capsys.readouterr().out)) == settled(*argv)


def test_help_shows_a_flag_and_the_description_of_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settled("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in shown
        assert field.description is not None
        assert "".join(field.description.split()) in shown.replace(" ", "")


# ------------------------------------------------------------------------------------------------ yes and no

@pytest.mark.parametrize(("argv", "value"), [
    ((), False), (("--life-loss",), True), (("--no-life-loss",), False), (("--life-loss", "--no-life-loss"), False)])
def test_a_switch_is_turned_by_its_two_flags(argv: tuple[str, ...], value: bool) -> None:
    assert settled(*argv).life_loss is value


@pytest.mark.parametrize("argv", [("--life-loss=False",), ("--life-loss", "False"), ("life_loss=False",)])
def test_a_value_after_a_switch_is_refused(argv: tuple[str, ...]) -> None:
    mistake(*argv)


@pytest.mark.parametrize("no", ["no", "false", "False", "off"])
def test_every_no_of_yaml_is_no(write: Write, no: str) -> None:
    assert settled("--config", write(f"tensorboard: {no}")).tensorboard is False


# ------------------------------------------------------------------------------------------------ mistakes in a file

@pytest.mark.parametrize(("text", "line", "told"), [
    ("seed: 1\ngama: 0.9", 2, "unknown setting 'gama'; did you mean gamma?"),
    ("seed: 1\nx_y_z: 0.9", 2, "unknown setting 'x_y_z'"),
    ("seed: 1\nyes: 0.9", 2, "unknown setting 'yes'"),
    ("seed: 1\n<<: {gama: 0.9}", 2, "unknown setting"),
    ("seed: 1\n? |\n  a\n  b\n: 1", 2, "unknown setting"),
    ("seed: 1\n\ngamma: high", 3, "gamma: 'high' is not allowed: input should be a valid number"),
    ("\nagents: few", 2, "agents: 'few' is not allowed: input should be a valid integer"),
    ("\nagents: 2.5", 2, "agents: 2.5 is not allowed: input should be a valid integer"),
    ("\nagents: true", 2, "agents: True is not allowed: input should be a valid integer"),
    ("\ngamma: true", 2, "gamma: True is not allowed: input should be a valid number"),
    ("\nlife_loss: 1", 2, "life_loss: 1 is not allowed: input should be a valid boolean"),
    ("\nlife_loss: 'False'", 2, "life_loss: 'False' is not allowed: input should be a valid boolean"),
    ("\ngame: 12", 2, "game: 12 is not allowed: input should be a valid string"),
    ("\ngamma:", 2, "gamma: None is not allowed"),
    ("\ngamma: 1.5", 2, "gamma: 1.5 is not allowed: input should be less than or equal to 1"),
    ("\ngamma: .nan", 2, "gamma: nan is not allowed: input should be a finite number"),
    ("\nminutes: .inf", 2, "minutes: inf is not allowed: input should be a finite number"),
    ("\nt_max: 0", 2, "rollout_length: 0 is not allowed: input should be greater than or equal to 1"),
    ("\npreset: papr", 2, "preset: 'papr' is not allowed: input should be 'default' or 'paper'; did you mean paper?"),
    ("\nnetwork: smal", 2, "did you mean small?"),
    ("gamma: 0.9\nseed: 1\ngamma: 0.8", 3, "'gamma' is given twice, first in line 1"),
    ("\nlearning_rate: 1e-4", 2, "learning_rate: '1e-4' is not allowed: input should be a valid number; "
                                 "YAML reads it as text, write "),
    ("seed: 1\ngame: !!python/object/apply:os.system [x]", 2, "not YAML: could not determine a constructor"),
    ("seed: 1\ngame: [a", 2, "not YAML"),
    ("seed: 1\n---\nseed: 2", 2, "not YAML"),
    ("- seed", 1, "a configuration is lines of 'name: value'"),
    ("seed", 1, "a configuration is lines of 'name: value'"),
    ("? [a]\n: 1", 1, "a setting's name is plain text"),
])
def test_a_mistake_in_a_file_is_told_with_file_line_and_key(write: Write, text: str, line: int, told: str) -> None:
    path = write(text)
    message = mistake("--config", path)
    assert message.startswith(f"{path}:{line}: ")
    assert told in message


@pytest.mark.parametrize("text", ["1e-4", "5E-4", "1e4", "1e+4", "2.5e3", "1E-4"])
def test_a_number_that_yaml_reads_as_text_is_right_if_written_as_told(write: Write, text: str) -> None:
    told = mistake("--config", write(f"learning_rate: {text}")).split("write ")[1]
    assert settled("--config", write(f"learning_rate: {told}")).learning_rate == float(text)


@pytest.mark.parametrize("text", ["nan", "infinity", "'1e'", "high"])
def test_text_that_is_no_number_is_not_told_to_be_written_otherwise(write: Write, text: str) -> None:
    assert "write" not in mistake("--config", write(f"gamma: {text}"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing, text = tmp_path / "missing.yaml", tmp_path / "latin1.yaml"
    text.write_bytes("game: Pong  # für Elise".encode("latin-1"))
    assert mistake("--config", str(missing)) == f"{missing}: No such file or directory"
    assert mistake("--config", str(tmp_path)) == f"{tmp_path}: Is a directory"
    assert mistake("--config", str(text)) == f"{text}: not UTF-8 text (byte 15)"


@pytest.mark.parametrize("text", [
    "gamma: !!bool x", "gamma: !!timestamp x", "seed: !!int ''", "gamma: !!float ''", "!!bool x: 1",
    "agents: 0x" + "f" * 5000, "game: " + "[" * 400 + "]" * 400, "&a {game: *a}", "seed: 0b_", "game: \0",
])
def test_what_yaml_itself_stumbles_over_is_one_line_too(write: Write, text: str) -> None:
    path = write(text)
    assert mistake("--config", path).startswith(f"{path}:")


def test_a_seed_too_long_to_write_down_is_refused(write: Write) -> None:
    mistake("--config", write("seed: 0x" + "f" * 5000))


# ------------------------------------------------------------------------------------------------ mistakes in flags

@pytest.mark.parametrize(("argv", "told"), [
    (("--gama", "0.9"), "unknown option --gama; did you mean --gamma?"),
    (("--gama=0.9",), "unknown option --gama; did you mean --gamma?"),
    (("--learning_rate", "1"), "unknown option --learning_rate; did you mean --learning-rate?"),
    (("--no-life-los",), "unknown option --no-life-los; did you mean --no-life-loss?"),
    (("Pong",), "unknown option Pong"),
    (("",), "unknown option"),
    (("--gamma",), "argument --gamma: expected one argument"),
    (("--gamma", "high"), "--gamma: 'high' is not allowed: input should be a valid number"),
    (("--gamma", "nan"), "--gamma: 'nan' is not allowed: input should be a finite number"),
    (("--gamma", "null"), "--gamma: 'null' is not allowed"),
    (("--agents", "true"), "--agents: 'true' is not allowed: input should be a valid integer"),
    (("--max-episode-frames", "99999999999"), "--max-episode-frames: '99999999999' is not allowed"),
    (("--agents", "0"), "--agents: '0' is not allowed: input should be greater than or equal to 1"),
    (("--rollout-length", "x\ny"), "--rollout-length: 'x\\ny' is not allowed"),
    (("--preset", "papr"), "did you mean paper?"),
    (("--start", "1/1"), "--start: '1/1' is not allowed"),
    (("--start", "0/1/1"), "--start: '0/1/1' is not allowed"),
])
def test_a_mistake_on_the_command_line_names_the_flag(argv: tuple[str, ...], told: str) -> None:
    assert told in mistake(*argv)


@pytest.mark.parametrize("flag", ["--gam", "--learning-rat", "--life", "--print", "--conf"])
def test_abbreviated_flags_are_refused(flag: str) -> None:
    assert mistake(flag, "1").startswith(f"unknown option {flag}")


# ------------------------------------------------------------------------------------------------ anything at all

yaml_pieces = st.sampled_from([
    *Settings.model_fields, ": ", ":", "\n", "\n  ", "- ", "? ", "[", "]", "{", "}", ", ", "&a ", "*a", "<<: ", "'",
    '"', "|\n", "---\n", "...\n", "%YAML 1.1\n", "#", "1e-4", ".nan", "0x", "0b_", "1:30", "2001-01-01", "null",
    "yes", "=", "~", "0.5", "7", "paper"])
yaml_tags = st.sampled_from(["", *(f"!!{tag} " for tag in (
    "bool", "int", "float", "null", "timestamp", "set", "omap", "pairs", "binary", "str", "seq", "map", "python/x"))])
yaml_values = st.tuples(yaml_tags, yaml_pieces | st.text(max_size=5) | st.just("''"))
yaml_lines = st.builds(lambda name, value: f"{name}: {''.join(value)}\n", st.sampled_from([*Settings.model_fields]),
                       yaml_values)
yaml_texts = st.lists(yaml_lines | yaml_pieces | st.text(max_size=4), max_size=10).map("".join)


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


flag_pieces = st.sampled_from([
    *(option for action in build_parser("p", "0")._actions for option in action.option_strings),
    "null", "1", "0.5", "-1", "nan", "1e-4", "paper", "--", "--gamma=1", "--life-loss=no", "-hx", "=", "\n", " ", ""])


@examples(deadline=None, max_examples=300)
@given(st.lists(flag_pieces | st.text(st.characters()), max_size=6))
def test_no_command_line_raises_anything_but_a_mistake_of_one_line(argv: list[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            given: dict[str, Any] = parse(build_parser("ga3c-train", "0"), argv)[0]
            to_yaml(resolve(given))
        except ConfigError as error:
            assert len(str(error).splitlines()) == 1
        except SystemExit as end:
            assert end.code == 0


def test_to_drop_what_is_stale_needs_a_ceiling() -> None:
    assert settled("--drop-stale").max_lag == Settings().tuning.max_lag
    assert mistake("--preset", "paper", "--drop-stale").startswith("drop_stale: needs max_lag")
    assert settled("--preset", "paper", "--drop-stale", "--max-lag", "4").drop_stale
    assert mistake("--training-delay", "8").startswith("training_delay: needs serial")
    assert settled("--training-delay", "8", "--serial").training_delay == 8
