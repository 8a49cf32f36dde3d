"""The common part of the actor-critics: outputs, the scale of advantages, samples with their targets, the whole loss.

Index order: B rollouts, T steps, E environments, A actions; N = B T E samples, n of them in a minibatch.
"""

from __future__ import annotations

from collections.abc import Mapping

import keras
import numpy as np
from keras import ops

from ga3c.algorithms import losses
from ga3c.algorithms.acting import BY_POLICY
from ga3c.algorithms.base import Head, Loss, Network, Prepared, Rates, Tensor
from ga3c.algorithms.returns import centred, vtrace_returns
from ga3c.algorithms.rows import filled_samples, flat, sample_weights
from ga3c.envs.base import EnvSpec
from ga3c.settings.annealing import Annealed
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field, Outputs, actor_critic_outputs

_LEAST_DEVIATION = 0.02  # as a share of the returns' root mean square; less is noise


class DiscreteActorCritic:
    """An actor-critic. Its outputs are the policy (probabilities) and the value (the expected return).

    A subclass defines what stays fixed over the passes (`samples` returns it) and the policy's part of the loss
    (`whole_loss` adds the rest). decay: the share of the advantages' running deviation
    that is kept at each update, in `a3c` at each minibatch. 0.99 averages over about a hundred of them, since one
    batch may be small.
    """

    decay = 0.99
    acting = BY_POLICY
    reads_target = False

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        entropy = settings.actor_critic
        self.rates = {"entropy_coef": Annealed(entropy.entropy_coef, entropy.entropy_coef_final)}
        # Decayed sums of the squared advantages and of their weights. Both decay alike, so their ratio has no bias.
        self._advantage_square = keras.Variable(np.zeros(2, np.float32), trainable=False)
        self.variables = {"advantage.00": self._advantage_square}

    def heads(self, env: EnvSpec) -> dict[str, Head]:
        """Returns the heads: the policy, probabilities of the A actions, and the value."""
        # A small gain makes the first policy almost uniform.
        return {"policy": Head(int(env.n_actions), "softmax", 0.01), "value": Head(1)}

    def outputs(self, env: EnvSpec) -> dict[str, Field]:
        """Returns the fields of the outputs: policy (A,) and value (), float32."""
        return actor_critic_outputs(env)

    def act(self, network: Network, observation: Tensor) -> Outputs:
        """Returns policy (n, A) and value (n,), float32, for observations (n, *shape)."""
        heads = network(observation)
        return {"policy": heads["policy"], "value": ops.reshape(heads["value"], (-1,))}

    def trained(self, network: Network, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Returns policy (n, A) and value (n,) for observations (n, *shape), with a gradient."""
        heads = network(observation, training=True)
        return heads["policy"], heads["value"][:, 0]

    def returns(self, batch: Mapping[str, Tensor], value: Tensor, bootstrap_value: Tensor,
                ratio: Tensor | None) -> Tensor:
        """Returns `vtrace_returns` (B, T, E) of the clipped rewards. ratio: None for no correction."""
        shared = self.settings.algorithm
        reward = batch["reward"]
        if shared.reward_clip:
            reward = ops.clip(reward, -shared.reward_clip, shared.reward_clip)
        ratio = ops.ones_like(value) if ratio is None else ratio
        return vtrace_returns(reward, batch["terminated"], batch["truncated"], batch["filled"], value,
                              batch["final_value"], bootstrap_value, ratio, shared.gamma,
                              self.settings.actor_critic.gae_lambda)

    def scaled(self, advantage: Tensor, returns: Tensor, ratio: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Centres a batch's advantages (N,) and divides them by their running deviation: `normalize_advantages`.

        The deviation counts as at least `_LEAST_DEVIATION` times the returns' root mean square. Near convergence
        advantages are noise, which a smaller divisor would amplify.

        Returns the scaled advantages and the new value of `advantage.00`. returns: (N,). weight: sums to 1.
        """
        # A positive mean would raise the probability of every action taken.
        advantage = centred(advantage, ratio, weight)
        now = ops.stack([ops.sum(weight * ops.square(advantage)), ops.ones(())])
        state = self.decay * ops.convert_to_tensor(self._advantage_square) + (1 - self.decay) * now
        least = _LEAST_DEVIATION * ops.sqrt(ops.sum(weight * ops.square(returns)))
        return advantage / (ops.maximum(ops.sqrt(state[0] / state[1]), least) + 1e-8), state

    def samples(self, batch: Mapping[str, Tensor], value: Tensor, bootstrap_value: Tensor,
                ratio: Tensor | None = None, **more: Tensor) -> Prepared:
        """Returns the steps of all environments as rows, with action, returns, advantage and `more`, all (N, ...).

        value, ratio: (B, T, E); bootstrap_value: (B, E). The advantage is the returns minus `value`.

        Rows that are not filled hold numbers of an earlier rollout, which may be infinite. So they are masked here,
        since a weight of 0 would not remove them.
        """
        returns = ops.reshape(self.returns(batch, value, bootstrap_value, ratio), (-1,))
        filled = filled_samples(batch["filled"], ops.shape(value))
        advantage, state = ops.where(filled, returns - ops.reshape(value, (-1,)), 0.0), dict[str, Tensor]()
        more = {name: ops.where(ops.reshape(filled, (-1, *(1,) * (len(rows.shape) - 1))), rows, ops.ones_like(rows))
                for name, rows in more.items()}
        if self.settings.actor_critic.normalize_advantages:
            flat_ratio = ops.ones_like(advantage) if ratio is None else ops.where(
                filled, ops.reshape(ratio, (-1,)), 1.0)
            advantage, state["advantage.00"] = self.scaled(advantage, returns, flat_ratio, sample_weights(filled))
        return Prepared({"observation": flat(batch["observation"], 3), "action": ops.reshape(batch["action"], (-1,)),
                         "returns": returns, "advantage": advantage, "filled": filled, **more},
                        state)

    def whole_loss(self, policy: Tensor, value: Tensor, returns: Tensor, policy_losses: Tensor, filled: Tensor,
                   rates: Rates, **metrics: Tensor) -> Loss:
        """Returns policy loss + value_coef * value loss - entropy_coef * entropy (GA3C, section 3).

        It is the mean over the filled samples, or with loss_reduction "sum" their sum. policy: (n, A) for n samples;
        the others: (n,).

        Metrics, means per agent step:
        policy_loss, value_loss and entropy (nats); explained_variance, the share of the returns' variance that the
        value predicted, 1 at best, and at least -1; and the given `metrics`.
        """
        s, weight = self.settings.actor_critic, sample_weights(filled)
        policy_loss = ops.sum(weight * policy_losses)
        value_loss = ops.sum(weight * losses.value_loss(value, returns))
        entropy = ops.sum(weight * losses.entropy(policy, s.log_epsilon))
        total = policy_loss + s.value_coef * value_loss - rates["entropy_coef"] * entropy
        if s.loss_reduction == "sum":
            total = total * ops.cast(ops.sum(ops.cast(filled, "int32")), "float32")
        variance = ops.sum(weight * ops.square(returns - ops.sum(weight * returns)))
        return Loss(total, {
            "policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy,
            # A minibatch with nearly equal returns must not dominate the mean of the whole update.
            "explained_variance": ops.maximum(1.0 - value_loss / ops.maximum(variance, 1e-8), -1.0),
            **{name: ops.sum(weight * metric) for name, metric in metrics.items()}})
