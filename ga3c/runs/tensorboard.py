"""A run in TensorBoard: scalars in groups, policy lag as histograms, evaluations, and the settings as text.

TensorBoard follows only the newest file of a directory. So one writer writes everything into one file.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_FLOAT
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.image import metadata as images
from tensorboard.plugins.scalar import metadata as scalars
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from ga3c.runs.directory import plain_path
from ga3c.runs.policy_lag import Lag, join

HISTOGRAM_SECONDS = 10.0
_OF_SCALARS = scalars.create_summary_metadata(None, None)

_GROUPS = {
    "score": ("score", "score_mean", "episodes", "best_evaluation"),
    "speed": ("pps", "tps", "frames", "trainings", "prediction_batch", "training_batch"),
    "lag": ("dropped_steps",),
    "workers": ("agents", "predictors", "trainers", "prediction_queue", "training_queue", "agent_deaths",
                "environment_faults", "skipped_updates", "skipped_minibatches"),
    "machine": ("memory_mb",),
}
_GROUP = {name: group for group, names in _GROUPS.items() for name in names}
_PREFIXES = {"lag": "lag", "cpu": "machine"}
_SUFFIXES = {"ms": "time", "busy": "time"}


def tag(column: str) -> str:
    """Returns the name of the scalar for a column of metrics.jsonl, with its group, as in `score/score_mean`.

    The group `learning` holds all other columns: they are the algorithm's metrics.
    """
    group = (_GROUP.get(column) or _PREFIXES.get(column.split("_")[0]) or _SUFFIXES.get(column.split("_")[-1])
             or "learning")
    return f"{group}/{column}"


def scalar(name: str, value: float) -> Summary.Value:
    """Returns a scalar as TensorBoard's `scalar_pb` does, which takes 0.1 ms; a row has fifty scalars."""
    number = TensorProto(dtype=DT_FLOAT, tensor_shape=TensorShapeProto(), float_val=[value])
    return Summary.Value(tag=name, metadata=_OF_SCALARS, tensor=number)


def _image(name: str, gif: bytes) -> Summary.Value:
    """Returns a GIF in TensorBoard's format for images: width, height and the file. A browser plays it."""
    size = [str(int.from_bytes(gif[at:at + 2], "little")).encode() for at in (6, 8)]
    return Summary.Value(tag=name, metadata=images.create_summary_metadata(None, None),
                         tensor=make_tensor_proto([*size, gif]))


class TensorBoard:
    """A writer into `directory`; the horizontal axis is agent steps. Used by the main thread. Raises OSError."""

    def __init__(self, directory: Path, settings: str, agent_steps: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._held = ExitStack()
        self._writer = EventFileWriter(self._held.enter_context(plain_path(directory)))
        self._lags: list[Lag] = []
        self._next_histogram = 0.0
        # A resume gives up the later part of an earlier file. This event makes TensorBoard leave that part out.
        self._writer.add_event(Event(wall_time=time.time(), step=agent_steps + 1,
                                     session_log=SessionLog(status=SessionLog.START)))
        self._add(agent_steps, *text_pb("settings", "".join(f"    {line}\n" for line in settings.splitlines())).value)

    def row(self, row: Mapping[str, Any], lag: Lag) -> None:
        """Adds a row of metrics.jsonl, and the policy lag of the samples that were trained on in its second."""
        shown = {tag(name): value for name, value in row.items()
                 if isinstance(value, int | float) and name not in ("time", "agent_steps")}
        values = [scalar(name, value) for name, value in shown.items()]
        self._lags.append(lag)
        if row["time"] >= self._next_histogram:
            for name, lags in join(self._lags)._asdict().items():
                if len(lags):
                    values += histogram_pb("lag/policy_lag" if name == "updates" else f"lag/{name}",
                                           lags.astype(float)).value
            self._lags = []
            self._next_histogram = row["time"] + HISTOGRAM_SECONDS
        self._add(row["agent_steps"], *values)

    def evaluation(self, report: Mapping[str, Any], video: bytes = b"") -> None:
        """Adds the report of an evaluation, and its GIF `video` if not empty, at the agent steps of its checkpoint."""
        self._add(report["agent_steps"],
                  *(scalar(f"evaluation/{name}", report[name])
                    for name in ("mean", "median", "iqm", "human_normalised", "length_mean") if name in report),
                  *histogram_pb("evaluation/scores", np.asarray(report["scores"], np.float64)).value,
                  *([_image("evaluation/play", video)] if video else []))

    def _add(self, agent_steps: int, *values: Summary.Value) -> None:
        self._writer.add_event(Event(wall_time=time.time(), step=agent_steps, summary=Summary(value=values)))

    def close(self) -> None:
        """Writes buffered events and closes the file."""
        with self._held:
            self._writer.close()
