"""Gymnasium environments, through its vector interface.

Supported: discrete actions; observations that are images (uint8, height x width x channels) or vectors (any
one-dimensional Box).
"""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv, VectorEnv
from numpy.typing import NDArray

from ga3c.envs.base import EnvSpec, SavesState, State, Transition, check_form
from ga3c.settings.messages import ConfigError


class GymnasiumEnvironment:
    """Any Gymnasium vector environment in SAME_STEP mode. Vectors become float32 unless they are bytes.

    Its state can be saved if each of its environments is a `SavesState`. Raises ConfigError if its observations or
    actions are not supported.
    """

    def __init__(self, env: VectorEnv, name: str) -> None:
        self._env = env
        space, dtype = _supported(name, env.single_observation_space, env.single_action_space)
        self._first_action = int(env.single_action_space.start)  # type: ignore[attr-defined]
        n_actions = int(env.single_action_space.n)  # type: ignore[attr-defined]
        self.spec = EnvSpec(name, tuple(space.shape), dtype, n_actions, 1)
        self.observation = np.zeros((env.num_envs, *space.shape), dtype)

    def reset(self, seed: int) -> None:
        observation, _ = self._env.reset(seed=seed)
        self.observation[:] = observation

    def step(self, action: NDArray[np.int64]) -> Transition:
        observation, reward, terminated, truncated, info = self._env.step(action + self._first_action)
        self.observation[:] = observation
        # An episode that terminates needs no value of its last observation, even if its time is up as well.
        truncated = truncated & ~terminated
        final = None
        if truncated.any():
            final = self.observation.copy()
            for index in np.flatnonzero(truncated):
                final[index] = info["final_obs"][index]
        return Transition(np.asarray(reward, np.float32), terminated, truncated, terminated | truncated, final)

    def show(self, into: NDArray) -> None:
        into[:] = self.observation

    def state(self) -> State | None:
        saving = self._saving()
        if not saving:
            return None
        saved = [each.save_state() for each in saving]
        return {"observation": self.observation.copy(),
                **{f"environments.{name}": np.stack([each[name] for each in saved]) for name in saved[0]}}

    def restore(self, state: State) -> None:
        own = self.state()
        if own is None:
            raise ValueError(f"{self.spec.name} cannot be restored")
        check_form(state, own)
        for number, each in enumerate(self._saving()):
            each.restore_state({name.removeprefix("environments."): array[number]
                                for name, array in state.items() if name.startswith("environments.")})
        self.observation[:] = state["observation"]

    def _saving(self) -> list[SavesState]:
        """Its environments, if all of them save their state; else none."""
        if not isinstance(self._env, SyncVectorEnv):
            return []
        saving: list[SavesState] = [each for each in self._env.envs if isinstance(each, SavesState)]
        return saving if len(saving) == self._env.num_envs else []

    def close(self) -> None:
        self._env.close()

    def rendered(self) -> object:
        """What `render()` of the first environment gives; None if it draws nothing."""
        try:
            shown = self._env.render()
        except NotImplementedError:
            return None
        return shown[0] if shown else None

    @property
    def metadata(self) -> object:
        """Of the environment; what it is meant to be is a mapping."""
        return self._env.metadata


def _supported(name: str, space: gymnasium.Space, action: gymnasium.Space) -> tuple[gymnasium.spaces.Box, np.dtype]:
    if not isinstance(action, gymnasium.spaces.Discrete):
        raise ConfigError(f"{name}: actions are {action}; supported: Discrete")
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1 and space.shape[0]:
        return space, np.dtype(np.uint8 if space.dtype == np.uint8 else np.float32)
    if isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 3 and space.dtype == np.uint8:
        return space, np.dtype(np.uint8)
    raise ConfigError(f"{name}: observations are {space}; supported: a one-dimensional Box, "
                      "or a uint8 Box of height x width x channels")
