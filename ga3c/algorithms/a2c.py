"""A2C: the actor-critic of a schedule without policy lag (Stooke and Abbeel, Accelerated Methods, section 3.1).

Targets come from what the acting weights said of a rollout. That is right where they are the weights that learn, as in
the synchronous schedules; elsewhere `a3c` corrects for the lag.
"""

from __future__ import annotations

from collections.abc import Mapping

from ga3c.algorithms import losses
from ga3c.algorithms.actor_critic import DiscreteActorCritic
from ga3c.algorithms.base import Loss, Network, Prepared, Rates, Tensor


class A2C(DiscreteActorCritic):
    """Policy gradient with the advantage estimate of `gae_lambda`; see `DiscreteActorCritic.whole_loss`."""

    reads = ("observation", "action", "reward", "terminated", "truncated", "filled", "value", "final_value",
             "bootstrap_value")

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        """Rows are steps, with returns and advantages of the values that were recorded."""
        return self.samples(batch, batch["value"], batch["bootstrap_value"])

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        """The policy's part of a step: -log(pi(a) + eps) A."""
        policy, value = network(rows["observation"], training=True)
        return self.whole_loss(policy, value[:, 0], rows["returns"], losses.policy_loss(
            policy, rows["action"], rows["advantage"], self.settings.log_epsilon), rows["filled"], rates)
