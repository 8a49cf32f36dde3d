"""Devices, threads and precision that TensorFlow computes with."""

from __future__ import annotations

import contextlib

import tensorflow as tf

from ga3c.learner.backend import Examined
from ga3c.learner.tensorflow.loading import BFLOAT16
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
    if settings.schedule.agents_learn:
        tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(operation_threads(settings))
    # A call that is not `_inline` holds one of these threads until it ends. The condition within an update always
    # holds one more. With fewer threads predictions wait for updates; with one thread an update waits for itself.
    # Each thread keeps its own buffers for every batch size that it has met, so there are no more threads than that.
    _, predictors, trainers = settings.schedule.most
    tf.config.threading.set_inter_op_parallelism_threads(predictors + 2 * trainers)
    if settings.run.serial:
        tf.config.experimental.enable_op_determinism()


def examine_devices() -> Examined:
    """See `backend.examine`."""
    share_gpus()
    gpus = tf.config.list_physical_devices("GPU")
    names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
    failures = {device: why for device in ["CPU:0", *(f"GPU:{number}" for number in range(len(gpus)))]
                if (why := _failure(device))}
    return Examined(tf.__version__, names, failures)


def _failure(device: str) -> str:
    """Computes something small on the device and returns what is wrong with it; "" if nothing."""
    try:
        with tf.device(device):
            ones = tf.ones((64, 64))
            total = float(tf.reduce_sum(ones @ ones))
            # Convolutions use another library than matrix products.
            convolved = float(tf.reduce_sum(tf.nn.conv2d(tf.ones((1, 8, 8, 1)), tf.ones((3, 3, 1, 1)), 1, "VALID")))
    except Exception as error:  # a broken device raises anything
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ("" if (total, convolved) == (64**3, 6 * 6 * 9) else
            f"64 x 64 ones, multiplied, add up to {total:g}, 8 x 8, convolved with 3 x 3, to {convolved:g}")


def operation_threads(settings: Settings) -> int:
    """Returns the threads inside one operation: `device_threads`, or 1 where each process or thread computes alone."""
    if settings.run.serial or settings.schedule.agents_learn:
        return 1
    # With one pass, agents need the other half. With several, or a replay, the training thread would be the bottleneck.
    long = settings.algorithm.passes > 1 or settings.schedule.remembers
    usual = usable_cores() if long else max(1, usable_cores() // 2)
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
