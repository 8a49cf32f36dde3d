"""A trained network that only predicts, and its exports as SavedModel and ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ga3c.algorithms.base import Algorithm, Tensor
from ga3c.algorithms.networks import Bound, build_network
from ga3c.algorithms.normalizing import RunningMoments, scaling
from ga3c.envs.base import EnvSpec
from ga3c.learner.backend import Answer
from ga3c.learner.tensorflow.device import share_gpus
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Outputs

_ONNX_OPSET = 17


class FixedInference:
    """The `Inference` of TensorFlow. Scaling of observations is a constant of the compiled function.

    network: the Keras model. function: a `tf.function` from observations (n, *shape), as the game gives them, to the
    algorithm's outputs by name.
    """

    def __init__(self, settings: Settings, env: EnvSpec, algorithm: Algorithm,
                 weights: Mapping[str, NDArray]) -> None:
        share_gpus()
        self.network = build_network(settings, env, algorithm.heads(env))
        moments = (RunningMoments("observation", env.observation_shape)
                   if settings.algorithm.normalize_observations else None)
        variables: dict[str, Any] = {f"network.{number:02d}": variable
                                     for number, variable in enumerate(self.network.weights)}
        variables |= moments.variables if moments else {}
        shapes = {name: (tuple(variable.shape), np.dtype(variable.dtype)) for name, variable in variables.items()}
        if shapes != {name: (array.shape, array.dtype) for name, array in weights.items()}:
            raise ValueError(f"its weights are not those of a '{self.network.name}' network for "
                             f"{env.name}{', its observations normalised' if moments else ''}")
        for name, variable in variables.items():
            variable.assign(weights[name])
        constants = [np.asarray(array) for array in scaling(moments.now())] if moments else []
        names = tuple(algorithm.outputs(env))

        network = Bound(self.network, (), constants)

        def act(observation: Tensor) -> dict[str, Tensor]:
            outputs = algorithm.act(network, observation)
            return {name: outputs[name] for name in names}

        observation = tf.TensorSpec((None, *env.observation_shape), env.observation_dtype, name="observation")
        self.function = tf.function(act, autograph=False, input_signature=[observation])
        self._act = self.function.get_concrete_function()

    def predict(self, observation: NDArray) -> Outputs:
        """See `Inference.predict`."""
        return _arrays(self._act(tf.constant(observation)))


def write_saved_model(path: Path, inference: FixedInference) -> Answer:
    """See `backend.write_saved_model`."""
    module = tf.Module()
    module.variables_of_the_network = inference.network.variables
    tf.saved_model.save(module, str(path), signatures={"serving_default": inference.function})
    loaded = tf.saved_model.load(str(path)).signatures["serving_default"]
    return lambda observation: _arrays(loaded(tf.constant(observation)))


def write_onnx(path: Path, inference: FixedInference) -> Answer:
    """See `backend.write_onnx`."""
    import onnxruntime
    import tf2onnx
    function = inference.function
    tf2onnx.convert.from_function(function, input_signature=function.input_signature, opset=_ONNX_OPSET,
                                  output_path=str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda observation: dict(zip(names, session.run(names, {"observation": observation}), strict=True))


def _arrays(tensors: Mapping[str, Tensor]) -> Outputs:
    return {name: tensor.numpy() for name, tensor in tensors.items()}
