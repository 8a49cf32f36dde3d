"""A wrapper around a user's algorithm, which reports each mistake in one line."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import TypeVar

import keras
import numpy as np

from ga3c.algorithms.acting import Acting
from ga3c.algorithms.base import Algorithm, Head, Loss, Network, Prepared, Rates, Tensor
from ga3c.envs.base import EnvSpec
from ga3c.envs.containment import reraising
from ga3c.settings.annealing import Annealed
from ga3c.settings.messages import ConfigError
from ga3c.transport.fields import Field, Outputs
from ga3c.transport.slots import taken_names

_T = TypeVar("_T")


class OwnAlgorithm:
    """The user's `algorithm` of that name, with its results checked.

    Raises ConfigError of one line if the algorithm fails while it is compiled, or returns a result of the wrong kind.
    """

    def __init__(self, name: str, algorithm: Algorithm) -> None:
        self._name = name
        self._algorithm = algorithm
        self._outputs: Mapping[str, Field] = {}

    @property
    def reads(self) -> Sequence[str]:
        """The user's `reads`."""
        return self._call("reads", lambda: tuple(self._algorithm.reads))

    @property
    def reads_target(self) -> bool:
        """The user's `reads_target`; False if there is none."""
        return bool(self._call("reads_target", lambda: getattr(self._algorithm, "reads_target", False)))

    @property
    def rates(self) -> Mapping[str, Annealed]:
        """The user's `rates`; none if there is no such attribute."""
        rates = self._call("rates", lambda: dict(getattr(self._algorithm, "rates", {})))
        self._require("rates", all(isinstance(number, Annealed) for number in rates.values()),
                      f"must be numbers by name, each an Annealed, but are {rates}")
        return rates

    @property
    def variables(self) -> Mapping[str, keras.Variable]:
        """The user's current `variables`: `outputs` may make them, since it gets the environment's shapes."""
        return self._call("variables", lambda: dict(self._algorithm.variables))

    @property
    def acting(self) -> Acting:
        """The user's `acting`, tried on outputs of noise. Its functions reach agents by name, so they must have one."""
        acting = self._call("acting", lambda: self._algorithm.acting)
        self._require("acting", isinstance(acting, Acting), f"must be an Acting, but is {type(acting).__name__}")
        self._call("acting", lambda: pickle.dumps(acting))
        outputs = {name: np.full((2, *field.shape), 0.5, field.dtype) for name, field in self._outputs.items()}
        rates = self._call("acting.explore", lambda: np.asarray(acting.explore(0, 0, 2)))
        self._require("acting.explore", rates.shape == (2,),
                      f"must return a number for each environment, (2,), but returns {rates.shape}")
        chosen = self._call("acting.choose", lambda: acting.choose(outputs, np.random.default_rng(0), rates))
        best = self._call("acting.best", lambda: acting.best(outputs))
        for name, actions in (("choose", np.asarray(chosen)), ("best", np.asarray(best))):
            self._require(f"acting.{name}", actions.shape == (2,) and actions.dtype.kind == "i",
                          f"must return an action for each observation, (2,) integers, but returns {actions.dtype} "
                          f"{actions.shape}")
        return acting

    def heads(self, env: EnvSpec) -> dict[str, Head]:
        """Returns the user's heads, at least one."""
        heads = self._call("heads", lambda: dict(self._algorithm.heads(env)))
        self._require("heads", bool(heads) and all(isinstance(head, Head) for head in heads.values()),
                      f"must return heads by name, but returns {heads}")
        return heads

    def outputs(self, env: EnvSpec) -> dict[str, Field]:
        """Returns the user's outputs. No slot may already have a field of their names. A "value" is one number."""
        fields = self._call("outputs", lambda: dict(self._algorithm.outputs(env)))
        taken = taken_names(env)
        for name in fields:
            self._require("outputs", name not in taken,
                          f"returns an output {name!r}, but a slot already has a field of that name")
        for name, field in fields.items():
            self._require("outputs", isinstance(field, Field),
                          f"must return {name!r} as a Field, but returns {field!r}")
        if "value" in fields:
            self._require("outputs", fields["value"].shape == (),
                          f"must return 'value' of the shape (), but returns {fields['value'].shape}")
        self._outputs = fields
        return fields

    def act(self, network: Network, observation: Tensor) -> Outputs:
        """Returns the user's outputs for observations. All of `outputs` must be there, as tensors of their shapes."""
        outputs = self._call("act", lambda: self._algorithm.act(network, observation))
        self._require("act", isinstance(outputs, Mapping),
                      f"must return outputs by name, but returns {type(outputs).__name__}")
        for name, field in self._outputs.items():
            self._tensor("act", name, outputs.get(name))
            shape = self._call("act", functools.partial(_shape, outputs[name]))
            right = (None, *field.shape)
            self._require("act", len(shape) == len(right) and all(
                None in both or both[0] == both[1] for both in zip(shape, right, strict=True)),
                f"must return {name} of the shape {_shown(right)}, but returns {_shown(shape)}")
        return outputs

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        """Returns the user's `Prepared`. It must have rows "filled" of bool, and only state of existing variables."""
        prepared = self._call("prepare", lambda: self._algorithm.prepare(network, batch))
        self._require("prepare", isinstance(prepared, Prepared),
                      f"must return a Prepared, but returns {type(prepared).__name__}")
        self._named("prepare", "rows", prepared.rows)
        self._require("prepare", "filled" in prepared.rows, "must return rows 'filled'")
        for name, row in prepared.rows.items():
            self._tensor("prepare", name, row)
        kind = keras.backend.standardize_dtype(prepared.rows["filled"].dtype)
        self._require("prepare", kind == "bool", f"must return rows 'filled' of bool, but returns {kind}")
        self._state("prepare", prepared.state)
        return prepared

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        """Returns the user's `Loss`. Its metrics become float32: they may be numbers of any kind."""
        loss = self._call("loss", lambda: self._algorithm.loss(network, rows, rates))
        self._require("loss", isinstance(loss, Loss), f"must return a Loss, but returns {type(loss).__name__}")
        self._tensor("loss", "total", loss.total)
        self._scalar("total", loss.total)
        self._named("loss", "metrics", loss.metrics)
        metrics = {}
        for name, number in loss.metrics.items():
            if not isinstance(number, Real):
                self._tensor("loss", name, number)
            metrics[name] = self._call("loss", functools.partial(_float32, number))
            self._scalar(name, metrics[name])
        self._state("loss", loss.state)
        self._named("loss", "rows", loss.rows)
        for name, numbers in loss.rows.items():
            self._tensor("loss", name, numbers)
            self._require("loss", len(numbers.shape) == 1,
                          f"must return {name} as a number for each row, but its shape is {_shown(_shape(numbers))}")
        return loss._replace(metrics=metrics)

    def _tensor(self, method: str, name: str, tensor: object) -> None:
        self._require(method, keras.ops.is_tensor(tensor),
                      f"must return {name} as a tensor, but returns {tensor!r:.40}")

    def _scalar(self, name: str, number: Tensor) -> None:
        self._require("loss", tuple(number.shape) == (),
                      f"must return {name} as a scalar, but its shape is {tuple(number.shape)}")

    def _named(self, method: str, what: str, mapping: object) -> None:
        self._require(method, isinstance(mapping, Mapping),
                      f"must return {what} by name, but returns {type(mapping).__name__}")

    def _state(self, method: str, state: Mapping[str, Tensor]) -> None:
        self._named(method, "state", state)
        variables = self.variables
        self._require(method, state.keys() <= variables.keys(),
                      f"returns the state {sorted(state)}, but its variables are {sorted(variables)}")
        for name, value in state.items():
            shape, right = tuple(getattr(value, "shape", ())), tuple(variables[name].shape)
            self._require(method, shape == right or None in shape,
                          f"must return {name} of the shape {right}, but returns {shape}")

    def _call(self, method: str, call: Callable[[], _T]) -> _T:
        with reraising(f"algorithm: {self._name!r} fails in `{method}`", ConfigError):
            return call()

    def _require(self, method: str, right: bool, message: str) -> None:
        if not right:
            raise ConfigError(f"algorithm: `{method}` of {self._name!r} {message}")


def _float32(number: object) -> Tensor:
    return keras.ops.cast(keras.ops.convert_to_tensor(number), "float32")


def _shape(tensor: Tensor) -> tuple[int | None, ...]:
    return tuple(tensor.shape)


def _shown(shape: tuple[int | None, ...]) -> str:
    return str(shape).replace("None", "n")
