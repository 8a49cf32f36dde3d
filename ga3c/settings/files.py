"""Settings from YAML, from Python and from both: reading, checking, merging, writing.

Precedence: defaults < preset < file < command line or keyword. Whatever is wrong ends as one `ConfigError` of one line
that names file, line, setting, value and what would be right.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from ga3c.settings.algorithms import facts
from ga3c.settings.messages import ConfigError, nearest, shown
from ga3c.settings.presets import PRESETS, starting_values, values_by_size
from ga3c.settings.schedule import FROM_MEMORY, MAX_SLOTS
from ga3c.settings.schema import ALL, GROUPS, MOST_SLOTS_PER_AGENT, Settings


_ANOTHER_BASE = re.compile(r"[-+]?(0[0-9_]+|.*:.*)")  # 010 is eight to YAML, and 1:30 is ninety
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class _File(NamedTuple):
    path: str
    values: dict[str, Any]                  # by setting
    lines: dict[str, int]                   # by setting


def _read_yaml(path: str) -> _File:
    """Reads the settings in a YAML file of groups. Raises ConfigError."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            file = _File(path, {}, {})
            if node is not None:
                _take_groups(loader, node, file)
            return file
        finally:
            loader.dispose()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{path}:{line}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML: {str(error)[:200]}") from None


def _take_groups(loader: yaml.SafeLoader, node: yaml.Node, file: _File) -> None:
    groups: dict[str, int] = {}
    for group, line, value in _entries(file.path, node, "a configuration is groups of 'name: value'"):
        where = f"{file.path}:{line}"
        if group not in GROUPS:
            raise ConfigError(f"{where}: {_not_a_group(group)}")
        if group in groups:
            raise ConfigError(f"{where}: '{group}' is given twice, first in line {groups[group]}")
        groups[group] = line
        if isinstance(value, yaml.ScalarNode) and not value.value:
            continue  # a group whose lines are all comments
        for name, at, setting in _entries(file.path, value, f"'{group}' is a group: indented lines 'name: value'"):
            where = f"{file.path}:{at}"
            if name not in GROUPS[group].model_fields:
                raise ConfigError(f"{where}: {_not_in_group(name, group)}")
            if name in file.lines:
                raise ConfigError(f"{where}: '{name}' is given twice, first in line {file.lines[name]}")
            if setting.tag in _NUMBERS and _ANOTHER_BASE.fullmatch(str(setting.value)):
                raise ConfigError(f"{where}: {name}: YAML reads {setting.value} as "
                                  f"{loader.construct_object(setting)}; write a number in plain digits")
            file.lines[name] = at
            file.values[name] = loader.construct_object(setting, deep=True)


def _entries(path: str, node: yaml.Node, wanted: str) -> list[tuple[str, int, yaml.Node]]:
    """Returns (name, line, value) of each entry of a mapping. Raises ConfigError with `wanted` if it is no mapping."""
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}:{node.start_mark.line + 1}: {wanted}")
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{path}:{key.start_mark.line + 1}: a setting's name is plain text")
    return [(" ".join(key.value.split()), key.start_mark.line + 1, value) for key, value in node.value]


def _not_a_group(name: str) -> str:
    if name in ALL:
        return f"'{name}' stands in the group '{ALL[name].group}'; ga3c-train --print-config shows the form"
    return f"unknown group '{name}'{nearest(name, list(GROUPS))}; the groups are {', '.join(GROUPS)}"


def _not_in_group(name: str, group: str) -> str:
    if name in ALL:
        return f"'{name}' stands in the group '{ALL[name].group}', not in '{group}'"
    return f"unknown setting '{name}'{nearest(name, list(ALL))}"


# ------------------------------------------------------------------------------------------------ checking

def _nested(flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    groups: dict[str, dict[str, Any]] = {}
    for name, value in flat.items():
        groups.setdefault(ALL[name].group, {})[name] = value
    return groups


def check(values: Mapping[str, Any], strict: bool) -> tuple[str, str] | None:
    """Returns the first mistake in values by setting as (setting, explanation), or None. strict: without conversion."""
    for name in values:
        if name not in ALL:
            return name, f"unknown setting '{name}'{nearest(name, list(ALL))}"
    try:
        Settings.model_validate(_nested(values), strict=strict)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][1])
        return name, _explain(name, values[name], first["type"], first["msg"])
    return None


def _explain(name: str, value: Any, kind: str, message: str) -> str:
    hint = ""
    if kind == "float_type" and isinstance(value, str):
        with contextlib.suppress(ValueError):
            if math.isfinite(float(value)):
                hint = f"; YAML reads it as text, write {yaml_scalar(float(value))}"
    if kind == "int_parsing" and isinstance(value, str):
        with contextlib.suppress(ValueError, OverflowError):
            if int(float(value)) == float(value):
                hint = f"; write {int(float(value))}"
    if kind == "string_pattern_mismatch":
        message = f"it is to be {ALL[name].metavar}, as in 1/1/1, and at most 4096/64/64"
    if kind == "literal_error":
        hint = nearest(str(value), ALL[name].choices)
    return f"{name}: {shown(value)} is not allowed: {message[0].lower()}{message[1:]}{hint}"


# ------------------------------------------------------------------------------------------------ merging

def resolve(given: Mapping[str, Any], file: str | None = None) -> Settings:
    """Merges defaults, preset, file and `given` (by setting) into checked settings. Raises ConfigError."""
    settings = _resolved(given, file)
    check_agents(settings)
    return settings


def stated(given: Mapping[str, Any], file: str | None) -> dict[str, Any]:
    """Returns the values by setting of `file` and `given`, unchecked. Raises ConfigError if the file is no YAML."""
    return {**(_read_yaml(file).values if file is not None else {}), **given}


def chosen(values: Mapping[str, Any], given: Collection[str]) -> set[str]:
    """Returns the settings in `values` that a user chose: those `given`, and those that no starting point has so.

    A complete file, as --print-config writes it, has many values that nobody chose.
    """
    points = [{**Settings().flat(), **starting_values(preset, values.get("algorithm", ""))}
              for preset in (values.get("preset"), None)]
    return {*given, *(name for name, value in values.items()
                      if all(_plain(point[name]) != _plain(value) for point in points))}


def _resolved(given: Mapping[str, Any], file: str | None) -> Settings:
    read = _read_yaml(file) if file is not None else _File("", {}, {})
    wrong = check(read.values, strict=True)
    if wrong:
        raise ConfigError(f"{read.path}:{read.lines.get(wrong[0], 1)}: {wrong[1]}")
    _check_other_preset(given, read)
    return _merged(_over(read.values, given))


def _over(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `values` of a file with those `given` over them. Counts stand over the file's `start`, too."""
    counts = given.keys() & {"agents", "predictors", "trainers"}
    return {**values, **({"start": None} if counts else {}), **given}


def _check_other_preset(given: Mapping[str, Any], read: _File) -> None:
    """Raises ConfigError if a complete file, as --print-config writes it, overrides values of the preset in `given`."""
    before, now = (values.get("preset", "default") for values in (read.values, given))
    if "preset" not in given or before == now or len(read.values) < len(ALL) // 2:
        return
    wanted = {**Settings().flat(), **PRESETS[now], **given}
    undone = [name for name in {**PRESETS[before], **PRESETS[now]} if name not in given
              and read.values.get(name, wanted[name]) != wanted[name]]
    if undone:
        raise ConfigError(f"{read.path}:{read.lines.get('preset', 1)}: preset {now} does not go with a file of preset "
                          f"{before}, which sets {len(undone)} of its values otherwise, as {undone[0]}; leave these "
                          "lines out")


def _merged(given: Mapping[str, Any]) -> Settings:
    preset = given.get("preset", "default")
    first = starting_values(given.get("preset"), given.get("algorithm", ""))
    settings = Settings.model_validate(_nested({**first, **given}))
    environments = settings.schedule.agents * settings.agents.envs_per_agent
    by_size = values_by_size(preset, environments, settings.algorithm.rollout_length)
    settings = settings.changed(**{name: value for name, value in by_size.items() if name not in given})
    if settings.schedule.agents_learn:
        _check_workers(settings, given)
    _check_schedule(settings)
    if facts(settings.algorithm.algorithm).remembers:
        _check_replay(settings)
    if settings.a3c.local_updates > 1:
        _check_local_updates(settings)
    if settings.batching.schedule == "multi-batch":
        _check_multi_batch(settings)
    return settings


def check_agents(settings: Settings) -> None:
    """Raises ConfigError for too many slots, or more update groups than agents. Both depend on the machine."""
    agents, _, _ = settings.schedule.most
    if agents * settings.agents.slots_per_agent > MAX_SLOTS:
        raise ConfigError(f"agents: {agents} x slots_per_agent {settings.agents.slots_per_agent} is "
                          f"over {MAX_SLOTS} slots")
    groups = settings.batching.update_groups
    if settings.batching.schedule == "multi-batch" and groups > settings.schedule.agents:
        raise ConfigError(f"update_groups: {groups} groups need as many agents, there are {settings.schedule.agents}")


def _check_local_updates(settings: Settings) -> None:
    """Raises ConfigError unless local updates are possible: with a3c-cpu and Adam, and not in serial mode."""
    name = f"local_updates: {settings.a3c.local_updates}"
    if not settings.schedule.agents_learn:
        raise ConfigError(f"{name} needs algorithm a3c-cpu, whose workers have weights of their own")
    if settings.algorithm.optimizer != "adam":
        raise ConfigError(f"{name} needs optimizer adam, whose steps can be added up")
    if settings.run.serial:
        raise ConfigError(f"{name} does not go with serial, where all workers have the same weights")


def _check_workers(settings: Settings, given: Mapping[str, Any]) -> None:
    """Raises ConfigError if a setting does not work with agents that train their own models (a3c-cpu)."""
    if settings.algorithm.optimizer == "rmsprop-centred":
        raise ConfigError("optimizer: rmsprop-centred does not go with a3c-cpu; rmsprop and rmsprop-pytorch do")
    one, moments = "each pushes one gradient of a rollout", "they share no running moments"
    wanted = {"schedule": ("queues", "no model answers them all"), "passes": (1, one), "minibatches": (1, one),
              "normalize_rewards": (False, moments), "normalize_observations": (False, moments),
              "norms": (False, "each steps from weights of its own")}
    for name, setting in settings.flat().items():
        value, why = wanted.get(name, (setting, ""))
        if setting != value:
            whose = "" if name in given else f", of preset {settings.run.preset},"
            raise ConfigError(f"{name}: {yaml_scalar(setting)}{whose} does not go with a3c-cpu, whose agents learn by "
                              f"themselves: {why}; leave it {yaml_scalar(value)}")


def _check_schedule(settings: Settings) -> None:
    """Raises ConfigError if the schedule is of algorithms with a replay and this has none, or the other way round."""
    schedule, remembers = settings.batching.schedule, facts(settings.algorithm.algorithm).remembers
    if schedule != "queues" and remembers != (schedule in FROM_MEMORY):
        others = [choice for choice in ALL["schedule"].choices if choice == "queues"
                  or remembers == (choice in FROM_MEMORY)]
        raise ConfigError(f"schedule: {schedule} does not go with {settings.algorithm.algorithm}, which learns "
                          f"{'from a replay' if remembers else 'without a replay'}; it goes with {', '.join(others)}")


def _check_replay(settings: Settings) -> None:
    """Raises ConfigError if a setting does not work with an algorithm that learns from a replay."""
    name = settings.algorithm.algorithm
    for setting, value in (("normalize_rewards", False), ("normalize_observations", False)):
        if getattr(settings.algorithm, setting) != value:
            raise ConfigError(f"{setting}: true does not go with {name}, whose replay keeps what was played; leave it "
                              "false")
    streams = settings.schedule.most[0] * settings.agents.envs_per_agent
    least = streams * (settings.replay.n_step + 8)
    if settings.replay.replay_size < max(least, settings.replay.replay_start):
        raise ConfigError(f"replay_size: {settings.replay.replay_size} is too small; {streams} environments and "
                          f"replay_start {settings.replay.replay_start} need at least "
                          f"{max(least, settings.replay.replay_start)}")


def _check_multi_batch(settings: Settings) -> None:
    """Raises ConfigError if rollout_length, update_groups and steps_per_update, or the slots, do not fit together."""
    length, (steps, groups, uses, *_) = settings.algorithm.rollout_length, settings.schedule
    if length != steps * groups * uses and settings.batching.steps_per_update is None:
        right = [number for number in range(1, length + 1) if length % number == 0]
        raise ConfigError(f"update_groups: {groups} must divide rollout_length {length}; "
                          f"{max([number for number in right if number <= groups])} does")
    if length != steps * groups * uses:
        raise ConfigError(f"update_groups: {groups} x steps_per_update {steps} must divide rollout_length {length}")
    if uses >= MOST_SLOTS_PER_AGENT:
        raise ConfigError(f"steps_per_update: with {steps} each step is in {uses} updates; at most "
                          f"{MOST_SLOTS_PER_AGENT - 1} are possible, so a larger number, or more update_groups")
    if uses >= settings.agents.slots_per_agent:
        raise ConfigError(f"slots_per_agent: {uses + 1} are needed where each step is in {uses} updates")


def require(settings: Mapping[str, Any]) -> None:
    """Raises ConfigError, of one line, if a setting given from Python is unknown or has a wrong value."""
    wrong = check(settings, strict=True)
    if wrong:
        raise ConfigError(wrong[1])


def configured(file: str | None = None, /, **settings: Any) -> Settings:
    """Builds settings from Python: `ga3c.Config(game="Boxing", minutes=10)`. Keywords override the preset and `file`.

    Raises ConfigError, of one line, if a setting is unknown or wrong.
    """
    require(settings)
    return resolve(settings, file)


def recorded(path: Path, given: Mapping[str, Any] | None = None) -> Settings:
    """Reads the settings in a run's config.yaml; `given` overrides them. Raises ConfigError.

    The run may come from another machine. A caller that trains must also call `check_agents`.
    """
    if "game" not in recorded_values(path):
        raise ConfigError(f"{path}: these are no run's settings, they name no game")
    return _resolved(given or {}, str(path))


def recorded_values(path: Path) -> dict[str, Any]:
    """Reads the values by setting in a run's config.yaml, unchecked; {} if the file is missing. Raises ConfigError."""
    groups = [group for group in _read_plain(path).values() if isinstance(group, dict)]
    return {name: value for group in groups for name, value in group.items()}


def settings_of(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values by setting in a checkpoint's progress, unchecked; {} if there are none."""
    values = progress.get("settings")
    return dict(values) if isinstance(values, dict) else {}


def from_flat(values: Mapping[str, Any], source: str) -> Settings:
    """Builds settings from values by setting that a program wrote to the file `source`. Raises ConfigError."""
    wrong = check(values, strict=False)
    if wrong:
        raise ConfigError(f"{source}: {wrong[1]}")
    return _merged(values)


def _read_plain(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    # PyYAML's constructors raise many kinds of exceptions on damaged text.
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from None
    return values if isinstance(values, dict) else {}


# ------------------------------------------------------------------------------------------------ writing YAML

def yaml_scalar(value: Any) -> str:
    """Formats one value as YAML text that reads back equal, `1.0e-06` included."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")


def to_yaml(settings: Settings) -> str:
    """Formats all settings as commented YAML: the output of `--print-config` and a run's `config.yaml`."""
    lines = ["# Every setting of ga3c-train. Change them in a file (--config FILE) or by flags (--learning-rate 1e-4).",
             "# Keep only the lines you change: a file with every setting stands over all values of a preset.",
             "# Agent step: one decision of one environment; on Atari one agent step is frame_skip frames."]
    for group, kind in GROUPS.items():
        lines += ["", f"{group}:  # {kind.__doc__ or ''}".rstrip()]
        for name, field in kind.model_fields.items():
            value = f"  {name}: {yaml_scalar(_plain(getattr(getattr(settings, group), name)))}"
            lines += [f"{value:<30}  # {field.description}"]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
