"""The commands. Nothing heavy is imported before the settings are known to be right.

Exit codes: 0 done; 2 usage or settings; 3 agents lost; 4 diverged; 5 storage; 6 device or internal; 130 and 143 after
SIGINT and SIGTERM.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import errno
import json
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from ga3c import __version__
from ga3c.checkpoint import Checkpoint, CheckpointError, clean, load, newest, set_aside_after, unusable
from ga3c.config import ConfigError, Parser, Settings, build_parser, parse, resolve, to_yaml
from ga3c.interruption import Interruption
from ga3c.machine import be_killed_first, before_tensorflow, usable_cores

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLIP_PICTURES = 300  # of the video of an evaluation during training
_STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


def main() -> NoReturn:
    """`ga3c-train`: trains an agent; see `--help`."""
    sys.exit(train(sys.argv[1:]))


def train(argv: Sequence[str]) -> int:
    """Runs `ga3c-train` with these arguments and returns its exit code."""
    return guarded("ga3c-train", lambda: _prepare(argv))


def guarded(program: str, work: Callable[[], int]) -> int:
    """Does a command's `work`, returns its exit code; a mistake or a failure is one line that begins with `program`."""
    try:
        return work()
    except ConfigError as error:
        return _fail(str(error), 2, program)
    except CheckpointError as error:
        return _fail(str(error), 5, program)
    except OSError as error:
        return _fail(f"{error.filename or 'storage'}: {error.strerror or error}", 5, program)
    except KeyboardInterrupt:
        return 130
    except Exception:
        traceback.print_exc()
        return 6


def _fail(message: str, code: int, program: str = "ga3c-train") -> int:
    print(f"{program}: {message}", file=sys.stderr)
    return code


def training_parser() -> argparse.ArgumentParser:
    """The command line of `ga3c-train`."""
    return build_parser("ga3c-train", __version__)


def _prepare(argv: Sequence[str]) -> int:
    from ga3c.preflight import raise_limits
    raise_limits()
    given, options = parse(training_parser(), argv)
    directory = checkpoint = None
    anew = bool(options.get("weights_only"))
    if anew and "resume" not in options:
        raise ConfigError("--weights-only: goes with --resume RUN, whose weights are taken")
    if "resume" in options:
        own = ("config", "preset") if anew else ("config", "run_dir", "preset")
        misplaced = [name for name in own if name in options or name in given]
        if misplaced:
            raise ConfigError(f"--{misplaced[0].replace('_', '-')}: --resume goes on with its own directory and "
                              "config.yaml; use other flags")
        directory, checkpoint = _resumed(options["resume"])
        if anew:  # what ended that run, and where it is, is not this one's
            given = {"run_dir": None, "steps": None, "frames": None, "minutes": None, "episodes": None, **given}
    settings = resolve(given, str(directory / "config.yaml") if directory else options.get("config"))
    if options.get("print_config"):
        print(to_yaml(settings), end="")
        return 0
    interruption = Interruption()
    try:
        return _train(settings, directory, checkpoint, anew, bool(options.get("verbose")), interruption)
    finally:
        interruption.close()


def _resumed(argument: str) -> tuple[Path, Path | None]:
    """(run directory, checkpoint named explicitly or None) of `--resume`."""
    path = Path(argument)
    if (path / "config.yaml").is_file():
        return path, None
    if path.name.isdigit() and (path.parent.parent / "config.yaml").is_file():
        return path.parent.parent, path
    raise ConfigError(f"--resume: {argument} is neither a run (no config.yaml in it) nor a checkpoint of one")


@contextlib.contextmanager
def quiet(verbose: bool) -> Iterator[None]:
    """Holds back what C++ writes to standard error, unless it ends in an exception."""
    if verbose:
        yield
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except ConfigError:
            raise  # the user's mistake: one line, from us
        except BaseException:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


def _train(settings: Settings, directory: Path | None, named: Path | None, anew: bool, verbose: bool,
           interruption: Interruption) -> int:
    from ga3c.agent import start_forkserver
    from ga3c.environment import probe
    from ga3c.preflight import preflight
    from ga3c.seating import seating
    spec = probe(settings)
    for finding in preflight(settings, directory or Path(settings.run_dir or "runs")):
        if not finding.ok:
            raise ConfigError(f"{finding.name}: {finding.numbers}; {finding.remedy}")
    if not settings.serial:
        # It makes what agents need while this process imports TensorFlow.
        start_forkserver(settings.game, settings.envs_per_agent * seating(settings).per_process)
    before_tensorflow(verbose)
    with contextlib.suppress(OSError):  # nobody reads; the display will find out
        print(f"{spec.name}: loading TensorFlow and compiling the model", flush=True)
    with quiet(verbose):
        from ga3c.model import Model, start_tensorflow
        from ga3c.run import create_directory, lock_directory
        start_tensorflow(settings)
        model = Model(settings, spec)

    restored = Checkpoint({}, {})
    told: list[str] = []
    checkpoint_path: Path | None = None
    with contextlib.ExitStack() as held:
        if directory is not None and not anew:
            held.callback(os.close, lock_directory(directory))
            cleaned = clean(directory / "checkpoints")
            checkpoint_path, restored, passed_over = _restore(settings, model, directory, named)
            told = [*cleaned, *(f"Passed over: {reason}" for reason in passed_over)]
        else:
            if directory is not None:
                told = _begin_with_weights(model, directory, named)
            directory = create_directory(settings, spec)
            held.callback(os.close, lock_directory(directory))
        return _run(settings, spec, model, directory, restored, checkpoint_path, told, interruption)


def _run(settings: Settings, spec: Any, model: Any, directory: Path, restored: Checkpoint,
         checkpoint_path: Path | None, told: list[str], interruption: Interruption) -> int:
    from ga3c.model import DeviceFailed, Diverged
    from ga3c.run import Run, write_settings
    from ga3c.serial import run_serial
    from ga3c.service import AgentsLost, Service
    run = Run(settings, spec, directory, restored.progress)
    ending = False
    try:
        reached = run.reached(model.agent_steps)
        if reached:
            raise ConfigError(f"--resume: {directory} has already reached {reached}; give a higher limit")
        if checkpoint_path is not None:
            set_aside_after(checkpoint_path)
        write_settings(directory, settings)
        run.event("start", resumed_at=model.agent_steps, command=sys.argv, told=told,
                  precision=model.precision, device=model.device)
        for line in told:
            run.say(line)
        run.say(f"{spec.name}: {'going on' if restored.progress else 'a new run'} in {directory}")
        try:
            reason = (run_serial(settings, run, model, interruption, restored.arrays) if settings.serial
                      else Service(settings, run, model, interruption).run())
        except AgentsLost as error:
            ending = True
            run.finish(model, "lost agents", skip_checkpoint=not model.readable())
            return _fail(str(error), 3)
        ending = True
        run.evaluate_last(model, interruption)
        run.finish(model, reason, skip_checkpoint=interruption.hurried)
        return 128 + interruption.signum if interruption.signum else 0
    except ConfigError:
        raise
    except Diverged as error:
        run.finish(model, "divergence", skip_checkpoint=True)
        return _fail(f"diverged: {error}", 4)
    except DeviceFailed as error:
        run.finish(model, "a failure of the device", skip_checkpoint=not model.readable())
        return _fail(str(error), 6)
    except Exception as error:
        storage = isinstance(error, OSError) and (ending or error.errno in _STORAGE)
        run.say(f"Ended by a failure of storage: {error}" if storage else
                f"An error in the service itself:\n{traceback.format_exc()}")
        with contextlib.suppress(OSError):
            run.finish(model, "an error", skip_checkpoint=storage or not model.readable())
        return 5 if storage else 6
    finally:
        run.close()


def _restore(settings: Settings, model: Any, directory: Path,
             named: Path | None) -> tuple[Path, Checkpoint, list[str]]:
    """Puts the newest whole checkpoint, or the one named, into `model`: path, itself, why others were passed over."""
    passed_over: list[str] = []
    if named is not None:
        checkpoint, path = load(named), named
    else:
        checkpoint, path, passed_over = newest(directory / "checkpoints")
    progress = checkpoint.progress
    wrong = unusable(progress)
    if wrong:
        raise CheckpointError(f"{path} cannot be gone on from: {wrong}")
    for name in ("game", "t_max"):
        ours, theirs = getattr(settings, name), progress.get(name, getattr(settings, name))
        if ours != theirs:
            raise ConfigError(f"--{name.replace('_', '-')}: {ours}, but {path} was trained on {theirs}; "
                              "--weights-only begins a new run with its weights")
    try:
        model.restore(checkpoint.arrays, progress["version"], progress["agent_steps"])
        model.learning_rate_factor = progress.get("learning_rate_factor", 1.0)
    except ValueError as error:
        raise ConfigError(f"--resume: {path}: {error}") from None
    return path, checkpoint, passed_over


def _begin_with_weights(model: Any, directory: Path, named: Path | None) -> list[str]:
    """Gives a new model the weights of the newest whole checkpoint, or of the one named; says so."""
    checkpoint, path, _ = (load(named), named, []) if named is not None else newest(directory / "checkpoints")
    try:
        model.start_from(checkpoint.arrays)
    except ValueError as error:
        raise ConfigError(f"--weights-only: {path}: {error}") from None
    return [f"Begins with the weights of {path}"]


# ------------------------------------------------------------------------------------------------ ga3c-eval

def evaluate_main() -> NoReturn:
    """`ga3c-eval`: plays episodes with a trained policy; see `--help`."""
    sys.exit(evaluate(sys.argv[1:]))


def evaluate(argv: Sequence[str]) -> int:
    """Runs `ga3c-eval` with these arguments and returns its exit code."""
    return guarded("ga3c-eval", lambda: _evaluate(evaluation_parser().parse_args(argv)))


def _evaluate(options: argparse.Namespace) -> int:
    if options.background is not None:
        _stay_in_the_background(options.background)
    from ga3c.agent import start_forkserver
    from ga3c.environment import atari_id
    from ga3c.episodes import Protocol, shares
    from ga3c.policy import Policy, find
    trained = find(options.policy)
    for reason in trained.passed_over:
        print(f"ga3c-eval: passed over: {reason}", file=sys.stderr)
    sticky = trained.settings.sticky_actions if options.sticky_actions is None else options.sticky_actions
    # `serial`: one thread and deterministic operations, so that the same seed gives the same scores.
    settings = trained.settings.model_copy(update={
        "noop_max": options.noop_max, "sticky_actions": sticky, "serial": True})
    # A world of the user's own may exist in this process only.
    processes = usable_cores() if atari_id(settings.game) and options.background is None else 1
    protocol = Protocol(options.episodes, options.seed, options.greedy, options.envs)
    parts = shares(protocol, processes)
    if len(parts) > 1:
        start_forkserver(settings.game, len(parts[0]))  # it makes what they need while we import TensorFlow
    before_tensorflow(options.verbose)
    with quiet(options.verbose):
        from ga3c.evaluation import play_episodes, record, report, table
        from ga3c.model import start_tensorflow
        start_tensorflow(settings)
        policy = Policy(trained)
    from rich.console import Console
    from rich.progress import Progress
    pictures = len(policy.spec.observation_shape) == 3 and policy.spec.observation_dtype == "uint8"
    seen: list[NDArray] = []

    def watch(observation: NDArray) -> None:
        if options.film and pictures and len(seen) < CLIP_PICTURES:
            seen.append(observation.copy())

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("Episodes", total=protocol.episodes)
        played = play_episodes(policy.predict, policy.spec, settings, protocol, processes,
                               lambda: progress.advance(task), watch)
    found = report(trained, policy.spec, settings, protocol, played)
    if seen:
        from ga3c.film import clip
        with contextlib.suppress(Exception):  # whatever becomes of the pictures, the scores are there
            rate = 60 / policy.spec.frames_per_step if atari_id(settings.game) else 10.0
            found["video"] = base64.b64encode(clip(seen, rate)).decode()
    if options.json:
        print(json.dumps(found))
    else:
        Console(highlight=False).print(table(found), soft_wrap=True)
    if options.record:
        try:
            record(trained, found)
        except OSError as error:  # somebody else's run, to be read only
            print(f"ga3c-eval: not recorded: {error}", file=sys.stderr)
    return 0


def _stay_in_the_background(nice: int) -> None:
    """For an evaluation during training: at that niceness, ends when its parent does."""
    os.nice(nice)
    be_killed_first()

    def end_with_parent() -> None:
        os.read(0, 1)  # standard input is a socket to the parent: end of file when that has died
        os._exit(1)

    threading.Thread(target=end_with_parent, name="end-with-parent", daemon=True).start()


def number(kind: Callable[[str], Any], low: float, high: float) -> Callable[[str], Any]:
    def parse_number(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if low <= kind(text) <= high:
                return kind(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: a number from {low:,} to {high:,}")

    return parse_number


def evaluation_parser() -> argparse.ArgumentParser:
    """The command line of `ga3c-eval`."""
    parser = Parser(
        prog="ga3c-eval", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Play episodes with a trained policy and say what they score.",
        epilog="examples:\n  ga3c-eval runs/Boxing-...                          the newest checkpoint of a run\n"
               "  ga3c-eval runs/Boxing-.../checkpoints/best --json  the best one found while it learned, as JSON\n"
               "  ga3c-eval pong --episodes 100 --greedy             a policy that comes with the package")
    parser.add_argument("policy", metavar="POLICY",
                        help="run directory, one of its checkpoints, policy file, or name of a policy in the package")
    parser.add_argument("--version", action="version", version=f"ga3c {__version__}")
    group = parser.add_argument_group("Protocol")
    group.add_argument("--episodes", metavar="N", type=number(int, 1, 100_000), default=30,
                       help="episodes to play, each with a seed of its own [%(default)s]")
    group.add_argument("--seed", metavar="N", type=number(int, 0, 2**31 - 1), default=0,
                       help="the same seed plays the same episodes [%(default)s]")
    group.add_argument("--greedy", action="store_true", help="the likeliest action instead of a sampled one")
    group.add_argument("--noop-max", metavar="N", type=number(int, 0, 200), default=30,
                       help="at most this many no-ops open an episode, Atari only [%(default)s]")
    group.add_argument("--sticky-actions", metavar="P", type=number(float, 0, 0.999),
                       help="probability that the last action is repeated, Atari only [as in training]")
    group.add_argument("--envs", metavar="N", type=number(int, 1, 1024), default=16,
                       help="environments at a time; another number rounds, and may score, differently [%(default)s]")
    group = parser.add_argument_group("Output")
    group.add_argument("--json", action="store_true", help="print everything as one JSON object")
    group.add_argument("--no-record", action="store_false", dest="record",
                       help="leave no line in the run's events.jsonl")
    group.add_argument("--verbose", action="store_true", help="show TensorFlow's own messages")
    parser.add_argument("--background", type=int, help=argparse.SUPPRESS)  # these two: see evaluator.py
    parser.add_argument("--film", action="store_true", help=argparse.SUPPRESS)
    return parser
