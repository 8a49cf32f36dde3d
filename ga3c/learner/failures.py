"""The device's failures by name: lost, stuck, or without memory for what is asked of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NoReturn

import tensorflow as tf


class DeviceFailed(Exception):
    """The device is lost, stuck, or cannot do what is asked of it; the message is one line with a way on."""


class TooLarge(DeviceFailed):
    """The device has no memory for so much at once. An update that raises it is taken not to have been made, but for
    the minibatches before it.
    """


# What a device raises, as against a mistake in what it was given; and how a copy to it, or cuDNN, says so.
_LOST = (tf.errors.InternalError, tf.errors.UnavailableError, tf.errors.UnknownError, tf.errors.AbortedError,
         tf.errors.UnimplementedError, tf.errors.NotFoundError, tf.errors.DataLossError,
         tf.errors.FailedPreconditionError)
_FULL, _NO_CUDNN = "Dst tensor is not initialized", "DNN"


def fail(error: tf.errors.OpError, what: str) -> NoReturn:
    """Raises TooLarge or DeviceFailed if the error is the device's failure at `what`, else the error."""
    if isinstance(error, tf.errors.ResourceExhaustedError) or _FULL in error.message:
        raise TooLarge(f"the device has no memory for {what}; end other programs on it, or give a smaller "
                       "--training-batch-min, --envs-per-agent or --prediction-batch-max") from error
    if not isinstance(error, _LOST) and _NO_CUDNN not in error.message:
        raise error
    cause = " ".join(error.message.split())[:200]
    raise DeviceFailed(f"the device failed at {what}: {cause}; ga3c-doctor tries each device, and with "
                       "CUDA_VISIBLE_DEVICES=-1 the processors do the work") from error


@contextlib.contextmanager
def on_device(what: str) -> Iterator[None]:
    """Names the failures of the device at `what`. Raises TooLarge, DeviceFailed."""
    try:
        yield
    except tf.errors.OpError as error:
        fail(error, what)
