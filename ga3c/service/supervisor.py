"""The service: builds, wires, supervises and stops everything.

      agents (N_A), in processes           main process
    +-----------------------+   tickets   +-----------------------------------------------------------+
    | play -> observation --+--- queue ---+-> predictors (N_P) -> Learner.predict --+                 |
    |   ^    in its slot    |             |       (outputs, version)                | one model,      |
    |   +---- reply --------+-------------+------- into the slot <------------------+ on GPU or CPU   |
    | full rollout ---------+--- queue ---+-> trainers (N_T) -> batch -> Learner.update: version + 1  |
    |   ^---- slot free ----+-------------+------- released                                           |
    +-----------------------+             |   main thread: supervisor, one row of metrics a second    |
       shared memory: slots of facts      +-----------------------------------------------------------+

The main thread starts, stops and restarts workers, so that as many work as the settings or the controller ask for.
It sleeps until a process ends, `Signals.wake` is called, or a second is over. With dynamic settings the controller
(`tuning.tuner`) sets the numbers of workers after each second's row. It runs in the main thread.

The schedule decides what predictors and trainers do (`schedules.py`). In rounds one thread does both jobs. With A3C on
processors one thread counts the updates that agents make themselves.

Stopping takes five steps:

    (a) Agents get the stop message and drain, which takes one step.
    (b) Slow agents, or all if a thread has failed, lose their pipes. A second later they are killed.
    (c) Trainers are dismissed. They train on submitted rollouts while there is time, then finish their minibatch.
    (d) Predictors are dismissed.
    (e) All pipes are closed.

The main thread alone handles failures, by the rules of `workers.py` and `divergence.py`. What each thread waits for is
in docs/architecture.md, what a user sees of a fault in docs/troubleshooting.md.

If no rule helps, `Service.run` raises an exception. The command turns it into a checkpoint and an exit code.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from multiprocessing.connection import wait

from ga3c.learner.learner import Diverged, Learner, Model, UpdateStats, stuck
from ga3c.learner.shared_learner import SharedLearner
from ga3c.runs.recorder import Recorder
from ga3c.runs.statistics import TrainerTime, Workers
from ga3c.service.agent_pool import AgentPool
from ga3c.service.divergence import Divergence
from ga3c.service.evaluations import Evaluations
from ga3c.service.schedules import make_schedule
from ga3c.service.signals import Signals
from ga3c.service.workers import THREAD_PAUSE, FailureRules, WorkerPool
from ga3c.settings.schema import Settings
from ga3c.transport.channel import Channel
from ga3c.transport.slots import Batch, Slots
from ga3c.tuning.tuner import Tuner

DRAIN_TRAINERS_SECONDS = 5.0  # from the start of a stop until rollouts that still wait for an update are dropped
STOP_SECONDS = 7.5    # from the start of a stop until the main thread no longer waits for a thread in the model
STALL_SECONDS = 30.0  # alarm if work waits this long and none is done


class _StallAlarm:
    """An alarm for predictors or trainers that have work but make no progress."""

    def __init__(self, rollouts_per_update: int, agents_wait: bool) -> None:
        self._rollouts_per_update = rollouts_per_update
        self._agents_wait = agents_wait
        self._done = (0, 0)
        self._moved = [0.0, 0.0]
        self._raised = False

    def check(self, now: float, not_before: float, predictions: int, version: int, agents: int, waiting: int,
              training_queue: int, blocked: int) -> str:
        """Returns a description of a stall, once for each stall; "" if there is none.

        Args:
            now, not_before: monotonic seconds; a stall counts from `not_before` at the earliest.
            predictions, version: totals so far; they show progress.
            agents: those at work. In rounds they wait for one another: only if all wait is there work.
            waiting, blocked: agents that wait for a prediction; agents that wait for a slot.
            training_queue: rollouts that wait. A few agents cannot fill an update, because their slots run out first;
                then `blocked` shows the stall.
        """
        idle = (waiting < (max(1, agents) if self._agents_wait else 1),
                training_queue < self._rollouts_per_update and not blocked)
        moved = (predictions != self._done[0], version != self._done[1])
        self._done = (predictions, version)
        for index in range(2):
            if idle[index] or moved[index] or not self._moved[index]:
                self._moved[index] = now
        stands = [now - max(at, not_before) >= STALL_SECONDS for at in self._moved]
        before, self._raised = self._raised, any(stands)
        if before or not self._raised:
            return ""
        return (f"{waiting} agents wait for a prediction" if stands[0] else
                f"{training_queue} rollouts and {blocked} agents wait for an update")


class Service:
    """The workers and the supervisor of one run. `run` blocks."""

    def __init__(self, settings: Settings, recorder: Recorder, learner: Learner | SharedLearner, signals: Signals,
                 evaluations: Evaluations | None = None) -> None:
        self._settings, self._recorder, self._signals, self._evaluations = settings, recorder, signals, evaluations
        self._learner: Model = learner
        recorder.statistics.skips = learner.skips
        self._store = Slots(
            recorder.spec, settings.schedule.segment, settings.agents.envs_per_agent,
            settings.schedule.most[0] * settings.agents.slots_per_agent, settings.schedule.most[0], learner.outputs,
            settings.algorithm.normalize_rewards)
        self._channel = Channel(
            self._store, settings.agents.slots_per_agent, self._on_vacant)
        self._schedule = schedule = make_schedule(
            settings, self._channel, self._store, learner, recorder, self._on_update, self._on_halved)
        self._agents = AgentPool(
            settings, self._store, self._channel, recorder, learner, schedule.entry,
            signals.interruptible)
        self._tuner = Tuner(settings, recorder, learner.device == "CPU") if settings.schedule.tuned else None
        self._wanted = (self._tuner.setting if self._tuner else
                        (settings.schedule.agents, schedule.predictors, schedule.trainers))
        self._rules, self._divergence = FailureRules(), Divergence(recorder, learner)
        self._stalls = _StallAlarm(settings.schedule.rollouts, settings.schedule.agents_wait)
        self._resumed_at = recorder.statistics.agent_steps
        self._failures: deque[tuple[BaseException, float]] = deque()  # exception; when its thread began
        self._halvings: deque[tuple[int, int]] = deque()
        self._predictors = WorkerPool("predictor", schedule.predict, self._channel.dismiss_predictor, self._on_failure)
        self._trainers = WorkerPool("trainer", schedule.train, self._channel.dismiss_trainer, self._on_failure)

    # ------------------------------------------------------------------------- called from other threads

    def _on_update(self, update: UpdateStats, batch: Batch, spent: TrainerTime) -> None:
        self._recorder.statistics.report(update, batch, spent)
        if self._recorder.reached():
            self._signals.wake()

    def _on_halved(self, most: int, n_rollouts: int) -> None:
        self._halvings.append((most, n_rollouts))
        self._signals.wake()

    def _on_vacant(self, agent: int) -> None:
        self._agents.vacate(agent)
        self._signals.wake()

    def _on_failure(self, error: BaseException, began: float) -> None:
        self._failures.append((error, began))
        self._signals.wake()

    # ------------------------------------------------------------------------- the supervisor

    def run(self) -> str:
        """Runs until a limit is reached or a signal arrives; returns which one.

        Raises AgentsLost, DeviceFailed, or the exception of a thread.
        """
        recorder, signals, agents = self._recorder, self._signals, self._agents
        reason = None
        try:
            recorder.start()
            while reason is None:
                self._reconcile()
                sentinels = [process.sentinel for process in agents.processes]
                evaluation = self._evaluations.sentinels if self._evaluations else []
                wait([signals.fileno(), *sentinels, *evaluation], self._time_out())
                signals.clear()
                agents.reap()
                if self._agents_wanted() <= 0:
                    raise agents.lost()
                self._answer_failures()
                if self._evaluations:
                    self._evaluations.tick(self._learner)
                row = recorder.tick(self._learner, self._workers(), agents.pids)
                if row:
                    self._watch()
                if signals.take_checkpoint_request():
                    recorder.checkpoints.request(self._learner)
                if row and self._tuner:
                    self._tuner.second(row, self._settled(), agents.available, agents.start_seconds)
                    self._wanted = self._tuner.setting
                reason = signals.name or recorder.reached()
        finally:
            updated = self._stop()
        for error, _ in self._failures:  # while stopping
            if not isinstance(error, Diverged):
                raise error
            recorder.log(f"While stopping: {error}. The skipped updates did not change the weights.")
        if not updated:
            raise stuck(STOP_SECONDS)
        return reason

    def _time_out(self) -> float:
        row, start = self._recorder.seconds_to_next(), self._agents.next_start(self._agents_wanted())
        return row if start is None else min(row, max(0.0, start - time.monotonic()))

    def _agents_wanted(self) -> int:
        return self._agents.wanted(self._wanted[0], self._recorder.statistics.agent_steps > self._resumed_at)

    def _workers(self) -> Workers:
        return Workers(self._agents.at_work, len(self._predictors),
                       len(self._trainers) if self._schedule.trains else 0,
                       self._channel.prediction_queue, self._channel.training_queue)

    def _settled(self) -> bool:
        """Returns whether exactly the wanted workers are at work, and no agent is starting or draining."""
        present = (self._agents.at_work, len(self._predictors), len(self._trainers))
        return self._wanted == present and self._agents.settled()

    def _reconcile(self) -> None:
        _, predictors, trainers = self._wanted
        if self._schedule.agents_first:
            self._agents.reconcile(self._agents_wanted())
        for refused in (self._predictors.resize(predictors), self._trainers.resize(trainers)):
            if refused:
                self._recorder.disturbances += 1
                self._recorder.event("thread_not_started", cause=refused)
                self._recorder.log(f"A thread cannot be started ({refused}); the next try is in {THREAD_PAUSE:.0f} s.")
        self._agents.reconcile(self._agents_wanted())

    def _watch(self) -> None:
        """Looks for silent agents and for a stall, once a second."""
        watching_since = self._agents.watch()
        stalled = self._stalls.check(
            time.monotonic(), watching_since, self._recorder.statistics.predictions, self._learner.version,
            self._agents.at_work, self._channel.waiting, self._channel.training_queue, self._channel.blocked)
        if stalled:
            self._recorder.event("stalled", what=stalled)
            self._recorder.log(f"Nothing has moved for {STALL_SECONDS:.0f} s: {stalled}. All stacks are in "
                               f"{self._recorder.log_path}")
            self._recorder.note_stacks()

    def _answer_failures(self) -> None:
        """Handles exceptions of threads: the run continues, or the exception is raised. Reports halved updates."""
        recorder = self._recorder
        while self._halvings:
            most, n_rollouts = self._halvings.popleft()
            steps = self._settings.algorithm.rollout_length * self._settings.agents.envs_per_agent
            recorder.event("batch_halved", agent_steps=most * steps, before=n_rollouts * steps)
            recorder.log(f"The device has no memory for larger updates: at most {most * steps} agent steps of a "
                         f"batch of {n_rollouts * steps} from now on.")
            recorder.disturbances += 1
        went_back = False
        while self._failures:
            error, began = self._failures[0]
            if isinstance(error, Diverged):
                if not went_back:  # else another trainer reports the same weights
                    self._divergence.answer(error)
                went_back = True
            elif isinstance(error, Exception) and self._rules.may_restart_thread(time.monotonic(), began):
                recorder.event("thread_failed", cause=f"{type(error).__name__}: {error}")
                recorder.log(f"A thread failed and is restarted: {type(error).__name__}: {error}. If it fails again "
                             f"within a minute, the run ends. The traceback is in {recorder.log_path}")
                recorder.note("".join(traceback.format_exception(error)))
            else:
                raise error
            self._failures.popleft()
            recorder.disturbances += 1

    def _stop(self) -> bool:
        """Ends all workers. Returns whether the trainers have ended."""
        began = time.monotonic()
        # An update that begins at the last moment must end before STOP_SECONDS, and it may take longer than the last.
        in_time = 1.5 * self._learner.minibatch_seconds < STOP_SECONDS - DRAIN_TRAINERS_SECONDS
        if not in_time:
            self._schedule.end_update_early()
        self._schedule.drain()
        self._agents.stop_all(at_once=bool(self._failures))
        self._trainers.resize(0)
        if not self._trainers.join(began + (DRAIN_TRAINERS_SECONDS if in_time else 0.0)):
            self._schedule.end_update_early()
            self._drop_rollouts("Updates take long")
        updated = self._trainers.join(began + STOP_SECONDS)
        if self._failures:
            self._drop_rollouts("The trainers have failed")
        self._predictors.resize(0)
        if self._predictors.join(max(began + STOP_SECONDS, time.monotonic() + 0.5)) and updated:
            self._channel.close()
        else:
            self._recorder.log("A thread is still in the model after the timeout. The run ends without waiting for it.")
        return updated

    def _drop_rollouts(self, why: str) -> None:
        """Discards the rollouts that wait for a trainer. Those not learned from count as dropped."""
        waiting = self._channel.drop_rollouts()
        if dropped := self._schedule.untrained(waiting):
            self._recorder.log(f"{why}: {len(dropped)} rollouts are not trained on.")
            for slot in dropped:
                self._recorder.statistics.report_lost(self._store.view(slot))
        if len(waiting) > len(dropped):
            self._recorder.log(f"{why}: the episodes of {len(waiting) - len(dropped)} rollouts are not counted.")
