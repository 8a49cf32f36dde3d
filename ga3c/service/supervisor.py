"""The service: wires, supervises and stops everything.

      host: agents (N_A), in processes     main process
    +-----------------------+   tickets   +--- host --------------------------------------------------+
    | play -> observation --+--- queue ---+-> predictors (N_P) -> Learner.predict --+                 |
    |   ^    in its slot    |             |       (outputs, version)                | one model,      |
    |   +---- reply --------+-------------+------- into the slot <------------------+ on GPU or CPU   |
    +-----------------------+             +--- training side -----------------------------------------+
    | full rollout ---------+--- queue ---+-> trainers (N_T) -> batch -> Learner.update: version + 1  |
    |   ^---- slot free ----+-------------+------- released                                           |
    +-----------------------+             +--- main thread: supervisor, a row of metrics a second ----+
       shared memory: slots of facts

The main thread starts, stops and restarts workers, so that as many work as the settings or the controller ask for.
It sleeps until a process ends, `Signals.wake` is called, or a second is over. With dynamic settings the controller
(`tuning.tuner`) sets the numbers of workers after each second's row. It runs in the main thread.

`Service` wires two objects: a host, which plays (`host.py`), and a training side, which learns (`training.py`). The
training side depends on the schedule. In rounds one of its threads also answers the agents.

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

from numpy.typing import NDArray

from ga3c.learner.learner import Diverged, Learner, Model, stuck
from ga3c.learner.shared_learner import SharedLearner
from ga3c.runs.recorder import Recorder
from ga3c.runs.statistics import Workers
from ga3c.service import stall_alarm
from ga3c.service.evaluations import Evaluations
from ga3c.service.host import Host
from ga3c.service.signals import Signals
from ga3c.service.training import training_side
from ga3c.service.workers import THREAD_PAUSE, FailureRules
from ga3c.settings.schema import Settings
from ga3c.tuning.tuner import Tuner

DRAIN_TRAINERS_SECONDS = 5.0  # from the start of a stop until rollouts that still wait for an update are dropped
STOP_SECONDS = 7.5    # from the start of a stop until the main thread no longer waits for a thread in the model


class Service:
    """The workers and the supervisor of one run. `run` blocks. Of `saved` see `TrainingSide`."""

    def __init__(self, settings: Settings, recorder: Recorder, learner: Learner | SharedLearner, signals: Signals,
                 evaluations: Evaluations | None = None, saved: dict[str, NDArray] | None = None) -> None:
        self._recorder = recorder
        self._learner: Model = learner
        self._signals = signals
        self._evaluations = evaluations
        recorder.statistics.skips = learner.skips
        self._host = Host(settings, recorder, learner, signals, self._on_failure)
        self._training = training_side(settings)(
            settings, self._host, learner, recorder, signals.wake, self._on_failure, saved)
        schedule = self._schedule = settings.schedule
        self._tuner = Tuner(settings, recorder, learner.device == "CPU") if schedule.tuned else None
        self._wanted = self._tuner.setting if self._tuner else (
            schedule.agents, schedule.predictors, schedule.trainers)
        self._rules = FailureRules()
        self._stalls = stall_alarm.StallAlarm(schedule)
        self._failures: deque[tuple[BaseException, float]] = deque()  # exception; when its thread began

    def _on_failure(self, error: BaseException, began: float) -> None:
        """Hears from a thread of the host or the training side that it failed."""
        self._failures.append((error, began))
        self._signals.wake()

    # ------------------------------------------------------------------------- the supervisor

    def run(self) -> str:
        """Runs until a limit is reached or a signal arrives; returns which one.

        Raises AgentsLost, DeviceFailed, or the exception of a thread.
        """
        recorder, signals, host = self._recorder, self._signals, self._host
        reason = None
        try:
            recorder.start()
            while reason is None:
                self._reconcile()
                evaluation = self._evaluations.sentinels if self._evaluations else []
                wait([signals.fileno(), *host.sentinels, *evaluation], self._time_out())
                signals.clear()
                host.reap(self._wanted[0])
                self._answer_failures()
                if self._evaluations:
                    self._evaluations.tick(self._learner)
                row = recorder.tick(self._learner, self._workers(), host.agents.pids)
                if row:
                    self._watch()
                if signals.take_checkpoint_request():
                    recorder.checkpoints.request(self._learner)
                if row and self._tuner:
                    self._tuner.second(row, self._settled(), host.agents.available, host.agents.start_seconds)
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
        row, start = self._recorder.seconds_to_next(), self._host.agents.next_start(self._agents_wanted())
        return row if start is None else min(row, max(0.0, start - time.monotonic()))

    def _agents_wanted(self) -> int:
        return self._host.possible(self._wanted[0])

    def _workers(self) -> Workers:
        host, trainers = self._host, len(self._training.trainers)
        return Workers(host.agents.at_work, len(host.predictors), 0 if self._schedule.agents_learn else trainers,
                       host.channel.prediction_queue, host.channel.training_queue)

    def _settled(self) -> bool:
        """Returns whether exactly the wanted workers are at work, and no agent is starting or draining."""
        agents, predictors, trainers = self._wanted
        return self._host.settled(agents, predictors) and trainers == len(self._training.trainers)

    def _reconcile(self) -> None:
        _, predictors, trainers = self._wanted
        agents = self._host.agents
        if self._schedule.agents_wait:  # the conductor begins with the agents that there are
            agents.reconcile(self._agents_wanted())
        for refused in (self._host.predictors.resize(predictors), self._training.trainers.resize(trainers)):
            if refused:
                self._recorder.disturbances += 1
                self._recorder.event("thread_not_started", cause=refused)
                self._recorder.log(f"A thread cannot be started ({refused}); the next try is in {THREAD_PAUSE:.0f} s.")
        agents.reconcile(self._agents_wanted())

    def _watch(self) -> None:
        """Looks for silent agents and for a stall, once a second."""
        agents, channel = self._host.agents, self._host.channel
        watching_since = agents.watch()
        stalled = self._stalls.check(
            time.monotonic(), watching_since, self._recorder.statistics.predictions, self._learner.version,
            agents.at_work, channel.waiting, channel.training_queue, channel.blocked)
        if stalled:
            self._recorder.event("stalled", what=stalled)
            self._recorder.log(f"Nothing has moved for {stall_alarm.STALL_SECONDS:.0f} s: {stalled}. All stacks are in "
                               f"{self._recorder.log_path}")
            self._recorder.note_stacks()

    def _answer_failures(self) -> None:
        """Handles exceptions of threads: the run continues, or the exception is raised. Reports halved updates."""
        recorder = self._recorder
        self._training.report_halved()
        went_back = False
        while self._failures:
            error, began = self._failures[0]
            if isinstance(error, Diverged):
                if not went_back:  # else another trainer reports the same weights
                    self._training.answer(error)
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
        host, training = self._host, self._training
        if not in_time:
            training.end_update_early()
        training.drain()
        host.agents.stop_all(at_once=bool(self._failures))
        training.trainers.resize(0)
        if not training.trainers.join(began + (DRAIN_TRAINERS_SECONDS if in_time else 0.0)):
            training.end_update_early()
            training.drop_rollouts("Updates take long")
        updated = training.trainers.join(began + STOP_SECONDS)
        if self._failures:
            training.drop_rollouts("The trainers have failed")
        host.predictors.resize(0)
        if host.predictors.join(max(began + STOP_SECONDS, time.monotonic() + 0.5)) and updated:
            host.channel.close()
        else:
            self._recorder.log("A thread is still in the model after the timeout. The run ends without waiting for it.")
        return updated
