"""The account of a replay: who is ahead, playing or training. Pure arithmetic, without a clock or a lock.

The intensity is how often a step is used: samples drawn over steps appended (after `start`). The ledger holds back
whoever is ahead by more than the slack: trainers that would use steps too often, agents whose steps would be used too
seldom.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Ledger:
    """Steps appended and samples used so far, against the intensity that is asked for.

    start: steps before the first update. intensity: uses of a step. slack: steps that playing may be ahead, and
    training behind, or the other way round. All count agent steps.
    """

    start: int
    intensity: float
    slack: int
    appended: int = 0
    used: int = 0

    @property
    def owed(self) -> float:
        """Samples that training is behind; below 0 it is ahead."""
        return self.intensity * max(0, self.appended - self.start) - self.used

    def may_play(self, steps: int) -> bool:
        """Returns whether so many steps more leave training behind by no more than the slack."""
        after = self.intensity * max(0, self.appended + steps - self.start) - self.used
        return self.appended < self.start or after <= self.intensity * self.slack

    def updates_due(self, batch: int) -> int:
        """Returns how many updates of `batch` samples are owed; each may put training ahead by less than a batch."""
        return max(0, int(self.owed // batch))

    def may_train(self, batch: int) -> bool:
        """Returns whether an update of `batch` samples leaves training ahead by no more than the slack."""
        return self.appended >= self.start and self.owed - batch >= -self.intensity * self.slack
