"""`ga3c-eval`: plays episodes with a trained policy and reports their scores."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ga3c.commands.entry import guarded, print_skipped_checkpoints, quiet
from ga3c.learner import backend
from ga3c.settings.files import configured
from ga3c.settings.flags import Parser, number
from ga3c.settings.machine import be_killed_first, usable_cores
from ga3c.settings.messages import ConfigError, flag

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from ga3c.envs.child_process import Caller
    from ga3c.evaluation.policy import Trained

CLIP_FRAMES = 300        # most observations in the video of an evaluation during training
PROGRESS_SECONDS = 30.0  # between two lines of progress without a terminal


def evaluate(argv: Sequence[str]) -> int:
    return guarded("ga3c-eval", lambda: _evaluate(parser().parse_args(argv)))


def report_to(caller: Caller, argv: Sequence[str], nice: int | None = None, filmed: bool = False) -> int:
    """Plays as `ga3c-eval` does, in a child process. Sends the report as JSON, and a GIF, b"" if there is none.

    nice: of an evaluation during training, which has one process. None: it may use all cores. Returns the exit code.
    """
    def work() -> int:
        _, report, video = _played(parser().parse_args(argv), nice is not None, filmed)
        caller.send((json.dumps(report), video))
        return 0

    if nice is not None:
        os.nice(nice)
        be_killed_first()
    return guarded("ga3c-eval", work)


def _evaluate(options: argparse.Namespace) -> int:
    trained, report, _ = _played(options)
    if options.json:
        print(json.dumps(report))
    else:
        from rich.console import Console
        from ga3c.evaluation.scores import table
        Console(highlight=False).print(table(report), soft_wrap=True)
    if options.record:
        from ga3c.evaluation.scores import record
        try:
            record(trained, report)
        except OSError as error:  # a run of another user may be read-only
            print(f"ga3c-eval: not recorded: {error}", file=sys.stderr)
    return 0


def _played(options: argparse.Namespace, background: bool = False,
            filmed: bool = False) -> tuple[Trained, dict[str, Any], bytes]:
    """Returns what played, the report and, if `filmed`, the beginning of the first episode as GIF, else b"".

    In the background it plays in one process and says nothing meanwhile.
    """
    from ga3c.envs.atari_games import atari_game_of, atari_id
    from ga3c.envs.factory import runs_user_code
    from ga3c.evaluation.episodes import Limits, Protocol, play_episodes
    from ga3c.evaluation.players import playing
    from ga3c.evaluation.policy import Policy, find
    trained = find(options.policy)
    # A user's game may change the working directory.
    trained = trained._replace(run=trained.run and trained.run.absolute())
    print_skipped_checkpoints(trained.passed_over, "ga3c-eval")
    if atari_game_of(trained.settings.env) is None:
        for name in ("noop_max", "sticky_actions"):
            if getattr(options, name) is not None:
                raise ConfigError(f"{flag(name)}: {trained.settings.env.game} is no Atari game and has none")
    noops = configured().env.noop_max if options.noop_max is None else options.noop_max
    sticky = trained.settings.env.sticky_actions if options.sticky_actions is None else options.sticky_actions
    # `serial`: one thread and deterministic operations, so that the same seed gives the same scores.
    settings = trained.settings.changed(noop_max=noops, sticky_actions=sticky, serial=True)
    several = not background and (atari_id(settings.env.game) is not None or runs_user_code(settings))
    protocol = Protocol(options.episodes, options.seed, options.greedy, options.envs)
    limits = Limits(options.max_steps, options.max_minutes)
    log = None if trained.run is None else str(trained.run / "log.txt")
    film: list[NDArray] = []
    # The processes make their environments while we import TensorFlow.
    with playing(settings, protocol, limits, usable_cores() if several else 1, log) as players:
        backend.prepare(options.verbose)
        with quiet(options.verbose):
            from ga3c.evaluation.scores import report
            backend.start(settings)
        spec = players.spec
        # A user's network may print, and standard output must hold the JSON report only.
        with quiet(options.verbose), contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
            policy = Policy(trained, spec=spec)
        pictures = len(spec.observation_shape) == 3 and spec.observation_dtype == "uint8"

        def watch(observation: NDArray) -> None:
            if filmed and pictures and len(film) < CLIP_FRAMES:
                film.append(observation.copy())

        with _progress(protocol.episodes, not background) as on_turn:
            played = play_episodes(policy.predict, policy.acting, players, protocol, on_turn, watch)
    video = b""
    if film:
        from ga3c.evaluation.video import clip
        rate = 60 / spec.frames_per_step if atari_id(settings.env.game) else 10.0
        try:
            video = clip(film, rate)
        except Exception as error:  # the scores are valid without a video
            print(f"ga3c-eval: no video: {' '.join(str(error).split())}", file=sys.stderr)
    return trained, report(trained, spec, settings, protocol, limits, played), video


@contextlib.contextmanager
def _progress(episodes: int, shown: bool) -> Iterator[Callable[[int, int], object]]:
    """Yields the function to call after each turn. It moves a bar on a terminal; else it prints a line now and then."""
    from rich.console import Console
    from rich.progress import Progress
    began = time.monotonic()
    reported = began
    before = 0
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("Episodes", total=episodes)

        def on_turn(over: int, turns: int) -> None:
            nonlocal before, reported
            if over != before:
                before = over
                progress.update(task, completed=over)
            now = time.monotonic()
            if shown and not errors.is_terminal and now >= reported + PROGRESS_SECONDS:
                reported = now
                print(f"ga3c-eval: {over:,} of {episodes:,} episodes after {now - began:.0f} s; each environment has "
                      f"played {turns:,} agent steps", file=sys.stderr, flush=True)

        yield on_turn


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "ga3c-eval", "Play episodes with a trained policy and say what they score.",
        "examples:\n  ga3c-eval runs/Boxing-...                          the newest checkpoint of a run\n"
        "  ga3c-eval runs/Boxing-.../checkpoints/best --json  the best one found while it learned, as JSON\n"
        "  ga3c-eval pong --episodes 100 --greedy             a policy that comes with the package")
    parser.add_argument("policy", metavar="POLICY",
                        help="run directory, one of its checkpoints, policy file, or name of a policy in the package")
    group = parser.add_argument_group("Protocol")
    group.add_argument("--episodes", metavar="N", type=number(int, 1, 100_000), default=30,
                       help="episodes to play, each with a seed of its own [%(default)s]")
    group.add_argument("--seed", metavar="N", type=number(int, 0, 2**31 - 1), default=0,
                       help="the same seed plays the same episodes [%(default)s]")
    group.add_argument("--greedy", action="store_true", help="the likeliest action instead of a sampled one")
    group.add_argument("--noop-max", metavar="N", type=number(int, 0, 200),
                       help="at most this many no-ops open an episode, Atari only [30]")
    group.add_argument("--sticky-actions", metavar="P", type=number(float, 0, 0.999),
                       help="probability that the last action is repeated, Atari only [as in training]")
    group.add_argument("--envs", metavar="N", type=number(int, 1, 1024), default=16,
                       help="environments at a time; another number rounds, and may score, differently [%(default)s]")
    group.add_argument("--max-steps", metavar="N", type=number(int, 1, 10**9), default=108_000,
                       help="agent steps after which an episode is cut short; it counts with its score [%(default)s]")
    group.add_argument("--max-minutes", metavar="MINUTES", type=number(float, 0.001, 10**6), default=30.0,
                       help="minutes after which an episode is cut short [%(default)g]")
    group = parser.add_argument_group("Output")
    group.add_argument("--json", action="store_true", help="print everything as one JSON object")
    group.add_argument("--no-record", action="store_false", dest="record",
                       help="leave no line in the run's events.jsonl")
    group.add_argument("--verbose", action="store_true", help="show TensorFlow's own messages")
    return parser
