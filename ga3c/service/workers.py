"""The state of agents and of pools of predictor or trainer threads, and the rules for restarting them.

`Agent.note_failure` decides when an agent starts again. docs/architecture.md has its rule as a table.

A thread that fails is restarted. A second failure within a minute ends the run, unless that thread was at work before
the first failure: one fault may hit several threads. `divergence.py` has the rule for divergence.
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
QUARANTINE_DELIVERING = 10  # failures in a row of an agent that submitted a rollout: it is worth more restarts
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds of back-off
START_PAUSE = 30.0       # seconds until the next start after the system refused a process
LONGEST_START_PAUSE = 3600.0
FORKSERVER_SECONDS = 1.0  # at most, until multiprocessing notices that a fork server was killed
THREAD_HEALTHY_SECONDS = 60.0  # without a failure, after which a thread may fail once more
THREAD_PAUSE = 30.0      # seconds until a thread that could not be started is tried again


class AgentState(enum.Enum):
    """The state of an agent, as the supervisor sees it. Its process reports `transport.slots.AgentStatus`."""

    VACANT = 0         # may be started once `start_after` is past -> STARTING
    STARTING = 1       # its process makes environments -> PLAYING; DRAINING; GONE or QUARANTINED if it ends unasked
    PLAYING = 2        # -> DRAINING; GONE or QUARANTINED if it ends unasked
    DRAINING = 3       # it was sent the stop message -> GONE
    GONE = 4           # no process; some of its slots are not free yet -> VACANT
    QUARANTINED = 5    # it failed too often; final


class Cause(enum.Enum):
    """Why an agent's process ended unasked, as events name it."""

    HUNG = "hung"                    # it had no heartbeat for too long, and was killed
    OUT_OF_MEMORY = "out of memory"  # the kernel killed it
    SIGNAL = "signal"                # another process killed it
    EXCEPTION = "exception"          # its environment raised
    MODEL = "model"                  # its own model raised (A3C on processors)
    EXIT = "exit"                    # its environment ended the process
    FORK_SERVER = "fork server"      # the fork server that started it has ended


@dataclasses.dataclass
class Agent:
    """One agent, and its process while it has one. Times are monotonic seconds."""

    number: int
    state: AgentState = AgentState.VACANT
    process: ForkServerProcess | None = None
    forked_from: int = 0          # pid of the fork server that started it
    started_at: float = 0.0
    start_after: float = 0.0
    interrupted_at: float | None = None  # when its stacks were requested, as it was silent
    faults_seen: int = 0          # of its environments, in this generation
    failures: int = 0             # in a row

    @property
    def alive(self) -> bool:
        """Whether the agent has a process."""
        return self.process is not None

    @property
    def at_work(self) -> bool:
        """Whether the agent is starting or playing."""
        return self.state in (AgentState.STARTING, AgentState.PLAYING)

    def note_failure(self, delivered: bool, shot: bool, lived: float, now: float) -> bool:
        """Records that the agent ended unasked, and sets `start_after`. Returns False if it must be quarantined.

        Args:
            delivered: whether it submitted a rollout in this generation.
            shot: whether it ended by SIGKILL, but not for lack of memory. That says little about its environments.
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
    """The number of agents allowed while the system refuses a process for more. Times are monotonic seconds.

    Some systems do not refuse, but kill the fork server, and all agents with it. The server may also die for another
    reason. So the first such death in two hours has no effect. The second one limits the agents for `START_PAUSE`
    seconds, and each further one doubles that pause.
    """

    def __init__(self, agents: int) -> None:
        self.allowed = self._agents = agents
        self._again_at = 0.0
        self._refused_at = self._took_agents_at = -math.inf  # start without a fork server; agents lost
        self._in_a_row = 0  # deaths of the fork server that took agents

    def expire(self, now: float) -> None:
        """Allows all agents again if the pause is over."""
        if now >= self._again_at:
            self.allowed = self._agents

    def refused(self, now: float, alive: int, seconds: float) -> float:
        """Allows only `alive` agents for so many seconds, at most an hour. Returns when the next start may be tried."""
        self.allowed = alive
        self._again_at = now + min(seconds, LONGEST_START_PAUSE)
        return self._again_at

    def note_missing_server(self, began: float, now: float) -> bool:
        """Records a start that found no fork server. Returns False right after another one: then it is a refusal.

        began: when the start began. It fails only after a new server has imported what it needs, which takes seconds.
        """
        if began - self._refused_at <= 2 * FORKSERVER_SECONDS:
            return False
        self._refused_at = now
        return True

    @property
    def server_back_at(self) -> float:
        """The latest time at which multiprocessing starts another fork server."""
        return self._refused_at + FORKSERVER_SECONDS

    def note_lost_agents(self, now: float) -> float:
        """Records that the fork server took running agents with it. Returns a pause in seconds; 0: it may be chance."""
        chance = now - self._took_agents_at > 2 * LONGEST_START_PAUSE
        self._took_agents_at, self._in_a_row = now, 0 if chance else self._in_a_row + 1
        return 0.0 if chance else START_PAUSE * 2.0**(self._in_a_row - 1)


class WorkerThread:
    """One predictor or trainer thread. `failed` is called with its exception and its start time (monotonic seconds)."""

    def __init__(self, name: str, work: Callable[[], None], failed: Callable[[BaseException, float], None]) -> None:
        self.working = True
        self._work = work
        self._failed = failed
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: B036  # handed to the main thread, which decides
            self._failed(error, self._began)
        finally:
            self.working = False  # last, so that it is not replaced before the main thread decides

    def join(self, seconds: float | None) -> None:
        """Waits for the end of the thread, so many seconds at most; None: as long as it takes."""
        self._thread.join(seconds)


class WorkerPool:
    """The threads of one kind. `resize` starts or dismisses some. Any thread of the pool may take a dismissal."""

    def __init__(self, name: str, work: Callable[[], None], dismiss: Callable[[], None],
                 failed: Callable[[BaseException, float], None]) -> None:
        self._name = name
        self._work = work
        self._dismiss = dismiss
        self._failed = failed
        self._threads: list[WorkerThread] = []
        self._started = self._dismissed = 0
        self._start_after = 0.0  # monotonic seconds

    def __len__(self) -> int:
        return len(self._threads)

    def resize(self, wanted: int) -> str:
        """Removes threads that have ended, starts missing ones, dismisses surplus ones.

        Returns why a thread could not be started, else "". After a failure no start is tried for `THREAD_PAUSE`
        seconds. Raises RuntimeError if a start fails and no thread is at work.
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
        """Waits for all threads until `deadline` (monotonic seconds). Returns False if some are still at work."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.working for thread in self._threads)


class FailureRules:
    """The rule for threads that fail. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._thread_failed_at: float | None = None

    def may_restart_thread(self, now: float, began: float) -> bool:
        """Returns whether a failed thread, at work since `began`, is restarted. If not, the run ends."""
        before, self._thread_failed_at = self._thread_failed_at, now
        return before is None or began < before or now - before > THREAD_HEALTHY_SECONDS
