"""Plays our emulator on an NVIDIA GPU beside one core of the processor: the same source, every bit compared.

    python tools/bench/emulator_cuda.py [pong boxing] [--environments 1024 4096] [--steps 60] [--json FILE]

It needs the package numba-cuda and a GPU. One thread of the GPU plays one console. An agent step is 4 frames with one
random action, the last two of them drawn. Games that are over play on: rewards are 0 then. Some consoles are played by
the processor, too, and their records, screens and rewards compared every few steps. Frames a second are of the time in
which the GPU plays: nothing is copied then, and what the first step compiles is told apart. Each line that is printed
is one run as JSON. The exit code is 1 if anything differs or a run fails.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import ale_py
import numpy as np
from ale_py import roms

from ga3c.envs.emulator.console import new_log, play_frame
from ga3c.envs.emulator.controls import press
from ga3c.envs.emulator.games import GAMES
from ga3c.envs.emulator.jit import kernel
from ga3c.envs.emulator.judge import judge
from ga3c.envs.emulator.machine import KIND_E0, cartridge
from ga3c.envs.emulator.starts import Starts
from ga3c.settings.flags import output_file

_GAMES: Final = ("pong", "breakout", "boxing", "qbert", "space_invaders")
_FRAMES: Final = 4  # per agent step
_BLOCK: Final = 32  # threads that start together: a warp, so that consoles spread over all multiprocessors
_NO_OPS: Final = 30  # most no-ops at the start of a game; consoles start with different numbers


class Consoles(NamedTuple):
    """The arrays of a kernel. The first axis is the console; `roms` and `logs` may have one row for all.

    machines (n,) MACHINE; roms (n or 1, ROM_SIZE) uint8; logs (n or 1, LOG_SIZE) int64; screens (n, 2, lines, 160)
    uint8, of the last two frames; rewards (n,) int64, the sum so far.
    """

    machines: Any
    roms: Any
    logs: Any
    screens: Any
    rewards: Any


@kernel
def step(machine: Any, game: int, rom: Any, log: Any, screens: Any, action: int) -> Any:
    """Plays one agent step of a console and returns the reward. GPU and processor both compile this function."""
    reward = 0
    for frame in range(_FRAMES):
        press(machine, game, action)
        play_frame(machine, rom, log, screens[frame & 1], frame >= _FRAMES - 2)
        reward += judge(machine, game)
    return reward


@kernel
def on_processor(machines: Any, game: int, images: Any, logs: Any, screens: Any, actions: Any, rewards: Any) -> None:
    """Plays an agent step of each console, one after the other."""
    for number in range(len(machines)):
        rewards[number] += step(machines[number], game, images[number % len(images)], logs[0], screens[number],
                                actions[number])


def on_gpu(cuda: Any) -> Callable[..., None]:
    """Returns the plain function of a GPU step: (machines, game, roms, logs, screens, actions, rewards)."""
    def play(machines, game, images, logs, screens, actions, rewards):  # type: ignore[no-untyped-def]
        number = cuda.grid(1)
        if number < machines.shape[0]:
            rewards[number] += step(machines[number], game, images[number % images.shape[0]], logs[number],
                                    screens[number], actions[number])

    return play


def tables_in_global_memory() -> None:
    """Makes Numba put tables into a GPU's global memory instead of its constant memory. Call it before compilation.

    Constant memory has 64 KiB, and each place in the code that reads a table has its own copy: the rules need more.
    """
    from numba.cuda.cudadrv import nvvm
    nvvm.ADDRSPACE_CONSTANT = nvvm.ADDRSPACE_GLOBAL


def consoles(game: str, n: int, fires: bool, logs: int) -> Consoles:
    """Makes `n` consoles at the start of `game`, number i after i % 31 no-ops. logs: rows of `logs`."""
    emulator = ale_py.ALEInterface()
    emulator.setFloat("repeat_action_probability", 0.0)
    path = roms.get_rom_path(game)
    assert path is not None
    emulator.loadROM(path)
    starts = Starts(emulator, game, fires)
    begun = [starts.start(no_ops) for no_ops in range(min(n, _NO_OPS + 1))]
    which = np.arange(n) % len(begun)
    machines = np.concatenate([start.machine for start in begun])
    kind = int(machines["kind"][0])
    image = cartridge(Path(path).read_bytes(), kind)
    return Consoles(machines[which], np.repeat(image[None], n if kind == KIND_E0 else 1, 0),
                    np.repeat(new_log()[None], logs, 0),
                    np.repeat(np.stack([start.screen for start in begun])[:, None], 2, 1)[which],
                    np.zeros(n, np.int64))


def difference(gpu: Consoles, processor: Consoles) -> str:
    """Returns the first record, screen or reward that differs, as text; "" if all are equal."""
    for name in processor.machines.dtype.names:
        there, here = gpu.machines[name], processor.machines[name]
        if (there != here).any():
            number, *place = np.argwhere(there != here)[0].tolist()
            return (f"machine {number}, field {name}{place or ''}: {there[(number, *place)]} on the GPU, "
                    f"{here[(number, *place)]} on the processor")
    for name in ("screens", "rewards"):
        there, here = getattr(gpu, name), getattr(processor, name)
        if (there != here).any():
            place = np.argwhere(there != here)[0].tolist()
            return f"{name}{place}: {there[tuple(place)]} on the GPU, {here[tuple(place)]} on the processor"
    return ""


def runs(cuda: Any, play: Any, game: str, environments: int, options: argparse.Namespace) -> dict[str, Any]:
    """Plays one game on GPU and processor, and returns speeds and differences. play: the kernel, compiled or not."""
    emulator = ale_py.ALEInterface()
    path = roms.get_rom_path(game)
    assert path is not None
    emulator.loadROM(path)
    fires = ale_py.Action.FIRE in emulator.getMinimalActionSet()
    legal = np.array([action.value for action in emulator.getMinimalActionSet()], np.uint8)
    actions = legal[np.random.default_rng(0).integers(len(legal), size=(options.steps, environments))]
    checked = min(environments, options.checked)
    mine, theirs = consoles(game, checked, fires, 1), consoles(game, environments, fires, 1)
    index = GAMES[game]
    there = Consoles(*map(cuda.to_device, theirs))._replace(
        logs=cuda.device_array((environments, mine.logs.shape[1]), np.int64))
    played = cuda.to_device(actions)
    blocks = (environments + _BLOCK - 1) // _BLOCK
    took, own_took, compiled, differs = 0.0, 0.0, 0.0, ""
    for number in range(options.steps):
        began = time.perf_counter()
        play[blocks, _BLOCK](there.machines, index, there.roms, there.logs, there.screens, played[number],
                             there.rewards)
        cuda.synchronize()
        passed = time.perf_counter() - began
        began = time.thread_time()
        on_processor(mine.machines, index, mine.roms, mine.logs, mine.screens, actions[number, :checked], mine.rewards)
        own_passed = time.thread_time() - began
        if number == 0:
            compiled = passed
        else:
            took, own_took = took + passed, own_took + own_passed
        last = number == options.steps - 1 or took >= options.seconds
        if last or number % options.every == 0:
            now = Consoles(there.machines[:checked].copy_to_host(), None, None,
                           there.screens[:checked].copy_to_host(), there.rewards[:checked].copy_to_host())
            differs = difference(now, mine)
            if differs:
                differs = f"after frame {_FRAMES * (number + 1)}: {differs}"
            if differs or last:
                break
    frames = _FRAMES * number
    return {"game": game, "environments": environments, "frames": frames, "compared": checked, "differs": differs,
            "gpu_frames_per_second": environments * frames / took if took else None,
            "core_frames_per_second": checked * frames / own_took if own_took else None,
            "first_step_seconds": compiled}


def _all(cuda: Any, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    tables_in_global_memory()
    play = cuda.jit(on_gpu(cuda))
    name = cuda.get_current_device().name
    about = {"device": name.decode() if isinstance(name, bytes) else str(name), **{
        package: importlib.import_module(package).__version__ for package in ("numba", "numba_cuda", "numpy")}}
    worked = False
    for game in options.games or _GAMES:
        for environments in options.environments:
            try:
                yield runs(cuda, play, game, environments, options) | about
                worked = True
            except Exception as error:  # reported; the other runs continue
                traceback.print_exc()
                yield {"game": game, "environments": environments, "failed": f"{type(error).__name__}: {error}"} | about
                if not worked:  # the next run would fail to compile, too
                    return


def main() -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", metavar="game", help="names of ale-py's ROMs")
    parser.add_argument("--environments", type=int, nargs="+", default=[1024, 4096, 16384], metavar="N")
    parser.add_argument("--steps", type=int, default=60, metavar="N", help="agent steps of a run [%(default)s]")
    parser.add_argument("--seconds", type=float, default=4, help="of the GPU, after which a run ends [%(default)s]")
    parser.add_argument("--checked", type=int, default=128, metavar="N", help="consoles compared [%(default)s]")
    parser.add_argument("--every", type=int, default=10, metavar="N", help="steps between comparisons [%(default)s]")
    parser.add_argument("--json", type=output_file(".json"), metavar="FILE", help="also writes all that is printed")
    options = parser.parse_args()
    wrong = sorted(set(options.games) - set(GAMES))
    if wrong:
        parser.error(f"{wrong[0]!r} is not among the ROMs that this emulator knows; ms_pacman is one")
    from numba import cuda
    if not cuda.is_available():
        parser.error("no GPU is found; it needs one of NVIDIA's, its driver and the package numba-cuda")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    found = []
    for run in _all(cuda, options):
        found.append(run)
        print(json.dumps(run), flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(run.get("differs") or run.get("failed") for run in found))


if __name__ == "__main__":
    sys.exit(main())
