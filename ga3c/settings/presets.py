"""Starting values by name, one preset for each paper: what `--preset` chooses from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "paper": {
        "envs_per_agent": 1, "agents": 32, "predictors": 2, "trainers": 2, "agent_nice": 0,
        "prediction_batch_min": 1, "prediction_batch_max": 128, "training_batch_min": 40, "slots_per_agent": 4,
        "rollout_length": 5, "gamma": 0.99, "reward_clip": 1.0, "learning_rate": 3e-4, "learning_rate_final": None,
        "entropy_coef": 0.01, "entropy_coef_final": None, "log_epsilon": 1e-6, "value_coef": 0.5,
        "gae_lambda": 1.0, "normalize_advantages": False, "correction": "none", "loss_reduction": "sum",
        "optimizer": "rmsprop", "rmsprop_decay": 0.99, "rmsprop_epsilon": 0.1, "max_grad_norm": 0.0,
        "frame_skip": 4, "noop_max": 30, "sticky_actions": 0.0, "life_loss": False, "fire_reset": False,
        "network": "auto", "precision": "float32", "controller": "paper", "max_lag": None, "drop_stale": False,
        "window": 60.0, "temperature": 0.0,
    },
}
"""Values by setting, over the defaults."""

RENAMED: Mapping[str, str] = {
    "t_max": "rollout_length", "learning_rate_end": "learning_rate_final", "beta": "entropy_coef",
    "beta_end": "entropy_coef_final", "value_loss_factor": "value_coef", "gradient_clip_norm": "max_grad_norm",
}
"""Names of versions before 0.9, and what they are called now."""

REMOVED: Mapping[str, str] = {
    "agents_per_process": "every agent is a process of its own; envs_per_agent sets how many environments it steps",
}
"""Settings of versions before 0.9 that are gone, and what takes their place."""
