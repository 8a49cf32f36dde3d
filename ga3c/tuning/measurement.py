"""The measurements of the controller: seconds of training, and windows of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple

from pydantic import ConfigDict, Field

CHECKED = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
"""How states are checked when they come back from a checkpoint."""

Count = Annotated[int, Field(ge=1)]
Setting = tuple[Count, Count, Count]
"""N_A, N_P, N_T."""


def name(setting: Sequence[int]) -> str:
    """Returns N_A/N_P/N_T, as `--start` takes it."""
    return "/".join(map(str, setting))


class Measurement(NamedTuple):
    """One second of training, which ended `time` seconds into the run.

    A `void` second says nothing about a setting. Workers were starting or leaving, an agent died, a checkpoint was
    written, or the second was too long.
    """

    time: float
    rate: float
    """Agent steps collected and trained per second; each counts once, whatever the passes."""
    lag: float
    """Mean policy lag in updates, each of all its passes."""
    prediction_queue: float
    """Tickets that wait for a predictor."""
    training_queue: float
    """Tickets that wait for a trainer."""
    void: bool
    external_load: float = 0.0
    """Share of all cores that other programs took."""
    idle: float = 1.0
    """Share of all cores that were idle. 1 where the model has a device of its own, or idle cores were not measured."""
    agent_start_seconds: float = 0.0
    """Median seconds from starting an agent to its first step, as measured so far. 0 if no agent was started."""


class Second(NamedTuple):
    """The fields of a measurement that a window keeps."""

    rate: float
    lag: float
    prediction_queue: float
    training_queue: float
    external_load: float
    idle: float


@dataclass
class Window:
    """Seconds measured at one setting. The last of them ended at `newest`."""

    __pydantic_config__: ClassVar[ConfigDict] = CHECKED

    seconds: list[Second] = field(default_factory=list)
    newest: float = 0.0

    def add(self, m: Measurement) -> None:
        """Appends one second."""
        self.seconds.append(Second(m.rate, m.lag, m.prediction_queue, m.training_queue, m.external_load, m.idle))
        self.newest = m.time

    def __len__(self) -> int:
        return len(self.seconds)

    def last(self, count: int) -> Window:
        """Returns a window of the newest `count` seconds."""
        return Window(self.seconds[-count:], self.newest)

    @property
    def mean(self) -> Second:
        """Returns the means of all fields, 0 if the window is empty."""
        if not self.seconds:
            return Second(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        return Second(*(math.fsum(column) / len(self) for column in zip(*self.seconds, strict=True)))

    def squares(self) -> float:
        """Returns the sum of the squared deviations of the rate from its mean."""
        mean = self.mean.rate
        return math.fsum((second.rate - mean) ** 2 for second in self.seconds)

    def deviation(self) -> float:
        """Returns the standard deviation of the rate of one second, 0 if there are fewer than two."""
        return math.sqrt(self.squares() / (len(self) - 1)) if len(self) > 1 else 0.0
