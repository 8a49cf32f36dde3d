"""Devices, threads and precision that TensorFlow computes with."""

from __future__ import annotations

import contextlib

import tensorflow as tf

from ga3c.learner.tensorflow_import import BFLOAT16
from ga3c.settings.machine import processor_flags, usable_cores
from ga3c.settings.schema import AlgorithmSettings, Settings


def share_gpus() -> None:
    """Makes TensorFlow take GPU memory as needed instead of all at once. Does nothing after the first tensor."""
    with contextlib.suppress(RuntimeError):
        for device in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(device, True)


def start_tensorflow(settings: Settings) -> None:
    """Sets device and thread options. Call it before the first tensor of the process."""
    share_gpus()
    if settings.workers_learn:
        tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(operation_threads(settings))
    # A call that is not `_inline` holds one of these threads until it ends. The condition within an update always
    # holds one more. With fewer threads predictions wait for updates; with one thread an update waits for itself.
    # Each thread keeps its own buffers for every batch size that it has met, so there are no more threads than that.
    predictors, trainers = settings.thread_capacity
    tf.config.threading.set_inter_op_parallelism_threads(predictors + 2 * trainers)
    if settings.run.serial:
        tf.config.experimental.enable_op_determinism()


def operation_threads(settings: Settings) -> int:
    """Returns the threads inside one operation: `device_threads`, or 1 where each process or thread computes alone."""
    if settings.run.serial or settings.workers_learn:
        return 1
    # With one pass, agents need the other half. With several, the one training thread would be the bottleneck.
    usual = usable_cores() if settings.algorithm.passes > 1 else max(1, usable_cores() // 2)
    return settings.run.device_threads or usual


def precision(settings: AlgorithmSettings) -> str:
    """Returns `settings.precision` on this machine: "auto" is bfloat16 if the processor multiplies it, else float32.

    On a GPU "auto" is float32: whether small layers gain from casts there has not been measured.
    """
    if settings.precision != "auto":
        return settings.precision
    if tf.config.get_visible_devices("GPU"):
        return "float32"
    return "bfloat16" if BFLOAT16 & processor_flags() else "float32"
