"""The pool of agent processes: starts, stops, watches and restarts them. Used by the supervisor's thread only."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from statistics import median


from ga3c.agents.loop import agent_seed
from ga3c.agents.forkserver import forkserver_ended, start
from ga3c.agents.process import MODEL_FAILED
from ga3c.envs.process_group import kill_group, kill_leader, signal_name
from ga3c.learner.learner import Model
from ga3c.runs.recorder import Recorder
from ga3c.service import workers
from ga3c.service.environment_faults import EnvironmentFaults
from ga3c.service.signals import Interrupted
from ga3c.service.workers import Agent, AgentState, Cause
from ga3c.settings.machine import oom_kills
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.slots import AgentStatus, Slots

DRAIN_SECONDS = 3.0      # at the end of a run: an agent takes one step to drain; a slow environment gets this long
STACKS_SECONDS = 0.9     # to write stacks before the kill; `watch` runs every second, but sooner after a late call
LONGEST_WATCH_GAP = 3.0  # after such a gap between two looks (suspend, SIGSTOP, slow disk) old heartbeats do not count
START_TIMES = 20         # the median is taken of so many newest start-up times
LEAST_TIMEOUT = 1.0      # seconds: agents are looked at once a second, and one that waits shows four signs of life
_HOW = {Cause.OUT_OF_MEMORY: "was killed, likely because memory ran out",
        Cause.FORK_SERVER: "was lost because its fork server ended",
        Cause.MODEL: "ended because its model failed (traceback in log.txt)"}


class AgentsLost(Exception):
    """No agent is left: all are quarantined, or none can be started."""


class AgentPool:
    """All agents of a run, one object each.

    Args:
        recorder: the agents' seeds depend on its agent steps now, when the process begins.
        model: the agents act on its outputs.
        entry: the entry point of an agent's process.
        waiting: makes the context in which the pool waits for a start; Interrupted ends the wait.
    """

    def __init__(self, settings: Settings, store: Slots, channel: Channel, recorder: Recorder,
                 model: Model, entry: Callable[..., None],
                 waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self._entry = entry
        self._waiting = waiting
        self._model = model
        self._settings = settings
        self._store = store
        self._channel = channel
        self._recorder = recorder
        self._resumed_at = recorder.statistics.agent_steps
        self.agents = [Agent(number) for number in range(store.n_agents)]
        self._vacated: deque[int] = deque()  # written by trainers' threads
        self._memory_limit = len(self.agents)  # as many as fit into memory
        self._refusals = workers.Refusals(len(self.agents))
        self._faults = EnvironmentFaults(recorder)
        self._last_fault = ""
        self._oom_kills = deque([oom_kills()], maxlen=2)  # at the last two looks, a second apart
        self._looked_at = self._watching_since = time.monotonic()
        self._start_times: deque[float] = deque(maxlen=START_TIMES)

    # ------------------------------------------------------------------------------------ what there is

    def vacate(self, number: int) -> None:
        """Notes that all slots of the agent are free again. May be called from any thread."""
        self._vacated.append(number)

    def _in(self, *states: AgentState) -> list[Agent]:
        return [agent for agent in self.agents if agent.state in states]

    @property
    def _at_work(self) -> list[Agent]:
        return [agent for agent in self.agents if agent.at_work]

    @property
    def at_work(self) -> int:
        """Number of agents that are starting or playing."""
        return len(self._at_work)

    def settled(self) -> bool:
        """Returns whether no agent is starting or draining. First notes the agents that play by now."""
        self._note_playing()
        return not self._in(AgentState.STARTING, AgentState.DRAINING)

    @property
    def processes(self) -> list[ForkServerProcess]:
        """The processes whose end has not been noted yet."""
        return [agent.process for agent in self.agents if agent.process is not None]

    @property
    def pids(self) -> list[int]:
        """The process ids of `processes`."""
        return [process.pid or 0 for process in self.processes]

    @property
    def available(self) -> int:
        """The largest number of agents that is possible now."""
        return min(self._agent_limit, len(self.agents) - len(self._in(AgentState.QUARANTINED)))

    @property
    def _agent_limit(self) -> int:
        return min(self._memory_limit, self._refusals.allowed)

    @property
    def start_seconds(self) -> float | None:
        """Median of the newest start-up times, from a process's start to its first step; None before the first."""
        return median(self._start_times) if self._start_times else None

    def next_start(self, wanted: int) -> float | None:
        """Returns when the next missing agent may be started (monotonic seconds).

        None if none is missing, or none is vacant.
        """
        vacant = self._in(AgentState.VACANT)
        if self.at_work >= wanted or not vacant:
            return None
        return min(agent.start_after for agent in vacant)

    def wanted(self, asked: int, played: bool) -> int:
        """Returns how many of the `asked` agents are possible; 0 if none is.

        Args:
            played: whether this process has collected any step. Then the environment works, and other agents replace
                quarantined ones. Before that, other agents would most likely fail in the same way.
        """
        if played:
            return min(asked, self.available)
        quarantined = len(self._in(AgentState.QUARANTINED))
        at_least = 1 if self.processes else 0  # the last live agent keeps playing in any case
        return max(min(asked - quarantined, self._agent_limit), at_least)

    # ------------------------------------------------------------------------------------ starting and stopping

    def reconcile(self, wanted: int) -> None:
        """Starts and stops agents so that `wanted` are at work."""
        now = time.monotonic()
        self._refusals.expire(now)
        while self._vacated:
            agent = self.agents[self._vacated.popleft()]
            if agent.state is AgentState.GONE:
                agent.state = AgentState.VACANT
                agent.start_after = max(agent.start_after, self._refusals.server_back_at)
        self._note_playing()
        at_work = self._at_work
        ready = [agent for agent in self._in(AgentState.VACANT) if agent.start_after <= now]
        for agent in ready[:max(0, wanted - len(at_work))]:
            if not self._start(agent):
                break
        for agent in at_work[max(wanted, 0):]:
            agent.state = AgentState.DRAINING
            self._channel.stop(agent.number)

    def _note_playing(self) -> None:
        for agent in self._in(AgentState.STARTING):
            if self._store.state[agent.number] != AgentStatus.STARTING:
                agent.state = AgentState.PLAYING
                self._start_times.append(float(self._store.playing_since[agent.number]) - agent.started_at)

    def _start(self, agent: Agent) -> bool:
        """Starts a process for the agent. Returns whether that worked."""
        alive, s, began = len(self.processes), self._settings, time.monotonic()
        try:
            port = self._channel.open(agent.number)
        except OSError as error:  # no descriptor
            self._not_started(agent, error, alive, began)
            return False
        if self._resumed_at and port.generation == 1:
            s = s.changed(random_start_steps=0)  # a resumed run takes no random steps; a restarted agent does
        process = multiprocessing.get_context("forkserver").Process(
            target=self._entry,
            args=(port, self._store, s, self._model.acting,
                  agent_seed(s, agent.number, port.generation, self._resumed_at),
                  self._recorder.log_path,
                  self._recorder.statistics.agent_steps // (s.schedule.agents * s.agents.envs_per_agent)),
            name=f"agent-{agent.number}", daemon=False)  # its environments may start processes
        try:
            agent.forked_from = start(process, port, s.env, s.agents.envs_per_agent, self._waiting)
        except (OSError, EOFError) as error:  # no process, or no memory, which kills the fork server
            self._not_started(agent, error, alive, began)
            return False
        except Interrupted:
            self._channel.hang_up(agent.number)
            return False
        agent.process, agent.state, agent.started_at = process, AgentState.STARTING, time.monotonic()
        agent.interrupted_at, agent.faults_seen = None, 0
        self._recorder.event("agent_started", agent=agent.number, generation=port.generation, pid=process.pid)
        return True

    def _not_started(self, agent: Agent, error: Exception, alive: int, began: float) -> None:
        """Handles a failed start. Raises AgentsLost if no process is left.

        alive: processes before it. If the fork server died of this start, they are lost with it. began: when it began.
        """
        self._channel.withdraw(agent.number)
        now, cause = time.monotonic(), f"{type(error).__name__}: {error}"
        self._recorder.event("agent_not_started", agent=agent.number, cause=cause)
        if isinstance(error, (ConnectionError, EOFError)) and self._refusals.note_missing_server(began, now):
            for vacant in self._in(AgentState.VACANT):
                vacant.start_after = max(vacant.start_after, self._refusals.server_back_at)
            died_of_it = not isinstance(error, ConnectionRefusedError)
            if died_of_it and alive and (pause := self._refusals.note_lost_agents(now)):
                self._refuse(agent, cause, alive, pause)
            return
        if not self.processes:
            raise AgentsLost(f"agents: none can be started: {cause}; check `ulimit -u` and the container's limit "
                             "of processes")
        self._refuse(agent, cause, alive, workers.START_PAUSE)

    def _refuse(self, agent: Agent, cause: str, alive: int, seconds: float) -> None:
        """Limits the pool to `alive` agents for so many seconds."""
        now = time.monotonic()
        agent.start_after = self._refusals.refused(now, alive, seconds)
        self._recorder.disturbances += 1
        self._recorder.log(f"Agent {agent.number} cannot be started ({cause}): {alive} agents for now; the next try is "
                           f"in {agent.start_after - now:.0f} s.")

    def stop_all(self, at_once: bool) -> None:
        """Ends every process: by the stop message (not if `at_once`), then by closing its pipe, then by SIGKILL."""
        if not at_once:
            for agent in self.agents:
                if agent.at_work:
                    agent.state = AgentState.DRAINING
                    self._channel.stop(agent.number)
            self._join(DRAIN_SECONDS)
        for agent in self.agents:
            if agent.alive:
                self._channel.hang_up(agent.number)
        self._join(1.0)
        for process in self.processes:
            kill_leader(process)
        self._join(1.0)
        for agent in self.agents:
            self._count_faults(agent)  # of the last second

    def _join(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self.processes and (left := deadline - time.monotonic()) > 0:
            wait([process.sentinel for process in self.processes], left)
            for _ in self._ended():
                pass

    # ------------------------------------------------------------------------------------ ends, faults, silence

    def reap(self) -> None:
        """Notes every process that has ended, and retires its agent."""
        for agent, exitcode in self._ended():
            self._count_faults(agent)
            if agent.state is AgentState.DRAINING:
                self._note_drained(agent, exitcode)
            else:
                self._died(agent, exitcode)
            self._channel.retire(agent.number)

    def lost(self) -> AgentsLost:
        """Returns the exception to raise when no agent is left."""
        n = len(self._in(AgentState.QUARANTINED))
        return AgentsLost(f"agents: all {n} failed again and again and are quarantined; the last one: "
                          f"{self._last_fault}")

    def _ended(self) -> Iterator[tuple[Agent, int]]:
        for agent in self.agents:
            process = agent.process
            code = process.exitcode if process else None
            if process is None or code is None:
                continue
            agent.process = None
            # Ends what its environments started, and the agent: with 255 only the fork server may have died.
            kill_group(process.pid or 0)
            process.join()
            process.close()
            yield agent, code

    def _note_drained(self, agent: Agent, exitcode: int) -> None:
        """Notes the end of a draining agent. If it did not end by itself, its unsubmitted steps are lost."""
        agent.state, causes = AgentState.GONE, {}
        if exitcode:
            cause, how = self._end(agent, exitcode)
            causes = {"cause": cause.value}
            self._recorder.statistics.agent_deaths += 1
            self._recorder.log(f"Agent {agent.number} was draining, but {how}.")
        elif self._channel.has_delivered(agent.number):
            agent.failures = 0
        self._recorder.event("agent_left", agent=agent.number, exitcode=exitcode, **causes)

    def _end(self, agent: Agent, exitcode: int) -> tuple[Cause, str]:
        """Returns the cause of a process's end, and a phrase about it for messages."""
        cause = self._cause(agent, exitcode)
        return cause, _HOW.get(cause) or (f"was killed by {signal_name(-exitcode)}" if exitcode < 0 else
                                          f"ended with exit code {exitcode}")

    def _died(self, agent: Agent, exitcode: int) -> None:
        now, recorder = time.monotonic(), self._recorder
        lived = now - agent.started_at
        cause, how = self._end(agent, exitcode)
        if cause is Cause.OUT_OF_MEMORY:
            self._memory_limit = max(1, len(self.processes))
        if cause is not Cause.EXCEPTION:
            self._last_fault = how
        recorder.statistics.agent_deaths += 1
        recorder.disturbances += 1
        if cause is Cause.FORK_SERVER:
            restarts, agent.start_after = True, now
        else:
            shot = exitcode == -signal.SIGKILL and cause is not Cause.OUT_OF_MEMORY
            restarts = agent.note_failure(self._channel.has_delivered(agent.number), shot, lived, now)
        agent.state = AgentState.GONE if restarts else AgentState.QUARANTINED
        recorder.event("agent_died", agent=agent.number, exitcode=exitcode, cause=cause.value, after=round(lived, 3),
                       quarantined=not restarts)
        then = ("is quarantined: it failed again and again" if not restarts else "is restarted"
                if agent.start_after <= now else f"is restarted in {agent.start_after - now:.1f} s")
        why = f" ({self._last_fault})" if cause is Cause.EXCEPTION else ""
        recorder.log(f"Agent {agent.number} {how}{why}. It had run for {lived:.1f} s and {then}.")

    def _cause(self, agent: Agent, exitcode: int) -> Cause:
        """Returns why the agent's process has ended. An out-of-memory kill counts for one agent only."""
        if agent.interrupted_at is not None and exitcode in (-signal.SIGKILL, -signal.SIGUSR1):
            return Cause.HUNG
        if exitcode == -signal.SIGKILL and self._ran_out_of_memory():
            return Cause.OUT_OF_MEMORY
        if exitcode < 0:
            return Cause.SIGNAL
        if exitcode == 255 and forkserver_ended(agent.forked_from):
            return Cause.FORK_SERVER
        if exitcode == MODEL_FAILED and self._settings.schedule.agents_learn:
            return Cause.MODEL
        return Cause.EXCEPTION if exitcode == 1 and agent.faults_seen > 0 else Cause.EXIT

    def _ran_out_of_memory(self) -> bool:
        """Returns whether the kernel has just killed for lack of memory, and this was not reported before."""
        now = oom_kills()
        if now <= self._oom_kills[0]:
            return False
        self._oom_kills.clear()
        self._oom_kills.append(now)
        return True

    def _count_faults(self, agent: Agent) -> None:
        """Counts the environments of the agent that failed since the last call."""
        count, trace = self._channel.faults(agent.number)
        new = count - agent.faults_seen
        if new <= 0:
            return
        agent.faults_seen = count
        self._last_fault = self._faults.note(agent.number, new, trace)

    def watch(self) -> float:
        """Counts faults and kills silent agents, once a second. Returns when the last long gap between calls ended."""
        now = time.monotonic()
        if now - self._looked_at > LONGEST_WATCH_GAP:
            self._watching_since = now
        self._looked_at = now
        self._oom_kills.append(oom_kills())
        for agent in self.agents:
            if agent.process is None:
                continue
            self._count_faults(agent)
            silent = self._silent(agent, now)
            if silent < max(self._settings.agents.agent_timeout, LEAST_TIMEOUT):
                agent.interrupted_at = None
            elif agent.interrupted_at is None:
                self._interrupt(agent, silent)
            elif now >= agent.interrupted_at + STACKS_SECONDS:
                kill_leader(agent.process)
        return self._watching_since

    def _silent(self, agent: Agent, now: float) -> float:
        """Returns seconds since the agent's last heartbeat, its start, or the last gap between looks: the latest."""
        return now - max(float(self._store.heartbeat[agent.number]), agent.started_at, self._watching_since)

    def _interrupt(self, agent: Agent, silent: float) -> None:
        """Asks a silent agent for its stacks. `watch` kills it when it has had time to write them."""
        assert agent.process is not None and agent.process.pid
        starting = self._store.state[agent.number] == AgentStatus.STARTING
        where = "making its environments" if starting else "in its environment"
        self._recorder.event("agent_hung", agent=agent.number, where=where, silent=round(silent, 3))
        self._recorder.log(f"Agent {agent.number} has been silent for {silent:.0f} s {where} and is killed; "
                           f"where exactly, if it still runs, is in {self._recorder.log_path}")
        agent.interrupted_at = time.monotonic()
        with contextlib.suppress(ProcessLookupError):  # after the message, which would stand between its lines
            os.kill(agent.process.pid, signal.SIGUSR1)
