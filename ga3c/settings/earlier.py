"""Settings of versions before 0.9: renamed settings, removed settings, and old behaviour that is now a setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED: Mapping[str, str] = {
    "t_max": "rollout_length", "learning_rate_end": "learning_rate_final", "beta": "entropy_coef",
    "beta_end": "entropy_coef_final", "value_loss_factor": "value_coef", "gradient_clip_norm": "max_grad_norm",
}
"""Setting names of versions before 0.9, each with its current name."""

BEHAVIOUR_BEFORE_0_9: Mapping[str, Any] = {
    "normalize_observations": False, "normalize_rewards": False, "contrast": False}
"""Settings that versions before 0.9 did not have, each with the value that matches their behaviour."""

REMOVED: Mapping[str, str] = {
    "agents_per_process": "every agent is a process of its own; envs_per_agent sets how many environments it steps",
}
"""Settings removed in 0.9, each with its replacement."""

ALGORITHM_BEFORE_0_9: Mapping[str, Any] = {"algorithm": "a3c", "passes": 1, "minibatches": 1}
"""The only algorithm of versions before 0.9, as settings."""


def current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translates values by setting of version 0.8: renames settings and leaves removed ones out."""
    return {RENAMED.get(name, name): value for name, value in values.items() if name not in REMOVED}
