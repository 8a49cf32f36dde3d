"""Atomic writes: after a crash a file has its old content or its new content, never a part."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replaces the file in one step. Only one process at a time may write it. Raises OSError."""
    aside = path.with_name(f".{path.name}")
    aside.write_text(text, encoding="utf-8")
    sync(aside)
    aside.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Writes the file or directory through to the disk (fsync). Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
