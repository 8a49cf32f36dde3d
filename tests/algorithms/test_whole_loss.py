"""What an update does to the heads: a step down the whole loss by slow NumPy, under lag and on cut rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from batches import DESCENT, VECTOR, learn, random_batch, settings, slow_targets, weights

from ga3c.algorithms.base import annealed, rates_at
from ga3c.learner.learner import Learner, make_algorithm
from ga3c.settings.schema import Settings
from ga3c.transport.slots import Batch

STEP = 0.1  # DESCENT's rate
H = 1e-4


def weighted(policy: np.ndarray, batch: Batch, epsilon: float) -> np.ndarray:
    """min(1, pi / mu) of the actions, (B, T, E)."""
    pi, mu = (np.take_along_axis(each, batch.action[..., None], -1)[..., 0] for each in (policy, batch.policy))
    return np.minimum(1.0, pi / (mu + epsilon))


def slow_samples(s: Settings, batch: Batch, policy: np.ndarray, value: np.ndarray, following: np.ndarray
                 ) -> tuple[np.ndarray, np.ndarray]:
    """(returns, advantages) of the filled steps, (n,) each, by the papers; `value` is the network's."""
    a = s.actor_critic
    ratio = weighted(policy, batch, a.log_epsilon)
    none = np.ones(ratio.shape)
    if s.algorithm.algorithm in ("a2c", "ppo"):  # the acting weights' own
        ratio, (returns, advantage) = none, slow_targets(s, batch, batch.value, batch.bootstrap_value, none)
    elif s.algorithm.algorithm == "appo":
        returns, advantage = slow_targets(s, batch, value, following, ratio)
    elif s.a3c.correction == "vtrace":
        returns, advantage = slow_targets(s, batch, value, following, ratio)
    elif s.a3c.correction == "clipped-is":
        returns, lead = slow_targets(s, batch, value, following, none)
        advantage = ratio * lead
    else:
        ratio, (returns, advantage) = none, slow_targets(s, batch, value, batch.bootstrap_value, none)
    filled = np.broadcast_to(batch.filled, returns.shape)
    returns, advantage, ratio = returns[filled], advantage[filled], ratio[filled]
    if a.normalize_advantages:
        advantage = advantage - ratio * advantage.mean() / ratio.mean()
        deviation = max(np.sqrt((advantage**2).mean()), 0.02 * np.sqrt((returns**2).mean()))
        advantage = advantage / deviation
    return returns, advantage


def slow_gradients(s: Settings, batch: Batch, model: Learner, later: Learner | None = None) -> tuple[np.ndarray, float]:
    """The whole loss's derivatives by the biases of the policy's (A,) and of the value's head, by differences.

    later: of a further pass, whose targets are the `model`'s.
    """
    a = s.actor_critic

    def outputs_of(learner: Learner) -> tuple[np.ndarray, np.ndarray]:
        outputs, _ = learner.predict(batch.observation.reshape(-1, 3))
        return (outputs["policy"].reshape(batch.policy.shape).astype(np.float64),
                outputs["value"].reshape(batch.value.shape).astype(np.float64))

    policy, value = outputs_of(model)
    following = model.predict(batch.following.reshape(-1, 3))[0]["value"].reshape(len(batch), 2)
    returns, advantage = slow_samples(s, batch, policy, value, following)
    filled = np.broadcast_to(batch.filled, batch.reward.shape)
    proximal = (batch.policy if s.algorithm.algorithm == "ppo" else policy)[filled]
    policy, value = outputs_of(later or model)
    action, policy, value = batch.action[filled], policy[filled], value[filled]
    proximal = proximal[np.arange(len(action)), action] + a.log_epsilon

    def loss(logits: np.ndarray, shift: float) -> float:
        pi = policy * np.exp(logits)
        pi /= pi.sum(axis=1, keepdims=True)
        chosen = pi[np.arange(len(action)), action] + a.log_epsilon
        gain = np.log(chosen) * advantage
        if s.algorithm.algorithm in ("ppo", "appo"):
            ratio = chosen / proximal
            gain = np.minimum(ratio * advantage, np.clip(ratio, 1 - s.ppo.clip_range, 1 + s.ppo.clip_range) * advantage)
        entropy = -(pi * np.log(pi + a.log_epsilon)).sum(axis=1)
        return float((-gain + a.value_coef * (returns - value - shift)**2
                      - a.entropy_coef * entropy).mean())

    slopes = [(loss(H * each, 0.0) - loss(-H * each, 0.0)) / (2 * H) for each in np.eye(policy.shape[1])]
    return np.array(slopes), (loss(np.zeros(4), H) - loss(np.zeros(4), -H)) / (2 * H)


@pytest.mark.parametrize(("normalized", "cut"), [(False, False), (True, True)])
@pytest.mark.parametrize("kind", [
    {"algorithm": "a3c", "correction": "none"}, {"algorithm": "a3c", "correction": "clipped-is"},
    {"algorithm": "a3c", "correction": "vtrace"}, {"algorithm": "a2c"}, {"algorithm": "ppo"}, {"algorithm": "appo"}])
def test_one_update_is_a_step_down_the_whole_loss(kind: dict[str, Any], normalized: bool, cut: bool) -> None:
    lambda_ = 1.0 if kind["algorithm"] == "a3c" else 0.9
    s = settings(**{**DESCENT, **kind, "gae_lambda": lambda_, "normalize_advantages": normalized,
                    "entropy_coef": 0.7, "value_coef": 0.3, "clip_range": 0.2, "log_epsilon": 0.01})
    model, batch = Learner(s, VECTOR), random_batch(6, seed=9)
    if cut:
        batch.steps[:] = [3, 1, 2, 3, 0, 2]
    far_from_uniform = {name: 100 * array for name, array in weights(model).items() if array.shape[-1] == 4}
    model.restore(model.state()[0] | far_from_uniform, 0)  # else the entropy has no slope
    policy_head, value_head = ([name for name, array in weights(model).items() if array.shape == (n,)] for n in (4, 1))
    (logits,), (baseline,) = policy_head, value_head
    by_logits, by_value = slow_gradients(s, batch, model)
    before = weights(model)
    assert learn(model, batch) is not None
    after = weights(model)
    np.testing.assert_allclose(after[logits] - before[logits], -STEP * by_logits, rtol=5e-3, atol=2e-5)
    np.testing.assert_allclose(after[baseline] - before[baseline], -STEP * by_value, rtol=5e-3, atol=2e-5)
    assert np.abs(by_logits).max() > 0.01 and abs(by_value) > 1e-3


@pytest.mark.parametrize("algorithm", ["ppo", "appo", "a3c"])
def test_a_second_pass_is_a_step_down_the_loss_whose_targets_are_of_before_the_first(algorithm: str) -> None:
    """A3C's are of the pass itself."""
    own: dict[str, Any] = {"correction": "vtrace", "gae_lambda": 1.0} if algorithm == "a3c" else {
        "normalize_advantages": True}

    def asked(passes: int) -> Settings:
        return settings(**{**DESCENT, "algorithm": algorithm, "entropy_coef": 0.7, "value_coef": 0.3,
                           "clip_range": 0.05, "log_epsilon": 0.01, "passes": passes, **own})

    def learner(passes: int) -> Learner:
        made = Learner(asked(passes), VECTOR)
        far_from_uniform = {name: 100 * array for name, array in weights(made).items() if array.shape[-1] == 4}
        made.restore(made.state()[0] | far_from_uniform, 0)
        return made

    before, once, twice, batch = learner(1), learner(1), learner(2), random_batch(6, seed=9)
    for model in (once, twice):
        assert learn(model, batch) is not None
    slopes = slow_gradients(asked(2), batch, once if algorithm == "a3c" else before, once)
    first, second = weights(once), weights(twice)
    for n, slope in zip((4, 1), slopes, strict=True):
        name, = (name for name, array in first.items() if array.shape == (n,))
        np.testing.assert_allclose(second[name] - first[name], -STEP * slope, rtol=5e-3, atol=2e-5)
    assert np.abs(slow_gradients(asked(1), batch, before)[0] - slopes[0]).max() > 0.01, "the passes differ"


def test_the_rates_of_an_update_follow_the_agent_steps() -> None:
    chosen = settings(learning_rate=0.4, learning_rate_final=0.2, entropy_coef=0.1, entropy_coef_final=0.0,
                      clip_range=0.3, clip_range_final=0.1, algorithm="ppo")
    numbers = annealed(chosen.algorithm, make_algorithm(chosen))
    for agent_steps, expected in ((0, (0.4, 0.1, 0.3)), (50, (0.3, 0.05, 0.2)), (500, (0.2, 0.0, 0.1))):
        assert rates_at(numbers, 100, agent_steps, 1.0) == pytest.approx(
            dict(zip(("learning_rate", "entropy_coef", "clip_range"), expected, strict=True)))
    assert rates_at(numbers, 100, 0, 0.5)["learning_rate"] == pytest.approx(0.2)


def test_the_rates_reach_the_weights() -> None:
    def moved(**changes: Any) -> dict[str, np.ndarray]:
        model = Learner(settings(**{**DESCENT, "anneal_steps": 1, **changes}), VECTOR)
        model.learning_rate_factor = changes.pop("factor", 1.0)
        before = weights(model)
        learn(model, random_batch(seed=3), 1)  # all that was to fall has
        return {name: array - before[name] for name, array in weights(model).items()}

    plain, half = moved(), Learner(settings(**DESCENT), VECTOR)
    before, half.learning_rate_factor = weights(half), 0.5
    learn(half, random_batch(seed=3))
    for name, array in weights(half).items():
        np.testing.assert_allclose(array - before[name], 0.5 * plain[name], atol=1e-5)
    assert max(np.abs(array).max() for array in plain.values()) > 1e-2
    assert max(np.abs(array).max() for array in moved(learning_rate_final=0.0).values()) == 0.0
    low, high = moved(entropy_coef_final=0.0), moved(entropy_coef=0.0)
    assert all(np.array_equal(low[name], high[name]) for name in low)
