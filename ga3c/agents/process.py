"""An agent: plays, asks for predictions, hands in rollouts. `play` is its life, without any I/O.

`play` is a generator that yields requests and is resumed when they are granted. In a process of one agent or of
several, `channel.Port` grants them through the queues; in serial mode a plain loop grants them in turn. One code path,
two ways to run it.

Next hop of an observation: `channel.Port.ask`, which sends a ticket to the predictors.
"""

from __future__ import annotations

import faulthandler
import fcntl
import multiprocessing
import operator
import os
import signal
import sys
import time
import traceback
from bisect import bisect
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import accumulate
from multiprocessing import forkserver, resource_tracker

import numpy as np
from numpy.typing import NDArray

from ga3c.agents.fault_tolerant import GuardedEnvironment
from ga3c.envs.factory import Environment, make_environment
from ga3c.settings.machine import be_killed_first
from ga3c.settings.schema import Settings
from ga3c.transport.channel import GO_ON, PAUSE, PREDICT, REST, SUBMIT, TAKE, WAIT, Port, Request, ServerGone
from ga3c.transport.slots import Slots

Player = Generator[Request, int | None, None]


def play(environment: Environment, store: Slots, rng: np.random.Generator) -> Player:
    """The life of an agent, from the first observation until a rest is granted with the word to leave.

    The environment must have been reset. Requests and their grants:
    TAKE: a free slot; PREDICT: once policy, value and version stand in the named row, GO_ON, PAUSE, which it is told
    until it rests, or CUT: hand in what there is and begin the next rollout; SUBMIT: nothing, the slot now belongs to
    the trainers; REST, which gives back a slot without a step: 1 to play on, maybe much later, 0 to leave for good.
    Rollouts that are cut short have the steps they have; the episodes go on where they stood.
    """
    n_envs, rollout_length = store.n_envs, store.rollout_length
    # Lists where there is little to compute: after others have had the core, what a step costs is the number of
    # different things that it does, and NumPy does many.
    score, began, now = [0.0] * n_envs, [0] * n_envs, 0  # episodes': so far, and when; agent steps
    full: int | None = None
    slot, t = (yield from _take(store)), 0
    environment.show(store.observation[slot, t])
    while True:
        word = yield PREDICT, slot, t
        if full is not None:
            yield _hand_in(store, full, rollout_length, store.value[slot, 0])
            full = None
        if word != GO_ON:
            if t:
                store.following[slot] = store.observation[slot, t]
                yield _hand_in(store, slot, t, store.value[slot, t])
            if word == PAUSE and not (yield REST, slot, t):
                return
            slot, t = (yield from _take(store)), 0
            environment.show(store.observation[slot, t])
            continue

        action = sample(store.policy[slot, t], rng)
        transition = environment.step(action)

        store.action[slot, t] = action
        store.reward[slot, t] = transition.reward
        score = list(map(operator.add, score, transition.reward.tolist()))
        now += 1
        if True in transition.terminated.tolist() or True in transition.truncated.tolist():
            store.terminated[slot, t] = transition.terminated
            store.truncated[slot, t] = transition.truncated
            for number in np.flatnonzero(transition.score_ended).tolist():
                store.score[slot, t, number], store.episode_length[slot, t, number] = score[number], now - began[number]
            for number in np.flatnonzero(transition.score_ended | transition.truncated).tolist():
                score[number], began[number] = 0.0, now
        if transition.dropped:  # what came next is not known: the value of the last observation stands for it
            store.final_value[slot, t] = store.value[slot, t]
        elif transition.final_observation is not None:
            store.following[slot] = transition.final_observation
            yield PREDICT, slot, rollout_length
            store.final_value[slot, t] = store.value[slot, rollout_length]

        t += 1
        if t == rollout_length:
            environment.show(store.following[slot])
            full, slot, t = slot, (yield from _take(store)), 0
        environment.show(store.observation[slot, t])


def _take(store: Slots) -> Generator[Request, int, int]:
    """A free slot, in which no episode ends yet."""
    slot = yield TAKE, 0, 0
    store.terminated[slot] = store.truncated[slot] = False
    store.score[slot], store.episode_length[slot] = np.nan, 0
    return slot


def sample(policy: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.int64]:
    """Actions (n,) drawn from the probabilities `policy` (n, A)."""
    actions = []
    for probabilities, uniform in zip(policy.tolist(), rng.random(len(policy)).tolist(), strict=True):
        # Inverse transform sampling; scaled by the sum, so that rounding cannot pick an action out of range.
        cumulative = list(accumulate(probabilities))
        actions.append(bisect(cumulative, uniform * cumulative[-1], 0, len(cumulative) - 1))
    return np.array(actions)


def _hand_in(store: Slots, slot: int, steps: int, bootstrap_value: NDArray[np.float32]) -> Request:
    store.steps[slot] = steps
    store.bootstrap_value[slot] = bootstrap_value
    return SUBMIT, slot, 0


class _Clock:
    """Where the time of one agent went since its last rollout."""

    def __init__(self) -> None:
        self.seconds = [0.0, 0.0, 0.0]  # by kind of request: TAKE and PREDICT are waited for, playing takes the rest
        self.waits_for, self.since = REST, 0.0


def pump(players: dict[int, Player], port: Port, store: Slots) -> None:
    """Grants the requests of `players`, by agent, through the port until all have left; records where their time went.

    One plays at a time, in the order of their grants. A wait lasts until it is the agent's turn.
    """
    clocks = {agent: _Clock() for agent in players}
    granted: Sequence[tuple[int, int | None]] = [(agent, None) for agent in players]
    while players:
        for agent, grant in granted:
            player, clock = players[agent], clocks[agent]
            now = time.monotonic()
            if clock.waits_for != REST:
                clock.seconds[clock.waits_for] += now - clock.since
            while grant != WAIT:
                try:
                    request = player.send(grant)
                except StopIteration:
                    del players[agent]
                    break
                kind, slot, row = request
                before, now = now, time.monotonic()
                clock.seconds[SUBMIT] += now - before
                if kind == PREDICT:
                    store.asked[slot, row] = now
                elif kind == TAKE:
                    store.taken[port.first_slot[agent]] += 1
                elif kind == REST and not row:
                    store.taken[port.first_slot[agent]] -= 1  # the slot is given back
                elif kind == SUBMIT:
                    store.seconds[slot], store.submitted[slot] = clock.seconds, now
                    clock.seconds = [0.0, 0.0, 0.0]
                grant = port.ask(agent, request)
                clock.waits_for, clock.since = kind, now
        granted = port.receive() if players else []


def seeded(seed: np.random.SeedSequence) -> tuple[int, np.random.Generator]:
    """An agent's (seed of its environments, generator of its actions), both from its own seed sequence."""
    environments, actions = seed.spawn(2)
    return int(environments.generate_state(1)[0]) % 2**31, np.random.default_rng(actions)


def agent_seed(settings: Settings, agent: int, incarnation: int, resumed_at: int) -> np.random.SeedSequence:
    """One child of the run's SeedSequence for every agent, incarnation and resume."""
    return np.random.SeedSequence(settings.run.seed, spawn_key=(agent, incarnation, resumed_at))


@contextmanager
def forkserver_running(game: str, n_envs: int) -> Iterator[None]:
    """Within, the process that agents are forked from is there, and processes may be started from it.

    It imports what an agent needs and makes the emulators of `n_envs` environments (`prepared.py`), once. What one
    started for another game, or for fewer, does not have, each process loads itself. Should it have died, or die just
    now, the next one is like it: SIGINT is blocked in it and so in every agent, as Ctrl-C is the main process's to
    handle; SIGUSR1, a wish for a checkpoint, would end it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ga3c.agents.process", "ga3c.commands.train", "ga3c.evaluation.scores.episodes", "ga3c.envs.preload"])
    resource_tracker.ensure_running()  # it unblocks SIGINT when it starts; the fork server would start it
    wanted = f"{game}:{n_envs}"
    if os.environ.get("GA3C_PREPARED") != wanted:  # TensorFlow's threads may read the environment meanwhile
        os.environ["GA3C_PREPARED"] = wanted
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR1})
    try:
        forkserver.ensure_running()
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_forkserver(game: str, n_envs: int) -> None:
    """Has it start while we do other things; see `forkserver_running`."""
    with forkserver_running(game, n_envs):
        pass


def _end_with_the_main_process() -> None:
    """An agent that hangs in its environment, or is stopped, would not notice that the main process is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    lifeline = parent.sentinel  # a pipe that says nothing until the main process ends; then the kernel kills us
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _be_nice(niceness: int) -> None:
    """Lowers the priority of all threads there are: a simulator may have made some."""
    for thread in map(int, os.listdir("/proc/self/task")):
        with suppress(ProcessLookupError):  # it has just ended
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + niceness)


def agents_main(port: Port, store: Slots, settings: Settings, seeds: list[np.random.SeedSequence],
                log: str) -> None:
    """Entry point of a process of agents: makes the environments of each and grants `play` its requests through `port`.

    `seeds` are theirs, in the order of `port.agents`. Ends when asked to leave or when the main process is gone.
    Environments that fail are replaced; what cannot be mended here ends the process with exit code 1 and leaves its
    traceback in the store (`last_words`). The file `log` gets all stacks if the interpreter is shot down, and on
    SIGUSR1.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the main process will say what to do
    _end_with_the_main_process()
    be_killed_first()

    def failed() -> None:
        first = port.first_slot[port.agents[0]]
        store.last_words[first] = traceback.format_exc().encode()[-3900:]
        store.faults[first] += 1

    with open(log, "a", encoding="utf-8") as file:
        faulthandler.enable(file)
        faulthandler.register(signal.SIGUSR1, file)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        try:
            environments, players = [], {}
            for agent, seed in zip(port.agents, seeds, strict=True):
                environment_seed, rng = seeded(seed)
                environment = GuardedEnvironment(lambda: make_environment(settings, store.n_envs), failed)
                environment.reset(environment_seed)
                environments.append(environment)
                players[agent] = play(environment, store, rng)
            _be_nice(settings.agents.agent_nice)  # not before: of many agents at work it would get a small share of a core
            pump(players, port, store)
            for environment in environments:
                environment.close()
        except ServerGone:
            os._exit(0)
        except Exception:
            failed()
            sys.exit(1)
