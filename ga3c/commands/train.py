"""`ga3c-train`: trains an agent. Heavy imports come only after all settings are checked."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ga3c.commands.entry import fail, guarded, quiet
from ga3c.envs.containment import described
from ga3c.learner.checkpoint import clean, saved, set_aside_after
from ga3c.learner import backend
from ga3c.runs.beginning import Beginning, resume_from_checkpoint, start_from_weights
from ga3c.runs.reader import located
from ga3c.service.signals import Interrupted, Signals
from ga3c.settings.effects import notes_on_meetings, rising, without_effect
from ga3c.settings.files import check_agents, chosen, recorded, resolve, stated, to_yaml
from ga3c.settings.flags import Parser, add_settings, parse
from ga3c.settings.messages import ConfigError, flag, for_shell
from ga3c.settings.presets import notes_on_beginning, notes_on_lag, notes_on_steps
from ga3c.settings.schema import Settings

if TYPE_CHECKING:
    from ga3c.learner.learner import Learner
    from ga3c.learner.shared_learner import SharedLearner
    from ga3c.runs.recorder import Recorder

_NOT_WAITED_FOR = "it was not waited for"
_STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


def train(argv: Sequence[str]) -> int:
    return guarded("ga3c-train", lambda: _prepare(argv))


def _failed(message: str, code: int) -> int:
    return fail(message, code, "ga3c-train")


def parser() -> Parser:
    """Builds the parser of `ga3c-train`: one flag for every setting, grouped as in `config.yaml`."""
    parser = Parser(
        "ga3c-train",
        "Train an agent with asynchronous actor-critics around one model (GA3C).\n"
        "An agent step is one decision of one environment: on Atari mostly four frames.",
        "examples:\n  ga3c-train --game Boxing               until Ctrl-C, which says how to go on\n"
        "  ga3c-train --game CartPole-v1 --minutes 1 --reward-clip 0.1\n"
        "  ga3c-train --resume runs/Boxing-...    go on, after Ctrl-C or a crash",
        argument_default=argparse.SUPPRESS)
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings; `config.yaml` shows them all")
    parser.add_argument("--print-config", action="store_true", help="print the resolved settings and end")
    parser.add_argument("--resume", metavar="RUN", help="go on with a run directory or one of its checkpoints")
    parser.add_argument("--weights-only", action="store_true",
                        help="with --resume: a new run that begins with those weights, on any game they fit")
    parser.add_argument("--verbose", action="store_true", help="show TensorFlow's own messages")
    add_settings(parser)
    parser.stray = "; --game NAME names a game, --resume RUN a run to go on with"
    return parser


def _prepare(argv: Sequence[str]) -> int:
    from ga3c.service.resources import raise_limits
    raise_limits()
    given, options = parse(parser(), argv)
    directory: Path | None = None
    checkpoint: Path | None = None
    weights_only = bool(options.get("weights_only"))
    if weights_only and "resume" not in options:
        raise ConfigError("--weights-only: goes with --resume RUN, whose weights are taken")
    for name in ("config", "resume"):
        if options.get(name) == "":
            raise ConfigError(f"--{name}: '' names nothing; a shell variable may be empty")
    if "resume" in options:
        own = ("config", "preset") if weights_only else ("config", "run_dir", "preset")
        misplaced = [name for name in own if name in options or name in given]
        if misplaced:
            raise ConfigError(f"{flag(misplaced[0])}: --resume goes on with its own directory and "
                              "config.yaml; use other flags")
        place = located(options["resume"])
        if place is None or place[1] and not place[1].name.isdigit():
            raise ConfigError(f"--resume: {options['resume']} is neither a run (no config.yaml and metrics.jsonl in "
                              "it) nor a checkpoint of one")
        directory, checkpoint = place
        if checkpoint is None and not saved(directory / "checkpoints"):
            raise ConfigError(f"--resume: {directory} has no checkpoint yet; a new run may have its settings: --config "
                              f"{for_shell(directory / 'config.yaml')} --run-dir null")
        if weights_only:  # limits and directory of the old run do not apply
            given = {"run_dir": None, "steps": None, "frames": None, "minutes": None, "episodes": None, **given}
    file = options.get("config")
    settings = recorded(directory / "config.yaml", given) if directory else resolve(given, file)
    check_agents(settings)
    if options.get("print_config"):
        print(to_yaml(settings), end="")
        return 0
    interruption = Signals()
    interruption.at_once = True  # until the run begins
    try:
        values = stated(given, file)
        notes = [*([] if directory else notes_on_beginning(values)),
                 *_notes_on_settings(settings, chosen(values, given))]
        return _train(settings, notes, directory, checkpoint, weights_only, bool(options.get("verbose")), interruption)
    except (Interrupted, Exception):  # users' code, and libraries, turn Interrupted into other exceptions
        run_began = not interruption.at_once
        interruption.at_once = False
        if interruption.signum is None or run_began:
            raise
        _print(f"Ended by {interruption.name} before the run began")
        interruption.ignore()
        return 128 + interruption.signum
    finally:
        interruption.close()


def _notes_on_settings(settings: Settings, given: Collection[str]) -> list[str]:
    """Returns lines about the settings `given` that have no effect, or another effect than expected."""
    from ga3c.envs.atari_games import atari_game_of
    from ga3c.service.batches import notes_on_minibatches
    return [*without_effect(settings, given, atari_game_of(settings.env) is not None), *rising(settings),
            *notes_on_lag(settings), *notes_on_meetings(settings),
            *notes_on_steps(settings.algorithm), *notes_on_minibatches(settings)]


def _train(settings: Settings, notes: list[str], directory: Path | None, checkpoint: Path | None,
           weights_only: bool, verbose: bool, interruption: Signals) -> int:
    from ga3c.agents.forkserver import start_forkserver
    from ga3c.algorithms.fitting import fitting_network
    from ga3c.envs.atari_games import notes_at_start
    from ga3c.envs.check import check
    from ga3c.replay.ring import bytes_per_row
    from ga3c.runs.directory import check_unused
    from ga3c.service.resources import preflight
    from ga3c.transport.fields import Field
    here = Path.cwd()  # the user's game may change the working directory; our paths stay the same
    spec, notes_on_game = check(settings)
    # Report mistakes before TensorFlow is imported, which takes seconds.
    fitting_network(settings.algorithm, spec)
    if directory is None or weights_only:
        check_unused(settings, here)
    goes_on = None if weights_only else directory
    observation = Field(spec.observation_shape, spec.observation_dtype)
    replay = settings.replay.replay_size * bytes_per_row(spec) if settings.schedule.remembers else 0
    if replay:
        notes.append(f"Replay: {replay / 2**30:.1f} GB for {settings.replay.replay_size:,} steps, taken as it fills")
        if goes_on is not None:
            notes.append("The replay begins empty: what was played before is not kept. Updates go on after "
                         f"{settings.replay.replay_start:,} steps of the learned policy")
    for finding in preflight(settings, here / (goes_on or settings.run.run_dir or "runs"), observation.nbytes, replay):
        if not finding.ok:
            raise ConfigError(f"{finding.name}: {finding.numbers}; {finding.remedy}")
    if not settings.run.serial:
        # The fork server loads what agents need while this process imports TensorFlow.
        start_forkserver(settings.env, settings.agents.envs_per_agent)
    kernel = backend.choose_kernel(
        settings, spec, notes.append, lambda line: _print(f"{spec.name}: {line}"), [interruption.fileno()])
    if settings.run.kernels == "remeasure":  # a resume must not measure again
        settings = settings.changed(kernels="auto")
    backend.prepare(verbose, kernel.library)
    _print(f"{spec.name}: loading TensorFlow and compiling the model")
    with quiet(verbose):
        from ga3c.learner.learner import Learner
        from ga3c.learner.shared_learner import SharedLearner
        from ga3c.runs.directory import create_directory, lock_directory
        from ga3c.runs.recorder import Recorder
        backend.start(settings)
        learns_here = settings.run.serial or not settings.schedule.agents_learn
        model = (Learner if learns_here else SharedLearner)(settings.changed(precision=kernel.precision), spec)

    if interruption.signum is not None:  # users' code may have caught the exception
        raise Interrupted
    interruption.at_once = False
    with contextlib.ExitStack() as held:
        named = here / checkpoint if checkpoint is not None else None
        if directory is not None and not weights_only:
            held.callback(os.close, lock_directory(here / directory))
            cleaned = clean(here / directory / "checkpoints")
            beginning = resume_from_checkpoint(settings, spec, model, here / directory, named)
            notes += cleaned
        else:
            beginning = Beginning() if directory is None else start_from_weights(
                settings, spec, model, here / directory, named)
            directory = create_directory(settings, spec, here)
            held.callback(os.close, lock_directory(here / directory))
        notes += [*beginning.notes, *notes_at_start(settings.env), *notes_on_game]
        run = Recorder(settings, spec, here / directory, beginning.progress, interruption.wake, shown=directory)
        return _run(run, model, beginning, notes, kernel.library, interruption)


def _print(line: str) -> None:
    with contextlib.suppress(OSError):  # the output was closed; the display handles that
        print(line, flush=True)


def _run(run: Recorder, model: Learner | SharedLearner, beginning: Beginning, notes: list[str], kernels: str,
         interruption: Signals) -> int:
    """Trains, closes the record and returns the exit code. notes: lines for the user. kernels: the compute library."""
    from ga3c.learner.learner import DeviceFailed, Diverged, Learner
    from ga3c.runs.directory import write_settings
    from ga3c.service.agent_pool import AgentsLost
    from ga3c.service.evaluations import Evaluations
    from ga3c.service.serial import run_serial
    from ga3c.service.supervisor import Service
    settings = run.settings
    evaluations = Evaluations(run)
    ending = False
    precision = "its own" if ":" in settings.algorithm.network else model.precision

    def finish(reason: str, unsaved: str = "", failed: Exception | None = None) -> None:
        """Ends the record, with a last checkpoint unless `unsaved` says why not. failed: the error behind the end."""
        evaluations.stop()
        run.end_training()
        try:
            if not unsaved:
                with interruption.hurrying():
                    run.checkpoints.save_last(model)
        except Interrupted:
            unsaved = _NOT_WAITED_FOR
        except Exception as error:
            if failed is None:
                raise
            unsaved = f"it failed, {described(error)}"
        if unsaved:
            run.checkpoints.skip_last()
        run.finish(reason, unsaved, failed)

    def unreadable() -> str:
        return "" if model.can_read_state() else "the weights cannot be read from their device"

    try:
        reached = run.reached()
        if reached:
            raise ConfigError(f"--resume: {run.shown} has already reached {reached}; give a higher limit")
        if beginning.path is not None:
            set_aside_after(beginning.path)
        write_settings(run.directory, settings)
        run.event("start", resumed_at=run.statistics.agent_steps, command=sys.argv, notes=notes, versions=run.versions,
                  kernels=kernels, precision=precision, device=model.device)
        for line in notes:
            run.log(line)
        run.log(f"{run.spec.name}: {'going on' if beginning.path else 'a new run'} in {run.shown}")
        try:
            if settings.run.serial:
                assert isinstance(model, Learner)
                reason = run_serial(settings, run, model, interruption, beginning.arrays, evaluations)
            else:
                reason = Service(settings, run, model, interruption, evaluations, beginning.arrays).run()
        except AgentsLost as error:
            ending = True
            finish("lost agents", unreadable(), error)
            return _failed(str(error), 3)
        ending = True
        with contextlib.suppress(Interrupted):  # `hurried` below handles it
            evaluations.evaluate_last(model, interruption)
        finish(reason, _NOT_WAITED_FOR if interruption.hurried else "")
        return 128 + interruption.signum if interruption.signum else 0
    except ConfigError:
        raise
    except Diverged as error:
        finish("divergence", "the weights lead nowhere", error)
        return _failed(f"diverged: {error}", 4)
    except DeviceFailed as error:
        run.note(traceback.format_exc())
        finish("a failure of the device", unreadable(), error)
        return _failed(str(error), 6)
    except Exception as error:
        storage = isinstance(error, OSError) and (ending or error.errno in _STORAGE)
        if not storage:
            run.log(f"An error in the service itself:\n{traceback.format_exc()}")
        with contextlib.suppress(OSError):
            finish("an error", "it cannot be written" if storage else unreadable(), error)
        if storage:
            return _failed(f"ended by a failure of storage: {described(error)}", 5)
        return _failed(f"ended by an error in the service itself: {described(error)}", 6)
    finally:
        evaluations.close()
        run.close()
