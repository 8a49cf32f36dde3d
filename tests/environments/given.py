"""What environments may give instead of what Gymnasium says: `STEPS` and `RESETS` make it of a right answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Step = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


def _with(**changed: Any) -> Callable[[Step], Any]:
    """Changes parts of what `step` returned, by name."""
    return lambda step: tuple(changed.get(name, part) for name, part in zip(
        ("observation", "reward", "terminated", "truncated", "info"), step, strict=True))


STEPS: dict[str, Callable[[Step], Any]] = {
    "reward-list": _with(reward=[1.0]), "reward-float32": _with(reward=np.float32(1.0)),
    "reward-true": _with(reward=True),
    "reward-array": _with(reward=np.ones((1, 1))), "reward-none": _with(reward=None), "reward-text": _with(reward="1"),
    "reward-two": _with(reward=[1.0, 2.0]), "reward-ragged": _with(reward=[1.0, [2.0]]),
    "reward-complex": _with(reward=1j), "reward-nan": _with(reward=float("nan")), "reward-huge": _with(reward=10**400),
    "ends-int": lambda step: (*step[:2], int(step[2]), np.bool_(step[3]), step[4]),
    "ends-array": lambda step: (*step[:2], np.array([step[2]]), 0.0, step[4]),
    "ends-text": _with(terminated="no"), "ends-none": _with(truncated=None),
    "info-none": _with(info=None), "info-text": _with(info="none"), "info-bare": _with(info=object()),
    "four-values": lambda step: step[:4], "six-values": lambda step: (*step, 0), "no-values": lambda step: None,
    "list-of-five": list,
    "observation-shape": _with(observation=np.zeros(3, np.uint8)), "observation-none": _with(observation=None),
    "observation-float": _with(observation=np.zeros(2)), "observation-text": _with(observation="ab"),
    "observation-list": _with(observation=[1, 2]), "observation-dict": _with(observation={"a": 1}),
}
RESETS: dict[str, Callable[[tuple], Any]] = {
    "no-info": lambda both: both[0], "info-number": lambda both: (both[0], 7), "three": lambda both: (*both, 0)}
