"""The paper's mathematics as pure functions of tensors, in `keras.ops`.

Index order: B rollouts, T steps, E environments, A actions. Everything is float32 except masks and actions.
A3C: Mnih et al., ICML 2016. GA3C: Babaeizadeh et al., ICLR 2017.
"""

from __future__ import annotations

from typing import Any

from keras import ops

Tensor = Any  # a tensor of whatever backend Keras runs on


def n_step_returns(reward: Tensor, terminated: Tensor, truncated: Tensor, filled: Tensor,
                   final_value: Tensor, bootstrap_value: Tensor, gamma: float) -> Tensor:
    """R_t = r_t + gamma R_{t+1} within each rollout (A3C, algorithm S3; GA3C, equation 3).

    What follows step t is worth 0 if it terminated its episode, `final_value` if it truncated it, R_{t+1} if the
    episode goes on, and `bootstrap_value` after the last filled step. The terminal reward itself always counts.

    Args:
        reward, final_value: (B, T, E); terminated, truncated: (B, T, E) bool; filled: (B, T, 1) bool;
        bootstrap_value: (B, E).
    Returns:
        (B, T, E); rows that are not filled repeat the bootstrap value and must be masked.
    """
    assert len(reward.shape) == 3 and len(bootstrap_value.shape) == 2
    following = bootstrap_value
    returns = []
    for t in reversed(range(reward.shape[1])):
        after = ops.where(truncated[:, t], final_value[:, t], following)
        now = reward[:, t] + gamma * ops.where(terminated[:, t], 0.0, after)
        following = ops.where(filled[:, t], now, following)
        returns.append(following)
    return ops.stack(returns[::-1], axis=1)


def policy_loss(policy: Tensor, action: Tensor, advantage: Tensor, log_epsilon: float) -> Tensor:
    """-log(pi(a) + eps) (R - V) per step (GA3C, equation 5): eps bounds the gradient where lag made pi(a) vanish.

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
