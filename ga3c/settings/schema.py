"""Every setting of a run: typed, with its default, in groups.

`Settings` is the only source. Its descriptions become the comments of `config.yaml` and the lines of `--help`.
A setting's name is unique over all groups, so flags and `Config(...)` need no group. A function takes the one group
that it needs, or the whole `Settings` if it needs several.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from ga3c.settings.algorithms import ALGORITHMS
from ga3c.settings.messages import nearest
from ga3c.settings.schedule import Schedule, schedule_of

MOST_SLOTS_PER_AGENT = 16

NETWORKS = ("auto", "small", "large", "nature", "dense")
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")  # package.module:name

_WIDEST = 60                # characters of the choices behind a flag


def _setting(default: Any, description: str, metavar: str = "N", **limits: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"metavar": metavar}, **limits)


class Group(BaseModel):
    """One group of settings. Immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class EnvSettings(Group):
    """The game and how it is played."""

    game: str = _setting(
        "Pong", "Atari game (Boxing, ALE/Boxing-v5), Gymnasium id (CartPole-v1, module:Id) or toy:catch",
        "GAME", min_length=1)
    wrappers: tuple[str, ...] = _setting(
        (), "wrappers around each environment, innermost first: module:Name, a list or with commas; not Atari",
        "MODULE:NAME")
    frame_skip: int | None = _setting(
        None, "emulator frames per agent step, Atari only; null: as the game's id says, 4 for a plain name (paper: 4)",
        ge=1, le=16)
    noop_max: int = _setting(30, "at most this many no-ops open an episode, Atari only (paper: 30)", ge=0, le=200)
    sticky_actions: float | None = _setting(
        None,
        "probability that the emulator repeats the last action, Atari only; null: as the game's id says (v5: 0.25), 0 "
        "for a plain name (paper: 0)", "P", ge=0.0, lt=1.0)
    emulator: Literal["auto", "ale", "own"] = _setting(
        "auto", "emulator of Atari games: auto: our own for games proven exact, else ale-py's; or one of the two")
    mode: int | None = _setting(None, "the game's mode, Atari only; null: the one it begins with", ge=0)
    difficulty: int | None = _setting(None, "the game's difficulty, Atari only; null: the one it begins with", ge=0)
    life_loss: bool = _setting(
        True, "a lost life ends the learner's episode (the score goes on; paper: no), Atari only")
    fire_reset: bool = _setting(False, "press FIRE when an episode starts, where the game has it, Atari only")
    full_action_space: bool = _setting(False, "all 18 joystick actions instead of the game's own, Atari only")
    max_episode_frames: int = _setting(
        108_000, "frames after which an episode is truncated, Atari only (30 minutes of play)", ge=1, lt=2**31)

    @field_validator("wrappers", mode="before")
    @classmethod
    def _wrappers(cls, value: Any) -> Any:
        names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
        if not isinstance(names, list | tuple) or not all(
                isinstance(name, str) and _IMPORT_PATH.fullmatch(name) for name in names):
            raise PydanticCustomError("import_path", "each is to be module:Name, as in my_module:MyWrapper")
        return tuple(names)


class AgentSettings(Group):
    """The agent processes."""

    envs_per_agent: int = _setting(16, "environments that one agent process steps together (paper: 1)", ge=1, le=256)
    slots_per_agent: int = _setting(
        2, "rollouts an agent may have under way; more speed against more policy lag", ge=2, le=MOST_SLOTS_PER_AGENT)
    random_start_steps: int = _setting(
        0, "most random steps of each environment before learning begins, a random number; they count nowhere; 0: none",
        ge=0, le=100_000)
    agent_nice: int = _setting(
        10, "niceness of agent processes, so that they do not starve the model (paper: 0)", ge=0, le=19)
    agent_timeout: float = _setting(
        60.0, "seconds an agent may take for a step or to make an environment; then it is replaced", "SECONDS", gt=0.0)


class BatchingSettings(Group):
    """Batch sizes and the schedule of predictors and trainers."""

    prediction_batch_min: int = _setting(
        30, "a prediction waits up to 5 ms for this many observations, while enough agents play (paper: 1)",
        ge=1, le=65_536)
    prediction_batch_max: int = _setting(
        128, "most observations in one prediction, but at least one agent's (authors' code: 128)", ge=1, le=65_536)
    training_batch_min: int = _setting(
        2048,
        "least agent steps in one update, of whole rollouts; the schedule queues only (paper, figure 7: 20 to 40 is "
        "best, with 5-step rollouts)",
        ge=1, le=65_536)
    schedule: Literal["queues", "synchronous", "alternating", "multi-batch", "standard", "concurrent", "synchronised",
                      "both"] = _setting(
        "queues", "queues (paper); synchronous: all agents, then an update; alternating: in two halves; multi-batch; "
        "with a replay standard: agents one by one, then updates; synchronised: all at once; concurrent, both: these "
        "two with updates beside the play")
    update_groups: int = _setting(
        4, "multi-batch: groups of agents, of which an update takes one, the next each time", ge=1, le=1024)
    steps_per_update: int | None = _setting(
        None, "multi-batch: agent steps of each environment between updates; null: rollout_length / update_groups",
        ge=1, le=1024)


class AlgorithmSettings(Group):
    """What all algorithms share: passes, returns, optimizer, network."""

    algorithm: str = _setting(
        "appo", "appo, a3c (paper): corrected for policy lag; a2c, ppo, pqn: without lag; dqn, c51, qr: from a replay; "
        "a3c-cpu: agents learn; or a "
        "module:Class", "NAME")
    passes: int = _setting(3, "passes over a training batch (paper: 1)", ge=1, le=64)
    minibatches: int = _setting(
        8, "parts that each pass takes the batch in, one step of the optimizer each, shuffled again (paper: 1)",
        ge=1, le=1024)
    rollout_length: int = _setting(64, "agent steps of each environment in a rollout (paper: t_max, 5)", ge=1, le=1024)
    gamma: float = _setting(0.99, "discount of the return per agent step (paper: 0.99)", "X", ge=0.0, le=1.0)
    normalize_rewards: bool = _setting(
        False, "divide rewards by the running deviation of the discounted return, before reward_clip (paper: no)")
    reward_clip: float = _setting(
        1.0, "training clips rewards to [-reward_clip, reward_clip]; 0: no clipping (authors' code: 1)", "X", ge=0.0)
    learning_rate: float = _setting(1e-3, "learning rate at the start (paper: 3e-4)", "X", gt=0.0)
    learning_rate_final: float | None = _setting(
        1e-4, "learning rate after anneal_steps, linear in between; null: constant (authors' code)", "X", ge=0.0)
    anneal_steps: int = _setting(
        10_000_000, "agent steps over which learning rate, entropy weight, clip range and priority_beta change", ge=1)
    optimizer: Literal["adam", "rmsprop", "rmsprop-pytorch", "rmsprop-centred"] = _setting(
        "adam", "adam; rmsprop (paper): epsilon inside the root, squares from 1; rmsprop-pytorch: beside it, from 0; "
        "rmsprop-centred (Nature): inside it, of the variance, from 0")
    adam_epsilon: float = _setting(1e-5, "Adam's epsilon, beside the root", "X", gt=0.0)
    rmsprop_decay: float = _setting(0.99, "decay of RMSProp's mean square (authors' code: 0.99)", "X", ge=0.0, lt=1.0)
    rmsprop_epsilon: float = _setting(0.1, "RMSProp's epsilon (authors' code: 0.1)", "X", gt=0.0)
    max_grad_norm: float = _setting(
        0.5, "largest global norm of an update's gradient; 0: no clipping (paper)", "X", ge=0.0)
    normalize_observations: bool = _setting(
        False, "vectors: subtract their running mean, divide by their running deviation, clip to [-10, 10] (paper: no)")
    contrast: bool = _setting(
        True, "images: filters of the first layer sum to 0, so that an even background counts nothing (paper: no)")
    network: str = _setting(
        "auto", "small, large (paper), nature (large with stride 4): images; dense: vectors; auto: small or dense; or "
        "a module:function", "NAME")
    layer_norm: bool = _setting(
        False, "small, large, nature, dense: normalise what each layer passes on over its units (PQN: yes)")
    precision: Literal["auto", "float32", "bfloat16"] = _setting(
        "auto", "inside small, large, nature; auto: bfloat16 with oneDNN on processors faster at it, else float32")
    large_stride: int = _setting(4, "stride of the large network's first layer (paper: 4, 3, 2 or 1)", ge=1, le=4)

    @field_validator("network", "algorithm")
    @classmethod
    def _ours_or_imported(cls, value: str, info: ValidationInfo) -> str:
        ours, what = (NETWORKS, "function") if info.field_name == "network" else (tuple(ALGORITHMS), "Class")
        if value not in ours and not _IMPORT_PATH.fullmatch(value):
            raise PydanticCustomError("import_path", "input should be {kinds} or module:{what}{near}", {
                "kinds": ", ".join(ours), "what": what, "near": nearest(value, ours)})
        return value


class Family(Group):
    """Settings that some algorithms have: those with this group among `Facts.families`."""


class ActorCriticSettings(Family):
    """The actor-critics: returns and losses."""

    entropy_coef: float = _setting(0.01, "weight of the entropy at the start (paper: beta, 0.01)", "X", ge=0.0)
    entropy_coef_final: float | None = _setting(
        None, "entropy weight after anneal_steps, linear in between; null: constant (paper)", "X", ge=0.0)
    log_epsilon: float = _setting(
        1e-6, "eps of log(pi + eps) in policy loss and entropy (paper, equation 5)", "X", gt=0.0, lt=1.0)
    value_coef: float = _setting(0.5, "weight of (R - V)^2 beside the policy loss (authors' code: 0.5)", "X", ge=0.0)
    gae_lambda: float = _setting(
        0.95, "lambda of the returns; 1: n-step as in the paper, below: generalised advantage estimation",
        "X", ge=0.0, le=1.0)
    normalize_advantages: bool = _setting(
        True, "subtract a batch's mean from its advantages, divide by their deviation (a3c, a2c: running; paper: no)")
    loss_reduction: Literal["sum", "mean"] = _setting(
        "mean", "of the losses over a training batch: mean, or sum (paper)")


class A3CSettings(Family):
    """A3C: policy lag, and workers on processors."""

    correction: Literal["none", "clipped-is", "vtrace"] = _setting(
        "vtrace", "a3c only, how it corrects for policy lag: vtrace; clipped-is: policy gradients weighted by "
        "min(1, pi / mu); none (paper)")
    local_updates: int = _setting(
        1, "a3c-cpu with adam: updates that a worker makes of its own copy before it adds them to the shared weights",
        ge=1, le=1024)


class PPOSettings(Family):
    """PPO and APPO: how far an update may move the policy."""

    clip_range: float = _setting(
        0.1, "ppo, appo: how far pi(a) may move from its value before the first pass, at the start; 0: no clipping",
        "X", ge=0.0, lt=1.0)
    clip_range_final: float | None = _setting(
        0.01, "clip range after anneal_steps, linear in between; null: constant", "X", ge=0.0, lt=1.0)


class ValueSettings(Family):
    """Algorithms that learn Q-values: exploration."""

    epsilon: float = _setting(1.0, "probability of a random action at the start", "P", ge=0.0, le=1.0)
    epsilon_final: float | None = _setting(
        0.01, "probability of a random action after epsilon_steps, linear in between; null: constant", "P", ge=0.0,
        le=1.0)
    epsilon_steps: int = _setting(
        1_000_000, "agent steps over which epsilon falls; with a replay after replay_start random ones", ge=1)
    epsilon_least: float | None = _setting(
        None, "epsilon_final of the last environment; those of the others lie between; null: all the same", "P", gt=0.0,
        le=1.0)
    epsilon_evaluation: float = _setting(
        0.001, "probability of a random action in evaluations that sample", "P", ge=0.0, le=1.0)


class PQNSettings(Family):
    """PQN: returns."""

    td_lambda: float = _setting(
        0.65, "lambda of the returns; 1: rewards to the end of the rollout, 0: of one step", "X", ge=0.0, le=1.0)


class ReplaySettings(Family):
    """Learning from a replay."""

    replay_size: int = _setting(200_000, "steps that the replay holds (Nature: 1,000,000)", ge=1000, le=10**8)
    save_replay: bool = _setting(False, "checkpoints hold the replay, also one of more than 1 GB")
    replay_start: int = _setting(20_000, "steps played before the first update (Nature: 50,000)", ge=1)
    intensity: float = _setting(4.0, "how often each step is used (Nature: 8)", "X", gt=0.0, le=1000.0)
    target_steps: int = _setting(
        32_000, "agent steps after which the target network takes the newest weights (Nature: 40,000)", ge=1)
    n_step: int = _setting(3, "rewards in a return before the target's value (Nature: 1)", ge=1, le=32)
    double: bool = _setting(True, "the newest weights choose the action that the target values (Nature: no)")
    dueling: bool = _setting(False, "heads of V and of advantages (Nature: no)")
    priority_alpha: float = _setting(
        0.0, "exponent of the error in a step's priority; 0: all alike (prioritised replay: 0.5)", "X", ge=0.0,
        le=1.0)
    priority_beta: float = _setting(
        0.4, "how far weights undo the choice by priority, at the start; 1: wholly", "X", ge=0.0, le=1.0)
    priority_beta_final: float | None = _setting(
        1.0, "the same after anneal_steps, linear in between; null: constant", "X", ge=0.0, le=1.0)


class C51Settings(Family):
    """C51: the distribution of returns."""

    atoms: int = _setting(51, "returns that have a probability (C51: 51)", ge=2, le=1024)
    return_limit: float = _setting(10.0, "the largest of these returns; the smallest is -return_limit", "X", gt=0.0)


class QRSettings(Family):
    """QR: the distribution of returns."""

    quantiles: int = _setting(200, "quantiles of an action's return (QR-DQN: 200)", ge=1, le=1024)


class TuningSettings(Group):
    """N_A, N_P, N_T, and the controller that changes them."""

    dynamic: bool = _setting(
        True,
        "change N_A, N_P and N_T while training, for most agent steps collected and trained a second; only with queues")
    agents: int | None = _setting(
        None,
        "N_A, agent processes, if dynamic at the start; null: per core 32 / envs_per_agent, 2 to 16; a3c-cpu: 1 "
        "(paper: 32)",
        ge=1, le=4096)
    agents_max: int | None = _setting(
        None, "most agents there is room for; null: as agents, or if dynamic by cores, memory, descriptors",
        ge=1, le=4096)
    predictors: int = _setting(1, "N_P, predictor threads (paper: 2)", ge=1, le=64)
    trainers: int = _setting(1, "N_T, trainer threads (paper: 2)", ge=1, le=64)
    controller: Literal["fast", "paper"] = _setting(
        "fast", "paper: one count by 1 each window (paper, section 4.3); fast: as soon as the data allow")
    start: str | None = _setting(
        None, "N_A/N_P/N_T to start from if dynamic, as in 1/1/1; null: agents etc. if given, else as remembered",
        "N/N/N", pattern="^(?:[1-9][0-9]{0,2}|[1-3][0-9]{3}|40[0-8][0-9]|409[0-6])"
                         f"{2 * '/(?:[1-9]|[1-5][0-9]|6[0-4])'}$")
    remember: bool = _setting(True, "keep counts and kernels found on this machine in the user's cache directory")
    max_lag: float | None = _setting(
        10.0,
        "most policy lag, the mean over samples, in updates: the controller takes no more; null: no limit",
        "UPDATES", gt=0.0)
    window: float = _setting(60.0, "seconds of a trial of the paper's controller (paper: 60)", "SECONDS", ge=1.0)


class RunSettings(Group):
    """Seed, limits, records, checkpoints."""

    preset: Literal["default", "fast", "quality", "paper", "ga3c", "a3c-cpu", "accelerated-a2c", "accelerated-ppo",
                    "accelerated-appo", "cule", "cule-ppo", "dqn", "fast-dqn", "accelerated-dqn", "accelerated-c51",
                    "accelerated-rainbow", "pqn", "value"] = _setting(
        "default",
        "starting values: default is what works best here; fast: most steps; quality: a larger network; value: best "
        "from a replay; of papers: paper or ga3c, a3c-cpu, accelerated-a2c, -ppo, -appo, -dqn, -c51, -rainbow, cule, "
        "cule-ppo, dqn, fast-dqn, pqn",
        "PRESET")
    seed: int = _setting(0, "seed of weights, actions and environments; only --serial repeats exactly", ge=0, lt=2**31)
    serial: bool = _setting(False, "everything in one thread, in a fixed order: repeatable to the byte")
    device_threads: int | None = _setting(
        None,
        "threads TensorFlow may use in one operation; null: half the cores, or all with several passes or a replay; "
        "serial: 1",
        ge=1, le=1024)
    kernels: Literal["auto", "remeasure", "onednn", "eigen"] = _setting(
        "auto", "library that computes the network on processors; auto: the faster one, measured in the first run, as "
        "precision is; remeasure: measured again; serial: not measured")
    steps: int | None = _setting(
        None, "end after this many agent steps; a resumed run counts from its first beginning; null: no limit", "STEPS",
        ge=1)
    frames: int | None = _setting(None, "end after this many emulator frames in all; null: no limit", "FRAMES", ge=1)
    minutes: float | None = _setting(
        None, "end after this many minutes of training in all; null: no limit", "MINUTES", gt=0.0)
    episodes: int | None = _setting(None, "end after this many episodes in all; null: no limit", ge=1)
    run_dir: str | None = _setting(None, "directory of the run; null: runs/<Game>-<date>-<time>-s<seed>", "DIR")
    checkpoint_minutes: float = _setting(10.0, "minutes between checkpoints", "MINUTES", gt=0.0)
    checkpoints_kept: int = _setting(
        3, "newest checkpoints that stay on disk, beside the best and the first after each full hour", ge=1)
    evaluation_minutes: float | None = _setting(
        None, "minutes between evaluations of the policy as it learns; one more at the end; null: none",
        "MINUTES", gt=0.0)
    evaluation_episodes: int = _setting(
        10, "episodes of such an evaluation; the checkpoint with the best mean is kept", ge=1, le=100_000)
    tensorboard: bool = _setting(True, "write scalars for TensorBoard, once a second")
    norms: bool = _setting(
        False, "record weight_norm and step_norm of each update beside gradient_norm; takes 1 to 4 % of an update")
    trace: bool = _setting(False, "write trace.json, for Perfetto: the last minute of agents, predictors, trainers")

    @field_validator("run_dir")
    @classmethod
    def _named(cls, value: str | None) -> str | None:
        if value == "":  # Field's own limit would reject a path that is no text
            raise PydanticCustomError("empty", "it names no directory")
        return value


class Settings(Group):
    """All settings of a run, with their defaults; `config.yaml` shows them with comments."""

    env: EnvSettings = EnvSettings()
    agents: AgentSettings = AgentSettings()
    batching: BatchingSettings = BatchingSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    actor_critic: ActorCriticSettings = ActorCriticSettings()
    a3c: A3CSettings = A3CSettings()
    ppo: PPOSettings = PPOSettings()
    value: ValueSettings = ValueSettings()
    pqn: PQNSettings = PQNSettings()
    replay: ReplaySettings = ReplaySettings()
    c51: C51Settings = C51Settings()
    qr: QRSettings = QRSettings()
    tuning: TuningSettings = TuningSettings()
    run: RunSettings = RunSettings()

    def flat(self) -> dict[str, Any]:
        """Returns every setting by its name, without groups."""
        return {name: getattr(getattr(self, setting.group), name) for name, setting in ALL.items()}

    def changed(self, **values: Any) -> Settings:
        """Returns a copy with other values, by name, unchecked. Raises KeyError for an unknown name."""
        groups: dict[str, dict[str, Any]] = {}
        for name, value in values.items():
            groups.setdefault(ALL[name].group, {})[name] = value
        changed = self.model_copy(update={group: getattr(self, group).model_copy(update=update)
                                          for group, update in groups.items()})
        changed.__dict__.pop("schedule", None)  # a copy has the cached one, which is of the old values
        return changed

    @functools.cached_property
    def schedule(self) -> Schedule:
        """The schedule in numbers, on this machine; see `settings/schedule.py`."""
        return schedule_of(self)


class SettingField(NamedTuple):
    """One setting: its group and its field."""

    group: str
    field: FieldInfo

    @property
    def choices(self) -> list[str]:
        """The allowed values of a setting with a fixed list of choices; [] for any other."""
        literal = getattr(self.field.annotation, "__origin__", None) is Literal
        return [str(choice) for choice in get_args(self.field.annotation)] if literal else []

    @property
    def metavar(self) -> str:
        """The placeholder in capitals, or the choices if they fit on a line."""
        assert isinstance(self.field.json_schema_extra, dict)
        choices = "|".join(self.choices)
        return choices if 0 < len(choices) <= _WIDEST else str(self.field.json_schema_extra["metavar"])

    @property
    def optional(self) -> bool:
        """Whether null is allowed."""
        return type(None) in get_args(self.field.annotation)


def _groups() -> Iterator[tuple[str, type[Group]]]:
    for group, field in Settings.model_fields.items():
        assert isinstance(field.annotation, type) and issubclass(field.annotation, Group)
        yield group, field.annotation


GROUPS: Mapping[str, type[Group]] = dict(_groups())
FAMILIES: Mapping[str, type[Group]] = {name: kind for name, kind in GROUPS.items() if issubclass(kind, Family)}
ALL: Mapping[str, SettingField] = {name: SettingField(group, field) for group, kind in GROUPS.items()
                                   for name, field in kind.model_fields.items()}
assert len(ALL) == sum(len(kind.model_fields) for kind in GROUPS.values()), "a name stands in two groups"
