"""The command line: one flag for every setting, and what all commands share.

argparse parses; checking is `files.check`'s. Libraries that make flags of a typed schema were tried and not taken:
`docs/decisions.md` says which and why.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ga3c import __version__
from ga3c.settings.files import check, moved, yaml_scalar
from ga3c.settings.messages import ConfigError, nearest
from ga3c.settings.presets import REMOVED, RENAMED
from ga3c.settings.schema import ALL, GROUPS


class Parser(argparse.ArgumentParser):
    """Tells a mistake on the command line as a ConfigError, with the nearest right name.

    `--help` begins with what the command does and its examples; a page of usage says nothing.
    """

    def __init__(self, program: str, about: str, examples: str, **options: Any) -> None:
        super().__init__(prog=program, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                         usage=argparse.SUPPRESS, description=f"{about}\n\n{examples}", **options)
        self.add_argument("--version", action="version", version=f"ga3c {__version__}", help="print it and end")

    def error(self, message: str) -> Any:
        """Raises ConfigError."""
        if message.startswith("unrecognized arguments: "):
            flag = message.removeprefix("unrecognized arguments: ").split("=")[0].split(" ")[0]
            known = [option for action in self._actions for option in action.option_strings]
            message = f"unknown option {flag}{nearest(flag, known)}"
            name = flag.removeprefix("--").removeprefix("no-").replace("-", "_")
            if "--rollout-length" in known and name in RENAMED:
                message = f"{flag} is --{RENAMED[name].replace('_', '-')} since 0.9"
            elif "--rollout-length" in known and name in REMOVED:
                message = f"{flag}: {moved(name)}"
        raise ConfigError(message)


def number(kind: Callable[[str], Any], low: float, high: float) -> Callable[[str], Any]:
    """For argparse: a number from `low` to `high`."""
    def parse_number(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if low <= kind(text) <= high:
                return kind(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: a number from {low:,} to {high:,}")

    return parse_number


def output_file(*suffixes: str) -> Callable[[str], Path]:
    """For argparse: a file that can be written, of these kinds if any; checked before the work is done, not after."""
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


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for every setting, in the groups of `config.yaml`."""
    for group, kind in GROUPS.items():
        section = parser.add_argument_group(f"{group}: {(kind.__doc__ or '').rstrip('.')}")
        for name, field in kind.model_fields.items():
            flag, setting = "--" + name.replace("_", "-"), ALL[name]
            default = "null" if field.default is None else yaml_scalar(
                list(field.default) if isinstance(field.default, tuple) else field.default)
            text = f"{field.description} [{default}]".replace("%", "%%")
            if field.annotation is bool:
                section.add_argument(flag, action=argparse.BooleanOptionalAction, dest=name, help=text)
            else:
                section.add_argument(flag, dest=name, metavar=setting.metavar, help=text)


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the command line into (settings given, other options). Raises ConfigError; `--help` raises SystemExit."""
    given = vars(parser.parse_args(argv))
    settings = {name: None if value in ("null", "none") and ALL[name].optional else value
                for name, value in given.items() if name in ALL}
    wrong = check(settings, strict=False)
    if wrong:
        raise ConfigError(f"--{wrong[0].replace('_', '-')}: {wrong[1].removeprefix(wrong[0] + ': ')}")
    return settings, {name: value for name, value in given.items() if name not in ALL}
