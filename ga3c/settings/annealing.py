"""Numbers that change with the agent steps, as the learning rate."""

from __future__ import annotations

from typing import NamedTuple


class Annealed(NamedTuple):
    """A number that is `start` at first and `final` from `anneal_steps` agent steps on; None: it stays."""

    start: float
    final: float | None = None

    def at(self, progress: float) -> float:
        """Returns the number at this share of `anneal_steps`, linear in between."""
        return self.start if self.final is None else self.start + (self.final - self.start) * min(progress, 1.0)
