"""Files that are the old ones until they are the new ones, whatever happens meanwhile."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replaces the file in one step. One process at a time may write it. Raises OSError."""
    aside = path.with_name(f".{path.name}")
    aside.write_text(text, encoding="utf-8")
    sync(aside)
    aside.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Has the disk hold the file or directory as it is now. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
