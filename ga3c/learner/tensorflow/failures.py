"""Errors of TensorFlow that are failures of the device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import tensorflow as tf

from ga3c.learner.failures import DeviceFailed, TooLarge

# Errors of the device, not of its inputs. Then the words in the messages of a failed copy to it, and of cuDNN.
_LOST = (tf.errors.InternalError, tf.errors.UnavailableError, tf.errors.UnknownError, tf.errors.AbortedError,
         tf.errors.UnimplementedError, tf.errors.NotFoundError, tf.errors.DataLossError,
         tf.errors.FailedPreconditionError)
_FULL, _NO_CUDNN = "Dst tensor is not initialized", "DNN"


def fail(error: tf.errors.OpError, what: str) -> NoReturn:
    """Raises TooLarge or DeviceFailed if the device itself failed at `what`. Raises `error` otherwise."""
    if isinstance(error, tf.errors.ResourceExhaustedError) or _FULL in error.message:
        raise TooLarge(f"the device has no memory for {what}; end other programs on it, or give a smaller "
                       "--envs-per-agent; with --schedule queues --training-batch-min or --prediction-batch-max, with "
                       "others --rollout-length") from error
    if not isinstance(error, _LOST) and _NO_CUDNN not in error.message:
        raise error
    cause = " ".join(error.message.split())[:200]
    raise DeviceFailed(f"the device failed at {what}: {cause}; ga3c-doctor tries each device, and with "
                       "CUDA_VISIBLE_DEVICES=-1 the processors do the work") from error


@contextlib.contextmanager
def on_device(what: str) -> Iterator[None]:
    """Turns errors of the device at `what` into TooLarge or DeviceFailed."""
    try:
        yield
    except tf.errors.OpError as error:
        fail(error, what)
