"""The worlds behind one protocol: every fact an agent is told, against gymnasium played directly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import ale_py
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.typing import NDArray

from ga3c.agents.fault_tolerant import GuardedEnvironment
from ga3c.envs.factory import AtariEnvironment, Environment, Transition, atari_id, make_environment, probe
from ga3c.settings.files import configured
from ga3c.settings.messages import ConfigError

Make = Callable[..., Environment]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Environment] = []

    def make(game: str, n_envs: int = 1, **changed: object) -> Environment:
        made.append(make_environment(configured(**{"game": game, **changed}), n_envs))
        return made[-1]

    yield make
    for environment in made:
        environment.close()


class Scripted(gymnasium.Env):
    """Episodes of four steps; how they end, what is seen and what may be done is up to the test."""

    def __init__(self, terminates: bool = False, truncates: bool = False, space: gymnasium.Space | None = None,
                 actions: gymnasium.Space | None = None) -> None:
        self.observation_space = space or Box(-100.0, 100.0, (2,), np.float64)
        self.action_space = actions or Discrete(2)
        self.terminates, self.truncates = terminates, truncates
        self.time = self.action = 0

    def observation(self) -> NDArray:
        return np.full(self.observation_space.shape, self.time + 10 * self.action, self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[NDArray, dict]:
        super().reset(seed=seed)
        self.time = self.action = 0
        return self.observation(), {}

    def step(self, action: int) -> tuple[NDArray, float, bool, bool, dict]:
        self.time, self.action = self.time + 1, int(action)
        over = self.time == 4
        return self.observation(), 0.0, over and self.terminates, over and self.truncates, {}


@pytest.fixture
def register() -> Iterator[Callable[..., str]]:
    before = set(gymnasium.registry)

    def register(**arguments: object) -> str:
        gymnasium.register("Scripted-v0", Scripted, kwargs=arguments, disable_env_checker=True)
        return "Scripted-v0"

    yield register
    for name in set(gymnasium.registry) - before:
        del gymnasium.registry[name]


def refusal(game: str) -> str:
    with pytest.raises(ConfigError) as caught:
        probe(configured(game=game))
    message = str(caught.value)
    assert message.splitlines() == [message]
    return message


# ------------------------------------------------------------------------------------------------ names

@pytest.mark.parametrize("spelling", [
    "MsPacman", "mspacman", "MSPACMAN", "ms_pacman", "ms-pacman", "Ms Pacman", "ALE/MsPacman-v5", "ALE/MsPacman",
    "MsPacman-v5", "MsPacman-v4", "MsPacman-v0", "MsPacmanNoFrameskip-v4", "MsPacmanDeterministic-v4"])
def test_an_atari_game_is_known_by_every_name_people_give_it(spelling: str) -> None:
    assert atari_id(spelling) == "ALE/MsPacman-v5"


def test_every_atari_game_is_found_by_its_rom_name_and_its_old_name() -> None:
    games = [name for name in gymnasium.registry if name.startswith("ALE/") and name.endswith("-v5")]
    assert len(games) > 100
    for game in games:
        plain = game.removeprefix("ALE/").removesuffix("-v5")
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in plain).strip("_")
        assert [atari_id(name) for name in (game, plain, snake, f"{plain}NoFrameskip-v4")] == [game] * 4


@pytest.mark.parametrize("name", ["CartPole-v1", "Acrobot-v1", "nonsense", "toy:catch", "Pong-ram-v5"])
def test_what_is_no_atari_game_is_not_taken_for_one(name: str) -> None:
    assert atari_id(name) is None


@pytest.mark.parametrize(("wrong", "right"), [
    ("Pongg", "Pong"), ("Brakeout", "Breakout"), ("ALE/Pongg-v5", "Pong"), ("space_invader", "SpaceInvaders"),
    ("Cartpole-v1", "CartPole-v1"), ("CartPole-v99", "CartPole-v1"), ("catch", "toy:catch"), ("toy:cach", "toy:catch")])
def test_the_nearest_game_comes_first_when_a_name_is_wrong(wrong: str, right: str) -> None:
    assert refusal(wrong).split("nearest: ")[1].split(", ")[0] == right


def test_a_name_like_no_other_is_told_what_kinds_there_are() -> None:
    assert refusal("zzzzzz") == ("game: no game is called 'zzzzzz'; nearest: "
                                 "an Atari game, a Gymnasium id, module:Id or toy:catch")


@pytest.mark.parametrize("name", ["Q*bert", "a b c", "::", ":", "/", "nowhere:Id-v0", "CartPole-v1:x"])
def test_a_name_that_is_none_is_refused_in_one_line(name: str) -> None:
    assert repr(name) in refusal(name)


# ------------------------------------------------------------------------------------------------ spaces

@pytest.mark.parametrize(("game", "told"), [
    ("Pendulum-v1", "Pendulum-v1: actions are Box(-2.0, 2.0, (1,), float32); supported: Discrete"),
    ("FrozenLake-v1", "FrozenLake-v1: observations are Discrete(16); supported: a one-dimensional Box, "
                      "or a uint8 Box of height x width x channels"),
    ("Blackjack-v1", "supported: a one-dimensional Box")])
def test_an_unsupported_space_is_told_with_what_is_supported(game: str, told: str) -> None:
    assert told in refusal(game)


@pytest.mark.parametrize("unsupported", [
    {"space": Box(0, 1, (4, 4), np.float32)}, {"space": Box(0, 1, (4, 4, 1), np.float32)}, {"space": Box(0, 1, ())},
    {"space": Dict({"a": Box(0, 1, (3,))})}, {"actions": MultiDiscrete([2, 2])}])
def test_other_unsupported_spaces_are_refused(
        register: Callable[..., str], unsupported: dict[str, gymnasium.Space]) -> None:
    assert "supported: " in refusal(register(**unsupported))


@pytest.mark.parametrize(("space", "dtype"), [
    (Box(-1, 1, (3,), np.float64), "float32"), (Box(0, 9, (3,), np.int64), "float32"),
    (Box(0, 255, (3,), np.uint8), "uint8"), (Box(0, 255, (40, 50, 3), np.uint8), "uint8")])
def test_vectors_become_float32_unless_they_are_bytes(
        register: Callable[..., str], make: Make, space: Box, dtype: str) -> None:
    environment = make(register(space=space), 2)
    environment.reset(0)
    environment.step(np.array([0, 0]))
    assert environment.spec.observation_shape == space.shape
    assert environment.spec.observation_dtype == environment.observation.dtype == np.dtype(dtype)
    assert (environment.observation == 1).all()


def test_actions_count_from_where_the_space_begins(register: Callable[..., str], make: Make) -> None:
    environment = make(register(actions=Discrete(3, start=-1)), 3)
    environment.reset(0)
    environment.step(np.array([0, 1, 2]))
    assert environment.spec.n_actions == 3
    assert environment.observation[:, 0].tolist() == [1 - 10, 1, 1 + 10]


def test_the_spec_of_an_atari_game() -> None:
    spec = probe(configured(game="boxing", frame_skip=3, full_action_space=True))
    assert spec == ("Boxing", (84, 84, 4), np.dtype(np.uint8), 18, 3)
    assert probe(configured(game="Pong")).n_actions == 6


@pytest.mark.parametrize("game", ["Pong", "toy:catch", "CartPole-v1"])
@pytest.mark.parametrize("guarded", [False, True])
def test_an_observation_is_shown_where_it_is_wanted_and_nowhere_else(make: Make, game: str, guarded: bool) -> None:
    environment = GuardedEnvironment(lambda: make(game, 3), lambda: None) if guarded else make(game, 3)
    environment.reset(1)
    rows = np.full((3, *environment.observation.shape), 77, environment.observation.dtype)
    for _ in range(5):
        environment.step(np.zeros(3, np.int64))
        environment.show(rows[1])
        np.testing.assert_array_equal(rows[1], environment.observation)
        assert (rows[[0, 2]] == 77).all()


# ------------------------------------------------------------------------------------------------ Atari

def ale(game: str, n_envs: int, **options: object) -> gymnasium.vector.VectorEnv:
    defaults = {"repeat_action_probability": 0.0, "reward_clipping": False, "use_fire_reset": False}
    return gymnasium.make_vec(game, num_envs=n_envs, vectorization_mode="vector_entry_point",
                              autoreset_mode="SameStep", **{**defaults, **options})


@pytest.mark.parametrize(("game", "n_envs", "changed", "terminates", "truncates"), [
    ("Breakout", 5, {}, True, False), ("Breakout", 4, {"fire_reset": True}, True, False),
    ("Breakout", 3, {"max_episode_frames": 600}, True, True), ("Breakout", 3, {"max_episode_frames": 602}, True, True),
    ("Breakout", 3, {"max_episode_frames": 603, "life_loss": True}, True, True),
    ("Breakout", 3, {"max_episode_frames": 601}, True, True), ("Breakout", 1, {"frame_skip": 1}, False, False),
    ("Pong", 6, {"full_action_space": True}, False, False), ("MsPacman", 8, {"frame_skip": 3}, False, False),
    ("AirRaid", 5, {}, True, False)])
def test_atari_is_pixel_for_pixel_what_ale_py_stacks(
        make: Make, monkeypatch: pytest.MonkeyPatch, game: str, n_envs: int, changed: dict, terminates: bool,
        truncates: bool) -> None:
    monkeypatch.setattr(AtariEnvironment, "_SPREAD", 10**6)  # no episode is cut short
    mine = make(game, n_envs, noop_max=0, **changed)
    names = {"max_episode_frames": "max_num_frames_per_episode", "life_loss": "life_loss_info",
             "fire_reset": "use_fire_reset", "frame_skip": "frameskip"}
    plain = ale(f"ALE/{game}-v5", n_envs, noop_max=0,
                **{names.get(name, name): value for name, value in changed.items()})
    rng = np.random.default_rng(0)
    planes, _ = plain.reset(seed=7)
    mine.reset(7)
    ends = np.zeros(2, int)
    for _ in range(300):
        np.testing.assert_array_equal(mine.observation, planes.transpose(0, 2, 3, 1))
        action = rng.integers(mine.spec.n_actions, size=n_envs)
        planes, reward, terminated, truncated, info = plain.step(action)
        told = mine.step(action)
        np.testing.assert_array_equal(told.reward, reward)
        np.testing.assert_array_equal(told.terminated, terminated)
        np.testing.assert_array_equal(told.truncated, truncated)
        assert (told.final_observation is None) == (not truncated.any())
        if told.final_observation is not None:
            # ale-py leaves out the very last frame, so its newest picture is of the one before and of an older one.
            np.testing.assert_array_equal(told.final_observation[truncated, ..., :-1],
                                          info["final_obs"].transpose(0, 2, 3, 1)[truncated, ..., :-1])
        ends += terminated.sum(), truncated.sum()
    assert (ends > 0).tolist() == [terminates, truncates]
    plain.close()


@pytest.mark.parametrize("limit", [241, 242, 243, 244])
def test_the_last_picture_of_a_truncated_episode_is_of_its_last_two_frames(
        make: Make, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(AtariEnvironment, "_SPREAD", 10**6)
    limited = make("Breakout", 2, noop_max=0, max_episode_frames=limit)
    fine = make("Breakout", 2, noop_max=0, frame_skip=1)
    limited.reset(0)
    fine.reset(0)
    rng = np.random.default_rng(0)
    for step in range(1, 62):
        action = rng.integers(4, size=2)
        told = limited.step(action)
        assert (told.final_observation is None) == (step < 61)
        frames = []
        for _ in range(4 if step < 61 else limit - 240):
            fine.step(action)
            frames.append(fine.observation[..., -1].copy())
    assert told.final_observation is not None and told.truncated.all() and told.score_ended.all()
    seen = told.final_observation[..., -1]
    # The area's mean of the brighter pixels is between the brighter mean and the sum of both.
    brighter = np.max(frames[-2:], axis=0).astype(int)
    assert (seen >= brighter - 1).all() and (seen <= np.sum(frames[-2:], axis=0, dtype=int) + 1).all()
    assert (np.abs(seen - brighter) > 1).mean() < 0.01


@pytest.mark.parametrize("most", [0, 1, 3])
def test_an_episode_opens_with_up_to_so_many_no_ops(make: Make, most: int) -> None:
    environment = make("Pong", noop_max=most)
    frames = []
    for seed in range(60):
        environment.reset(seed)
        frames.append(environment._emulators[0].getEpisodeFrameNumber())  # type: ignore[attr-defined]
    assert {*frames} == {*range(most + 1)}
    assert all(frames.count(number) > 60 / (most + 1) / 3 for number in frames)


def test_environments_of_one_agent_do_not_go_on_in_step(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    together, spread = make("Boxing", 3), make("Boxing", 3)
    rng, begun = np.random.default_rng(0), [True] * 3
    for environment, steps in ((together, 10**6), (spread, 60)):
        monkeypatch.setattr(AtariEnvironment, "_SPREAD", steps)
        environment.reset(7)
    for step in range(1, 80):
        action = rng.integers(18, size=3)
        plain, told = together.step(action), spread.step(action)
        assert not plain.truncated.any() and not told.terminated.any() and not told.score_ended.any()
        cut = {8: [1], 28: [2]}.get(step, [])
        assert np.flatnonzero(told.truncated).tolist() == cut
        if cut:
            assert told.final_observation is not None
            np.testing.assert_array_equal(told.final_observation[cut], together.observation[cut])
            np.testing.assert_array_equal(told.reward, plain.reward)
            assert not spread.observation[cut, ..., :-1].any(), "a new episode has no frames before its first"
            begun[cut[0]] = False
        same = [bool((one == other).all()) for one, other in zip(spread.observation, together.observation, strict=True)]
        assert same == begun


def test_agents_do_not_go_on_in_step_with_each_other(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtariEnvironment, "_SPREAD", 60)

    def cut(seed: int) -> list[int]:
        environment = make("Boxing", 2)
        environment.reset(seed)
        return [step for step in range(1, 40) if environment.step(np.zeros(2, np.int64)).truncated.any()]

    assert [cut(seed) for seed in (1, 2, 3, 1)] == [[15], [23], [28], [15]]


def test_an_atari_episode_that_is_truncated_hands_out_the_frame_after_the_last_one_seen(make: Make) -> None:
    environment = make("Pong", 2, max_episode_frames=40)
    environment.reset(3)
    truncations = 0
    for _ in range(25):
        before = environment.observation.copy()
        told = environment.step(np.array([2, 3]))
        if told.final_observation is not None:
            truncations += 1
            np.testing.assert_array_equal(told.final_observation[..., :-1], before[..., 1:])
            assert (told.final_observation != environment.observation).any()
    assert truncations == 2


def test_atari_rewards_are_not_clipped(make: Make) -> None:
    environment = make("MsPacman")
    environment.reset(0)
    assert max(environment.step(np.array([3])).reward[0] for _ in range(150)) == 10.0


def test_frame_skip_is_the_frames_of_one_agent_step(make: Make) -> None:
    skipping, plain = make("Pong", frame_skip=2, noop_max=0), ale("ALE/Pong-v5", 1, frameskip=2, noop_max=0)
    plain.reset(seed=0)
    skipping.reset(0)
    for _ in range(30):
        planes = plain.step(np.array([2]))[0]
        skipping.step(np.array([2]))
    np.testing.assert_array_equal(skipping.observation, planes.transpose(0, 2, 3, 1))
    plain.close()


class Recording:
    """An emulator that remembers the names of actions it was told, and may be told what to say."""

    def __init__(self, emulator: object, **said: Callable[[], object]) -> None:
        self._emulator, self.played = emulator, []
        vars(self).update(said)

    def act(self, action: ale_py.Action) -> int:
        self.played.append(action.name)
        return self._emulator.act(action)

    def __getattr__(self, name: str) -> object:
        return getattr(self._emulator, name)


def recorded(environment: Environment, **said: Callable[[], object]) -> list[Recording]:
    assert isinstance(environment, AtariEnvironment)
    environment._emulators = [Recording(getattr(emulator, "_emulator", emulator), **said)
                              for emulator in environment._emulators]
    return environment._emulators


def test_a_sticky_action_lasts_at_each_frame_with_its_probability(make: Make) -> None:
    environment = make("Pong", 2, sticky_actions=0.4, noop_max=0)
    environment.reset(0)
    wanted = [("RIGHT", "LEFT"), ("RIGHTFIRE", "LEFTFIRE")]
    late: list[list[bool]] = []
    for step in range(3000):  # another one at every step
        recordings = recorded(environment)
        environment.step(np.array([2 + step % 2, 4 + step % 2]))
        for recording, actions in zip(recordings, wanted, strict=True):
            assert {*recording.played} <= {"NOOP", *actions}, "held is what was played here"
            if len(recording.played) == 4:  # else the game was over
                late.append([played != actions[step % 2] for played in recording.played])
    expected = 0.4 ** np.arange(1, 5)
    error = np.abs(np.mean(late, axis=0) - expected)
    assert (error < 4 * np.sqrt(expected * (1 - expected) / len(late))).all() and len(late) > 5900


def test_nothing_is_held_over_from_the_game_before(make: Make) -> None:
    environment = make("Pong", sticky_actions=0.5, noop_max=0)
    recording, = recorded(environment)
    for seed in range(40):
        environment.reset(seed)
        recording.played = []
        for _ in range(3):
            environment.step(np.array([2 + seed % 2]))
        held = recording.played.count("NOOP")
        assert recording.played == ["NOOP"] * held + [("RIGHT", "LEFT")[seed % 2]] * (12 - held)


@pytest.mark.parametrize(("fires", "most", "openings"), [
    (True, 0, {"FIRE"}), (True, 3, {"FIRE", "FIRE NOOP", "FIRE NOOP NOOP"}), (False, 2, {"", "NOOP", "NOOP NOOP"})])
def test_an_episode_opens_with_fire_where_it_is_asked_for(
        make: Make, fires: bool, most: int, openings: set[str]) -> None:
    environment = make("Breakout", noop_max=most, fire_reset=fires)
    recording, = recorded(environment)
    seen = set()
    for seed in range(40):
        recording.played = []
        environment.reset(seed)
        seen.add(" ".join(recording.played))
    assert seen == openings


@pytest.mark.parametrize(("lives", "terminated"), [
    ([3, 2, 2, 1, 0, 0], [True, False, True, False, False]), ([3, 4, 3], [False, True])])
def test_the_last_life_is_lost_with_the_game(make: Make, lives: list[int], terminated: list[bool]) -> None:
    environment, left = make("Breakout", life_loss=True), iter(lives)
    recorded(environment, lives=lambda: next(left))
    environment.reset(0)
    told = [environment.step(np.array([0])) for _ in terminated]
    assert [bool(t.terminated[0]) for t in told] == terminated
    assert not any(t.score_ended[0] or t.truncated[0] for t in told)


def test_a_life_that_is_lost_in_the_last_step_ends_the_episode_without_a_value(make: Make) -> None:
    environment, left = make("Breakout", life_loss=True, max_episode_frames=8), iter([3, 3, 2, 3])
    recorded(environment, lives=lambda: next(left))
    environment.reset(0)
    first, second = environment.step(np.array([0])), environment.step(np.array([0]))
    assert not (first.terminated[0] or first.truncated[0] or first.score_ended[0])
    assert (second.terminated[0], second.truncated[0], second.score_ended[0]) == (True, False, True)
    assert second.final_observation is None


def transitions(environment: Environment, n: int, seed: int = 0) -> list[Transition]:
    rng = np.random.default_rng(seed)
    n_envs = len(environment.observation)
    return [environment.step(rng.integers(environment.spec.n_actions, size=n_envs)) for _ in range(n)]


def test_a_lost_life_ends_the_learners_episode_but_not_the_score(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtariEnvironment, "_SPREAD", 10**6)  # no episode is cut short
    environment = make("Breakout", 2, life_loss=True)
    environment.reset(1)
    told = transitions(environment, 700)
    terminated, scored = np.array([t.terminated for t in told]), np.array([t.score_ended for t in told])
    for env in range(2):
        lives = scored[terminated[:, env], env].tolist()
        assert len(lives) > 10
        assert lives == [(life + 1) % 5 == 0 for life in range(len(lives))]
        assert not scored[~terminated[:, env], env].any()


def test_a_game_that_is_cut_short_begins_again_with_all_its_lives(
        make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AtariEnvironment, "_SPREAD", 390)  # a life in Breakout takes a random player some 40 steps
    environment = make("Breakout", 3, life_loss=True)
    environment.reset(2)
    told = transitions(environment, 700)
    for env, cut in ((0, 0), (1, 96), (2, 226)):
        assert [step for step, t in enumerate(told, 1) if t.truncated[env]] == ([cut] if cut else [])
        before, after = told[:cut], told[cut:]
        assert 0 < sum(t.terminated[env] for t in before) % 5 or not cut, "in the middle of a game"
        lives = [bool(t.score_ended[env]) for t in after if t.terminated[env]]
        assert len(lives) > 8 and lives == [(life + 1) % 5 == 0 for life in range(len(lives))]


def test_without_life_loss_five_lives_are_one_episode(make: Make) -> None:
    learner, player = make("Breakout", 1, life_loss=True), make("Breakout", 1)
    learner.reset(1)
    player.reset(1)
    lives, games = transitions(learner, 500), transitions(player, 500)
    assert [t.score_ended[0] for t in lives] == [t.terminated[0] for t in games] == [t.score_ended[0] for t in games]
    assert sum(t.terminated[0] for t in lives) >= 5 * sum(t.terminated[0] for t in games) > 0


@pytest.mark.parametrize(("frames", "steps"), [(8, 40), (400, 220)])
def test_a_truncated_episode_always_ends_its_score(make: Make, frames: int, steps: int) -> None:
    environment = make("Breakout", 2, life_loss=True, max_episode_frames=frames)
    environment.reset(1)
    told = [t for t in transitions(environment, steps) if t.truncated.any()]
    assert told
    assert all(t.score_ended[t.truncated].all() for t in told)


# ------------------------------------------------------------------------------------------------ seeds

def played(environment: Environment, seed: int) -> bytes:
    environment.reset(seed)
    first = environment.observation.tobytes()
    told = transitions(environment, 150)
    return first + environment.observation.tobytes() + b"".join(t.reward.tobytes() for t in told)


@pytest.mark.parametrize("game", ["Pong", "CartPole-v1", "toy:catch"])
def test_the_same_seed_plays_the_same_episode_and_another_does_not(make: Make, game: str) -> None:
    first, second = make(game, 2), make(game, 2)
    assert played(first, 5) == played(second, 5)
    assert played(first, 6) != played(second, 5)


@pytest.mark.parametrize("game", ["Assault", "Berzerk", "Kaboom", "Tennis", "Pong", "CartPole-v1"])  # four remember
def test_an_episode_is_fixed_by_its_seed_whatever_was_played_before(make: Make, game: str) -> None:
    environment, fresh = make(game), make(game)
    environment.reset(6)
    transitions(environment, 200)
    assert played(environment, 5) == played(fresh, 5)


@pytest.mark.parametrize("game", ["Pong", "CartPole-v1", "toy:catch"])
@pytest.mark.parametrize("seed", [2**31 - 1, 2**31 - 2, 2**32 - 1])
def test_every_seed_an_agent_may_draw_can_be_played(make: Make, game: str, seed: int) -> None:
    make(game, 4).reset(seed)


# ------------------------------------------------------------------------------------------------ gymnasium

def balance(observation: NDArray) -> int:
    return int(observation[2] + 0.5 * observation[3] + 0.01 * observation[0] + 0.05 * observation[1] > 0)


def test_a_truncated_cart_pole_hands_out_the_last_observation_of_the_old_episode(make: Make) -> None:
    environment, plain = make("CartPole-v1", 2), gymnasium.make("CartPole-v1")
    environment.reset(20)
    observation, _ = plain.reset(seed=20)
    for step in range(1, 501):
        np.testing.assert_array_equal(environment.observation[0], observation)
        action = balance(observation)
        observation, _, terminated, truncated, _ = plain.step(action)
        told = environment.step(np.array([action, balance(environment.observation[1])]))
        assert not terminated
        assert told.truncated[0] == told.score_ended[0] == truncated == (step == 500)
    assert told.final_observation is not None
    np.testing.assert_array_equal(told.final_observation[0], observation)
    assert np.abs(environment.observation[0]).max() <= 0.05


@pytest.mark.parametrize(("terminates", "truncates"), [(True, True), (True, False), (False, True)])
def test_an_episode_that_terminates_in_its_last_second_is_terminated_only(
        register: Callable[..., str], make: Make, terminates: bool, truncates: bool) -> None:
    environment = make(register(terminates=terminates, truncates=truncates), 2)
    environment.reset(0)
    told = [environment.step(np.array([1, 0])) for _ in range(4)][-1]
    assert told.terminated.tolist() == [terminates] * 2
    assert told.truncated.tolist() == [truncates and not terminates] * 2
    assert told.score_ended.tolist() == [True, True]
    assert environment.observation.tolist() == [[0, 0], [0, 0]]
    if terminates:
        assert told.final_observation is None
    else:
        assert told.final_observation is not None
        assert told.final_observation.tolist() == [[14, 14], [4, 4]]


@examples(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**31 - 1), n_envs=st.integers(1, 5))
def test_observations_ends_and_rewards_of_counting_are_those_of_its_rules(seed: int, n_envs: int) -> None:
    environment = make_environment(configured(game="toy:counting"), n_envs)
    environment.reset(seed)
    episode = time = 0
    for _ in range(30):
        for env, observation in enumerate(environment.observation):
            assert observation.view("<u4").tolist() == [seed + env, episode, time]
        told = environment.step(np.zeros(n_envs, np.int64))
        time += 1
        assert told.reward.tolist() == [time] * n_envs
        over = time == 3 + episode * 7 % 10
        assert told.terminated.tolist() == [over and episode % 2 == 0] * n_envs
        assert told.truncated.tolist() == [over and episode % 2 == 1] * n_envs
        if told.final_observation is not None:
            last = [observation.view("<u4").tolist() for observation in told.final_observation]
            assert last == [[seed + env, episode, time] for env in range(n_envs)]
        if over:
            episode, time = episode + 1, 0
    environment.close()


# ------------------------------------------------------------------------------------------------ a user's own

@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    registered, modules = set(gymnasium.registry), set(sys.modules)
    yield tmp_path
    for name in set(gymnasium.registry) - registered:
        del gymnasium.registry[name]
    for name in set(sys.modules) - modules:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


OWN = """
import gymnasium, numpy
class Own(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (3,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def __init__(self):
        {init}
    def reset(self, *, seed=None, options=None):
        return numpy.zeros(3, numpy.float32), {{}}
    def step(self, action):
        return numpy.full(3, 0.5, numpy.float32), 2.5, False, False, {{}}
gymnasium.register("Own-v0", Own)
"""


def test_an_environment_in_a_file_where_the_user_stands_can_be_played(here: Path, make: Make) -> None:
    (here / "own_world.py").write_text(OWN.format(init="pass"))
    environment = make("own_world:Own-v0", 2)
    environment.reset(0)
    assert environment.step(np.array([0, 1])).reward.tolist() == [2.5, 2.5]
    assert environment.observation.tolist() == [[0.5] * 3] * 2


@pytest.mark.parametrize("init", ["raise RuntimeError('no screen')", "1 / 0", "raise KeyError('first\\nsecond')",
                                  "raise RuntimeError('first\\nsecond')"])
def test_an_environment_that_cannot_be_made_is_told_in_one_line(here: Path, init: str) -> None:
    (here / "broken_world.py").write_text(OWN.format(init=init))
    assert refusal("broken_world:Own-v0").startswith("game: 'broken_world:Own-v0' cannot be made: ")


def test_a_module_that_is_not_there_is_named(here: Path) -> None:
    assert "No module named 'no_such_world'" in refusal("no_such_world:Own-v0")
