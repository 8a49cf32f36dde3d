"""Kernels: all agree, the fastest is taken, once; serial runs, other networks and a failure leave the usual one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batches import IMAGE, VECTOR

from ga3c.envs.base import EnvSpec
from ga3c.learner.tensorflow import kernels, loading
from ga3c.learner.tensorflow.kernels import Answers, Kernel, choose, fastest, measured, minibatch, usual
from ga3c.settings import remembered
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings

EIGEN, ONEDNN, BF16 = Kernel("eigen", "float32"), Kernel("onednn", "float32"), Kernel("onednn", "bfloat16")
SETTINGS = configured(game="Pong")


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what the processor has; at first AVX2 alone. Nothing is decided yet in this process."""
    def has(*flags: str) -> None:
        for where in (loading, kernels):
            monkeypatch.setattr(where, "processor_flags", lambda: frozenset(flags))

    monkeypatch.setattr(kernels, "fixed_library", lambda: None)
    has("avx2")
    return has


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> list[list[Kernel]]:
    """Instead of measuring, oneDNN is twice as fast, and bfloat16 four times; what was asked for is noted."""
    asked: list[list[Kernel]] = []

    def answer(settings: Settings, spec: EnvSpec, wanted: Sequence[Kernel], stop: Sequence[int]) -> dict[Kernel, float]:
        asked.append(list(wanted))
        return {kernel: {EIGEN: 400.0, ONEDNN: 200.0, BF16: 100.0}[kernel] for kernel in wanted}

    monkeypatch.setattr(kernels, "measured", answer)
    return asked


def chosen(settings: Settings = SETTINGS, spec: EnvSpec = IMAGE) -> tuple[Kernel, list[str]]:
    told: list[str] = []
    return choose(settings, spec, told.append), told


def test_all_kernels_agree_with_the_first_and_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one step of the optimizer: after many of them each kernel would have weights of its own."""
    monkeypatch.setattr(kernels, "DEADLINE", 200.0)
    small = configured(game="Pong", algorithm="appo", passes=6, minibatches=2, envs_per_agent=2, rollout_length=4,
                       training_batch_min=16, normalize_rewards=True)
    flags = Path("/proc/cpuinfo").read_text().split()
    wanted = [EIGEN, ONEDNN, *([BF16] if "avx512bw" in flags else [])]
    found = measured(small, IMAGE, wanted)
    assert list(found) == wanted and all(0 < us < 1e6 for us in found.values())


def test_what_differs_by_more_than_its_precision_does_not_agree() -> None:
    rng = np.random.default_rng(0)
    plain = Answers(*(rng.normal(size=99).astype(np.float32) for _ in range(2)))
    for number in range(2):
        for precision, by in (("float32", 1e-3), ("bfloat16", 0.2)):
            for factor, agrees in ((0.9, True), (1.1, False)):
                other = list(plain)
                other[number] = plain[number] * np.float32(1 + factor * by)
                assert Answers(*other).agree(plain, precision) is agrees
    assert not Answers(plain.outputs, plain.gradient * np.nan).agree(plain, "bfloat16")


@pytest.mark.parametrize(("us", "taken"), [
    ({EIGEN: 400.0, ONEDNN: 200.0}, ONEDNN), ({EIGEN: 100.0, ONEDNN: 104.0}, EIGEN),
    ({EIGEN: 100.0, ONEDNN: 102.0}, ONEDNN), ({EIGEN: 100.0, ONEDNN: 300.0, BF16: 102.0}, BF16),
    ({EIGEN: 100.0}, EIGEN), ({}, Kernel("onednn", "auto"))])
def test_the_fastest_is_taken_and_the_usual_library_where_it_is_as_fast(
        us: dict[Kernel, float], taken: Kernel) -> None:
    assert fastest(us, Kernel("onednn", "auto")) == taken


def test_it_is_measured_once_and_again_if_asked_for(bench: list[list[Kernel]], processor: Callable[..., None]) -> None:
    kernel, told = chosen()
    assert kernel == ONEDNN and bench == [[EIGEN, ONEDNN]]
    assert told == ["Kernels, us of processor time an agent step: eigen float32 400, onednn float32 200; taken: "
                    "onednn float32"]
    assert chosen() == (ONEDNN, []) and len(bench) == 1
    assert chosen(SETTINGS.changed(game="Boxing"))[0] == ONEDNN and len(bench) == 1, "the game is no matter"
    assert chosen(SETTINGS.changed(kernels="remeasure"))[0] == ONEDNN and len(bench) == 2
    processor("avx2", "avx512bw", "avx512_bf16")
    assert chosen()[0] == ONEDNN and len(bench) == 2
    assert chosen(SETTINGS.changed(kernels="remeasure"))[0] == BF16 and bench[-1] == [EIGEN, ONEDNN, BF16]
    assert chosen() == (BF16, [])


@pytest.mark.parametrize("changed", [
    {"network": "large"}, {"training_batch_min": 40}, {"envs_per_agent": 4}, {"device_threads": 3}])
def test_another_network_or_size_is_measured_anew(bench: list[list[Kernel]], changed: dict[str, Any]) -> None:
    assert chosen()[0] == chosen(SETTINGS.changed(**changed))[0] == ONEDNN and len(bench) == 2


@pytest.mark.parametrize(("changed", "size"), [
    ({}, (1, 16)), ({"algorithm": "a3c", "passes": 3, "minibatches": 2}, (1, 20)), ({"minibatches": 1}, (2, 64)),
    ({"preset": "paper"}, (8, 5)), ({"preset": "a3c-cpu"}, (1, 5)),
    ({"schedule": "synchronous", "agents": 6, "minibatches": 4}, (2, 64)),
    ({"preset": "cule", "agents": 20, "envs_per_agent": 6}, (1, 20))])
def test_a_kernel_is_measured_with_a_minibatch_of_the_run(changed: dict[str, Any], size: tuple[int, int]) -> None:
    assert minibatch(configured(**{"game": "Pong", **changed})) == size


def test_another_machine_is_measured_anew(bench: list[list[Kernel]], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen()
    for where, name in ((kernels, "processor"), (remembered, "usable_cores")):
        monkeypatch.setattr(where, name, lambda: 77)
        chosen()
    assert len(bench) == 3


def test_a_precision_that_was_given_is_kept(bench: list[list[Kernel]], processor: Callable[..., None]) -> None:
    processor("avx512bw", "avx512_bf16")
    assert chosen(SETTINGS.changed(precision="float32"))[0] == ONEDNN and bench == [[EIGEN, ONEDNN]]


@pytest.mark.parametrize(("changed", "spec", "library"), [
    ({"serial": True}, IMAGE, "onednn"), ({}, VECTOR, "eigen"), ({"serial": True}, VECTOR, "eigen"),
    ({"network": "mine:network"}, IMAGE, "onednn"), ({"kernels": "eigen"}, IMAGE, "eigen"),
    ({"kernels": "onednn"}, VECTOR, "onednn"), ({"kernels": "remeasure", "serial": True}, IMAGE, "onednn"),
    ({"kernels": "eigen", "serial": True}, IMAGE, "eigen")])
def test_nothing_is_measured_of_serial_runs_vectors_users_networks_and_named_kernels(
        bench: list[list[Kernel]], changed: dict[str, Any], spec: EnvSpec, library: str) -> None:
    settings = SETTINGS.changed(**changed)
    precision = "float32" if library == "eigen" else "auto"
    assert chosen(settings, spec) == (Kernel(library, precision), []) and bench == []


def test_what_is_not_to_be_remembered_is_not_written(bench: list[list[Kernel]]) -> None:
    chosen(SETTINGS.changed(remember=False))
    assert not remembered.cache_file("kernels.json").exists()


@pytest.mark.parametrize("content", ["{", "[7]", '[{"kernel": "onednn"}]'])
def test_a_damaged_file_is_measured_anew(bench: list[list[Kernel]], content: str) -> None:
    path = remembered.cache_file("kernels.json")
    path.parent.mkdir(parents=True)
    path.write_text(content)
    assert chosen()[0] == ONEDNN and chosen() == (ONEDNN, []) and len(bench) == 1


def test_a_remembered_kernel_that_cannot_be_had_any_more_is_not_taken(
        bench: list[list[Kernel]], processor: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    processor("avx512bw", "avx512_bf16")
    assert chosen()[0] == BF16
    monkeypatch.setattr(kernels, "fixed_library", lambda: "eigen")
    assert chosen()[0] == Kernel("eigen", "float32") and len(bench) == 1, "there is nothing to choose"


@pytest.mark.parametrize("function", ["exits", "kills_itself", "hangs_whatever_it_is_given"])
def test_a_process_that_fails_or_hangs_leaves_the_usual_kernel(monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    monkeypatch.setattr(kernels, "_MEASURING", f"children:{function}")
    monkeypatch.setattr(kernels, "DEADLINE", 2.0 if function.startswith("hangs") else 100.0)
    assert chosen() == (Kernel("onednn", "auto"), ["No kernel could be measured; taken: onednn auto"])
    assert not remembered.cache_file("kernels.json").exists(), "the next run tries again"


@pytest.mark.parametrize(("kind", "left"), [
    ("equal", [EIGEN, ONEDNN, BF16]), ("opposite", [EIGEN]), ("rounded", [EIGEN, BF16]), ("failing", [ONEDNN, BF16]),
    ("hanging", [])])
def test_a_kernel_that_computes_something_else_is_left_out(
        monkeypatch: pytest.MonkeyPatch, kind: str, left: list[Kernel]) -> None:
    monkeypatch.setattr(kernels, "_MEASURING", f"children:measures_{kind}")
    monkeypatch.setattr(kernels, "DEADLINE", 100.0 if left else 2.0)
    assert measured(SETTINGS, IMAGE, [EIGEN, ONEDNN, BF16]) == {kernel: pytest.approx(100.0) for kernel in left}


def test_on_a_gpu_the_usual_kernel_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_MEASURING", "children:measures_nothing")
    assert chosen() == (Kernel("onednn", "auto"), [])
    monkeypatch.setattr(kernels, "_MEASURING", "it is not started again")
    assert chosen() == (Kernel("onednn", "auto"), [])


def test_a_stop_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_MEASURING", "children:hangs_whatever_it_is_given")
    monkeypatch.setattr(kernels, "DEADLINE", 600.0)  # by which the test would have run out of time
    reader, writer = os.pipe()
    os.write(writer, b"x")
    assert choose(SETTINGS, IMAGE, lambda line: None, stop=[reader]) == Kernel("onednn", "auto")
    os.close(reader)
    os.close(writer)


def test_onednn_has_bfloat16_only_with_avx512(processor: Callable[..., None]) -> None:
    given = SETTINGS.changed(precision="bfloat16")
    assert usual(given, IMAGE) == Kernel("eigen", "bfloat16")
    with pytest.raises(ConfigError, match="kernels: onednn has no bfloat16 on this processor"):
        usual(given.changed(kernels="onednn"), IMAGE)
    processor("avx512bw")
    assert usual(given, IMAGE) == usual(given.changed(kernels="onednn"), IMAGE) == BF16


def test_a_library_that_cannot_be_had_any_more_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "fixed_library", lambda: "eigen")
    assert usual(SETTINGS, IMAGE).library == "eigen"
    with pytest.raises(ConfigError, match="kernels: onednn is not available: this process computes with eigen"):
        usual(SETTINGS.changed(kernels="onednn"), IMAGE)


@pytest.mark.parametrize(("switch", "asked", "library"), [
    pytest.param("", "onednn", "onednn", marks=pytest.mark.slow), ("", "eigen", "eigen"),
    pytest.param("0", "onednn", "eigen", marks=pytest.mark.slow), ("1", "eigen", "onednn")])
def test_tensorflow_computes_with_the_library_unless_the_user_has_decided(
        switch: str, asked: str, library: str) -> None:
    program = ("from ga3c.learner.tensorflow.loading import before_tensorflow, fixed_library\n"
               f"before_tensorflow(library={asked!r})\n"
               "from tensorflow.python.framework.test_util import IsMklEnabled\n"
               "print(fixed_library(), 'onednn' if IsMklEnabled() else 'eigen')")
    environment = {name: value for name, value in os.environ.items() if name != "TF_ENABLE_ONEDNN_OPTS"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                          env=environment | ({"TF_ENABLE_ONEDNN_OPTS": switch} if switch else {}))
    assert done.stdout.split() == [library, library]


@pytest.mark.parametrize(("flags", "library"), [(("avx2",), "eigen"), (("avx2", "avx512_vnni"), "onednn")])
def test_where_tensorflow_was_imported_it_has_decided_by_the_processor(
        flags: tuple[str, ...], library: str, processor: Callable[..., None],
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow", sys)
    processor(*flags)
    assert loading.fixed_library() == library
    monkeypatch.delitem(sys.modules, "tensorflow")
    assert loading.fixed_library() is None


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["0", "1"])
def test_the_learners_tests_hold_with_either_library(switch: str) -> None:
    here = Path(__file__).parent
    possible = switch == "0" or "avx512bw" in Path("/proc/cpuinfo").read_text().split()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(here), "--ignore", __file__,
         "-k", "" if possible else "not bfloat16"],
        capture_output=True, text=True, check=False, cwd=here.parents[1],
        env={**os.environ, "TF_ENABLE_ONEDNN_OPTS": switch})
    assert done.returncode == 0, done.stdout[-3000:]
