"""The tools as programs of their own."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path
from unittest import mock

TOOLS = Path(__file__).parents[1] / "tools"


def tool(name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs e.g. "bench/roofline" to its end."""
    return subprocess.run([sys.executable, str(TOOLS / f"{name}.py"), *map(str, arguments)], capture_output=True,
                          text=True, check=False, env={**os.environ, **environment})


def tool_here(name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a tool to its end in this process, which has imported most of what it needs."""
    argv, out, err, code = [str(TOOLS / f"{name}.py"), *map(str, arguments)], io.StringIO(), io.StringIO(), 0
    with (mock.patch.object(sys, "argv", argv), mock.patch.dict(os.environ, environment),
          contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)):
        try:
            runpy.run_path(argv[0], run_name="__main__")
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
            if isinstance(end.code, str):
                print(end.code, file=sys.stderr)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())
