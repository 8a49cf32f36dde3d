"""The interface of a backend: it holds the variables of a model, and computes predictions and updates.

Learner, workers, policies and commands know this module alone; `learner/tensorflow/` does what it says. Importing this
module loads no framework, so that commands report mistakes at once. The order is: `prepare`, `start`, then one of the
constructors below.

Another backend fulfils `Backend` in a package of its own beside `tensorflow/`, and is chosen in the functions below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from numpy.typing import NDArray

from ga3c.learner.tensorflow import loading
from ga3c.learner.tensorflow.loading import Library as Library
from ga3c.settings.schema import Settings

if TYPE_CHECKING:
    from ga3c.algorithms.base import Algorithm, Rates
    from ga3c.envs.base import EnvSpec
    from ga3c.learner.tensorflow.kernels import Kernel
    from ga3c.transport.fields import Field, Outputs
    from ga3c.transport.slots import Batch

Tensor = Any
"""An array of the backend's framework."""

Observed = Any
"""Observations for `Backend.predict`: an array, or what `Backend.shared` returns for one."""

Weights = Sequence[Tensor]
"""What predictions are made with: the network's weights, folded once an update, and the scaling of observations.

They never change: an update makes new ones. So weights that are kept are a snapshot.
"""


class Inputs(NamedTuple):
    """The fields of a batch that an update reads, on the device, and the agent steps of the batch."""

    fields: list[Tensor]
    agent_steps: int


class Updated(NamedTuple):
    """The result of one update.

    metrics: means over the finite minibatches of the algorithm's metrics and of `gradient_norm`; also `passes`. Nothing
    has changed if a metric is not finite. skipped: minibatches that were not finite, in an update that was made from
    the others. minibatches: all that were trained on. rows: what the loss says of each row (`Loss.rows`), by name,
    (n,) for the rows that `prepare` returned; NaN for those that no minibatch had.

    With `settings.run.norms` the metrics include `weight_norm`, before a step of the optimizer, and `step_norm`, of the
    step itself. All norms are Euclidean, over all trained weights together. The gradient's norm is from before
    clipping.
    """

    metrics: dict[str, float]
    skipped: int = 0
    minibatches: int = 1
    rows: Mapping[str, NDArray] = MappingProxyType({})


class Gradients(NamedTuple):
    """The gradients of one batch, for an update that the caller makes.

    metrics: the algorithm's, and `gradient_norm`. gradients: one for each trainable variable. state: new values of
    other variables, by name.
    """

    metrics: dict[str, float]
    gradients: list[NDArray]
    state: dict[str, NDArray]


class Backend(Protocol):
    """The variables of a model on a device, and predictions.

    `predict` and `inputs` may be called from any thread at any time. For all other methods the caller holds a lock.
    Every method raises DeviceFailed if the device fails. precision: of the network's inner layers, if it is one of
    ours. device: its name, "CPU" for processors.
    """

    precision: str
    device: str

    def shared(self, observation: NDArray) -> Observed:
        """Wraps an array that is overwritten between predictions, once, for `predict`."""

    def predict(self, observation: Observed, weights: Weights) -> Outputs:
        """Returns the outputs by name for observations (n, *shape), `shared` or not."""

    def publish(self) -> Weights:
        """Returns the weights to predict with, of the variables as they are now."""

    def inputs(self, batch: Batch) -> Inputs:
        """Returns what an update reads of `batch`, which must not change until the update has ended."""

    def arrays(self) -> dict[str, NDArray]:
        """Returns a copy of all variables by name, as in "network.00" and "optimizer.00"."""

    def assign(self, arrays: Mapping[str, NDArray]) -> None:
        """Sets the variables that are named in `arrays`. Their shapes must fit, see `matching_arrays`."""

    def matching_arrays(self, arrays: Mapping[str, NDArray], only: tuple[str, ...] = ("",)) -> dict[str, NDArray]:
        """Returns the `arrays` of these variables, or of those whose names begin with one of `only`.

        Arrays of other owners are left out; the owner is the first part of a name. Running moments start at zero if
        `arrays` has none, as their setting was off. Raises ValueError if anything else is missing or has another shape.
        """

    def statistics(self) -> list[tuple[str, ...]]:
        """Returns, for each trainable variable of the network, its name and those of the optimizer's statistics of it.

        The statistics are the mean square, or Adam's two moments.
        """


class UpdatingBackend(Backend, Protocol):
    """A backend that makes updates."""

    def update(self, inputs: Inputs, rates: Rates, target: Weights, seed: Sequence[int],
               over: Callable[[], bool]) -> Updated:
        """Makes all passes over a batch. Predictions do not change before the caller uses what `publish` returns then.

        target: the weights of the target network, as `publish` returned them once.

        A minibatch with a metric that is not finite changes nothing. `seed` shuffles the rows before each pass, if
        there are several minibatches. A batch that is not full has fewer minibatches, so that none is much smaller than
        usual. `over` is called after each minibatch: true ends the update early. Raises TooLarge if the device has no
        memory for it; earlier minibatches have changed the variables then.
        """


class DifferentiatingBackend(Backend, Protocol):
    """A backend that computes gradients. Its caller makes the updates. metrics: names of an update's metrics."""

    @property
    def metrics(self) -> tuple[str, ...]: ...  # noqa: E704

    def gradients(self, inputs: Inputs, rates: Rates) -> Gradients:
        """Returns the gradients of one batch, over all its rows at once. No trainable variable changes."""


class Inference(Protocol):
    """A trained network with fixed weights. network: the Keras model."""

    network: Any

    def predict(self, observation: NDArray) -> Outputs:
        """Returns the algorithm's outputs by name for observations (n, *shape) of the environment's dtype."""


Answer = Callable[[NDArray], "Outputs"]
"""An exported model that was loaded again: observations (n, *shape) to outputs by name."""


class Examined(NamedTuple):
    """What `ga3c-doctor` reports. failures: what is wrong, by device."""

    version: str
    gpus: list[str]
    failures: dict[str, str]


# ------------------------------------------------------------------------------------- before the framework is loaded

def prepare(verbose: bool = False, library: Library | None = None) -> None:
    """Prepares the import of the framework, see `loading.before_tensorflow`. Call it before any import of Keras."""
    loading.before_tensorflow(verbose, library)


def fixed_library() -> Library | None:
    """Returns the library that this process computes with, once that is decided; else None."""
    return loading.fixed_library()


def choose_kernel(settings: Settings, env: EnvSpec, note: Callable[[str], None],
                  announce: Callable[[str], None] = lambda line: None, stop: Sequence[int] = ()) -> Kernel:
    """Returns the library and precision to compute with on this machine, see `kernels.choose`. Raises ConfigError."""
    from ga3c.learner.tensorflow.kernels import choose
    return choose(settings, env, note, announce, stop)


def missing_libraries() -> list[str]:
    """Returns the libraries of a GPU that cannot be loaded."""
    return loading.missing_libraries()


# ------------------------------------------------------------------------------------- these load it

def start(settings: Settings) -> None:
    """Sets devices and threads. Call it before the first tensor of the process."""
    from ga3c.learner.tensorflow.device import start_tensorflow
    start_tensorflow(settings)


def make_updating(settings: Settings, env: EnvSpec, algorithm: Algorithm,
                  fields: Mapping[str, Field]) -> UpdatingBackend:
    """Builds the network with its optimizer and compiles predictions and updates. Raises ConfigError.

    fields: those of one rollout, or whatever the first axis of a batch counts, by name.
    """
    from ga3c.learner.tensorflow import backend
    return backend.Updating(settings, env, algorithm, fields)


def make_differentiating(settings: Settings, env: EnvSpec, algorithm: Algorithm,
                         fields: Mapping[str, Field]) -> DifferentiatingBackend:
    """Builds the network with its optimizer's statistics and compiles predictions and gradients. Raises ConfigError.

    fields: see `make_updating`.
    """
    from ga3c.learner.tensorflow import backend
    return backend.Differentiating(settings, env, algorithm, fields)


def make_inference(settings: Settings, env: EnvSpec, algorithm: Algorithm,
                   weights: Mapping[str, NDArray]) -> Inference:
    """Builds the network with these weights, as `Backend.arrays` names them, and compiles its predictions.

    It computes in float32, so that it gives the same numbers on every machine. Raises ValueError if the weights are of
    another network, ConfigError if the network cannot be built.
    """
    from ga3c.learner.tensorflow.inference import FixedInference
    return FixedInference(settings, env, algorithm, weights)


def write_saved_model(path: Path, inference: Any) -> Answer:
    """Writes an `Inference` as TensorFlow SavedModel and loads it again."""
    from ga3c.learner.tensorflow import inference as exporting
    return exporting.write_saved_model(path, inference)


def write_onnx(path: Path, inference: Any) -> Answer:
    """Writes an `Inference` as ONNX model and loads it again. Needs the extra `export`."""
    from ga3c.learner.tensorflow import inference as exporting
    return exporting.write_onnx(path, inference)


def examine() -> Examined:
    """Computes something small on every device. Raises what a broken installation raises."""
    from ga3c.learner.tensorflow.device import examine_devices
    return examine_devices()
