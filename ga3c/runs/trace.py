"""The trace of about the last minute of agents, predictors and trainers, for Perfetto or chrome://tracing.

The spans of agents are derived from the predictors' calls. An agent waits from its request until the answer, and plays
from the answer until its next request.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_MOST_CALLS, _MOST_UPDATES = 10_000, 2_000


class _Call(NamedTuple):
    thread: str
    taken: float
    gathered: float
    predicted: float
    answered: float
    agents: Sequence[int]
    asked: Sequence[float]


class _Training(NamedTuple):
    thread: str
    ended: float
    gathering: float
    updating: float
    steps: int


class Trace:
    """The newest 10,000 prediction calls and 2,000 updates. `predicted` and `trained` may be called from any thread."""

    def __init__(self) -> None:
        self._calls: deque[_Call] = deque(maxlen=_MOST_CALLS)
        self._trainings: deque[_Training] = deque(maxlen=_MOST_UPDATES)

    def predicted(self, taken: float, gathered: float, predicted: float, answered: float,
                  agents: Sequence[int], asked: Sequence[float]) -> None:
        """Adds a prediction call.

        Args:
            taken, gathered, predicted, answered: monotonic seconds when the requests were taken, the observations
                copied, the outputs computed, the answers written.
            agents, asked: the agents answered, and the monotonic seconds of their requests.
        """
        self._calls.append(_Call(threading.current_thread().name, taken, gathered, predicted, answered, agents, asked))

    def trained(self, gathering: float, updating: float, steps: int) -> None:
        """Adds an update that ends now.

        Args:
            gathering, updating: seconds of copying rollouts, and then of the update.
            steps: agent steps in the batch.
        """
        self._trainings.append(_Training(threading.current_thread().name, time.monotonic(), gathering, updating, steps))

    def write(self, path: Path) -> None:
        """Writes Chrome's trace-event JSON. Its times are microseconds since the first event. Raises OSError."""
        path.write_text(json.dumps({"traceEvents": self.events(), "displayTimeUnit": "ms"}) + "\n", encoding="utf-8")

    def events(self) -> list[dict[str, Any]]:
        """Returns the tracks' names ("M"), then complete events ("X"). Each agent and each thread has one track."""
        calls, trainings = list(self._calls), list(self._trainings)
        spans: list[tuple[str, str, float, float, dict[str, Any]]] = []
        answered: dict[int, float] = {}
        for call in sorted(calls, key=lambda call: call.answered):
            size = {"agents": len(call.agents)}
            spans += [(call.thread, "gather", call.taken, call.gathered, size),
                      (call.thread, "predict", call.gathered, call.predicted, size),
                      (call.thread, "answer", call.predicted, call.answered, size)]
            for agent, asked in zip(call.agents, call.asked, strict=True):
                if agent in answered and answered[agent] <= asked:
                    spans.append((f"agent {agent}", "play", answered[agent], asked, {}))
                spans.append((f"agent {agent}", "wait", asked, call.answered, {}))
                answered[agent] = call.answered
        for training in trainings:
            began = training.ended - training.updating
            spans += [(training.thread, "gather", began - training.gathering, began, {}),
                      (training.thread, "update", began, training.ended, {"agent steps": training.steps})]
        first = min((began for _, _, began, _, _ in spans), default=0.0)
        tracks = {name: number for number, name in enumerate(sorted({span[0] for span in spans}, key=_order))}
        named = [{"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": name}}
                 for name, number in tracks.items()]
        return named + [{"name": name, "ph": "X", "pid": 0, "tid": tracks[track], "ts": round(1e6 * (began - first), 1),
                         "dur": round(1e6 * (ended - began), 1), "args": facts}
                        for track, name, began, ended, facts in spans]


def _order(track: str) -> tuple[str, int]:
    kind, _, number = track.replace("-", " ").rpartition(" ")
    return kind, int(number) if number.isdigit() else 0
