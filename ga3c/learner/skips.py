"""Updates that are not finite: they are skipped and counted, and too many in a row are divergence."""

from __future__ import annotations

from collections.abc import Mapping

SKIPS_MAX = 10  # updates in a row that were not finite, and skipped, before it counts as divergence


class Diverged(Exception):
    """Update after update is not finite. Each was skipped, but the weights lead nowhere."""


class Skips:
    """What was not finite and was skipped since the process began.

    updates: whole ones. minibatches: of updates that were made of their others. in_a_row: updates since the last one
    that was made. last: what was skipped last.
    """

    def __init__(self) -> None:
        self.updates = self.minibatches = self.in_a_row = 0
        self.last = ""

    def made(self, version: int, skipped: int) -> None:
        """An update was made, without so many minibatches."""
        self.in_a_row = 0
        self.minibatches += skipped
        if skipped:
            self.last = f"{skipped} minibatches of update {version} are not finite"

    def not_made(self, version: int, metrics: Mapping[str, float]) -> None:
        """The update that would have led to `version` was not. Raises Diverged if it ends `SKIPS_MAX` in a row."""
        self.updates += 1
        self.in_a_row += 1
        shown = ", ".join(f"{name} {value}" for name, value in metrics.items())
        self.last = f"update {version} is not finite: {shown}"
        if self.in_a_row == SKIPS_MAX:
            self.in_a_row = 0
            raise Diverged(f"{self.last}; a lower learning_rate or max_grad_norm helps")
