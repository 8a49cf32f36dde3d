"""The parts that all commands share: standard streams, exit codes, one-line error messages, quiet imports.

Exit codes: 0 done; 1 the doctor found a problem; 2 usage or settings; 3 agents lost, or an environment failed;
4 diverged; 5 storage; 6 device or internal error, an export that differs, a tracker that could not be closed; 130, 143
and 129 after SIGINT, SIGTERM and SIGHUP.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import NoReturn

from ga3c.envs.containment import EnvironmentFailed, leave, lossy_stream
from ga3c.learner.checkpoint import CheckpointError
from ga3c.settings.messages import ESCAPED, ConfigError

EXIT_SECONDS = 5.0  # limit for the functions registered with `atexit`


class _Terminated(KeyboardInterrupt):
    """A signal other than SIGINT that ends a command. Like Ctrl-C, it lets the command put things in order."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def run_command(command: Callable[[Sequence[str]], int]) -> NoReturn:
    """Runs the command with the arguments of this process, then ends the process with its exit code."""
    # The function registered first runs last: it stops the timer, so that no signal arrives while the interpreter ends.
    atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
    _open_streams()
    _raise_when_terminated()
    code: object
    try:
        code = command(sys.argv[1:])
    except SystemExit as ended:  # of --help
        code = ended.code
    except KeyboardInterrupt as interrupt:
        code = code_after(interrupt)
    _end(code)


def _raise_when_terminated() -> None:
    """Lets SIGTERM and SIGHUP raise _Terminated, in this process only. One that is ignored stays so, as by `nohup`."""
    def terminated(number: int, frame: FrameType | None) -> None:
        raise _Terminated(number)

    def in_forked_process() -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is terminated:
                signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, terminated)
    os.register_at_fork(after_in_child=in_forked_process)


def code_after(interrupt: KeyboardInterrupt) -> int:
    return 128 + (interrupt.number if isinstance(interrupt, _Terminated) else signal.SIGINT)


def _open_streams() -> None:
    """Opens closed standard streams, and makes the others escape characters that they cannot show.

    Otherwise a file opened later would get the descriptor of a closed stream, and with it all printed text.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # The system gives out the lowest free number, which is this one. Child processes inherit it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "w" if descriptor else "r", encoding="utf-8", closefd=False))
        stream = getattr(sys, name)
        if descriptor and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=ESCAPED)
    with contextlib.suppress(OSError):  # sys.stderr was replaced by an object without a descriptor
        if sys.stderr.fileno() == 2:
            sys.stderr.flush()
            sys.stderr = lossy_stream(2, sys.stderr.encoding)


def _end(code: object) -> NoReturn:
    """Ends the process even if threads of users' code never end. The interpreter alone would wait for them.

    The functions that users' code has registered with `atexit` have `EXIT_SECONDS`.
    """
    number = code if isinstance(code, int) else 0 if code is None else 1
    atexit.register(_start_timer, number)  # the function registered last runs first
    if all(thread.daemon or thread is threading.main_thread() for thread in threading.enumerate()):
        sys.exit(code)  # type: ignore[arg-type]  # what sys.exit was given
    if isinstance(code, str):
        print(code, file=sys.stderr)
    atexit._run_exitfuncs()
    leave(number)


def _start_timer(number: int) -> None:
    for late in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):  # it would change the exit code
        signal.signal(late, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, lambda *signalled: leave(number))
    signal.setitimer(signal.ITIMER_REAL, EXIT_SECONDS)


def guarded(program: str, work: Callable[[], int]) -> int:
    """Runs a command's `work` and returns its exit code. An error is printed as one line that begins with `program`."""
    try:
        return work()
    except ConfigError as error:
        return fail(str(error), 2, program)
    except EnvironmentFailed as error:
        return fail(str(error), 3, program)
    except CheckpointError as error:
        return fail(str(error), 5, program)
    except OSError as error:
        return fail(f"{error.filename or 'storage'}: {error.strerror or error}", 5, program)
    except KeyboardInterrupt as interrupt:
        return code_after(interrupt)
    except Exception:
        traceback.print_exc()
        return 6


def fail(message: str, code: int, program: str) -> int:
    """Prints one line on standard error; returns the exit code."""
    print(f"{program}: {message}", file=sys.stderr)
    return code


def print_skipped_checkpoints(reasons: Iterable[str], program: str) -> None:
    """Prints on standard error why newer checkpoints were not used, one line each."""
    for reason in reasons:
        print(f"{program}: skipped an unusable checkpoint: {reason}", file=sys.stderr)


@contextlib.contextmanager
def quiet(verbose: bool) -> Iterator[None]:
    """Hides what C++ code writes to standard error in its block, unless the block raises an error."""
    if verbose:
        yield
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except (ConfigError, EnvironmentFailed):
            raise  # the user's mistake: `guarded` prints one line
        except Exception:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
