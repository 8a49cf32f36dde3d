"""A trial that is over: the decision, the reason, the measurements, and their text for users."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ga3c.tuning.measurement import Setting, Window, name


class Decision(Enum):
    """The decision on the setting of a trial."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    RETRY = "rejected for now"
    """The setting may be better. It is tried once more before it is accepted."""
    ABORTED = "aborted"
    """The setting could not be measured. Nothing is known about it."""

    @property
    def word(self) -> str:
        """Returns the word for records: accepted, rejected or aborted."""
        return "rejected" if self is Decision.RETRY else self.value


class Reason(Enum):
    """The reason why a trial ended as it did."""

    FASTER = "faster"
    NOT_SLOWER = "not slower, with fewer workers"
    NOT_FASTER = "not faster"
    NO_GAIN = "no gain that is worth a change"
    LAG_OVER_CEILING = "the policy lag is over its ceiling"
    LAG_LOWER = "the policy lag is lower, and was over its ceiling"
    LAG_NOT_LOWER = "the policy lag was over its ceiling, and is not lower"
    NOT_MEASURED = "no second without a disturbance"
    EXTERNAL_LOAD = "other programs took more or less of the cores"
    EVALUATION = "an evaluation began"
    FEWER_AGENTS = "fewer agents are allowed now"


Verdict = tuple[Decision, Reason]


class Trial(NamedTuple):
    """A trial that is over, with the measurements of the accepted setting before it and of its own setting."""

    before: Setting
    after: Setting
    baseline: Window
    window: Window
    decision: Decision
    reason: Reason

    @property
    def gain(self) -> float | None:
        """Returns the relative gain of the rate; None if there is nothing to compare."""
        before = self.baseline.mean.rate
        return self.window.mean.rate / before - 1 if before and self.window else None

    def brief(self) -> str:
        """Returns the text for the status line."""
        known = self.gain is not None and self.decision is not Decision.ABORTED
        return f"{name(self.after)} {self.decision.word}{f' {self.gain:+.0%}' if known else ''}"

    def explanation(self) -> str:
        """Returns the reason in words, with its numbers."""
        text, before, now = self.reason.value, self.baseline.mean, self.window.mean
        if self.reason in (Reason.LAG_OVER_CEILING, Reason.LAG_LOWER, Reason.LAG_NOT_LOWER):
            text += f": {now.lag:.1f} updates after {before.lag:.1f}"
        elif self.reason is Reason.EXTERNAL_LOAD:
            text += f": {now.external_load:.0%} after {before.external_load:.0%}"
        elif self.gain is not None and self.decision is not Decision.ABORTED:
            text += f": {self.gain:+.1%} in {len(self.window)} s"
        return text + (", to be tried once more" if self.decision is Decision.RETRY else "")
