"""Preparations before TensorFlow and Keras are imported: the library, the messages printed, the search for a GPU.

This module imports neither. Its decisions cannot be changed after the import.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
from pathlib import Path
from typing import Literal

from ga3c.settings.machine import processor_flags
from ga3c.settings.messages import ConfigError

Library = Literal["onednn", "eigen"]
"""What TensorFlow computes with on a processor: oneDNN, or its own code, which is Eigen's."""

BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})
"""Flags of processors that multiply bfloat16."""

_CUDA = ("libcuda.so.1", "libcudart.so.12", "libcublas.so.12", "libcufft.so.11", "libcusparse.so.12",
         "libcusolver.so.11", "libcudnn.so.9")  # TensorFlow 2.21 loads these before it uses a GPU
# Flags of processors on which TensorFlow 2.21 computes with oneDNN by default.
_ONEDNN = frozenset({"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"})
_SWITCH = "TF_ENABLE_ONEDNN_OPTS"


def fixed_library() -> Library | None:
    """Returns the library if `TF_ENABLE_ONEDNN_OPTS` or an import of TensorFlow has decided it, else None."""
    switch = os.environ.get(_SWITCH)
    if switch is None and "tensorflow" not in sys.modules:
        return None
    on = bool(_ONEDNN & processor_flags()) if switch is None else switch.lower() in ("1", "true")
    return "onednn" if on else "eigen"


def before_tensorflow(verbose: bool = False, library: Library | None = None) -> None:
    """Prepares the import of TensorFlow and Keras: they print errors only, unless `verbose`, and find a GPU.

    On processors they compute with `library`, unless the library is fixed already. None: TensorFlow's default.

    Keras computes with TensorFlow, whatever the environment or ~/.keras/keras.json says. Raises ConfigError if Keras
    has been imported already with another backend.

    TensorFlow 2.21 does not look for cuSOLVER where pip installs it, and then ignores the GPU. So cuSOLVER is loaded
    here.
    """
    imported = getattr(sys.modules.get("keras"), "config", None)
    if imported is not None and imported.backend() != "tensorflow":
        raise ConfigError(f"KERAS_BACKEND: Keras has been imported with {imported.backend()!r}; ga3c needs "
                          "'tensorflow': set os.environ['KERAS_BACKEND'] = 'tensorflow' before the first import of "
                          "Keras")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if verbose else "3")
    if library is not None and fixed_library() is None:
        os.environ[_SWITCH] = str(int(library == "onednn"))
    for solver in cuda_libraries("libcusolver.so.*"):
        with contextlib.suppress(OSError):  # TensorFlow then does without a GPU; ga3c-doctor says why
            ctypes.CDLL(str(solver), ctypes.RTLD_GLOBAL)


def cuda_libraries(name: str) -> list[Path]:
    """Returns the CUDA libraries that pip installed under this name, as "libcudnn.so.*". [] without the extra `gpu`."""
    found = importlib.util.find_spec("nvidia")
    places = found.submodule_search_locations if found is not None else None
    return sorted(library for place in places or () for library in Path(place).glob(f"*/lib/{name}"))


def missing_libraries() -> list[str]:
    """Returns the names of CUDA libraries that TensorFlow needs and that cannot be loaded."""
    missing = []
    for name in _CUDA:
        try:
            ctypes.CDLL(str(next(iter(cuda_libraries(name)), name)))
        except OSError as error:
            missing.append(str(error).split(":")[0])
    return missing
