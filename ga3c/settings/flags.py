"""The command line: one flag for every setting, and what all commands share.

argparse parses; checking is `files.check`'s. Libraries that make flags of a typed schema were tried and not taken:
`docs/decisions.md` says which and why.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ga3c import __version__
from ga3c.settings.files import check, require, resolve, yaml_scalar
from ga3c.settings.messages import ConfigError, flag, nearest
from ga3c.settings.schema import ALL, GROUPS, Settings


_ELSEWHERE = {
    "--env": "--game", "--env-id": "--game", "--lr": "--learning-rate", "--num-envs": "--agents x --envs-per-agent",
    "--num-workers": "--agents", "--workers": "--agents", "--total-timesteps": "--steps", "--total-steps": "--steps",
    "--timesteps": "--steps", "--batch-size": "--training-batch-min", "--num-steps": "--rollout-length",
    "--n-steps": "--rollout-length", "--epochs": "--passes", "--update-epochs": "--passes",
    "--num-minibatches": "--minibatches", "--ent-coef": "--entropy-coef", "--vf-coef": "--value-coef",
    "--clip-coef": "--clip-range", "--lam": "--gae-lambda", "--logdir": "--run-dir", "--log-dir": "--run-dir"}
"""Options of similar programs, each with its name here."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """A help formatter that writes a switch as `--[no-]trace` and gives flags more room on a wide terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=24 if shutil.get_terminal_size().columns < 100 else 30)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return action.option_strings[0].replace("--", "--[no-]", 1)
        return super()._format_action_invocation(action)


class Parser(argparse.ArgumentParser):
    """A parser that raises ConfigError for a mistake on the command line, with the nearest known option.

    `--help` begins with a description of the command and examples, without argparse's usage text.
    """

    def __init__(self, program: str, about: str, examples: str, **options: Any) -> None:
        super().__init__(prog=program, allow_abbrev=False, formatter_class=_Help, usage=argparse.SUPPRESS,
                         description=f"{about}\n\n{examples}", add_help=False, **options)
        self._positionals.title = "arguments"
        self.add_argument("-h", "--help", action="help", help="print this help and end")
        self.add_argument("--version", action="version", version=f"ga3c {__version__}",
                          help="print the version and end")
        self.hints: dict[str, str] = {}
        """Messages for options of other programs, by option."""
        self.stray = ""
        """Text added to the message about a word that belongs to no option."""

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        if message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split("=")[0].split(" ")[0]
            known = [option for action in self._actions for option in action.option_strings]
            message = self.hints.get(word, f"unknown option {word}{nearest(word, known)}" if word.startswith("-") else
                                     f"{word!r} belongs to no option{self.stray}")
        raise ConfigError(message)


def number(kind: Callable[[str], Any], low: float, high: float) -> Callable[[str], Any]:
    """Makes a `type` for argparse: a number from `low` to `high`."""
    def parse_number(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if low <= kind(text) <= high:
                return kind(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: a number from {low:,} to {high:,}")

    return parse_number


def output_file(*suffixes: str) -> Callable[[str], Path]:
    """Makes a `type` for argparse: a writable file with one of the suffixes, if any. So a bad path fails early."""
    def parse_output(text: str) -> Path:
        path = Path(text)
        if suffixes and path.suffix.lower() not in suffixes:
            raise argparse.ArgumentTypeError(f"{text} is none of {', '.join(suffixes)} by its name")
        if not path.absolute().parent.is_dir():
            raise argparse.ArgumentTypeError(f"{path.parent} is no directory")
        if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise argparse.ArgumentTypeError(f"{text} cannot be written")
        return path

    return parse_output


def add_settings(parser: Parser) -> None:
    """Adds a flag for every setting, in the groups of `config.yaml`."""
    for group, kind in GROUPS.items():
        about = (kind.__doc__ or "").rstrip(".")
        if about[1:2] != "_":
            about = about[:1].lower() + about[1:]
        section = parser.add_argument_group(f"{group} ({about})" if about else group)  # none under python -OO
        for name, field in kind.model_fields.items():
            default = "" if field.default == () else f" [{yaml_scalar(field.default)}]"
            text = f"{field.description}{default}".replace("%", "%%")
            if field.annotation is bool:
                section.add_argument(flag(name), action=argparse.BooleanOptionalAction, dest=name, help=text)
            else:
                section.add_argument(flag(name), dest=name, metavar=ALL[name].metavar, help=text)
    parser.hints = {other: f"unknown option {other}; here it is {ours}" for other, ours in _ELSEWHERE.items()}
    parser.hints |= dict.fromkeys(("--gpu", "--cpu", "--device"), "the device is no option: TensorFlow takes a GPU if "
                                  "it finds one; CUDA_VISIBLE_DEVICES= hides them")
    parser.hints |= {word: f"{word!r} belongs to no option; a switch stands alone, as --serial or --no-serial"
                     for word in ("true", "false", "True", "False", "yes", "no", "on", "off", "1", "0")}


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the command line into (settings given, other options). Raises ConfigError; `--help` raises SystemExit."""
    given = vars(parser.parse_args(argv))
    settings = {name: None if value in ("null", "none") and ALL[name].optional else value
                for name, value in given.items() if name in ALL}
    wrong = check(settings, strict=False)
    if wrong:
        raise ConfigError(f"{flag(wrong[0])}: {wrong[1].removeprefix(wrong[0] + ': ')}")
    return settings, {name: value for name, value in given.items() if name not in ALL}


def settings_of_run(parser: argparse.ArgumentParser, argv: Sequence[str], own: Sequence[str],
                    **chosen: Any) -> Settings:
    """Builds a run's settings from the flags `argv` and the values `chosen`, for programs that start runs.

    The program itself sets the settings `own`. Raises ConfigError if a flag is for one of them or for no setting.
    """
    given, options = parse(parser, argv)
    require(chosen)
    settings = resolve({**given, **chosen}, options.pop("config", None))
    for name in sorted(given.keys() & {*own}):
        raise ConfigError(f"{flag(name)} cannot be given after --: this tool sets it")
    for name in options:
        raise ConfigError(f"{flag(name)} cannot be given after --: it is no setting")
    return settings
