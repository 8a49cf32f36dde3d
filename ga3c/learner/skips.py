"""Updates that are not finite: they are skipped and counted. Too many in a row are divergence."""

from __future__ import annotations

from collections.abc import Mapping

SKIPS_MAX = 10  # skipped updates in a row that count as divergence


class Diverged(Exception):
    """Too many updates in a row were not finite. Each was skipped, but training cannot continue from these weights."""


class Skips:
    """Counts of what was not finite and was skipped since the process began.

    updates: skipped updates. minibatches: skipped minibatches of updates that were made from the others. in_a_row:
    skipped updates since the last update made. last: a message about the last skip.
    """

    def __init__(self) -> None:
        self.updates = self.minibatches = self.in_a_row = 0
        self.last = ""

    def record_update(self, version: int, skipped: int) -> None:
        """Records an update that was made without `skipped` of its minibatches."""
        self.in_a_row = 0
        self.minibatches += skipped
        if skipped:
            self.last = f"{skipped} minibatches of update {version} are not finite"

    def record_skip(self, version: int, metrics: Mapping[str, float]) -> None:
        """Records that the update to `version` was skipped. Raises Diverged if it ends `SKIPS_MAX` in a row."""
        self.updates += 1
        self.in_a_row += 1
        shown = ", ".join(f"{name} {value}" for name, value in metrics.items())
        self.last = f"update {version} is not finite: {shown}"
        if self.in_a_row == SKIPS_MAX:
            self.in_a_row = 0
            raise Diverged(f"{self.last}; a lower learning_rate helps, or a lower max_grad_norm above 0")
