"""The variables of a model: those of the network, the optimizer, the algorithm and the running moments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from numpy.typing import NDArray

from ga3c.algorithms.base import Algorithm, Prepared, Tensor
from ga3c.algorithms.networks import Bound, HeadedNetwork, build_network, folded
from ga3c.algorithms.normalizing import RunningMoments, inverse_deviation, merged, scaling
from ga3c.envs.base import EnvSpec
from ga3c.learner.backend import Weights
from ga3c.learner.tensorflow.optimizers import build_optimizer
from ga3c.settings.schema import Settings


def _difference(variables: dict[str, keras.Variable], arrays: dict[str, NDArray]) -> str:
    """Returns the first difference in name or shape; "" if there is none."""
    for name in sorted(variables.keys() | arrays.keys()):
        here, there = (tuple(side[name].shape) if name in side else "missing" for side in (variables, arrays))
        if here != there:
            return f"{name} is {there}, here {here}"
    return ""


class Variables:
    """All variables of a model by name, as in "network.00" and "optimizer.00".

    network, optimizer: Keras objects. algorithm: the one given. reads: the fields of a batch that an update needs.
    """

    def __init__(self, settings: Settings, env: EnvSpec, algorithm: Algorithm, precision: str) -> None:
        self.algorithm = algorithm
        self.network = build_network(settings, env, algorithm.heads(env), precision)
        self.optimizer = build_optimizer(settings.algorithm, self.network.trainable_variables)
        self._observations = (RunningMoments("observation", env.observation_shape)
                              if settings.algorithm.normalize_observations else None)
        self._rewards = RunningMoments("return", ()) if settings.algorithm.normalize_rewards else None
        needed = (*(("observation", "filled") if self._observations else ()),
                  *(("reward", "discounted_reward", "filled") if self._rewards else ()))
        self.reads = tuple(dict.fromkeys((*algorithm.reads, *needed)))
        # Compiled, so that the results equal those within an update to the bit.
        self._fold = tf.function(self.folded, autograph=False)
        self._take = tf.function(self._taken, autograph=False)

    # ------------------------------------------------------------------------ compiled: tensors in and out

    def folded(self) -> list[Tensor]:
        """Returns `Weights` of the variables as they are now."""
        return [*folded(self.network), *(scaling(self._observations.now()) if self._observations else ())]

    @property
    def folds(self) -> bool:
        """Whether `Weights` hold the network's. Those of a user's network do not: it is called with its variables."""
        return isinstance(self.network, HeadedNetwork)

    def _taken(self, arrays: Mapping[str, Tensor]) -> list[Tensor]:
        self.assign(arrays)
        return self.folded()

    def bound(self, weights: Sequence[Tensor], target: Sequence[Tensor] = ()) -> Bound:
        """Returns the network with these `Weights`, and with those of the target, if any."""
        n = len(weights) - (2 if self._observations else 0)
        return Bound(self.network, weights[:n], weights[n:], self.bound(target) if target else None)

    def prepared(self, reads: Sequence[Tensor], weights: Sequence[Tensor], target: Sequence[Tensor] = ()) -> tuple[
            Prepared, Sequence[Tensor], dict[str, Tensor]]:
        """Returns (what the algorithm prepares from a batch, weights for the update, new values of variables by name).

        reads: the fields of the batch, in the order of `self.reads`. Observations and rewards are normalised by moments
        that include the batch. Otherwise the first update would be made from numbers of any size.
        """
        batch, moments = dict(zip(self.reads, reads, strict=True)), list[Tensor]()
        if self._observations:
            seen = merged(self._observations.now(), batch["observation"], batch["filled"])
            weights = [*weights[:-2], *scaling(seen)]
            moments += seen
        if self._rewards:
            sums = merged(self._rewards.now(), batch["discounted_reward"], batch["filled"])
            batch = batch | {"reward": batch["reward"] * inverse_deviation(sums)}
            moments += sums
        prepared = self.algorithm.prepare(self.bound(weights, target), batch)
        return prepared, weights, {**prepared.state, **dict(zip(self._moments(), moments, strict=True))}

    def assign_state(self, values: Mapping[str, Tensor]) -> None:
        """Assigns values by name to the variables of the algorithm and of the running moments."""
        variables = {**self.algorithm.variables, **self._moments()}
        for name, value in values.items():
            variables[name].assign(value)

    def untrained_state(self) -> dict[str, Tensor]:
        """Returns the network's weights that no gradient changes, by name. A user's network may have some, such as
        moving averages of its inputs.
        """
        names = {id(variable): name for name, variable in self._named().items()}
        frozen = {id(variable) for layer in getattr(self.network, "layers", ()) if not layer.trainable
                  for variable in layer.weights}  # they never change
        return {names[id(variable)]: ops.convert_to_tensor(variable)
                for variable in self.network.non_trainable_weights if id(variable) not in frozen}

    # ------------------------------------------------------------------------------------------------ arrays

    def weights(self) -> Weights:
        """Returns the weights to predict with, from the variables as they are now."""
        found: Weights = self._fold()
        return found

    def assign_and_fold(self, arrays: Mapping[str, NDArray]) -> Weights:
        """Assigns a copy of `arrays`, all variables or some, and returns the new `weights`. Takes one call."""
        return list(self._take({name: tf.constant(array) for name, array in arrays.items()}))

    def _moments(self) -> dict[str, keras.Variable]:
        """Returns the variables of the running moments, in the order of `prepared`."""
        return {name: variable for running in (self._observations, self._rewards) if running
                for name, variable in running.variables.items()}

    def _named(self) -> dict[str, Any]:
        # Named by position: Keras' names depend on what else the process has built.
        return {f"{owner}.{number:02d}": variable
                for owner, variables in (("network", self.network.weights), ("optimizer", self.optimizer.variables))
                for number, variable in enumerate(variables)} | dict(self.algorithm.variables) | self._moments()

    def arrays(self) -> dict[str, NDArray]:
        """Returns a copy of all variables by name."""
        return {name: variable.numpy() for name, variable in self._named().items()}

    def assign(self, arrays: Mapping[str, NDArray | Tensor]) -> None:
        """Sets the variables that are named in `arrays`. Their shapes must fit, see `matching_arrays`."""
        variables = self._named()
        for name, array in arrays.items():
            variables[name].assign(array)

    def matching_arrays(self, arrays: Mapping[str, NDArray], only: tuple[str, ...] = ("",)) -> dict[str, NDArray]:
        """Returns the `arrays` of these variables, or of those whose names begin with one of `only`.

        Arrays of other owners are left out; the owner is the first part of a name. Running moments start at zero if
        `arrays` has none, as their setting was off. Raises ValueError if anything else is missing or has another shape.
        """
        variables = {name: variable for name, variable in self._named().items() if name.startswith(only)}
        owners, given_owners = ({name.split(".")[0] for name in named} for named in (variables, arrays))
        new = {name: np.zeros(variable.shape) for name, variable in self._moments().items()
               if name in variables and name.split(".")[0] not in given_owners}
        arrays = {name: array for name, array in arrays.items() if name.split(".")[0] in owners} | new
        wrong = _difference(variables, arrays)
        if wrong:
            other = wrong.split(".")[0]
            if other == "network":
                raise ValueError(f"its weights are of another network: {wrong}")
            raise ValueError(f"its state is of another {'optimizer' if other == 'optimizer' else 'algorithm'}: {wrong}"
                             "; --weights-only begins a new run with its weights")
        return arrays

    def statistics(self) -> list[tuple[str, ...]]:
        """Returns, for each trainable variable of the network, its name and those of the optimizer's statistics of it.

        The statistics are the mean square, or Adam's two moments.
        """
        names = {id(variable): name for name, variable in self._named().items()}
        trainable, optimizer = self.network.trainable_variables, self.optimizer.variables[2:]
        kinds = len(optimizer) // len(trainable)  # they stand variable by variable, after iteration and learning rate
        return [(names[id(variable)], *(names[id(each)] for each in optimizer[at * kinds:(at + 1) * kinds]))
                for at, variable in enumerate(trainable)]
