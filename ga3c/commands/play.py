"""`ga3c-play`: shows a trained agent (`evaluation/moments.py`) in a window or records it; or lets a person play."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ga3c.commands.entry import code_after, fail, guarded, print_skipped_checkpoints, quiet
from ga3c.evaluation.moments import Moment, Painter, moments
from ga3c.evaluation.video import SUFFIXES, Recording
from ga3c.learner import backend
from ga3c.settings.files import configured
from ga3c.settings.flags import Parser, number, output_file
from ga3c.settings.messages import ConfigError


def play(argv: Sequence[str]) -> int:
    return guarded("ga3c-play", lambda: _play(parser().parse_args(argv)))


def parser() -> argparse.ArgumentParser:
    parser = Parser(
        "ga3c-play", "Watch a trained agent play, in a window or as a recording; or play yourself.",
        "examples:\n  ga3c-play runs/Boxing-...                          in a window; q ends it\n"
        "  ga3c-play runs/Boxing-.../checkpoints/best --record boxing.gif --overlay\n"
        "  ga3c-play --game Pong --pretrained                 a policy that comes with the package\n"
        "  ga3c-play --game Boxing --human                    by the keyboard: arrows or WASD, space fires")
    parser.add_argument("policy", metavar="POLICY", nargs="?",
                        help="run directory, one of its checkpoints, policy file, or name of a policy in the package")
    group = parser.add_argument_group("Instead of POLICY")
    group.add_argument("--game", metavar="GAME", help="with --pretrained or --human")
    group.add_argument("--pretrained", action="store_true", help="the policy for this game that comes with the package")
    group.add_argument("--human", action="store_true", help="you play; the window's keys are said at the start")
    group = parser.add_argument_group("Play")
    group.add_argument("--episodes", metavar="N", type=number(int, 1, 100_000), default=1,
                       help="episodes to play [%(default)s]")
    group.add_argument("--seed", metavar="N", type=number(int, 0, 2**31 - 1), default=0,
                       help="plays the episodes that ga3c-eval plays with this seed [%(default)s]")
    group.add_argument("--greedy", action="store_true", help="the likeliest action instead of a sampled one")
    group.add_argument("--seconds", metavar="SECONDS", type=number(float, 0.1, 86_400), default=60.0,
                       help="of the game, at most [%(default)g]")
    group = parser.add_argument_group("Picture")
    group.add_argument("--record", metavar="FILE", type=output_file(*SUFFIXES),
                       help="a .gif, .webp or .mp4 instead of a window")
    group.add_argument("--overlay", action="store_true", help="draw score, lives, value and policy beside the frame")
    group.add_argument("--zoom", metavar="N", type=number(int, 1, 16), help="enlarge each pixel [to about 400 lines]")
    group.add_argument("--fps", metavar="N", type=number(float, 1, 60), default=30.0,
                       help="most pictures a second of a recording [%(default)g]")
    group.add_argument("--speed", metavar="X", type=number(float, 0.05, 100), default=1.0,
                       help="of the window, as a multiple of the game's own [%(default)g]")
    return parser


# ------------------------------------------------------------------------------------------------ where frames go

class Window:
    """A window that shows frames at a steady rate, used as `Recording`. Closing it, q or escape ends the show."""

    def __init__(self, title: str, fps: float) -> None:
        self._pygame = _pygame_with_display()
        self._title = title
        self._fps = fps
        self._screen: Any = None
        self._clock = self._pygame.time.Clock()

    def show(self, frame: NDArray[np.uint8]) -> bool:
        """Shows one frame. Returns False if the user has ended the show."""
        pygame = self._pygame
        if self._screen is None:
            self._screen = pygame.display.set_mode(frame.shape[1::-1])
            pygame.display.set_caption(self._title)
        self._screen.blit(pygame.surfarray.make_surface(frame.swapaxes(0, 1)), (0, 0))
        pygame.display.flip()
        self._clock.tick(self._fps)
        return not any(event.type == pygame.QUIT or event.type == pygame.KEYDOWN
                       and event.key in (pygame.K_q, pygame.K_ESCAPE) for event in pygame.event.get())

    def close(self) -> str:
        self._pygame.quit()
        return ""


def _pygame_with_display() -> Any:
    """Returns pygame. Raises ConfigError if it is missing, or if there is no screen, where SDL would draw invisibly."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    # With OpenGL, Mesa's LLVM would call TensorFlow's LLVM functions of the same name, and crash.
    os.environ.setdefault("SDL_FRAMEBUFFER_ACCELERATION", "0")
    try:
        import pygame
    except ImportError:
        raise ConfigError("a window needs pygame: pip install pygame-ce; a policy is recorded without one: "
                          "--record out.gif") from None
    try:
        with quiet(False):
            pygame.display.init()
        if pygame.display.get_driver() != "offscreen" or "SDL_VIDEODRIVER" in os.environ:
            return pygame
        cause = "no display"
    except pygame.error as error:
        cause = str(error)
    pygame.quit()
    raise ConfigError(f"no window can be opened here: {cause}; a policy is recorded without one: --record out.gif")


# ------------------------------------------------------------------------------------------------ the command

def _play(options: argparse.Namespace) -> int:
    if options.human:
        return _human(options)
    if options.pretrained != bool(options.game) or (options.policy is None) != options.pretrained:
        raise ConfigError("name what to watch: POLICY, or --game GAME --pretrained; or play yourself: "
                          "--game GAME --human")
    misplaced = "speed" if options.record else "fps"
    if getattr(options, misplaced) != parser().get_default(misplaced):
        raise ConfigError(f"--{misplaced} is of {'a window, not of --record' if options.record else '--record'}")
    if options.record:
        options.record = options.record.resolve()  # a user's game may change the working directory
        if not os.access(options.record.parent, os.W_OK):
            raise ConfigError(f"--record: {options.record.parent} cannot be written")
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # for environments that draw with pygame
    from ga3c.evaluation.policy import Policy, find
    trained = find(_shipped(options.game) if options.pretrained else options.policy)
    print_skipped_checkpoints(trained.passed_over, "ga3c-play")
    from ga3c.envs.containment import EnvironmentFailed
    from ga3c.envs.watched import Watched
    settings = trained.settings.changed(serial=True, noop_max=configured().env.noop_max)  # the same as in ga3c-eval
    watched = Watched(settings)
    shown = (Recording(options.record, watched.fps, options.fps) if options.record else
             Window(f"{watched.spec.name}  {trained.path}", watched.fps * options.speed))
    failed: list[EnvironmentFailed] = []
    code = 0
    try:
        backend.prepare()
        with quiet(False):
            backend.start(settings)
            policy = Policy(trained, spec=watched.spec)
        try:
            steps = moments(policy.predict, policy.acting, watched, options.seed, options.episodes, options.greedy)
            painter = Painter(options.zoom, watched.action_names if options.overlay else None)
            _show(steps, shown, painter, round(options.seconds * watched.fps))
        except KeyboardInterrupt as interrupt:  # what is recorded so far is kept
            code = code_after(interrupt)
        except EnvironmentFailed as error:  # reported below, after the recording is closed
            failed.append(error)
        try:
            watched.close()
        except EnvironmentFailed as error:
            failed.append(error)
    except BaseException:
        with contextlib.suppress(OSError):
            shown.close()
        raise
    line = shown.close()
    if line:
        print(line, flush=True)
    for failure in failed:
        fail(str(failure), 3, "ga3c-play")
    return 3 if failed else code


def _show(played: Iterator[Moment], shown: Recording | Window, painter: Painter, most: int) -> None:
    """Paints and shows at most `most` frames of the play; prints the score of each episode."""
    for moment in played:
        frames = painter.paint(moment)[:most]
        most -= len(frames)
        if not all(shown.show(frame) for frame in frames):
            return
        if moment.ended:
            print(f"Episode {moment.episode + 1}: score {moment.score:,.6g}, {moment.length:,} agent steps", flush=True)
        if not most:
            print(f"Stopped by --seconds: score {moment.score:,.6g} after {moment.length:,} agent steps", flush=True)
            return


def _shipped(game: str) -> str:
    """Returns the name of the policy for `game` in the package. Raises ConfigError if there is none."""
    from ga3c.envs.atari_games import find_atari_game
    from ga3c.envs.check import probe
    from ga3c.evaluation.policy import shipped
    names = shipped()
    atari = find_atari_game(game)  # making the game would compile the emulator first
    name = (atari or probe(configured(game=game))).name.lower()
    if name not in names:
        raise ConfigError(f"--pretrained: no policy for {game} comes with this version "
                          f"({', '.join(names) or 'none does'}); train one: ga3c-train --game {game}")
    return name


def _human(options: argparse.Namespace) -> int:
    """Lets a person play in gymnasium's own window, frame by frame."""
    if options.policy or options.pretrained or options.record or not options.game:
        raise ConfigError("--human takes --game GAME and no policy or recording")
    unused = [name for name in ("episodes", "greedy", "seconds", "overlay", "fps", "speed")
              if getattr(options, name) != parser().get_default(name)]
    if unused:
        raise ConfigError(f"--{unused[0]} does not go with --human, which takes --game, --seed and --zoom")
    pygame = _pygame_with_display()
    import gymnasium
    from gymnasium.utils.play import play as play_by_hand

    from ga3c.envs.atari_games import atari_id
    from ga3c.envs.check import probe
    from ga3c.envs.containment import EnvironmentFailed, contained, reraising
    from ga3c.envs.factory import maker
    n_actions = probe(configured(game=options.game)).n_actions
    atari = atari_id(options.game)
    with contained(), reraising(f"game: {options.game!r} cannot be made", ConfigError):
        env = (gymnasium.make(atari, render_mode="rgb_array", frameskip=1, repeat_action_probability=0.0) if atari else
               maker(options.game, "rgb_array")())
    if not atari and env.render_mode != "rgb_array":
        raise ConfigError(f"--human: {options.game} draws nothing, so nobody can see it")
    keys = None
    if not hasattr(env.unwrapped, "get_keys_to_action"):
        arrows = {(pygame.K_LEFT,): 0, (pygame.K_RIGHT,): n_actions - 1}
        keys = arrows | {(pygame.K_0 + action,): action for action in range(min(10, n_actions))}
        print(f"Keys: left and right, or 0 to {min(10, n_actions) - 1} for an action; escape ends.", flush=True)
    else:
        print("Keys: arrows or WASD move, space fires; escape ends.", flush=True)
    score = 0.0
    episode = 0

    def count(*moment: Any) -> None:
        nonlocal score, episode
        _, _, _, reward, terminated, truncated, _ = moment
        score += float(reward)
        if terminated or truncated:
            episode += 1
            print(f"Episode {episode}: score {score:,.6g}", flush=True)
            score = 0.0

    def by_hand() -> None:
        play_by_hand(env, fps=60 if atari else None, zoom=options.zoom or (3 if atari else None), callback=count,
                     keys_to_action=keys, seed=options.seed)

    code = 0
    for work in (by_hand, env.close):
        try:
            with contained(), reraising(f"{options.game!r} failed"):
                work()  # env.close runs even if the play failed
        except EnvironmentFailed as error:
            code = fail(str(error), 3, "ga3c-play")
    pygame.quit()
    return code
