"""The losses of the papers, per step, as pure functions of tensors.

N steps, A actions. Everything is float32 except actions.
A3C: Mnih et al., ICML 2016. GA3C: Babaeizadeh et al., ICLR 2017.
"""

from __future__ import annotations

from keras import ops

from ga3c.algorithms.base import Tensor


def policy_loss(policy: Tensor, action: Tensor, advantage: Tensor, log_epsilon: float) -> Tensor:
    """-log(pi(a) + eps) A per step (GA3C, equation 5; A = R - V): eps bounds the gradient where lag made pi(a) vanish.

    Args: policy (N, A); action (N,) int; advantage (N,), a constant to the gradient. Returns (N,).
    """
    assert len(policy.shape) == 2 and len(advantage.shape) == 1
    chosen = ops.sum(policy * ops.one_hot(action, policy.shape[1]), axis=1)
    return -ops.log(chosen + log_epsilon) * ops.stop_gradient(advantage)


def entropy(policy: Tensor, log_epsilon: float) -> Tensor:
    """-sum_a pi(a) log(pi(a) + eps) in nats (GA3C, equation 5). policy (N, A). Returns (N,)."""
    return -ops.sum(policy * ops.log(policy + log_epsilon), axis=1)


def value_loss(value: Tensor, returns: Tensor) -> Tensor:
    """(R - V)^2 per step (GA3C, equation 4). Both (N,). Returns (N,)."""
    return ops.square(ops.stop_gradient(returns) - value)
