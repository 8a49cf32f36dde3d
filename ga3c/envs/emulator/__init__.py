"""GA3C's own Atari 2600: exactly equal to ale-py's on the games proven so, and about twice as fast.

    from ga3c.envs.emulator import AtariVectorEnv
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
