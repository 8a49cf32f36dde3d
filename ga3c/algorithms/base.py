"""The interface of an algorithm: its outputs in a slot, what stays fixed over the passes of an update, and a loss.

An algorithm is one file beside this one that fulfils `Algorithm`. Learner, backend, slots and metrics use only this
interface. It declares the heads of the network, the outputs that it makes of them, and how actions are chosen from
these (`acting`). An update is one `prepare` and then, for each minibatch of each pass, one `loss`. The schedule decides
where batches come from (`service.batches`, `service.rounds`).

An output named "value" is special: the expected return of an observation. Agents also ask for that of the observation
after a rollout and of the last one of a truncated episode: the fields `bootstrap_value` and `final_value` of a batch.

Index order: B rollouts, T steps, E environments, A actions; N = B T E steps in a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import keras

from ga3c.algorithms.acting import Acting
from ga3c.envs.base import EnvSpec
from ga3c.settings.annealing import Annealed
from ga3c.settings.schema import AlgorithmSettings
from ga3c.transport.fields import Field, Outputs

Tensor = Any
"""A tensor of whatever backend Keras runs on."""


Rates = Mapping[str, Tensor]
"""The annealed numbers of one update by name, see `annealed`: floats, or float32 tensors within an update."""


class Prepared(NamedTuple):
    """The result of `Algorithm.prepare`: what stays fixed in all passes over a batch.

    rows: tensors by name; the first axis counts rows. A row is one step of one environment, or a whole rollout, as the
    algorithm chooses. A minibatch is some of the rows. rows["filled"], (n, ...) bool, masks padding; minibatches leave
    out rows that are all padding. state: new values of the algorithm's `variables`, by name. They are assigned if at
    least one minibatch changes the weights.
    """

    rows: Mapping[str, Tensor]
    state: Mapping[str, Tensor] = MappingProxyType({})


class Loss(NamedTuple):
    """The result of `Algorithm.loss`.

    total: scalar, from which the gradient is computed. metrics: scalars by name, means per agent step; they become
    columns of `metrics.jsonl`. state: new values of the algorithm's `variables`, assigned only if all metrics are
    finite. rows: numbers about each row by name, (n,) for the n rows of the loss, as their errors; the source of the
    batch gets them back.
    """

    total: Tensor
    metrics: dict[str, Tensor]
    state: Mapping[str, Tensor] = MappingProxyType({})
    rows: Mapping[str, Tensor] = MappingProxyType({})


class Head(NamedTuple):
    """A last layer of the network, over the features that all heads share. Its result is (n, units) float32.

    activation: "softmax" for probabilities; None for the numbers as they are. gain: of its orthogonal first weights.
    own_layer: whether the layer before it is its own, and not shared with other heads. If one has its own, all have.
    """

    units: int
    activation: str | None = None
    gain: float = 1.0
    own_layer: bool = False


class Network(Protocol):
    """The network within one prediction or one update."""

    def __call__(self, observation: Tensor, training: bool = False) -> Mapping[str, Tensor]:
        """Returns what each of `Algorithm.heads` makes of observations (n, *shape), by its name: (n, units), float32.

        training=True uses the variables, with a gradient. training=False has no gradient. In `prepare` and in the first
        minibatch it uses the weights before the update, later those after the minibatch before.
        """

    def target(self, observation: Tensor) -> Mapping[str, Tensor]:
        """Returns the same of the target network, without a gradient: of earlier weights, which the schedule keeps.

        Only within an update, and only if `Algorithm.reads_target`.
        """


class Algorithm(Protocol):
    """How agents act and the model learns. Each model that learns or plays has its own object."""

    @property
    def reads(self) -> Sequence[str]:
        """The fields of a batch that `prepare` needs. The others are not copied to the device."""

    @property
    def reads_target(self) -> bool:
        """Whether its updates call `Network.target`."""

    @property
    def rates(self) -> Mapping[str, Annealed]:
        """Its own numbers that change with the agent steps, by name. `loss` gets their values, and "learning_rate"."""

    @property
    def variables(self) -> Mapping[str, keras.Variable]:
        """State beside the network's weights, by its names in a checkpoint, as in "advantage.00"."""

    @property
    def acting(self) -> Acting:
        """How actions are chosen from the outputs."""

    def heads(self, env: EnvSpec) -> dict[str, Head]:
        """Returns the heads of the network by name, at least one. The order gives the order of their weights."""

    def outputs(self, env: EnvSpec) -> dict[str, Field]:
        """Returns the fields of `act` for one observation. They become fields of a slot; an agent acts on them."""

    def act(self, network: Network, observation: Tensor) -> Outputs:
        """Returns the outputs for observations (n, *shape). Compiled: tensors in and out.

        Use the network alone: evaluations and exports do not have the trained `variables`.
        """

    def prepare(self, network: Network, batch: Mapping[str, Tensor]) -> Prepared:
        """Returns what the passes need of a batch with at least one filled step. Compiled: tensors in and out.

        batch: the fields in `reads` as they lie in the slots, (B, T, E, ...); "filled" (B, T, 1) bool is one of them.
        """

    def loss(self, network: Network, rows: Mapping[str, Tensor], rates: Rates) -> Loss:
        """Returns the loss of some of the `Prepared.rows`, at least one step of which is filled. Compiled."""


def annealed(settings: AlgorithmSettings, algorithm: Algorithm) -> dict[str, Annealed]:
    """Returns all numbers of an update that change with the agent steps: the learning rate and the algorithm's own."""
    return {"learning_rate": Annealed(settings.learning_rate, settings.learning_rate_final), **algorithm.rates}


def rates_at(numbers: Mapping[str, Annealed], anneal_steps: int, agent_steps: int,
             learning_rate_factor: float) -> dict[str, float]:
    """Returns the values of `annealed` numbers in an update that follows `agent_steps` agent steps."""
    rates = {name: number.at(agent_steps / anneal_steps) for name, number in numbers.items()}
    return {**rates, "learning_rate": learning_rate_factor * rates["learning_rate"]}
