"""Environments that may fail. A failure is an exception, or a number that is not finite or too large.

After a failure the agent replaces all its environments. The episodes under way are dropped: they end as truncated in
the step that failed, and their scores do not count. After too many failures without a good step between them the agent
ends. The supervisor then decides what happens next (`service/workers.py`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.base import Environment, State, Transition
from ga3c.envs.containment import contained

RETRIES = 5        # failures in a row, without a good step between them, that an agent survives
_STRIDE = 7919     # added to the seed at each replacement; more than an agent has environments
_LARGEST = math.sqrt(float(np.finfo(np.float32).max))  # squares of smaller numbers are finite in float32
_STATE_KEY = "fault_tolerant"  # key in a state for [seed, failures in a row]


class NotFinite(ValueError):
    """The error for a reward or an observation that is not finite, or so large that its square is not."""


class FaultTolerantEnvironment:
    """An `Environment` around an agent's environments. It replaces all of them when they fail.

    Args:
        make: makes the environments. The constructor raises what `make` raises; later that counts as a failure.
        failed: called after each failure except the last, while its exception is handled.

    Attributes:
        given_up: whether there were too many failures, so that the last exception was raised.
    """

    def __init__(self, make: Callable[[], Environment], failed: Callable[[], None]) -> None:
        self._make = make
        self._failed = failed
        self._seed = self._in_a_row = 0
        self.given_up = False
        self._environment = make()
        self.spec = self._environment.spec
        self._always_finite = self.spec.observation_dtype.kind != "f"  # bytes are always finite

    def reset(self, seed: int) -> None:
        """Begins episodes from `seed`; replacements get other seeds. Raises what environments raise, or NotFinite."""
        self._seed = seed
        self._environment.reset(seed)
        if not self._always_finite:
            self._check("an observation after reset", self.observation)

    @property
    def observation(self) -> NDArray:
        """Returns the observation of the environments."""
        return self._environment.observation

    def show(self, into: NDArray) -> None:
        """Writes the observation into `into`, see `Environment.show`."""
        self._environment.show(into)

    def restart(self, number: int) -> None:
        """Begins a new episode in environment `number`. If that fails, all are replaced. Raises as `step` does."""
        try:
            self._environment.restart(number)
            if not self._always_finite:
                self._check("an observation after reset", self._environment.observation)
        except BaseException:  # noqa: B036  # as in `step`
            self._count()
            while not self._replace():
                pass

    def step(self, action: NDArray[np.int64]) -> Transition:
        """Steps the environments. If they fail, replaces them and returns the end of all episodes.

        Raises what they raise, or NotFinite, at the failure after `RETRIES` others in a row.
        """
        try:
            transition = self._environment.step(action)
            reward = transition.reward
            if not math.hypot(*reward.tolist()) < _LARGEST:
                raise _not_finite("a reward", reward)
            if not self._always_finite:
                self._check("an observation", self._environment.observation)
                if transition.final_observation is not None:
                    self._check("an episode's last observation", transition.final_observation)
        except BaseException:  # noqa: B036  # SystemExit and KeyboardInterrupt are failures like any other
            self._count()
            while not self._replace():
                pass
            n_envs = len(action)
            no = np.zeros(n_envs, np.bool_)
            return Transition(np.zeros(n_envs, np.float32), no, ~no, no, None, dropped=True)
        self._in_a_row = 0
        return transition

    def state(self) -> State | None:
        """Returns the state of the environments, with our seed and failures in a row; None if they have none."""
        state = self._environment.state()
        return None if state is None else {**state, _STATE_KEY: np.array([self._seed, self._in_a_row])}

    def restore(self, state: State) -> None:
        """Restores the environments and our own numbers."""
        self._seed, self._in_a_row = map(int, state[_STATE_KEY])
        self._environment.restore({name: array for name, array in state.items() if name != _STATE_KEY})

    def close(self) -> None:
        """Frees what the simulator holds."""
        self._environment.close()

    def _check(self, what: str, observation: NDArray) -> None:
        # One dot product finds NaN, infinity and too large numbers in a tenth of the time of isfinite and all.
        if not np.vdot(observation, observation) < math.inf:
            raise _not_finite(what, observation)

    def _count(self) -> None:
        """Counts a failure while its exception is handled. Raises that exception if there were too many."""
        self._in_a_row += 1
        if self._in_a_row > RETRIES:
            self.given_up = True
            raise
        self._failed()

    def _replace(self) -> bool:
        """Makes and resets new environments. Returns False, and counts a failure, if that fails."""
        with contained():
            with contextlib.suppress(BaseException):  # they have failed already
                self._environment.close()
            try:
                self._environment = self._make()
                self.reset((self._seed + _STRIDE) % 2**31)
            except BaseException:  # noqa: B036  # as in `step`
                self._count()
                return False
        return True


def _not_finite(what: str, numbers: NDArray) -> NotFinite:
    """Returns the error for `numbers` (E, ...), some of which are not finite or too large."""
    wrong = ~(np.abs(numbers) < _LARGEST)
    environments = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1)).tolist()
    return NotFinite(f"{what} is not finite or too large: {numbers[wrong][:4]}, of environments {environments[:16]} of "
                     f"{len(wrong)}, counted from 0")
