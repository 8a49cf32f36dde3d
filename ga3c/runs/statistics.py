"""The numbers of a run: sources collect, trainers report, predictors count, the main thread takes a row a second.

There are two clocks. Agent steps and episodes are counted when a rollout is collected; the limits, the rates that are
annealed and the controller follow them. Updates are counted when they are made.

A row combines the columns of all sources: totals, speed, workers, policy lag, learning and times. Updates bring the
metrics of learning, under the names that the algorithm gives them. This module does not depend on those names.

Two threads never write the same counter. A predictor owns its count, and reports travel through a deque, whose append
and popleft are atomic. Only the agent steps are needed at once, so a lock guards them.
"""

from __future__ import annotations

import contextlib
import threading
import time as clock
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.learner.skips import Skips
from ga3c.runs import policy_lag
from ga3c.runs.policy_lag import Lag
from ga3c.runs.trace import Trace

if TYPE_CHECKING:
    from ga3c.learner.learner import UpdateStats
    from ga3c.transport.slots import Batch

Columns = dict[str, float | None]


class Episode(NamedTuple):
    """A finished episode: its end (seconds and agent steps into the run), raw score, and length in agent steps."""

    time: float
    agent_step: int
    score: float
    length: int


class Workers(NamedTuple):
    """The numbers of agents, predictors and trainers at work, and of tickets that wait in the two queues."""

    agents: int
    predictors: int
    trainers: int
    prediction_queue: int
    training_queue: int


class PredictionCount:
    """The totals of one predictor. Only the predictor writes them; any thread may read them.

    Attributes:
        predictions, calls, requests: observations; calls of the model; tickets, one for each agent that waited.
        gathering, predicting, answering: wall-clock seconds of copying observations, in the model, and of writing
            answers, summed over calls.
        queued, served: wall-clock seconds in the queue, and from there until the answer, summed over requests.
        outside: processor seconds of the thread outside of the model.
        trace: gets every call, if given.
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self.trace = trace
        self.predictions = 0
        self.calls = 0
        self.requests = 0
        self.gathering = 0.0
        self.predicting = 0.0
        self.answering = 0.0
        self.queued = 0.0
        self.served = 0.0
        self.outside = 0.0

    def totals(self) -> dict[str, float]:
        """Returns all totals by name."""
        return {name: total for name, total in vars(self).items() if name != "trace"}


class TrainerTime(NamedTuple):
    """A trainer's time between two of its reports.

    `gathering`, `updating`: wall-clock seconds of copying rollouts and of the update. `outside`: processor seconds of
    the thread outside of the model.
    """

    gathering: float
    updating: float
    outside: float


class _Collected(NamedTuple):
    agent_steps: int               # the clock after it
    scores: list[float]
    lengths: list[int]
    rows: int                      # filled rows; an agent waits once for each
    agent_seconds: NDArray[np.float64]  # (3,): waiting for a slot, for predictions, playing


class _Report(NamedTuple):
    update: UpdateStats
    spent: TrainerTime | None
    lag: Lag


class _Mark(NamedTuple):
    """Totals at a row. The window of a row is the difference of two marks."""

    time: float
    served: dict[str, float]  # of all predictors
    trainings: int
    thread: float             # processor seconds of the thread that takes rows


def _learned(reports: list[_Report]) -> Columns:
    """Returns the means of the updates' metrics, weighted by batch size, and the mean size of a batch."""
    steps = np.array([report.update.batch_steps for report in reports])
    metrics = [report.update.metrics for report in reports]
    return {"training_batch": float(steps.mean()), **{
        name: float(np.average([values[name] for values in metrics], weights=steps)) for name in metrics[-1]}}


_AGENT_TIMES = ("wait_ms", "queue_ms", "service_ms", "reply_ms", "slot_wait_ms", "play_ms")
_THREAD_TIMES = ("predictor_busy", "predict_ms", "trainer_busy", "gather_ms", "update_ms")


def _times(served: Mapping[str, float], collected: list[_Collected], reports: list[_Report], seconds: float,
           workers: Workers) -> Columns:
    """Returns the times of a window, as in the paper's section 5.1; None where nothing was measured.

    Per prediction of an agent: `wait_ms` is the agent's wait, the sum of `queue_ms`, `service_ms` and `reply_ms`.
    `slot_wait_ms` is its wait for a slot, and `play_ms` its own work. Per call: `predict_ms` and `update_ms` are in the
    model, and `gather_ms` copies a training batch. `predictor_busy` and `trainer_busy`: the share of a thread's time
    that is not waiting.
    """
    times: dict[str, float | None] = dict.fromkeys((*_AGENT_TIMES, *_THREAD_TIMES))
    if served["requests"] and served["calls"] and served["queued"] > 0.0:  # a call may be counted between two reads
        times |= {"queue_ms": served["queued"] / served["requests"],
                  "service_ms": served["served"] / served["requests"],
                  "predict_ms": served["predicting"] / served["calls"]}
        if seconds and workers.predictors:
            busy = served["gathering"] + served["predicting"] + served["answering"]
            times["predictor_busy"] = busy / (seconds * workers.predictors)
    rows = sum(rollouts.rows for rollouts in collected)
    slot, prediction, play = sum((rollouts.agent_seconds for rollouts in collected), np.zeros(3)).tolist()
    if rows and play:
        times |= {"wait_ms": prediction / rows, "slot_wait_ms": slot / rows, "play_ms": play / rows}
        if times["queue_ms"] is not None and times["service_ms"] is not None:
            times["reply_ms"] = max(0.0, prediction / rows - times["queue_ms"] - times["service_ms"])
    spent = [report.spent for report in reports if report.spent is not None]
    if spent:
        gathering, updating = (float(np.mean([getattr(s, name) for s in spent])) for name in ("gathering", "updating"))
        times |= {"gather_ms": gathering, "update_ms": updating}
        if seconds and workers.trainers:
            times["trainer_busy"] = (gathering + updating) * len(spent) / (seconds * workers.trainers)
    return {name: value if value is None else round(1000 * value if name.endswith("_ms") else min(value, 1.0), 4)
            for name, value in times.items()}


class Statistics:
    """The totals since the run began, over all resumes, and the rates over the last window.

    Attributes:
        agent_deaths: agents that ended in another way than by the stop message, since the process began.
        environment_faults: environments that their agents made again, since the process began. The supervisor counts
            both.
        skips: the learner's counts of skipped updates and minibatches.
        agent_steps: collected so far. Any thread may read it.
        before_meeting: those of them since agents and updates last met, for schedules in rounds with a replay; limits
            leave them out. The collecting thread alone writes it.
        dropped_steps: agent steps that were played and not trained on.
        lag: the policy lag of the samples that the last window trained on.
        replay: returns the columns of a replay, see `Memory.columns`.

    Args:
        frames_per_step: emulator frames in one agent step.
        agent_steps, trainings, predictions, episodes, dropped_steps, scores, frames: totals of the checkpoint that the
            run resumes from.
        trace: gets every prediction call and update, if given.
    """

    def __init__(self, frames_per_step: int, agent_steps: int = 0, trainings: int = 0, predictions: int = 0,
                 episodes: int = 0, dropped_steps: int = 0, scores: Iterable[float] = (),
                 trace: Trace | None = None, frames: int | None = None) -> None:
        self._frames_per_step = frames_per_step
        # Corrects `frames` for the steps before a resume, as the resume may have changed the frames per step.
        self._frames_before = 0 if frames is None else frames - agent_steps * frames_per_step
        self.trace = trace
        self.agent_steps = agent_steps
        self.before_meeting = 0
        self.trainings = trainings
        self.episodes = episodes
        self.recent_scores = deque(scores, maxlen=100)
        self.agent_deaths = 0
        self.environment_faults = 0
        self.skips = Skips()
        self.dropped_steps = dropped_steps
        self.lag = policy_lag.NOTHING
        self.replay: Callable[[], Columns] = dict
        self._clock_lock = threading.Lock()
        self._collections: deque[_Collected] = deque()
        self._reports: deque[_Report] = deque()
        self._dropped: deque[int] = deque()
        self._gathered: list[_Collected] = []
        self._taken: list[_Report] = []
        self._ended: list[tuple[int, float, int]] = []
        self._counts: list[PredictionCount] = []
        self._unused: list[PredictionCount] = []
        self._predictions_before = predictions
        self._mark: _Mark | None = None  # of the last row
        self._last: Columns = {"training_batch": None, **policy_lag.columns(policy_lag.NOTHING)}

    @property
    def predictions(self) -> int:
        """Observations predicted since the run began."""
        return self._predictions_before + sum(count.predictions for count in self._counts)

    def new_count(self) -> PredictionCount:
        """Returns a count for one more predictor, its only writer. From any thread."""
        with contextlib.suppress(IndexError):
            return self._unused.pop()
        count = PredictionCount(self.trace)
        self._counts.append(count)
        return count

    @contextlib.contextmanager
    def counting(self) -> Iterator[PredictionCount]:
        """Gives a count for the `with` block. Another predictor may use it after the block. From any thread."""
        count = self.new_count()
        try:
            yield count
        finally:
            self._unused.append(count)

    def collect(self, batch: Batch) -> None:
        """Counts rollouts that were collected: the steps that are new in `batch`, their episodes. From any thread."""
        with self._clock_lock:
            self.agent_steps += batch.agent_steps
            self._collections.append(_Collected(
                self.agent_steps, *_ended_in(batch), int((batch.steps - batch.reused).sum()),
                batch.seconds.sum(axis=0, dtype=np.float64)))

    def report(self, update: UpdateStats, batch: Batch, spent: TrainerTime | None = None) -> None:
        """Records an update, its batch and the trainer's time, if that was measured. From any thread."""
        if self.trace is not None and spent is not None:
            self.trace.trained(spent.gathering, spent.updating, update.batch_steps)
        began = clock.monotonic() - (spent.updating if spent is not None else 0.0)
        self._reports.append(_Report(
            update, spent, policy_lag.measure(batch, update.version - 1, began)))

    def report_dropped(self, batch: Batch) -> None:
        """Records collected rollouts that are not trained on. From any thread."""
        self._dropped.append(batch.agent_steps)

    def report_lost(self, batch: Batch) -> None:
        """Records rollouts that are not collected any more. Their episodes count, their steps do not. From any thread.
        """
        self._collections.append(_Collected(self.agent_steps, *_ended_in(batch), 0, np.zeros(3)))
        self.report_dropped(batch)

    def drain(self) -> None:
        """Adds the reports so far to the totals. From the main thread."""
        while self._collections:
            rollouts = self._collections.popleft()
            self._gathered.append(rollouts)
            self._ended += [(rollouts.agent_steps, score, length)
                            for score, length in zip(rollouts.scores, rollouts.lengths, strict=True)]
            self.episodes += len(rollouts.scores)
            self.recent_scores.extend(rollouts.scores)
        while self._reports:
            report = self._reports.popleft()
            self._taken.append(report)
            # The reports of two trainers may arrive in another order than their updates.
            self.trainings = max(self.trainings, report.update.version)
        while self._dropped:
            self.dropped_steps += self._dropped.popleft()

    def row(self, time: float, workers: Workers) -> tuple[dict[str, Any], list[Episode]]:
        """Returns a row of metrics.jsonl for the window that ends at `time` (seconds), and the episodes ended in it.

        A window without an update repeats the last learning metrics and lag. A mean over nothing is None. Before the
        first update the algorithm's metrics are missing. A metric with the name of another column is left out.
        """
        self.drain()
        reports, self._taken = self._taken, []
        collected, self._gathered = self._gathered, []
        episodes, self._ended = [Episode(time, *ended) for ended in self._ended], []
        now = self._totals_at(time)
        before, self._mark = self._mark or now, now  # the first window is empty
        seconds, thread = now.time - before.time, now.thread - before.thread
        trainings = now.trainings - before.trainings
        served = {name: total - before.served[name] for name, total in now.served.items()}
        self.lag = policy_lag.join([report.lag for report in reports])
        if reports:
            self._last = _learned(reports) | policy_lag.columns(self.lag)
        own = {"time": round(time, 3), **self._totals(), **workers._asdict(),
               **self.replay(),
               **self._speed(served, trainings, seconds), "cpu_outside": _outside(served, reports, thread, seconds)}
        times = _times(served, collected, reports, seconds, workers)
        return {**own, **self._last, **own, **times}, episodes  # the first `own` decides the order of columns

    def _totals_at(self, time: float) -> _Mark:
        served = PredictionCount().totals()
        for count in self._counts:
            for name, total in count.totals().items():
                served[name] += total
        return _Mark(time, served, self.trainings, clock.thread_time())

    def frames(self, agent_steps: int) -> int:
        """Returns the emulator frames of the run's first `agent_steps`, over all resumes."""
        return self._frames_before + agent_steps * self._frames_per_step

    def _totals(self) -> dict[str, Any]:
        return {"agent_steps": self.agent_steps, "frames": self.frames(self.agent_steps),
                "episodes": self.episodes, "trainings": self.trainings, "agent_deaths": self.agent_deaths,
                "environment_faults": self.environment_faults, "dropped_steps": self.dropped_steps,
                "skipped_updates": self.skips.updates, "skipped_minibatches": self.skips.minibatches,
                "score": self.recent_scores[-1] if self.recent_scores else None,
                "score_mean": float(np.mean(self.recent_scores)) if self.recent_scores else None}

    def _speed(self, served: Mapping[str, float], trainings: int, seconds: float) -> Columns:
        """Returns predictions and trainings per second, and the mean number of observations in a call of the model."""
        return {"pps": round(served["predictions"] / seconds, 1) if seconds else 0.0,
                "tps": round(trainings / seconds, 2) if seconds else 0.0,
                "prediction_batch": round(served["predictions"] / served["calls"], 2) if served["calls"] else None}


def _ended_in(batch: Batch) -> tuple[list[float], list[int]]:
    """Returns the scores and lengths of the episodes that ended in the new rows of `batch`."""
    ended = (batch.episode_length > 0) & batch.new
    return batch.score[ended].tolist(), batch.episode_length[ended].tolist()


def _outside(served: Mapping[str, float], reports: list[_Report], thread: float, seconds: float) -> float | None:
    """Returns the cores that predictors, trainers and main thread use outside of the model; None if not measured."""
    spent = [report.spent.outside for report in reports if report.spent is not None]
    if not seconds or not (spent or served["outside"]):
        return None
    return round((served["outside"] + sum(spent) + thread) / seconds, 4)
