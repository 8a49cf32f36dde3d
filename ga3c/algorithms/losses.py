"""The losses of the papers, per step, as pure functions of tensors.

N steps, A actions. Everything is float32 except actions.
A3C: Mnih et al., ICML 2016. GA3C: Babaeizadeh et al., ICLR 2017.
"""

from __future__ import annotations

from keras import ops

from ga3c.algorithms.base import Tensor


def chosen(policy: Tensor, action: Tensor) -> Tensor:
    """Returns (N,): the probability of the action (N,) int in the policy (N, A)."""
    assert len(policy.shape) == 2
    return ops.sum(policy * ops.one_hot(action, policy.shape[1]), axis=1)


def policy_loss(policy: Tensor, action: Tensor, advantage: Tensor, log_epsilon: float) -> Tensor:
    """-log(pi(a) + eps) A per step (GA3C, equation 5; A = R - V): eps bounds the gradient where lag made pi(a) vanish.

    Args: policy (N, A); action (N,) int; advantage (N,), a constant to the gradient. Returns (N,).
    """
    assert len(advantage.shape) == 1
    return -ops.log(chosen(policy, action) + log_epsilon) * ops.stop_gradient(advantage)


def clipped_loss(ratio: Tensor, advantage: Tensor, clip: Tensor | float) -> Tensor:
    """-min(r A, clip(r, 1 - c, 1 + c) A) per step (PPO: Schulman et al., 2017, equation 7). All (N,), or clip a scalar.

    ratio: pi(a) over its probability before the first pass; advantage: a constant to the gradient. Returns (N,).
    """
    assert len(ratio.shape) == len(advantage.shape) == 1
    advantage = ops.stop_gradient(advantage)
    return -ops.minimum(ratio * advantage, ops.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def entropy(policy: Tensor, log_epsilon: float) -> Tensor:
    """-sum_a pi(a) log(pi(a) + eps) in nats (GA3C, equation 5). policy (N, A). Returns (N,)."""
    return -ops.sum(policy * ops.log(policy + log_epsilon), axis=1)


def huber(error: Tensor) -> Tensor:
    """Returns e^2 / 2 where |e| <= 1, else |e| - 1/2, for errors of any shape. Its gradient is e clipped to [-1, 1]."""
    size = ops.abs(error)
    return ops.where(size <= 1.0, 0.5 * ops.square(error), size - 0.5)


def value_loss(value: Tensor, returns: Tensor) -> Tensor:
    """(R - V)^2 per step (GA3C, equation 4). Both (N,). Returns (N,)."""
    return ops.square(ops.stop_gradient(returns) - value)
