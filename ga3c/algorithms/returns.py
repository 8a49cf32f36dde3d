"""Returns and importance ratios of rollouts, as pure functions of tensors.

Index order: B rollouts, T steps, E environments, A actions. Everything is float32 except masks and actions.
V-trace: Espeholt et al., IMPALA, ICML 2018. Generalised advantage estimation: Schulman et al., ICLR 2016.
"""

from __future__ import annotations

from keras import ops

from ga3c.algorithms.base import Tensor
from ga3c.algorithms.losses import chosen


def vtrace_returns(reward: Tensor, terminated: Tensor, truncated: Tensor, filled: Tensor, value: Tensor,
                   final_value: Tensor, bootstrap_value: Tensor, ratio: Tensor, gamma: float, lam: float) -> Tensor:
    """R_t = V_t + ratio_t (r_t + gamma V_{t+1} - V_t + gamma lam (R_{t+1} - V_{t+1})) within each rollout.

    V-trace with both truncation levels equal, so that its advantage is R_t - V_t, too (IMPALA: Espeholt et al., 2018,
    equation 1 and remark 2). With ratio = 1 it is the lambda-return, whose advantage is generalised advantage
    estimation (Schulman et al., 2016, equation 16); with lam = 1 as well, the n-step return R_t = r_t + gamma R_{t+1}
    (A3C, algorithm S3; GA3C, equation 3).

    V_{t+1} is 0 if step t terminated its episode, `final_value` if it truncated it, and `bootstrap_value` after the
    last filled step. The terminal reward itself always counts.

    Args:
        reward, value, final_value: (B, T, E); terminated, truncated: (B, T, E) bool; filled: (B, T, 1) bool;
        bootstrap_value: (B, E); ratio: (B, T, E), the truncated target over behaviour probability of the action.
    Returns:
        (B, T, E); 0 in rows that are not filled, whatever they hold.
    """
    assert len(reward.shape) == 3 and len(bootstrap_value.shape) == 2
    beyond = bootstrap_value[:, None]
    baseline = ops.where(filled, value, beyond)
    next_value = ops.concatenate([baseline[:, 1:], beyond], axis=1)
    worth = ops.where(terminated, 0.0, ops.where(truncated, final_value, next_value))
    # With A = R - V: A_t = surprise_t + carry_t A_{t+1}. Summed by doubling: row by row it would be hundreds of
    # operations, and each costs the same for one row as for all.
    advantage = ops.where(filled, ratio * (reward + gamma * worth - value), 0.0)
    carry = ops.where(filled & ~(terminated | truncated), gamma * lam * ratio, 0.0)
    reach = 1
    while reach < reward.shape[1]:
        advantage = advantage + carry * _later(advantage, reach)
        carry = carry * _later(carry, reach)
        reach *= 2
    return ops.where(filled, baseline + advantage, 0.0)


def _later(rows: Tensor, steps: int) -> Tensor:
    """Returns the rows that stand `steps` later in (B, T, E), 0 after the last."""
    return ops.pad(rows[:, steps:], ((0, 0), (0, steps), (0, 0)))


def importance_ratio(policy: Tensor, behaviour: Tensor, action: Tensor, log_epsilon: float) -> Tensor:
    """Returns min(1, pi(a) / mu(a)) per step (IMPALA, rho and c with both levels 1), a constant to the gradient.

    Args: policy, behaviour (N, A); action (N,) int. Returns (N,) in [0, 1].
    """
    ratio = chosen(policy, action) / (chosen(behaviour, action) + log_epsilon)
    return ops.stop_gradient(ops.minimum(ratio, 1.0))


def centred(advantage: Tensor, ratio: Tensor, weight: Tensor) -> Tensor:
    """Returns A - ratio c, where c is such that the weighted mean is 0.

    The advantage A already contains the ratio, as V-trace's does. So c is a baseline like V. Subtracted with full
    weight, c would push an action with a ratio near 0 the other way.

    Args: all (N,); weight sums to 1. Returns (N,).
    """
    return advantage - ratio * ops.sum(weight * advantage) / (ops.sum(weight * ratio) + 1e-8)
