"""Typed settings: the defaults, the paper's preset, the YAML file and the command line.

Precedence: defaults < preset < `--config FILE` < command line. `Settings` is the single source: its descriptions
become the comments of `config.yaml` and the lines of `--help`. pydantic checks types and ranges, PyYAML reads files,
argparse parses the command line.

Everything a user can get wrong ends as one `ConfigError` of one line: file, line, key, value and what would be right.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import math
import os
import re
import resource
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from ga3c.machine import usable_cores, usable_memory


MAX_SLOTS = 65_535
"""The most slots a ticket can name."""

NETWORKS = ("auto", "small", "large", "dense")
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")  # package.module:name

AGENT_DESCRIPTORS = 4       # that an agent takes in the main process
OTHER_DESCRIPTORS = 200     # of everything else


def agent_bytes(envs_per_agent: int) -> int:
    """Memory of an agent in a process of its own: 60 MB with 16 Atari environments, 19 of them slots."""
    return 8 * 2**20 + envs_per_agent * 13 * 2**18


class ConfigError(Exception):
    """A mistake in a setting; the message is one printable line meant for the user, whatever he typed."""

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else "?" for c in " ".join(message.split())))


def _setting(section: str, default: Any, description: str, **limits: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"section": section}, **limits)


class Settings(BaseModel):
    """Every setting of a run, with its default. Immutable; read `config.yaml` for the tour."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    preset: Literal["default", "paper"] = _setting(
        "Game", "default", "starting values: 'default' is what works best here, 'paper' is the paper's own")
    game: str = _setting(
        "Game", "Pong", "Atari game (Boxing, ALE/Boxing-v5), Gymnasium id (CartPole-v1, module:Id) or toy:catch",
        min_length=1)
    envs_per_agent: int = _setting(
        "Game", 16, "environments that an agent plays together; paper: 1. More share one wake-up and one system call",
        ge=1, le=256)
    wrappers: tuple[str, ...] = _setting(
        "Game", (), "wrappers around each environment, innermost first: module:Name, a list or with commas; not Atari")
    frame_skip: int = _setting("Game", 4, "emulator frames per agent step, Atari only (paper: 4)", ge=1, le=16)
    noop_max: int = _setting(
        "Game", 30, "at most this many no-ops open an episode, Atari only (paper: 30)", ge=0, le=200)
    sticky_actions: float = _setting(
        "Game", 0.0, "probability that the emulator repeats the last action, Atari only; paper: 0, Gymnasium v5: 0.25",
        ge=0.0, lt=1.0)
    life_loss: bool = _setting("Game", False, "a lost life ends the learner's episode (the score goes on), Atari only")
    fire_reset: bool = _setting("Game", False, "press FIRE when an episode starts, where the game has it, Atari only")
    full_action_space: bool = _setting("Game", False, "all 18 joystick actions instead of the game's own, Atari only")
    max_episode_frames: int = _setting(
        "Game", 108_000, "frames after which an episode is truncated, Atari only (30 minutes of play)", ge=1,
        lt=2**31)

    agents: int | None = _setting(
        "Workers", None,
        "N_A, agents, if dynamic at the start; null: per core 32 / envs_per_agent, 2 to 16 (paper: 32)",
        ge=1, le=4096)
    agents_per_process: int | None = _setting(
        "Workers", None,
        "agents that take turns in one process; null: Atari 16 / envs_per_agent, at least 1, others 1 (paper: 1)",
        ge=1, le=64)
    agents_max: int | None = _setting(
        "Workers", None, "most agents there is room for; null: as agents, or if dynamic by cores, memory, descriptors",
        ge=1, le=4096)
    predictors: int = _setting("Workers", 1, "N_P, predictor threads; paper: 2", ge=1, le=64)
    trainers: int = _setting("Workers", 1, "N_T, trainer threads; paper: 2", ge=1, le=64)
    agent_nice: int = _setting(
        "Workers", 10, "niceness of agent processes, so that they do not starve the model; paper: 0", ge=0, le=19)
    agent_timeout: float = _setting(
        "Workers", 60.0, "seconds an agent may take for one step, or to begin; then it is killed and replaced", gt=0.0)
    device_threads: int | None = _setting(
        "Workers", None, "threads TensorFlow may use inside one operation; null: half the cores, agents need the rest",
        ge=1, le=1024)
    slots_per_agent: int = _setting(
        "Workers", 2, "rollouts an agent may have under way; more speed against more policy lag", ge=2, le=16)
    prediction_batch_min: int = _setting(
        "Workers", 30,
        "observations that a prediction waits for, 5 ms at most, while enough agents play to fill the cores (paper: 1)",
        ge=1, le=65_536)
    prediction_batch_max: int = _setting(
        "Workers", 128, "most observations in one prediction (authors' code: 128)", ge=1, le=65_536)
    training_batch_min: int = _setting(
        "Workers", 320,
        "least agent steps in one update, of whole rollouts (paper, figure 7: 20 to 40 is best, at t_max 5)",
        ge=1, le=65_536)

    dynamic: bool = _setting(
        "Tuning", True, "change N_A, N_P and N_T while training, for most agent steps trained a second; serial: never")
    controller: Literal["fast", "paper"] = _setting(
        "Tuning", "fast", "paper: one of them by 1 every window (paper, section 4.3); fast: as soon as it can tell")
    start: str | None = _setting(
        "Tuning", None,
        "N_A/N_P/N_T to start from if dynamic, as in 1/1/1; null: agents etc. if given, else as remembered",
        pattern=r"^[1-9][0-9]{0,3}/[1-9][0-9]?/[1-9][0-9]?$")
    remember: bool = _setting(
        "Tuning", True, "keep the counts found for this machine and game in the user's cache directory")
    max_lag: float | None = _setting(
        "Tuning", 10.0, "ceiling of the mean policy lag in updates, above which speed does not count; null: none",
        gt=0.0)
    drop_stale: bool = _setting(
        "Tuning", False, "count and drop rollouts older than max_lag (mean of their steps); serial: never")
    window: float = _setting("Tuning", 60.0, "seconds of a trial of the paper's controller (paper: 60)", ge=1.0)
    temperature: float = _setting(
        "Tuning", 0.0, "share of speed that the paper's controller risks for a way past a local optimum (paper: 0)",
        ge=0.0)

    t_max: int = _setting("Learning", 20, "agent steps of each environment in a rollout (paper: 5)", ge=1, le=1024)
    gamma: float = _setting("Learning", 0.99, "discount of the return per agent step (paper: 0.99)", ge=0.0, le=1.0)
    reward_clip: float = _setting(
        "Learning", 1.0, "rewards are learned from in [-this, this]; 0: as they are (authors' code: 1)", ge=0.0)
    learning_rate: float = _setting("Learning", 7e-4, "learning rate at the start (paper: 3e-4)", gt=0.0)
    learning_rate_end: float | None = _setting(
        "Learning", 3e-5, "learning rate after anneal_steps, linear in between; null: constant (authors' code)", ge=0.0)
    beta: float = _setting("Learning", 0.02, "weight of the entropy at the start (paper: 0.01)", ge=0.0)
    beta_end: float | None = _setting(
        "Learning", 1e-3, "entropy weight after anneal_steps, linear in between; null: constant (paper)", ge=0.0)
    anneal_steps: int = _setting("Learning", 10_000_000, "agent steps over which the two schedules run", ge=1)
    log_epsilon: float = _setting(
        "Learning", 1e-6, "eps of log(pi + eps) in policy loss and entropy (paper, equation 5)", gt=0.0, lt=1.0)
    value_loss_factor: float = _setting(
        "Learning", 0.5, "weight of (R - V)^2 beside the policy loss (authors' code: 0.5)", ge=0.0)
    gae_lambda: float = _setting(
        "Learning", 0.95, "lambda of the returns; 1: n-step as in the paper, below: generalised advantage estimation",
        ge=0.0, le=1.0)
    normalize_advantages: bool = _setting(
        "Learning", True, "subtract a batch's mean from its advantages, divide by their running deviation (paper: no)")
    correction: Literal["none", "clipped-is", "vtrace"] = _setting(
        "Learning", "vtrace",
        "of policy lag: vtrace, clipped-is (policy gradients weighted by min(1, pi / mu)), or none (paper)")
    training_delay: int = _setting(
        "Learning", 0, "rollouts that wait until so many more are there, a policy lag on purpose; serial only",
        ge=0, le=256)
    loss_reduction: Literal["sum", "mean"] = _setting(
        "Learning", "mean", "of the losses over a training batch: mean, or sum (paper)")
    optimizer: Literal["rmsprop", "adam"] = _setting("Learning", "adam", "adam, or rmsprop (paper)")
    adam_epsilon: float = _setting("Learning", 1e-5, "Adam's epsilon, beside the root", gt=0.0)
    rmsprop_decay: float = _setting("Learning", 0.99, "decay of RMSProp's mean square (authors' code: 0.99)",
                                    ge=0.0, lt=1.0)
    rmsprop_epsilon: float = _setting(
        "Learning", 0.1, "RMSProp's epsilon, inside the root (authors' code: 0.1)", gt=0.0)
    gradient_clip_norm: float = _setting(
        "Learning", 0.5, "largest global norm of an update's gradient; 0: no clipping (paper)", ge=0.0)
    network: str = _setting(
        "Learning", "auto", "small, large (paper): images; dense: vectors; auto: small or dense; or a module:function")
    precision: Literal["auto", "float32", "bfloat16"] = _setting(
        "Learning", "auto", "inside small and large; auto: bfloat16 on processors that are faster at it, else float32")
    large_stride: int = _setting(
        "Learning", 4, "stride of the large network's first layer (paper: 4, 3, 2 or 1)", ge=1, le=4)

    seed: int = _setting("Run", 0, "seed of weights, actions and environments; only --serial repeats exactly",
                         ge=0, lt=2**31)
    serial: bool = _setting("Run", False, "everything in one thread, in a fixed order: repeatable to the byte")
    steps: int | None = _setting(
        "Run", None, "end after this many agent steps, as all four limits over all resumes; null: no limit", ge=1)
    frames: int | None = _setting("Run", None, "end after this many emulator frames in all; null: no limit", ge=1)
    minutes: float | None = _setting(
        "Run", None, "end after this many minutes of training in all; null: no limit", gt=0.0)
    episodes: int | None = _setting("Run", None, "end after this many episodes in all; null: no limit", ge=1)
    run_dir: str | None = _setting("Run", None, "directory of the run; null: runs/<Game>-<date>-<time>-s<seed>")
    checkpoint_minutes: float = _setting("Run", 10.0, "minutes between checkpoints", gt=0.0)
    checkpoints_kept: int = _setting(
        "Run", 3, "newest checkpoints that stay on disk, beside the best and the first after each full hour", ge=1)
    evaluation_minutes: float | None = _setting(
        "Run", None, "minutes between evaluations of the policy as it learns; one more at the end; null: none", gt=0.0)
    evaluation_episodes: int = _setting(
        "Run", 10, "episodes of such an evaluation; the checkpoint with the best mean is kept", ge=1, le=100_000)
    tensorboard: bool = _setting("Run", True, "write scalars for TensorBoard, once a second")
    trace: bool = _setting("Run", False, "keep what everyone did in the last minute or so: trace.json, for Perfetto")

    @field_validator("wrappers", mode="before")
    @classmethod
    def _wrappers(cls, value: Any) -> Any:
        names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(
                isinstance(name, str) and _IMPORT_PATH.fullmatch(name) for name in names):
            raise PydanticCustomError("import_path", "each is to be module:Name, as in my_module:MyWrapper")
        return tuple(names)

    @field_validator("network")
    @classmethod
    def _network(cls, value: str) -> str:
        if value not in NETWORKS and not _IMPORT_PATH.fullmatch(value):
            raise PydanticCustomError("import_path", "input should be {kinds} or module:function{near}", {
                "kinds": ", ".join(NETWORKS), "near": _nearest(value, NETWORKS)})
        return value

    @property
    def agent_count(self) -> int:
        """N_A at the start: as configured, else 32 environments per core, but 2 to 16 agents per core."""
        return self.agents or _usual_agents(self.envs_per_agent)

    @property
    def agent_capacity(self) -> int:
        """The most agents the shared memory has room for."""
        least = max(self.agent_count, self._started[0])
        if self.agents_max is None and self.dynamic and not self.serial:
            return max(least, min(_most_agents(self.envs_per_agent), MAX_SLOTS // self.slots_per_agent))
        return max(self.agents_max or 0, least)

    @property
    def thread_capacity(self) -> tuple[int, int]:
        """The most predictors and trainers: as given, but if dynamic up to half the cores, at least two, at most 16."""
        most = min(16, max(2, usable_cores() // 2)) if self.dynamic and not self.serial else 1
        return max(most, self.predictors, self._started[1]), max(most, self.trainers, self._started[2])

    @property
    def _started(self) -> tuple[int, int, int]:
        n_a, n_p, n_t = map(int, self.start.split("/")) if self.start and self.dynamic else (0, 0, 0)
        return n_a, n_p, n_t


def _usual_agents(envs_per_agent: int) -> int:
    return max(2, min(16, 32 // envs_per_agent)) * usable_cores()


def _most_agents(envs_per_agent: int) -> int:
    """As many as could pay and as the machine can hold: twice the usual, half the memory, its descriptors."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        descriptors = 2**20
    return min(4096, 2 * _usual_agents(envs_per_agent), usable_memory() // 2 // agent_bytes(envs_per_agent),
               (descriptors - OTHER_DESCRIPTORS) // AGENT_DESCRIPTORS)


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "paper": {
        "envs_per_agent": 1, "agents_per_process": 1, "agents": 32, "predictors": 2, "trainers": 2, "agent_nice": 0,
        "prediction_batch_min": 1, "prediction_batch_max": 128, "training_batch_min": 40, "slots_per_agent": 4,
        "t_max": 5, "gamma": 0.99, "reward_clip": 1.0, "learning_rate": 3e-4, "learning_rate_end": None,
        "beta": 0.01, "beta_end": None, "log_epsilon": 1e-6, "value_loss_factor": 0.5,
        "gae_lambda": 1.0, "normalize_advantages": False, "correction": "none", "loss_reduction": "sum",
        "optimizer": "rmsprop", "rmsprop_decay": 0.99, "rmsprop_epsilon": 0.1, "gradient_clip_norm": 0.0,
        "frame_skip": 4, "noop_max": 30, "sticky_actions": 0.0, "life_loss": False, "fire_reset": False,
        "network": "auto", "precision": "float32", "controller": "paper", "max_lag": None, "drop_stale": False,
        "window": 60.0, "temperature": 0.0,
    },
}

_NAMES = tuple(Settings.model_fields)


def group_of(field: FieldInfo) -> str:
    """The group of settings that a field of `Settings` belongs to."""
    assert isinstance(field.json_schema_extra, dict)
    return str(field.json_schema_extra["section"])


# ------------------------------------------------------------------------------------------------ reading YAML

class _File(NamedTuple):
    path: str
    values: dict[str, Any]
    lines: dict[str, int]


def _read_yaml(path: str) -> _File:
    try:
        text = Path(path).read_text(encoding="utf-8")
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return _File(path, {}, {})
            if not isinstance(node, yaml.MappingNode):
                raise ConfigError(f"{path}:1: a configuration is lines of 'name: value'")
            lines: dict[str, int] = {}
            values: dict[str, Any] = {}
            for key, value in node.value:
                line = key.start_mark.line + 1
                if not isinstance(key, yaml.ScalarNode):
                    raise ConfigError(f"{path}:{line}: a setting's name is plain text")
                name = " ".join(key.value.split())
                if name in lines:
                    raise ConfigError(f"{path}:{line}: '{name}' is given twice, first in line {lines[name]}")
                lines[name] = line
                values[name] = loader.construct_object(value, deep=True)
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
    return _File(path, values, lines)


# ------------------------------------------------------------------------------------------------ checking

def _nearest(name: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {found[0]}?" if found else ""


def _explain(name: str, value: Any, kind: str, message: str) -> str:
    if kind == "extra_forbidden":
        return f"unknown setting '{name}'{_nearest(name, _NAMES)}"
    hint = ""
    if kind == "float_type" and isinstance(value, str):
        with contextlib.suppress(ValueError):
            if math.isfinite(float(value)):
                hint = f"; YAML reads it as text, write {yaml_scalar(float(value))}"
    if kind == "literal_error":
        hint = _nearest(str(value), _choices(name))
    text = message[0].lower() + message[1:]
    try:
        shown = repr(value)[:100]
    except ValueError:  # an integer of more digits than Python writes
        shown = "a number of thousands of digits"
    return f"{name}: {shown} is not allowed: {text}{hint}"


def _choices(name: str) -> list[str]:
    return [str(choice) for choice in getattr(Settings.model_fields[name].annotation, "__args__", ())]


def _check(values: Mapping[str, Any], strict: bool) -> tuple[str, str] | None:
    """The first thing wrong with `values`: (setting, explanation); None if nothing is."""
    try:
        Settings.model_validate(dict(values), strict=strict)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        return name, _explain(name, values.get(name), first["type"], first["msg"])
    return None


# ------------------------------------------------------------------------------------------------ command line

class Parser(argparse.ArgumentParser):
    """Tells a mistake on the command line as a ConfigError, with the nearest right name."""

    def error(self, message: str) -> Any:
        if message.startswith("unrecognized arguments: "):
            flag = message.removeprefix("unrecognized arguments: ").split("=")[0].split(" ")[0]
            known = [option for action in self._actions for option in action.option_strings]
            message = f"unknown option {flag}{_nearest(flag, known)}"
        raise ConfigError(message)


def output_file(*suffixes: str) -> Callable[[str], Path]:
    """For argparse: a file that can be written, of these kinds if any; told before the work is done, not after."""
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


def build_parser(program: str, version: str) -> argparse.ArgumentParser:
    """The command line of `ga3c-train`: one flag for every setting, grouped as in `config.yaml`."""
    parser = Parser(
        prog=program, allow_abbrev=False, argument_default=argparse.SUPPRESS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Train an agent with asynchronous advantage actor-critic around one model (GA3C).",
        epilog="examples:\n  ga3c-train --game Boxing\n  ga3c-train --game CartPole-v1 --minutes 1 --reward-clip 0.1\n"
               "  ga3c-train --resume runs/Boxing-...             go on, after Ctrl-C or a crash")
    parser.add_argument("--version", action="version", version=f"ga3c {version}")
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings; `config.yaml` shows them all")
    parser.add_argument("--print-config", action="store_true", help="print the resolved settings and end")
    parser.add_argument("--resume", metavar="RUN", help="go on with a run directory or one of its checkpoints")
    parser.add_argument("--weights-only", action="store_true",
                        help="with --resume: a new run that begins with those weights, on any game they fit")
    parser.add_argument("--verbose", action="store_true", help="show TensorFlow's own messages")
    groups: dict[str, Any] = {}
    for name, field in Settings.model_fields.items():
        section = group_of(field)
        if section not in groups:
            groups[section] = parser.add_argument_group(section)
        flag = "--" + name.replace("_", "-")
        default = "null" if field.default is None else yaml_scalar(field.default)
        text = f"{field.description} [{default}]".replace("%", "%%")
        if field.annotation is bool:
            groups[section].add_argument(flag, action=argparse.BooleanOptionalAction, dest=name, help=text)
        else:
            metavar = "|".join(_choices(name)) if _is_choice(field) else "X"
            groups[section].add_argument(flag, dest=name, metavar=metavar, help=text)
    return parser


def _is_choice(field: FieldInfo) -> bool:
    return getattr(field.annotation, "__origin__", None) is Literal


def parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the command line into (settings given, other options). Raises ConfigError; `--help` raises SystemExit."""
    given = vars(parser.parse_args(argv))
    settings = {name: None if value in ("null", "none") and _optional(name) else value
                for name, value in given.items() if name in Settings.model_fields}
    wrong = _check(settings, strict=False)
    if wrong:
        raise ConfigError(f"--{wrong[0].replace('_', '-')}: {wrong[1].removeprefix(wrong[0] + ': ')}")
    return settings, {name: value for name, value in given.items() if name not in Settings.model_fields}


def _optional(name: str) -> bool:
    return type(None) in get_args(Settings.model_fields[name].annotation)


def resolve(command_line: Mapping[str, Any], file: str | None = None) -> Settings:
    """Merges defaults, preset, file and command line into checked settings. Raises ConfigError."""
    read = _read_yaml(file) if file else _File("", {}, {})
    wrong = _check(read.values, strict=True)
    if wrong:
        raise ConfigError(f"{read.path}:{read.lines.get(wrong[0], 1)}: {wrong[1]}")
    given = {**read.values, **command_line}
    settings = Settings.model_validate({**PRESETS[given.get("preset", "default")], **given})
    if settings.agent_capacity * settings.slots_per_agent > MAX_SLOTS:
        raise ConfigError(f"agents: {settings.agent_capacity} x slots_per_agent {settings.slots_per_agent} is over "
                          f"{MAX_SLOTS} slots")
    if settings.training_delay and not settings.serial:
        raise ConfigError("training_delay: needs serial, where a rollout's age is no accident")
    if settings.drop_stale and settings.max_lag is None:
        raise ConfigError("drop_stale: needs max_lag, the most updates that a rollout may be old")
    return settings


def configured(file: str | None = None, /, **settings: Any) -> Settings:
    """Settings as Python gives them, `ga3c.Config(game="Boxing", minutes=10)`: over the preset and `file`, if named.

    Raises ConfigError, of one line, if one is unknown or wrong.
    """
    wrong = _check(settings, strict=True)
    if wrong:
        raise ConfigError(wrong[1])
    return resolve(settings, file)


# ------------------------------------------------------------------------------------------------ writing YAML

def yaml_scalar(value: Any) -> str:
    """One value as YAML text that reads back equal, `1.0e-06` included."""
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("\n").removesuffix("\n...")


def to_yaml(settings: Settings) -> str:
    """All settings as commented YAML: what `--print-config` prints and a run keeps as its `config.yaml`."""
    lines = ["# Every setting of ga3c-train. Change them in a file (--config FILE) or by flags (--learning-rate 1e-4).",
             "# Agent step: one decision of one environment; on Atari one agent step is frame_skip frames."]
    section = ""
    for name, field in Settings.model_fields.items():
        if group_of(field) != section:
            section = group_of(field)
            lines += ["", f"# {section}"]
        value = f"{name}: {yaml_scalar(getattr(settings, name))}"
        lines += [f"{value:<28}  # {field.description}"]
    return "\n".join(lines) + "\n"
