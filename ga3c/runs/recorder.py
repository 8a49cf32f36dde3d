"""The recorder of a run: writes one row of metrics a second, messages, events and episodes; checks the run's limits.

The service and the serial mode both use it. `checkpoints.py` makes the checkpoints. `directory.py` lists the files.
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ga3c import __version__
from ga3c.envs.base import EnvSpec
from ga3c.envs.factory import runs_user_code
from ga3c.envs.containment import described
from ga3c.learner import checkpoint
from ga3c.learner.learner import Model
from ga3c.learner.skips import SKIPS_MAX
from ga3c.runs import policy_lag
from ga3c.runs.checkpoints import Checkpoints
from ga3c.runs.directory import Log, versions
from ga3c.runs.meter import Meter
from ga3c.runs.statistics import Statistics, Workers
from ga3c.runs.terminal import Display, plain_line
from ga3c.runs.trace import Trace
from ga3c.settings.files import to_yaml
from ga3c.settings.machine import usable_cores
from ga3c.settings.messages import for_shell
from ga3c.settings.schema import Settings
from ga3c.tuning.bottleneck import Diagnoser, Diagnosis
from ga3c.tuning.controller import Controller

if TYPE_CHECKING:
    from ga3c.runs.tensorboard import TensorBoard


class EvaluatorProcess(Protocol):
    """The part of an evaluator that the recorder reads: the checkpoint under evaluation and the process number."""

    @property
    def checkpoint(self) -> Path | None: ...  # noqa: E704

    @property
    def pid(self) -> int | None: ...  # noqa: E704


class _Growth:
    """A count that is reported to the user when it has grown, at most once a minute."""

    def __init__(self) -> None:
        self._reported = 0
        self._next = 0.0

    def unreported(self, count: int, now: float, at_once: bool) -> int:
        """Returns the growth since the last report, and takes it as reported; 0 if no report is due.

        `at_once`: the last report may be less than a minute ago.
        """
        grown = count - self._reported
        if not grown or not at_once and now < self._next:
            return 0
        self._reported = count
        self._next = now + 60.0
        return grown


class Recorder:
    """The record of one run, and the check of its limits. Used by the main thread; trainers may also call `reached`.

    Attributes:
        disturbances: counts events that take time from training, such as checkpoints and dead agents. The controller
            ignores the seconds in which this count grows.
        controller: the controller, whose state checkpoints contain; None in a run without one.
        tuning: the controller's last decision, for the display.
        checkpoints: makes the run's checkpoints; `tick` begins each one that is due.
        evaluator: evaluates checkpoints during training; None in a run without evaluations.
        shown: the path of the directory in messages.

    Args:
        resumed: `progress` of the checkpoint that the run resumes from; {} for a new run.
        wake: called from another thread when a checkpoint has been written or has failed; `tick` is then due.
        shown: see above; `directory` if not given.
    """

    def __init__(self, settings: Settings, spec: EnvSpec, directory: Path, resumed: Mapping[str, Any],
                 wake: Callable[[], None] = lambda: None, shown: Path | None = None) -> None:
        self.settings = settings
        self.spec = spec
        self.directory = directory
        self.shown = shown or directory
        traces = settings.run.trace and not settings.run.serial and not settings.schedule.agents_learn
        self.statistics = Statistics(
            spec.frames_per_step, resumed.get("agent_steps", 0), resumed.get("version", 0),
            resumed.get("predictions", 0), resumed.get("episodes", 0), resumed.get("dropped_steps", 0),
            resumed.get("recent_scores", ()), Trace() if traces else None,
            resumed.get("frames"))
        self.display = Display(f"GA3C  {spec.name}  {self.shown}", settings.flat(), usable_cores())
        self.checkpoints = Checkpoints(
            directory / "checkpoints", settings.run, self, resumed.get("agent_steps", 0), wake)
        self.log_path = str(directory / "log.txt")
        self.evaluator: EvaluatorProcess | None = None
        self.over = False  # whether training is over
        self.controller: Controller | None = None
        self.resumed_controller: dict[str, Any] | None = resumed.get("controller")
        before = resumed.get("settings")
        self.resumed_settings: dict[str, Any] = before if isinstance(before, dict) else {}
        self.disturbances = 0
        self.tuning = ""
        self._time_before = float(resumed.get("time", 0.0))
        self._started: float | None = None
        self._next_row = 0.0
        self._next_log = 0.0
        self._lags = policy_lag.histograms(policy_lag.NOTHING)
        self.versions = versions()
        self._meter = Meter(runs_user_code(settings))
        self._diagnoser = Diagnoser(usable_cores(), settings.agents.envs_per_agent,
                                    settings.tuning.max_lag if settings.schedule.tuned else None)
        self._diagnosis: Diagnosis | None = None
        self._losses = _Growth()
        self._skips = _Growth()
        self._log, self._metrics, self._events, self._episodes = self._logs = [
            Log(directory / name) for name in ("log.txt", "metrics.jsonl", "events.jsonl", "episodes.csv")]
        if self._episodes.empty:
            self._episodes.write("time,agent_step,score,length\n")
        self._tensorboard: TensorBoard | None = None
        self._begins_at = resumed.get("agent_steps", 0)

    @property
    def time(self) -> float:
        """Seconds of training since the run began, over all resumes. Compiling and the last evaluation do not count."""
        return self._time_before + (time.monotonic() - self._started if self._started is not None else 0.0)

    @property
    def evaluating(self) -> Path | None:
        """The checkpoint under evaluation; None while there is none."""
        return self.evaluator.checkpoint if self.evaluator is not None else None

    def start(self) -> None:
        """Opens TensorBoard. Starts the clock of limits, rows and checkpoints. Called when training begins."""
        if self.settings.run.tensorboard:  # not sooner: a refused resume would hide what it shows of later steps
            try:
                from ga3c.runs.tensorboard import TensorBoard
                self._tensorboard = TensorBoard(self.directory / "tensorboard", to_yaml(self.settings), self._begins_at)
            except Exception as error:
                self.log(f"TensorBoard gets no numbers: {error}")
        self._started = time.monotonic()
        self._next_row = self.time + 1.0
        self.checkpoints.start()
        self.statistics.row(self.time, Workers(0, 0, 0, 0, 0))

    def log(self, text: str) -> None:
        """Shows the user a message, and writes it to log.txt."""
        self._log.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        self.display.message(text)

    def note(self, text: str) -> None:
        """Writes a message to log.txt only."""
        self._log.write(f"{text.rstrip()}\n")

    def note_stacks(self) -> None:
        """Writes the stacks of all threads of this process to log.txt."""
        faulthandler.dump_traceback(self._log.fileno())

    def goes_on(self, separator: str) -> str:
        """Returns the separator and "training goes on", for a message about a failure; "" if training is over."""
        return "" if self.over else f"{separator}training goes on"

    def event(self, kind: str, **facts: Any) -> None:
        """Appends a line to events.jsonl; `facts` are plain JSON values."""
        self._events.write(json.dumps({"time": round(self.time, 3), "event": kind, **facts}) + "\n")

    def reached(self) -> str | None:
        """Returns the limit that the run has reached, as a flag with its value; None before. From any thread."""
        agent_steps = self.statistics.agent_steps - self.statistics.before_meeting
        done = {"steps": agent_steps, "frames": self.statistics.frames(agent_steps),
                "minutes": self.time / 60.0, "episodes": self.statistics.episodes}
        for name, amount in done.items():
            limit = getattr(self.settings.run, name)
            if limit is not None and amount >= limit:
                return f"--{name} {limit:g}" if name == "minutes" else f"--{name} {limit}"
        return None

    def seconds_to_next(self) -> float:
        """Returns the seconds until the next row or the limit `minutes` is due. The main thread may sleep that long."""
        due = self._next_row
        if self.settings.run.minutes is not None:
            due = min(due, 60.0 * self.settings.run.minutes)
        return max(0.0, due - self.time)

    # ------------------------------------------------------------------------- once a second

    def tick(self, model: Model, workers: Workers, agent_pids: list[int]) -> dict[str, Any] | None:
        """Writes the row of the last second, and begins a checkpoint if one is due.

        Returns the row. Returns None, at little cost, if no row is due yet. Raises any error of the checkpoint's
        thread except OSError.
        """
        self.checkpoints.collect()
        now = self.time
        if now < self._next_row:
            return None
        self._next_row += 1.0
        if self._next_row <= now:  # after a stall: missed rows are left out
            self._next_row = now + 1.0
        row = self._record(now, workers, agent_pids)
        self.display.show(row, self._notes(), self._diagnosis)
        self._warn(now)
        self.checkpoints.request_if_due(model)
        return row

    def _warn(self, now: float, at_once: bool = False) -> None:
        if lost := self._losses.unreported(sum(log.lost for log in self._logs), now, at_once):
            self.log(f"{lost} lines of the record could not be written{self.goes_on('; ')}.")
        skips = self.statistics.skips
        if self._skips.unreported(skips.updates + skips.minibatches, now, at_once):
            self.event("skipped", updates=skips.updates, minibatches=skips.minibatches, cause=skips.last)
            self.log(f"Not finite, so skipped: {skips.updates} updates and {skips.minibatches} minibatches so far. The "
                     f"last: {skips.last}. {SKIPS_MAX} updates in a row are divergence.")

    def _record(self, now: float, workers: Workers, agent_pids: list[int]) -> dict[str, Any]:
        row, episodes = self.statistics.row(now, workers)
        row |= self._meter.used(agent_pids, self.evaluator.pid if self.evaluator is not None else None)
        if agent_pids:
            self._diagnosis = self._diagnoser.observe(row)
            if self._diagnosis is not None:
                row["bottleneck"] = self._diagnosis.bottleneck
        if self.checkpoints.best is not None:
            row["best_evaluation"] = self.checkpoints.best.mean
        self._metrics.write(json.dumps(row) + "\n")
        for name, counts in policy_lag.histograms(self.statistics.lag).items():
            self._lags[name] += counts
        for episode in episodes:
            self._episodes.write(f"{episode.time:.3f},{episode.agent_step},{episode.score:.12g},{episode.length}\n")
        self._show_in_tensorboard(lambda tensorboard: tensorboard.row(row, self.statistics.lag))
        if now >= self._next_log:
            self._log.write(plain_line(row, self._notes()) + "\n")
            if self._diagnosis is not None:
                self._log.write(f"Bottleneck: {self._diagnosis}.\n")
            self._record_lag()
            self._next_log = now + 60.0
        return row

    def _record_lag(self) -> None:
        counts, self._lags = self._lags, policy_lag.histograms(policy_lag.NOTHING)
        if counts["updates"].any():
            self.event("lag", **{name: numbers.tolist() for name, numbers in counts.items()})

    def _notes(self) -> dict[str, str]:
        notes = {"Tuning": self.tuning, "Bottleneck": self._diagnosis.bottleneck if self._diagnosis else ""}
        return {name: note for name, note in notes.items() if note}

    def show_evaluation(self, report: dict[str, Any], video: bytes) -> None:
        """Shows the report of an evaluation in TensorBoard, and its GIF `video`, which may be empty."""
        self._show_in_tensorboard(lambda tensorboard: tensorboard.evaluation(report, video))

    def _show_in_tensorboard(self, show: Callable[[TensorBoard], object]) -> None:
        if self._tensorboard is not None:
            try:
                show(self._tensorboard)
            except Exception as error:  # its writer re-raises here any error that ended its thread
                self._close_tensorboard()
                self.log(f"TensorBoard gets no more numbers{self.goes_on(', ')}: {error}")

    def _close_tensorboard(self) -> None:
        if self._tensorboard is not None:
            with contextlib.suppress(Exception):
                self._tensorboard.close()
            self._tensorboard = None

    def progress(self) -> dict[str, Any]:
        """Returns the part of the record that a resume needs, as plain JSON values."""
        statistics = self.statistics
        statistics.drain()
        progress = {"time": self.time, "episodes": statistics.episodes, "predictions": statistics.predictions,
                    "dropped_steps": statistics.dropped_steps, "recent_scores": list(statistics.recent_scores),
                    "ga3c": __version__, "game": self.settings.env.game,
                    "rollout_length": self.settings.algorithm.rollout_length, "settings": self.settings.flat(),
                    "versions": self.versions}
        if self.controller is not None:
            progress["controller"] = copy.deepcopy(self.controller.state())
        return progress

    # ------------------------------------------------------------------------- the end

    def end_training(self) -> None:
        """Stops the clock and writes the last row. Called when training is over; further calls do nothing."""
        if self.over:
            return
        self.over = True
        self._time_before = self.time
        self._started = None
        self._record(self.time, Workers(0, 0, 0, 0, 0), [])
        self._warn(self.time, at_once=True)
        self._record_lag()

    def finish(self, reason: str, unsaved: str = "", failed: Exception | None = None) -> None:
        """Writes the event `end` and the trace; tells the user why the run ended and how to resume it.

        Args:
            unsaved: why there is no last checkpoint; "" if there is one.
            failed: the error that ended the run, if there was one.
        """
        self.end_training()
        agent_steps = self.statistics.agent_steps
        facts: dict[str, Any] = {"reason": reason, "agent_steps": agent_steps}
        if failed is not None:
            facts["cause"] = described(failed)
            self.note(facts["cause"])
        if unsaved:
            facts["unsaved"] = unsaved
        self.event("end", **facts)
        if self.statistics.trace is not None:
            try:
                self.statistics.trace.write(self.directory / "trace.json")
                self.log(f"Trace of the last minute or so: {self.shown / 'trace.json'}, for https://ui.perfetto.dev")
            except OSError as error:
                self.log(f"No trace: {error}")
        self.display.leave_panel()
        self.log(f"Ended by {reason} after {agent_steps:,} agent steps, {self.statistics.episodes:,} episodes.")
        if self._diagnosis is not None:
            self.log(f"Bottleneck: {self._diagnosis}.")
        if (best := self.checkpoints.best) is not None:
            self.log(f"Best evaluation: {best.mean:.2f}, by {self.shown / 'checkpoints' / best.checkpoint}")
        saved = checkpoint.saved(self.checkpoints.directory)
        if saved and unsaved:
            self.log(f"No last checkpoint: {unsaved}.")
        self.log(f"Newest checkpoint: {self.shown / 'checkpoints' / saved[0].name}   resume with: "
                 f"ga3c-train --resume {for_shell(self.shown)}" if saved else
                 f"No checkpoint: {unsaved or 'nothing was learned yet'}. The record is in {self.shown}")

    def close(self) -> None:
        """Closes all files and the display."""
        self.checkpoints.close()
        self.display.close()
        self._close_tensorboard()
        for log in self._logs:
            log.close()
