"""The service: builds, wires, supervises and stops everything.

      agents (N_A), in processes           main process
    +-----------------------+   tickets   +---------------------------------------------------------+
    | play -> observation --+--- queue ---+-> predictors (N_P) -> Learner.predict --+                 |
    |   ^    in its slot    |             |       (policy, value, version)        | one model,      |
    |   +---- wake-up ------+-------------+------- into the slot <----------------+ on GPU or CPU   |
    | full rollout ---------+--- queue ---+-> trainers (N_T) -> batch -> Learner.train: version + 1   |
    |   ^---- slot free ----+-------------+-------- copied and freed                                |
    +-----------------------+             |   main thread: supervisor, one row of metrics a second  |
       shared memory: slots of facts      +---------------------------------------------------------+

The main thread starts and replaces workers so that as many are at work as `resize` asked for. Agents that share a
process (`seating.py`) begin and end with it; those of them that are not needed rest. It sleeps until a process
ends, someone wakes it, or a second is over. After each second's row the controller (`tuning.Tuner`),
where settings are dynamic, says how many workers it wants next; it needs no thread.

Who waits, what wakes it, and what if the other side is dead:
    agent, for an answer or a free slot   an answer, a freed slot; end of file once the server hangs up or has died
    predictor, for tickets                tickets; the ticket that dismisses it (the server itself can always send one)
    predictor, for more tickets           a time-out, 5 ms at the most
    trainer, for rollouts                 likewise; the others wait for its turn to end
    update lock                           the end of the update that holds it
    agent, at rest                        being called back or told to leave; end of file as above
    main thread                           process sentinels (an evaluation's too), an agent that comes to rest,
                                          `Interruption.wake`, a time-out
Stopping: (a) agents are asked to leave, which takes them one step; (b) those that have not left in time, or all if a
thread has failed, are hung up on, then killed; (c) trainers are dismissed and finish what was handed in, or what of it
there is time for; (d) predictors are dismissed; (e) pipes are closed.

What goes wrong meanwhile comes to the main thread alone, which asks `recovery.Recovery` and carries out what that says:
    environment fails     its agent makes it anew (`guard.py`) and goes on; counted, its traceback logged once per kind
    process dies          a fence, then its agents anew: at once, later, or never (parked)
    process is silent     its stacks into the log (SIGUSR1), a second later SIGKILL; then as above
    thread raises         its tickets go back to the queue, or its batch is dropped; a new thread, once a minute
    device is too small   the trainer halves its updates (`trainer.py`), and tells
    updates not finite    skipped by the model; too many in a row: newest finite checkpoint, lower learning rate, once
    nothing moves         all stacks into the log
The last resort is an exception raised by `Service.run`, which the command turns into a checkpoint and an exit code.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess

from ga3c.agents.process import agent_seed, agents_main, forkserver_running
from ga3c.learner.learner import Diverged, Learner, UpdateStats, stuck
from ga3c.runs.recorder import Run
from ga3c.runs.statistics import Workers
from ga3c.service.predictor import run_predictor
from ga3c.service.signals import Interruption
from ga3c.service.trainer import Spent, rollouts_per_batch, run_trainer
from ga3c.service.workers import Recovery
from ga3c.settings.machine import oom_kills
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel, Port
from ga3c.transport.seating import seating
from ga3c.transport.slots import Slots, Batch
from ga3c.tuning.tuner import Tuner

LEAVE_SECONDS = 3.0   # an agent takes one step to rest, or to leave; a slow environment gets this long
REST_SECONDS = 600.0  # so long an agent that is not needed keeps its environments: some take seconds to make
DRAIN_SECONDS = 5.0   # from the word to stop until rollouts that still wait for an update are dropped
STOP_SECONDS = 7.5    # from the word to stop until a thread that is still in the model is left behind
START_SECONDS = 30.0  # after the system had no process for an agent, or no thread
END_SECONDS = 1.0     # a fork server that was killed takes this long, at the most, until multiprocessing notices
STALL_SECONDS = 30.0  # work is waiting and nothing is done for so long: an alarm
INATTENTION = 3.0     # after such a gap between two looks (suspend, SIGSTOP, a slow disk) nobody is judged by old times


class AgentsLost(Exception):
    """All agents are parked: each died again and again before it had handed in anything."""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


class _Crew:
    """The threads of one kind. `resize` starts and dismisses; who is dismissed is whoever takes the ticket."""

    def __init__(self, name: str, work: Callable[[], None], dismiss: Callable[[], None],
                 failed: Callable[[BaseException, float], None]) -> None:
        self._name, self._work, self._dismiss, self._failed = name, work, dismiss, failed
        self._threads: list[threading.Thread] = []
        self._started = self._leaving = 0
        self._not_before = 0.0  # monotonic seconds

    def __len__(self) -> int:
        return len(self._threads)

    def resize(self, wanted: int) -> str:
        """Threads that have ended are forgotten, missing ones started, spare ones dismissed.

        Returns why one could not be started, "" else; then none is tried for a while. Raises RuntimeError if there is
        none at all.
        """
        alive = [thread for thread in self._threads if thread.is_alive()]
        self._leaving -= min(self._leaving, len(self._threads) - len(alive))
        self._threads = alive
        for _ in range(len(alive) - self._leaving - wanted):
            self._leaving += 1
            self._dismiss()
        for _ in range(wanted - (len(alive) - self._leaving) if self._not_before <= time.monotonic() else 0):
            thread = threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                if not alive:
                    raise
                self._not_before = time.monotonic() + START_SECONDS
                return f"{self._name}: {error}"
            self._started += 1
            alive.append(thread)
        return ""

    def _run(self) -> None:
        began = time.monotonic()
        try:
            self._work()
        except BaseException as error:  # noqa: B036  # handed to the main thread, which decides
            self._failed(error, began)

    def join(self, deadline: float) -> bool:
        """Waits for all until `deadline`, monotonic seconds; False if some are still at work."""
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)


class _Progress:
    """Notices that predictors or trainers have work and do none."""

    def __init__(self, rollouts_per_update: int) -> None:
        self._rollouts_per_update = rollouts_per_update
        self._done = (0, 0)
        self._moved = [0.0, 0.0]
        self._alarmed = False

    def stalled(self, now: float, not_before: float, predictions: int, version: int, waiting: int,
                training_queue: int) -> str:
        """What stands still, once for each stall; "" if nothing does. Times are monotonic seconds."""
        idle = (waiting == 0, training_queue < self._rollouts_per_update)
        moved = (predictions != self._done[0], version != self._done[1])
        self._done = (predictions, version)
        for index in range(2):
            if idle[index] or moved[index] or not self._moved[index]:
                self._moved[index] = now
        stands = [now - max(at, not_before) >= STALL_SECONDS for at in self._moved]
        before, self._alarmed = self._alarmed, any(stands)
        if before or not self._alarmed:
            return ""
        return (f"{waiting} agents wait for a prediction" if stands[0] else
                f"{training_queue} rollouts wait for an update")


class Service:
    """Everything that works while a run goes on. `run` blocks; `resize` may be called from any thread meanwhile."""

    def __init__(self, settings: Settings, run: Run, model: Learner, interruption: Interruption) -> None:
        self._seating = seating(settings)  # of what is shared now, whatever cores there will be later
        self._capacity = capacity = self._seating.capacity
        self._settings, self._run, self._model, self._interruption = settings, run, model, interruption
        self._store = Slots(
            run.spec, settings.algorithm.rollout_length, settings.agents.envs_per_agent, capacity * settings.agents.slots_per_agent)
        self._vacated: deque[int] = deque()
        self._channel = Channel(self._store, self._seating, settings.agents.slots_per_agent, self._on_vacant,
                                rollouts_per_batch(settings))
        self._tuner = Tuner(settings, run, model.device == "CPU") if settings.tuning.dynamic else None
        self._wanted = (self._tuner.setting if self._tuner else
                        (settings.agent_count, settings.tuning.predictors, settings.tuning.trainers))
        self._processes: dict[int, ForkServerProcess] = {}  # of agents, by number
        self._pausing: dict[int, float] = {}  # agent, told to rest -> when our patience ends
        self._resting: dict[int, float] = {}  # agent, at rest -> when it may be told to leave
        self._leaving: dict[int, float] = {}  # process, told to leave its rest -> when our patience ends
        self._vacant = dict.fromkeys(range(self._seating.processes), 0.0)  # process -> not to be started before
        self._started_at: dict[int, float] = {}
        self._not_before: dict[int, float] = {}
        self._most_agents = capacity
        self._refused_at = -math.inf
        self._recovery = Recovery()
        self._hung: set[int] = set()
        self._faults_seen: dict[int, int] = {}
        self._kinds_seen: set[tuple[str, ...]] = set()
        self._last_fault = ""
        self._oom_kills = deque([oom_kills()], maxlen=2)  # at the last two looks, a second apart
        self._memory_is_short = False
        self._looked = self._attentive_since = time.monotonic()
        self._progress = _Progress(rollouts_per_batch(settings))
        self._resumed_at = model.agent_steps
        self._failures: deque[tuple[BaseException, float]] = deque()  # and when the thread began
        self._halvings: deque[tuple[int, int]] = deque()
        self._predictors = _Crew("predictor", self._predict, self._channel.dismiss_predictor, self._on_failure)
        self._trainers = _Crew("trainer", self._train, self._channel.dismiss_trainer, self._on_failure)

    # ------------------------------------------------------------------------- called from other threads

    def resize(self, agents: int, predictors: int, trainers: int) -> None:
        """Asks for these numbers of workers; the supervisor sees to it. From any thread."""
        if not 1 <= agents <= self._capacity or predictors < 1 or trainers < 1:
            raise ValueError(f"{agents}/{predictors}/{trainers}: 1 to {self._capacity} agents, "
                             "at least 1 predictor and 1 trainer")
        self._wanted = (agents, predictors, trainers)
        self._interruption.wake()

    def _predict(self) -> None:
        count = self._run.statistics.new_count()
        try:
            run_predictor(self._channel, self._store, self._model, self._settings.batching.prediction_batch_max, count,
                          self._settings.batching.prediction_batch_min)
        finally:
            self._run.statistics.give_back(count)

    def _train(self) -> None:
        s, statistics = self._settings, self._run.statistics
        max_lag = s.tuning.max_lag if s.batching.drop_stale and s.tuning.max_lag else math.inf
        run_trainer(self._channel, self._store, self._model, rollouts_per_batch(s), self._on_update, self._on_halved,
                    max_lag, statistics.report_dropped)

    def _on_update(self, update: UpdateStats, batch: Batch, spent: Spent) -> None:
        self._run.statistics.report(update, batch, spent)
        if self._run.reached(update.agent_steps):
            self._interruption.wake()

    def _on_halved(self, most: int, n_rollouts: int) -> None:
        self._halvings.append((most, n_rollouts))
        self._interruption.wake()

    def _on_vacant(self, process: int) -> None:
        self._vacated.append(process)
        self._interruption.wake()

    def _on_failure(self, error: BaseException, began: float) -> None:
        self._failures.append((error, began))
        self._interruption.wake()

    # ------------------------------------------------------------------------- the supervisor

    def run(self) -> str:
        """Works until a limit is reached or a signal came, returns which.

        Raises AgentsLost, DeviceFailed, or what a thread raised.
        """
        run, interruption = self._run, self._interruption
        reason = None
        try:
            run.start()
            while reason is None:
                self._reconcile()
                sentinels = [process.sentinel for process in self._processes.values()]
                wait([interruption.fileno(), self._channel.fileno(), *sentinels, *run.evaluator.sentinels],
                     self._patience())
                interruption.clear()
                self._reap()
                self._mend()
                row = run.tick(self._model, self._workers(), [process.pid or 0 for process in self._processes.values()])
                if row:
                    self._watch()
                if interruption.take_checkpoint_wish():
                    run.save_or_warn(self._model)
                if row and self._tuner:
                    self._tuner.second(row, self._settled(), self._agents_to_be_had())
                    self._wanted = self._tuner.setting
                reason = interruption.name or run.reached(self._model.agent_steps)
        finally:
            updated = self._stop()
        if self._failures:  # while stopping
            raise self._failures[0][0]
        if not updated:
            raise stuck(STOP_SECONDS)
        return reason

    def _patience(self) -> float:
        if len(self._present()) + len(self._pausing) < self._agents_wanted() and self._vacant:
            return min(self._run.seconds_to_next(), max(0.0, min(self._vacant.values()) - time.monotonic()))
        return self._run.seconds_to_next()

    def _agents_wanted(self) -> int:
        """Those asked for, as far as memory and parked ones allow; 0 if there are none to be had."""
        if self._model.agent_steps > self._resumed_at:  # it can be played: others take the place of the parked
            return min(self._wanted[0], self._agents_to_be_had())
        parked = len(self._agents_of(self._recovery.parked))
        return max(min(self._wanted[0] - parked, self._most_agents), min(1, len(self._processes)))

    def _agents_to_be_had(self) -> int:
        return min(self._most_agents, self._capacity - len(self._agents_of(self._recovery.parked)))

    def _agents_of(self, processes: Iterable[int]) -> set[int]:
        return {agent for process in processes for agent in self._seating.agents_of(process)}

    def _at_work(self) -> int:
        return len(self._agents_of(self._processes) - self._agents_of(self._leaving)) - len(self._resting)

    def _present(self) -> list[int]:
        """Agents that are at work and to remain so, those first who are to rest last."""
        gone = self._pausing.keys() | self._resting.keys() | self._agents_of(self._leaving)
        return sorted(self._agents_of(self._processes) - gone)

    def _workers(self) -> Workers:
        return Workers(self._at_work(), len(self._predictors), len(self._trainers),
                       self._channel.prediction_queue, self._channel.training_queue)

    def _settled(self) -> bool:
        """Whether exactly as many workers are at work as wanted; an agent that makes its environments is not."""
        present = (self._at_work(), len(self._predictors), len(self._trainers))
        return self._wanted == present == (self._channel.playing, *self._wanted[1:])

    def _reconcile(self) -> None:
        now, (_, predictors, trainers) = time.monotonic(), self._wanted
        for refused in (self._predictors.resize(predictors), self._trainers.resize(trainers)):
            if refused:
                self._run.disturbances += 1
                self._run.event("thread_not_started", cause=refused)
                self._run.say(f"A thread cannot be started ({refused}); tried again in {START_SECONDS:.0f} s.")
        while self._vacated:
            process = self._vacated.popleft()
            if process not in self._recovery.parked:
                self._vacant[process] = max(self._not_before.pop(process, 0.0), self._refused_at + END_SECONDS)
        self._move_agents(self._agents_wanted(), now)

    def _move_agents(self, wanted: int, now: float) -> None:
        """Starts agents, tells them to rest, calls them back and lets them go, so that `wanted` are at work."""
        for agent in self._channel.rested():
            if self._pausing.pop(agent, None) is not None:
                self._resting[agent] = now + (0.0 if self._memory_is_short else REST_SECONDS)
                self._run.event("agent_rests", agent=agent)
        missing = max(0, wanted - len(self._present()))
        ready = self._agents_of(process for process, due in self._vacant.items() if due <= now)
        at_hand = sorted(self._resting.keys() | ready,
                         key=lambda agent: (self._seating.row(agent), agent in ready, agent))
        to_start: list[int] = []
        for agent in at_hand[:missing]:
            if agent in ready:
                to_start.append(agent)
                continue
            del self._resting[agent]
            self._channel.call_back(agent)
            self._run.event("agent_returned", agent=agent)
        to_start = to_start[:max(0, len(to_start) - len(self._pausing))]  # who is on the way to rest is back sooner
        for process in dict.fromkeys(map(self._seating.process_of, to_start)):
            if not self._start(process, {*to_start}):
                break
        for agent in self._present()[wanted:]:
            self._pausing[agent] = now + LEAVE_SECONDS
            self._channel.ask_to_rest(agent)
        self._let_go(now)

    def _let_go(self, now: float) -> None:
        """Processes all of whose agents have rested for long are told to leave; who does not come to an end is killed.
        """
        for process in self._processes.keys() - self._leaving.keys():
            agents = self._seating.agents_of(process)
            if all(self._resting.get(agent, math.inf) <= now for agent in agents):
                for agent in agents:
                    del self._resting[agent]
                self._leaving[process] = now + LEAVE_SECONDS
                self._channel.ask_to_leave(process)
        for process, due in self._leaving.items():
            if due <= now:
                self._processes[process].kill()
        for agent, due in self._pausing.items():
            process = self._seating.process_of(agent)
            since = self._channel.idle_since(process) if self._channel.is_playing(agent) else None
            if due <= now and since is not None and now - since >= LEAVE_SECONDS:
                self._processes[process].kill()  # stuck in an environment; who waits for us is not

    def _start(self, process: int, needed: set[int]) -> bool:
        """Whether the system had a process for it. Its agents that are not `needed` rest before they have played."""
        del self._vacant[process]
        port, s = self._channel.open(process), self._settings
        spare = [agent for agent in port.agents if agent not in needed]
        for agent in spare:
            self._channel.ask_to_rest(agent)
        seeds = [agent_seed(s, agent, port.incarnation, self._resumed_at) for agent in port.agents]
        started = multiprocessing.get_context("forkserver").Process(
            target=agents_main, args=(port, self._store, s, seeds, self._run.log_path),
            name=f"agents-{process}", daemon=True)
        try:
            with forkserver_running(s.env.game, s.agents.envs_per_agent * self._seating.per_process):
                started.start()
        except (OSError, EOFError) as error:  # no process or memory to be had, of which the fork server dies
            self._not_started(process, port, error)
            return False
        Channel.handed_over(port)
        now = self._started_at[process] = time.monotonic()
        self._processes[process] = started
        self._pausing.update(dict.fromkeys(spare, now + LEAVE_SECONDS))
        for agent in port.agents:
            self._run.event("agent_started", agent=agent, incarnation=port.incarnation, pid=started.pid)
        return True

    def _named(self, process: int) -> str:
        """Its agents, as the one who does something."""
        agents = self._seating.agents_of(process)
        return f"Agent {agents[0]}" if len(agents) == 1 else f"The process of agents {', '.join(map(str, agents))}"

    def _not_started(self, process: int, port: Port, error: Exception) -> None:
        Channel.handed_over(port)
        self._channel.hang_up(process)
        now = time.monotonic()
        for agent in port.agents:
            self._run.event("agent_not_started", agent=agent, cause=f"{type(error).__name__}: {error}")
        if isinstance(error, (ConnectionError, EOFError)) and now - self._refused_at > 2 * END_SECONDS:
            self._refused_at, self._vacant[process] = now, now
            self._vacant = {index: max(due, now + END_SECONDS) for index, due in self._vacant.items()}
            return
        if not self._processes:
            raise AgentsLost(f"agents: not one can be started: {type(error).__name__}: {error}; `ulimit -u` and the "
                             "container's limit of processes say how many there may be")
        self._vacant[process] = now + START_SECONDS
        self._most_agents = len(self._agents_of(self._processes))
        self._run.disturbances += 1
        self._run.say(f"{self._named(process)} cannot be started ({type(error).__name__}: {error}): "
                      f"{self._most_agents} agents from now on.")

    def _reap(self) -> None:
        for process, exitcode in self._ended_processes():
            self._take_faults(process)
            self._faults_seen.pop(process, None)
            hung = process in self._hung
            self._hung.discard(process)
            agents = self._seating.agents_of(process)
            unneeded = process in self._leaving or not {*agents} - self._pausing.keys() - self._resting.keys()
            self._leaving.pop(process, None)
            for agent in agents:
                self._pausing.pop(agent, None)
                self._resting.pop(agent, None)
                if unneeded:
                    self._run.event("agent_left", agent=agent, exitcode=exitcode)
            if not unneeded:
                self._process_died(process, exitcode, hung, time.monotonic() - self._started_at[process])
            elif exitcode == -signal.SIGKILL:
                self._ran_out_of_memory()
            self._channel.retire(process)
        if self._agents_wanted() <= 0:
            lost = len(self._agents_of(self._recovery.parked))
            raise AgentsLost(f"agents: all {lost} died again and again before they had handed in anything; the last "
                             f"one: {self._last_fault}")

    def _ended_processes(self) -> list[tuple[int, int]]:
        """(process, exit code) of those that have ended, which are no longer among the processes."""
        codes = [(number, process.exitcode) for number, process in self._processes.items()]
        ended = [(number, code) for number, code in codes if code is not None]
        for number, code in ended:
            process = self._processes.pop(number)
            if code == 255 and process.pid:  # or the fork server has died, and it lives
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            process.join()
            process.close()
        return ended

    def _process_died(self, process: int, exitcode: int, hung: bool, age: float) -> None:
        now, run = time.monotonic(), self._run
        how = f"was killed by {_signal_name(-exitcode)}" if exitcode < 0 else f"ended with exit code {exitcode}"
        hung = hung and exitcode in (-signal.SIGKILL, -signal.SIGUSR1)
        cause = "hung" if hung else "signal" if exitcode < 0 else "exception" if exitcode == 1 else "exit"
        if exitcode == -signal.SIGKILL and not hung and self._ran_out_of_memory():
            cause, how = "out of memory", "was killed, likely because memory ran out,"
            self._most_agents = max(1, len(self._agents_of(self._processes)))
        if cause != "exception":
            self._last_fault = how
        agents = self._seating.agents_of(process)
        run.statistics.agent_deaths += len(agents)
        run.disturbances += 1
        shot = exitcode == -signal.SIGKILL and cause != "out of memory"  # the hung have had their pause
        due = self._recovery.process_died(process, self._channel.has_delivered(process), shot, now)
        self._not_before[process] = due or 0.0
        for agent in agents:
            run.event("agent_died", agent=agent, exitcode=exitcode, cause=cause, after=round(age, 3),
                      parked=due is None)
        next_ = "is parked: it never handed in anything" if due is None else (
            "is replaced" if due <= now else f"is replaced in {due - now:.1f} s")
        why = f" ({self._last_fault})" if cause == "exception" else ""
        run.say(f"{self._named(process)} {how} after {age:.1f} s{why} and {next_}.")

    def _ran_out_of_memory(self) -> bool:
        """Whether the kernel has just killed for want of memory, not told before; then nobody rests any more."""
        now = oom_kills()
        if now <= self._oom_kills[0]:
            return False
        self._oom_kills.clear()
        self._oom_kills.append(now)
        self._memory_is_short = True
        self._resting = dict.fromkeys(self._resting, 0.0)
        return True

    def _take_faults(self, process: int) -> None:
        """Counts the environments that failed its agents since the last look; logs what has not been logged yet."""
        count, trace = self._channel.faults(process)
        new = count - self._faults_seen.get(process, 0)
        if not new:
            return
        self._faults_seen[process] = count
        self._run.statistics.environment_faults += new
        lines = trace.strip().splitlines() or ["unknown"]
        self._last_fault = lines[-1][:200]
        # Its type and where it was raised: a message may have a number in it that is different each time.
        kind = (lines[-1].split(":")[0], *[line for line in lines if line.startswith("  File ")][-1:])
        if kind not in self._kinds_seen and len(self._kinds_seen) < 1000:
            self._kinds_seen.add(kind)
            agents = self._seating.agents_of(process)
            self._run.event("environment_failed", agent=agents[0], cause=self._last_fault)
            whose = f"agent {agents[0]}" if len(agents) == 1 else f"one of the agents {', '.join(map(str, agents))}"
            self._run.say(f"An environment of {whose} failed: {self._last_fault}. Others of this kind are only "
                          f"counted; the traceback is in {self._run.log_path}")
            self._run.note(trace)

    def _watch(self) -> None:
        """Once a second: what environments did, agents that are silent, work that nobody does."""
        now = time.monotonic()
        if now - self._looked > INATTENTION:
            self._attentive_since = now
        self._looked = now
        self._oom_kills.append(oom_kills())
        for number, process in self._processes.items():
            self._take_faults(number)
            since = self._channel.idle_since(number)
            silent = now - max(since, self._attentive_since) if since is not None else 0.0
            if silent < self._settings.agents.agent_timeout:
                self._hung.discard(number)
            elif number in self._hung:
                process.kill()
            elif process.pid:
                self._hung.add(number)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGUSR1)
                agents = self._seating.agents_of(number)
                where = ("in its environment" if any(map(self._channel.is_playing, agents)) else
                         "making its environments")
                for agent in agents:
                    self._run.event("agent_hung", agent=agent, where=where, silent=round(silent, 3))
                self._run.say(f"{self._named(number)} has been silent for {silent:.0f} s {where} and is killed; where "
                              f"exactly, if it still runs, is in {self._run.log_path}")
        stalled = self._progress.stalled(
            now, self._attentive_since, self._run.statistics.predictions,
            self._model.version, self._channel.waiting, self._channel.training_queue)
        if stalled:
            self._run.event("stalled", what=stalled)
            self._run.say(f"Nothing has moved for {STALL_SECONDS:.0f} s: {stalled}. All stacks are in "
                          f"{self._run.log_path}")
            self._run.note_stacks()

    def _mend(self) -> None:
        """Goes on after what a thread raised, or raises it; tells what a trainer has mended itself."""
        while self._halvings:
            most, n_rollouts = self._halvings.popleft()
            steps = self._settings.algorithm.rollout_length * self._settings.agents.envs_per_agent
            self._run.event("batch_halved", agent_steps=most * steps, before=n_rollouts * steps)
            self._run.say(f"The device has no memory for larger updates: at most {most * steps} agent steps of a "
                          f"batch of {n_rollouts * steps} from now on.")
            self._run.disturbances += 1
        mended = False
        while self._failures:
            error, began = self._failures[0]
            if isinstance(error, Diverged) and mended:
                pass  # another trainer's, of the same weights
            elif isinstance(error, Diverged):
                path = self._run.back_to_finite(self._model) if self._recovery.diverged() else None
                if path is None:
                    raise error
                mended = True
                self._run.event("diverged", cause=str(error), back_to=str(path.relative_to(self._run.directory)),
                                learning_rate_factor=self._model.learning_rate_factor)
                self._run.say(f"Diverged: {error}. Going on once from the weights in {path}, with "
                              f"{self._model.learning_rate_factor:g} times the learning rate.")
            else:
                if not isinstance(error, Exception) or not self._recovery.thread_failed(time.monotonic(), began):
                    raise error
                self._run.event("thread_failed", cause=f"{type(error).__name__}: {error}")
                self._run.say(f"A thread failed and is started again: {type(error).__name__}: {error}. If it fails "
                              f"again within a minute, the run ends. The traceback is in {self._run.log_path}")
                self._run.note("".join(traceback.format_exception(error)))
            self._failures.popleft()
            self._run.disturbances += 1

    def _stop(self) -> bool:
        """Ends all workers; whether the trainers have ended."""
        processes, began = list(self._processes), time.monotonic()
        if not self._failures:
            for process in self._processes:
                self._channel.ask_to_leave(process)
            self._join_processes(LEAVE_SECONDS)
        for process in self._processes:
            self._channel.hang_up(process)
        self._join_processes(1.0)
        for left in self._processes.values():
            left.kill()
        self._join_processes(1.0)
        for process in processes:
            self._take_faults(process)  # of the last second
        self._trainers.resize(0)
        if not self._trainers.join(began + DRAIN_SECONDS):
            if dropped := self._channel.drop_rollouts():
                self._run.say(f"Updates take long: {dropped} rollouts are not trained on.")
        updated = self._trainers.join(began + STOP_SECONDS)
        self._predictors.resize(0)
        if self._predictors.join(max(began + STOP_SECONDS, time.monotonic() + 0.5)) and updated:
            self._channel.close()
        else:
            self._run.say("A thread is still at work in the model after the time-out and is left behind.")
        return updated

    def _join_processes(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._processes and (left := deadline - time.monotonic()) > 0:
            wait([process.sentinel for process in self._processes.values()], left)
            self._ended_processes()
