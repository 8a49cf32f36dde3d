"""A3C: what changes an update and what does not, corrections of lag, the scale of advantages."""

from __future__ import annotations

import numpy as np
import pytest
from batches import VECTOR, learn, random_batch, settings, weights

from ga3c.learner.learner import Learner


def test_rollouts_without_a_step_change_nothing() -> None:
    s = settings(normalize_advantages=True, correction="vtrace", loss_reduction="mean")
    alone, filled_up = Learner(s, VECTOR), Learner(s, VECTOR)
    filled_up.restore(*alone.state())
    batch, some = random_batch(5, seed=3), random_batch(5, seed=3)[:2]
    batch.clear(slice(2, None))
    one, two = learn(alone, some), learn(filled_up, batch)
    assert one is not None and two is not None
    assert one.batch_steps == two.batch_steps == 12
    assert one.metrics == pytest.approx(two.metrics, rel=1e-4, abs=1e-6)
    for name, array in weights(alone).items():
        assert np.allclose(array, weights(filled_up)[name], atol=1e-5), name


def test_the_mean_loss_has_the_gradient_of_the_summed_loss_over_the_filled_steps() -> None:
    batch = random_batch()
    batch.steps[:] = [3, 1, 2, 3]
    summed, mean = (learn(Learner(settings(loss_reduction=how), VECTOR), batch).metrics for how in ("sum", "mean"))
    assert summed["gradient_norm"] == pytest.approx(batch.agent_steps * mean["gradient_norm"], rel=1e-5)
    assert summed | {"gradient_norm": 0} == mean | {"gradient_norm": 0}


def test_normalized_advantages_have_mean_0_and_deviation_1_whatever_the_rewards() -> None:
    for size in (1.0, 100.0):
        batch = random_batch(rollout_length=1)
        batch.terminated[:], batch.truncated[:] = True, False
        batch.reward *= size
        s = settings(rollout_length=1, normalize_advantages=True, reward_clip=0.0)
        model = Learner(s, VECTOR)
        outputs, _ = model.predict(batch.observation.reshape(-1, 3))
        policy, value = outputs["policy"], outputs["value"]
        advantage = batch.reward.ravel() - value
        advantage = (advantage - advantage.mean()) / advantage.std()
        likelihood = np.log(policy[np.arange(len(policy)), batch.action.ravel()] + s.actor_critic.log_epsilon)
        assert learn(model, batch).metrics["policy_loss"] == pytest.approx(-(likelihood * advantage).mean(), rel=1e-4)


def test_advantages_that_are_noise_beside_the_returns_are_not_made_as_large_as_others() -> None:
    """A policy that cannot become better must not be moved by what chance did to it (CartPole fell from 500 to 9)."""
    batch = random_batch(rollout_length=1)
    batch.terminated[:], batch.truncated[:] = True, False
    model = Learner(settings(rollout_length=1, normalize_advantages=True, reward_clip=0.0), VECTOR)
    outputs, _ = model.predict(batch.observation.reshape(-1, 3))
    policy, value = outputs["policy"], outputs["value"]
    noise = np.random.default_rng(0).normal(size=value.shape)
    batch.reward[:] = (50.0 + value + 0.2 * noise).reshape(batch.reward.shape)
    advantage = 0.2 * (noise - noise.mean()) / (0.02 * np.sqrt(np.square(batch.reward).mean()))
    likelihood = np.log(policy[np.arange(len(policy)), batch.action.ravel()] + 1e-6)
    assert learn(model, batch).metrics["policy_loss"] == pytest.approx(-(likelihood * advantage).mean(), rel=0.1)


def test_the_scale_of_advantages_is_remembered_across_updates_and_restored() -> None:
    s = settings(normalize_advantages=True)
    model, other = Learner(s, VECTOR), Learner(s, VECTOR)
    learn(model, random_batch(seed=1))
    other.restore(*model.state())
    one, two = (learn(m, random_batch(seed=2)) for m in (model, other))
    assert one.metrics == two.metrics
    fresh = Learner(s, VECTOR)
    fresh.restore({**fresh.state()[0], **weights(model)}, 0)
    assert learn(fresh, random_batch(seed=2)).metrics["policy_loss"] != one.metrics["policy_loss"]


@pytest.mark.parametrize("correction", ["clipped-is", "vtrace"])
def test_corrections_do_nothing_on_policy_and_something_under_lag(correction: str) -> None:
    batch = random_batch()
    plain, corrected, lagging = (Learner(settings(correction=how), VECTOR) for how in ("none", correction, correction))
    played, following = (plain.predict(each.reshape(-1, 3))[0] for each in (batch.observation, batch.following))
    batch.policy[:] = played["policy"].reshape(batch.policy.shape)
    batch.bootstrap_value[:] = following["value"].reshape(batch.bootstrap_value.shape)
    learn(plain, batch)
    learn(corrected, batch)
    for name, array in weights(plain).items():
        assert weights(corrected)[name] == pytest.approx(array, abs=1e-6)
    batch.policy[:] = [0.97, 0.01, 0.01, 0.01]
    learn(lagging, batch)
    assert any(abs(array - weights(lagging)[name]).max() > 1e-5 for name, array in weights(plain).items())


@pytest.mark.parametrize("correction", ["none", "clipped-is", "vtrace"])
def test_a_correction_takes_the_value_of_what_follows_from_the_weights_of_today(correction: str) -> None:
    one, other = Learner(settings(correction=correction), VECTOR), Learner(settings(correction=correction), VECTOR)
    batch = random_batch()
    learn(one, batch)
    batch.bootstrap_value += 5.0  # as recorded, long ago
    learn(other, batch)
    alike = all(np.array_equal(array, weights(other)[name]) for name, array in weights(one).items())
    assert alike == (correction != "none")


def test_explained_variance_of_the_best_constant_value_is_0() -> None:
    batch = random_batch(rollout_length=1)
    batch.terminated[:], batch.truncated[:], batch.reward[:] = True, False, np.clip(batch.reward, -1, 1)
    model = Learner(settings(rollout_length=1), VECTOR)
    names = [name for name, array in weights(model).items() if array.shape in ((64, 1), (1,))]
    state, _ = model.state()
    for name in names:
        state[name] = np.zeros_like(state[name])
    state[next(name for name in names if state[name].shape == (1,))][:] = batch.reward.mean()
    model.restore(state, 0)
    assert learn(model, batch).metrics["explained_variance"] == pytest.approx(0.0, abs=1e-5)


def test_rewards_beyond_the_clip_count_as_the_clip_unless_it_is_off() -> None:
    large, clipped = random_batch(seed=2), random_batch(seed=2)
    clipped.reward[:] = np.clip(clipped.reward, -1, 1)
    results = {}
    for clip in (1.0, 0.0):
        for name, batch in (("large", large), ("clipped", clipped)):
            model = Learner(settings(reward_clip=clip), VECTOR)
            results[clip, name] = learn(model, batch).metrics["value_loss"]
    assert results[1.0, "large"] == results[1.0, "clipped"] == results[0.0, "clipped"] != results[0.0, "large"]
