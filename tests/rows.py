"""Rows of metrics, made up: one, and those of a whole run."""

from __future__ import annotations

from typing import Any

ROW: dict[str, Any] = {
    "time": 3 * 3600 + 25 * 60 + 7.9, "agent_steps": 123_456_789, "frames": 493_827_156, "episodes": 98_765,
    "trainings": 3_086_419, "pps": 12_345.6, "tps": 432.1, "agents": 128, "predictors": 2, "trainers": 3,
    "prediction_queue": 4, "training_queue": 57, "agent_deaths": 0, "prediction_batch": 63.9, "score": -21.0,
    "score_mean": -20.37, "training_batch": 41.8, "lag_mean": 6.4, "lag_p95": 19.0, "policy_loss": 0.1,
    "value_loss": 0.2, "entropy": 1.639, "learning_rate": 3e-4,
}


def rows(n: int, **of: Any) -> list[dict[str, Any]]:
    """A run of n seconds, 2,000 agent steps each; a list in `of` has a value for each row."""
    return [ROW | {"time": t + 1.0, "agent_steps": 2000 * (t + 1), "frames": 8000 * (t + 1), "episodes": t // 10}
            | {name: value[t] if isinstance(value, list) else value for name, value in of.items()} for t in range(n)]
