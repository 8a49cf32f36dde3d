"""What every command does around its work: exit codes, one line for a mistake, quiet imports.

Exit codes: 0 done; 2 usage or settings; 3 agents lost, or an environment failed; 4 diverged; 5 storage; 6 device or
internal; 130 and 143 after SIGINT and SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator

from ga3c.envs.containment import EnvironmentFailed
from ga3c.learner.checkpoint import CheckpointError
from ga3c.settings.messages import ConfigError


def guarded(program: str, work: Callable[[], int]) -> int:
    """Does a command's `work`, returns its exit code; a mistake or a failure is one line that begins with `program`."""
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
    except KeyboardInterrupt:
        return 130
    except Exception:
        traceback.print_exc()
        return 6


def fail(message: str, code: int, program: str) -> int:
    """Prints one line on standard error; returns the exit code."""
    print(f"{program}: {message}", file=sys.stderr)
    return code


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
        except (ConfigError, EnvironmentFailed):
            raise  # the user's mistake: one line, from us
        except BaseException:
            held.seek(0)
            os.write(stderr, held.read())
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
