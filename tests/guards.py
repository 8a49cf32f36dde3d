"""Shows that the tests named in docs/troubleshooting.md can fail: removes one guard at a time and runs its test.

    python tests/guards.py [ROW...]             all rows take a quarter of an hour on two cores

The guards are listed in `guards_list.py` and `guards_users.py`. The program works on a copy. First all tests have to
pass with the guards in place. Then it prints one line for each guard: row, what was removed, the test, and how it
failed. The exit code is 1 if a test passed without its guard. A guard that is not found in the code is an error, so
the list follows the code. Row 30 is guarded by the test of row 6; row 36 is an hour of `tools/bench/soak.py`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from guards_list import SERVICE_GUARDS, Guard
from guards_users import USERS_GUARDS

HERE = Path(__file__).resolve().parent.parent
GUARDS = [*SERVICE_GUARDS, *USERS_GUARDS]


def place(guard: Guard) -> str:
    """The guard's test, as pytest names it. Raises LookupError unless exactly one file has it."""
    file, _, test = guard.test.rpartition("::")
    name = test.split("[")[0]
    found = [path for path in sorted((HERE / "tests").rglob(file or "test_*.py"))
             if re.search(rf"^(def |)({re.escape(name)})\b", path.read_text(encoding="utf-8"), re.MULTILINE)]
    if len(found) != 1:
        raise LookupError(f"row {guard.row}, {guard.taken}: {name} is in {len(found)} files")
    return f"{found[0].relative_to(HERE)}::{test}"


def without(guard: Guard, copy: Path) -> None:
    """Removes the guard from the package in `copy`."""
    for module, what, instead in guard.edits:
        path = copy / "ga3c" / f"{module}.py"
        text = path.read_text(encoding="utf-8")
        if text.count(what) != 1:
            sys.exit(f"row {guard.row}, {guard.taken}: {what!r} is {text.count(what)} times in {module}.py")
        path.write_text(text.replace(what, instead), encoding="utf-8")


def outcome(tests: list[str], copy: Path, seconds: float) -> tuple[int, str]:
    """(exit code of pytest, how a test failed) of `tests` in `copy`; 1: a test failed, or did not end in time."""
    command = [sys.executable, "-m", "pytest", "-m", "", "-n", "0", "-x", "-p", "no:cacheprovider", "-o", "timeout=100",
               "-o", "timeout_method=thread", *tests]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=copy, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, "PYTHONPATH": str(copy)})
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = 1  # it hangs, which is a failure
        finally:
            for left in psutil.process_iter():  # its processes; some have sessions of their own
                with contextlib.suppress(psutil.Error):
                    if left.environ().get("PYTHONPATH", "").split(os.pathsep)[0] == str(copy):
                        left.kill()
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    found = re.findall(r"^E   +(.+)$|^(.*Timeout.*)$", text, re.MULTILINE)
    said = next((first or second for first, second in found), (text.strip().splitlines() or ["it hangs"])[-1])
    return code, " ".join(said.split()).strip("+ ")[:100]


def copied(copy: Path) -> None:
    """Copies what the tests need."""
    for name in ("ga3c", "tests", "tools", "docs", "setup.cfg", "config.yaml", "README.md"):
        source = HERE / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(source, copy / name)


def main() -> int:
    """The command; returns its exit code."""
    rows = {int(row) for row in sys.argv[1:]}
    guards = [guard for guard in GUARDS if not rows or guard.row in rows]
    tests = list(dict.fromkeys(map(place, guards)))
    with tempfile.TemporaryDirectory() as directory:
        copied(Path(directory))
        code, said = outcome(tests, Path(directory), 60.0 * len(tests))
    if code:
        sys.exit(f"with all guards in place: {said}")
    print(f"with all guards in place all {len(tests)} tests pass", flush=True)
    passed = 0
    for guard in guards:
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory)
            copied(copy)
            without(guard, copy)
            began = time.monotonic()
            code, said = outcome([place(guard)], copy, 130.0)
        result = "fails" if code == 1 else "PASSES" if code == 0 else f"BROKEN ({code})"
        passed += code != 1
        print(f"{guard.row:>2}  {guard.taken}: {guard.test.split('[')[0]} {result} after "
              f"{time.monotonic() - began:.0f} s: {said}", flush=True)
    print(f"{passed} of {len(guards)} tests did not fail" if passed else
          f"each of the {len(guards)} tests fails without its guard")
    return int(passed > 0)


if __name__ == "__main__":
    sys.exit(main())
