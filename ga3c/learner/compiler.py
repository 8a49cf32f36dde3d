"""How functions of tensors are compiled and called, and how arrays come to the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ga3c.algorithms.base import Tensor

Observed = NDArray | Tensor
Compiled = Callable[..., list[Tensor]]

_SHARED_FROM = 2**16  # bytes of an array of a batch; a smaller one is copied sooner than handed over


class Compiler:
    """Compiles for the device there is. device: its name, "CPU" without a GPU."""

    def __init__(self) -> None:
        gpus = tf.config.list_logical_devices("GPU")
        self.device = gpus[0].name if gpus else "CPU"
        # Operations one after the other in one thread: on processors what runs at the same time are whole calls.
        self._executor = "" if gpus else "SINGLE_THREADED_EXECUTOR"

    def compiled(self, function: Callable[..., list[Tensor]], signature: Sequence[tf.TensorSpec]) -> tuple[
            Compiled, list[Tensor]]:
        """The function, and what its outputs look like."""
        with tf.experimental.function_executor_type(self._executor):  # it must know a conditional when it is traced
            made = tf.function(function, input_signature=signature, autograph=False).get_concrete_function()
        return self._inline(made), made.outputs

    def _inline(self, function: tf.types.experimental.ConcreteFunction) -> Compiled:
        """Its outputs, computed in the thread that calls, where that is a processor's.

        TensorFlow's own call hands over to another thread, which costs half a millisecond when the caches are full of
        emulators.
        """
        if not self._executor:
            return lambda *inputs: tf.nest.flatten(function(*inputs))
        captured, types = function.captured_inputs, [output.dtype for output in function.outputs]
        executor = self._executor
        return lambda *inputs: tf.raw_ops.StatefulPartitionedCall(
            args=[*inputs, *captured], Tout=types, f=function, executor_type=executor)

    def shared(self, observation: NDArray) -> Observed:
        """In the place of an array that is overwritten between calls.

        On processors it is the memory itself, looked at but once; the array where TensorFlow must copy it.
        """
        if self._executor and observation.size and observation.flags.carray and not observation.ctypes.data % 64:
            return tf.experimental.dlpack.from_dlpack(observation.__dlpack__())
        return observation

    def tensor(self, array: Observed) -> Tensor:
        """Of what stays as it is until the call is over."""
        if isinstance(array, np.ndarray):
            array = self.shared(array)
        return tf.constant(array) if isinstance(array, np.ndarray) else array

    def tensors(self, arrays: Sequence[NDArray]) -> list[Tensor]:
        """Of what stays as it is until the call is over; what is small is copied."""
        return [self.tensor(array) if array.nbytes >= _SHARED_FROM else tf.constant(array) for array in arrays]
