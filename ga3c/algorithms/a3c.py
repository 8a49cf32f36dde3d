"""A3C as GA3C runs it: n-step actor-critic, with corrections for the policy lag of its queues.

A3C: Mnih et al., ICML 2016. GA3C: Babaeizadeh et al., ICLR 2017. Corrections: V-trace, see `returns`.

One forward pass serves targets and gradient. So each of several passes computes its own targets. They are corrected for
how far the policy has moved, as in IMPALA's replay. Only the recorded rollout stays fixed.
"""

from __future__ import annotations

from collections.abc import Mapping

from keras import ops

from ga3c.algorithms import losses
from ga3c.algorithms.actor_critic import DiscreteActorCritic
from ga3c.algorithms.base import Loss, Network, Prepared, Rates, Tensor
from ga3c.algorithms.returns import importance_ratio
from ga3c.algorithms.rows import filled_samples, flat, sample_weights


class A3C(DiscreteActorCritic):
    """Policy gradient with a learned value as baseline, and an entropy bonus (GA3C, equations 4 and 5)."""

    reads = ("observation", "policy", "action", "reward", "terminated", "truncated", "filled", "final_value",
             "bootstrap_value", "following")

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        """Returns rows that are rollouts."""
        return Prepared(batch)

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        """Returns the whole loss, see `DiscreteActorCritic.whole_loss`. The advantage is R - V."""
        s = self.settings.actor_critic
        correction = self.settings.a3c.correction
        shape, n_actions = ops.shape(rows["reward"]), rows["policy"].shape[-1]
        action, behaviour = ops.reshape(rows["action"], (-1,)), ops.reshape(rows["policy"], (-1, n_actions))
        filled = filled_samples(rows["filled"], shape)

        policy, value = self.trained(network, flat(rows["observation"], 3))
        ratio = (ops.ones_like(value) if correction == "none" else ops.where(
            filled, importance_ratio(policy, behaviour, action, s.log_epsilon), 1.0))  # unfilled rows hold old steps
        returns = self._corrected(network, rows, ops.reshape(value, shape), ops.reshape(ratio, shape))
        advantage = returns - value
        if correction == "clipped-is":
            advantage = ratio * advantage
        state: dict[str, Tensor] = {}
        if s.normalize_advantages:
            advantage, state["advantage.00"] = self.scaled(ops.stop_gradient(advantage), returns, ratio,
                                                           sample_weights(filled))
        return self.whole_loss(policy, value, returns, losses.policy_loss(policy, action, advantage, s.log_epsilon),
                               filled, rates)._replace(state=state)

    def _corrected(self, network: Network, rows: Mapping[str, Tensor], value: Tensor, ratio: Tensor) -> Tensor:
        """Computes the returns (N,), constants to the gradient. value, ratio: (B, T, E)."""
        correction = self.settings.a3c.correction
        bootstrap_value = rows["bootstrap_value"]
        if correction != "none":  # from the current weights, as the steps' values are
            following = self.act(network, flat(rows["following"], 2))["value"]
            bootstrap_value = ops.reshape(following, ops.shape(bootstrap_value))
        returns = self.returns(rows, value, bootstrap_value, ratio if correction == "vtrace" else None)
        return ops.stop_gradient(ops.reshape(returns, (-1,)))
