"""Warnings for settings that have no effect beside others, or an effect other than expected: one line each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from ga3c.settings.algorithms import facts
from ga3c.settings.messages import flag
from ga3c.settings.schema import FAMILIES, Settings


class _Rule(NamedTuple):
    """A reason for no effect. names: the settings. when: whether the rule applies. why: the text after their flags."""

    names: tuple[str, ...]
    when: Callable[[Settings], bool]
    why: Callable[[Settings], str]


_THREADS = ("predictors", "trainers", "prediction_batch_min", "prediction_batch_max")
_OF_QUEUES = ("training_batch_min", "agents_max")
_ATARI = ("frame_skip", "noop_max", "sticky_actions", "emulator", "mode", "difficulty", "life_loss", "fire_reset",
          "full_action_space", "max_episode_frames")


def _why_counts_fixed(s: Settings) -> str:
    by_algorithm = s.schedule.agents_learn or s.schedule.remembers
    cause = ("--serial" if s.run.serial else f"--algorithm {s.algorithm.algorithm}" if by_algorithm else
             f"--schedule {s.batching.schedule}" if s.batching.schedule != "queues" else "--no-dynamic")
    return f"with {cause} the numbers of workers are fixed"


def _annealed(s: Settings) -> Iterator[bool]:
    """Yields whether the learning rate, the entropy weight, the clip range and beta change with the agent steps."""
    families = facts(s.algorithm.algorithm).families
    yield s.algorithm.learning_rate_final is not None
    yield s.actor_critic.entropy_coef_final is not None and (families is None or "actor_critic" in families)
    yield s.ppo.clip_range_final is not None and s.ppo.clip_range > 0.0 and (families is None or "ppo" in families)
    yield s.replay.priority_beta_final is not None and s.replay.priority_alpha > 0.0 and s.schedule.remembers


_RULES = (
    _Rule((*_THREADS, *_OF_QUEUES), lambda s: s.batching.schedule != "queues" and not s.schedule.remembers,
          lambda s: f"--schedule {s.batching.schedule} says which agents are answered, and what an update takes"),
    _Rule((*_THREADS, "agents_max"), lambda s: s.batching.schedule != "queues" and s.schedule.remembers,
          lambda s: f"--schedule {s.batching.schedule} says which agents are answered, and what an update takes"),
    _Rule(("device_threads",), lambda s: s.schedule.agents_learn,
          lambda s: f"with --algorithm {s.algorithm.algorithm} each agent computes in one thread"),
    _Rule((*_THREADS, "training_batch_min"), lambda s: s.schedule.agents_learn,
          lambda s: f"with --algorithm {s.algorithm.algorithm} there is no predictor and no trainer: each agent learns "
                    "from its rollouts"),
    _Rule(("trainers",), lambda s: s.schedule.remembers and not s.schedule.agents_wait,
          lambda s: "one thread fills the replay and learns from it"),
    _Rule((*_THREADS, "agents_max", "slots_per_agent", "device_threads", "trace"), lambda s: s.run.serial,
          lambda s: "--serial is one thread"),
    _Rule(("trace",), lambda s: s.schedule.agents_learn,
          lambda s: f"with --algorithm {s.algorithm.algorithm} updates happen in the agents' processes"),
    _Rule(("kernels",), lambda s: s.run.serial and s.run.kernels == "remeasure", lambda s: "--serial measures none"),
    _Rule(("dynamic",), lambda s: s.tuning.dynamic and not s.schedule.tuned, _why_counts_fixed),
    _Rule(("start", "controller", "window", "max_lag"), lambda s: not s.schedule.tuned, _why_counts_fixed),
    _Rule(("window",), lambda s: s.schedule.tuned and s.tuning.controller != "paper",
          lambda s: "only --controller paper uses it"),
    _Rule(("agents_max",), lambda s: (s.tuning.agents_max or s.schedule.most[0]) < s.schedule.most[0],
          lambda s: f"there is room for the {s.schedule.most[0]} to begin with"),
    _Rule(("update_groups", "steps_per_update"), lambda s: s.batching.schedule != "multi-batch",
          lambda s: "only --schedule multi-batch uses them"),
    _Rule(("adam_epsilon",), lambda s: s.algorithm.optimizer != "adam", lambda s: "only --optimizer adam uses it"),
    _Rule(("rmsprop_decay", "rmsprop_epsilon"), lambda s: s.algorithm.optimizer == "adam",
          lambda s: "only RMSProp uses them"),
    _Rule(("priority_beta", "priority_beta_final"), lambda s: s.replay.priority_alpha == 0.0,
          lambda s: "--priority-alpha 0 draws all alike"),
    _Rule(("clip_range_final",), lambda s: s.ppo.clip_range == 0.0, lambda s: "--clip-range 0 never clips"),
    _Rule(("anneal_steps",), lambda s: not any(_annealed(s)), lambda s: "nothing changes with the agent steps"),
    _Rule(("large_stride",), lambda s: s.algorithm.network in ("auto", "small", "nature", "dense"),
          lambda s: "only --network large uses it"),
    _Rule(("contrast",), lambda s: s.algorithm.layer_norm, lambda s: "--layer-norm has it in any case"),
    _Rule(("contrast", "precision"), lambda s: s.algorithm.network == "dense",
          lambda s: "only networks for images use them"),
    _Rule(("evaluation_episodes",), lambda s: s.run.evaluation_minutes is None,
          lambda s: "--evaluation-minutes asks for evaluations"),
)


def without_effect(settings: Settings, given: Collection[str], atari: bool) -> list[str]:
    """Returns one line per reason why some of the settings `given` have no effect. atari: whether the game is Atari."""
    by_reason: dict[str, list[str]] = {}
    for name, why in ineffective(settings, atari).items():
        if name in given:
            by_reason.setdefault(why, []).append(flag(name))
    return [f"No effect: {', '.join(flags)}; {why}" for why, flags in by_reason.items()]


def ineffective(settings: Settings, atari: bool) -> dict[str, str]:
    """Returns the reason for each setting that has no effect in `settings`, by name."""
    families = facts(settings.algorithm.algorithm).families
    rules = [*_RULES]
    for family, kind in FAMILIES.items():
        if families is not None and family not in families:
            rules.append(_Rule(tuple(kind.model_fields), lambda s: True,
                               lambda s: f"--algorithm {s.algorithm.algorithm} has none"))
    if not atari:
        rules.append(_Rule(_ATARI, lambda s: True, lambda s: f"{s.env.game} is no Atari game"))
    reasons: dict[str, str] = {}
    for rule in rules:
        if rule.when(settings):
            why = rule.why(settings)
            reasons |= {name: why for name in rule.names if name not in reasons}
    return reasons


def notes_on_meetings(settings: Settings) -> list[str]:
    """Returns a line if a target network can only be taken over later than asked for, after whole rounds."""
    schedule, asked = settings.schedule, settings.replay.target_steps
    environments = schedule.agents * settings.agents.envs_per_agent
    if not schedule.epochs or schedule.steps * environments == asked:
        return []
    return [f"--target-steps {asked}: {environments} environments meet after whole rollouts of "
            f"{settings.algorithm.rollout_length} steps, every {schedule.steps * environments} agent steps"]


def rising(settings: Settings) -> list[str]:
    """Returns one line per number that would rise instead of fall. Usually only its start value was lowered."""
    unused = ineffective(settings, atari=True)
    learning, entropy, clip = settings.algorithm, settings.actor_critic, settings.ppo
    return [f"{flag(name)} rises, from {start:g} to the {end:g} of {flag(name)}-final"
            for name, start, end in (("learning_rate", learning.learning_rate, learning.learning_rate_final),
                                     ("entropy_coef", entropy.entropy_coef, entropy.entropy_coef_final),
                                     ("clip_range", clip.clip_range or 1.0, clip.clip_range_final))
            if end is not None and end > start and name not in unused]
