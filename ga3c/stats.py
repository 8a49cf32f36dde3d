"""Numbers of a run: trainers report updates, predictors count, and once a second the main thread takes a row.

No counter here is written by two threads: reports travel through a deque, whose append and popleft are atomic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ga3c.model import Update
from ga3c.predictor import PredictionCount
from ga3c.rollout import TrainingBatch


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
    update: Update
    scores: list[float]
    lengths: list[int]


class Statistics:
    """Totals since the run began (also across resumes) and rates over the last window.

    `agent_deaths` is the supervisor's: agents that ended unasked.

    Args:
        frames_per_step: emulator frames in one agent step.
        agent_steps, trainings, predictions, episodes, scores: where a resumed run goes on from.
    """

    def __init__(self, frames_per_step: int, agent_steps: int = 0, trainings: int = 0, predictions: int = 0,
                 episodes: int = 0, scores: Iterable[float] = ()) -> None:
        self._frames_per_step = frames_per_step
        self.agent_steps, self.trainings, self.episodes = agent_steps, trainings, episodes
        self.recent_scores = deque(scores, maxlen=100)
        self.agent_deaths = 0
        self._reports: deque[_Report] = deque()
        self._updates: list[Update] = []
        self._ended: list[tuple[int, float, int]] = []
        self._counts: list[PredictionCount] = []
        self._predictions_before = predictions
        self._window_start: float | None = None
        self._window_counts = (0, 0, 0)
        self._last: dict[str, Any] = {}

    @property
    def predictions(self) -> int:
        """Observations predicted since the run began."""
        return self._predictions_before + sum(count.predictions for count in self._counts)

    def new_count(self) -> PredictionCount:
        """A count for one more predictor; the only writer is that predictor."""
        count = PredictionCount()
        self._counts.append(count)
        return count

    def report(self, update: Update, batch: TrainingBatch) -> None:
        """One update and the batch it was made of; from any thread."""
        ended = (batch.episode_length > 0) & batch.filled
        self._reports.append(_Report(update, batch.score[ended].tolist(), batch.episode_length[ended].tolist()))

    def drain(self) -> None:
        """Takes what has been reported into the totals; from the main thread."""
        while self._reports:
            update, scores, lengths = self._reports.popleft()
            self._updates.append(update)
            # Two trainers may report in another order than they updated.
            self.agent_steps = max(self.agent_steps, update.agent_steps)
            self.trainings = max(self.trainings, update.version)
            self._ended += [(update.agent_steps, score, length) for score, length in zip(scores, lengths, strict=True)]
            self.episodes += len(scores)
            self.recent_scores.extend(scores)

    def row(self, time: float, workers: Workers) -> tuple[dict[str, Any], list[Episode]]:
        """One line of metrics.jsonl for the window that ends at `time` (seconds), and the episodes that ended in it.

        A window without an update repeats the last losses; a mean over nothing is None.
        """
        self.drain()
        updates, self._updates = self._updates, []
        episodes, self._ended = [Episode(time, *ended) for ended in self._ended], []

        counts = (self.predictions, sum(count.calls for count in self._counts), self.trainings)
        seconds = time - self._window_start if self._window_start is not None else 0.0
        predicted, calls, trainings = (now - then for now, then in zip(counts, self._window_counts, strict=True))
        if self._window_start is None:
            predicted = calls = trainings = 0
        self._window_start, self._window_counts = time, counts

        if updates:
            lag = np.concatenate([update.lag for update in updates])
            steps = np.array([update.batch_steps for update in updates])
            self._last = {
                "lag_mean": float(lag.mean()), "lag_p95": float(np.percentile(lag, 95)),
                "training_batch": float(steps.mean()), "learning_rate": updates[-1].learning_rate,
            } | {name: float(np.average([getattr(update, name) for update in updates], weights=steps))
                 for name in ("policy_loss", "value_loss", "entropy")}
        row: dict[str, Any] = {
            "time": round(time, 3), "agent_steps": self.agent_steps, "frames": self.agent_steps * self._frames_per_step,
            "episodes": self.episodes, "trainings": self.trainings,
            "pps": round(predicted / seconds, 1) if seconds else 0.0,
            "tps": round(trainings / seconds, 2) if seconds else 0.0,
            **workers._asdict(), "agent_deaths": self.agent_deaths,
            "prediction_batch": round(predicted / calls, 2) if calls else None,
            "score": self.recent_scores[-1] if self.recent_scores else None,
            "score_mean": float(np.mean(self.recent_scores)) if self.recent_scores else None,
        }
        empty = dict.fromkeys(("training_batch", "lag_mean", "lag_p95", "policy_loss", "value_loss", "entropy",
                               "learning_rate"))
        return row | empty | self._last, episodes
