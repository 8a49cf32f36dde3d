"""What limits a run: judged from numbers made up, and from runs made slow on purpose."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ga3c.verdict import averages, verdict

HEALTHY = {"cpu_agents": 2.2, "cpu_server": 1.6, "cpu_machine": 3.9, "wait_ms": 5.0, "slot_wait_ms": 0.5,
           "play_ms": 1.5, "queue_ms": 2.0, "service_ms": 2.0, "reply_ms": 1.0, "predict_ms": 1.5,
           "predictor_busy": 0.5, "trainer_busy": 0.5, "gather_ms": 2.0, "update_ms": 20.0}
IDLE = {**HEALTHY, "cpu_agents": 0.6, "cpu_server": 0.9, "cpu_machine": 1.6}


@pytest.mark.parametrize(("numbers", "limit"), [
    pytest.param(HEALTHY, "environments", id="full, agents most"),
    pytest.param({**HEALTHY, "cpu_agents": 1.0, "cpu_server": 2.8}, "device", id="full, model most"),
    pytest.param({**HEALTHY, "cpu_agents": 1.2, "cpu_server": 1.0}, "other load", id="full, others"),
    pytest.param({**IDLE, "play_ms": 20.0}, "environments", id="idle, agents play"),
    pytest.param({**IDLE, "slot_wait_ms": 30.0, "trainer_busy": 0.97}, "device", id="idle, slow updates"),
    pytest.param({**IDLE, "slot_wait_ms": 30.0, "trainer_busy": 0.97, "gather_ms": 40.0}, "trainers", id="slow gather"),
    pytest.param({**IDLE, "slot_wait_ms": 30.0}, "transport", id="idle, slots"),
    pytest.param({**IDLE, "wait_ms": 30.0, "predictor_busy": 0.95}, "device", id="idle, slow predictions"),
    pytest.param({**IDLE, "wait_ms": 30.0, "predictor_busy": 0.95, "predict_ms": 0.3}, "predictors", id="idle, busy"),
    pytest.param({**IDLE, "wait_ms": 30.0}, "transport", id="idle, nobody busy"),
])
def test_the_part_that_holds_the_others_up_is_named(numbers: dict[str, float], limit: str) -> None:
    assert verdict(numbers, cores=4).limit == limit


numbers = st.fixed_dictionaries({name: st.floats(0, 1 if name.endswith("_busy") else 1e4) for name in HEALTHY})


@given(numbers, st.integers(1, 256))
def test_every_run_gets_one_printable_line(measured: dict[str, float], cores: int) -> None:
    line = str(verdict(measured, cores))
    assert line.isprintable() and "nan" not in line


def test_averages_leave_out_what_a_second_did_not_measure_and_are_none_without_any() -> None:
    rows: list[dict[str, Any]] = [HEALTHY, {**HEALTHY, "update_ms": None}, {**HEALTHY, "update_ms": 40.0}]
    assert averages(rows) == pytest.approx({**HEALTHY, "update_ms": 30.0})
    assert averages([{**HEALTHY, "wait_ms": None}]) is None and averages([]) is None
