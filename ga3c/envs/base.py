"""The `Environment` protocol, the properties of an environment (`EnvSpec`) and the result of a step (`Transition`).

An `Environment` is a vector of E environments that step together in one thread. `step` plays every action. A step that
ends an episode also begins the next one (Gymnasium's SAME_STEP autoreset). The last observation of a truncated episode
is in the `Transition`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

State = dict[str, NDArray]
"""The state of environments, as plain arrays by name. `restore` continues from it, bit for bit."""


class EnvSpec(NamedTuple):
    """The properties of an environment that the rest of the service needs.

    `observation_shape` and `observation_dtype` describe one environment's observation, channels last. `frames_per_step`
    is the number of emulator frames of one agent step, 1 without an emulator. If the frame skip is drawn for each step,
    it is the mean. A run counts its frames by it. `stacked` is k if the last axis of an observation is a stack of k
    planes, the newest last, that moves on by one each step; else 1.
    """

    name: str
    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype
    n_actions: int
    frames_per_step: int
    stacked: int = 1


class Transition(NamedTuple):
    """The result of one agent step of E environments.

    reward (E,) float32: the reward to learn from, as the outermost wrapper gave it, not clipped.
    terminated, truncated (E,) bool: the learner's episode ended; never both in one environment.
    score_ended (E,) bool: the episode's score is complete. If an episode is `truncated` without it, the service cut the
    episode short and its score does not count. If an episode is `terminated` without it, a life was lost and its score
    goes on.
    final_observation (E, *shape), of the spec's dtype: valid only where `truncated`; None if no environment was.
    dropped: the environments failed. All episodes end here and their scores do not count. There is no final
    observation.
    score (E,) float32: rewards of the innermost environments. Their sum over an episode is the score. None means that
    they equal `reward`.
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
        """The rewards whose sum over an episode is the score, (E,) float32."""
        return self.reward if self.score is None else self.score


class Environment(Protocol):
    """E environments that step together. Only the thread that made the object uses it."""

    spec: EnvSpec

    @property
    def observation(self) -> NDArray:
        """The observations to act on next: (E, *shape) of the spec's dtype. The next step may overwrite the array."""

    def reset(self, seed: int) -> None:
        """Begins an episode in every environment. `seed` (0 <= seed < 2**32) fixes all randomness in them."""

    def step(self, action: NDArray[np.int64]) -> Transition:
        """Plays `action` (E,), each 0 <= action < n_actions. Where an episode ends, begins the next one."""

    def restart(self, number: int) -> None:
        """Begins a new episode in environment `number` and discards the current one."""

    def show(self, into: NDArray) -> None:
        """Writes `observation` into the contiguous array `into` (E, *shape). This may be faster than a copy."""

    def state(self) -> State | None:
        """Returns the state of the environments, or None if they cannot save it. Changes nothing."""

    def restore(self, state: State) -> None:
        """Continues from `state`, bit for bit. `state` must come from as many environments of the same settings.

        Raises ValueError if `state` is of other environments or damaged. `reset` is then needed.
        """

    def close(self) -> None:
        """Frees the simulator's resources."""


@runtime_checkable
class SavesState(Protocol):
    """A Gymnasium environment that can save its state. The arrays' shapes and dtypes are always the same."""

    def save_state(self) -> State:
        """Returns everything that its next steps depend on, including its random generator."""

    def restore_state(self, state: State) -> None:
        """Continues from a state that `save_state` returned."""


def check_same_layout(state: Mapping[str, NDArray], own: State, any_length: Collection[str] = ()) -> None:
    """Raises ValueError unless `state` has the names, dtypes and shapes of `own`.

    The first axis of arrays in `any_length` may have another length.
    """
    if state.keys() != own.keys():
        raise ValueError(f"its arrays are {sorted(state)} instead of {sorted(own)}")
    for name, array in own.items():
        first = 1 if name in any_length else 0
        saved = state[name]
        if (saved.dtype, saved.ndim, saved.shape[first:]) != (array.dtype, array.ndim, array.shape[first:]):
            raise ValueError(f"{name} is {saved.dtype} {saved.shape} instead of {array.dtype} {array.shape}")
