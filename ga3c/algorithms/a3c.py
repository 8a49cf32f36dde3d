"""A3C as GA3C runs it: n-step actor-critic, with corrections for the policy lag of its queues.

A3C: Mnih et al., ICML 2016. GA3C: Babaeizadeh et al., ICLR 2017. Corrections: V-trace, see `returns`.
"""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from ga3c.algorithms import losses
from ga3c.algorithms.base import Loss, Network, Rates, Tensor
from ga3c.algorithms.returns import centred, importance_ratio, vtrace_returns
from ga3c.envs.base import EnvSpec
from ga3c.settings.schema import AlgorithmSettings
from ga3c.transport.fields import Field, Outputs, actor_critic_outputs

_DECAY = 0.99  # of the running deviation: it remembers the last hundred or so updates


class A3C:
    """Policy gradient with a learned value as baseline, and an entropy bonus (GA3C, equations 4 and 5)."""

    reads = ("observation", "policy", "action", "reward", "terminated", "truncated", "filled", "final_value",
             "bootstrap_value", "following")

    def __init__(self, settings: AlgorithmSettings) -> None:
        self._settings = settings
        # Decayed sums of the squared advantages and of their weights; decayed alike, their ratio has no bias.
        self._advantage_square = keras.Variable(np.zeros(2, np.float32), trainable=False)
        self.variables = {"advantage.00": self._advantage_square}

    def outputs(self, env: EnvSpec) -> dict[str, Field]:
        """The policy, probabilities, and the value, the expected return."""
        return actor_critic_outputs(env)

    def act(self, network: Network, observation: Tensor) -> Outputs:
        """Policy (n, A) and value (n,), float32, of observations (n, *shape)."""
        policy, value = network(observation)
        return {"policy": policy, "value": ops.reshape(value, (-1,))}

    def loss(self, network: Network, batch: Mapping[str, Tensor], rates: Rates) -> Loss:
        """policy loss + value_coef * value loss - entropy_coef * entropy, over the filled steps (GA3C, section 3).

        Their mean, or with loss_reduction "sum" their sum. Metrics: policy_loss, value_loss and entropy (nats), means
        per agent step; explained_variance, the share of the returns' variance that the value predicted, 1 at best.
        """
        s = self._settings
        shape, n_actions = ops.shape(batch["reward"]), batch["policy"].shape[-1]
        action, behaviour = ops.reshape(batch["action"], (-1,)), ops.reshape(batch["policy"], (-1, n_actions))
        weight = ops.reshape(ops.broadcast_to(ops.cast(batch["filled"], "float32"), shape), (-1,))
        weight = weight / ops.sum(weight)

        policy, value = network(_flat(batch["observation"], 3), training=True)
        value = value[:, 0]
        ratio = (ops.ones_like(value) if s.correction == "none" else
                 importance_ratio(policy, behaviour, action, s.log_epsilon))
        returns = self._returns(network, batch, ops.reshape(value, shape), ops.reshape(ratio, shape))
        advantage = returns - value
        if s.correction == "clipped-is":
            advantage = ratio * advantage
        state = ops.convert_to_tensor(self._advantage_square)
        if s.normalize_advantages:
            # A mean that is not 0 would make all that was done likelier, and what is likely likelier still.
            advantage = ops.stop_gradient(centred(advantage, ratio, weight))
            now = ops.stack([ops.sum(weight * ops.square(advantage)), ops.ones(())])
            state = _DECAY * state + (1 - _DECAY) * now
            advantage = advantage / (ops.sqrt(state[0] / state[1]) + 1e-8)

        policy_loss = ops.sum(weight * losses.policy_loss(policy, action, advantage, s.log_epsilon))
        value_loss = ops.sum(weight * losses.value_loss(value, returns))
        entropy = ops.sum(weight * losses.entropy(policy, s.log_epsilon))
        total = policy_loss + s.value_coef * value_loss - rates.entropy_coef * entropy
        if s.loss_reduction == "sum":
            total = total * ops.cast(ops.sum(ops.cast(batch["filled"], "int32")) * shape[2], "float32")
        variance = ops.sum(weight * ops.square(returns - ops.sum(weight * returns)))
        return Loss(total, {
            "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy,
            "explained_variance": 1.0 - value_loss / ops.maximum(variance, 1e-8)}, [state])

    def _returns(self, network: Network, batch: Mapping[str, Tensor], value: Tensor, ratio: Tensor) -> Tensor:
        """(N,) returns, constants to the gradient. value, ratio: (B, T, E)."""
        s, reward, bootstrap_value = self._settings, batch["reward"], batch["bootstrap_value"]
        if s.correction != "none":  # from the weights of today, as the steps' values are: one set judges a rollout
            following = self.act(network, _flat(batch["following"], 2))["value"]
            bootstrap_value = ops.reshape(following, ops.shape(bootstrap_value))
        if s.reward_clip:
            reward = ops.clip(reward, -s.reward_clip, s.reward_clip)
        returns = vtrace_returns(
            reward, batch["terminated"], batch["truncated"], batch["filled"], value, batch["final_value"],
            bootstrap_value, ratio if s.correction == "vtrace" else ops.ones_like(ratio), s.gamma, s.gae_lambda)
        return ops.stop_gradient(ops.reshape(returns, (-1,)))


def _flat(observation: Tensor, axes: int) -> Tensor:
    """(n, *shape): the first `axes` axes as one."""
    return ops.reshape(observation, (-1, *observation.shape[axes:]))
