"""The emulator's functions compiled for a GPU, from the same source, where Numba's compiler for CUDA is at hand."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import types
from numba.np.numpy_support import from_dtype

from ga3c.envs.emulator.console import play_frame
from ga3c.envs.emulator.controls import press
from ga3c.envs.emulator.judge import judge
from ga3c.envs.emulator.machine import MACHINE

CAPABILITY = (8, 0)  # of the GPU compiled for; none is needed


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Any:
    """numba.cuda of the package numba-cuda, which compiles here without a driver."""
    pytest.importorskip("numba_cuda", reason="numba-cuda is not installed: pip install 'numba-cuda[cu12]'")
    from numba import cuda
    from numba.cuda import dispatcher
    from numba.cuda.cudadrv import nvvm
    try:
        nvvm.NVVM()
    except nvvm.NvvmSupportError as error:
        pytest.skip(f"NVIDIA's compiler is missing: {' '.join(str(error).split())}")
    # What a kernel calls is compiled for the device at hand.
    device = SimpleNamespace(compute_capability=CAPABILITY)
    monkeypatch.setattr(dispatcher, "get_current_device", lambda: device)
    return cuda


@pytest.mark.slow  # half a minute
def test_a_frame_compiles_for_a_gpu(cuda: Any) -> None:
    def play(machines, roms, logs, screens):  # type: ignore[no-untyped-def]
        number = cuda.grid(1)
        if number < machines.shape[0]:
            play_frame(machines[number], roms[number], logs[number], screens[number], True)

    arguments = (from_dtype(MACHINE), 1), (types.uint8, 2), (types.int64, 2), (types.uint8, 3)
    signature = types.void(*(types.Array(kind, axes, "C") for kind, axes in arguments))
    code, returned = cuda.compile_ptx(play, signature, cc=CAPABILITY)
    assert returned == types.none
    assert ".target sm_80" in code and ".visible .entry" in code
    assert ".extern" not in code  # all that is called is in it


@pytest.mark.parametrize("function", (play_frame, press, judge))
def test_the_plain_function_is_at_hand(function: Any) -> None:
    """Another compiler takes it from there."""
    assert inspect.isfunction(function.py_func)


def test_all_tables_are_constants_of_plain_types() -> None:
    """A GPU has none of Python's objects."""
    from ga3c.envs.emulator import cpu, general, judge, memory, motion, objects, odd, opcodes, tia
    for module in (cpu, general, judge, memory, motion, objects, odd, opcodes, tia):
        for name, value in vars(module).items():
            assert not isinstance(value, np.ndarray) or value.dtype.kind in "iub", f"{module.__name__}.{name}"
