"""Environments that may fail. One that raises, or gives numbers nobody can learn from, is replaced inside its agent.

The episodes under way are dropped: they end as truncated in the step that failed, and their scores do not count. Some
environments fail again and again without one good step between. Then the agent ends, and the supervisor decides what
happens next (`service/workers.py`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.base import Environment, State, Transition
from ga3c.envs.containment import contained

RETRIES = 5        # failures in a row, without one good step between, before an agent gives up
_STRIDE = 7919     # between the seeds of one agent's environments, more than it has of them
_MOST = math.sqrt(float(np.finfo(np.float32).max))
_OWN = "fault_tolerant"  # what a state has beside that of the environments: seed, failures in a row


class NotFinite(ValueError):
    """A reward or an observation is not finite, or so large that its square is not."""


class FaultTolerantEnvironment:
    """An `Environment` that replaces those it is made of when they fail.

    Args:
        make: makes the environments; what it raises is raised.
        failed: called while the exception that ended an environment is handled.

    Attributes:
        given_up: it has failed too often, and raised what its environments raised.
    """

    def __init__(self, make: Callable[[], Environment], failed: Callable[[], None]) -> None:
        self._make, self._failed = make, failed
        self._seed = self._in_a_row = 0
        self.given_up = False
        self._environment = make()
        self.spec = self._environment.spec
        self._exact = self.spec.observation_dtype.kind != "f"  # bytes are always finite

    def reset(self, seed: int) -> None:
        """Begins; environments that replace these get seeds of their own. Raises what they raise, or NotFinite."""
        self._seed = seed
        self._environment.reset(seed)
        if not self._exact:
            self._check("an observation after reset", self.observation)

    @property
    def observation(self) -> NDArray:
        """Of the environments."""
        return self._environment.observation

    def show(self, into: NDArray) -> None:
        """As of the environments."""
        self._environment.show(into)

    def restart(self, number: int) -> None:
        """As of the environments; if they failed, all begin again. Raises as `step` does."""
        try:
            self._environment.restart(number)
            if not self._exact:
                self._check("an observation after reset", self._environment.observation)
        except BaseException:  # noqa: B036  # as in `step`
            self._count()
            while not self._replaced():
                pass

    def step(self, action: NDArray[np.int64]) -> Transition:
        """As of the environments; if they failed, the end of all their episodes.

        Raises what they raise, or NotFinite, at the failure after `RETRIES` others in a row.
        """
        try:
            transition = self._environment.step(action)
            reward = transition.reward
            if not math.hypot(*reward.tolist()) < _MOST:
                raise _not_finite("a reward", reward)
            if not self._exact:
                self._check("an observation", self._environment.observation)
                if transition.final_observation is not None:
                    self._check("an episode's last observation", transition.final_observation)
        except BaseException:  # noqa: B036  # SystemExit and KeyboardInterrupt are failures like any other
            self._count()
            while not self._replaced():
                pass
            n_envs = len(action)
            no = np.zeros(n_envs, np.bool_)
            return Transition(np.zeros(n_envs, np.float32), no, ~no, no, None, dropped=True)
        self._in_a_row = 0
        return transition

    def state(self) -> State | None:
        """As of the environments, and with which seed the next ones begin."""
        state = self._environment.state()
        return None if state is None else {**state, _OWN: np.array([self._seed, self._in_a_row])}

    def restore(self, state: State) -> None:
        """As of the environments. A state of an earlier version has nothing of ours in it."""
        if _OWN in state:
            self._seed, self._in_a_row = map(int, state[_OWN])
        self._environment.restore({name: array for name, array in state.items() if name != _OWN})

    def close(self) -> None:
        """Frees what the simulator holds."""
        self._environment.close()

    def _check(self, what: str, observation: NDArray) -> None:
        # One dot product for NaN, infinity and what is too large: a tenth of the time of isfinite and all.
        if not np.vdot(observation, observation) < math.inf:
            raise _not_finite(what, observation)

    def _count(self) -> None:
        """One more failure, whose exception is being handled; raises it if there were too many."""
        self._in_a_row += 1
        if self._in_a_row > RETRIES:
            self.given_up = True
            raise
        self._failed()

    def _replaced(self) -> bool:
        """Whether new environments have begun; those that cannot be made or reset have failed, too."""
        with contained():
            with contextlib.suppress(BaseException):  # it has failed already
                self._environment.close()
            try:
                self._environment = self._make()
                self.reset((self._seed + _STRIDE) % 2**31)
            except BaseException:  # noqa: B036  # as in `step`
                self._count()
                return False
        return True


def _not_finite(what: str, numbers: NDArray) -> NotFinite:
    """numbers: (E, ...), some of which are not as they should be."""
    wrong = ~(np.abs(numbers) < _MOST)
    environments = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1)).tolist()
    return NotFinite(f"{what} is not finite or too large: {numbers[wrong][:4]}, of environments {environments[:16]} of "
                     f"{len(wrong)}, counted from 0")
