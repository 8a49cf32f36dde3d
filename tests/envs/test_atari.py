"""Atari: every fact an agent gets, against ale-py played directly."""

from __future__ import annotations

from collections.abc import Callable

import ale_py
import gymnasium
import numpy as np
import pytest
from scripted import Make, goes_on_elsewhere, same, transitions

from ga3c.envs.ale import AleConsoles
from ga3c.envs.atari import AtariEnvironment
from ga3c.envs.atari_games import atari_names
from ga3c.envs.base import Environment
from ga3c.envs.check import probe
from ga3c.settings.files import configured


def test_the_spec_of_an_atari_game() -> None:
    spec = probe(configured(game="boxing", frame_skip=3, full_action_space=True))
    assert spec == ("Boxing", (84, 84, 4), np.dtype(np.uint8), 18, 3, 4)
    assert probe(configured(game="Pong")).n_actions == 6


# ------------------------------------------------------------------------------------------------ playing

def ale(game: str, n_envs: int, **options: object) -> gymnasium.vector.VectorEnv:
    defaults = {"repeat_action_probability": 0.0, "reward_clipping": False, "use_fire_reset": False}
    return gymnasium.make_vec(game, num_envs=n_envs, vectorization_mode="vector_entry_point",
                              autoreset_mode="SameStep", **{**defaults, **options})


@pytest.mark.parametrize(("game", "n_envs", "changed", "terminates", "truncates"), [
    ("Breakout", 5, {}, True, False), ("Breakout", 4, {"fire_reset": True}, True, False),
    ("Breakout", 3, {"max_episode_frames": 600}, True, True),
    pytest.param("Breakout", 3, {"max_episode_frames": 602}, True, True, marks=pytest.mark.slow),
    ("Breakout", 3, {"max_episode_frames": 603, "life_loss": True}, True, True),
    pytest.param("Breakout", 3, {"max_episode_frames": 601}, True, True, marks=pytest.mark.slow),
    ("Breakout", 1, {"frame_skip": 1}, False, False), ("Pong", 6, {"full_action_space": True}, False, False),
    pytest.param("MsPacman", 8, {"frame_skip": 3}, False, False, marks=pytest.mark.slow),
    pytest.param("AirRaid", 5, {}, True, False, marks=pytest.mark.slow)])
def test_atari_is_pixel_for_pixel_what_ale_py_stacks(
        make: Make, monkeypatch: pytest.MonkeyPatch, game: str, n_envs: int, changed: dict, terminates: bool,
        truncates: bool) -> None:
    monkeypatch.setattr(AtariEnvironment, "_SPREAD", 10**6)  # no episode is cut short
    changed = {"life_loss": False, **changed}
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


@pytest.mark.parametrize("limit", [241, 244])
def test_the_last_picture_of_an_episode_is_of_two_frames(
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


@pytest.mark.parametrize("most", [0, 3])
def test_an_episode_opens_with_up_to_so_many_no_ops(make: Make, most: int) -> None:
    environment = make("Pong", noop_max=most)
    frames = []
    for seed in range(60):
        environment.reset(seed)
        frames.append(environment._consoles._emulators[0].getEpisodeFrameNumber())  # type: ignore[attr-defined]
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


class Recording:
    """An emulator that remembers the names of actions it was told, and may be told what to say."""

    def __init__(self, emulator: object, **said: Callable[[], object]) -> None:
        self._emulator, self.played = emulator, []
        vars(self).update(said)

    def act(self, action: int) -> int:
        self.played.append(ale_py.Action(action).name)
        return self._emulator.act(action)

    def __getattr__(self, name: str) -> object:
        return getattr(self._emulator, name)


def recorded(environment: Environment, **said: Callable[[], object]) -> list[Recording]:
    assert isinstance(environment, AtariEnvironment)
    consoles = environment._consoles
    assert isinstance(consoles, AleConsoles)
    consoles._emulators = [Recording(getattr(emulator, "_emulator", emulator), **said)
                           for emulator in consoles._emulators]
    return consoles._emulators


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


@pytest.mark.parametrize(("fires", "most", "openings"), [
    (True, 3, {"FIRE", "FIRE NOOP", "FIRE NOOP NOOP"}), (False, 2, {"", "NOOP", "NOOP NOOP"})])
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


def test_a_life_lost_in_the_last_step_ends_without_a_value(make: Make) -> None:
    environment, left = make("Breakout", life_loss=True, max_episode_frames=8), iter([3, 3, 2, 3])
    recorded(environment, lives=lambda: next(left))
    environment.reset(0)
    first, second = environment.step(np.array([0])), environment.step(np.array([0]))
    assert not (first.terminated[0] or first.truncated[0] or first.score_ended[0])
    assert (second.terminated[0], second.truncated[0], second.score_ended[0]) == (True, False, True)
    assert second.final_observation is None


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


def test_a_game_that_is_cut_short_begins_again_with_all_its_lives(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_truncated_episode_always_ends_its_score(make: Make) -> None:
    environment = make("Breakout", 2, life_loss=True, max_episode_frames=400)
    environment.reset(1)
    told = [t for t in transitions(environment, 220) if t.truncated.any()]
    assert told
    assert all(t.score_ended[t.truncated].all() for t in told)


# ------------------------------------------------------------------------------------------------ state

@pytest.mark.parametrize("game", [
    pytest.param(game, marks=[] if game == "Qbert" else pytest.mark.slow)
    for game in ("Pong", "Breakout", "Qbert", "MiniatureGolf")])
@pytest.mark.parametrize("changed", [{}, {
    "noop_max": 3, "life_loss": True, "sticky_actions": 0.25, "fire_reset": True, "max_episode_frames": 600}])
def test_a_saved_state_goes_on_in_another_object_to_the_bit(
        make: Make, monkeypatch: pytest.MonkeyPatch, game: str, changed: dict[str, object]) -> None:
    monkeypatch.setattr(AtariEnvironment, "_SPREAD", 200)  # episodes are cut before and after
    goes_on_elsewhere(make, game, 5, 100, 100, **changed)


@pytest.mark.parametrize("game", ["Qbert", "Tetris"])
@pytest.mark.parametrize("no_ops", [0, 1])
def test_a_game_that_has_just_begun_is_restored(make: Make, game: str, no_ops: int) -> None:
    for before in (0, 1, 30):
        goes_on_elsewhere(make, game, 1, before, 40, frame_skip=1, noop_max=no_ops)


@pytest.mark.slow
def test_every_game_goes_on_from_a_saved_state(make: Make) -> None:
    for game in {known.name for known in atari_names().values()}:
        # The first frame after it differs in Yars' Revenge, where a step of four frames does not show it.
        skip = 4 if game == "YarsRevenge" else 1
        goes_on_elsewhere(make, game, 1, 100, 60, frame_skip=skip, sticky_actions=0.25)


def test_saving_a_state_changes_nothing(make: Make) -> None:
    one, other = make("Breakout", 2, sticky_actions=0.25), make("Breakout", 2, sticky_actions=0.25)
    one.reset(3)
    other.reset(3)
    for _ in range(60):
        other.state()
        told, again = transitions(one, 1)[0], transitions(other, 1)[0]
        assert same(told, again)


@pytest.mark.parametrize(("change", "told"), [
    (lambda saved: saved.pop("age"), "its arrays are"),
    (lambda saved: saved.update(emulators=np.zeros_like(saved["emulators"])), "damaged"),
    (lambda saved: saved.update(rom=saved["rom"][::-1]), "it is not of pong"),
    (lambda saved: saved.update(frames=saved["frames"] + 108_000), "is longer than max_episode_frames 108000"),
    (lambda saved: saved.update(stacks=saved["stacks"][:, 1:]), "stacks is")])
def test_a_state_that_is_not_of_these_environments_is_refused(
        make: Make, change: Callable[[dict], object], told: str) -> None:
    environment = make("Pong", 2)
    environment.reset(0)
    saved = environment.state()
    change(saved)
    with pytest.raises(ValueError, match=told):
        environment.restore(saved)
