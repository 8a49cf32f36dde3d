"""Policy lag: the age of samples when they are trained on, in updates and in milliseconds, in two parts.

In flight: from the request for a step's prediction until its rollout is submitted. Queued: from the submission until
the update begins. Lag in updates is divided at the rollout's last prediction instead, one step earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ga3c.transport.slots import Batch

EDGES: dict[str, tuple[float, ...]] = {
    "updates": (*range(17), 20, 24, 32, 48, 64, 96, 128, 256), "ms": (0, *(2**power for power in range(17)))}
"""Lower edges of a histogram's bins, by unit; the last bin has no upper edge."""


class Lag(NamedTuple):
    """The lag of n samples; a sample is one step of all environments of an agent.

    `updates` (n,) is `in_flight` + `queued`, int64. Milliseconds are (m,) float64; m = 0 if no times were taken, as in
    serial mode.
    """

    updates: NDArray[np.int64]
    in_flight: NDArray[np.int64]
    queued: NDArray[np.int64]
    in_flight_ms: NDArray[np.float64]
    queued_ms: NDArray[np.float64]


_NO_UPDATES, _NO_MS = np.zeros(0, np.int64), np.zeros(0)
NOTHING = Lag(_NO_UPDATES, _NO_UPDATES, _NO_UPDATES, _NO_MS, _NO_MS)


def measure(batch: Batch, version: int, now: float) -> Lag:
    """Returns the lag of all filled rows of `batch`.

    Args:
        version: of the model before the update.
        now: when the update began, in monotonic seconds.
    """
    rollout, row = np.nonzero(batch.filled[:, :, 0])
    last = batch.version[np.arange(len(batch)), np.maximum(batch.steps - 1, 0)][rollout]
    made, timed = batch.version[rollout, row], (batch.requested_at[:, 0] > 0.0)[rollout]
    submitted = batch.submitted_at[rollout]
    return Lag(version - made, last - made, version - last,
               1e3 * (submitted - batch.requested_at[rollout, row])[timed], 1e3 * (now - submitted)[timed])


def join(lags: list[Lag]) -> Lag:
    """Concatenates the samples of all `lags`."""
    return Lag(*map(np.concatenate, zip(NOTHING, *lags, strict=True)))


def columns(lag: Lag) -> dict[str, float | None]:
    """Returns the means and the 95th percentile for a row of metrics; None where there is no sample."""
    p95 = float(np.percentile(lag.updates, 95)) if len(lag.updates) else None
    return {"lag_mean" if name == "updates" else f"lag_{name}": round(float(values.mean()), 3) if len(values) else None
            for name, values in lag._asdict().items()} | {"lag_p95": p95}


def unit(name: str) -> str:
    """Returns the unit of a field of `Lag`: "updates" or "ms"."""
    return "ms" if name.endswith("_ms") else "updates"


def histograms(lag: Lag) -> dict[str, NDArray[np.int64]]:
    """Counts the samples in each bin of `EDGES`, int64, for each field of `Lag`. Values below 0 are in no bin."""
    return {name: np.histogram(values, [*EDGES[unit(name)], np.inf])[0] for name, values in lag._asdict().items()}


def sum_histograms(events: list[dict[str, Any]]) -> dict[str, NDArray[np.int64]]:
    """Sums the histograms in the `lag` events among `events`; leaves out malformed ones."""
    sums = {name: np.zeros(len(EDGES[unit(name)]), np.int64) for name in Lag._fields}
    for event in events:
        for name, total in sums.items():
            counts = event.get(name) if event["event"] == "lag" else None
            if isinstance(counts, list) and len(counts) == len(total) and all(
                    type(count) is int and 0 <= count < 2**40 for count in counts):
                total += np.array(counts, np.int64)
    return sums
