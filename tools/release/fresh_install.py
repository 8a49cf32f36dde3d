"""Builds sdist and wheel, installs the wheel in a fresh environment, and trains a toy with it.

    python tools/release/fresh_install.py [EXTRA...]

This needs `pip install build`, some minutes, and disk space for one more TensorFlow. pip's own configuration applies.
The exit code is 1 at the first failure.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Runs the command and returns its exit code."""
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        python = here / "venv" / "bin"
        # Without PYTHONPATH, Python finds the installed package, not this checkout.
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

        def step(*command: str | Path) -> None:
            print("$", *command, flush=True)
            subprocess.run(command, cwd=here, env=clean, check=True)

        try:
            step(sys.executable, "-m", "build", "--outdir", here / "dist", ROOT)
            wheel, = (here / "dist").glob("*.whl")
            extras = f"[{','.join(sys.argv[1:])}]" if sys.argv[1:] else ""
            print("a fresh environment", flush=True)
            venv.create(here / "venv", with_pip=True)
            step(python / "pip", "install", "--quiet", f"{wheel}{extras}")
            for command in ("ga3c-train", "ga3c-eval", "ga3c-export", "ga3c-track"):
                step(python / command, "--version")
            step(python / "ga3c-train", "--game", "toy:catch", "--agents", "2", "--steps", "5000", "--run-dir", "run")
            step(python / "ga3c-eval", "run", "--episodes", "10")
            step(python / "ga3c-export", "run", "--no-onnx")
        except subprocess.CalledProcessError as error:
            print(f"failed with exit code {error.returncode}", file=sys.stderr)
            return 1
    print("fresh installation: good")
    return 0


if __name__ == "__main__":
    sys.exit(main())
