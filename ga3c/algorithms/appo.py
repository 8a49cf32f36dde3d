"""Asynchronous PPO: PPO on samples that are some updates old, corrected by V-trace.

The proximal policy is the one that the passes must stay near. It is the network's own policy when the batch arrives,
not the acting policy. So the clip does not hold the policy back at an old one (Hilton et al., Batch size-invariance for
policy optimization, 2022). Actions of the acting policy are weighted by min(1, pi / mu), within the targets and the
advantages (Espeholt et al., IMPALA, 2018, equation 1). Without lag it is PPO.
"""

from __future__ import annotations

from collections.abc import Mapping

from keras import ops

from ga3c.algorithms.base import Network, Prepared, Tensor
from ga3c.algorithms.losses import chosen
from ga3c.algorithms.ppo import PPO
from ga3c.algorithms.returns import importance_ratio
from ga3c.algorithms.rows import flat


class APPO(PPO):
    """PPO whose policy and values are computed again when a batch arrives."""

    reads = ("observation", "policy", "action", "reward", "terminated", "truncated", "filled", "final_value",
             "following")

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        """Returns rows of steps; `proximal` (N,) is the action's probability by the weights before the first pass."""
        shape, action = ops.shape(batch["reward"]), ops.reshape(batch["action"], (-1,))
        now = self.act(network, flat(batch["observation"], 3))
        following = self.act(network, flat(batch["following"], 2))["value"]
        log_epsilon = self.settings.actor_critic.log_epsilon
        ratio = importance_ratio(now["policy"], flat(batch["policy"], 3), action, log_epsilon)
        return self.samples(batch, ops.reshape(now["value"], shape), ops.reshape(following, (shape[0], shape[2])),
                            ops.reshape(ratio, shape), proximal=chosen(now["policy"], action))
