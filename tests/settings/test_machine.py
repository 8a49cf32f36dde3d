"""What may be had of the machine, and what TensorFlow is to find there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from psutil import _psutil_linux

from ga3c.settings import machine


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Our control group and the one around it, both without limits."""
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.setattr(machine, "_groups", lambda: [inner, inner.parent])
    return [inner, inner.parent]


def test_memory_is_that_of_the_least_limit_around_us(groups: list[Path]) -> None:
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert machine.usable_memory() == whole and machine.left_in_container("memory") is None
    (groups[0] / "memory.max").write_text("max\n")
    (groups[1] / "memory.max").write_text("5000000\n")
    (groups[1] / "memory.current").write_text("5100000\n")
    assert machine.usable_memory() == 5_000_000 and machine.left_in_container("memory") == 0
    (groups[0] / "pids.max").write_text("70\n")
    (groups[0] / "pids.current").write_text("30\n")
    assert machine.left_in_container("pids") == 40


def test_the_processor_is_named_where_the_system_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine, "Path", lambda _: file)
    assert machine.processor() is None
    file.write_text("processor\t: 0\nmodel\t\t: 17\n")
    assert machine.processor() is None
    file.write_text("processor\t: 0\nmodel\t\t: 17\nmodel name\t: A: 9 of 10\nmodel name\t: B\n")
    assert machine.processor() == "A: 9 of 10"


def test_kills_for_want_of_memory_are_those_of_our_own_group(groups: list[Path]) -> None:
    assert machine.oom_kills() >= 0  # the machine's
    (groups[1] / "memory.events").write_text("oom 9\noom_kill 9\n")
    (groups[0] / "memory.events").write_text("low 0\noom 5\noom_kill 3\noom_group_kill 1\n")
    assert machine.oom_kills() == 3


def test_the_library_of_cuda_that_tensorflow_looks_for_in_vain_is_loaded_before_it(tmp_path: Path) -> None:
    place = tmp_path / "nvidia" / "cusolver" / "lib"
    place.mkdir(parents=True)
    shutil.copy(_psutil_linux.__file__, place / "libcusolver.so.11")  # some library
    (place / "libcusolver.so.12").write_text("no library")
    program = ("from ga3c.settings.machine import before_tensorflow, cuda_libraries\n"
               "print(cuda_libraries('libcudnn.so.*'), len(cuda_libraries('libcusolver.so.*')))\n"
               "before_tensorflow()\nprint('libcusolver.so.11' in open('/proc/self/maps').read())")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])})
    assert done.stdout.split() == ["[]", "2", "True"]
