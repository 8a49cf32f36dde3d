"""Compiles and calls functions of tensors, and brings arrays to the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ga3c.algorithms.base import Tensor
from ga3c.learner.backend import Observed

Compiled = Callable[..., list[Tensor]]

_SHARED_FROM = 2**16  # bytes of an array in a batch; copying a smaller one is faster than sharing it


class Compiler:
    """Compiles for the available device. device: its name, "CPU" without a GPU."""

    def __init__(self) -> None:
        gpus = tf.config.list_logical_devices("GPU")
        self.device = gpus[0].name if gpus else "CPU"
        # On processors a call runs its operations one after the other in one thread. Whole calls run in parallel.
        self._executor = "" if gpus else "SINGLE_THREADED_EXECUTOR"

    def compiled(self, function: Callable[..., list[Tensor]], signature: Sequence[tf.TensorSpec]) -> tuple[
            Compiled, list[Tensor]]:
        """Returns the compiled function, and symbolic outputs that have its shapes and dtypes."""
        with tf.experimental.function_executor_type(self._executor):  # a conditional takes its executor when traced
            made = tf.function(function, input_signature=signature, autograph=False).get_concrete_function()
        return self._inline(made), made.outputs

    def _inline(self, function: tf.types.experimental.ConcreteFunction) -> Compiled:
        """Returns a call that computes the outputs in the calling thread, if the device is a processor.

        TensorFlow's own call hands over to another thread. That costs half a millisecond when emulators fill the
        caches.
        """
        if not self._executor:
            return lambda *inputs: tf.nest.flatten(function(*inputs))
        captured, types = function.captured_inputs, [output.dtype for output in function.outputs]
        executor = self._executor
        return lambda *inputs: tf.raw_ops.StatefulPartitionedCall(
            args=[*inputs, *captured], Tout=types, f=function, executor_type=executor)

    def shared(self, observation: NDArray) -> Observed:
        """Wraps an array that is overwritten between calls.

        On processors, returns a tensor over the same memory: wrap the array once, then use the tensor in every call.
        Returns the array itself where TensorFlow must copy it.
        """
        if self._executor and observation.size and observation.flags.carray and not observation.ctypes.data % 64:
            return tf.experimental.dlpack.from_dlpack(observation.__dlpack__())
        return observation

    def tensor(self, array: Observed) -> Tensor:
        """Returns a tensor of an array that must not change until the call is over."""
        if isinstance(array, np.ndarray):
            array = self.shared(array)
        return tf.constant(array) if isinstance(array, np.ndarray) else array

    def tensors(self, arrays: Sequence[NDArray]) -> list[Tensor]:
        """Returns tensors of arrays that must not change until the call is over. Small arrays are copied."""
        return [self.tensor(array) if array.nbytes >= _SHARED_FROM else tf.constant(array) for array in arrays]
