"""The workers as objects with a state: agents, and pools of predictor or trainer threads; and the rules of restarting.

An agent *delivers* when it submits a rollout. It is *shot* when others kill it (SIGKILL), or when it hung. The first
row that fits holds (`Agent.note_failure`).

    delivered, and was shot or lived for 10 s    restarted at once; earlier failures are forgotten.
    fifth failure in a row, had not delivered    quarantined, and so it stays.
    tenth failure in a row, had delivered        quarantined, too.
    delivered, first failure                     restarted at once.
    shot before it delivered                     restarted after 0.5 s.
    any other failure                            restarted after 0.5 s, doubled each time in a row, 30 s at most.

When all are quarantined, there is nothing to go on with.

A thread that fails is restarted once. A second failure within a minute ends the run, unless that thread was at work
before the first one: one fault may hit several threads. Divergence is answered once, from a checkpoint.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import threading
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess

HEALTHY_SECONDS = 10.0   # of life, after which earlier failures are forgotten
QUARANTINE_AFTER = 5     # failures in a row of an agent that submitted nothing
QUARANTINE_DELIVERING = 10  # ... of one that did: it may be worth its restarts for longer
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds of back-off
START_PAUSE = 30.0       # seconds after the system had no process for an agent
LONGEST_START_PAUSE = 3600.0
FORKSERVER_SECONDS = 1.0  # a fork server that was killed takes this long, at the most, until multiprocessing notices
THREAD_HEALTHY_SECONDS = 60.0  # without a failure, after which a thread may fail once more
THREAD_PAUSE = 30.0      # seconds until a thread that could not be started is tried again


class AgentState(enum.Enum):
    """Where an agent stands, as the supervisor sees it. What its process reports: `transport.slots.AgentStatus`."""

    VACANT = 0         # may be started once `start_after` is past -> STARTING
    STARTING = 1       # its process makes environments -> PLAYING; DRAINING; GONE or QUARANTINED if it ends unasked
    PLAYING = 2        # -> DRAINING; GONE or QUARANTINED if it ends unasked
    DRAINING = 3       # it was sent the stop message -> GONE
    GONE = 4           # no process, and its slots are not all back yet -> VACANT
    QUARANTINED = 5    # it failed too often; it stays so


class Cause(enum.Enum):
    """Why an agent's process ended unasked, as events name it."""

    HUNG = "hung"                    # it gave no sign of life, and was killed
    OUT_OF_MEMORY = "out of memory"  # the kernel killed it
    SIGNAL = "signal"                # another process killed it
    EXCEPTION = "exception"          # its environment raised
    MODEL = "model"                  # its own model raised (A3C on processors)
    EXIT = "exit"                    # its environment ended the process
    FORK_SERVER = "fork server"      # what it was forked from has ended


@dataclasses.dataclass
class Agent:
    """One agent, by its number; its process while it has one. Times are monotonic seconds."""

    number: int
    state: AgentState = AgentState.VACANT
    process: ForkServerProcess | None = None
    forked_from: int = 0          # pid of the fork server that started it
    started_at: float = 0.0
    start_after: float = 0.0
    interrupted_at: float | None = None  # when its stacks were asked for, as it gave no sign of life
    faults_seen: int = 0          # of its environments, in this generation
    failures: int = 0             # in a row

    @property
    def alive(self) -> bool:
        """Whether it has a process."""
        return self.process is not None

    @property
    def at_work(self) -> bool:
        """Whether it plays, or will, and is not to end."""
        return self.state in (AgentState.STARTING, AgentState.PLAYING)

    def note_failure(self, delivered: bool, shot: bool, lived: float, now: float) -> bool:
        """It ended unasked: sets when it may start again. Returns False if it is quarantined.

        Args:
            delivered: it submitted a rollout in this generation.
            shot: it was killed by others, or because it hung: that says little about its environments.
            lived: seconds since its start.
        """
        self.start_after = now
        if delivered and (shot or lived >= HEALTHY_SECONDS):
            self.failures = 0
            return True
        self.failures += 1
        if self.failures >= (QUARANTINE_DELIVERING if delivered else QUARANTINE_AFTER):
            return False
        if shot:
            self.start_after = now + FIRST_PAUSE
        elif not delivered or self.failures > 1:
            self.start_after = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**(self.failures - 1))
        return True


class Refusals:
    """How many agents there may be while the system has no process for more. Times are monotonic seconds.

    Some systems kill the fork server instead, and all agents with it. As it may have died of something else, the first
    such death in two hours costs no agent its place. Each further one doubles the pause.
    """

    def __init__(self, agents: int) -> None:
        self.allowed = self._agents = agents
        self._again_at = 0.0
        self._refused_at = self._took_agents_at = -math.inf  # when the fork server last died of a start; with agents
        self._in_a_row = 0  # deaths that took agents

    def forget(self, now: float) -> None:
        """All agents are allowed again once the pause is over."""
        if now >= self._again_at:
            self.allowed = self._agents

    def refused(self, now: float, alive: int, seconds: float) -> float:
        """Only as many as there were from now on, for so many seconds. Returns when one more may be tried."""
        self.allowed, self._again_at = alive, now + min(seconds, LONGEST_START_PAUSE)
        return self._again_at

    def server_died(self, now: float) -> bool:
        """A start failed as there was no fork server. False if so did the one before: that is a refusal."""
        if now - self._refused_at <= 2 * FORKSERVER_SECONDS:
            return False
        self._refused_at = now
        return True

    @property
    def server_back_at(self) -> float:
        """When multiprocessing starts another fork server, at the latest."""
        return self._refused_at + FORKSERVER_SECONDS

    def took_agents(self, now: float) -> float:
        """It took running agents with it. Returns the seconds of a pause, 0 if it may be chance."""
        chance = now - self._took_agents_at > 2 * LONGEST_START_PAUSE
        self._took_agents_at, self._in_a_row = now, 0 if chance else self._in_a_row + 1
        return 0.0 if chance else START_PAUSE * 2.0**(self._in_a_row - 1)


class WorkerThread:
    """One predictor or trainer thread. `failed` gets what it raised, and when it began (monotonic seconds)."""

    def __init__(self, name: str, work: Callable[[], None], failed: Callable[[BaseException, float], None]) -> None:
        self.working = True
        self._work, self._failed, self._began = work, failed, time.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: B036  # handed to the main thread, which decides
            self._failed(error, self._began)
        finally:
            self.working = False  # after that, so that nobody takes its place undecided

    def join(self, seconds: float) -> None:
        """Waits for its end, so long."""
        self._thread.join(seconds)


class WorkerPool:
    """The threads of one kind. `resize` starts some or dismisses some. Whichever thread takes a dismissal ends."""

    def __init__(self, name: str, work: Callable[[], None], dismiss: Callable[[], None],
                 failed: Callable[[BaseException, float], None]) -> None:
        self._name, self._work, self._dismiss, self._failed = name, work, dismiss, failed
        self._threads: list[WorkerThread] = []
        self._started = self._dismissed = 0
        self._start_after = 0.0  # monotonic seconds

    def __len__(self) -> int:
        return len(self._threads)

    def resize(self, wanted: int) -> str:
        """Forgets threads that have ended, starts missing ones, dismisses spare ones.

        Returns why one could not be started, "" else; then none is tried for a while. Raises RuntimeError if there is
        none at all.
        """
        working = [thread for thread in self._threads if thread.working]
        self._dismissed -= min(self._dismissed, len(self._threads) - len(working))
        self._threads = working
        for _ in range(len(working) - self._dismissed - wanted):
            self._dismissed += 1
            self._dismiss()
        for _ in range(wanted - (len(working) - self._dismissed) if self._start_after <= time.monotonic() else 0):
            try:
                thread = WorkerThread(f"{self._name}-{self._started}", self._work, self._failed)
            except RuntimeError as error:
                if not working:
                    raise
                self._start_after = time.monotonic() + THREAD_PAUSE
                return f"{self._name}: {error}"
            self._started += 1
            working.append(thread)
        return ""

    def join(self, deadline: float) -> bool:
        """Waits for all until `deadline`, monotonic seconds; False if some are still at work."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.working for thread in self._threads)


class FailureRules:
    """What is done about threads that fail. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._thread_failed_at: float | None = None

    def may_restart_thread(self, now: float, began: float) -> bool:
        """Whether a failed thread, at work since `began`, is restarted; False: the run ends."""
        before, self._thread_failed_at = self._thread_failed_at, now
        return before is None or began < before or now - before > THREAD_HEALTHY_SECONDS
