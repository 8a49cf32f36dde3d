"""What limits a run: judged from numbers made up, on simulated machines and in runs made slow on purpose."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from counting import CheckingModel
from hypothesis import given
from hypothesis import strategies as st
from simulated import EIGHT, GPU, TWO, Machine, profile

from ga3c.runs import reader as record
from ga3c.runs.recorder import Recorder
from ga3c.service.signals import Signals
from ga3c.service.supervisor import Service
from ga3c.settings.files import configured
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Slots
from ga3c.tuning.bottleneck import Diagnoser, averages, diagnose
from ga3c.tuning.measurement import Setting

HEALTHY = {"cpu_agents": 2.2, "cpu_server": 1.6, "cpu_machine": 3.9, "wait_ms": 5.0, "slot_wait_ms": 0.5,
           "play_ms": 1.5, "queue_ms": 2.0, "service_ms": 2.0, "reply_ms": 1.0, "predict_ms": 1.5,
           "predictor_busy": 0.5, "trainer_busy": 0.5, "gather_ms": 2.0, "update_ms": 20.0}
IDLE = {**HEALTHY, "cpu_agents": 0.6, "cpu_server": 0.9, "cpu_machine": 1.6}


@pytest.mark.parametrize(("numbers", "bottleneck"), [
    pytest.param(HEALTHY, "environments", id="full, agents most"),
    pytest.param({**IDLE, "play_ms": 20.0, "slot_wait_ms": 5.0, "trainer_busy": 0.99}, "device",
                 id="idle, agents play and updates hold them up"),
    pytest.param({**IDLE, "play_ms": 20.0, "slot_wait_ms": 1.0, "trainer_busy": 0.99}, "environments",
                 id="idle, agents play and updates just keep up"),
    pytest.param({**HEALTHY, "cpu_agents": 1.0, "cpu_server": 2.8}, "device", id="full, model most"),
    pytest.param({**HEALTHY, "cpu_agents": 1.2, "cpu_server": 1.0}, "external load", id="full, external load"),
    pytest.param({**HEALTHY, "cpu_agents": 1.6, "cpu_server": 1.5}, "external load", id="full, a fifth external"),
    pytest.param({**HEALTHY, "cpu_agents": 2.0, "cpu_server": 1.4}, "environments", id="full, an eighth external"),
    pytest.param({**HEALTHY, "cpu_agents": 1.2, "cpu_server": 1.0, "cpu_evaluator": 1.6}, "environments",
                 id="full, the run's own evaluator"),
    pytest.param({**IDLE, "play_ms": 20.0}, "environments", id="idle, agents play"),
    pytest.param({**IDLE, "slot_wait_ms": 30.0, "trainer_busy": 0.97}, "device", id="idle, slow updates"),
    pytest.param({**IDLE, "slot_wait_ms": 30.0, "trainer_busy": 0.97, "gather_ms": 40.0}, "trainers", id="slow gather"),
    pytest.param({**IDLE, "slot_wait_ms": 30.0}, "transport", id="idle, slots"),
    pytest.param({**IDLE, "slot_wait_ms": 30.0, "trainers": 2.0}, "device", id="idle, trainers take turns"),
    pytest.param({**IDLE, "wait_ms": 30.0, "predictor_busy": 0.95}, "device", id="idle, slow predictions"),
    pytest.param({**IDLE, "wait_ms": 30.0, "predictor_busy": 0.95, "predict_ms": 0.3}, "predictors", id="idle, busy"),
    pytest.param({**IDLE, "wait_ms": 30.0}, "transport", id="idle, nobody busy"),
])
def test_the_part_that_holds_the_others_up_is_named(numbers: dict[str, float], bottleneck: str) -> None:
    assert diagnose(numbers, cores=4, envs_per_agent=16).bottleneck == bottleneck


def test_the_ceiling_on_lag_is_named_where_more_agents_would_help() -> None:
    rows = [{**IDLE, "play_ms": 20.0, "agents": 5, "lag_mean": lag} for lag in (2.4, None, 2.8)]
    measured = averages(rows)
    assert measured is not None and measured["lag_of_one_more"] == pytest.approx(2.6 * 6 / 5)
    assert diagnose(measured, 4, 16, max_lag=3.0).bottleneck == "policy lag"
    assert "training_batch_min" in diagnose(measured, 4, 16, max_lag=3.0).advice
    assert diagnose(measured, 4, 16, max_lag=3.2).bottleneck == diagnose(measured, 4, 16).bottleneck == "environments"
    waiting = {**measured, "play_ms": 1.5, "wait_ms": 30.0}
    assert diagnose(waiting, 4, 16, max_lag=3.0).bottleneck == "policy lag"
    assert diagnose(waiting, 4, 16).bottleneck == "transport"
    busy = {**HEALTHY, "lag_of_one_more": measured["lag_of_one_more"]}
    assert diagnose(busy, 4, 16, max_lag=3.0).bottleneck == "environments", "no agent more would help"


def test_whose_agents_have_few_environments_is_told_of_more() -> None:
    assert "envs_per_agent" in diagnose(HEALTHY, 4, envs_per_agent=1).advice
    assert "envs_per_agent" not in diagnose(HEALTHY, 4, envs_per_agent=16).advice


@pytest.mark.parametrize(("numbers", "reason", "advice"), [
    pytest.param({"trainer_busy": 0.9}, "most of it for updates", "a GPU", id="updates all the time"),
    pytest.param({"trainer_busy": 0.9, "passes": 3.0}, "most of it for updates", "fewer passes, a GPU", id="passes"),
    pytest.param({"trainer_busy": 0.3}, "most of it for predictions", "a GPU", id="predictions"),
    pytest.param({"trainer_busy": 0.3, "predictor_busy": 0.2}, "most of it for updates", "a GPU", id="updates more")])
def test_where_the_model_fills_the_cores_the_half_that_takes_more_is_named(
        numbers: dict[str, float], reason: str, advice: str) -> None:
    found = diagnose({**HEALTHY, "cpu_agents": 1.0, "cpu_server": 2.8, **numbers}, 4, 16)
    assert found.bottleneck == "device" and found.reason.endswith(reason) and found.advice.startswith(advice)


@pytest.mark.parametrize(("cores", "bottleneck", "told"), [
    ((1.0, 0.9, 2.8), "rounds", "1.2 of 4 cores are idle"), ((1.0, 2.8, 3.9), "device", "the model takes 2.8; fewer"),
    ((2.2, 1.6, 3.9), "environments", "agents take 2.2"), ((1.2, 1.0, 3.9), "external load", "take 1.7 of 4")])
def test_in_rounds_where_there_is_no_predictor_the_cores_tell(
        cores: tuple[float, ...], bottleneck: str, told: str) -> None:
    row = {**HEALTHY, "predictor_busy": None,
           **dict(zip(("cpu_agents", "cpu_server", "cpu_machine"), cores, strict=True)),
           "agents": 4, "predictors": 0, "trainers": 1, "passes": 3.0}
    diagnoser = Diagnoser(4, 16, None)
    found = [diagnoser.observe(row) for _ in range(3)]
    assert found[:2] == [None, None] and found[2] is not None
    assert found[2].bottleneck == bottleneck and told in str(found[2])
    assert averages([{**row, "trainers": 0}]) is None, "of A3C on processors"


def test_with_a_replay_it_is_told_who_waits_for_the_intensity() -> None:
    behind = {**IDLE, "slot_wait_ms": 30.0, "trainer_busy": 0.99, "gather_ms": 1.0, "update_ms": 40.0, "intensity": 4.0}
    assert str(diagnose(behind, 4, 16)) == (
        "device: agents wait 30.0 ms a step for updates of 40 ms, 4.0 uses of each step; a lower intensity, more "
        "device_threads, a GPU or a smaller network")
    ahead = diagnose({**IDLE, "play_ms": 20.0, "slot_wait_ms": 0.0, "trainer_busy": 0.3, "intensity": 4.0}, 4, 16)
    assert (ahead.bottleneck, ahead.advice) == ("environments", "more agents")
    full = diagnose({**HEALTHY, "cpu_agents": 1.0, "cpu_server": 2.8, "intensity": 4.0}, 4, 16)
    assert full.bottleneck == "device" and full.advice.startswith("a lower intensity")


numbers = st.fixed_dictionaries({name: st.floats(0, 1 if name.endswith("_busy") else 1e4) for name in HEALTHY})


@given(numbers, st.integers(1, 256), st.integers(1, 64))
def test_every_run_gets_one_printable_line(measured: dict[str, float], cores: int, envs: int) -> None:
    line = str(diagnose(measured, cores, envs))
    assert line.isprintable() and "nan" not in line


def test_averages_leave_out_what_was_not_measured() -> None:
    rows: list[dict[str, Any]] = [HEALTHY, {**HEALTHY, "update_ms": None}, {**HEALTHY, "update_ms": 40.0}]
    usual = {"cpu_evaluator": 0.0, "lag_of_one_more": 0.0, "predictors": 1.0, "trainers": 1.0, "passes": 1.0,
             "prediction_batch": 32.0}
    assert averages(rows) == pytest.approx({**HEALTHY, **usual, "update_ms": 30.0})
    assert averages([{**HEALTHY, "trainers": 2, "predictors": 1, "passes": 3.0, "prediction_batch": None}, {
        **HEALTHY, "cpu_evaluator": 1.0, "trainers": 3, "predictors": 4, "prediction_batch": 8.0}]) == pytest.approx(
        {**HEALTHY, **usual, "cpu_evaluator": 0.5, "trainers": 2.5, "predictors": 2.5, "passes": 3.0,
         "prediction_batch": 8.0})
    assert averages([{**HEALTHY, "wait_ms": None}]) is None and averages([]) is None


def test_a_diagnosis_is_of_the_last_ten_seconds() -> None:
    diagnoser, same = Diagnoser(4, 16, None), {"agents": 4, "predictors": 1, "trainers": 1}
    waiting, playing = ({**IDLE, **same, name: 30.0} for name in ("wait_ms", "play_ms"))
    for _ in range(20):
        diagnoser.observe(waiting)
    mixed = diagnoser.observe(playing)
    assert mixed is not None and mixed.bottleneck == "transport"
    found = [diagnoser.observe(playing) for _ in range(9)]
    assert found[-1] == diagnose(averages([playing]) or {}, 4, 16) != found[-2]


# ------------------------------------------------------------------------------------------------ simulated machines

CHEAP = 90e-6  # seconds of an environment's step, as our own emulator's


def judged(m: Machine, setting: tuple[int, int, int], cores_taken: int = 0,
           max_lag: float | None = None) -> tuple[str, str, float]:
    """(bottleneck, advice, agent steps/s) of a simulated run."""
    bottleneck, _, advice, rate = diagnosed(m, setting, cores_taken, max_lag)
    return bottleneck, advice, rate


def diagnosed(m: Machine, setting: tuple[int, int, int], cores_taken: int = 0,
              max_lag: float | None = None) -> tuple[str, str, str, float]:
    """(bottleneck, reason, advice, agent steps/s) of a simulated run."""
    row = profile(m, setting, cores_taken=cores_taken)
    measured = averages([row])
    assert measured is not None
    found = diagnose(measured, m.cores, m.envs, max_lag)
    return found.bottleneck, found.reason, found.advice, row["steps_per_second"]


@pytest.mark.parametrize(("slow", "setting", "bottleneck", "advice", "most", "better"), [
    pytest.param(EIGHT._replace(step=5e-3), (4, 1, 1), "environments", "more agents", 128, (8, 1, 1), id="games"),
    pytest.param(EIGHT._replace(observation=9e-4), (16, 1, 1), "device", "more predictors", 128, (16, 2, 1),
                 id="predictions, idle cores"),
    pytest.param(GPU._replace(step=CHEAP), (8, 1, 1), "device", "more agents", 128, (16, 1, 1),
                 id="small predictions on a GPU"),
    pytest.param(GPU._replace(call=8e-3), (48, 1, 1), "predictors", "a larger prediction_batch_max", 1024, (48, 1, 1),
                 id="calls")])
def test_who_follows_the_advice_on_a_simulated_machine_is_faster(
        slow: Machine, setting: Setting, bottleneck: str, advice: str, most: int, better: Setting) -> None:
    found, said, rate = judged(slow, setting)
    assert found == bottleneck and said.startswith(advice)
    assert judged(slow._replace(most=most), better)[2] > 1.15 * rate


@pytest.mark.parametrize(("simulated", "setting", "reason", "advice", "gain"), [
    pytest.param(TWO._replace(step=CHEAP), (4, 1, 1), "most of it for updates", "a GPU", 1.15, id="2 cores"),
    pytest.param(TWO._replace(step=CHEAP, passes=3), (4, 1, 1), "an update takes", "fewer passes", 1.8,
                 id="2 cores, three passes"),
    pytest.param(GPU._replace(step=CHEAP, passes=3), (32, 2, 1), "updates are under way", "fewer passes", 1.5,
                 id="GPU, three passes")])
def test_with_cheap_environments_or_several_passes_updates_are_named(
        simulated: Machine, setting: Setting, reason: str, advice: str, gain: float) -> None:
    bottleneck, told, said, rate = diagnosed(simulated, setting)
    assert bottleneck == "device" and reason in told and said.startswith(advice)

    def cheaper(*names: str) -> float:
        return judged(simulated._replace(**{name: 0.5 * getattr(simulated, name) for name in names}), setting)[2]

    assert cheaper("train", "sample") > max(gain * rate, cheaper("predict", "observation"), cheaper("step"))


def test_other_programs_on_a_simulated_machine_are_told_from_its_own_load() -> None:
    full = EIGHT._replace(step=2e-3)
    assert judged(full, (24, 1, 1), cores_taken=4)[0] == "external load"
    assert judged(full, (24, 1, 1), cores_taken=1)[0] == "environments"


def test_the_ceiling_on_lag_is_named_on_a_simulated_machine() -> None:
    slow = EIGHT._replace(step=5e-3)
    lag = profile(slow, (4, 1, 1))["lag_mean"]
    assert judged(slow, (4, 1, 1), max_lag=1.2 * lag)[0] == "policy lag"
    assert judged(slow, (4, 1, 1), max_lag=1.3 * lag)[0] == "environments"


# ------------------------------------------------------------------------------------------------ runs made slow

@contextlib.contextmanager
def busy_cores(processes: int) -> Iterator[None]:
    """Other programs on all cores."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def slow(owner: Any, method: str, seconds: float) -> Any:
    """The method, so many seconds later."""
    right = getattr(owner, method)

    def slowed(*arguments: Any) -> Any:
        time.sleep(seconds)
        return right(*arguments)

    return slowed


@pytest.mark.slow
@pytest.mark.parametrize(("how", "bottleneck"), [
    ("a sleeping environment", "environments"), ("a heavy model that predicts", "device"),
    ("a heavy model that trains", "device"), ("busy cores", "external load"), ("few agents", "transport"),
    ("slow gathering", "trainers"), ("slow answers", "predictors"),
    ("a sleeping environment under a low ceiling", "policy lag")])
def test_a_run_made_slow_on_purpose_is_recognised(
        how: str, bottleneck: str, make_run: Callable[..., Recorder], interruption: Signals, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sleepy.py").write_text(
        "import time\nimport gymnasium\nfrom ga3c.envs.toys import Counting\n"
        "class Sleepy(Counting):\n    def step(self, action):\n        time.sleep(0.01)\n"
        "        return super().step(action)\n"
        "gymnasium.register('Sleepy-v0', Sleepy)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = CheckingModel()
    if how.startswith("a heavy model"):
        method = "predict" if how.endswith("predicts") else "update"
        monkeypatch.setattr(model, method, slow(model, method, 0.05))
    if how == "slow gathering":
        monkeypatch.setattr(Slots, "gather", slow(Slots, "gather", 0.05))
    if how == "slow answers":
        monkeypatch.setattr(Channel, "answer", slow(Channel, "answer", 0.05))
    ceiling = how.endswith("ceiling")
    settings = configured(
        game="sleepy:Sleepy-v0" if how.startswith("a sleeping") else "toy:counting", tensorboard=False,
        dynamic=ceiling, max_lag=0.15 if ceiling else None, minutes=0.15,
        agents=1 if how == "few agents" else 2, envs_per_agent=4, rollout_length=5, training_batch_min=40)
    run = make_run(settings)
    with busy_cores((os.cpu_count() or 1) * 2) if how == "busy cores" else contextlib.nullcontext():
        Service(settings, run, model, interruption).run()
    limits = Counter(row["bottleneck"] for row in record.rows(run.directory).new() if "bottleneck" in row)
    assert limits.most_common(1)[0][0] == bottleneck, limits
