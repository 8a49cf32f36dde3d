"""Policy lag: where samples aged, in updates and milliseconds, and how the histograms of a run add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ga3c.envs.base import EnvSpec
from ga3c.runs.policy_lag import EDGES, NOTHING, Lag, histograms, join, measure, sum_histograms, unit
from ga3c.transport.slots import Batch, Slots


def batch(version: list[list[int]], steps: list[int], asked: list[list[float]],
          submitted: list[float]) -> Batch:
    spec = EnvSpec("a world", (1,), np.dtype("u1"), 2, 4)
    made = Slots(spec, len(version[0]), 2, 1).empty_batch(len(version))
    made.version[:], made.steps[:], made.requested_at[:], made.submitted_at[:] = version, steps, asked, submitted
    return made


def test_lag_is_divided_by_the_last_prediction_of_its_rollout() -> None:
    made = batch([[3, 4, 6], [5, 7, 999]], [3, 2], [[1.0, 1.1, 1.2], [1.4, 1.5, 99.0]], [1.3, 1.75])
    found = measure(made, 10, 2.0)
    assert found.updates.tolist() == [7, 6, 4, 5, 3]
    assert found.in_flight.tolist() == [3, 2, 0, 2, 0]
    assert found.queued.tolist() == [4, 4, 4, 3, 3]
    assert found.in_flight_ms == pytest.approx([300, 200, 100, 350, 250])
    assert found.queued_ms == pytest.approx([700, 700, 700, 250, 250])


def test_without_a_clock_there_are_no_milliseconds_and_of_nothing_no_lag() -> None:
    found = measure(batch([[3, 4]], [2], [[0.0, 0.0]], [0.0]), 4, 2.0)
    assert found.updates.tolist() == [1, 0] and not len(found.queued_ms) and not len(found.in_flight_ms)
    empty = measure(batch([[3, 4]], [0], [[1.0, 1.0]], [1.0]), 4, 2.0)
    assert all(len(values) == 0 for values in empty) and all(len(values) == 0 for values in join([]))


@given(st.lists(st.integers(0, 10_000), max_size=50), st.lists(st.floats(0, 1e9), max_size=50))
def test_histograms_of_parts_add_up_to_that_of_all(updates: list[int], ms: list[float]) -> None:
    whole = np.array(updates, np.int64)
    lag = Lag(whole, whole, whole, np.array(ms), np.array(ms))
    half = len(updates) // 2
    parts = [Lag(part, part, part, np.array(times), np.array(times))
             for part, times in ((whole[:half], ms[:half]), (whole[half:], ms[half:]))]
    events = [{"event": "lag"} | {name: counts.tolist() for name, counts in histograms(part).items()}
              for part in parts]
    for name, total in sum_histograms(events).items():
        assert total.sum() == len(updates if unit(name) == "updates" else ms)
        assert total.tolist() == histograms(join(parts))[name].tolist() == histograms(lag)[name].tolist()
        bin_of = np.digitize(getattr(lag, name), EDGES[unit(name)]) - 1
        assert np.bincount(bin_of, minlength=len(total)).tolist() == total.tolist()


@pytest.mark.parametrize("broken", [None, [1], [0.5] * 25, [2**60] * 25])
def test_what_is_no_histogram_is_left_out(broken: Any) -> None:
    good = {name: counts.tolist() for name, counts in histograms(NOTHING._replace(updates=np.array([3]))).items()}
    assert len(good["updates"]) == 25
    found = sum_histograms([{"event": "lag", **good}, {"event": "lag", "updates": broken}, {"event": "start", **good}])
    assert found["updates"].sum() == 1 and found["updates"][3] == 1
