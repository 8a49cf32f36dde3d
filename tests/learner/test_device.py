"""`device.py`: how many threads an operation gets. What it does to TensorFlow only a process of its own can show."""

from __future__ import annotations

import pytest

from ga3c.learner.tensorflow import device
from ga3c.settings.files import configured


@pytest.mark.parametrize(("given", "threads"), [
    ({"passes": 1}, 4), ({"passes": 3}, 8), ({"device_threads": 2}, 2), ({"serial": True, "passes": 3}, 1),
    ({"preset": "a3c-cpu"}, 1)])
def test_half_the_cores_are_the_agents_unless_updates_take_several_passes(
        given: dict[str, object], threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "usable_cores", lambda: 8)
    assert device.operation_threads(configured(**given)) == threads


def test_one_core_is_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "usable_cores", lambda: 1)
    assert device.operation_threads(configured(passes=1)) == device.operation_threads(configured(passes=3)) == 1
