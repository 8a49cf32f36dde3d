"""The agent's loop, driven by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from ga3c.agents.loop import Progress, agent_seed, play, reward_discount, seeded
from ga3c.algorithms.acting import BY_POLICY
from ga3c.envs.base import Transition
from ga3c.envs.factory import make_environment
from ga3c.envs.toys import Counting
from ga3c.settings.files import configured
from ga3c.settings.schema import Settings
from ga3c.transport.port import DRAIN, GO_ON, PREDICT, SUBMIT, TAKE
from ga3c.transport.slots import Slots


class Driver:
    """Grants an agent's requests: slots in order, the policy and value given."""

    def __init__(self, settings: Settings, policy: list[float], slots: int = 100, first: int = 0,
                 again: bool = False) -> None:
        self.environment = make_environment(settings, settings.agents.envs_per_agent)
        self.environment.reset(5)
        n_envs = settings.agents.envs_per_agent
        self.store = Slots(self.environment.spec, settings.algorithm.rollout_length, n_envs, slots,
                           discounted=settings.algorithm.normalize_rewards)
        self.rng, self.progress = np.random.default_rng(0), Progress.new(n_envs, first)
        self.player = play(self.environment, self.store, self.rng, BY_POLICY, at=self.progress, again=again,
                           discount=reward_discount(settings.algorithm))
        self.policy = policy
        self.submitted: list[int] = []
        self.taken = 0
        self.predictions = 0
        self.request = next(self.player)

    def until_prediction(self) -> tuple[int, int]:
        while self.request[0] != PREDICT:
            kind, slot, _ = self.request
            if kind == TAKE:
                grant, self.taken = self.taken, self.taken + 1
            else:
                assert kind == SUBMIT
                self.submitted.append(slot)
                grant = GO_ON
            self.request = self.player.send(grant)
        return self.request[1:]

    def answer(self, granted: int = GO_ON) -> None:
        slot, row = self.until_prediction()
        self.predictions += 1
        self.store.policy[slot, row] = self.policy
        self.store.value[slot, row] = self.predictions
        self.request = self.player.send(granted)


def counting(rollout_length: int = 4, n_envs: int = 2) -> Settings:
    return configured(game="toy:counting", rollout_length=rollout_length, envs_per_agent=n_envs)


def test_a_rollout_holds_the_facts_and_is_submitted_with_the_value_after_its_last_step() -> None:
    driver = Driver(counting(rollout_length=2), [0.0, 1.0])
    while not driver.submitted:
        driver.answer()
        driver.until_prediction()
    store, slot = driver.store, driver.submitted[0]
    assert store.observation[slot, :2, :, 8].tolist() == [[0, 0], [1, 1]]
    assert store.reward[slot].tolist() == [[1, 1], [2, 2]]
    assert store.action[slot].tolist() == [[1, 1], [1, 1]]
    assert store.steps[slot] == 2
    assert store.value[slot, :2, 0].tolist() == [1, 2]
    assert store.bootstrap_value[slot].tolist() == [3, 3]


def test_where_an_update_comes_between_the_prediction_is_asked_for_again_and_acted_by() -> None:
    driver = Driver(counting(rollout_length=2), [1.0, 0.0], again=True)
    for _ in range(3):
        driver.answer()
    assert driver.until_prediction() == (1, 0) and driver.submitted == [0]
    assert driver.store.bootstrap_value[0].tolist() == [3, 3]
    driver.policy = [0.0, 1.0]
    driver.answer()
    assert driver.until_prediction() == (1, 1) and driver.predictions == 4
    assert driver.store.action[1, 0].tolist() == [1, 1] and driver.store.value[1, 0].tolist() == [4, 4]
    for _ in range(2):
        driver.answer()
    driver.until_prediction()
    assert driver.submitted == [0, 1] and driver.store.steps[:2].tolist() == [2, 2]


def test_the_first_rollout_may_be_shorter_and_loses_nothing() -> None:
    driver = Driver(counting(rollout_length=4), [1.0, 0.0], first=3)
    while len(driver.submitted) < 3:
        driver.answer()
        driver.until_prediction()
    store = driver.store
    assert store.steps[:3].tolist() == [3, 4, 4]
    seen = [store.observation[slot, step, 0, 4:].view("<u4").tolist() for slot in range(3)
            for step in range(store.steps[slot])]
    assert seen == [[episode, step] for episode in range(5) for step in range(Counting.length(episode))][:11]


def test_the_bootstrap_prediction_is_also_the_first_of_the_next_rollout() -> None:
    driver = Driver(counting(rollout_length=2), [1.0, 0.0])
    for _ in range(3):
        driver.answer()
    driver.until_prediction()
    assert driver.predictions == 3 and driver.submitted == [0]
    assert driver.store.value[1, 0].tolist() == driver.store.bootstrap_value[0].tolist() == [3, 3]


def test_a_truncated_episode_keeps_the_value_of_its_last_observation() -> None:
    length = Counting.length(0) + Counting.length(1)  # the second episode is the first that is truncated
    driver = Driver(counting(rollout_length=length, n_envs=1), [1.0, 0.0])
    store, final = driver.store, []
    while not driver.submitted:
        slot, row = driver.until_prediction()
        if row == length:
            final.append(store.following[slot, 0, [4, 8]].tolist())
        driver.answer()
        driver.until_prediction()
    assert np.flatnonzero(store.truncated[0, :, 0]).tolist() == [length - 1]
    assert np.flatnonzero(store.terminated[0, :, 0]).tolist() == [Counting.length(0) - 1]
    assert final == [[1, Counting.length(1)]]
    assert store.following[0, 0, [4, 8]].tolist() == [2, 0], "what follows the last step"
    # Predictions count 1, 2, ...: one for each step, then the final observation's, then the bootstrap's.
    assert store.final_value[0, length - 1, 0] == length + 1
    assert store.bootstrap_value[0, 0] == length + 2


def test_rewards_are_added_up_discounted_from_the_start_of_each_episode_across_rollouts() -> None:
    gamma, length = 0.9, 4
    driver = Driver(counting(length).changed(normalize_rewards=True, gamma=gamma), [1.0, 0.0])
    while len(driver.submitted) < 12:
        driver.answer()
        driver.until_prediction()
    store, so_far = driver.store, [0.0, 0.0]
    for slot in driver.submitted:
        for t in range(length):
            for env in range(2):
                so_far[env] = gamma * so_far[env] + float(store.reward[slot, t, env])
                assert store.discounted_reward[slot, t, env] == pytest.approx(so_far[env], rel=1e-6)
                if store.terminated[slot, t, env] or store.truncated[slot, t, env]:
                    so_far[env] = 0.0
    assert store.terminated[:12].any() and store.truncated[:12].any()


def test_where_rewards_are_not_normalised_nothing_is_added_up() -> None:
    driver = Driver(counting(), [1.0, 0.0])
    driver.answer()
    driver.until_prediction()
    assert driver.progress.discounted == [] and "discounted_reward" not in driver.store.facts()
    of_before = {name: value for name, value in vars(driver.progress).items() if name != "discounted"}
    assert Progress(**of_before) == driver.progress, "a checkpoint made before there were such sums"


def test_scores_and_lengths_are_of_whole_episodes_across_rollouts() -> None:
    driver = Driver(counting(rollout_length=2, n_envs=1), [1.0, 0.0])
    while len(driver.submitted) < 20:
        driver.answer()
        driver.until_prediction()
    ended = driver.store.episode_length[:20, :, 0] > 0
    lengths = driver.store.episode_length[:20, :, 0][ended]
    assert lengths.tolist() == [Counting.length(episode) for episode in range(len(lengths))]
    assert driver.store.score[:20, :, 0][ended].tolist() == [n * (n + 1) / 2 for n in lengths.tolist()]
    assert np.isnan(driver.store.score[:20, :, 0][~ended]).all()


def test_an_episode_that_was_cut_short_has_no_score_and_the_next_has_all_of_its_own() -> None:
    driver = Driver(counting(rollout_length=2, n_envs=1), [1.0, 0.0])
    step = driver.environment.step

    def cut_short(action: np.ndarray) -> Transition:
        told = step(action)
        return told._replace(score_ended=told.terminated)  # every second episode of this world is truncated

    driver.environment.step = cut_short  # type: ignore[method-assign]
    while len(driver.submitted) < 30:
        driver.answer()
        driver.until_prediction()
    lengths = driver.store.episode_length[:30, :, 0]
    whole = lengths[lengths > 0].tolist()
    assert len(whole) > 3 and whole == [Counting.length(2 * number) for number in range(len(whole))]
    assert driver.store.score[:30, :, 0][lengths > 0].tolist() == [n * (n + 1) / 2 for n in whole]


def test_a_score_is_of_the_whole_game_though_the_learners_episodes_end_with_each_life() -> None:
    driver = Driver(counting(rollout_length=2, n_envs=1), [1.0, 0.0])
    step = driver.environment.step

    def with_lives(action: np.ndarray) -> Transition:
        told = step(action)  # a game has two lives: this world truncates every second episode
        return told._replace(score_ended=told.truncated, score=7 * told.reward)

    driver.environment.step = with_lives  # type: ignore[method-assign]
    while len(driver.submitted) < 40:
        driver.answer()
        driver.until_prediction()
    ended = driver.store.episode_length[:40, :, 0] > 0
    lives = [(Counting.length(2 * number), Counting.length(2 * number + 1)) for number in range(ended.sum())]
    assert len(lives) > 2 and driver.store.episode_length[:40, :, 0][ended].tolist() == list(map(sum, lives))
    assert driver.store.score[:40, :, 0][ended].tolist() == [
        7 * sum(n * (n + 1) / 2 for n in game) for game in lives], "by the score of the game, not by the reward"


@pytest.mark.parametrize("steps_before", range(7))
def test_a_drained_agent_submits_every_step_it_has_played_and_ends(steps_before: int) -> None:
    driver = Driver(counting(rollout_length=2, n_envs=3), [1.0, 0.0])
    played = 0
    while played < steps_before:
        slot, row = driver.until_prediction()
        played += row < 2
        driver.answer()
    driver.until_prediction()
    with pytest.raises(StopIteration):
        driver.answer(DRAIN)
        while True:
            driver.until_prediction()
            driver.answer(DRAIN)
    assert driver.store.steps[driver.submitted].sum() == played
    for slot in driver.submitted:
        end = driver.store.steps[slot]
        assert end == 2 or (driver.store.following[slot] == driver.store.observation[slot, end]).all()


@pytest.mark.parametrize("predictions", range(1, 40))
def test_an_agent_goes_on_from_its_progress_as_if_it_had_never_been_saved(predictions: int) -> None:
    driver, undisturbed = (Driver(counting(rollout_length=3, n_envs=2), [0.5, 0.5]) for _ in range(2))
    for _ in range(predictions):  # each of them a moment at which it may be saved
        driver.answer()
        driver.until_prediction()
    driver.player = play(driver.environment, driver.store, driver.rng, BY_POLICY, 0, copy.deepcopy(driver.progress),
                         resumed=True)
    before, driver.request = driver.request, next(driver.player)
    assert driver.request == before
    for each in (driver, undisturbed):
        while len(each.submitted) < 30:
            each.answer()
            each.until_prediction()
    assert driver.submitted == undisturbed.submitted
    for name, facts in driver.store.facts().items():
        assert np.array_equal(facts, getattr(undisturbed.store, name), equal_nan=facts.dtype.kind == "f"), name


def test_actions_follow_the_policy() -> None:
    driver = Driver(configured(game="toy:catch", rollout_length=50, envs_per_agent=20), [0.5, 0.2, 0.3])
    while len(driver.submitted) < 4:
        driver.answer()
        driver.until_prediction()
    frequency = np.bincount(driver.store.action[:4].ravel(), minlength=3) / driver.store.action[:4].size
    assert frequency == pytest.approx([0.5, 0.2, 0.3], abs=0.03)  # 4,000 draws: three standard errors are 0.024


def test_an_action_of_probability_zero_is_never_chosen_even_if_the_rest_sums_to_less_than_one() -> None:
    driver = Driver(configured(game="toy:catch", rollout_length=50, envs_per_agent=20), [0.0, 0.9999, 0.0])
    while len(driver.submitted) < 2:
        driver.answer()
        driver.until_prediction()
    assert set(driver.store.action[:2].ravel().tolist()) == {1}


def test_every_agent_generation_and_resume_has_its_own_seed() -> None:
    settings = configured(seed=3)
    seeds = {seeded(agent_seed(settings, agent, generation, resumed))[0]
             for agent in range(20) for generation in range(5) for resumed in (0, 1000)}
    assert len(seeds) == 200
    assert seeded(agent_seed(settings, 1, 1, 0))[0] == seeded(agent_seed(configured(seed=3), 1, 1, 0))[0]
