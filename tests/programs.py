"""The tools as programs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[1] / "tools"


def tool(name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs e.g. "bench/roofline" to its end."""
    return subprocess.run([sys.executable, str(TOOLS / f"{name}.py"), *map(str, arguments)], capture_output=True,
                          text=True, check=False, env={**os.environ, **environment})
