"""PPO: several passes over a batch, each kept near the policy that played it (Schulman et al., 2017, equation 7).

Advantages and targets use the values of the acting weights (section 5, equation 11). They are fixed before the first
pass. Without policy lag this is the algorithm of the paper; `appo` corrects for lag. The value loss is not clipped: no
clipping tried was better.
"""

from __future__ import annotations

from collections.abc import Mapping

from keras import ops

from ga3c.algorithms import losses
from ga3c.algorithms.actor_critic import DiscreteActorCritic
from ga3c.algorithms.base import Loss, Network, Prepared, Rates, Tensor
from ga3c.algorithms.rows import flat
from ga3c.settings.annealing import Annealed
from ga3c.settings.schema import Settings


class PPO(DiscreteActorCritic):
    """The clipped surrogate objective; see `DiscreteActorCritic.whole_loss` for the rest of the loss.

    Batches are large, so advantages are divided by the deviation of their own batch, as is usual. Advantages then stay
    large even before the first reward is found, as in Freeway. The policy drifts until it finds one.
    """

    decay = 0.0  # the deviation is of the current batch alone

    reads: tuple[str, ...] = ("observation", "policy", "action", "reward", "terminated", "truncated", "filled", "value",
                              "final_value", "bootstrap_value")

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.rates["clip_range"] = Annealed(settings.ppo.clip_range, settings.ppo.clip_range_final)

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        """Returns rows that are steps. `proximal` (N,) is the probability of the action when it was taken."""
        proximal = losses.chosen(flat(batch["policy"], 3), ops.reshape(batch["action"], (-1,)))
        return self.samples(batch, batch["value"], batch["bootstrap_value"], proximal=proximal)

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        """Returns the whole loss. The policy's part of a step is `losses.clipped_loss`.

        Further metrics: clip_fraction, the share of steps whose ratio is out of range; kl, from the proximal policy to
        this one, in nats (an estimate that is never below 0: r - 1 - log r).
        """
        log_epsilon = self.settings.actor_critic.log_epsilon
        policy, value = self.trained(network, rows["observation"])
        ratio = (losses.chosen(policy, rows["action"]) + log_epsilon) / (rows["proximal"] + log_epsilon)
        clip = rates["clip_range"] if self.settings.ppo.clip_range else float("inf")
        outside = ops.cast(ops.abs(ratio - 1.0) > clip, "float32")
        return self.whole_loss(policy, value, rows["returns"],
                               losses.clipped_loss(ratio, rows["advantage"], clip), rows["filled"], rates,
                               clip_fraction=outside, kl=ratio - 1.0 - ops.log(ratio))
