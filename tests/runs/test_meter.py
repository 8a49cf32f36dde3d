"""What the processes of a run take of the machine."""

from __future__ import annotations

import os
import time

import pytest

from ga3c.runs.meter import Meter


@pytest.mark.parametrize(("usable", "whole"), [(os.cpu_count() or 1, True), ((os.cpu_count() or 1) + 1, False)])
def test_of_a_machine_that_may_be_used_in_part_only_what_is_ours_counts(
        monkeypatch: pytest.MonkeyPatch, usable: int, whole: bool) -> None:
    monkeypatch.setattr("ga3c.runs.meter.usable_cores", lambda: usable)
    monkeypatch.setattr(Meter, "_busy", staticmethod(lambda: 1e6 * time.monotonic()))
    meter = Meter()
    meter._at, meter._machine = meter._at - 1.0, meter._machine - 1e6  # a second ago
    spent = meter.used([], None)
    assert spent["cpu_machine"] == (pytest.approx(1e6, rel=0.01) if whole else spent["cpu_server"])
