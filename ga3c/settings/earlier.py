"""Settings of versions before 0.9: renamed settings, removed settings, and old behaviour that is now a setting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RENAMED: Mapping[str, str] = {
    "t_max": "rollout_length", "learning_rate_end": "learning_rate_final", "beta": "entropy_coef",
    "beta_end": "entropy_coef_final", "value_loss_factor": "value_coef", "gradient_clip_norm": "max_grad_norm",
}
"""Names of versions before 0.9, and what they are called now."""

BEFORE: Mapping[str, Any] = {"normalize_observations": False, "normalize_rewards": False, "contrast": False}
"""Settings that versions before 0.9 did not have, and what they did."""

REMOVED: Mapping[str, str] = {
    "agents_per_process": "every agent is a process of its own; envs_per_agent sets how many environments it steps",
}
"""Settings of versions before 0.9 that are gone, and what takes their place."""

ONE_ALGORITHM: Mapping[str, Any] = {"algorithm": "a3c", "passes": 1, "minibatches": 1}
"""What they learned by."""


def current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Translates values by setting of version 0.8: renames settings and leaves removed ones out."""
    return {RENAMED.get(name, name): value for name, value in values.items() if name not in REMOVED}
