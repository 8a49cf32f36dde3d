"""The console scripts that setup.cfg names."""

from __future__ import annotations

import configparser
from pathlib import Path

ROOT = Path(__file__).parents[1]
_SETUP = configparser.ConfigParser()
_SETUP.read(ROOT / "setup.cfg")
COMMANDS = dict(line.split(" = ") for line in _SETUP["options.entry_points"]["console_scripts"].strip().splitlines())
