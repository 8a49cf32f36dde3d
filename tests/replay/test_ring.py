"""The ring against a naive list: every stack, every end, every position of its head."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from ga3c.envs.base import EnvSpec
from ga3c.replay.ring import Ring, bytes_per_row
from ga3c.replay.samplers import Prioritised, Uniform

PLANES, GAMMA = 3, 0.9
FOUR = EnvSpec("bytes", (2, 2, 4), np.dtype(np.uint8), 4, 4, 4)
IMAGES = EnvSpec("images", (2, 2, PLANES), np.dtype(np.uint8), 4, 4, PLANES)
VECTORS = EnvSpec("vectors", (2,), np.dtype(np.float32), 4, 1)


class Played(NamedTuple):
    """One step as it was played, or a final observation, whose `action` is None."""

    observation: np.ndarray
    action: int | None
    reward: float = 0.0
    terminated: bool = False


class World:
    """One environment, all that it ever showed, and a ring that gets it in rollouts of any length.

    ends: what each step does: "" goes on, "t" terminates, "l" loses a life (the stack goes on), "x" truncates.
    """

    def __init__(self, spec: EnvSpec, ring: Ring, stream: int) -> None:
        self.spec, self.ring, self.stream = spec, ring, stream
        self.history: list[Played | None] = []  # None: another life begins
        self.number = 0
        self.now = np.zeros(spec.observation_shape, spec.observation_dtype)
        self.begin()

    def begin(self) -> None:
        self.now = np.zeros_like(self.now)
        self.show()

    def show(self) -> None:
        self.number += 1
        frame = (self.number * 37 + self.stream * 101) % 251 + 1
        if self.spec is not VECTORS:
            self.now = np.concatenate([self.now[..., 1:], np.full((2, 2, 1), frame, np.uint8)], axis=-1)
        else:
            self.now = np.array([self.number, self.stream], np.float32)

    def play(self, ends: str) -> int:
        """Plays a rollout, of which only the last step may truncate. Returns the rows that were written."""
        steps: dict[str, list] = {name: [] for name in (
            "observation", "action", "reward", "terminated", "truncated", "version")}
        for end in ends:
            step = Played(self.now, self.number % 4, float(self.number % 7), end in ("t", "l"))
            self.history.append(step)
            for name, value in (("observation", step.observation), ("action", step.action), ("reward", step.reward),
                                ("version", self.number),
                                ("terminated", step.terminated), ("truncated", end == "x")):
                steps[name].append(value)
            if end == "t":
                self.begin()
            else:
                self.show()
        following = self.now
        if ends[-1] == "x":
            self.history.append(Played(following, None))
            self.begin()
        arrays = {name: np.array(values) for name, values in steps.items()}
        return self.ring.append(self.stream, arrays, following)

    def die(self) -> None:
        """Another process takes the environment over, after the last rollout."""
        self.ring.cut(self.stream)
        self.history.append(None)
        self.begin()

    def transitions(self, n: int) -> list[tuple]:
        """All transitions that are complete, as (observation, action, G, following, discount)."""
        found = []
        for start, step in enumerate(self.history):
            if step is None or step.action is None:
                continue
            after, total, m = start, 0.0, 0
            terminated = False
            while m < n and after < len(self.history):
                here = self.history[after]
                gone_next = after + 1 < len(self.history) and self.history[after + 1] is None
                if here is None or here.action is None or (gone_next and not here.terminated):
                    break
                total += GAMMA**m * here.reward
                m, after, terminated = m + 1, after + 1, here.terminated
                if terminated:
                    break
            if not m or not terminated and after >= len(self.history):
                continue
            following = None if terminated else self.history[after]
            found.append((step.observation, step.action, total, following.observation if following else None,
                          0.0 if terminated else GAMMA**m))
        return found


rollouts = st.lists(st.one_of(
    st.tuples(st.text("  tl", min_size=1, max_size=6), st.sampled_from(" tlx")).map("".join), st.just("die")),
    min_size=1, max_size=25)


def assert_same(sampled: tuple, wanted: tuple, at: int) -> None:
    observation, action, total, following, discount = wanted
    np.testing.assert_array_equal(sampled.observation[at], observation)
    assert sampled.action[at] == action and sampled.discount[at] == pytest.approx(discount)
    assert sampled.returns[at] == pytest.approx(total, abs=1e-4)
    if following is not None:
        np.testing.assert_array_equal(sampled.following[at], following)


@examples(max_examples=150)
@given(st.sampled_from([IMAGES, FOUR, VECTORS]), rollouts, st.integers(1, 10), st.integers(18, 40))
def test_what_can_be_drawn_is_what_was_played_wherever_the_head_is(
        spec: EnvSpec, played: list[str], n: int, length: int) -> None:
    ring = Ring(spec, 2, 2 * length, n, GAMMA)
    world = World(spec, ring, 1)
    uniform, prioritised = Uniform(ring), Prioritised(ring, 0.5)
    for rollout in played:
        if rollout == "die":
            world.die()
            continue
        prioritised.appended(1, world.play(rollout))
        serials = np.arange(max(0, ring.written[1] - length), ring.written[1])
        streams = np.ones(len(serials), np.int64)
        usable = serials[ring.usable(streams, serials)]
        wanted = world.transitions(n)
        if len(usable):
            sampled = ring.draw(np.ones(len(usable), np.int64), usable)
            for back in range(1, len(usable) + 1):  # the newest are last in both
                assert_same(sampled, wanted[-back], len(usable) - back)
            drawn = uniform.draw(50, 0.4, np.random.default_rng(0)).sampled
            assert set(drawn.serial.tolist()) <= set(usable.tolist()) and (drawn.stream == 1).all()
        assert len(wanted) - len(usable) <= max(0, len(world.history) + 4 * len(played) - length + 4)
        priorities = prioritised._tree.priorities[length:]
        assert np.flatnonzero(priorities).tolist() == sorted((usable % length).tolist())


@examples(max_examples=50)
@given(st.sampled_from([IMAGES, VECTORS]), rollouts, st.lists(st.booleans(), min_size=25, max_size=25),
       st.integers(1, 4), st.integers(18, 40))
def test_a_ring_that_follows_another_draws_what_it_would_have_drawn_itself(
        spec: EnvSpec, played: list[str], met: list[bool], n: int, length: int) -> None:
    alone, fresh, follower = (Ring(spec, 2, 2 * size, n, GAMMA) for size in (length, 300, length))
    worlds = World(spec, alone, 1), World(spec, fresh, 1)
    for rollout, meets in zip(played, met, strict=False):
        for world in worlds:
            world.die() if rollout == "die" else world.play(rollout)
        if meets and rollout != "die":  # a life that ended is noted with the first steps of the next
            more = fresh.written - follower.written
            assert follower.follow(fresh).tolist() == more.tolist()
            serials = np.arange(max(0, alone.written[1] - length), alone.written[1])
            streams = np.ones(len(serials), np.int64)
            assert (alone.usable(streams, serials) == follower.usable(streams, serials)).all()
            usable = serials[alone.usable(streams, serials)]
            if len(usable):
                for mine, its in zip(alone.draw(streams[:len(usable)], usable),
                                     follower.draw(streams[:len(usable)], usable), strict=True):
                    np.testing.assert_array_equal(mine, its)


_KINDS = st.lists(st.lists(st.sampled_from("  tl"), min_size=3, max_size=3), min_size=1, max_size=4)


@examples(max_examples=80)
@given(st.sampled_from([IMAGES, FOUR, VECTORS]), st.lists(_KINDS, min_size=1, max_size=12), st.randoms())
def test_environments_appended_together_are_as_each_alone(spec: EnvSpec, played: list, random: Any) -> None:
    together, alone = Ring(spec, 4, 160, 2, GAMMA), Ring(spec, 4, 160, 2, GAMMA)
    rng = np.random.default_rng(random.randrange(2**32))
    frames = np.zeros((3, *spec.observation_shape), spec.observation_dtype)
    for rollout in played:
        observed = []
        for step in rollout:
            observed.append(frames)
            new = rng.integers(1, 200, frames.shape).astype(frames.dtype)
            if spec.stacked > 1:
                over = np.array([kind != " " for kind in step]).reshape(-1, *[1] * (frames.ndim - 1))
                new = np.concatenate([np.where(over, 0, frames)[..., 1:], new[..., -1:]], axis=-1)
            frames = new
        kinds = np.array(rollout)
        steps = {"observation": np.stack(observed), "action": rng.integers(0, 4, kinds.shape, np.int32),
                 "reward": rng.random(kinds.shape, np.float32), "terminated": kinds == "t", "truncated": kinds == "l",
                 "version": rng.integers(0, 9, len(kinds))}
        rows = together.append_all(1, steps, frames)
        assert rows.tolist() == [alone.append(1 + env, {
            name: array if array.ndim == 1 else array[:, env] for name, array in steps.items()}, frames[env])
            for env in range(3)]
    for (name, mine), its in zip(together.state().items(), alone.state().values(), strict=True):
        np.testing.assert_array_equal(mine, its, err_msg=name)


def test_a_million_steps_of_atari_are_seven_gigabytes() -> None:
    assert 7.0e9 < 1e6 * bytes_per_row(EnvSpec("atari", (84, 84, 4), np.dtype(np.uint8), 6, 4, 4)) < 7.1e9


def test_a_ring_too_small_for_a_transition_is_refused() -> None:
    with pytest.raises(ValueError, match="20 rows are too few for 4 streams of 9"):
        Ring(IMAGES, 4, 20, 3, 0.9)


def test_a_truncation_within_a_rollout_loses_its_last_step_and_joins_nothing() -> None:
    ring = Ring(VECTORS, 1, 50, 3, 1.0)
    steps = {"observation": np.arange(8, dtype=np.float32).reshape(4, 2), "action": np.arange(4),
             "reward": np.ones(4), "terminated": np.zeros(4, bool), "truncated": np.array([False, True, False, False]),
             "version": np.arange(4)}
    assert ring.append(0, steps, np.zeros(2, np.float32)) == 4
    serials = np.arange(4)
    assert ring.usable(np.zeros(4, np.int64), serials).tolist() == [True, False, False, False]
    sampled = ring.draw(np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert sampled.returns.tolist() == [1.0] and sampled.following.tolist() == [[2.0, 3.0]]
