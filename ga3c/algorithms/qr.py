"""QR-DQN: each action has quantiles of its return (Dabney et al., 2018, algorithm 1)."""

from __future__ import annotations

import numpy as np
from keras import ops

from ga3c.algorithms.base import Tensor
from ga3c.algorithms.dqn import DQN
from ga3c.algorithms.losses import huber
from ga3c.settings.schema import Settings


class QR(DQN):
    """The numbers of an action are returns: the quantiles in the middle of Z equal parts."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.numbers = settings.qr.quantiles
        self._middles = ((np.arange(self.numbers) + 0.5) / self.numbers).astype(np.float32)

    def expected(self, numbers: Tensor) -> Tensor:
        """See `DQN.expected`."""
        return ops.mean(numbers, axis=-1)

    def aim(self, returns: Tensor, discount: Tensor, beyond: Tensor) -> Tensor:
        """Returns samples (n, Z) of G + gamma^m Z(s', a')."""
        return returns[:, None] + discount[:, None] * beyond

    def compare(self, numbers: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (quantile regression losses with Huber's (equation 10), absolute errors of the means), both (n,)."""
        error = wanted[:, None, :] - numbers[:, :, None]
        pull = ops.abs(self._middles[:, None] - ops.cast(error < 0.0, "float32"))
        losses = ops.sum(ops.mean(pull * huber(error), axis=2), axis=1)
        return losses, ops.stop_gradient(ops.abs(ops.mean(wanted - numbers, axis=1)))
