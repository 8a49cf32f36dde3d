"""C51, categorical DQN: each action has probabilities of returns (Bellemare, Dabney and Munos, 2017, algorithm 1).

The returns are `atoms` numbers evenly spaced in [-return_limit, return_limit].
"""

from __future__ import annotations

import numpy as np
from keras import ops

from ga3c.algorithms.base import Tensor
from ga3c.algorithms.dqn import DQN
from ga3c.settings.schema import Settings


class C51(DQN):
    """The numbers of an action are logits of its Z returns."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        limit = settings.c51.return_limit
        self.numbers = settings.c51.atoms
        self._returns = np.linspace(-limit, limit, self.numbers, dtype=np.float32)

    def expected(self, numbers: Tensor) -> Tensor:
        """See `DQN.expected`."""
        return ops.sum(ops.softmax(numbers, axis=-1) * self._returns, axis=-1)

    def aim(self, returns: Tensor, discount: Tensor, beyond: Tensor) -> Tensor:
        """Returns probabilities (n, Z): those of G + gamma^m z, shared out between the two returns beside it."""
        apart = self._returns[1] - self._returns[0]
        moved = ops.clip(returns[:, None] + discount[:, None] * self._returns, self._returns[0], self._returns[-1])
        shares = ops.clip(1.0 - ops.abs(moved[:, :, None] - self._returns) / apart, 0.0, 1.0)
        return ops.sum(ops.softmax(beyond, axis=-1)[:, :, None] * shares, axis=1)

    def compare(self, numbers: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the cross-entropy (n,) of the probabilities, as the loss and as the error."""
        cross_entropy = -ops.sum(wanted * ops.log_softmax(numbers, axis=-1), axis=-1)
        return cross_entropy, ops.stop_gradient(cross_entropy)
