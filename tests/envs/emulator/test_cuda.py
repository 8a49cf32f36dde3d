"""The emulator's functions compiled for a GPU, from the same source, where Numba's compiler for CUDA is at hand."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import emulator_cuda
import numpy as np
import pytest
from numba import types
from numba.np.numpy_support import from_dtype

from ga3c.envs.emulator.console import play_frame
from ga3c.envs.emulator.controls import press
from ga3c.envs.emulator.games import GAMES
from ga3c.envs.emulator.judge import judge
from ga3c.envs.emulator.machine import MACHINE

CAPABILITY = (9, 0)  # of the GPU compiled for; none is needed


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
def test_an_agent_step_compiles_for_a_gpu(cuda: Any) -> None:
    """The whole kernel that the tool launches: pressing, playing, judging."""
    arguments = ((from_dtype(MACHINE), 1), None, (types.uint8, 2), (types.int64, 2), (types.uint8, 4), (types.uint8, 1),
                 (types.int64, 1))
    signature = types.void(*(types.Array(*each, "C") if each else types.int64 for each in arguments))
    emulator_cuda.tables_in_global_memory()
    code, returned = cuda.compile_ptx(emulator_cuda.on_gpu(cuda), signature, cc=CAPABILITY)
    assert returned == types.none
    assert ".target sm_90" in code and ".visible .entry" in code
    assert ".extern" not in code  # all that is called is in it
    assert ".const " not in code  # of which there are 64 KiB: the tables are more


def test_the_kernel_plays_what_the_processor_plays() -> None:
    """As plain Python with a grid of one thread at a time: what is indexed with the console's number."""
    games = [emulator_cuda.consoles("pong", 2, False, 2) for _ in range(2)]
    kernel = emulator_cuda.on_gpu(SimpleNamespace(grid=lambda axes: number))
    actions, game = np.array([2, 3], np.uint8), GAMES["pong"]
    for number in range(3):  # the third has no console
        kernel(games[0].machines, game, *games[0][1:4], actions, games[0].rewards)
    emulator_cuda.on_processor(games[1].machines, game, *games[1][1:4], actions, games[1].rewards)
    assert emulator_cuda.difference(*games) == ""
    games[1].machines["ram"][1, 5] ^= 1
    assert emulator_cuda.difference(*games).startswith("machine 1, field ram[5]: ")


def test_a_screen_that_differs_is_told() -> None:
    games = [emulator_cuda.consoles("pong", 2, False, 1) for _ in range(2)]
    games[1].screens[1, 0, 7, 9] ^= 2
    assert emulator_cuda.difference(*games).startswith("screens[1, 0, 7, 9]: ")


@pytest.mark.parametrize("function", (play_frame, press, judge))
def test_the_plain_function_is_at_hand(function: Any) -> None:
    """Another compiler takes it from there."""
    assert inspect.isfunction(function.py_func)


def test_all_tables_are_constants_of_plain_types() -> None:
    """A GPU has none of Python's objects."""
    from ga3c.envs.emulator import cpu, general, judge, memory, motion, objects, opcodes, special_cases, tia
    for module in (cpu, general, judge, memory, motion, objects, special_cases, opcodes, tia):
        for name, value in vars(module).items():
            assert not isinstance(value, np.ndarray) or value.dtype.kind in "iub", f"{module.__name__}.{name}"
