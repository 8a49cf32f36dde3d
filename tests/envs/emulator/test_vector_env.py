"""`AtariVectorEnv` beside ale-py's: what both show is the same, step by step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import ale_py
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from ga3c.envs.emulator import AtariVectorEnv
from ga3c.envs.emulator.vector_env import _below, _uniform


def side_by_side(game: str, n: int, steps: int, seed: int = 0, **options: object) -> Iterator[tuple]:
    """Plays both with random actions; compares all they show and gives (terminated, truncated, infos)."""
    with closing(ale_py.AtariVectorEnv(game, n, **options)) as theirs, closing(
            AtariVectorEnv(game, n, **options)) as ours:
        for space in ("observation_space", "action_space", "single_observation_space", "single_action_space"):
            assert getattr(ours, space) == getattr(theirs, space)
        assert ours.metadata == theirs.metadata
        seen, info = ours.reset(seed=seed)
        expected, expected_info = theirs.reset(seed=seed)
        rng, last_ones = np.random.default_rng(seed), 0
        for step in range(steps):
            np.testing.assert_array_equal(seen, expected, f"step {step}")
            assert seen.dtype == expected.dtype and list(info) == list(expected_info)
            ended = np.zeros(n, np.bool_)
            for name, value in expected_info.items():
                assert info[name].dtype == value.dtype
                if name != "final_obs":
                    np.testing.assert_array_equal(info[name], value, f"{name}, step {step}")
            action = rng.integers(ours.single_action_space.n, size=n)
            seen, reward, terminated, truncated, info = ours.step(action)
            expected, *facts, expected_info = theirs.step(action)
            for mine, theirs_ in zip((reward, terminated, truncated), facts, strict=True):
                assert mine.dtype == theirs_.dtype
                np.testing.assert_array_equal(mine, theirs_, f"step {step}")
            if "final_obs" in info:
                ended = (seen[:, :-1] == 0).all((1, 2, 3)) & (terminated | truncated)
                np.testing.assert_array_equal(info["final_obs"][ended], expected_info["final_obs"][ended])
                last_ones += int(ended.sum())
            yield terminated, truncated, info
        assert last_ones or options.get("autoreset_mode") != "SameStep", "no episode's last picture was compared"


@pytest.mark.parametrize(("game", "options", "ends"), [
    ("boxing", {}, False), ("breakout", {"autoreset_mode": "SameStep"}, True),
    pytest.param("breakout", {"episodic_life": True}, True, marks=pytest.mark.slow),
    ("breakout", {"life_loss_info": True, "autoreset_mode": "SameStep"}, True),
    pytest.param("freeway", {"noop_max": 3}, False, marks=pytest.mark.slow),
    ("breakout", {"max_num_frames_per_episode": 98}, True),
    ("boxing", {"max_num_frames_per_episode": 99, "autoreset_mode": "SameStep"}, True),
    ("boxing", {"grayscale": False, "stack_num": 1, "maxpool": False}, False),
    ("boxing", {"frameskip": 1, "img_height": 210, "img_width": 160, "full_action_space": True}, False),
    ("berzerk", {}, False), pytest.param("montezuma_revenge", {"num_threads": 3}, False, marks=pytest.mark.slow),
    pytest.param("breakout", {"frameskip": 3, "img_height": 42, "use_fire_reset": False, "reward_clipping": False},
                 False, marks=pytest.mark.slow)])
def test_all_that_ale_pys_shows(game: str, options: dict[str, object], ends: bool) -> None:
    ended = sum(int((terminated | truncated).sum()) for terminated, truncated, _ in side_by_side(
        game, 3, 220, 5, **options))
    assert ended or not ends


def test_threads_change_nothing() -> None:
    with closing(AtariVectorEnv("breakout", 5, num_threads=1)) as one, closing(
            AtariVectorEnv("breakout", 5, num_threads=3)) as three:
        np.testing.assert_array_equal(one.reset(seed=1)[0], three.reset(seed=1)[0])
        for step in range(60):
            action = np.arange(step, step + 5) % 4
            for mine, theirs in zip(one.step(action)[:4], three.step(action)[:4], strict=True):
                np.testing.assert_array_equal(mine, theirs)


def test_some_may_be_reset_alone() -> None:
    def played(make: type) -> list[np.ndarray]:
        seen = []
        with closing(make("boxing", 3)) as env:
            env.reset(seed=4)
            for seed, mask in ((None, [True, False, True]), (7, [False, True, True]),
                               (np.array([3, -1]), [True, True, False])):
                env.step(np.array([1, 2, 3]))
                observation, info = env.reset(seed=seed, options={"reset_mask": np.array(mask)})
                seen += [observation, *info.values()]
        return seen

    for mine, theirs in zip(played(AtariVectorEnv), played(ale_py.AtariVectorEnv), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("options", "told"), [
    ({"game": "nope"}, "game must be"), ({"num_envs": 0}, "num_envs must be"),
    ({"batch_size": 1}, "batch_size must be"), ({"continuous": True}, "continuous must be False"),
    ({"frameskip": 0}, "frameskip must be"),
    ({"autoreset_mode": AutoresetMode.DISABLED}, "autoreset_mode must be"), ({"stack_num": 0}, "stack_num must be")])
def test_what_there_is_not_is_refused_in_one_line(options: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        AtariVectorEnv(**{"game": "boxing", "num_envs": 2, **options})


def test_wrong_calls_are_refused() -> None:
    with closing(AtariVectorEnv("boxing", 2)) as env:
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(np.zeros(2, np.int64))
        with pytest.raises(ValueError, match="first reset"):
            env.reset(options={"reset_mask": np.array([True, False])})
        env.reset(seed=0)
        for action in (np.zeros(3, np.int64), np.zeros(2), np.array([0, 18]), np.array([-1, 0])):
            with pytest.raises(ValueError, match="actions must be"):
                env.step(action)
        for seed, mask, kind in (([1, 2], None, TypeError), (np.array([1]), None, ValueError),
                                 (2**31, None, ValueError), (0, [True, True], TypeError),
                                 (0, np.array([True]), ValueError)):
            with pytest.raises(kind):
                env.reset(seed=seed, options={"reset_mask": mask})


def test_actions_stick_with_their_probability_and_by_the_seed() -> None:
    with closing(AtariVectorEnv("boxing", 8, repeat_action_probability=0.25, num_threads=1)) as env:
        env.reset(seed=0)
        late, first = [], []
        for step in range(600):
            action = np.full(8, 2 + step % 2)
            played = env._frame_actions(action)
            first.append(played)
            late.append(played != env._actions[action][:, None])
        expected = 0.25 ** np.arange(1, 5)
        error = np.abs(np.mean(late[1:], (0, 1)) - expected)
        assert (error < 4 * np.sqrt(expected / 4792)).all()
        env.reset(seed=0)
        again = [env._frame_actions(np.full(8, 2 + step % 2)) for step in range(600)]
        np.testing.assert_array_equal(first, again)


def test_numbers_are_drawn_as_they_should() -> None:
    # The first two numbers of C++'s mt19937 with its own seed are 3499211612 and 581869302.
    stream = np.random.RandomState(5489)
    assert [_below(stream, 30), _below(stream, 30)] == [3499211612 * 30 >> 32, 581869302 * 30 >> 32]
    drawn = _uniform(np.arange(300, dtype=np.uint64)[:, None], np.arange(300, dtype=np.uint64))
    assert 0 <= drawn.min() and drawn.max() < 1 and abs(drawn.mean() - 0.5) < 0.005
    assert (np.abs(np.histogram(drawn, 10, (0, 1))[0] - 9000) < 400).all()
    assert abs(np.corrcoef(drawn[:, :-1].ravel(), drawn[:, 1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 0.02


def test_threads_share_no_memory_that_they_write_to() -> None:
    with closing(AtariVectorEnv("montezuma_revenge", 4, num_threads=2)) as made:
        one, other = made._consoles._threads
        assert not any(np.shares_memory(mine, theirs) for mine, theirs in zip(one[2:], other[2:], strict=True))
