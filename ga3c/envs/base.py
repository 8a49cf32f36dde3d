"""What an environment is to the rest of the service: `Environment`, what it says of itself, and what a step gives.

An `Environment` is a vector of E environments that step together in one thread. `step` never swallows an action. The
observation that ended an episode is given beside the first one of the next (Gymnasium's SAME_STEP autoreset).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

State = dict[str, NDArray]
"""Where environments stand, as plain arrays by name: what `restore` needs to go on from there, to the bit."""


class EnvSpec(NamedTuple):
    """What the rest of the service knows of an environment.

    `observation_shape` and `observation_dtype` are of one environment's observation, channels last. `frames_per_step`
    is the emulator frames of one agent step, 1 where there is no emulator. Where a number is drawn for each step, it is
    their mean. A run counts its frames by it. `n_statistics`: the numbers of which
    wrappers keep running statistics (`wrapper_statistics.py`).
    """

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype
    n_actions: int
    frames_per_step: int
    n_statistics: int = 0


class Transition(NamedTuple):
    """The facts of one agent step of E environments.

    reward (E,) float32: what is learned from, as the outermost wrapper gave it, not clipped.
    terminated, truncated (E,) bool: the learner's episode ended; never both.
    score_ended (E,) bool: the score of the episode is complete. An episode that is `truncated` without it was cut short
    by us, and its score does not count. One that is `terminated` without it lost a life, and its score goes on.
    final_observation (E, *shape), of the spec's dtype: to be read where `truncated`; None if no environment was.
    dropped: the environments failed. All episodes end here, their scores do not count, and there is no final
    observation.
    score (E,) float32: rewards of the innermost environments, whose sum is the score. None: they are `reward`.
    """

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    score_ended: NDArray[np.bool_]
    final_observation: NDArray | None
    dropped: bool = False
    score: NDArray[np.float32] | None = None

    @property
    def scored(self) -> NDArray[np.float32]:
        """The rewards whose sum is the score, (E,)."""
        return self.reward if self.score is None else self.score


class Environment(Protocol):
    """E environments that step together. Used by one thread, the one that made it."""

    spec: EnvSpec

    @property
    def observation(self) -> NDArray:
        """What to act on next: (E, *shape) of the spec's dtype. It may change with the next step."""

    def reset(self, seed: int) -> None:
        """Begins an episode in every environment. `seed` (0 <= seed < 2**32) fixes everything random in them."""

    def step(self, action: NDArray[np.int64]) -> Transition:
        """Plays `action` (E,), each 0 <= action < n_actions. Where an episode ended the next one has begun."""

    def restart(self, number: int) -> None:
        """Begins a new episode in environment `number`; the one under way is forgotten."""

    def show(self, into: NDArray) -> None:
        """Writes `observation` into the contiguous `into` (E, *shape). That may be faster than copying it."""

    def state(self) -> State | None:
        """Where the environments stand; None if they cannot say. Changes nothing."""

    def restore(self, state: State) -> None:
        """Goes on from the `state` of environments of the same settings and number, to the bit.

        Raises ValueError if `state` is of other environments or damaged; `reset` is then needed.
        """

    def close(self) -> None:
        """Frees what the simulator holds."""


@runtime_checkable
class SavesState(Protocol):
    """A Gymnasium environment that can save its state. The arrays' shapes and dtypes are always the same."""

    def save_state(self) -> State:
        """Everything its next steps depend on, its random generator included."""

    def restore_state(self, state: State) -> None:
        """Goes on from there."""


def check_form(state: Mapping[str, NDArray], own: State, any_length: Collection[str] = ()) -> None:
    """Raises ValueError unless `state` has the names, dtypes and shapes of `own`.

    The first axis of arrays in `any_length` may have another length.
    """
    if state.keys() != own.keys():
        raise ValueError(f"its arrays are {sorted(state)} instead of {sorted(own)}")
    for name, array in own.items():
        first = 1 if name in any_length else 0
        given, needed = state[name], (array.dtype, array.ndim, array.shape[first:])
        if (given.dtype, given.ndim, given.shape[first:]) != needed:
            raise ValueError(f"{name} is {given.dtype} {given.shape} instead of {array.dtype} {array.shape}")
