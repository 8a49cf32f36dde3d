"""The agent's loop, driven by hand, and what an agent's process is made of."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
import pytest

from ga3c.agents.process import agent_seed, play, seeded, start_forkserver
from ga3c.envs.factory import Transition, make_environment
from ga3c.envs.toys import Counting
from ga3c.settings.files import configured
from ga3c.settings.schema import Settings
from ga3c.transport.channel import CUT, GO_ON, PAUSE, PREDICT, REST, SUBMIT, TAKE
from ga3c.transport.slots import Slots


class Driver:
    """Grants an agent's requests: slots in order, the policy and value given, and the word to pause when told."""

    def __init__(self, settings: Settings, policy: list[float], slots: int = 100) -> None:
        self.environment = make_environment(settings, settings.agents.envs_per_agent)
        self.environment.reset(5)
        self.store = Slots(self.environment.spec, settings.algorithm.rollout_length, settings.agents.envs_per_agent, slots)
        self.player = play(self.environment, self.store, np.random.default_rng(0))
        self.policy = policy
        self.submitted: list[int] = []
        self.taken = 0
        self.predictions = self.rests = 0
        self.play_on = False
        self.request = next(self.player)

    def until_prediction(self) -> tuple[int, int]:
        while self.request[0] != PREDICT:
            kind, slot, _ = self.request
            if kind == TAKE:
                grant, self.taken = self.taken, self.taken + 1
            elif kind == REST:
                grant, self.rests = int(self.play_on), self.rests + 1
            else:
                assert kind == SUBMIT
                self.submitted.append(slot)
                grant = 0
            self.request = self.player.send(grant)
        return self.request[1:]

    def answer(self, word: int = GO_ON) -> None:
        slot, row = self.until_prediction()
        self.predictions += 1
        self.store.policy[slot, row] = self.policy
        self.store.value[slot, row] = self.predictions
        self.request = self.player.send(word)


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


@pytest.mark.parametrize("steps_before", range(7))
def test_told_to_leave_it_hands_in_every_step_it_has_played_and_ends(steps_before: int) -> None:
    driver = Driver(counting(rollout_length=2, n_envs=3), [1.0, 0.0])
    played = 0
    while played < steps_before:
        slot, row = driver.until_prediction()
        played += row < 2
        driver.answer()
    driver.until_prediction()
    with pytest.raises(StopIteration):
        driver.answer(PAUSE)
        while True:
            driver.until_prediction()
            driver.answer(PAUSE)
    assert driver.store.steps[driver.submitted].sum() == played


@pytest.mark.parametrize("word", [PAUSE, CUT])
@pytest.mark.parametrize("steps_before", range(7))
def test_a_rest_or_a_cut_loses_no_step_and_episodes_go_on_where_they_stood(steps_before: int, word: int) -> None:
    driver, undisturbed = (Driver(counting(rollout_length=3, n_envs=3), [1.0, 0.0]) for _ in range(2))
    driver.play_on = True
    played = 0
    while played < steps_before:
        _, row = driver.until_prediction()
        played += row < 3
        driver.answer()
    while not driver.rests and driver.store.steps[driver.submitted].sum() < played:
        driver.until_prediction()
        driver.answer(word)
        driver.until_prediction()
    assert driver.store.steps[driver.submitted].sum() == played
    before = len(driver.submitted)
    for each in (driver, undisturbed):
        while each.store.steps[each.submitted].sum() < 60:
            each.until_prediction()
            each.answer()
            each.until_prediction()
    assert set(driver.store.steps[driver.submitted[before:]]) == {3}
    for slot, after in pairwise(driver.submitted):
        assert np.array_equal(driver.store.following[slot], driver.store.observation[after, 0])

    def facts(each: Driver, name: str) -> list:
        return np.concatenate([getattr(each.store, name)[slot, :each.store.steps[slot]]
                               for slot in each.submitted])[:60].tolist()

    for name in ("observation", "action", "reward", "terminated", "truncated", "episode_length"):
        assert facts(driver, name) == facts(undisturbed, name), name
    assert np.array_equal(facts(driver, "score"), facts(undisturbed, "score"), equal_nan=True)


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


def test_every_agent_incarnation_and_resume_has_its_own_seed() -> None:
    settings = configured(seed=3)
    seeds = {seeded(agent_seed(settings, agent, incarnation, resumed))[0]
             for agent in range(20) for incarnation in range(5) for resumed in (0, 1000)}
    assert len(seeds) == 200
    assert seeded(agent_seed(settings, 1, 1, 0))[0] == seeded(agent_seed(configured(seed=3), 1, 1, 0))[0]


def look(connection, game: str) -> None:
    environment = make_environment(configured(game=game), 1)
    environment.reset(0)
    connection.send((sorted(sys.modules), psutil.Process().memory_info().rss, os.getppid()))
    environment.close()


FORKED = """
import multiprocessing
import os
import signal
from multiprocessing import forkserver

import cv2
import numpy as np

from ga3c.envs import factory as environment
from ga3c.agents.process import start_forkserver
from ga3c.settings.schema import Settings

def look(pipe, game, seed):
    pipe.send((len(os.listdir("/proc/self/task")), cv2.getNumThreads(), "GA3C_PREPARED" in os.environ))
    load, loaded = environment._load, []
    environment._load = lambda rom: loaded.append(rom) or load(rom)
    for _ in range(2):
        world = environment.make_environment(configured(game=game), 3)
        world.reset(seed)
        for action in range(20):
            world.step(np.full(3, action % 6))
        pipe.send((len(loaded), world.observation.tobytes()))

if __name__ == "__main__":
    context, seen = multiprocessing.get_context("forkserver"), []
    for game, seed in (("Pong", 1), ("Pong", 1), ("Pong", 2), ("Boxing", 1)):
        start_forkserver("Pong", 3)
        ours, theirs = context.Pipe()
        process = context.Process(target=look, args=(theirs, game, seed))
        process.start()
        assert ours.recv() == (1, 1, False), "one thread, to be forked, and nothing to hand on"
        seen.append([ours.recv(), ours.recv()])
        process.join()
        if game == KILLED:
            os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
            os.waitid(os.P_PID, forkserver._forkserver._forkserver_pid, os.WEXITED | os.WNOWAIT)
    loaded = [[count for count, _ in agent] for agent in seen]
    assert loaded == [[0, 3]] * 3 + [[3, 6]], loaded
    first, again, other, boxing = [[played for _, played in agent] for agent in seen]
    assert first[0] == first[1] == again[0] != other[0] == other[1]
    print("as one that makes its own")
"""


@pytest.mark.parametrize(("server", "killed", "loaded"), [
    (("Pong", 3), None, [0, 3]), (("Pong", 3), "Pong", [0, 3]), (("Pong", 1), None, [2, 5]),
    (("toy:catch", 3), None, [3, 6])])
def test_agents_are_forked_with_their_emulators_and_play_as_if_they_had_made_them(
        tmp_path: Path, server: tuple[str, int], killed: str | None, loaded: list[int]) -> None:
    script = tmp_path / "forked.py"
    script.write_text(FORKED.replace('start_forkserver("Pong", 3)', f"start_forkserver{server}")
                      .replace("KILLED", repr(killed)).replace("[[0, 3]] * 3", f"[{loaded}] * 3"))
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "as one that makes its own\n"), ended.stderr


def test_an_agents_process_holds_no_tensorflow() -> None:
    start_forkserver("Pong", 1)
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=look, args=(theirs, "Pong"))
    process.start()
    modules, _, parent = ours.recv()
    process.join()
    ours.close()
    theirs.close()
    assert "ga3c.agents.process" in modules and parent != os.getpid()
    heavy = {"tensorflow", "keras", "tensorboard", "h5py", "matplotlib", "rich"}
    assert not heavy & {module.split(".")[0] for module in modules}


def test_niceness_reaches_every_thread_there_is() -> None:
    said = subprocess.run([sys.executable, "-c", """
import os, threading
from ga3c.agents.process import _be_nice
threading.Thread(target=threading.Event().wait, daemon=True).start()
def of_all(): return [os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir("/proc/self/task")]
before = of_all()
_be_nice(3)
print([after - each for after, each in zip(of_all(), before, strict=True)])
"""], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.strip().startswith("[3, 3") and set(said) <= set("[3, ]\n")
