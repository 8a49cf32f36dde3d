"""GA3C's own Atari 2600: exactly equal to ale-py's on the games proven so, and about twice as fast.

    from ga3c.envs.emulator import AtariVectorEnv

    machine.py          The state of a console: one record, which is copied to save it.
    cpu.py, tia.py      The processor, and the picture from a log of what it wrote.
    games.py            Reward, lives and end of each game.
    observe.py          The brighter of two frames, 84 x 84.
    starts.py           The starts of games, imported from ale-py once.
    consoles.py         All consoles of an agent, for `envs.atari`.
    vector_env.py       `AtariVectorEnv` for Gymnasium.
    jit.py              The only module that imports Numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ga3c.envs.emulator.vector_env import AtariVectorEnv as AtariVectorEnv

__all__ = ["AtariVectorEnv"]


def __getattr__(name: str) -> Any:
    # Imported on demand: it needs Numba, which a run on ale-py's emulator does not.
    if name != "AtariVectorEnv":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ga3c.envs.emulator.vector_env import AtariVectorEnv
    return AtariVectorEnv
