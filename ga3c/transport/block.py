"""A block of shared memory without a file name: arrays by name, shared by every process that it is passed to."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Mapping
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ga3c.transport.fields import Field

ALIGNMENT = 64  # bytes; TensorFlow uses memory without a copy only if it is aligned so


class Block:
    """One array of zeros for each field. Passing the block to a child process, as an argument of Process, shares it.

    Each array begins on a boundary of `ALIGNMENT` bytes.

    Args:
        name: of the memory in /proc.
    """

    def __init__(self, name: str, fields: Mapping[str, Field]) -> None:
        self._fields = dict(fields)
        # A page takes memory only once it is written to, so unused slots take none. Not in /dev/shm, which may be
        # small.
        self._file = os.memfd_create(name)
        weakref.finalize(self, os.close, self._file)
        os.ftruncate(self._file, max(1, sum(_rounded(field.nbytes) for field in fields.values())))
        self.arrays = self._mapped(self._file)

    def _mapped(self, file: int) -> dict[str, NDArray]:
        block = np.frombuffer(mmap.mmap(file, 0), np.uint8)
        arrays = dict[str, NDArray]()
        offset = 0
        for name, field in self._fields.items():
            arrays[name] = block[offset:offset + field.nbytes].view(field.dtype).reshape(field.shape)
            offset += _rounded(field.nbytes)
        return arrays

    def __getstate__(self) -> dict[str, Any]:
        return {"_fields": self._fields, "_file": DupFd(self._file)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        file = state["_file"].detach()
        self._fields = state["_fields"]
        self.arrays = self._mapped(file)
        os.close(file)  # the mapping has its own descriptor


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
