"""An Atari 2600 of our own: exact next to ale-py's on the games proven so, and about twice as fast.

    from ga3c.envs.emulator import AtariVectorEnv
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ga3c.envs.emulator.vector_env import AtariVectorEnv as AtariVectorEnv

__all__ = ["AtariVectorEnv"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: it takes Numba, which a run on ale-py's emulator does not need.
    if name != "AtariVectorEnv":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ga3c.envs.emulator.vector_env import AtariVectorEnv
    return AtariVectorEnv
