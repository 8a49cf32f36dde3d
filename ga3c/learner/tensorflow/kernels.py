"""Kernels: the ways in which a processor can compute predictions and updates. The fastest is found once.

A kernel is a library and a precision, as in "onednn bfloat16". TensorFlow uses one library for the whole life of a
process. Its default is oneDNN where the processor has instructions for neural networks, else its own code, Eigen's. So
each library is measured in a child process, before this process imports TensorFlow. The result is kept
in `kernels.json` beside the tuned counts, for this processor, network and size of update:

    {"machine": "host", "processor": "AMD EPYC", "network": "small", ..., "kernel": ["onednn", "float32"]}

`choose` is for the command, `measure` for the child processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ga3c.envs.base import EnvSpec
from ga3c.envs.child_process import Caller, ChildEnded, ChildProcess, ChildSilent
from ga3c.learner.tensorflow.loading import BFLOAT16, Library, before_tensorflow, fixed_library
from ga3c.settings import remembered
from ga3c.settings.algorithms import facts
from ga3c.settings.machine import processor, processor_flags
from ga3c.settings.messages import ConfigError
from ga3c.settings.schema import Settings
from ga3c.transport.fields import Field
from ga3c.transport.slots import Batch, aligned

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.2}
"""The most that outputs and gradient may differ from the reference's, relative to its norm."""

ADVANTAGE = 0.97  # another library is chosen only if it takes at most this share of the usual one's time
ROUNDS, SECONDS = 5, 0.15  # rounds, and seconds of each kernel in a round
DEADLINE = 40.0   # seconds for everything; a busy machine measures again at the next run
_PREDICTED = 32   # observations of a measured prediction

_MEASURING = "ga3c.learner.tensorflow.kernels:measure"
_FILE, _WHAT = "kernels.json", "Kernels"
_SHAPE = ("algorithm", "passes", "minibatches", "network", "large_stride", "precision", "envs_per_agent",
          "rollout_length", "device_threads")

TakesLine = Callable[[str], None]


class Kernel(NamedTuple):
    """A library, and a precision of the network's inner layers: with oneDNN "auto" is the one for the processor."""

    library: Library
    precision: str

    def __str__(self) -> str:
        return " ".join(self)


class Answers(NamedTuple):
    """Results of one kernel. All kernels start from the same weights, observations and batch."""

    outputs: NDArray[np.float32]
    gradient: NDArray[np.float32]

    def agree(self, reference: Answers, precision: str) -> bool:
        """Returns whether outputs and gradient each differ from the reference's by no more than `TOLERANCE`."""
        return all(bool(np.linalg.norm(ours - theirs) <= TOLERANCE[precision] * np.linalg.norm(theirs))
                   for ours, theirs in zip(self, reference, strict=True))


def usual(settings: Settings, spec: EnvSpec) -> Kernel:
    """Returns the kernel without a measurement: the library in the settings, else oneDNN for images, Eigen for vectors.

    oneDNN has bfloat16 only on processors with AVX-512. Eigen computes in bfloat16 only if the setting says so: it is
    several times slower there than in float32. Raises ConfigError if the library in the settings is unavailable.
    """
    named, fixed, precision = settings.run.kernels, fixed_library(), settings.algorithm.precision
    images = len(spec.observation_shape) == 3
    able = precision != "bfloat16" or "avx512bw" in processor_flags()
    if named == "onednn" and images and not able:
        raise ConfigError("kernels: onednn has no bfloat16 on this processor; take eigen, or another precision")
    if named in ("onednn", "eigen") and fixed not in (None, named):
        raise ConfigError(f"kernels: {named} is not available: this process computes with {fixed} already; unset "
                          "TF_ENABLE_ONEDNN_OPTS, and import TensorFlow only afterwards")
    by_rule: Library = "onednn" if named == "onednn" or named != "eigen" and images and able else "eigen"
    library = fixed or by_rule
    return Kernel(library, "float32" if library == "eigen" and precision == "auto" else precision)


def choose(settings: Settings, spec: EnvSpec, note: TakesLine, announce: TakesLine = lambda line: None,
           stop: Sequence[int] = ()) -> Kernel:
    """Returns the kernel for a run. For built-in image networks it is remembered or measured, else it is the usual one.

    Call it before TensorFlow is imported. `announce` takes a line before a measurement, `note` one line for each
    result. The measurement ends early once a descriptor in `stop` can be read. Raises ConfigError.
    """
    by_rule = usual(settings, spec)
    if settings.run.kernels in ("onednn", "eigen") or settings.run.serial:
        return by_rule
    kernels = _candidates(settings, spec)
    if len(kernels) < 2:
        return by_rule
    flat = settings.flat()
    kind = {**remembered.this_machine(), "processor": processor(), "tensorflow": version("tensorflow"),
            "observation": list(spec.observation_shape), "actions": int(spec.n_actions),
            "update": _update_steps(settings), **{name: flat[name] for name in _SHAPE}}
    if settings.run.kernels == "auto":
        for entry in remembered.recalled(_FILE, kind, _WHAT, note):
            for kernel in (*kernels, by_rule):
                if entry.get("kernel") == list(kernel):
                    return kernel
    announce(f"measuring {len(kernels)} kernels for this machine and network")
    times = measured(settings, spec, kernels, stop)
    kernel = fastest(times or {}, by_rule)
    if times:
        shown = ", ".join(f"{kernel} {us:.0f}" for kernel, us in times.items())
        note(f"Kernels, us of processor time an agent step: {shown}; taken: {kernel}")
    elif times is not None:
        note(f"No kernel could be measured; taken: {kernel}")
    if settings.tuning.remember and (times or times is None):
        us_by_kernel = {str(measured_kernel): round(us, 1) for measured_kernel, us in (times or {}).items()}
        remembered.remember(_FILE, kind, {"kernel": list(kernel), "us": us_by_kernel}, _WHAT, note)
    return kernel


def _update_steps(settings: Settings) -> int:
    """Returns the agent steps of one update of the run."""
    return settings.schedule.rollouts * settings.algorithm.rollout_length * settings.agents.envs_per_agent


def minibatch(settings: Settings) -> tuple[int, int]:
    """Returns (rollouts, steps in each) that have at least the agent steps of a minibatch of the run."""
    length, n_envs = settings.algorithm.rollout_length, settings.agents.envs_per_agent
    steps = -(-_update_steps(settings) // settings.algorithm.minibatches)
    if not facts(settings.algorithm.algorithm).rollouts_whole:
        length = min(length, -(-steps // n_envs))
    return -(-steps // (length * n_envs)), length


def fastest(times: dict[Kernel, float], by_rule: Kernel) -> Kernel:
    """Returns the fastest kernel that was measured; `by_rule` if none was.

    A kernel of the usual library is preferred if it is about as fast, see `ADVANTAGE`.
    """
    if not times:
        return by_rule
    best = min(times, key=lambda kernel: times[kernel])
    usual = min((kernel for kernel in times if kernel.library == by_rule.library), key=lambda kernel: times[kernel],
                default=best)
    return usual if times[best] > ADVANTAGE * times[usual] else best


def _candidates(settings: Settings, spec: EnvSpec) -> list[Kernel]:
    """Returns the kernels to choose from, the reference first; [] for vectors and for a user's own network."""
    if len(spec.observation_shape) != 3 or ":" in settings.algorithm.network:
        return []
    fixed, precision = fixed_library(), settings.algorithm.precision
    libraries: tuple[Library, ...] = (fixed,) if fixed else ("eigen", "onednn")
    if precision != "auto":
        return [Kernel(library, precision) for library in libraries]
    kernels = [Kernel(library, "float32") for library in libraries]
    if "onednn" in libraries and BFLOAT16 & processor_flags():
        kernels.append(Kernel("onednn", "bfloat16"))
    return kernels


# ------------------------------------------------------------------------------------------- in this process

class _Differs(Exception):
    """The results of a kernel differ from the reference's."""


def measured(settings: Settings, spec: EnvSpec, kernels: Sequence[Kernel],
             stop: Sequence[int] = ()) -> dict[Kernel, float] | None:
    """Measures each kernel: microseconds of processor time per agent step, for a prediction and all passes over it.

    A kernel is left out if it fails or does not agree with the first one. Returns {} if the measurement takes too long:
    a busy machine would seem to have lost its best kernel. Returns None if a GPU computes.
    """
    try:
        return _measured(settings, spec, kernels, stop)
    except ChildSilent:
        return {}


def _measured(settings: Settings, spec: EnvSpec, kernels: Sequence[Kernel],
              stop: Sequence[int]) -> dict[Kernel, float] | None:
    times: dict[Kernel, list[float]] = {}
    deadline = time.monotonic() + DEADLINE

    def answer(child: ChildProcess) -> Any:
        return child.receive(max(0.0, deadline - time.monotonic()), stop=stop)

    with ExitStack() as held:
        children: dict[Kernel, ChildProcess] = {}
        by_library: dict[Library, ChildProcess] = {}
        for kernel in kernels:  # the processes import TensorFlow and build in parallel
            with _left_out(children, kernel):
                if kernel.library not in by_library:
                    by_library[kernel.library] = held.enter_context(
                        ChildProcess(_MEASURING, settings, spec, kernel.library))
                children[kernel] = by_library[kernel.library]
                children[kernel].send(("build", kernel.precision))
        reference: Answers | None = None
        for kernel in list(children):
            with _left_out(children, kernel):
                answers = answer(children[kernel])
                if answers is None:
                    return None
                reference = reference or answers
                if not answers.agree(reference, kernel.precision):
                    raise _Differs
        for number in range(ROUNDS):
            if number and time.monotonic() > deadline - DEADLINE / 4:
                break
            for kernel in list(children):
                with _left_out(children, kernel):
                    children[kernel].send(("time", kernel.precision))
                    times.setdefault(kernel, []).append(answer(children[kernel]))
        return {kernel: 1e6 * median(seconds) for kernel, seconds in times.items() if kernel in children}


@contextmanager
def _left_out(children: dict[Kernel, ChildProcess], kernel: Kernel) -> Iterator[None]:
    try:
        yield
    except (ChildEnded, OSError, _Differs):
        children.pop(kernel, None)


# ------------------------------------------------------------------------------------------- in the measuring processes

class _Built:
    """A kernel of this process, ready to compute. It makes one step of the optimizer, on one minibatch.

    After several steps kernels would differ by more than their rounding, since each continues from its own weights.
    """

    def __init__(self, settings: Settings, spec: EnvSpec) -> None:
        from ga3c.learner.backend import make_updating
        from ga3c.learner.learner import make_algorithm
        from ga3c.learner.samples import batch_fields
        self._passes, (n_rollouts, length) = settings.algorithm.passes, minibatch(settings)
        settings = settings.changed(passes=1, minibatches=1, rollout_length=length, optimizer="rmsprop",
                                    rmsprop_epsilon=1e6)
        algorithm = make_algorithm(settings)
        self._rates = {name: number.start for name, number in algorithm.rates.items()}
        fields = batch_fields(settings, spec, algorithm.outputs(spec))
        self._backend = make_updating(settings, spec, algorithm, fields)
        self._batch = _batch(fields, spec, length, n_rollouts)
        self._observation = aligned((_PREDICTED, *spec.observation_shape), spec.observation_dtype)
        self._observation[:] = self._batch.observation.reshape(-1, *spec.observation_shape)[
            np.arange(_PREDICTED) % self._batch.agent_steps]
        self._weights = self._backend.publish()

    def answers(self) -> Answers | None:
        """Returns outputs and gradient, or None on a GPU. Moves the weights down the gradient."""
        outputs = self._backend.predict(self._observation, self._weights)
        before = self._flat()
        self._update(1e3)  # with an epsilon of 1e6 the step is the gradient
        answers = Answers(np.concatenate([output.ravel() for output in outputs.values()]), self._flat() - before)
        return answers if self._backend.device == "CPU" else None

    def seconds(self) -> float:
        """Returns seconds of processor time per agent step, for a prediction and all passes."""
        return (_seconds(lambda: self._backend.predict(self._observation, self._weights)) / _PREDICTED
                + self._passes * _seconds(lambda: self._update(0.0)) / self._batch.agent_steps)

    def _update(self, learning_rate: float) -> None:
        rates = {**self._rates, "learning_rate": learning_rate}
        self._backend.update(self._backend.inputs(self._batch), rates, self._weights, (), lambda: False)
        self._weights = self._backend.publish()

    def _flat(self) -> NDArray[np.float32]:
        return np.concatenate([array.ravel() for name, array in self._backend.arrays().items()
                               if name.startswith("network.")])


def _batch(fields: Mapping[str, Field], spec: EnvSpec, length: int, n: int) -> Batch:
    """Returns a batch of noise. The computation takes equally long whatever the numbers are."""
    rng = np.random.default_rng(0)
    arrays = dict[str, NDArray]()
    for name, (shape, dtype) in fields.items():
        array = aligned((n, *shape), dtype)
        if dtype == np.uint8:
            array[:] = rng.integers(0, 256, array.shape, np.uint8)
        elif name in ("reward", "discounted_reward", "returns"):
            array[:] = rng.normal(size=array.shape)
        elif array.dtype.kind == "f":  # probabilities, and other outputs, must not be 0
            array[:] = 1 / spec.n_actions
        else:
            array[:] = 0
        arrays[name] = array
    arrays["action"][:] = rng.integers(0, spec.n_actions, arrays["action"].shape)
    arrays["steps"] = np.full(n, length, np.int32)
    arrays["reused"] = np.zeros(n, np.int32)
    arrays.setdefault("reward", np.zeros((n, length, arrays["action"].shape[2]), np.float32))
    del arrays["filled"]
    return Batch(arrays)


def _seconds(call: Callable[[], object]) -> float:
    """Returns the mean processor time of a call in seconds, measured for half of `SECONDS`."""
    until, began, count = time.monotonic() + SECONDS / 2, time.process_time(), 0
    while not count or time.monotonic() < until:
        call()
        count += 1
    return (time.process_time() - began) / count


def measure(caller: Caller, settings: Settings, spec: EnvSpec, library: Library) -> None:
    """Answers questions in a child process: ("build" or "time", precision)."""
    before_tensorflow(library=library)
    from ga3c.learner.tensorflow.device import start_tensorflow
    start_tensorflow(settings)
    built: dict[str, _Built] = {}
    while True:
        what, precision = caller.receive()
        if what == "build":
            built[precision] = _Built(settings.changed(precision=precision), spec)
            caller.send(built[precision].answers())
        else:
            caller.send(built[precision].seconds())
