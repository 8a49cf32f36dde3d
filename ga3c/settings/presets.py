"""The presets that `--preset` chooses from: starting values by name, for papers, systems and aims.

fast: the most steps a second around one model. quality: the most learned from each step, compared on three games.
paper, ga3c: GA3C (Babaeizadeh et al., 2017). a3c-cpu: the baseline of GA3C, Asynchronous Methods for Deep
Reinforcement Learning (Mnih et al., 2016). accelerated-a2c, -ppo, -appo: Stooke and Abbeel, Accelerated Methods for
Deep Reinforcement Learning (2018). cule: Dalton et al., Accelerating Reinforcement Learning through GPU Atari
Emulation (2020), the fastest row of 120 environments in table 3; cule-ppo: its PPO. dqn: Roderick et al., Implementing
the Deep Q-Network (2017). fast-dqn: Daley and Amato, Human-Level Control without Server-Grade Hardware (2021).
accelerated-dqn, -c51, -rainbow: Stooke and Abbeel. pqn: Gallici et al., Simplifying Deep Temporal Difference Learning
(2024). value: the best score per hour from a replay here. A value that a paper does not give comes from its published
code; of those with a replay from Mnih et al., Human-level control through deep reinforcement learning (2015).

accelerated-a2c and accelerated-ppo depend on the number of environments, see `values_by_size`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ga3c.settings.algorithms import facts
from ga3c.settings.schema import AlgorithmSettings, Settings

_ONE_PASS: Mapping[str, Any] = {"passes": 1, "minibatches": 1}
_ATARI: Mapping[str, Any] = {
    "frame_skip": 4, "noop_max": 30, "sticky_actions": 0.0, "life_loss": False, "fire_reset": False,
    "gamma": 0.99, "reward_clip": 1.0, "loss_reduction": "mean", "normalize_advantages": False, "precision": "float32",
    "contrast": False,
}
_GA3C: Mapping[str, Any] = {
    **_ONE_PASS, "algorithm": "a3c", "envs_per_agent": 1, "agents": 32, "predictors": 2, "trainers": 2, "agent_nice": 0,
    "prediction_batch_min": 1, "prediction_batch_max": 128, "training_batch_min": 40, "slots_per_agent": 4,
    "rollout_length": 5, "gamma": 0.99, "reward_clip": 1.0, "learning_rate": 3e-4, "learning_rate_final": None,
    "entropy_coef": 0.01, "entropy_coef_final": None, "log_epsilon": 1e-6, "value_coef": 0.5,
    "gae_lambda": 1.0, "normalize_advantages": False, "correction": "none", "loss_reduction": "sum",
    "optimizer": "rmsprop", "rmsprop_decay": 0.99, "rmsprop_epsilon": 0.1, "max_grad_norm": 0.0,
    "frame_skip": 4, "noop_max": 30, "sticky_actions": 0.0, "life_loss": False, "fire_reset": False,
    "contrast": False, "network": "auto", "precision": "float32",
    "controller": "paper", "max_lag": None, "window": 60.0,
}
_ACCELERATED: Mapping[str, Any] = {
    **_ATARI, "life_loss": True, "fire_reset": True, "network": "small", "random_start_steps": 2000,
    "entropy_coef": 0.01, "entropy_coef_final": None,
}
_PPO: Mapping[str, Any] = {
    **_ACCELERATED, "agents": 2, "envs_per_agent": 4, "rollout_length": 256, "passes": 4, "minibatches": 4,
    "optimizer": "adam", "adam_epsilon": 1e-5, "gae_lambda": 0.95, "clip_range": 0.2, "value_coef": 1.0,
    "anneal_steps": 50_000_000,
}

# From Mnih et al. (2016): workers with one environment each, t_max, one set of RMSProp statistics for all and its
# decay, gamma, entropy weight, the network, no correction of the lag, 16 workers on 16 cores (here one per core).
# From the preset ga3c, so that only the schedule differs: RMSProp's epsilon, a constant learning rate (Mnih et al.:
# falling to 0), value_coef, log_epsilon, the games' settings. Our own: slots, so that no agent waits to be counted.
_A3C_CPU: Mapping[str, Any] = {
    **{name: value for name, value in _GA3C.items() if name not in (
        "predictors", "trainers", "prediction_batch_min", "prediction_batch_max", "training_batch_min", "controller",
        "window")},
    "algorithm": "a3c-cpu", "agents": None, "slots_per_agent": 8, "dynamic": False,
}

# Nature's table. Its RMSProp has the sum of 32 gradients and an epsilon of 0.01: with their mean that is 0.01 / 32^2.
_NATURE: Mapping[str, Any] = {
    **_ATARI, **_ONE_PASS, "algorithm": "dqn", "schedule": "standard", "agents": 1, "envs_per_agent": 1,
    "rollout_length": 4, "training_batch_min": 32, "network": "nature", "optimizer": "rmsprop-centred",
    "learning_rate": 2.5e-4, "learning_rate_final": None, "rmsprop_decay": 0.95, "rmsprop_epsilon": 0.01 / 32**2,
    "max_grad_norm": 0.0, "epsilon": 1.0, "epsilon_final": 0.1, "epsilon_steps": 1_000_000, "epsilon_evaluation": 0.05,
    "replay_size": 1_000_000, "replay_start": 50_000, "intensity": 8.0, "target_steps": 40_000, "n_step": 1,
    "double": False, "dueling": False, "priority_alpha": 0.0, "life_loss": True,
}
_ACCELERATED_DQN: Mapping[str, Any] = {
    **_NATURE, "schedule": "synchronised", "agents": 2, "envs_per_agent": 8, "training_batch_min": 512,
    "fire_reset": True, "anneal_steps": 50_000_000,
}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "fast": {
        "algorithm": "a3c", "correction": "vtrace", "schedule": "queues", "envs_per_agent": 16, "slots_per_agent": 2,
        "rollout_length": 20, "training_batch_min": 320, **_ONE_PASS, "optimizer": "adam",
        "learning_rate": 7e-4, "learning_rate_final": 3e-5, "entropy_coef": 0.02, "entropy_coef_final": 1e-3,
        "gamma": 0.99, "gae_lambda": 0.95, "value_coef": 0.5, "max_grad_norm": 0.5, "normalize_advantages": True,
        "loss_reduction": "mean", "life_loss": False, "contrast": False, "network": "auto", "precision": "auto",
    },
    "quality": {
        "algorithm": "appo", "schedule": "queues", "dynamic": False, "agents": 2, "envs_per_agent": 8,
        "rollout_length": 128, "training_batch_min": 2048, "passes": 3, "minibatches": 8, "optimizer": "adam",
        "learning_rate": 1e-3, "learning_rate_final": 1e-4, "clip_range": 0.1, "clip_range_final": 0.01,
        "entropy_coef": 0.01, "entropy_coef_final": None, "gamma": 0.99, "gae_lambda": 0.95, "value_coef": 0.5,
        "max_grad_norm": 0.5, "normalize_advantages": True, "loss_reduction": "mean", "life_loss": True,
        "network": "nature",
    },
    "paper": _GA3C,
    "ga3c": _GA3C,
    "a3c-cpu": _A3C_CPU,
    "accelerated-a2c": {
        **_ACCELERATED, **_ONE_PASS, "algorithm": "a2c", "schedule": "alternating", "agents": 2, "envs_per_agent": 8,
        "rollout_length": 5, "optimizer": "rmsprop", "learning_rate": 7e-4, "learning_rate_final": None,
        "rmsprop_decay": 0.9, "rmsprop_epsilon": 1e-6, "gae_lambda": 1.0, "value_coef": 0.25, "max_grad_norm": 0.5,
    },
    "accelerated-ppo": {
        **_PPO, "algorithm": "ppo", "schedule": "alternating", "learning_rate": 1e-3, "learning_rate_final": 0.0,
        "clip_range_final": 0.0, "max_grad_norm": 0.0,
    },
    "accelerated-appo": {
        **_PPO, "algorithm": "appo", "schedule": "queues", "dynamic": False, "training_batch_min": 2048,
        "learning_rate": 2.5e-4, "learning_rate_final": None, "clip_range_final": None, "max_grad_norm": 0.5,
    },
    "cule": {
        **_ATARI, **_ONE_PASS, "algorithm": "a3c", "correction": "vtrace", "schedule": "multi-batch", "agents": 20,
        "envs_per_agent": 6, "rollout_length": 20, "update_groups": 20, "steps_per_update": 1,
        "optimizer": "rmsprop-pytorch", "learning_rate": 6.5e-4, "learning_rate_final": None, "rmsprop_decay": 0.99,
        "rmsprop_epsilon": 1e-5, "gae_lambda": 1.0, "value_coef": 0.5, "entropy_coef": 0.01,
        "entropy_coef_final": None, "max_grad_norm": 0.5, "network": "nature",
    },
    "cule-ppo": {
        **_ATARI, "algorithm": "ppo", "schedule": "synchronous", "agents": 16, "envs_per_agent": 16,
        "rollout_length": 4, "passes": 4, "minibatches": 4, "optimizer": "adam", "learning_rate": 5e-4,
        "learning_rate_final": None, "adam_epsilon": 1.5e-4, "clip_range": 0.1, "clip_range_final": None,
        "gae_lambda": 1.0, "value_coef": 0.25, "entropy_coef": 0.01, "entropy_coef_final": None, "max_grad_norm": 0.5,
        "normalize_advantages": True, "network": "nature",
    },
    "dqn": _NATURE,
    "fast-dqn": {
        **_NATURE, "schedule": "both", "agents": 8, "rollout_length": 10, "target_steps": 10_000, "fire_reset": True,
    },
    "accelerated-dqn": {
        **_ACCELERATED_DQN, "optimizer": "rmsprop-pytorch", "learning_rate": 7.5e-4, "rmsprop_epsilon": 1e-6,
    },
    "accelerated-c51": {
        **_ACCELERATED_DQN, "algorithm": "c51", "atoms": 51, "return_limit": 10.0, "optimizer": "adam",
        "learning_rate": 4.2e-4, "adam_epsilon": 0.01 / 512,
    },
    "accelerated-rainbow": {
        **_ACCELERATED_DQN, "algorithm": "c51", "atoms": 51, "return_limit": 10.0, "double": True, "dueling": True,
        "n_step": 3, "priority_alpha": 0.5, "priority_beta": 0.4, "priority_beta_final": 1.0, "optimizer": "adam",
        "learning_rate": 6.25e-5, "adam_epsilon": 0.005 / 512, "target_steps": 8_000, "replay_start": 20_000,
        "epsilon_final": 0.01, "epsilon_steps": 62_500, "max_grad_norm": 10.0,
    },
    "pqn": {
        "algorithm": "pqn", "schedule": "alternating", "agents": 4, "envs_per_agent": 16, "rollout_length": 32,
        "passes": 2, "minibatches": 8, "optimizer": "adam", "adam_epsilon": 1e-5, "learning_rate": 5e-4,
        "learning_rate_final": 5e-5, "anneal_steps": 10_000_000, "max_grad_norm": 10.0, "gamma": 0.99,
        "td_lambda": 0.65, "epsilon": 1.0, "epsilon_final": 0.01, "epsilon_steps": 1_000_000, "network": "auto",
        "layer_norm": True, "precision": "auto", "reward_clip": 1.0, "life_loss": True, "frame_skip": 4, "noop_max": 30,
        "sticky_actions": 0.0, "fire_reset": False,
    },
    "value": {
        "algorithm": "dqn", "schedule": "queues", "dynamic": False, "agents": 4, "envs_per_agent": 16,
        "rollout_length": 4, "slots_per_agent": 4, "training_batch_min": 256, "passes": 1, "minibatches": 1,
        "optimizer": "adam", "adam_epsilon": 4e-5, "learning_rate": 2.5e-4, "learning_rate_final": None,
        "max_grad_norm": 10.0, "gamma": 0.99, "epsilon": 1.0, "epsilon_final": 0.01, "epsilon_steps": 200_000,
        "replay_size": 200_000, "replay_start": 10_000, "intensity": 4.0, "target_steps": 8_000, "n_step": 3,
        "double": True, "priority_alpha": 0.0, "reward_clip": 1.0, "life_loss": True,
    },
}
"""Values by setting, which override the defaults."""


def starting_values(preset: str | None, algorithm: str) -> Mapping[str, Any]:
    """Returns the starting values by setting: the named preset, or else those that the algorithm starts from.

    Algorithms of one pass start with `fast`, `pqn` with its own preset. Those that do not correct for lag get a
    schedule without lag.
    """
    if preset is not None:
        return PRESETS[preset]
    without_lag = {} if facts(algorithm).corrects_lag else {"schedule": "alternating"}
    return {**PRESETS[facts(algorithm).begins], **without_lag}


def notes_on_beginning(given: Mapping[str, Any]) -> list[str]:
    """Returns a line if an algorithm without a preset brings starting values. given: the user's values by setting.

    A complete file names the preset `default` beside them, as Python's `train` writes it. Most of the values show it.
    """
    name, preset = given.get("algorithm", ""), given.get("preset")
    usual = Settings().flat()
    begins = {each: value for each, value in starting_values(None, name).items()
              if each != "algorithm" and value != usual[each]}
    held = sum(given.get(each) == value for each, value in begins.items())
    if not begins or preset is not None and (preset != "default" or 2 * held <= len(begins)):
        return []
    what = [text for text, holds in ((f"the values of --preset {facts(name).begins}", facts(name).begins != "default"),
                                     ("--schedule alternating", not facts(name).corrects_lag)) if holds]
    return [f"--algorithm {name} begins with {' and '.join(what)}; --preset default would leave all other values"]


def notes_on_steps(settings: AlgorithmSettings) -> list[str]:
    """Returns a warning if an algorithm without clipping or lag correction makes several optimizer steps per batch."""
    name, steps = settings.algorithm, settings.passes * settings.minibatches
    if facts(name).corrects_lag or not facts(name).one_pass or steps == 1:
        return []
    return [f"{name} makes {steps} steps with each batch, and nothing holds them near the policy that played it: it "
            "may not learn. --passes 1 --minibatches 1 makes one; --algorithm ppo holds them back."]


def notes_on_lag(settings: Settings) -> list[str]:
    """Returns a warning if the schedule has policy lag and the algorithm does not correct for it."""
    algorithm = settings.algorithm.algorithm
    if facts(algorithm).corrects_lag or not settings.schedule.lags:
        return []
    return [f"{algorithm} does not correct for policy lag, which --schedule {settings.batching.schedule} has: it may "
            "not learn. "
            "--schedule alternating has none; --algorithm appo corrects for it."]


def values_by_size(preset: str, environments: int, rollout_length: int) -> Mapping[str, Any]:
    """Returns a preset's values that depend on the number of environments, by setting (Stooke and Abbeel, 2018).

    A2C's batch grows with the environments, from 80 steps; its learning rate grows with the square root of the batch,
    up to 3e-3. PPO's batch stays 2,048 steps, so its rollouts become shorter, from 256 down to 4.
    """
    if preset == "accelerated-a2c":
        growth = max(1.0, environments * rollout_length / 80)
        return {"learning_rate": min(3e-3, 7e-4 * math.sqrt(growth))}
    if preset == "accelerated-ppo":
        return {"rollout_length": min(256, max(4, 2048 // environments))}
    return {}
