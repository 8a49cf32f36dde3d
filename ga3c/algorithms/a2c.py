"""A2C: the actor-critic for schedules without policy lag (Stooke and Abbeel, Accelerated Methods, section 3.1).

Targets use the values that the acting weights predicted for a rollout. That is right where the same weights learn, as
in the synchronous schedules. In other schedules use `a3c`, which corrects for the lag.
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
        """Returns rows that are steps, with returns and advantages from the recorded values."""
        return self.samples(batch, batch["value"], batch["bootstrap_value"])

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        """Returns the whole loss. The policy's part of a step is -log(pi(a) + eps) A."""
        policy, value = self.trained(network, rows["observation"])
        return self.whole_loss(policy, value, rows["returns"], losses.policy_loss(
            policy, rows["action"], rows["advantage"], self.settings.actor_critic.log_epsilon), rows["filled"], rates)
