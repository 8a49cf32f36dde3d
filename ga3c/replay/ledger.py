"""The account of a replay: who is ahead, playing or training. Pure arithmetic, without a clock or a lock.

The intensity is how often a step is used: samples drawn over steps appended (after `start`). Whoever keeps it trains
while an update is due, and appends steps otherwise.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Ledger:
    """Steps appended and samples used so far, against the intensity that is asked for.

    start: steps before the first update. intensity: uses of a step.
    """

    start: int
    intensity: float
    appended: int = 0
    used: int = 0

    @property
    def owed(self) -> float:
        """Samples that training is behind; below 0 it is ahead."""
        return self.intensity * max(0, self.appended - self.start) - self.used

    def updates_due(self, batch: int) -> int:
        """Returns how many whole updates of `batch` samples are owed."""
        return max(0, int(self.owed // batch))
