"""Numbers of a run: trainers report updates, predictors count, and once a second the main thread takes a row.

No counter here is written by two threads: reports travel through a deque, whose append and popleft are atomic.
"""

from __future__ import annotations

import contextlib
import time as clock
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.learner.learner import UpdateStats
from ga3c.runs import policy_lag as lags
from ga3c.runs.policy_lag import Lag
from ga3c.runs.trace import Trace
from ga3c.transport.slots import Batch


class PredictionCount:
    def __init__(self, trace=None):
        self.trace = trace
        self.predictions = self.calls = self.requests = 0
        self.gathering = self.predicting = self.answering = 0.0
        self.queued = self.served = self.outside = 0.0


class Spent(NamedTuple):
    waiting: float
    gathering: float
    updating: float
    outside: float


class Episode(NamedTuple):
    """One finished episode: when (seconds and agent steps into the run), raw score, length in agent steps."""

    time: float
    agent_step: int
    score: float
    length: int


class Workers(NamedTuple):
    """How many of each are at work, and how many tickets wait in the two queues."""

    agents: int
    predictors: int
    trainers: int
    prediction_queue: int
    training_queue: int


class _Report(NamedTuple):
    update: UpdateStats
    scores: list[float]
    lengths: list[int]
    rows: int                      # filled rows of all rollouts, one wait for a prediction each
    agent_seconds: NDArray[np.float64]
    spent: Spent | None
    lag: Lag


class _Served(NamedTuple):
    """Totals of all predictors, or their growth; seconds but for the first three, as `PredictionCount` has them."""

    predictions: float = 0
    calls: float = 0
    requests: float = 0
    gathering: float = 0.0
    predicting: float = 0.0
    answering: float = 0.0
    queued: float = 0.0
    served: float = 0.0
    outside: float = 0.0


_WAITS = ("wait_ms", "queue_ms", "service_ms", "reply_ms", "slot_wait_ms", "play_ms", "predictor_busy", "predict_ms",
          "trainer_busy", "gather_ms", "update_ms")


def _waits(served: _Served, reports: list[_Report], seconds: float, workers: Workers) -> dict[str, float | None]:
    """Where time went in a window, as in the paper's section 5.1; None where nothing was measured.

    Per prediction of one agent: `wait_ms` as the agent sees it is `queue_ms` + `service_ms` + `reply_ms`;
    `slot_wait_ms` and `play_ms` beside it. `predictor_busy`, `trainer_busy`: share of a thread's time that is not
    waiting. Per call: `predict_ms` and `update_ms` in the model, `gather_ms` copying a training batch.
    """
    waits: dict[str, float | None] = dict.fromkeys(_WAITS)
    if served.requests and served.calls and served.queued > 0.0:  # a call may be counted between two reads
        waits |= {"queue_ms": served.queued / served.requests, "service_ms": served.served / served.requests,
                  "predict_ms": served.predicting / served.calls}
        if seconds and workers.predictors:
            waits["predictor_busy"] = ((served.gathering + served.predicting + served.answering)
                                       / (seconds * workers.predictors))
    rows = sum(report.rows for report in reports)
    slot, prediction, play = sum((report.agent_seconds for report in reports), np.zeros(3)).tolist()
    if rows and play:
        waits |= {"wait_ms": prediction / rows, "slot_wait_ms": slot / rows, "play_ms": play / rows}
        if waits["queue_ms"] is not None and waits["service_ms"] is not None:
            waits["reply_ms"] = max(0.0, prediction / rows - waits["queue_ms"] - waits["service_ms"])
    spent = [report.spent for report in reports if report.spent is not None]
    if spent:
        gathering, updating = (float(np.mean([getattr(s, name) for s in spent])) for name in ("gathering", "updating"))
        waits |= {"gather_ms": gathering, "update_ms": updating}
        if seconds and workers.trainers:
            waits["trainer_busy"] = (gathering + updating) * len(spent) / (seconds * workers.trainers)
    return {name: value if value is None else round(1000 * value if name.endswith("_ms") else min(value, 1.0), 4)
            for name, value in waits.items()}


class Statistics:
    """Totals since the run began (also across resumes) and rates over the last window.

    `agent_deaths` and `environment_faults` are the supervisor's, since the process began: agents that ended unasked,
    and environments that their agents made anew. `lag`: of what the last window trained on. `dropped_steps`: agent
    steps not trained on.

    Args:
        frames_per_step: emulator frames in one agent step.
        agent_steps, trainings, predictions, episodes, dropped_steps, scores: where a resumed run goes on from.
        trace: gets every prediction call and update, if given.
    """

    def __init__(self, frames_per_step: int, agent_steps: int = 0, trainings: int = 0, predictions: int = 0,
                 episodes: int = 0, dropped_steps: int = 0, scores: Iterable[float] = (),
                 trace: Trace | None = None) -> None:
        self._frames_per_step = frames_per_step
        self.trace = trace
        self.agent_steps, self.trainings, self.episodes = agent_steps, trainings, episodes
        self.recent_scores = deque(scores, maxlen=100)
        self.agent_deaths = self.environment_faults = 0
        self.dropped_steps = dropped_steps
        self._reports: deque[_Report] = deque()
        self._dropped: deque[tuple[int, list[float], list[int]]] = deque()
        self._taken: list[_Report] = []
        self._ended: list[tuple[int, float, int]] = []
        self._counts: list[PredictionCount] = []
        self._unused: list[PredictionCount] = []
        self._predictions_before = predictions
        self._window_start: float | None = None
        self._window_served = _Served()
        self._window_trainings = 0
        self._window_thread = 0.0  # processor seconds of the thread that takes rows
        self._last: dict[str, Any] = {}
        self.lag = lags.NOTHING

    @property
    def predictions(self) -> int:
        """Observations predicted since the run began."""
        return self._predictions_before + sum(count.predictions for count in self._counts)

    def new_count(self) -> PredictionCount:
        """A count for one more predictor, its only writer until it is given back; from any thread."""
        with contextlib.suppress(IndexError):
            return self._unused.pop()
        count = PredictionCount(self.trace)
        self._counts.append(count)
        return count

    def give_back(self, count: PredictionCount) -> None:
        """Its predictor has ended: another one goes on with it; from any thread."""
        self._unused.append(count)

    def report(self, update: UpdateStats, batch: Batch, spent: Spent | None = None) -> None:
        """One update, the batch it was made of and the trainer's time, if measured; from any thread."""
        if self.trace is not None and spent is not None:
            self.trace.trained(spent.gathering, spent.updating, update.batch_steps)
        began = clock.monotonic() - (spent.updating if spent is not None else 0.0)
        self._reports.append(_Report(
            update, *self._ended_in(batch), int(batch.steps.sum()), batch.seconds.sum(axis=0, dtype=np.float64), spent,
            lags.measure(batch, update.version - 1, began)))

    def report_dropped(self, batch: Batch) -> None:
        """Rollouts that are not trained on, as too old ones: their episodes count all the same; from any thread."""
        self._dropped.append((batch.agent_steps, *self._ended_in(batch)))

    @staticmethod
    def _ended_in(batch: Batch) -> tuple[list[float], list[int]]:
        """Scores and lengths of the episodes that ended."""
        ended = (batch.episode_length > 0) & batch.filled
        return batch.score[ended].tolist(), batch.episode_length[ended].tolist()

    def drain(self) -> None:
        """Takes what has been reported into the totals; from the main thread."""
        while self._reports:
            report = self._reports.popleft()
            update, scores, lengths = report[:3]
            self._taken.append(report)
            # Two trainers may report in another order than they updated.
            self.agent_steps = max(self.agent_steps, update.agent_steps)
            self.trainings = max(self.trainings, update.version)
            self._end(scores, lengths)
        while self._dropped:
            steps, scores, lengths = self._dropped.popleft()
            self.dropped_steps += steps
            self._end(scores, lengths)

    def _end(self, scores: list[float], lengths: list[int]) -> None:
        self._ended += [(self.agent_steps, score, length) for score, length in zip(scores, lengths, strict=True)]
        self.episodes += len(scores)
        self.recent_scores.extend(scores)

    def row(self, time: float, workers: Workers) -> tuple[dict[str, Any], list[Episode]]:
        """One line of metrics.jsonl for the window that ends at `time` (seconds), and the episodes that ended in it.

        A window without an update repeats the last metrics; before the first there are none. A mean over nothing is
        None. `cpu_outside`: cores that predictors, trainers and the thread that calls this take outside the model; None
        where they are the same.
        """
        self.drain()
        reports, self._taken = self._taken, []
        updates = [report.update for report in reports]
        episodes, self._ended = [Episode(time, *ended) for ended in self._ended], []

        totals = _Served(**{name: sum(getattr(count, name) for count in self._counts) for name in _Served._fields})
        seconds = time - self._window_start if self._window_start is not None else 0.0
        served = _Served(*(now - then for now, then in zip(totals, self._window_served, strict=True)))
        trainings = self.trainings - self._window_trainings
        thread = clock.thread_time()
        spent = [report.spent.outside for report in reports if report.spent is not None]
        outside = served.outside + sum(spent) + thread - self._window_thread
        if self._window_start is None:
            served, trainings = _Served(), 0
        self._window_start, self._window_served, self._window_trainings = time, totals, self.trainings
        self._window_thread = thread

        self.lag = lag = lags.join([report.lag for report in reports])
        if updates:
            steps = np.array([update.batch_steps for update in updates])
            self._last = {
                "lag_p95": float(np.percentile(lag.updates, 95)) if len(lag.updates) else None,
                **{"lag_mean" if name == "updates" else f"lag_{name}":
                   round(float(values.mean()), 3) if len(values) else None for name, values in lag._asdict().items()},
                "training_batch": float(steps.mean()),
                **{name: float(np.average([update.metrics[name] for update in updates], weights=steps))
                   for name in updates[-1].metrics},
            }
        row: dict[str, Any] = {
            "time": round(time, 3), "agent_steps": self.agent_steps, "frames": self.agent_steps * self._frames_per_step,
            "episodes": self.episodes, "trainings": self.trainings,
            "pps": round(served.predictions / seconds, 1) if seconds else 0.0,
            "tps": round(trainings / seconds, 2) if seconds else 0.0,
            **workers._asdict(), "agent_deaths": self.agent_deaths,
            "environment_faults": self.environment_faults, "dropped_steps": self.dropped_steps,
            "prediction_batch": round(served.predictions / served.calls, 2) if served.calls else None,
            "cpu_outside": round(outside / seconds, 4) if seconds and (spent or served.outside) else None,
            "score": self.recent_scores[-1] if self.recent_scores else None,
            "score_mean": float(np.mean(self.recent_scores)) if self.recent_scores else None,
        }
        empty = dict.fromkeys(("training_batch", "lag_mean", "lag_p95", "lag_in_flight", "lag_queued",
                               "lag_in_flight_ms", "lag_queued_ms"))
        return row | empty | self._last | _waits(served, reports, seconds, workers), episodes
