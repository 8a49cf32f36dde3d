"""One run: its directory, its record, its limits, its checkpoints.

    runs/Boxing-20260131-120000-s0/
        config.yaml     settings as resolved           metrics.jsonl   one row a second (fields: stats.Statistics.row)
        versions.json   of everything that matters     episodes.csv    time, agent step, score, length
        log.txt         messages, tracebacks           events.jsonl    starts, deaths, checkpoints, the end
        checkpoints/    see checkpoint.py              tensorboard/    see tensorboard.py

The service and the serial mode both keep their record here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import functools
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import psutil
from numpy.typing import NDArray

from ga3c import __version__
from ga3c.envs.factory import EnvSpec
from ga3c.evaluation.background import Evaluator
from ga3c.learner import checkpoint
from ga3c.learner.checkpoint import Checkpoint
from ga3c.learner.learner import DeviceFailed, Learner
from ga3c.runs import policy_lag as lag
from ga3c.runs import reader as record
from ga3c.runs.statistics import Statistics, Workers
from ga3c.runs.terminal import Display, plain_line
from ga3c.runs.trace import Trace
from ga3c.service.signals import Signals
from ga3c.settings.files import to_yaml
from ga3c.settings.machine import processor, usable_cores
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.tuning.bottleneck import Judge, Verdict
from ga3c.tuning.controller import Controller

if TYPE_CHECKING:
    from ga3c.runs.tensorboard import TensorBoard

_PACKAGES = ("tensorflow", "keras", "numpy", "gymnasium", "ale-py", "pydantic", "PyYAML", "rich")


def create_directory(settings: Settings, spec: EnvSpec) -> Path:
    """A new run directory with config.yaml and versions.json. Never an existing one. Raises ConfigError."""
    try:
        if settings.run.run_dir:
            path = Path(settings.run.run_dir)
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise ConfigError(f"run_dir: {path} is not empty; choose another, or go on with it: --resume {path}")
        else:
            path = record.new_directory(spec.name, settings.run.seed)
    except OSError as error:
        raise ConfigError(f"run_dir: {error.filename}: {error.strerror}") from None
    write_settings(path, settings)
    (path / "versions.json").write_text(json.dumps(versions(), indent=1) + "\n", encoding="utf-8")
    return path


def write_settings(directory: Path, settings: Settings) -> None:
    """Writes the run's config.yaml, whole or not at all; `--resume` starts from it. Raises OSError."""
    aside = directory / ".config.yaml"
    aside.write_text(to_yaml(settings), encoding="utf-8")
    checkpoint.sync(aside)
    aside.replace(directory / "config.yaml")
    checkpoint.sync(directory)


def versions() -> dict[str, Any]:
    """Of everything that a run depends on; the machine, of which `cores` may be used; the command; the commit."""
    return {"ga3c": __version__, "python": platform.python_version(), "platform": platform.platform(),
            "processor": processor(), "cores": usable_cores(),
            "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
            **{name: importlib.metadata.version(name) for name in _PACKAGES}, "opencv": cv2.__version__,
            "command": sys.argv, "commit": _commit()}


@functools.cache
def _commit() -> str | None:
    """Of the checkout that this program is run from, with a "+" if it has been changed since; None if it is none."""
    here = Path(__file__)

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "--no-optional-locks", "-C", str(here.parent), *arguments], check=True,
                              timeout=5.0, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL)
        return done.stdout.decode(errors="replace").strip()

    try:
        git("ls-files", "--error-unmatch", here.name)
        return git("rev-parse", "--short=12", "HEAD") + "+" * bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None


def lock_directory(directory: Path) -> int:
    """Takes the run directory for this process until the descriptor returned is closed or the process has ended.

    Raises ConfigError, naming the process, if another has it.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        inode = f":{os.fstat(descriptor).st_ino}"
        os.close(descriptor)
        owners = [fields[4] for fields in map(str.split, Path("/proc/locks").read_text(encoding="ascii").splitlines())
                  if fields[1] == "FLOCK" and fields[5].endswith(inode)]
        raise ConfigError(f"run_dir: {directory} is in use by process {', '.join(owners) or 'unknown'}") from None
    except OSError:
        pass  # a file system without locks
    return descriptor


class Log:
    """A file that whole lines are appended to, each at once. A full disk loses lines, counted in `lost`, not the run.

    A last line torn by a crash is ended first, so that the next one stands alone. The constructor raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.lost = 0
        self._torn = False
        if path.is_file() and path.stat().st_size:
            with open(path, "rb") as file:
                file.seek(-1, os.SEEK_END)
                self._torn = file.read(1) != b"\n"
        self._file = open(path, "ab", buffering=0)
        self.empty = self._file.tell() == 0
        self.closed = False

    def write(self, text: str) -> None:
        """Appends `text`, which ends with a newline."""
        data = (b"\n" if self._torn else b"") + text.encode(errors="replace")
        try:
            self._torn = os.write(self._file.fileno(), data) < len(data)
            self.lost += self._torn
        except OSError:
            self.lost += 1

    def fileno(self) -> int:
        """For faulthandler."""
        return self._file.fileno()

    def close(self) -> None:
        """Nothing is held back, so nothing can fail."""
        self.closed = True
        self._file.close()


class _Meter:
    """What processes take: private memory now, cores since the last question."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        self._seconds: dict[int, float] = {}
        self._at, self._machine = time.monotonic(), self._busy()
        self._whole = usable_cores() == os.cpu_count()
        self.used([], None)

    @staticmethod
    def _busy() -> float:
        times = psutil.cpu_times()
        return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
                     - getattr(times, "guest_nice", 0.0))

    def used(self, agents: list[int], evaluator: int | None) -> dict[str, float]:
        """`memory_mb`, of this process, its agents and its evaluator; `cpu_agents`, `cpu_server` (this process),
        `cpu_evaluator` and `cpu_machine` in core-seconds per second; of a machine that may be used in part only, the
        last is the sum of the others. What has just started or died counts from the next time on.
        """
        now, machine, ours = time.monotonic(), self._busy(), os.getpid()
        processes, seconds, memory = {}, {}, 0.0
        for pid in (ours, *agents, *([evaluator] if evaluator else [])):
            with contextlib.suppress(psutil.Error):  # it has ended
                processes[pid] = process = self._processes.get(pid) or psutil.Process(pid)
                times, taken = process.cpu_times(), process.memory_info()
                seconds[pid] = times.user + times.system
                memory += taken.rss - getattr(taken, "shared", 0)
        elapsed = max(now - self._at, 1e-3)
        spent = {pid: max(0.0, total - self._seconds.get(pid, total)) / elapsed for pid, total in seconds.items()}
        row = {"memory_mb": memory / 2**20, "cpu_agents": sum(spent.get(pid, 0.0) for pid in agents),
               "cpu_server": spent.get(ours, 0.0), "cpu_evaluator": spent.get(evaluator or 0, 0.0),
               "cpu_machine": (machine - self._machine) / elapsed if self._whole else sum(spent.values())}
        self._at, self._machine, self._processes, self._seconds = now, machine, processes, seconds
        return {name: round(value, 3) for name, value in row.items()}


class Run:
    """The record of one run and when it is over. Used by the main thread; trainers may ask if a limit is `reached`.

    `disturbances` counts what took time from training, so that no setting is judged by it: checkpoints, dead agents.
    `controller`, where there is one, is kept in checkpoints, as are the arrays of `also_saved`; `tuning` is its last
    verdict, for the display.

    Args:
        resumed: progress of the checkpoint it goes on from, {} for a new run.
    """

    def __init__(self, settings: Settings, spec: EnvSpec, directory: Path, resumed: dict[str, Any]) -> None:
        self.settings, self.spec, self.directory = settings, spec, directory
        self.statistics = Statistics(
            spec.frames_per_step, resumed.get("agent_steps", 0), resumed.get("version", 0),
            resumed.get("predictions", 0), resumed.get("episodes", 0), resumed.get("dropped_steps", 0),
            resumed.get("recent_scores", ()), Trace() if settings.run.trace else None)
        self.display = Display(f"GA3C  {spec.name}  {directory}", settings.flat(), usable_cores())
        self.checkpoint_path: Path | None = None
        self.evaluator = Evaluator(settings.agents.agent_nice // 2)
        self.best_evaluation: checkpoint.Best | None = None
        self.also_saved: Callable[[], dict[str, NDArray]] = dict
        self._over = False
        self.disturbances = 0
        self.controller: Controller | None = None
        self.resumed_controller: dict[str, Any] | None = resumed.get("controller")
        before = resumed.get("settings")
        self.resumed_settings: dict[str, Any] = before if isinstance(before, dict) else {}
        self.tuning = ""
        self._time_before = float(resumed.get("time", 0.0))
        self._started: float | None = None
        self._next_row = self._next_checkpoint = self._next_log = 0.0
        self._lags = lag.histograms(lag.NOTHING)
        self._next_evaluation = math.inf
        self._evaluated: Path | None = None  # what the last evaluation is, or was, of
        self._steps_saved = resumed.get("agent_steps", 0)
        self._versions = versions()
        self._meter = _Meter()
        # Who shares a process unasked waits for nothing there: see `seating.py`.
        self._judge = Judge(usable_cores(), settings.agents.envs_per_agent, settings.tuning.max_lag if settings.tuning.dynamic else None,
                            1)
        self._verdict: Verdict | None = None
        self._next_warning, self._lost_told = 0.0, 0
        self._log, self._metrics, self._events, self._episodes = self._logs = [
            Log(directory / name) for name in ("log.txt", "metrics.jsonl", "events.jsonl", "episodes.csv")]
        if self._episodes.empty:
            self._episodes.write("time,agent_step,score,length\n")
        self._tensorboard: TensorBoard | None = None
        if settings.run.tensorboard:
            from ga3c.runs.tensorboard import TensorBoard
            self._tensorboard = TensorBoard(directory / "tensorboard", to_yaml(settings), self._steps_saved)

    @property
    def log_path(self) -> str:
        """The file that agents append their tracebacks to."""
        return str(self.directory / "log.txt")

    @property
    def time(self) -> float:
        """Seconds of training since the run began, over all resumes; compiling is not training."""
        return self._time_before + (time.monotonic() - self._started if self._started is not None else 0.0)

    def start(self) -> None:
        """Training begins now: the clock of limits, rows and checkpoints starts."""
        self._started = time.monotonic()
        self._next_row = self.time + 1.0
        self._next_checkpoint = self.time + 60.0 * self.settings.run.checkpoint_minutes
        self._await_evaluation()
        self.best_evaluation = checkpoint.best(self.directory / "checkpoints")
        self.statistics.row(self.time, Workers(0, 0, 0, 0, 0))

    def say(self, text: str) -> None:
        """A message for the user: on the display and in log.txt."""
        self._log.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        self.display.message(text)

    def note(self, text: str) -> None:
        """Into log.txt only."""
        self._log.write(f"{text.rstrip()}\n")

    def note_stacks(self) -> None:
        """The stacks of all threads of this process into log.txt."""
        faulthandler.dump_traceback(self._log.fileno())

    def event(self, kind: str, **facts: Any) -> None:
        """A line of events.jsonl."""
        self._events.write(json.dumps({"time": round(self.time, 3), "event": kind, **facts}) + "\n")

    def reached(self, agent_steps: int) -> str | None:
        """Which limit has been reached, in the user's words; None while none has."""
        s = self.settings
        if s.run.steps is not None and agent_steps >= s.run.steps:
            return f"--steps {s.run.steps}"
        if s.run.frames is not None and agent_steps * self.spec.frames_per_step >= s.run.frames:
            return f"--frames {s.run.frames}"
        if s.run.minutes is not None and self.time >= 60.0 * s.run.minutes:
            return f"--minutes {s.run.minutes:g}"
        if s.run.episodes is not None and self.statistics.episodes >= s.run.episodes:
            return f"--episodes {s.run.episodes}"
        return None

    def seconds_to_next(self) -> float:
        """How long the main thread may sleep before something is due."""
        due = self._next_row
        if self.settings.run.minutes is not None:
            due = min(due, 60.0 * self.settings.run.minutes)
        return max(0.0, due - self.time)

    def tick(self, model: Learner, workers: Workers, agent_pids: list[int]) -> dict[str, Any] | None:
        """Writes the row of the second that has passed, and a checkpoint if one is due; returns the row.

        Cheap when nothing is due; then returns None. An evaluation that is due begins with a checkpoint, when the last
        one has ended; its outcome is recorded.
        """
        self._record_evaluation()
        now = self.time
        if now < self._next_row:
            return None
        self._next_row += 1.0
        if self._next_row <= now:  # after a stall there is nothing to catch up with
            self._next_row = now + 1.0
        row = self._record(now, workers, agent_pids)
        self.display.show(row, self._notes(), self._verdict)
        evaluate = now >= self._next_evaluation and self.evaluator.checkpoint is None
        self._warn_of_losses(now)
        if evaluate or now >= self._next_checkpoint:
            path = self.save_or_warn(model)
            if evaluate and path:
                self._begin_evaluation(path)
            elif evaluate:
                self._next_evaluation = self._next_checkpoint
        return row

    def _warn_of_losses(self, now: float) -> None:
        lost = sum(log.lost for log in self._logs)
        if lost > self._lost_told and now >= self._next_warning:
            self.say(f"{lost - self._lost_told} lines of the record could not be written; training goes on.")
            self._lost_told, self._next_warning = lost, now + 60.0

    def save_or_warn(self, model: Learner) -> Path | None:
        """A checkpoint; if storage or device fails, a warning and another try soon: training goes on."""
        minutes = self.settings.run.checkpoint_minutes
        try:
            path = self.save(model)
        except (OSError, DeviceFailed) as error:
            path, minutes = None, min(minutes, 1.0)
            self.disturbances += 1
            self.event("checkpoint_failed", cause=str(error))
            why = getattr(error, "strerror", None) or error
            self.say(f"No checkpoint: {why}; training goes on, the next try is in {60 * minutes:.0f} s. Earlier "
                     "checkpoints are whole.")
        self._next_checkpoint = self.time + 60.0 * minutes
        return path

    def back_to_finite(self, model: Learner) -> Path | None:
        """Gives `model` the weights of the newest whole checkpoint without NaN or infinity, and a lower learning rate.

        Its counters go on. Returns where the weights are from; None, with nothing changed, if there is no such one.
        """
        for path in checkpoint.saved(self.directory / "checkpoints"):
            with contextlib.suppress(checkpoint.CheckpointError):
                arrays = checkpoint.load(path).arrays
                if all(np.isfinite(array).all() for array in arrays.values()):
                    model.go_back(arrays)
                    model.learning_rate_factor *= 0.5
                    return path
        return None

    def _begin_evaluation(self, path: Path) -> None:
        self._evaluated = path
        self._await_evaluation()
        # Other episodes than those of `ga3c-eval`, which would else judge the checkpoint by what it was chosen for.
        seed = (self.settings.run.seed + 1 + int(path.name)) % 2**31
        try:
            self.evaluator.start(path, self.settings.run.evaluation_episodes, seed, film=self._tensorboard is not None)
        except OSError as error:
            self._evaluation_failed(path, f"its process cannot be started: {error}")

    def _await_evaluation(self) -> None:
        self._next_evaluation = self.time + 60.0 * (self.settings.run.evaluation_minutes or math.inf)

    def _record_evaluation(self) -> None:
        outcome = self.evaluator.collect()
        if outcome is None:
            return
        self._await_evaluation()  # from its end: the controller needs time as well
        path, report, cause, video = outcome
        if report is None:
            self._evaluation_failed(path, cause)
            return
        protocol = {name: value for name, value in report["protocol"].items() if name != "seed"}
        candidate = checkpoint.Best(path.name, report["mean"], protocol)
        best = self._is_best(candidate)
        if best:
            try:
                checkpoint.set_best(path.parent, candidate)
                self.best_evaluation = candidate
            except OSError as error:
                best = False  # the one that is noted is the one that is kept
                self.say(f"best.json: {error.strerror or error}{'' if self._over else '; training goes on'}.")
        self.event("evaluation", **{**report, "checkpoint": str(path.relative_to(self.directory)), "best": best})
        self._show_in_tensorboard(lambda tensorboard: tensorboard.evaluation(report, video))
        low, high = report["mean_interval"]
        self.say(f"Evaluation at {report['agent_steps']:,} agent steps: mean {report['mean']:.2f} ({low:.2f} to "
                 f"{high:.2f}) of {len(report['scores'])} episodes{', the best so far' if best else ''}.")

    def _is_best(self, candidate: checkpoint.Best) -> bool:
        """Whether it beats the best so far, or that was found under another protocol, before a resume."""
        so_far = self.best_evaluation
        return math.isfinite(candidate.mean) and (
            so_far is None or candidate.mean > so_far.mean or so_far.protocol not in (None, candidate.protocol))

    def _evaluation_failed(self, path: Path, cause: str) -> None:
        self.event("evaluation_failed", checkpoint=str(path.relative_to(self.directory)), cause=cause)
        self.say(f"The evaluation of {path.name} failed{'' if self._over else ', training goes on'}: {cause}")

    def _record(self, now: float, workers: Workers, agent_pids: list[int]) -> dict[str, Any]:
        row, episodes = self.statistics.row(now, workers)
        row |= self._meter.used(agent_pids, self.evaluator.pid)
        if agent_pids:
            self._verdict = self._judge.hear(row)
            if self._verdict is not None:
                row["limit"] = self._verdict.limit
        if self.best_evaluation is not None:
            row["best_evaluation"] = self.best_evaluation.mean
        self._metrics.write(json.dumps(row) + "\n")
        for name, counts in lag.histograms(self.statistics.lag).items():
            self._lags[name] += counts
        for episode in episodes:
            self._episodes.write(f"{episode.time:.3f},{episode.agent_step},{episode.score:.12g},{episode.length}\n")
        self._show_in_tensorboard(lambda tensorboard: tensorboard.row(row, self.statistics.lag))
        if now >= self._next_log:
            self._log.write(plain_line(row, self._notes()) + "\n")
            if self._verdict is not None:
                self._log.write(f"Limited by {self._verdict}.\n")
            self._record_lag()
            self._next_log = now + 60.0
        return row

    def _record_lag(self) -> None:
        counts, self._lags = self._lags, lag.histograms(lag.NOTHING)
        if counts["updates"].any():
            self.event("lag", **{name: numbers.tolist() for name, numbers in counts.items()})

    def _notes(self) -> dict[str, str]:
        notes = {"Tuning": self.tuning, "Limit": self._verdict.limit if self._verdict else ""}
        return {name: note for name, note in notes.items() if note}

    def save(self, model: Learner) -> Path:
        """A checkpoint of this moment; beside the newest few stay the first after each full hour, the best and the
        one under evaluation. Raises OSError, DeviceFailed.
        """
        arrays, version, agent_steps = model.state()
        progress = {"version": version, "agent_steps": agent_steps, "time": self.time,
                    "episodes": self.statistics.episodes, "predictions": self.statistics.predictions,
                    "dropped_steps": self.statistics.dropped_steps,
                    "learning_rate_factor": model.learning_rate_factor,
                    "recent_scores": list(self.statistics.recent_scores), "ga3c": __version__,
                    "game": self.settings.env.game, "rollout_length": self.settings.algorithm.rollout_length,
                    "settings": self.settings.flat(), "versions": self._versions}
        if self.controller is not None:
            progress["controller"] = self.controller.state()
        spared = checkpoint.hourly(self.directory / "checkpoints")
        if self.best_evaluation:
            spared.append(self.best_evaluation.checkpoint)
        if self.evaluator.checkpoint is not None:
            spared.append(self.evaluator.checkpoint.name)
        path = self.checkpoint_path = checkpoint.save(
            self.directory / "checkpoints", f"{agent_steps:012d}", Checkpoint(arrays | self.also_saved(), progress),
            self.settings.run.checkpoints_kept, spared)
        self._steps_saved = agent_steps
        self.disturbances += 1
        self.event("checkpoint", path=str(path.relative_to(self.directory)), agent_steps=agent_steps)
        return path

    def evaluate_last(self, model: Learner, interruption: Signals) -> None:
        """Where checkpoints are evaluated the last one is as well: waits for that, until interrupted.

        Training must be over. Raises OSError or DeviceFailed if there is no checkpoint.
        """
        self._end_training()
        if self.settings.run.evaluation_minutes is None or interruption.signum:
            return
        if model.agent_steps > self._steps_saved:
            self.save(model)
        last = self.checkpoint_path
        if last is None:
            return
        if last != self._evaluated:
            self._stop_evaluation()
            self._begin_evaluation(last)
        if self.evaluator.checkpoint is not None:
            self.event("last_evaluation", checkpoint=str(last.relative_to(self.directory)))
            self.display.leave_panel()  # there is no second more to show
            self.say("Training is over; the last checkpoint is evaluated. Ctrl-C leaves that out.")
        while self.evaluator.checkpoint is not None and not interruption.signum:
            wait([interruption.fileno(), *self.evaluator.sentinels], self.evaluator.seconds_left)
            interruption.clear()
            self._record_evaluation()

    def _end_training(self) -> None:
        if self._over:
            return
        self._over = True
        self._time_before, self._started = self.time, None  # what is done from now on is no training
        self._record_evaluation()
        self._record(self.time, Workers(0, 0, 0, 0, 0), [])
        self._record_lag()

    def _stop_evaluation(self) -> None:
        if self.evaluator.checkpoint is not None:
            self.event("evaluation_stopped", checkpoint=str(self.evaluator.checkpoint.relative_to(self.directory)))
            self.evaluator.stop()

    def finish(self, model: Learner, reason: str, skip_checkpoint: bool) -> None:
        """Writes the last row and, if something was learned since the last one, a checkpoint; says how to go on.

        Raises OSError or DeviceFailed if there is no checkpoint; it may then be called again, to skip it.
        """
        self._end_training()
        self._stop_evaluation()
        if not skip_checkpoint and model.agent_steps > self._steps_saved:
            self.save(model)
        self.event("end", reason=reason, agent_steps=model.agent_steps)
        if self.statistics.trace is not None:
            try:
                self.statistics.trace.write(self.directory / "trace.json")
                self.say(f"Trace of the last minute or so: {self.directory / 'trace.json'}, "
                         "for https://ui.perfetto.dev")
            except OSError as error:
                self.say(f"No trace: {error}")
        self.display.leave_panel()
        steps = f"{model.agent_steps:,} agent steps, {self.statistics.episodes:,} episodes"
        self.say(f"Ended by {reason} after {steps}.")
        if self._verdict is not None:
            self.say(f"Speed was limited by {self._verdict}.")
        if self.best_evaluation is not None:
            best = self.best_evaluation
            self.say(f"Best evaluation: {best.mean:.2f}, by {self.directory / 'checkpoints' / best.checkpoint}")
        found = checkpoint.saved(self.directory / "checkpoints")
        why = "it was not waited for" if skip_checkpoint else "nothing was learned yet"
        self.say(f"Newest checkpoint: {found[0]}   go on with: ga3c-train --resume {self.directory}" if found else
                 f"No checkpoint: {why}. The record is in {self.directory}")

    def _show_in_tensorboard(self, show: Callable[[TensorBoard], object]) -> None:
        if self._tensorboard is not None:
            try:
                show(self._tensorboard)
            except Exception as error:  # its writer has a thread, and hands on whatever ended it
                self._close_tensorboard()
                self.say(f"TensorBoard gets no more numbers, training goes on: {error}")

    def _close_tensorboard(self) -> None:
        if self._tensorboard is not None:
            with contextlib.suppress(Exception):
                self._tensorboard.close()
            self._tensorboard = None

    def close(self) -> None:
        """Closes all files; ends an evaluation that is under way."""
        self.evaluator.stop()
        self.display.close()
        self._close_tensorboard()
        for log in self._logs:
            log.close()
Recorder = Run
