"""The command line of settings: every setting has its flag, and every mistake its line."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from parsing import any_settings, mistake, settled

from ga3c.commands.train import parser, train
from ga3c.settings.files import resolve, to_yaml
from ga3c.settings.flags import parse, settings_of_run
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import ALL, GROUPS, Settings


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


@examples(deadline=None, max_examples=20)
@given(any_settings.filter(lambda made: made.run.run_dir not in ("null", "none", "--") and made.env.game != "--"))
def test_any_settings_can_be_given_as_flags(made: Settings) -> None:
    assert settled(*flags(made)) == made


def test_what_print_config_prints_is_a_file_of_the_same_settings(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["--preset", "paper", "--learning-rate", "1e-7", "--game", "a: b # c", "--minutes", "2", "--no-tensorboard"]
    assert train([*argv, "--print-config"]) == 0
    file = tmp_path / "mine.yaml"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    assert settled("--config", str(file)) == settled(*argv)


@pytest.mark.parametrize("columns", [80, 120])
def test_help_begins_with_examples_and_has_every_setting_in_its_group(
        columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with pytest.raises(SystemExit) as ended:
        settled("--help")
    said = capsys.readouterr().out
    assert ended.value.code == 0 and max(map(len, said.splitlines())) <= columns and "usage" not in said
    first, _, rest = said.partition("\n\nexamples:\n")
    assert "An agent step is" in first.splitlines()[1] and rest.split("\n\n")[0].count("  ga3c-train --") == 3
    found = {section.split(" (")[0]: section for section in rest.split("\n\n")[2:]}
    assert list(found) == list(GROUPS)
    for name, setting in ALL.items():
        flag, shown = f"{name.replace('_', '-')}", "".join(found[setting.group].split())
        switch = setting.field.annotation is bool
        assert f"--[no-]{flag}" in shown if switch else f"--{flag}{setting.metavar}" in shown
        assert "".join((setting.field.description or "").split()) in shown


# ------------------------------------------------------------------------------------------------ yes and no

@pytest.mark.parametrize(("argv", "value"), [
    ((), False), (("--fire-reset",), True), (("--no-fire-reset",), False),
    (("--fire-reset", "--no-fire-reset"), False)])
def test_a_switch_is_turned_by_its_two_flags(argv: tuple[str, ...], value: bool) -> None:
    assert settled(*argv).env.fire_reset is value


# ------------------------------------------------------------------------------------------------ mistakes in flags

@pytest.mark.parametrize(("argv", "told"), [
    (("--gama", "0.9"), "unknown option --gama; did you mean --gamma?"),
    (("--learning_rate", "1"), "unknown option --learning_rate; did you mean --learning-rate?"),
    (("--no-life-los",), "unknown option --no-life-los; did you mean --no-life-loss?"),
    (("--lr", "1e-3"), "unknown option --lr; here it is --learning-rate"),
    (("--gpu", "0"), "the device is no option"),
    (("Pong",), "'Pong' belongs to no option; --game NAME names a game"),
    (("--serial", "true"), "'true' belongs to no option; a switch stands alone"),
    (("--steps", "1e6"), "--steps: '1e6' is not allowed: input should be a valid integer, unable to parse string as an "
                         "integer; write 1000000"),
    (("--gamma",), "argument --gamma: expected one argument"),
    (("--gamma", "high"), "--gamma: 'high' is not allowed: input should be a valid number"),
    (("--agents", "0"), "--agents: '0' is not allowed: input should be greater than or equal to 1"),
    (("--rollout-length", "x\ny"), "--rollout-length: 'x\\ny' is not allowed"),
    (("--preset", "papr"), "did you mean paper?"),
    (("--start", "1/1"), "--start: '1/1' is not allowed: it is to be N/N/N, as in 1/1/1"),
])
def test_a_mistake_on_the_command_line_names_the_flag(argv: tuple[str, ...], told: str) -> None:
    assert told in mistake(*argv)


@pytest.mark.parametrize("flag", ["--learning-rat", "--print"])
def test_abbreviated_flags_are_refused(flag: str) -> None:
    assert mistake(flag, "1").startswith(f"unknown option {flag}")


# ------------------------------------------------------------------------------------------------ anything at all

flag_pieces = st.sampled_from([
    *(option for action in parser()._actions for option in action.option_strings), "--beta", "--t-max=3",
    "null", "1", "0.5", "-1", "nan", "1e-4", "paper", "--", "--gamma=1", "--life-loss=no", "-hx", "=", "\n", " ", ""])


@examples(deadline=None, max_examples=300)
@given(st.lists(flag_pieces | st.text(st.characters()), max_size=6))
def test_no_command_line_raises_anything_but_a_mistake_of_one_line(argv: list[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            to_yaml(resolve(parse(parser(), argv)[0]))
        except ConfigError as error:
            assert len(str(error).splitlines()) == 1
        except SystemExit as end:
            assert end.code == 0


def test_what_a_tool_sets_is_checked_as_what_a_user_sets() -> None:
    with pytest.raises(ConfigError, match="agents: 0 is not allowed"):
        settings_of_run(parser(), [], ["agents"], agents=0)
